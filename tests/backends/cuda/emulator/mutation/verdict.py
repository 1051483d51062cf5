"""What becomes of a mutant: found by the checks, by its result, equivalent, or missed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from tests.backends.cuda.emulator.mutation.equivalence import leaves_buffer, reason_of
from tests.backends.cuda.emulator.mutation.kernels import SharedKernel
from tests.backends.cuda.emulator.mutation.mutants import Mutant, mutants
from tests.backends.cuda.emulator.mutation.trial import Bench, Trial
from treadle.environment import Environment, available_cores

Outcome = Literal["finding", "result", "equivalent", "missed"]


@dataclass(frozen=True)
class Verdict:
    """A mutant of a kernel, its outcome, and the kind of the finding or the reason of the equivalence."""

    kernel: SharedKernel
    mutant: Mutant
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.kernel.origin} {self.kernel.name}:{self.mutant.line}"
        change = ", ".join(filter(None, (self.mutant.kind, self.mutant.what)))
        return f"{place}: {change}: {', '.join(filter(None, (self.outcome, self.detail)))}"


@dataclass(frozen=True)
class Examined:
    """A kernel, what the checks said of it as it stands (nothing, or the emulator is wrong), and its mutants."""

    kernel: SharedKernel
    said: str
    verdicts: tuple[Verdict, ...]


def examine(kernel: SharedKernel, environment: Environment) -> Examined:
    """Runs a kernel and every mutant of it."""
    judge = _Judge(Bench(kernel, environment))
    verdicts = tuple(judge.verdict(mutant) for mutant in mutants(kernel.text))
    return Examined(kernel, "\n".join(judge.said), verdicts)


def examine_all(kernels: Sequence[SharedKernel], environment: Environment) -> list[Examined]:
    """Examines kernels side by side: while one is launched, others are compiled."""
    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(lambda kernel: examine(kernel, environment), kernels))


def verdicts_of(examined: Sequence[Examined]) -> list[Verdict]:
    """All verdicts, kernel after kernel."""
    return [verdict for each in examined for verdict in each.verdicts]


class _Judge:
    """Knows what the unchanged kernel computes, in full and sampled."""

    def __init__(self, bench: Bench):
        self._bench = bench
        self._unchanged: dict[bool, Trial] = {}
        self.said: list[str] = []
        self._compare(bench.kernel.text, bench.samples)

    def verdict(self, mutant: Mutant) -> Verdict:
        """A sampled launch first. One that stays silent is proven equivalent, or run in full."""
        bench = self._bench
        outcome, detail = self._compare(mutant.text, bench.samples)
        if outcome == "missed":
            reason = reason_of(bench, mutant)
            if reason is not None:
                outcome, detail = "equivalent", reason
        elif outcome == "result" and leaves_buffer(bench, mutant):
            outcome = "missed"
        if outcome == "missed" and bench.samples:
            outcome, detail = self._compare(mutant.text, False)
        return Verdict(bench.kernel, mutant, outcome, detail)

    def _compare(self, text: str, sampled: bool) -> tuple[Outcome, str]:
        if sampled not in self._unchanged:
            self._unchanged[sampled] = self._bench.run(self._bench.kernel.text, sampled=sampled)
            if self._unchanged[sampled].finding:
                self.said.append(self._unchanged[sampled].said)
        trial = self._bench.run(text, sampled=sampled)
        if trial.finding is not None:
            return "finding", trial.finding
        return ("missed" if trial.outputs == self._unchanged[sampled].outputs else "result"), ""
