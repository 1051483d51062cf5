"""The exception that Treadle raises for everything that a user can cause or repair."""

from __future__ import annotations

from collections.abc import Iterable

TOO_DEEP = "fewer operations inside, or computed from, each other: a few hundred"
"""What is accepted of an input on which a recursion does not end."""


class TreadleError(Exception):
    """An error that names what is wrong, where, and what would be accepted instead.

    message:  what is wrong, naming the offending operation or value
    where: a source location, a node's name, a file, an environment variable
    accepted: what would be accepted; several alternatives are joined by commas

    ``str(error)`` is one line: ``<where>: <message>; accepted: <accepted>``.
    """

    message: str
    where: str | None
    accepted: str | None

    def __init__(self, message: str, where: object = None, accepted: str | Iterable[object] | None = None):
        self.message = message
        self.where = None if where is None else str(where)
        if accepted is None or isinstance(accepted, str):
            self.accepted = accepted
        else:
            self.accepted = ", ".join(str(item) for item in accepted)
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        if self.accepted is not None:
            text = f"{text}; accepted: {self.accepted}"
        return " ".join(text.split())


class TreadleWarning(UserWarning):
    """What a user should know, although it stops nothing."""
