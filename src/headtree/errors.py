"""What headtree raises: every error is a `HeadtreeError` and also the builtin a caller would expect."""


class HeadtreeError(Exception):
    """Base of all errors that headtree raises on purpose."""


class InvalidValueError(HeadtreeError, ValueError):
    """An argument of the right type breaks a rule; the message names argument, rule, received and remedy."""


class InvalidTypeError(HeadtreeError, TypeError):
    """An argument has a type that cannot be used; the message names argument, rule, received and remedy."""


class MissingPackageError(HeadtreeError, ImportError):
    """An optional dependency is not installed; the message says which, and how to install it."""


class HeadtreeWarning(UserWarning):
    """The answer is defined, but probably not what was hoped for."""
