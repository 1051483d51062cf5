"""loop-to-upstream: kernels of a CPU in MLIR's own dialects, which its tools lower to LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, memref, vector
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    Signedness,
    UnregisteredOp,
    VectorType,
    i1,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.location import location_of
from treadle.dialects.loop import (
    LaneCompareOp,
    LaneConvertOp,
    LaneMaskOp,
    LaneSelectOp,
    OpaqueBufferOp,
    OpaqueOp,
    PrefetchOp,
    StridedLoadOp,
    StridedStoreOp,
    TransposeOp,
)
from treadle.dialects.loop.attributes import zeros
from treadle.dialects.syntax import mask_of
from treadle.errors import TreadleError
from treadle.passes.entry import ENTRY

_UPSTREAM = ("builtin", "func", "arith", "math", "scf", "memref", "vector")

index = IndexType()


@dataclass(frozen=True)
class LoopToUpstreamPass(ModulePass):
    """Writes the kernels of stage `lower` of a CPU in MLIR's dialects, and drops the host program, which launches them.

    ```mlir
    %m = loop.lane_mask %lo, %hi : vector<8xi1>
    loop.prefetch %B at %offset : memref<3072xf32>
    ```
    becomes
    ```mlir
    %0 = vector.create_mask %hi : vector<8xi1>
    %1 = vector.create_mask %lo : vector<8xi1>
    %2 = arith.constant dense<true> : vector<8xi1>
    %3 = arith.xori %1, %2 : vector<8xi1>
    %m = arith.andi %0, %3 : vector<8xi1>
    ```
    Memory on the stack is allocated once a kernel, not once an iteration: LLVM frees it where a function returns.
    TreadleError for an operation without a form there, such as those of the matrix unit, and arithmetic of integers
    without a sign. Print what it leaves with `--print-op-generic`: some of it has no type in xDSL's `arith`.
    """

    name = "loop-to-upstream"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp)]:
            if function.sym_name.data == ENTRY:
                Rewriter.erase_op(function)
                continue
            for each in list(function.walk()):
                rewrite = _REWRITES.get(type(each))
                if rewrite is not None:
                    _replace(each, rewrite)
            function.attributes.pop("operations", None)  # an attribute of Treadle's
            _check(function)
            _hoist_allocations(function)


@dataclass
class _Writer:
    """The operations that take the place of one."""

    ops: list[Operation] = field(default_factory=list[Operation])

    def add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def constant(self, value: int) -> SSAValue:
        return self.add(arith.ConstantOp.from_int_and_width(value, index))

    def vector(self, elements: Sequence[int], element: IntegerType) -> SSAValue:
        type = VectorType(element, [len(elements)])
        return self.add(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(type, elements)))

    def generic(
        self, name: str, operands: Sequence[SSAValue], type: Attribute | None, **properties: Attribute
    ) -> SSAValue | None:
        """An operation of MLIR that xDSL lacks, or whose types it restricts to scalars."""
        kind = UnregisteredOp.with_name(name)
        op = kind.create(operands=operands, result_types=[] if type is None else [type], properties=properties)
        self.ops.append(op)
        return op.results[0] if op.results else None

    def value(self, name: str, operands: Sequence[SSAValue], type: Attribute, **properties: Attribute) -> SSAValue:
        result = self.generic(name, operands, type, **properties)
        assert result is not None
        return result

    def all_lanes(self, lanes: int) -> SSAValue:
        return self.vector([1] * lanes, i1)

    def places(self, lanes: int, stride: int) -> SSAValue:
        """Where the lanes lie behind the first one, in elements."""
        return self.vector([lane * stride for lane in range(lanes)], i64)


_Rewrite = Callable[[_Writer, Operation], SSAValue | None]


def _replace(op: Operation, rewrite: _Rewrite) -> None:
    writer = _Writer()
    result = rewrite(writer, op)
    for new in writer.ops:
        new.location = op.location
    Rewriter.insert_op(writer.ops, InsertPoint.before(op))
    if result is not None:
        result.name_hint = result.name_hint or op.results[0].name_hint
        op.results[0].replace_all_uses_with(result)
    Rewriter.erase_op(op)


def _prefetch(w: _Writer, op: Operation) -> None:
    """Nothing: it changes no result, and upstream's takes no place outside of the buffer."""


def _seen_through(w: _Writer, op: Operation) -> SSAValue:
    """What it hides from compilers of C."""
    return op.operands[0]


def _mask(w: _Writer, op: Operation) -> SSAValue:
    assert isinstance(op, LaneMaskOp) and isinstance(op.mask.type, VectorType)
    type = op.mask.type
    below = w.add(vector.CreateMaskOp([op.hi], type))
    if isinstance(op.lo.owner, arith.ConstantOp) and op.lo.owner.value == IntegerAttr(0, index):
        return below
    before = w.add(vector.CreateMaskOp([op.lo], type))
    inside = w.value("arith.xori", [before, w.all_lanes(prod(type.get_shape()))], type)
    return w.value("arith.andi", [below, inside], type)


def _compare(w: _Writer, op: Operation) -> SSAValue:
    assert isinstance(op, LaneCompareOp) and isinstance(op.lhs.type, VectorType)
    return w.value("arith.cmpf", [op.lhs, op.rhs], mask_of(op.lhs.type), predicate=IntegerAttr(op.code, i64))


def _select(w: _Writer, op: Operation) -> SSAValue:
    assert isinstance(op, LaneSelectOp)
    return w.value("arith.select", [op.mask, op.lhs, op.rhs], op.result.type)


def _convert(w: _Writer, op: Operation) -> SSAValue | None:
    """Of integers with a sign; a float's whole part becomes the nearest byte, which upstream leaves undefined."""
    assert isinstance(op, LaneConvertOp) and isinstance(op.source.type, VectorType)
    assert isinstance(op.result.type, VectorType)
    source, to = op.source.type.get_element_type(), op.result.type.get_element_type()
    if not isinstance(source, IntegerType) or source.signedness.data is Signedness.UNSIGNED:
        raise _no_form(op, f"from {source} to {to}")
    return w.value("arith.extsi" if isinstance(to, IntegerType) else "arith.sitofp", [op.source], op.result.type)


def _gather(w: _Writer, op: Operation) -> SSAValue:
    assert isinstance(op, StridedLoadOp) and isinstance(op.result.type, VectorType)
    type = op.result.type
    lanes = prod(type.get_shape())
    mask, otherwise = op.mask, op.otherwise
    if mask is None or otherwise is None:
        mask = w.all_lanes(lanes)
        otherwise = w.add(arith.ConstantOp(zeros(type)))
    places = w.places(lanes, op.stride.value.data)
    return w.value("vector.gather", [op.buffer, *op.indices, places, mask, otherwise], type)


def _scatter(w: _Writer, op: Operation) -> None:
    assert isinstance(op, StridedStoreOp) and isinstance(op.value.type, VectorType)
    lanes = prod(op.value.type.get_shape())
    mask = w.all_lanes(lanes) if op.mask is None else op.mask
    places = w.places(lanes, op.stride.value.data)
    w.generic("vector.scatter", [op.buffer, *op.indices, places, mask, op.value], None)


def _transpose(w: _Writer, op: Operation) -> None:
    """The vectors become the rows of one of rank 2."""
    assert isinstance(op, TransposeOp)
    lanes, element = op.lanes, op.type.get_element_type()
    type = VectorType(element, [lanes, lanes])
    where = [[*op.indices[:-1], w.add(arith.AddiOp(op.indices[-1], w.constant(n)))] for n in range(lanes)]
    square = w.add(arith.ConstantOp(zeros(type)))
    for n, place in enumerate(where):
        row = w.add(memref.LoadOp.get(op.buffer, place))
        at = DenseArrayBase.from_list(i64, [n])
        square = w.value("vector.insert", [row, square], type, static_position=at)
    permutation = DenseArrayBase.from_list(i64, [1, 0])
    square = w.value("vector.transpose", [square], type, permutation=permutation)
    for n, place in enumerate(where):
        at = DenseArrayBase.from_list(i64, [n])
        row = w.value("vector.extract", [square], op.type, static_position=at)
        w.ops.append(memref.StoreOp.get(row, op.buffer, place))


_REWRITES: Mapping[type[Operation], _Rewrite] = {
    LaneCompareOp: _compare,
    LaneConvertOp: _convert,
    LaneMaskOp: _mask,
    LaneSelectOp: _select,
    OpaqueBufferOp: _seen_through,
    OpaqueOp: _seen_through,
    PrefetchOp: _prefetch,
    StridedLoadOp: _gather,
    StridedStoreOp: _scatter,
    TransposeOp: _transpose,
}


def _hoist_allocations(function: FuncOp) -> None:
    first = function.body.block.first_op
    assert first is not None
    for op in list(function.walk()):
        if isinstance(op, memref.AllocaOp) and op.parent is not function.body.block and not op.operands:
            op.detach()
            Rewriter.insert_op(op, InsertPoint.before(first))


def _check(function: FuncOp) -> None:
    for op in function.walk():
        dialect = op.op_name.data.partition(".")[0] if isinstance(op, UnregisteredOp) else op.name.partition(".")[0]
        if dialect not in _UPSTREAM:
            raise _no_form(op, "")
        if dialect in ("arith", "math") and any(_is_unsigned(value.type) for value in (*op.operands, *op.results)):
            raise _no_form(op, "of integers without a sign")


def _is_unsigned(type: Attribute) -> bool:
    element = type.get_element_type() if isinstance(type, VectorType | MemRefType) else type
    return isinstance(element, IntegerType) and element.signedness.data is Signedness.UNSIGNED


def _no_form(op: Operation, what: str) -> TreadleError:
    message = f"'{op.name}' {what}".rstrip() + " has no form in MLIR's dialects"
    return TreadleError(message, location_of(op) or "lower", f"operations of {', '.join(_UPSTREAM)}, or {_known()}")


def _known() -> str:
    return ", ".join(kind.name for kind in _REWRITES)
