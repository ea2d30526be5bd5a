"""Checks shapes in signatures and nothing else: whatever else comes in, public functions must refuse themselves."""

import inspect

import jaxtyping
from beartype import beartype
from jaxtyping import install_import_hook

_jaxtyped = jaxtyping.jaxtyped


def check_shapes_of(modules):
    """Check the shapes in signatures of these modules from now on; they must not have been imported yet."""
    jaxtyping.jaxtyped = _jaxtyped_where_shapes_are  # the decorator that the hook puts before every function
    install_import_hook(modules, "tests.shapes.check_shapes")


def _jaxtyped_where_shapes_are(function=None, *, typechecker):
    """Leave functions without shapes alone, and nested ones, which would be decorated at every call around them.

    The decorator binds the arguments of every call, which would take half of the time of the tests.
    """
    if function is None:
        return lambda function: _jaxtyped_where_shapes_are(function, typechecker=typechecker)
    is_nested = "<locals>" in getattr(function, "__qualname__", "")
    is_checked = not is_nested and any(map(_has_shapes, _bodies(function)))
    return _jaxtyped(function, typechecker=typechecker) if is_checked else function


def _bodies(function):
    """The plain functions of a function, class or descriptor."""
    if inspect.isclass(function):
        return [function.__init__]
    if isinstance(function, property):
        return [function.fget]
    return [getattr(function, "__func__", function)]


def _has_shapes(function):
    return any("jaxtyping" in _origin(hint) for hint in getattr(function, "__annotations__", {}).values())


def check_shapes(function):
    """Check the parameters and results annotated with a jaxtyping shape, and no others."""
    function.__annotations__ = {
        name: hint for name, hint in function.__annotations__.items() if "jaxtyping" in _origin(hint)
    }
    return beartype(function)


def _origin(hint):
    if isinstance(hint, str):
        return "jaxtyping" if any(word in hint for word in ("Float[", "Int[", "Bool[")) else ""
    return f"{getattr(hint, '__module__', '')} {hint!r} {type(hint).__module__}"
