"""What a search has counted of candidates that it looked at, as a line of JSON.

    {"drawn": "evolution 0 9", "legal": {"tiled": 31}, "rejected": [{"program": "tiled", "limit": "accumulators",
     "count": 20, "margin": 0.25, "decisions": {"rows": 40}, "reason": "it takes 1280 accumulators, 256 too many"}]}

`drawn` names the draw: the strategy, the seed, and what the strategy draws by. A draw that is repeated, since the
search was interrupted, meets the same candidates: a later line supersedes an earlier one of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.decisions_record import decisions_of_record
from treadle.schedules.search.ledger import Ledger, Rejection
from treadle.schedules.search.record_numbers import real, whole

DRAWN = "drawn"
"""The field that such a line has, and no other one."""


def ledger_record(name: str, ledger: Ledger) -> dict[str, Any]:
    """The counts of a draw, the most frequent limits first."""
    return {DRAWN: name, "legal": dict(ledger.accepted), "rejected": [_record(each) for each in ledger.rejections]}


def ledger_of_record(found: Mapping[str, Any]) -> Ledger:
    """What was recorded; ValueError, KeyError or the like for anything else."""
    ledger = Ledger(Counter({str(name): whole(count) for name, count in found["legal"].items()}))
    for each in found["rejected"]:
        ledger.reject(_rejection(each))
    return ledger


def _record(rejection: Rejection) -> dict[str, Any]:
    margin = {} if rejection.margin is None else {"margin": rejection.margin}
    counted = {"program": rejection.program, "limit": rejection.limit, "count": rejection.count, **margin}
    return {**counted, "decisions": dict(rejection.closest.decisions), "reason": rejection.reason}


def _rejection(found: Mapping[str, Any]) -> Rejection:
    program, margin = str(found["program"]), found.get("margin")
    closest = Candidate(program, decisions_of_record(found["decisions"]))
    return Rejection(
        program, str(found["limit"]), whole(found["count"]), None if margin is None else real(margin), closest,
        str(found["reason"]),
    )  # fmt: skip


__all__ = ["DRAWN", "ledger_of_record", "ledger_record"]
