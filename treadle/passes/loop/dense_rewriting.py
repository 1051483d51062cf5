"""Kernels whose arguments become flat: accesses with the strides of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, MemRefType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import DemandedAttr
from treadle.dialects.loop import KernelOp, LoadOp, StoreOp, type_of
from treadle.dialects.scalar import number_op
from treadle.index.expr import Expr
from treadle.passes.graph.demand.facts import Extents
from treadle.passes.loop.dense_access import Step
from treadle.passes.loop.dense_layout import Part
from treadle.passes.loop.extent_values import read_extent
from treadle.passes.loop.inline_body import KernelArguments
from treadle.passes.loop.kernels import constant_index

Plan = Mapping[Operation, Sequence[Step]]
"""What happens to the accesses of a tensor."""
Put = Callable[[Operation], SSAValue]
"""Inserts an operation, and gives its result."""


class DenseRewriting:
    """A kernel while arguments of it become flat."""

    def __init__(self, kernel: KernelOp, extents: Extents, sizes: Mapping[int, Expr]):
        self._kernel = kernel
        self._arguments = KernelArguments(kernel)
        self._tensors = {number: tensor for tensor, number in extents.items()}
        self._sizes = sizes
        first = kernel.body.block.first_op
        assert first is not None
        self._start = InsertPoint.before(first)
        self._values: dict[object, SSAValue] = {}

    def rewrite(self, buffers: Sequence[tuple[SSAValue, SSAValue]], plans: Mapping[SSAValue, Plan]) -> None:
        """Rewrites all accesses of some buffers, whose tensors have plans."""
        for tensor, buffer in buffers:
            type = type_of(buffer)
            flat = MemRefType(type.get_element_type(), (prod(type.get_shape()),))
            if flat != type:
                buffer = Rewriter.replace_value_with_new_type(buffer, flat)
            for access in [use.operation for use in buffer.uses]:
                assert isinstance(access, LoadOp | StoreOp)
                self._access(access, plans[tensor][access])
        if self._kernel.demands is None:
            self._kernel.demands = ArrayAttr([DemandedAttr.of([]) for _ in self._kernel.outputs])
        self._arguments.rebuild()

    def _access(self, access: LoadOp | StoreOp, steps: Sequence[Step]) -> None:
        point, location = InsertPoint.before(access), access.location

        def put(op: Operation) -> SSAValue:
            op.location = location
            Rewriter.insert_op(op, point)
            return op.results[0]

        predicate, total = access.predicate, None
        for n, step in enumerate(steps):
            index = self._part(access.indices[step.part.dimension], step.part, put)
            if step.is_tested:
                inside = put(arith.CmpiOp(index, self._size(step.part), "slt"))
                predicate = inside if predicate is None else put(arith.AndIOp(predicate, inside))
            if step.is_clamped:
                index = self._clamped(index, step, put)
            term = self._scaled(index, [each.part for each in steps[n + 1 :]], put)
            total = term if total is None else put(arith.AddiOp(total, term))
        assert total is not None
        if isinstance(access, StoreOp):
            new: LoadOp | StoreOp = StoreOp(access.value, access.buffer, [total], predicate)
        else:
            otherwise = access.otherwise
            if predicate is not None and otherwise is None:
                otherwise = put(number_op(0, access.result.type))
            new = LoadOp(access.buffer, [total], predicate, otherwise)
            new.result.name_hint = access.result.name_hint
        new.location = location
        new.attributes |= access.attributes
        Rewriter.replace_op(access, new)

    def _part(self, index: SSAValue, part: Part, put: Put) -> SSAValue:
        if part.divisor > 1:
            index = put(arith.DivUIOp(index, self._constant(part.divisor)))
        return index if part.is_first else put(arith.RemUIOp(index, self._constant(part.bound)))

    def _clamped(self, index: SSAValue, step: Step, put: Put) -> SSAValue:
        """The nearest index within the extent, in place of that within the bound."""
        if isinstance(op := index.owner, arith.MinSIOp) and (constant_index(op.rhs) or 0) >= step.part.bound - 1:
            index = op.lhs
        if step.is_signed:
            index = put(arith.MaxSIOp(index, self._constant(0)))
        return put(arith.MinSIOp(index, self._last(step.part)))

    def _scaled(self, index: SSAValue, behind: Sequence[Part], put: Put) -> SSAValue:
        """An index times the number of elements behind it."""
        factor = prod(part.bound for part in behind if part.extent is None)
        changing = [part for part in behind if part.extent is not None]
        if changing:
            return put(arith.MuliOp(index, self._product(factor, changing)))
        return index if factor == 1 else put(arith.MuliOp(index, self._constant(factor)))

    # What follows is computed once, at the beginning of the kernel.

    def _constant(self, value: int) -> SSAValue:
        return self._once(value, lambda: [arith.ConstantOp(IntegerAttr(value, IndexType()))])

    def _size(self, part: Part) -> SSAValue:
        if part.extent is None:
            return self._constant(part.bound)
        number = part.extent
        least, bound = self._sizes[number].range()
        assert bound is not None
        buffer = self._arguments.buffer_of(self._tensors[number])
        return self._once(("extent", number), lambda: read_extent(buffer, bound, least or 0)[1])

    def _last(self, part: Part) -> SSAValue:
        if part.extent is None:
            return self._constant(part.bound - 1)
        size, zero, one = self._size(part), self._constant(0), self._constant(1)
        last = arith.SubiOp(size, one)
        # Without elements nothing is accessed, but by addresses that are proved all the same.
        operations = [last] if part.least > 0 else [last, arith.MaxSIOp(last.result, zero)]
        return self._once(("last", part.extent), lambda: operations)

    def _product(self, factor: int, parts: Sequence[Part]) -> SSAValue:
        first, *others = parts
        key = ("product", factor, *(part.extent for part in parts))
        if others or factor != 1:
            rest = self._product(factor, others) if others else self._constant(factor)
            size = self._size(first)
            return self._once(key, lambda: [arith.MuliOp(size, rest)])
        return self._size(first)

    def _once(self, key: object, make: Callable[[], Sequence[Operation]]) -> SSAValue:
        if key not in self._values:
            operations = make()
            for op in operations:
                op.location = self._kernel.location
                Rewriter.insert_op(op, self._start)
            self._values[key] = operations[-1].results[0]
        return self._values[key]


__all__ = ["DenseRewriting", "Plan"]
