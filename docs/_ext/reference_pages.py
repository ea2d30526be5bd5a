"""Writes docs/reference before Sphinx reads its sources: public names, command line, run folder and glossary.

Everything comes from the package: docstrings, the help of the commands, `runs.contents` and
`measures.heads.glossary`. Only grouping, sources and see-also are in `public_names`.
"""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer
from public_names import GROUPS, Entry, Group
from sphinx.application import Sphinx
from sphinx.errors import ConfigError

import headtree as ht
from headtree.cli.app import app as commands
from headtree.measures.heads.glossary import OF_HEADS, OF_LAYERS, OF_RUNS, Definition
from headtree.measures.heads.ranking_evidence import good_for
from headtree.runs.contents import STORED


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Sphinx) -> None:
    """Write every page that changed."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    pages = dict(_pages())
    for old in set(folder.glob("*.*")) - {folder / name for name in pages}:
        old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    listed = [name for group in GROUPS.values() for name in group.names]
    if sorted(listed) != sorted(ht.__all__):
        odd = sorted(set(listed) ^ set(ht.__all__))
        raise ConfigError(f"docs/_ext/public_names.py must list every public name once; see {', '.join(odd)}")
    yield "index.rst", _index()
    for name, group in GROUPS.items():
        yield f"{name}.rst", _group_page(group)
    yield "command_line.md", _command_line()
    yield "run_folder.md", _run_folder()
    yield "glossary.md", _glossary()


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


def _index() -> str:
    lines = [
        _title("Reference"),
        "``import headtree as ht``; every name below is ``ht.name``. Each example is run by the tests.\n",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *(f"   {name}" for name in GROUPS),
        "   command_line",
        "   run_folder",
        "   glossary",
        "",
        "All names",
        "---------",
        "",
    ]
    for name in sorted((name for name in ht.__all__ if name != "__version__"), key=str.lower):
        summary = (inspect.getdoc(getattr(ht, name)) or "").split("\n")[0]
        lines.append(f"- :py:obj:`~headtree.{name}`: {summary}")
    return "\n".join(lines) + "\n"


def _group_page(group: Group) -> str:
    names = [(name, entry) for name, entry in group.names.items() if name != "__version__"]
    return "\n".join([_title(group.title), group.about, "", *(_entry(name, entry) for name, entry in names)])


def _entry(name: str, entry: Entry) -> str:
    kind = "autoclass" if inspect.isclass(getattr(ht, name)) else "autofunction"
    lines = [name, "-" * len(name), "", f".. {kind}:: headtree.{name}", ""]
    if entry.implements:
        lines += [f"   **Implements** {entry.implements}.", ""]
    if entry.see_also:
        lines += [
            "   **See also** " + ", ".join(f":py:obj:`~headtree.{n}`" for n in entry.see_also.split()) + ".",
            "",
        ]
    lines += [
        f"   .. minigallery:: headtree.{name}",
        "      :add-heading: In the gallery",
        "      :heading-level: ^",
        "",
    ]
    return "\n".join(lines)


def _command_line() -> str:
    group = typer.main.get_command(commands)
    lines = ["# Command line", "", "What `headtree --help` and the `--help` of every command print.", ""]
    lines += ["## headtree", "", "```text", _help(group, "headtree"), "```", ""]
    for name, command in group.commands.items():
        lines += [f"## headtree {name}", "", "```text", _help(command, f"headtree {name}"), "```", ""]
    return "\n".join(lines)


def _help(command: typer.core.TyperCommand, name: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=90, max_content_width=90)
    return str(command.get_help(context))


def _run_folder() -> str:
    lines = [
        "# The run folder",
        "",
        "`headtree run`, `headtree demo` and `headtree organize` write a folder. `ht.open_run` reads all of it;",
        "xarray opens the Zarr arrays. `run.json` holds the settings, versions, seeds and",
        "the state of every step. A step is written whole or not at all. If a command is interrupted, the same",
        "command continues.",
        "",
        "| file | step | what it holds |",
        "|---|---|---|",
        "| `run.json` | all | settings, versions, seeds, and which steps are done |",
        *(f"| `{file.name}` | {file.step} | {file.about} |" for file in STORED),
        "",
    ]
    return "\n".join(lines)


def _glossary() -> str:
    lines = [
        "# Glossary of columns",
        "",
        "The columns of `heads.csv` and `layers.csv`, in the words that the page of a run shows too.",
        "[Diagnostics](../diagnostics.md) explains roles and how values are averaged.",
        "",
    ]
    tables = {"Heads": OF_HEADS, "Heads, added by a run": OF_RUNS, "Layers": OF_LAYERS}
    for title, columns in tables.items():
        lines += [f"## {title}", "", *_column_table(columns), ""]
    return "\n".join(lines)


def _column_table(columns: Mapping[str, Definition]) -> Iterator[str]:
    yield "| column | what it is | source |"
    yield "|---|---|---|"
    for name, column in columns.items():
        meaning = ". ".join(filter(None, (column.meaning, good_for(name)))).replace("|", r"\|")
        yield f"| `{name}` | {meaning} | {column.source} |"
