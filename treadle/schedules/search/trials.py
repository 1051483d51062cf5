"""What searches have measured and rejected, as lines of JSON: what a later search and a cost model read.

    {"program": "tiled", "text": "schedule.program @tiled for \"cpu\" { ... }"}
    {"program": "tiled", "decisions": {"rows": 4}, "round": 1, "us": 41.5, "reference_us": 43.0, ..., "of": 2}
    {"program": "matmul_cpu", "decisions": {"rows": 5}, "round": 1, "error": "it did not end in time", "of": 2}

A program's text stands before the first line that speaks of it, and again when it has changed; a template's program is
called as the template, whose knobs may get more values, and has no such line. What was rejected while a round's
candidates were drawn (`ledger_record`) stands before their trials: where a killed writer has left a trial, it is
there, too.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from treadle.dialects.schedule import Choice
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.database_files import ACCEPTED, MOST_RECORD_BYTES
from treadle.schedules.search.rejections import Ledger, Rejection
from treadle.schedules.work.cpu_work import Body, Reuse, Work
from treadle.schedules.work.gpu_work import AnyWork
from treadle.support.files import open_regular

# Numbers of records, which are text that anybody can edit: what no search writes is refused before it is computed
# with.

MOST = 1 << 62
"""Of a whole number: it is an attribute of 64 bits elsewhere."""
_LEAST_REAL, _MOST_REAL = 1e-9, 1e18
"""Of any other: microseconds, bytes, counts. Quotients and products of a few such numbers are finite."""


def whole(value: object, least: int = 0, most: int = MOST) -> int:
    """A whole number within bounds; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def real(value: object) -> float:
    """0 or a positive number of a usual size; ValueError for anything else, infinity and NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_REAL:
        raise ValueError(f"{_shown(value)} is no number from 0 to {_MOST_REAL:g}")
    if 0 < value < _LEAST_REAL:
        raise ValueError(f"{_shown(value)} is neither 0 nor at least {_LEAST_REAL:g}")
    return float(value)


def _shown(value: object) -> str:
    """A value in a message, which is short; the digits of a very large number are not computed."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


# Decisions in lines of JSON, where a tuple is a list.


def decisions_of_record(found: Any) -> dict[str, Choice]:
    """Decisions as JSON says them; ValueError, AttributeError or the like for anything else."""
    return {name: _choice(value) for name, value in found.items()}


def _choice(value: object) -> Choice:
    if isinstance(value, bool | str):
        return value
    if not isinstance(value, list):
        return whole(value, -MOST)
    numbers = cast("list[object]", value)
    if not numbers:
        raise ValueError("an empty list is no choice")
    return tuple(whole(number, -MOST) for number in numbers)


# What a search has counted of candidates that it looked at, as a line of JSON.
#
#     {"drawn": "evolution 0 9", "legal": {"tiled": 31}, "rejected": [{"program": "tiled", "limit": "accumulators",
#      "count": 20, "margin": 0.25, "decisions": {"rows": 40}, "reason": "it takes 1280 accumulators, 256 too many"}]}
#
# `drawn` names the draw: the strategy, the seed, and what the strategy draws by. A draw that is repeated, since the
# search was interrupted, meets the same candidates: a later line supersedes an earlier one of that name.

DRAWN = "drawn"
"""The field that such a line has, and no other one."""


def ledger_record(name: str, ledger: Ledger) -> dict[str, Any]:
    """The counts of a draw, the most frequent limits first."""
    return {
        DRAWN: name,
        "legal": dict(ledger.accepted),
        "rejected": [_rejection_record(each) for each in ledger.rejections],
    }


def ledger_of_record(found: Mapping[str, Any]) -> Ledger:
    """What was recorded; ValueError, KeyError or the like for anything else."""
    ledger = Ledger(Counter({str(name): whole(count) for name, count in found["legal"].items()}))
    for each in found["rejected"]:
        ledger.reject(_rejection(each))
    return ledger


def _rejection_record(rejection: Rejection) -> dict[str, Any]:
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


# A kernel's work as a record's field, from which a cost model learns without lowering the kernel again.
#
# {"blocks": 24, "threads": 1, "share": 12, "bodies": [[768, 32, 6, 0, 1, 0], ...], "reuse": [[0, 98304], ...]}


class OtherCountsError(ValueError):
    """A work that was recorded before as much was counted as today."""


_DIGITS = 6
"""More than a model can tell apart."""


def work_record(work: AnyWork) -> dict[str, Any]:
    """Numbers and lists of numbers; of a kernel for a GPU, its fields by their names."""
    if isinstance(work, GpuWork):
        return {name: _short(number) for name, number in asdict(work).items()}
    return {
        "blocks": work.blocks,
        "threads": work.threads,
        "share": _short(work.share),
        "bodies": [[_short(number) for number in astuple(body)] for body in work.bodies],
        "reuse": [[_short(number) for number in astuple(step)] for step in work.reuse],
    }


def work_of_record(found: Mapping[str, Any]) -> AnyWork:
    """What was recorded; ValueError, KeyError or TypeError for anything else.

    OtherCountsError for what was recorded before as much was counted as today.
    """
    if "bodies" not in found:
        return _gpu_work(found)
    if any(len(body) != len(fields(Body)) for body in found["bodies"]):
        raise OtherCountsError("a body has another number of counts")
    bodies = tuple(Body(*map(real, body)) for body in found["bodies"])
    reuse = tuple(Reuse(*map(real, step)) for step in found["reuse"])
    if not reuse:
        raise ValueError("a kernel moves some bytes")
    return Work(whole(found["blocks"], 1), whole(found["threads"], 1), bodies, reuse, real(found["share"]))


def _gpu_work(found: Mapping[str, Any]) -> GpuWork:
    if set(found) != {each.name for each in fields(GpuWork)}:
        raise OtherCountsError("a kernel for a GPU has other counts")
    values: dict[str, Any] = {}
    for each in fields(GpuWork):
        values[each.name] = whole(found[each.name]) if each.type == "int" else real(found[each.name])
    if not values["blocks"] or not values["threads"] or not values["min_blocks"]:
        raise ValueError("a kernel has blocks and threads")
    return GpuWork(**values)


def _short(number: float) -> float:
    rounded = float(f"{number:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


_MOST_LINE = 1 << 20
"""Bytes of a line; the longest that searches have written have some ten thousand."""
_MOST_ROUNDS = 1 << 16


@dataclass(frozen=True)
class Trial:
    """A candidate that was tried: its median time in microseconds, or the reason why there is none.

    program, decisions: those of the candidate
    round: 0 of the default schedule, then 1, 2, ...; of: the number of trials of that round
    reference_us: the median of the best one so far, timed together with this one; predicted_us: the cost model's
    work: of its kernel, which a cost model learns from
    """

    program: str
    decisions: Mapping[str, Choice]
    round: int = 0
    us: float | None = None
    reference_us: float | None = None
    predicted_us: float | None = None
    error: str | None = None
    of: int = 1
    work: AnyWork | None = None


def seconds_beside(trial: Trial, reference: float | None) -> float | None:
    """The seconds of a trial, if what it was timed together with takes `reference`; those of the default, which is
    timed alone, as they are."""
    if trial.us is None or (trial.round and not (trial.reference_us and reference)):
        return None
    return trial.us / trial.reference_us * reference if trial.reference_us and reference else trial.us * 1e-6


def seconds_of(trials: Iterable[Trial]) -> Iterator[tuple[Trial, float]]:
    """The trials of a group that have a time, in their order, with the seconds that they would have taken when the
    default schedule was timed.

    The machine is faster at one time than at another, by half and more where others share it. A round's trials were
    timed together with the best one of the rounds before, and this one together with those before it.
    """
    fastest: float | None = None
    reference, number = 0.0, -1
    for trial in trials:
        if fastest is not None and trial.round != number:
            reference, number = fastest, trial.round
        seconds = seconds_beside(trial, reference)
        if seconds is None:
            continue
        fastest = seconds if fastest is None else min(fastest, seconds)
        yield trial, seconds


def trial_lines(
    path: Path, trials: Sequence[Trial], programs: Mapping[str, str], ledgers: Mapping[str, Ledger] | None = None
) -> str:
    """What a round has found as the next lines of a file, without what the file says already.

    programs: the texts of those that are no template's; ledgers: by the names of the draws
    """
    drawn = {} if ledgers is None else {name: ledger for name, ledger in ledgers.items() if ledger.replayed}
    known, counted = (_texts(path), _last_ledgers(path)) if path.exists() else ({}, {})
    counts = [r for n, each in drawn.items() if json.dumps(r := ledger_record(n, each)) != counted.get(n)]
    names = dict.fromkeys([*(n for ledger in drawn.values() for n in ledger.programs), *(t.program for t in trials)])
    new = [{"program": n, "text": programs[n]} for n in names if n in programs and programs[n] != known.get(n)]
    records = [*new, *counts, *map(_record, trials)]
    return "".join(f"{json.dumps(record)}\n" for record in records)


def read_trials(path: Path, programs: Mapping[str, str] | None = None) -> Iterator[Trial]:
    """The trials of a file, without what is no line of a record, which a warning names.

    programs: today's texts of those that are no template's; trials of programs with another text are left out
    TreadleError for what is no regular file.
    """
    texts: dict[str, str] = {}
    for number, found in _records(path):
        with _naming(path, number):
            if "text" in found:
                texts[found["program"]] = str(found["text"])
            elif DRAWN not in found and (
                programs is None or programs.get(found["program"]) == texts.get(found["program"])
            ):
                yield _trial(found)


def read_ledgers(path: Path, programs: Mapping[str, str] | None = None) -> dict[str, Ledger]:
    """What was rejected, by the names of the draws; `programs` as for `read_trials`."""
    texts: dict[str, str] = {}
    ledgers: dict[str, Ledger] = {}
    for number, found in _records(path):
        with _naming(path, number):
            if "text" in found:
                texts[found["program"]] = str(found["text"])
            elif DRAWN in found:
                ledger = ledger_of_record(found)
                same = [n for n in ledger.programs if programs is None or programs.get(n) == texts.get(n)]
                ledgers[str(found[DRAWN])] = ledger.of(same)
    return ledgers


def _record(trial: Trial) -> dict[str, Any]:
    work = {} if trial.work is None else {"work": work_record(trial.work)}
    return {k: v for k, v in asdict(replace(trial, work=None)).items() if v is not None} | work


def _texts(path: Path) -> dict[str, str]:
    """The last text of each program."""
    records = (found for _, found in _records(path))
    return {str(found["program"]): found["text"] for found in records if "text" in found and "program" in found}


def _last_ledgers(path: Path) -> dict[str, str]:
    """The last line of each draw."""
    return {found[DRAWN]: json.dumps(found) for _, found in _records(path) if isinstance(found.get(DRAWN), str)}


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that are JSON's objects, with their numbers; TreadleError for what is no regular file.

    The last one may be cut off, by a writer that was killed.
    """
    with open_regular(path, MOST_RECORD_BYTES, ACCEPTED) as file:
        number = 0
        while line := file.readline(_MOST_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) < _MOST_LINE:
                return
            with _naming(path, number):
                yield number, _object(line)
            while not line.endswith(b"\n") and (line := file.readline(_MOST_LINE)):
                pass


def _object(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ValueError(f"it has more than {_MOST_LINE} bytes")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return cast("dict[str, Any]", found)


@contextmanager
def _naming(path: Path, number: int) -> Generator[None]:
    """Names a line that is left out, once in a process: files are read again and again."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if (path, number) not in _named:
            _named.add((path, number))
            why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            print(f"warning: {path}:{number}: no record of `treadle tune`, left out: {why}", file=sys.stderr)


_named: set[tuple[Path, int]] = set()


def _trial(found: Mapping[str, Any]) -> Trial:
    """A trial as JSON says it; ValueError, KeyError or the like for anything else."""
    decisions = decisions_of_record(found["decisions"])
    times = (found.get(name) for name in ("us", "reference_us", "predicted_us"))
    us, reference, predicted = (None if time is None else real(time) for time in times)
    error = found.get("error")
    return Trial(
        str(found["program"]), decisions, whole(found["round"], 0, _MOST_ROUNDS), us, reference, predicted,
        None if error is None else str(error), whole(found.get("of", 1), 1, _MOST_ROUNDS), _work(found.get("work")),
    )  # fmt: skip


def _work(found: Any) -> AnyWork | None:
    """The work of a record; None where there is none, or one that today's models do not read."""
    try:
        return None if found is None else work_of_record(found)
    except OtherCountsError:
        return None
