"""The exception that Treadle raises for everything that a user can cause or repair."""

from __future__ import annotations

import re
from collections.abc import Iterable

TOO_DEEP = "fewer operations inside, or computed from, each other: a few hundred"
"""What is accepted of an input on which a recursion does not end."""


_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
"""Control characters but tab and newline, and those that reverse the direction of text."""


def printable(text: str) -> str:
    """The text with its control characters escaped: a terminal obeys them, and names of models may have some."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
        return printable(" ".join(text.split()))


class TreadleWarning(UserWarning):
    """What a user should know, although it stops nothing."""
