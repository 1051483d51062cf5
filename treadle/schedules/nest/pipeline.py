"""Loops whose every iteration fills shared memory: at once, fetched one iteration ahead, or copied several ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.schedules.index_value import Index
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.nest import Nest, Stage
from treadle.schedules.nest.scope import At
from treadle.schedules.nest.staging import Stager

_Body = Callable[[At], None]


class Pipeline:
    """Writes one loop over a level and what its stages need around the body."""

    def __init__(self, b: KernelBuilder, nest: Nest, stager: Stager, name: Callable[[int], str]):
        self._b, self._nest, self._stager, self._name = b, nest, stager, name

    def loop(self, number: int, at: At, body: _Body) -> None:
        """All iterations of a level, with its stages filled for each."""
        stages = [stage for stage in self._nest.stages_in("shared") if stage.place == number + 1]
        if not stages:
            self._plain(number, at, lambda here: self._with_registers(number, here, body))
        elif stages[0].buffers == 1:
            self._plain(number, at, lambda here: self._filled(stages, number, here, body))
        elif stages[0].is_async:
            self._copied_ahead(stages, number, at, body)
        else:
            self._fetched_ahead(stages, number, at, body)

    def _plain(self, number: int, at: At, body: _Body) -> None:
        level = self._nest.levels[number]
        if level.trips == 1:
            body(at)
            return
        with self._b.loop(self._name(number), level.trips, unroll=level.unroll, vector=level.vector) as index:
            body({**at, number: index})

    def _with_registers(self, number: int, at: At, body: _Body) -> None:
        with self._stager.in_registers(number + 1, at):
            body(at)

    def _filled(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """One buffer: all threads have read the last iteration's before it is filled, and wait until it is."""
        self._b.barrier()
        self._stager.copy(stages, at)
        self._b.barrier()
        with self._stager.holding(stages):
            self._with_registers(number, at, body)

    def _fetched_ahead(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """Two buffers: the next iteration's elements are loaded to registers before the body, and stored behind it.

        Source: Hidet (ASPLOS 2023), figure 5.
        """
        b, steps = self._b, self._nest.levels[number].trips
        self._stager.fetch(stages, self._here(number, at, b.index(0)))
        self._after_readers(at)
        self._stager.keep(stages, b.index(0))
        b.barrier()
        if steps > 1:
            with b.loop(self._name(number), steps - 1) as step:
                following = step + 1
                self._stager.fetch(stages, self._here(number, at, following))
                self._held(stages, number, self._here(number, at, step), step % 2, body)
                self._stager.keep(stages, following % 2)
                b.barrier()
        last = b.index(steps - 1)
        self._held(stages, number, self._here(number, at, last), b.index((steps - 1) % 2), body)

    def _copied_ahead(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """Several buffers: one is used while asynchronous copies fill the others."""
        b, steps, buffers = self._b, self._nest.levels[number].trips, stages[0].buffers
        ahead = buffers - 1
        self._after_readers(at)
        with b.loop("s", min(ahead, steps)) as s:
            self._stager.start(stages, self._here(number, at, s), s)
            b.commit()
        for _ in range(ahead - steps):
            b.commit()
        with b.loop(self._name(number), steps) as step:
            b.wait(ahead - 1)
            # Behind it every thread sees this step's tile, and has used the one that is overwritten next.
            b.barrier()
            following = step + ahead
            with b.when(following < steps):
                self._stager.start(stages, self._here(number, at, following), following % buffers)
            b.commit()
            self._held(stages, number, self._here(number, at, step), step % buffers, body)

    def _held(self, stages: Sequence[Stage], number: int, at: At, half: Index, body: _Body) -> None:
        with self._stager.holding(stages, half):
            self._with_registers(number, at, body)

    def _here(self, number: int, at: At, index: Index) -> At:
        return {**at, number: index} if self._nest.levels[number].trips > 1 else at

    def _after_readers(self, at: At) -> None:
        """Inside of another loop, the last iteration's readers come first."""
        if any(self._nest.roles[n] in ("loop", "repeat") for n in at):
            self._b.barrier()


__all__ = ["Pipeline"]
