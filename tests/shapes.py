"""A type checker for shapes alone: whatever else comes in, public functions must refuse it themselves."""

from beartype import beartype


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
