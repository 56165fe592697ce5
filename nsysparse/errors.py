"""What can go wrong, said in two lines: what happened, and what to do about it."""

from __future__ import annotations


class NsysparseError(Exception):
    """An error the user can act on.

    Attributes:
        message: One line that says what is wrong.
        hint: One line that says what to do; empty when there is nothing to do.
        exit_code: The command line's exit status (2: could not run).
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SourceError(NsysparseError):
    """The input is not a recording that can be read."""


class SchemaError(NsysparseError):
    """The input is a recording, but a table or column is not what it must be."""


class UsageError(NsysparseError):
    """An option's value makes no sense for this recording."""


class OutputError(NsysparseError):
    """The result could not be written."""
