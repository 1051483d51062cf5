"""`python -m tests.fuzz SEED ...` repeats models; `python -m tests.fuzz --seconds N` draws new ones until then.

Each model is checked as it is, some with drawn schedules, and with ranges for some of its inputs' extents. Of new seeds
a quarter are quantised models, repeated with `--quantized`, and a quarter models that compute shapes and positions from
extents, repeated with `--extents`. Each finding is printed with its seed and the smallest model that still has the
first of them, which is written to `--folder`. The exit status is 1 if there was one. At the end follows what was
compared, by kind, and what the models covered.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from tests.fuzz.case import Case
from tests.fuzz.check import Checker, Finding, check_case
from tests.fuzz.check_ranges import RangeChecker
from tests.fuzz.coverage import Coverage
from tests.fuzz.extents import extents_case_of_seed
from tests.fuzz.generate import case_of_seed
from tests.fuzz.hostile import ATTEMPTS, findings
from tests.fuzz.ranges import RangedCase
from tests.fuzz.shrink import shrunk
from tests.fuzz.shrink_ranges import shrunk_ranges
from tests.fuzz.torch_modules import findings as torch_findings

TOGETHER = 40
"""Models that are compiled in one call."""
EMULATED = 10
"""Of so many models one runs on the emulator, too."""
TORCH_MODULES = 5
"""PyTorch modules that are drawn beside a batch of models."""

SCHEDULED = 4
"""Of so many models one is compiled with drawn schedules, too."""
Kind = Literal["models", "quantized", "extents"]

Batch = tuple[Sequence[int], Kind]
"""Seeds, and of what they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random ONNX models.")
    parser.add_argument("seeds", nargs="*", type=int, help="seeds to repeat, also on the emulator")
    parser.add_argument("--seconds", type=float, help="draw new seeds for so long")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/fuzz"), help="where models with findings are written"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quantized", action="store_true", help="quantised models only; else new seeds are of all kinds")
    only.add_argument("--extents", action="store_true", help="models that compute with extents only")
    chosen = parser.parse_args(arguments)
    kind: Kind = "quantized" if chosen.quantized else "extents" if chosen.extents else "models"
    kinds: Sequence[Kind] = ["models", "extents", "models", "quantized"] if kind == "models" else [kind]
    repeated: list[Batch] = [(chosen.seeds, kind)]
    batches = repeated if chosen.seeds else _new_seeds(chosen.seconds or 60, kinds)
    warnings.simplefilter("error")
    faulthandler.enable()
    with TemporaryDirectory(prefix="treadle-cache-") as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE_DIR", cache)
        return _run(batches, chosen.folder, bool(chosen.seeds))


def _run(batches: Iterable[Batch], folder: Path, repeated: bool) -> int:
    counts, reasons, coverage, found = Counter[str](), Counter[str](), Coverage(), 0
    for seeds, kind in batches:
        if kind == "extents":
            ranged = {str(seed): extents_case_of_seed(seed) for seed in seeds}
        else:
            cases = {str(seed): case_of_seed(seed, kind == "quantized") for seed in seeds}
            for case in cases.values():
                coverage.add(case)
            found += _check(cases, kind, repeated, folder, counts, reasons)
            ranged = {name: RangedCase.draw(case, int(name)) for name, case in cases.items()}
        drawn = {name: case for name, case in ranged.items() if case is not None}
        for case in drawn.values() if kind == "extents" else ():
            coverage.add(case.case)
        found += _check_ranges(drawn, kind, repeated, folder, counts, reasons)
        found += 0 if repeated else _check_hostile(seeds, counts) + _check_torch(seeds[:TORCH_MODULES], counts)
    print(f"{found} with findings; compared were:")
    _print_counts(counts)
    print("not compared were:")
    _print_counts(reasons)
    print(coverage.table())
    return 1 if found else 0


def _print_counts(counts: Counter[str]) -> None:
    for what, count in counts.most_common():
        print(f"{count:8} {what}")


def _new_seeds(seconds: float, kinds: Sequence[Kind]) -> Iterator[Batch]:
    """Seeds from the clock, batch by batch, each named first: who crashes, names nothing. Kinds take turns."""
    first, end = time.time_ns() // 1000 % 10**9, time.monotonic() + seconds
    for kind in cycle(kinds):
        if time.monotonic() >= end:
            return
        option = "" if kind == "models" else f" --{kind}"
        print(f"seeds {first} to {first + TOGETHER - 1}{option}", flush=True)
        yield range(first, first + TOGETHER), kind
        first += TOGETHER


def _check(
    cases: Mapping[str, Case], kind: Kind, repeated: bool, folder: Path, counts: Counter[str], reasons: Counter[str]
) -> int:
    emulated, scheduled = (
        {name for name in cases if repeated or int(name) % each == 0} for each in (EMULATED, SCHEDULED)
    )
    checker = Checker(cases, emulated, scheduled)
    found = 0
    for name, case in cases.items():
        report = checker.check(name)
        counts.update(
            {kind: 1, "models on the emulator": name in emulated, "programs with drawn schedules": report.scheduled}
        )
        counts.update({"elements": report.elements})
        reasons.update({"elements that rounding decides": report.undecided})
        reasons.update(f"{runner}: {reason}" for runner, reason in report.skipped.items())
        if report.findings:
            found += 1
            _report(name, case, report.findings, folder)
    return found


def _check_ranges(
    cases: Mapping[str, RangedCase],
    kind: Kind,
    repeated: bool,
    folder: Path,
    counts: Counter[str],
    reasons: Counter[str],
) -> int:
    checker = RangeChecker(cases, {name for name in cases if repeated or int(name) % EMULATED == 0})
    found = 0
    for name, case in cases.items():
        report = checker.check(name)
        counts.update(
            {f"{kind} with ranges": "ranges" not in report.skipped, "elements of calls with ranges": report.elements}
        )
        reasons.update(f"{kind}, {runner}: {reason}" for runner, reason in report.skipped.items())
        if report.findings:
            found += 1
            _report_ranges(name, case, report.findings, folder)
    return found


def _report_ranges(name: str, case: RangedCase, findings: Sequence[Finding], folder: Path) -> None:
    for finding in findings:
        print(f"seed {name}, {case.described()}: {finding}")
    first = findings[0]
    emulated = ["case"] if first.runner.startswith("emulator") else []

    def fails(other: RangedCase) -> bool:
        return _same(first, RangeChecker({"case": other}, emulated).check("case").findings)

    small = shrunk_ranges(case, fails)
    _write(name, small.model().SerializeToString(), f"{small.described()}\n{small.case.text()}", folder)


def _check_hostile(seeds: Sequence[int], counts: Counter[str]) -> int:
    found = [line for kind in ATTEMPTS for line in findings(kind, seeds[0], seeds[-1] + 1)]
    counts["hostile files"] += len(seeds) * len(ATTEMPTS)
    for line in found:
        print(f"hostile {line}", flush=True)
    return len(found)


def _check_torch(seeds: Sequence[int], counts: Counter[str]) -> int:
    found = list(torch_findings(seeds))
    counts["PyTorch modules"] += len(seeds)
    print(*found, sep="\n", end="\n" if found else "", flush=True)
    return len(found)


def _report(name: str, case: Case, findings: Sequence[Finding], folder: Path) -> None:
    for finding in findings:
        print(f"seed {name}: {finding}")
    first = findings[0]
    scheduled = name if "drawn" in first.runner else ""
    small = shrunk(case, lambda other: _same(first, check_case(other, "emulator" in first.runner, scheduled).findings))
    _write(name, small.content(), small.text(), folder)


def _write(name: str, content: bytes, text: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(content)
    print(f"{text}\nwritten to {path}\n", flush=True)


def _same(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether one of the findings is of the same runner, whatever its call, and the same kind."""
    return any(_runner(o) == _runner(finding) and bool(o.output) == bool(finding.output) for o in others)


def _runner(finding: Finding) -> str:
    return finding.runner.partition(" with ")[0]


if __name__ == "__main__":
    sys.exit(main())
