"""A tile of neighbouring windows: what they share is read once, into registers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, YieldOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.reduction import identity
from treadle.schedules.access_analysis import Windows
from treadle.schedules.kernel_builder import Index, KernelBuilder, ssa_values

Values = dict[SSAValue, SSAValue]


class WindowTile:
    """Writes `count` windows, neighbours along one dimension, of `vector` elements each along the last one.

    exact: whether the result has as many windows as tiles reach; at_once: rows of a window that are unrolled, and no
    more, if it is given
    """

    def __init__(
        self, b: KernelBuilder, windows: Windows, count: int, vector: int, *, exact: bool, at_once: int | None = None
    ):
        self.b, self.windows, self.count, self.vector, self.exact = b, windows, count, vector, exact
        self.at_once = at_once
        self.compute, self.reduce = windows.compute, windows.reduce
        self.tensors = windows.compute.tensors()
        self.span = (count - 1) * windows.step + windows.width

    def write(self, index: Sequence[Index]) -> None:
        """The windows of which the first gives the element at `index`."""
        b, kind, element = self.b, self.reduce.kind.data, self.reduce.result.type
        values: Values = dict(zip(self.tensors, b.inputs, strict=True))
        values.update(zip(self.compute.body.block.args, ssa_values(index), strict=True))
        acc = b.alloc("acc", [self.count, self.vector], element)
        with b.loop("r", self.count, unroll=True) as r, self._elements(values) as (e, _):
            b.store(b.constant(identity(kind, element), element), acc, [r, e])
        self._terms(0, values, acc)
        with b.loop("r", self.count, unroll=True) as r:
            along = index[self.windows.dim] + r
            inside = None if self.exact else along < self.windows.extent
            with b.when(inside), self._elements(values) as (e, own):
                end = self.compute.body.block.last_op
                assert isinstance(end, YieldOp)
                own = self._of_window(own, along) | {self.reduce.result: b.load(acc, [r, e])}
                at = [own[i] for i in self.compute.body.block.args]
                b.store(self._emit(end.value, own), b.output, at)

    @contextmanager
    def _elements(self, values: Values) -> Generator[tuple[Index, Values]]:
        """A loop over the tile's elements along the last dimension: its variable, and the values for it."""
        last = self.compute.body.block.args[-1]
        with self.b.loop("e", self.vector, unroll=True, vector=True) as e:
            yield e, values | {last: (self.b.index(values[last]) + e).value}

    def _of_window(self, values: Values, along: Index) -> Values:
        return values | {self.compute.body.block.args[self.windows.dim]: along.value}

    def _terms(self, depth: int, values: Values, acc: SSAValue) -> None:
        """Loops over the reduction's dimensions but the one along which windows slide, then all windows."""
        args = self.reduce.body.block.args
        if depth == len(args):
            self._slide(values, acc)
            return
        if depth == self.windows.term:
            self._terms(depth + 1, values, acc)
            return
        with self.b.loop(args[depth].name_hint or "k", self.reduce.shape[depth], at_once=self.at_once) as k:
            self._terms(depth + 1, values | {args[depth]: k.value}, acc)

    def _slide(self, values: Values, acc: SSAValue) -> None:
        """Reads the elements under the windows and the shared terms once, and folds them into every window."""
        b, windows = self.b, self.windows
        k = self.reduce.body.block.args[windows.term]
        windows_read = {at: b.alloc("places", [self.span, self.vector], at.result.type) for at in windows.sliding}
        for at, buffer in windows_read.items():
            self._read_places(at, values, buffer)
        shared = {at: b.alloc("shared", [windows.width, self.vector], at.result.type) for at in windows.shared}
        for at, buffer in shared.items():
            with b.loop("k", windows.width, unroll=True) as each, self._elements(values) as (e, own):
                b.store(self._emit(at.result, own | {k: each.value}), buffer, [each, e])
        with (
            b.loop("r", self.count, unroll=True) as r,
            b.loop("k", windows.width, unroll=True) as each,
            self._elements(values) as (e, own),
        ):
            along = b.index(values[self.compute.body.block.args[windows.dim]]) + r
            own = self._of_window(own, along) | {k: each.value}
            position = r * windows.step + each
            own |= {at.result: b.load(buffer, [position, e]) for at, buffer in windows_read.items()}
            own |= {at.result: b.load(buffer, [each, e]) for at, buffer in shared.items()}
            end = self.reduce.body.block.last_op
            assert isinstance(end, YieldOp)
            total = b.binary(self.reduce.kind.data, b.load(acc, [r, e]), self._emit(end.value, own))
            b.store(total, acc, [r, e])

    def _read_places(self, at: AtOp, values: Values, buffer: SSAValue) -> None:
        """Reads the elements under the windows."""
        with self.b.loop("p", self.span, unroll=True) as p, self._elements(values) as (e, own):
            self.b.store(self._sliding_read(at, own, p), buffer, [p, e])

    def _sliding_read(self, at: AtOp, values: Values, position: Index) -> Scalar:
        """What a sliding read gives at a position, counted from the start of the first window."""
        b, windows = self.b, self.windows
        own = values | {self.reduce.body.block.args[windows.term]: position.value}
        indices = [self._emit(i, own) for i in at.indices]
        conditions = [] if at.predicate is None else [self._emit(at.predicate, own)]
        if not self.exact:
            # Positions that only windows beyond the result reach may lie outside the input.
            first = b.index(values[self.compute.body.block.args[windows.dim]]) * windows.step
            last = (windows.extent - 1) * windows.step + windows.width
            conditions.append((first + position < last).value)
        if not conditions:
            return b.load(own[at.source], indices)
        other = b.constant(0, at.result.type) if at.otherwise is None else self._emit(at.otherwise, own)
        return b.load(own[at.source], indices, b.all(conditions), other)

    def _emit(self, value: SSAValue, values: Values) -> Scalar:
        """Writes what a value of the definition is computed from, as far as `values` does not give it."""
        if value not in values:
            op = value.owner
            assert isinstance(op, Operation)
            for operand in op.operands:
                self._emit(operand, values)
            values[value] = self.b.evaluated(op, values)
        return values[value]


__all__ = ["Values", "WindowTile"]
