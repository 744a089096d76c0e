"""The error that a command prints without a traceback."""

NOT_ACCEPTABLE = 2  # exit code: the command line, the data or the model is not acceptable


class UserError(Exception):
    """Something a person gave is not acceptable. The message says what, where and what to do about it."""
