"""Runs kernels at every stage of the loop level, for small shapes: the oracle of the loop passes.

Blocks run one after another; the threads of a block take turns from barrier to barrier. Everything that the
IR leaves undefined is an error here: an index outside a buffer, a read of what nobody has stored, a barrier
that some threads do not reach, an element of the result that is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from treadle.backends.reference.kernel_source import Exchange, KernelSource, kernel_source
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.loop import FuncOp, KernelOp
from treadle.dialects.loop.warp import WARP
from treadle.errors import TreadleError

Array = NDArray[Any]
Worker = Generator[Any, Any, None]

_COMBINE: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class Kernel:
    """A kernel that is ready to run, many times."""

    def __init__(self, op: KernelOp | FuncOp):
        """TreadleError for an operation that kernels do not hold, and a buffer not static and row-major."""
        self.name = op.sym_name.data
        self.grid, self.threads = op.grid.value.data, op.threads.value.data
        self.types = [cast("MemRefType[Attribute]", arg.type) for arg in op.body.block.args[:-2]]
        self.source: KernelSource = kernel_source(self.name, op.body.block)

    def run(self, inputs: Sequence[Array], *, reverse: bool = False) -> Array:
        """The tensor that the kernel computes from `inputs`, the contents of its other buffers in order.

        With `reverse`, blocks and threads run in the opposite order: a result that differs shows a race.
        TreadleError for inputs of other shapes or types, and for what the module's docstring lists.
        """
        *given, output = self.types
        self._check(inputs, given)
        buffers = [list(array.reshape(-1)) for array in inputs]
        result: list[Any] = [None] * prod(output.get_shape())
        run_block = self._cooperate if self.source.has_barriers else self._take_turns
        blocks, threads = range(self.grid), range(self.threads)
        with np.errstate(all="ignore"):
            for block in reversed(blocks) if reverse else blocks:
                run_block(block, [*buffers, result], threads[::-1] if reverse else threads)
        missing = next((n for n, value in enumerate(result) if value is None), None)
        if missing is not None:
            index = [int(i) for i in np.unravel_index(missing, output.get_shape())]
            raise TreadleError(f"element {index} of the result is never stored", self._where)
        return np.array(result, numpy_dtype(output.get_element_type())).reshape(output.get_shape())

    @property
    def _where(self) -> str:
        return f"kernel '{self.name}'"

    def _check(self, inputs: Sequence[Array], types: Sequence[MemRefType[Attribute]]) -> None:
        wanted = [f"{numpy_dtype(t.get_element_type())}{list(t.get_shape())}" for t in types]
        found = [f"{a.dtype}{list(a.shape)}" for a in inputs]
        if wanted != found:
            raise TreadleError(f"inputs {', '.join(found) or 'none'}", self._where, wanted or "no inputs")

    def _take_turns(self, block: int, buffers: Sequence[list[Any]], threads: Sequence[int]) -> None:
        shared: dict[int, list[Any]] = {}
        for thread in threads:
            self._guarded(lambda thread=thread: self.source.run(block, thread, shared, *buffers))

    def _cooperate(self, block: int, buffers: Sequence[list[Any]], threads: Sequence[int]) -> None:
        """Every thread runs to its next barrier before one of them goes on."""
        shared: dict[int, list[Any]] = {}
        workers = {thread: self.source.run(block, thread, shared, *buffers) for thread in threads}
        while workers:
            arrived: dict[int, int | None] = {}
            for _, warp in groupby(threads, lambda thread: thread // WARP):
                arrived |= self._run_warp(block, {thread: workers[thread] for thread in warp})
            if len(set(arrived.values())) > 1:
                raise TreadleError(f"block {block} diverges: {self._positions(arrived)}", self._where, "one barrier")
            if None in arrived.values():
                return

    def _run_warp(self, block: int, lanes: Mapping[int, Worker]) -> dict[int, int | None]:
        """The barrier at which each lane stops, or None where it ends; on the way the lanes fold values."""
        stops = {t: self._guarded(lambda worker=worker: next(worker, None)) for t, worker in lanes.items()}
        while any(isinstance(stop, Exchange) for stop in stops.values()):
            numbers = {t: stop.number if isinstance(stop, Exchange) else stop for t, stop in stops.items()}
            if len(set(numbers.values())) > 1:
                raise TreadleError(f"block {block} diverges: {self._positions(numbers)}", self._where, "one operation")
            if len(lanes) < WARP:
                raise TreadleError(f"{len(lanes)} lanes fold values", self._where, f"whole warps of {WARP}")
            folds = _fold_lanes(stops)
            stops = {t: self._guarded(partial(_resume, lanes[t], folds[t])) for t in lanes}
        return stops

    def _positions(self, arrived: dict[int, int | None]) -> str:
        """Where the first thread at each place stands."""
        first: dict[int | None, int] = {}
        for thread, barrier in sorted(arrived.items()):
            first.setdefault(barrier, thread)
        said = {b: "has ended" if b is None else f"waits at {self._barrier(b)}" for b in first}
        return ", ".join(f"thread {thread} {said[barrier]}" for barrier, thread in first.items())

    def _barrier(self, number: int) -> str:
        return f"{self.source.describe(number)} (operation {number})"

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except ZeroDivisionError as error:
            raise TreadleError("a division of indices by zero", self._where) from error


def _resume(worker: Worker, value: Any) -> Any:
    """Where a thread stops next, once it has been given the value that it waited for."""
    try:
        return worker.send(value)
    except StopIteration:
        return None


def _fold_lanes(stops: Mapping[int, Exchange]) -> dict[int, Any]:
    """The fold that each lane gets: `log2(lanes)` rounds in which lane l folds with lane l ^ distance."""
    values = {thread: stop.value for thread, stop in stops.items()}
    first = next(iter(stops.values()))
    combine, distance = _COMBINE[first.kind], first.lanes // 2
    while distance:
        values = {thread: combine(value, values[thread ^ distance]) for thread, value in values.items()}
        distance //= 2
    return values


def evaluate_kernel(op: KernelOp | FuncOp, inputs: Sequence[Array], *, reverse: bool = False) -> Array:
    """The tensor that one kernel computes; see `Kernel.run`."""
    return Kernel(op).run(inputs, reverse=reverse)


__all__ = ["Kernel", "evaluate_kernel"]
