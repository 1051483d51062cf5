"""Limits of hardware that a schedule exceeds, as errors that searches can count by limit."""

from __future__ import annotations

from treadle.errors import TreadleError


class LimitError(TreadleError):
    """A schedule needs more of something than there is.

    what: the limit, in plural: `threads`, `bytes of shared memory`
    used, allowed: how many the schedule takes, and how many there are
    """

    what: str
    used: int
    allowed: int

    def __init__(self, what: str, used: int, allowed: int, where: object = None):
        self.what, self.used, self.allowed = what, used, allowed
        super().__init__(f"it takes {used} {what}, {used - allowed} too many", where, f"at most {allowed}")


def check_limit(what: str, used: int, allowed: int, where: object = None) -> None:
    """LimitError where more is used than is allowed."""
    if used > allowed:
        raise LimitError(what, used, allowed, where)


__all__ = ["LimitError", "check_limit"]
