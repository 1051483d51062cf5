"""The search of one group: a strategy, what it knows, and the predictions that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import CostModel, Measured
from treadle.schedules.search.ledger import Ledger
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.strategy import Explored
from treadle.tuning.building import Left
from treadle.tuning.candidates import Printed
from treadle.tuning.predictions import Predictions
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Workers, endless


class GroupSearch:
    """Proposes candidates of a group as texts that can be built. TreadleError for a strategy that there is not.

    left: seconds that remain for proposals
    """

    def __init__(
        self, task: GroupTask, workers: Workers, model: CostModel, strategy: str, seed: int, left: Left = endless
    ):
        if strategy not in STRATEGIES:
            raise TreadleError(f"there is no strategy {strategy!r}", "tune", list(STRATEGIES))
        self.explored = Explored(task.search, f"{strategy} {seed}")
        self.predictions = Predictions(task, workers, model, left)
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


__all__ = ["GroupSearch"]
