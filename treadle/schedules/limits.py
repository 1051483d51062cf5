"""Limits of hardware that a schedule exceeds, as errors that searches can count by limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.errors import TreadleError
from treadle.target import Target


class LimitError(TreadleError):
    """A schedule needs more of something than there is.

    what: the limit, in plural: `threads`, `bytes of shared memory`; a template has one of each name
    used, allowed: how many the schedule takes or needs, and how many there are
    message, accepted: in the words of whoever rejects it; unless given, they say these numbers
    """

    what: str
    used: int
    allowed: int

    def __init__(
        self,
        what: str,
        used: int,
        allowed: int,
        where: object = None,
        message: str | None = None,
        accepted: str | None = None,
    ):
        self.what, self.used, self.allowed = what, used, allowed
        said = f"it takes {used} {what}, {used - allowed} too many" if message is None else message
        super().__init__(said, where, f"at most {allowed}" if accepted is None else accepted)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unlike other exceptions, it is not made of its message alone."""
        return LimitError, (self.what, self.used, self.allowed, self.where, self.message, self.accepted)


def check_limit(
    what: str,
    used: int,
    allowed: int,
    where: object = None,
    message: str | None = None,
    accepted: str | None = None,
) -> None:
    """LimitError where more is used than is allowed."""
    if used > allowed:
        raise LimitError(what, used, allowed, where, message, accepted)


def check_limits(who: str, limits: Iterable[tuple[str, int, int]], target: Target) -> None:
    """LimitError for the first of some limits of a target, each with what is used and allowed, that is exceeded.

    who: what takes too much, for the message
    """
    for what, used, allowed in limits:
        message = f"{who} takes {used} {what}, {used - allowed} too many"
        check_limit(what, used, allowed, None, message, f"at most {allowed} on {target.name}")


def check_divides(what: str, part: int, whole: int, message: str, accepted: str) -> None:
    """LimitError where parts do not divide a whole: the parts that cover it take more than there is."""
    check_limit(what, whole + -whole % part, whole, None, message, accepted)


__all__ = ["LimitError", "check_divides", "check_limit", "check_limits"]
