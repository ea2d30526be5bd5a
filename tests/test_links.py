"""Links and anchors of the documents lead somewhere, words are spelled right, and the reference is whole."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headtree as ht

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))
#: Written by the build, not stored.
GENERATED = ("reference/", "auto_gallery/")


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def links(text):
    """Targets of links and pictures that are not addresses on the web."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(document):
    """The anchor of each heading, as GitHub and MyST make it."""
    headings = re.findall(
        r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M), re.M
    )
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken(document, text):
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    assert list(broken(document, document.read_text(encoding="utf-8"))) == []


def test_a_broken_link_is_seen():
    document = ROOT / "docs" / "method.md"
    text = "[a](no.md) [b](method.md#2-trees) [c](#no-such-heading) [d](https://x.y) `[e](no.md)`"
    assert list(broken(document, text)) == ["no.md", "#no-such-heading"]


@pytest.mark.parametrize("document", [*DOCUMENTS, *SCRIPTS], ids=lambda path: path.name)
def test_links_of_sphinx_lead_somewhere(document):
    """Roles and lists of contents name pages that are there, or that the build writes."""
    text = document.read_text(encoding="utf-8")
    text = re.sub(r"\n# ?", " ", text) if document in SCRIPTS else text
    named = [re.sub(r".*<(.*)>", r"\1", name) for name in re.findall(r"(?::doc:|{doc})`([^`]+)`", text)]
    for block in re.findall(r"^```{toctree}\n(.*?)^```", text, re.S | re.M):
        named += [line for line in block.splitlines() if line and not line.startswith(":")]
    home = ROOT / "docs"
    for name in named:
        if document in SCRIPTS and not name.startswith("/"):
            assert (home / "gallery" / f"{name}.py").exists(), name
        elif not name.lstrip("/").startswith(GENERATED):
            assert (home / f"{name.lstrip('/')}.md").exists(), name


def test_every_page_is_in_the_contents():
    listed = {"index"}
    for document in DOCUMENTS:
        for block in re.findall(r"^```{toctree}\n(.*?)^```", document.read_text(encoding="utf-8"), re.S | re.M):
            listed |= set(block.split())
    assert [path.stem for path in (ROOT / "docs").glob("*.md") if path.stem not in listed] == []


def test_words_are_spelled_right():
    codespell = [sys.executable, "-m", "codespell_lib", "--config", "/dev/null"]
    ignored = ["--ignore-words", str(ROOT / "docs" / "words.txt")]
    # families.md quotes messages, some of them cut
    files = [path for path in DOCUMENTS if path.name != "families.md"]
    files += [ROOT / "CHANGELOG.md", *SCRIPTS, *(ROOT / "src").rglob("*.py")]
    result = subprocess.run([*codespell, *ignored, *map(str, files)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def assigned(file, name):
    """The value of a top-level name of a file, as a syntax tree."""
    tree = ast.parse((ROOT / "docs" / "_ext" / file).read_text(encoding="utf-8"))
    (value,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == name]
    return value


def test_the_reference_has_every_public_name_once():
    entries = [node for node in ast.walk(assigned("public_names.py", "GROUPS")) if isinstance(node, ast.Dict)]
    named, beside = [], []
    for node in entries[1:]:
        named += [key.value for key in node.keys]
        beside += " ".join(call.args[1].value for call in node.values).split()
    assert sorted(named) == sorted(ht.__all__)
    assert set(beside) <= set(ht.__all__)


def test_the_gallery_has_a_reading_order():
    order = ast.literal_eval(assigned("gallery_figures.py", "ORDER"))
    assert sorted(order) == sorted(path.stem.removeprefix("plot_") for path in SCRIPTS)
