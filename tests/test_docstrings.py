"""The examples in the docstrings of all public names run as printed."""

import doctest
import importlib
import inspect

import pytest

import headtree as ht

NAMES = sorted(set(ht.__all__) - {"__version__"})
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name):
    """The doctests of a public name: of its own docstring and, for a class, of its public members."""
    thing = getattr(ht, name)
    module = importlib.import_module(thing.__module__)
    tests = doctest.DocTestFinder().find(thing, name, module=module, globs=dict(vars(module)))
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tests = examples(name)
    assert tests, f"ht.{name} needs an Examples section in its docstring"
    for test in tests:
        printed = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
        assert not printed, "".join(printed)


def test_parameters_in_docstrings_are_those_of_the_signature():
    for name in NAMES:
        thing = getattr(ht, name)
        if inspect.isfunction(thing) and "Parameters\n" in (thing.__doc__ or ""):
            section = inspect.cleandoc(thing.__doc__).split("Parameters\n----------\n")[1].split("\n\n")[0]
            heads = [line.split(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
            named = {part.strip().lstrip("*") for head in heads for part in head.split(",")}
            assert named <= set(inspect.signature(thing).parameters), name
