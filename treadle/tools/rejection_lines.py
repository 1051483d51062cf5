"""Why candidates of a program are rejected, as lines: how many by each limit, and which one comes closest to it."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.schedules.search.ledger import Ledger


def rejection_lines(ledger: Ledger, program: str) -> Iterator[str]:
    """Two lines for each limit of a program, the most frequent first."""
    wasteful = ledger.wasteful
    for each in ledger.rejections:
        if each.program == program:
            margin = "" if each.margin is None else f", at least {each.margin:.1%} too much"
            most = ", more than nine tenths of all" if each in wasteful else ""
            yield f"    {each.count} rejected: {each.limit}{margin}{most}"
            yield f"      the closest: {each.closest}: {each.reason}"


__all__ = ["rejection_lines"]
