"""Accesses of arguments without gaps: what is proved to lie within the extents of a call, and what has to be tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import Float32Type
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import KernelOp, LoadOp, StoreOp, type_of
from treadle.dialects.task import ForOp
from treadle.index.algebra import Comparison, depends_on, split_linear
from treadle.index.contiguity import LANE, in_lanes
from treadle.index.expr import Expr, const, var
from treadle.index.reader import Bounds, IndexReader, comparisons_around, comparisons_in
from treadle.passes.loop.dense_layout import Part
from treadle.passes.loop.kernels import constant_index


@dataclass(frozen=True)
class Step:
    """What happens to a part of an access's index.

    is_tested: it may lie beyond the extent, where memory must not be touched
    is_clamped: beyond the extent the last one is taken; so is what lies within it where that would take a proof about
        products of extents; is_signed: what lies before 0 becomes 0, too
    """

    part: Part
    is_tested: bool
    is_clamped: bool
    is_signed: bool


class AccessPlanner:
    """The accesses of one kernel, for a target whose vectors have so many lanes.

    sizes: the extents of @main, by their numbers, as variables
    """

    def __init__(self, kernel: KernelOp, extents: Mapping[SSAValue, int], sizes: Mapping[int, Expr], lanes: int):
        self._count = lanes
        self._reader = IndexReader(_known(kernel, extents, sizes))
        self._functions = IndexReader(functions=True)
        self._bounds = Bounds(self._reader)

    def plan(self, op: Operation, buffer: SSAValue, parts: Sequence[Part]) -> Sequence[Step] | None:
        """How an access of a buffer is rewritten; None where it cannot be, or would be no vector any more."""
        if not isinstance(op, LoadOp | StoreOp) or op.buffer is not buffer or "unproved" in op.attributes:
            return None
        facts = list(comparisons_around(self._reader, op))
        if op.predicate is not None:
            facts += comparisons_in(self._reader, op.predicate)
        variable = _vector_variable(op)
        steps: list[Step] = []
        for part in parts:
            index = part.of(self._reader.read(op.indices[part.dimension]))
            moves = variable is not None and depends_on(self._moving(op, part), variable)
            is_within = part.extent is None or self._is_below(index, part.size, facts)
            low, high = index.range()
            is_signed = low is None or low < 0
            is_wide = part.is_strided and (is_signed or high is None or high >= part.bound)
            if moves and is_wide:
                return None
            is_tested = not is_within and (isinstance(op, StoreOp) or moves or part.least < 1)
            steps.append(Step(part, is_tested, is_wide or not (is_within or moves), is_signed))
        return steps if variable is None or self._keeps_vectors(op, steps, variable) else None

    def _moving(self, op: LoadOp | StoreOp, part: Part) -> Expr:
        """A part of an index, in which what is computed otherwise than by arithmetic is a function of its operands."""
        return part.of(self._functions.read(op.indices[part.dimension]))

    def _is_below(self, index: Expr, size: Expr, facts: Sequence[Comparison]) -> bool:
        least, _ = self._bounds.range(size - 1 - index, facts, (0, None))
        return least is not None and least >= 0

    def _keeps_vectors(self, op: LoadOp | StoreOp, steps: Sequence[Step], variable: SSAValue) -> bool:
        """Whether an access that moves by a constant stride from lane to lane does so without gaps, too."""
        lanes: dict[object, Expr] = {variable: self._lanes(variable)}
        before, after, tested = const(0), const(0), list[Expr]()
        stride, dense = 1, const(1)
        for step in reversed(steps):
            part = step.part
            index = self._moving(op, part).substitute(lanes)
            before, after = before + index * stride, after + index * dense
            stride, dense = stride * part.bound, dense * part.size
            tested += [index] if step.is_tested and depends_on(index, LANE) else []
        if _stride(before) is None:
            return True
        if _stride(after) is None or any(_stride(index) is None for index in tested):
            return False
        return not tested or isinstance(type_of(op.buffer).get_element_type(), Float32Type)

    def _lanes(self, variable: SSAValue) -> Expr:
        """The variable of a loop by vectors and lanes; all its values are lanes of one where it is not known how many
        there are: such a loop is left to the C compiler."""
        loop, trips = variable.owner.parent_op() if isinstance(variable.owner, Block) else None, None
        if isinstance(loop, ForOp):
            trips = loop.mapping.data.shape[-1]
        elif isinstance(loop, scf.ForOp) and constant_index(loop.lb) == 0:
            trips = constant_index(loop.ub)
        return var(LANE, 0, None) if trips is None else in_lanes(trips, self._count)


def _stride(e: Expr) -> int | None:
    """How far an expression moves from lane to lane."""
    split = split_linear(e, LANE)
    return None if split is None else split[0].as_int()


def _vector_variable(op: Operation) -> SSAValue | None:
    """The variable that becomes lanes."""
    loop = op.parent_op()
    while loop is not None and "loop.vector" not in loop.attributes:
        loop = loop.parent_op()
    if isinstance(loop, ForOp):
        return loop.body.block.args[-1]
    return loop.body.block.args[0] if isinstance(loop, scf.ForOp) else None


def _known(kernel: KernelOp, extents: Mapping[SSAValue, int], sizes: Mapping[int, Expr]) -> dict[SSAValue, Expr]:
    """The indices in a kernel that are extents, clamped where that changes nothing (`extent_values.py`)."""
    pairs = zip(kernel.input_buffers, kernel.inputs, strict=True)
    numbers: dict[SSAValue, int] = {buffer: extents[tensor] for buffer, tensor in pairs if tensor in extents}
    found: dict[SSAValue, Expr] = {}
    for cast in (op for op in kernel.body.walk() if isinstance(op, arith.IndexCastOp)):
        value, low, high = cast.input, None, None
        while isinstance(op := value.owner, arith.MinSIOp | arith.MaxSIOp):
            limit = constant_index(op.rhs)
            if limit is None:
                break
            low, high = (limit, high) if isinstance(op, arith.MaxSIOp) else (low, limit)
            value = op.lhs
        number = numbers.get(op.buffer) if isinstance(op := value.owner, LoadOp) and op.predicate is None else None
        size = None if number is None else sizes.get(number)
        least, most = (None, None) if size is None else size.range()
        if size is None or least is None or most is None:
            continue
        if (low is None or low <= least) and (high is None or high >= most):
            found[cast.result] = size
    return found


__all__ = ["AccessPlanner", "Step"]
