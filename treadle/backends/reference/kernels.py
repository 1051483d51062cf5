"""Runs kernels at every stage of the loop level, for small shapes: the oracle of the loop passes.

Blocks run one after another; the threads of a block take turns from barrier to barrier, the lanes of a warp from one
operation of the warp to the next. Everything that the IR leaves undefined is an error here: an index outside a buffer,
a read of an element that was never stored or is still being copied, a barrier that some threads do not reach or an
operation of the warp that some lanes do not, an element of the result that is never stored (unless the kernel says that
it may leave some), zeroed memory that is left non-zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from treadle.backends.reference.kernel_operations import LAUNCH, check_zeroed, fresh, is_of_launch
from treadle.backends.reference.kernel_source import KernelSource, kernel_source
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.loop import FuncOp, KernelOp
from treadle.dialects.loop.tiles import WARP
from treadle.errors import TreadleError

Array = NDArray[Any]
T = TypeVar("T")


class Kernel:
    """A kernel that is ready to run, many times."""

    def __init__(self, op: KernelOp | FuncOp):
        """TreadleError for an operation that kernels do not support, and for a buffer that is not static and
        row-major."""
        self.name = op.sym_name.data
        self.grid, self.threads = op.grid.value.data, op.threads.value.data
        self.types = [cast("MemRefType[Attribute]", arg.type) for arg in op.body.block.args[:-2]]
        self.num_outputs = len(op.outputs) if isinstance(op, KernelOp) else op.num_outputs
        partial = op.required_regions if isinstance(op, KernelOp) else op.partial
        self.partial = partial is not None
        self.updates = isinstance(op, FuncOp) and op.updates is not None
        self.source: KernelSource = kernel_source(self.name, op.body.block, self.num_outputs)

    def run(self, inputs: Sequence[Array], *, reverse: bool = False) -> Array:
        """The first tensor that the kernel computes from `inputs`; see `results`."""
        return self.results(inputs, reverse=reverse)[0]

    def results(
        self, inputs: Sequence[Array], *, reverse: bool = False, before: Sequence[Array] = ()
    ) -> tuple[Array, ...]:
        """The tensors that the kernel computes from `inputs`, the contents of its other buffers in order, without those
        of the launch.

        With `reverse`, blocks and threads run in the opposite order: a result that differs shows a race. A kernel that
        `updates` its results leaves the elements that it does not store as those of `before`.
        TreadleError for inputs of other shapes or types, and for what the module's docstring lists.
        """
        given, computed = self.types[: -self.num_outputs], self.types[-self.num_outputs :]
        self._check(inputs, [type for type in given if not is_of_launch(type)])
        values = iter(inputs)
        buffers = [fresh(type) if is_of_launch(type) else list(next(values).reshape(-1)) for type in given]
        launch: dict[int, list[Any]] = {}
        stored: list[list[Any]] = [[None] * prod(type.get_shape()) for type in computed]
        if self.updates:
            stored = [list(array.reshape(-1)) for array in before]
        run_block = self._cooperate if self.source.cooperates else self._take_turns
        blocks, threads = range(self.grid), range(self.threads)
        with np.errstate(all="ignore"):
            for block in reversed(blocks) if reverse else blocks:
                run_block(block, launch, [*buffers, *stored], threads[::-1] if reverse else threads)
        check_zeroed(given, buffers, self._where)
        check_zeroed([self.source.of_launch[key] for key in launch], list(launch.values()), self._where)
        results = enumerate(zip(stored, computed, strict=True))
        return tuple(self._tensor(n, values, type) for n, (values, type) in results)

    def _tensor(self, number: int, values: Sequence[Any], type: MemRefType[Attribute]) -> Array:
        """The tensor of a result's elements; TreadleError if one was never stored, unless the kernel may leave some:
        every byte of those is 255."""
        shape, dtype = type.get_shape(), numpy_dtype(type.get_element_type())
        missing = next((n for n, value in enumerate(values) if value is None), None)
        if missing is not None and self.partial:
            unset = np.full(dtype.itemsize, 0xFF, np.uint8).view(dtype)[0]
            return np.array([unset if value is None else value for value in values], dtype).reshape(shape)
        if missing is not None:
            index = [int(i) for i in np.unravel_index(missing, shape)]
            which = "the result" if self.num_outputs == 1 else f"result {number}"
            raise TreadleError(f"element {index} of {which} is never stored", self._where)
        return np.array(values, dtype).reshape(shape)

    @property
    def _where(self) -> str:
        return f"kernel '{self.name}'"

    def _check(self, inputs: Sequence[Array], types: Sequence[MemRefType[Attribute]]) -> None:
        wanted = [f"{numpy_dtype(t.get_element_type())}{list(t.get_shape())}" for t in types]
        found = [f"{a.dtype}{list(a.shape)}" for a in inputs]
        if wanted != found:
            raise TreadleError(f"inputs {', '.join(found) or 'none'}", self._where, wanted or "no inputs")

    def _take_turns(
        self, block: int, launch: Mapping[int, list[Any]], buffers: Sequence[list[Any]], threads: Sequence[int]
    ) -> None:
        shared: dict[Any, Any] = {LAUNCH: launch}
        for thread in threads:
            self._guarded(lambda thread=thread: self.source.run(block, thread, shared, *buffers))

    def _cooperate(
        self, block: int, launch: Mapping[int, list[Any]], buffers: Sequence[list[Any]], threads: Sequence[int]
    ) -> None:
        """Every thread runs to its next barrier before one of them goes on."""
        shared: dict[Any, Any] = {LAUNCH: launch}
        workers = {thread: self.source.run(block, thread, shared, *buffers) for thread in threads}
        warps = [[t for t in threads if t // WARP == n] for n in dict.fromkeys(t // WARP for t in threads)]
        while True:
            arrived: dict[int, int | None] = {}
            for lanes in warps:
                arrived |= self._run_warp(block, workers, lanes)
            if len(set(arrived.values())) > 1:
                raise TreadleError(f"block {block} diverges: {self._positions(arrived)}", self._where, "one barrier")
            if None in arrived.values():
                return

    def _run_warp(self, block: int, workers: Mapping[int, Any], lanes: Sequence[int]) -> dict[int, int | None]:
        """Runs a warp's lanes to their next barriers, of which the numbers are given, or ends (None)."""
        given: dict[int, Any] = dict.fromkeys(lanes)
        while True:
            stops = {t: self._guarded(lambda t=t, value=given[t]: _resume(workers[t], value)) for t in lanes}
            arrived = {t: number for t, (number, _) in stops.items()}
            first, *others = dict.fromkeys(arrived.values())
            if not any(number in self.source.warp for number in (first, *others)):
                return arrived
            if others or first is None or len(lanes) < WARP:
                message = f"block {block} diverges: {self._positions(arrived)}"
                raise TreadleError(message, self._where, "all 32 lanes of a warp at one operation")
            order = sorted(lanes)
            given = dict(zip(order, self.source.warp[first]([stops[t][1] for t in order]), strict=True))

    def _positions(self, arrived: dict[int, int | None]) -> str:
        """The operations at which threads stopped, each with the first thread there."""
        first: dict[int | None, int] = {}
        for thread, barrier in sorted(arrived.items()):
            first.setdefault(barrier, thread)
        said = {b: "has ended" if b is None else f"waits at {self._barrier(b)}" for b in first}
        return ", ".join(f"thread {thread} {said[barrier]}" for barrier, thread in first.items())

    def _barrier(self, number: int) -> str:
        return f"{self.source.describe(number)} (operation {number})"

    def _guarded(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except ZeroDivisionError as error:
            raise TreadleError("a division of indices by zero", self._where) from error


def _resume(worker: Any, value: Any) -> tuple[int | None, Any]:
    """The operation at which a generator stops next, None at its end, and what it brings there."""
    try:
        stop: int | tuple[int, Any] = worker.send(value)
    except StopIteration:
        return None, None
    return stop if isinstance(stop, tuple) else (stop, None)


def evaluate_kernel(op: KernelOp | FuncOp, inputs: Sequence[Array], *, reverse: bool = False) -> Array:
    """The first tensor that one kernel computes; see `Kernel.results`."""
    return Kernel(op).run(inputs, reverse=reverse)


__all__ = ["Kernel", "evaluate_kernel"]
