"""Sphinx settings of the documentation; `make docs` builds it, without a network.

The pages are docs/*.md. Two folders are written by the build and not stored: docs/reference, by
_ext/reference_pages.py, and docs/auto_gallery, by sphinx-gallery, which runs docs/gallery/plot_*.py.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# The processes that run examples import the same modules.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "_ext"), os.environ.get("PYTHONPATH"))))

import headtree  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

project = "headtree"
author = "The headtree developers"
copyright = author
version = release = headtree.__version__

extensions = [
    "myst_nb",  # Markdown pages and the notebook
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax from PyPI, not from a CDN
    "github_links",
    "reference_pages",
]
exclude_patterns = [
    "_build",
    "gallery/*.rst",
    "gallery/*.py",
    "gallery/runs",
    "auto_gallery/*.ipynb",
    "auto_gallery/sg_execution_times.rst",
]
default_role = "py:obj"
nitpicky = False
suppress_warnings = ["ref.python"]  # names such as `values` belong to several classes
show_warning_types = True

# Markdown: what GitHub shows too.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_output_stderr = "remove"  # of tqdm, which misses widgets

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have the types
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}
napoleon_google_docstring = False
toc_object_entries = False  # names have headings

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "parallel": 2,
    "within_subsection_order": "gallery_figures.ReadingOrder",
    "image_scrapers": ("gallery_figures.scrape", "matplotlib"),
    "ignore_repr_types": r"matplotlib|StyledFigure|<class 'list'>",  # lists: of what `axes.set` has set
    "capture_repr": ("_repr_html_", "__repr__"),
    "backreferences_dir": "auto_gallery/backreferences",
    "doc_module": ("headtree",),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "headtree"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "headtree"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "use_edit_page_button": False,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {"index": [], "findings": [], "contributing": []}
