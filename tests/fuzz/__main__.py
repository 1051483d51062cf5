"""`python -m tests.fuzz SEED ...` repeats models; `python -m tests.fuzz --seconds N` draws new ones until then.

Each model is checked as it is, and with ranges for some of its inputs' extents. Of new ones a third is quantised, and
repeated with `--quantized`. Each finding is printed with its seed and the model, of the first kind the smallest that
still has it, which is written to `--folder`. The exit status is 1 if there was one. At the end follows what the models
covered.
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

import pytest

from tests.fuzz.case import Case
from tests.fuzz.check import Checker, Finding, check_case
from tests.fuzz.check_ranges import RangeChecker
from tests.fuzz.coverage import Coverage
from tests.fuzz.generate import case_of_seed
from tests.fuzz.hostile import ATTEMPTS, findings
from tests.fuzz.ranges import RangedCase
from tests.fuzz.shrink import shrunk
from tests.fuzz.torch_modules import findings as torch_findings

TOGETHER = 40
"""Models that are compiled in one call."""
EMULATED = 10
"""Of so many models one runs on the emulator, too."""
TORCH_MODULES = 5
"""PyTorch modules that are drawn beside a batch of models."""

Batch = tuple[Sequence[int], bool]
"""Seeds, and whether their models are quantised."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random ONNX models.")
    parser.add_argument("seeds", nargs="*", type=int, help="seeds to repeat, also on the emulator")
    parser.add_argument("--seconds", type=float, help="draw new seeds for so long")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/fuzz"), help="where models with findings are written"
    )
    parser.add_argument("--quantized", action="store_true", help="quantised models only; else new seeds are of both")
    chosen = parser.parse_args(arguments)
    kinds = [True] if chosen.quantized else [False, False, True]
    batches = [(chosen.seeds, chosen.quantized)] if chosen.seeds else _new_seeds(chosen.seconds or 60, kinds)
    warnings.simplefilter("error")
    faulthandler.enable()
    with TemporaryDirectory(prefix="treadle-cache-") as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE_DIR", cache)
        return _run(batches, chosen.folder, bool(chosen.seeds))


def _run(batches: Iterable[Batch], folder: Path, repeated: bool) -> int:
    counts, coverage, found = Counter[str](), Coverage(), 0
    for seeds, quantized in batches:
        cases = {str(seed): case_of_seed(seed, quantized) for seed in seeds}
        for case in cases.values():
            coverage.add(case)
        found += _check(cases, repeated, folder, counts)
        found += _check_ranges(cases, repeated, counts)
        found += 0 if repeated else _check_hostile(seeds, counts) + _check_torch(seeds[:TORCH_MODULES], counts)
    models, ranged, files = (counts.pop(kind, 0) for kind in ("models", "models with ranges", "hostile files"))
    print(f"{models} models, {ranged} with ranges, {files} hostile files, {found} with findings; of the models:")
    for reason, count in counts.most_common():
        print(f"{count:8} {reason}")
    print(coverage.table())
    return 1 if found else 0


def _new_seeds(seconds: float, kinds: Sequence[bool]) -> Iterator[Batch]:
    """Seeds from the clock, batch by batch, each named first: who crashes, names nothing. Batches are quantised in
    turn."""
    first, end = time.time_ns() // 1000 % 10**9, time.monotonic() + seconds
    for quantized in cycle(kinds):
        if time.monotonic() >= end:
            return
        option = " --quantized" if quantized else ""
        print(f"seeds {first} to {first + TOGETHER - 1}{option}", flush=True)
        yield range(first, first + TOGETHER), quantized
        first += TOGETHER


def _check(cases: Mapping[str, Case], emulated: bool, folder: Path, counts: Counter[str]) -> int:
    checker = Checker(cases, {name for name in cases if emulated or int(name) % EMULATED == 0})
    found = 0
    for name, case in cases.items():
        report = checker.check(name)
        counts.update({"models": 1, "elements": report.elements, "elements that rounding decides": report.undecided})
        counts.update(f"{runner}: {reason}" for runner, reason in report.skipped.items())
        if report.findings:
            found += 1
            _report(name, case, report.findings, folder)
    return found


def _check_ranges(cases: Mapping[str, Case], emulated: bool, counts: Counter[str]) -> int:
    drawn = {name: RangedCase.draw(case, int(name)) for name, case in cases.items()}
    ranged = {name: case for name, case in drawn.items() if case is not None}
    checker = RangeChecker(ranged, {name for name in ranged if emulated or int(name) % EMULATED == 0})
    found = 0
    for name, case in ranged.items():
        report = checker.check(name)
        counts.update({"models with ranges": 1, "elements of calls with ranges": report.elements})
        counts.update(f"{runner}: {reason}" for runner, reason in report.skipped.items())
        for finding in report.findings:
            print(f"seed {name}, {case.described()}: {finding}")
        if report.findings:
            found += 1
            print(f"{case.case.text()}\n", flush=True)
    return found


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
    small = shrunk(case, lambda other: _same(first, check_case(other, first.runner == "emulator").findings))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(small.content())
    print(f"{small.text()}\nwritten to {path}\n", flush=True)


def _same(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether one of the findings is of the same runner and the same kind."""
    return any(o.runner == finding.runner and bool(o.output) == bool(finding.output) for o in others)


if __name__ == "__main__":
    sys.exit(main())
