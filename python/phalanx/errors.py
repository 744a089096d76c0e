"""The error that a command prints without a traceback."""


class UserError(Exception):
    """Something a person gave is not acceptable. The message says what, where and what to do about it."""
