"""The errors headtree raises: each is a `HeadtreeError` and also the builtin exception a caller would expect."""


class HeadtreeError(Exception):
    """Base class of all errors that headtree raises on purpose.

    Examples
    --------
    >>> import headtree as ht
    >>> try:
    ...     ht.PartitionTree.flat(0)
    ... except ht.HeadtreeError as error:
    ...     print(error)
    n_leaves must be at least 1, got 0
    """


class InvalidValueError(HeadtreeError, ValueError):
    """An argument has the right type but breaks a rule; the message says which, what came, and what to do."""


class DamagedFileError(InvalidValueError):
    """A file was changed or lost since headtree wrote it; the message names it."""


class InvalidTypeError(HeadtreeError, TypeError):
    """An argument has an unusable type; the message says what is needed, what came, and what to do."""


class MissingPackageError(HeadtreeError, ImportError):
    """An optional dependency is not installed; the message says which, and how to install it."""


class HeadtreeWarning(UserWarning):
    """The result is well defined, but probably not what you were hoping for.

    Examples
    --------
    Turn these warnings into errors:

    >>> import warnings
    >>> import headtree as ht
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ht.HeadtreeWarning)
    """


def first_line(error: BaseException) -> str:
    """The first line of what an error of another library says, without a point at its end; or its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(" .:")
