"""The search of one group: a strategy, what it knows, and the predictions that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.errors import TreadleError
from treadle.passes.schedule.schedule_instantiate import operations_of
from treadle.schedules.joint import Adaption
from treadle.schedules.search.candidate import Candidate, CostModel, Measured
from treadle.schedules.search.rejections import Ledger
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.strategy import Explored
from treadle.target import Target
from treadle.tuning.candidates import Left, Predictions, Printed
from treadle.tuning.in_model import Verdict
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Workers, endless


class GroupSearch:
    """Proposes candidates of a group as texts that can be built. TreadleError for a strategy that there is not.

    left: seconds that remain for proposals
    """

    def __init__(
        self,
        task: GroupTask,
        workers: Workers,
        model: CostModel,
        strategy: str,
        seed: int,
        left: Left = endless,
        adaption: Adaption | None = None,
    ):
        if strategy not in STRATEGIES:
            raise TreadleError(f"there is no strategy {strategy!r}", "tune", list(STRATEGIES))
        self.explored = Explored(task.search, f"{strategy} {seed}")
        self.predictions = Predictions(task, workers, model, left, adaption)
        self.explored.take([task.default])
        self._strategy = STRATEGIES[strategy](self.explored, self.predictions, f"{seed} {task.digest}")

    def propose(self, count: int) -> list[tuple[Printed, float | None]]:
        """At most `count` candidates with their predicted seconds, the best first; none if nothing is left.

        OutOfTimeError if the time does not suffice for a proposal.
        """
        self.predictions.forget_texts()
        self.explored.drawn.clear()
        found = self._strategy.propose(count)
        return list(zip(self.predictions.texts(found), self.predictions(found), strict=True))

    @property
    def counted(self) -> Mapping[str, Ledger]:
        """What was rejected when the last proposal was drawn, by the names of its draws."""
        return {name: self.explored.ledgers[name] for name in self.explored.drawn}

    def learn(self, results: Sequence[Measured]) -> None:
        """Tells the strategy what was measured, now or by an earlier search."""
        self._strategy.learn(results)


# How much faster a group could become: the roofline of what its model's groups reach.
#
# Source: Williams, Waterman and Patterson, Roofline, 2009. Nothing is measured for it: the peaks are the highest rates
# among the groups themselves. Operands that a cache holds make the bandwidth's peak too high, which leaves groups more
# roofline_gap than they have, never less.


@dataclass(frozen=True)
class RooflineGap:
    """operations: of a second, by the definitions; nbytes: of operands and results that a second moves"""

    operations: float
    nbytes: float

    @classmethod
    def of(cls, timed: Sequence[tuple[GroupTask, float]]) -> RooflineGap:
        """The highest rates of some tasks with their seconds."""
        return cls(
            max((operations_of(task.program.fused) / seconds for task, seconds in timed), default=0.0),
            max((_nbytes(task) / seconds for task, seconds in timed), default=0.0),
        )

    def __call__(self, task: GroupTask, seconds: float) -> float:
        """The fraction of its time that a task would gain at the higher of its two bounds, from 0 to 1."""
        bounds = (
            (operations_of(task.program.fused), self.operations),
            (_nbytes(task), self.nbytes),
        )
        least = max((amount / rate for amount, rate in bounds if rate), default=0.0)
        return max(0.0, 1 - least / seconds)


def least_seconds(task: GroupTask, target: Target) -> float:
    """About what a kernel of a task takes at least, by which tasks are ordered before anything is timed."""
    return max(operations_of(task.program.fused) / target.peak_f32, _nbytes(task) / target.peak_bandwidth)


def _nbytes(task: GroupTask) -> int:
    return sum(spec.num_bytes for spec in (*task.inputs, *task.outputs))


# The state of a search: a model's groups, what is known of each, and the search's options.

_FIRST_GAIN = 0.2
"""The fraction of its time that a group is expected to gain in its first round, where its roofline_gap is no less; it
halves with each round."""
LEAST_GAIN = 0.02
"""The least gain over the default, as a fraction, for which a schedule is kept: two runs of one kernel differ by
less."""


@dataclass
class Group:
    """The state of one task's search. Times are seconds of one kernel.

    hardware: what it is measured on
    search: what proposes its candidates
    built: how many were compiled; trials: how many were recorded, in this search or before; failures: without a time
    """

    task: GroupTask
    hardware: str
    search: GroupSearch
    default_seconds: float | None = None
    best: Candidate | None = None
    best_seconds: float | None = None
    is_exhausted: bool = False
    rounds: int = 0
    built: int = 0
    trials: int = 0
    failures: int = 0
    gains: list[float] = field(default_factory=list[float])
    roofline_gap: float = 1.0
    """The fraction of its default's time that it can gain at most."""
    confirmed: bool | None = None
    """Whether the best schedule was faster than the default in the last timing; None before that timing."""
    in_model: Verdict | None = None
    alone: str | None = None
    """Why the best schedule was compared with the default alone, and not in the whole model."""
    is_predicted: bool = False
    """Whether times were predicted, and the best schedule is kept for that alone."""
    dropped: str | None = None
    """Why an entry's schedule could not be timed anew."""

    @property
    def default(self) -> Candidate:
        """The schedule without a search."""
        return self.task.default

    @property
    def ranked(self) -> int:
        """Candidates that searches have looked at, and that are legal and could be lowered where they had to be."""
        return self.search.explored.ledger.legal - self.search.predictions.failed

    @property
    def rejected(self) -> int:
        """Candidates that searches have looked at, and that are not legal or could not be lowered."""
        return self.search.explored.ledger.rejected + self.search.predictions.failed

    @property
    def weight(self) -> float:
        """Seconds of all equal groups together, with the best schedule so far."""
        return self.task.count * (self.best_seconds or self.default_seconds or 0.0)

    @property
    def expected_gain(self) -> float:
        """Seconds that the next round is expected to gain."""
        if self.default_seconds is None or self.is_exhausted:
            return 0.0
        recent = max(self.gains[-2:], default=0.0)
        first = max(LEAST_GAIN, min(_FIRST_GAIN, self.roofline_gap))
        return self.weight * max(recent, first * 0.5**self.rounds)


@dataclass(frozen=True)
class Options:
    """seconds: limit of the whole search; trials: limit of the candidates that are timed; threads: of each call;
    strategy: a name of `STRATEGIES`; reserved: seconds of these that are left when the search ends
    started: when they began, by `time.monotonic`; None is when the search begins
    how: what an entry says of its times: nothing, that they were predicted, or on which device they were measured"""

    seconds: float
    threads: int
    trials: int | None = None
    seed: int = 0
    strategy: str = next(iter(STRATEGIES))
    reserved: float = 0.0
    started: float | None = None
    how: str = ""


def model_seconds(groups: Sequence[Group]) -> tuple[float, float]:
    """The sum of all kernels' times, with the default and with the best schedules."""
    default = sum(group.task.count * (group.default_seconds or 0.0) for group in groups)
    return default, sum(group.weight for group in groups)
