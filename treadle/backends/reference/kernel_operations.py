"""Operations of a kernel as Python: scalars, vectors, folds of a warp, products of tiles."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, MemRefType, VectorType, bf16
from xdsl.ir import Attribute, Operation

from treadle.dialects import loop
from treadle.dialects.graph.arithmetic import apply_scalar, constant_value, rounded, scalar_dtype, truncated
from treadle.dialects.loop import (
    WARP,
    LaneCompareOp,
    LaneConvertOp,
    LaneLookupOp,
    LaneMaskOp,
    LaneSelectOp,
    RoundPairOp,
    RoundTf32Op,
    Space,
    SpaceAttr,
)
from treadle.errors import TreadleError

# Arith and math operations of a kernel as Python: an expression where there is one, else a function.
#
# An `index` is a Python int, any other scalar a NumPy scalar of its type (so every float operation rounds to
# its type), a vector an array of rank 1.

_MASK = hex(2**64 - 1)

_ANY: dict[type[Operation], str] = {
    arith.AddfOp: "{0} + {1}", arith.SubfOp: "{0} - {1}", arith.MulfOp: "{0} * {1}",
    arith.DivfOp: "{0} / {1}", arith.NegfOp: "-{0}",
    arith.AndIOp: "{0} & {1}", arith.OrIOp: "{0} | {1}", arith.XOrIOp: "{0} ^ {1}",
    arith.ShRSIOp: "{0} >> {1}",
}  # fmt: skip
"""Correct for scalars and vectors of every type that the operation takes."""

_NO_BOOL: dict[type[Operation], str] = {
    arith.AddiOp: "{0} + {1}", arith.SubiOp: "{0} - {1}", arith.MuliOp: "{0} * {1}",
}  # fmt: skip
"""Correct for all types but i1."""

_BOOL: dict[type[Operation], str] = {
    arith.AddiOp: "{0} ^ {1}", arith.SubiOp: "{0} ^ {1}", arith.MuliOp: "{0} & {1}",
}  # fmt: skip
"""Arithmetic modulo two."""

_SCALAR: dict[type[Operation], str] = {
    arith.SelectOp: "{1} if {0} else {2}",
    arith.MaximumfOp: "{0} if {0} > {1} or {0} != {0} else {1}",
    arith.MinimumfOp: "{0} if {0} < {1} or {0} != {0} else {1}",
}

_INDEX: dict[type[Operation], str] = {
    arith.DivUIOp: f"({{0}} & {_MASK}) // {{1}}", arith.RemUIOp: f"({{0}} & {_MASK}) % {{1}}",
    arith.FloorDivSIOp: "{0} // {1}", arith.CeilDivSIOp: "-(-{0} // {1})",
    arith.MinSIOp: "min({0}, {1})", arith.MaxSIOp: "max({0}, {1})",
    arith.ShLIOp: "{0} << {1}",
}  # fmt: skip

_SIGNED = ("==", "!=", "<", "<=", ">", ">=")
"""The integer comparisons in the order of their codes; the unsigned ones follow."""
_ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
"""The float comparisons whose answer for NaN is Python's, by code."""


def _unsigned(a: int) -> int:
    return a & 2**64 - 1


_FOLDED: Mapping[type[Operation], Callable[[int, int], int]] = {
    arith.AddiOp: int.__add__, arith.SubiOp: int.__sub__, arith.MuliOp: int.__mul__,
    arith.FloorDivSIOp: int.__floordiv__,
    arith.DivUIOp: lambda a, b: _unsigned(a) // b, arith.RemUIOp: lambda a, b: _unsigned(a) % b,
}  # fmt: skip
"""Operations on indices, of constants."""
_COMPARED = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
"""Comparisons in the order of `_SIGNED`."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

_CONVERSIONS = (
    arith.ExtFOp, arith.TruncFOp, arith.FPToSIOp, arith.FPToUIOp, arith.SIToFPOp, arith.UIToFPOp, arith.BitcastOp,
    arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.IndexCastOp,
)  # fmt: skip


def element_of(type: Attribute) -> Attribute:
    """The type of one lane: of a vector its element type, of a scalar itself."""
    return type.element_type if isinstance(type, VectorType) else type


def expression(op: Operation) -> str | None:
    """A template of the operation's value over its operands' names, or None if it has none."""
    operand = element_of(op.operands[0].type)
    scalar = not isinstance(op.results[0].type, VectorType)
    kind = type(op)
    if isinstance(op, arith.CmpiOp):
        code = op.predicate.value.data
        return f"{{0}} {_SIGNED[code]} {{1}}" if code < len(_SIGNED) else None
    if isinstance(op, arith.CmpfOp):
        sign = _ORDERED.get(op.predicate.value.data)
        return None if sign is None else f"{{0}} {sign} {{1}}"
    if kind in _ANY:
        return _ANY[kind]
    if kind in _NO_BOOL:
        return (_BOOL if scalar_dtype(operand) == np.bool_ else _NO_BOOL)[kind]
    if kind in _INDEX and isinstance(operand, IndexType) and scalar:
        return _INDEX[kind]
    return _SCALAR.get(kind) if scalar else None


def literal(text: str) -> int | None:
    """The number that a constant index is in the text, `(3)`; None for a name."""
    return int(text[1:-1]) if text.startswith("(") else None


def folded(op: Operation, operands: Sequence[str]) -> str | None:
    """The text of an operation on indices that are constants; None where one is not, or there is no result."""
    found = [literal(text) for text in operands]
    if len(found) != 2:
        return None
    a, b = found
    if a is None or b is None:
        return None
    if isinstance(op, arith.CmpiOp):
        code = op.predicate.value.data
        return str(_COMPARED[code](a, b)) if code < len(_COMPARED) else None
    compute = _FOLDED.get(type(op))
    divides = isinstance(op, arith.DivUIOp | arith.RemUIOp | arith.FloorDivSIOp)
    return None if compute is None or (divides and b == 0) else f"({compute(a, b)})"


def function(op: Operation) -> Callable[..., Any]:
    """The operation's value as a function of its operands' values.

    Calling it raises TreadleError for an operation that kernels do not support.
    """
    if isinstance(op, _CONVERSIONS):
        return _conversion(op)
    to_int = isinstance(op.results[0].type, IndexType)

    def apply(*operands: Any) -> Any:
        value = apply_scalar(op, [np.asarray(operand) for operand in operands])[()]
        return int(value) if to_int else value

    return apply


def constant(op: arith.ConstantOp) -> Any:
    """The value of an `arith.constant`: an int, a NumPy scalar, or an array of its shape for a vector."""
    type = op.result.type
    if isinstance(type, VectorType) and isinstance(op.value, DenseIntOrFPElementsAttr):
        dtype = scalar_dtype(type.element_type)
        return np.array(op.value.get_values()).astype(dtype).reshape(type.get_shape())
    value = constant_value(op)[()]
    return int(value) if isinstance(type, IndexType) else value


def _conversion(op: Operation) -> Callable[[Any], Any]:
    """Widening, narrowing and casts."""
    source = scalar_dtype(element_of(op.operands[0].type))
    target = element_of(op.results[0].type)
    dtype = scalar_dtype(target)
    if isinstance(target, IndexType):
        return int
    if isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and source == np.bool_:
        return lambda a: -np.asarray(a).astype(dtype)[()]
    if isinstance(op, arith.ExtUIOp | arith.UIToFPOp) and source.kind == "i":
        return lambda a: np.asarray(a).view(_UNSIGNED[source.itemsize]).astype(dtype)[()]
    if isinstance(op, arith.TruncIOp) and dtype == np.bool_:
        return lambda a: (a & 1) != 0
    if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
        return lambda a: truncated(np.asarray(a), dtype)[()]
    if isinstance(op, arith.TruncFOp):
        return lambda a: rounded(np.asarray(a), dtype)[()]
    if isinstance(op, arith.BitcastOp):
        return lambda a: np.asarray(a).view(dtype)[()]
    return lambda a: np.asarray(a).astype(dtype)[()]


# Vector operations of a kernel as Python; a vector is an array of rank 1.

Array = NDArray[Any]

_REDUCTIONS = {
    "add": "add", "mul": "multiply", "maximumf": "maximum", "minimumf": "minimum", "maxnumf": "fmax",
    "minnumf": "fmin", "maxsi": "maximum", "minsi": "minimum", "and": "bitwise_and", "or": "bitwise_or",
}  # fmt: skip
"""NumPy's function of each kind of `vector.reduction`."""

_COMPARISONS = {"oeq": "==", "ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "une": "!="}
"""Python's operator of each kind of `loop.lane_compare`."""


def vector_expression(op: Operation) -> str | None:
    """A template of the operation's value over its operands' names; None for an operation of another kind."""
    if isinstance(op, vector.BroadcastOp):
        return f"np.full({lanes_of(op.vector.type)}, {{0}}, {dtype_name(op.vector.type)})"
    if isinstance(op, vector.CreateMaskOp):
        return f"np.arange({lanes_of(op.mask_vector.type)}) < {{0}}"
    if isinstance(op, LaneMaskOp):
        lane = f"np.arange({lanes_of(op.mask.type)})"
        return f"({{0}} <= {lane}) & ({lane} < {{1}})"
    if isinstance(op, LaneCompareOp):
        return f"{{0}} {_COMPARISONS[op.kind.data]} {{1}}"
    if isinstance(op, LaneConvertOp):
        return f"converted({{0}}, {dtype_name(op.result.type)})"
    if isinstance(op, LaneLookupOp):
        return f"np.array({list(op.entries())}, np.float32)[{{0}} & 15]"
    if isinstance(op, LaneSelectOp):
        return "np.where({0}, {1}, {2})"
    if isinstance(op, RoundPairOp):
        return "round_pair({0}, {1})"
    if isinstance(op, RoundTf32Op):
        return "round_tf32({0})"
    if isinstance(op, vector.FMAOp):
        return "fma({0}, {1}, {2})"
    if isinstance(op, vector.ReductionOp) and op.kind.data in _REDUCTIONS:
        name = _REDUCTIONS[op.kind.data]
        folded = f"np.{name}.reduce({{0}}, dtype={{0}}.dtype)"
        return folded if op.acc is None else f"np.{name}({{1}}, {folded})"
    if isinstance(op, vector.ExtractOp):
        operand = iter(range(1, len(op.operands)))
        mixed = op.get_mixed_position()
        return "{0}" + "".join(f"[{at}]" if isinstance(at, int) else f"[{{{next(operand)}}}]" for at in mixed)
    return None


def dtype_name(type: Attribute) -> str:
    """The dtype of a vector's lanes, as text."""
    return f"np.dtype({scalar_dtype(cast('VectorType[Attribute]', type).element_type).name!r})"


def loaded_shape(op: vector.LoadOp) -> tuple[int, ...]:
    """The shape of what a load gives: consecutive elements of a row, or a whole buffer.

    TreadleError for a vector of several dimensions that is not all of its buffer.
    """
    shape = op.result.type.get_shape()
    if len(shape) > 1 and shape != cast("MemRefType[Attribute]", op.base.type).get_shape():
        raise TreadleError(f"{op.result.type} of {op.base.type}", accepted="vectors of rank 1, and whole buffers")
    return shape


def load_lanes(buffer: Sequence[Any], start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """The elements of a buffer from `start` on that fill a shape; None if one of them is not set."""
    found = buffer[start : start + prod(shape)]
    return None if any(v is None for v in found) else np.array(found, dtype).reshape(shape)


def load_active(
    buffer: Sequence[Any], start: int, active: Sequence[int], otherwise: Array, stride: int = 1
) -> Array | None:
    """`otherwise` with the `active` lanes read from a buffer; None if one of those is not set."""
    result = otherwise.copy()
    for lane in active:
        found = buffer[start + lane * stride]
        if found is None:
            return None
        result[lane] = found
    return result


def store_lanes(buffer: list[Any], start: int, value: Array) -> None:
    """Writes all lanes into a buffer from `start` on."""
    buffer[start : start + len(value)] = list(value)


def store_active(buffer: list[Any], start: int, active: Sequence[int], value: Array, stride: int = 1) -> None:
    """Writes the `active` lanes into a buffer whose lane 0 is `start`, the last one last."""
    for lane in active:
        buffer[start + lane * stride] = value[lane]


def transpose(buffer: list[Any], start: int, count: int) -> bool:
    """Transposes so many vectors of a buffer from `start` on; False if one of them is not set."""
    rows = buffer[start : start + count]
    if any(row is None for row in rows):
        return False
    buffer[start : start + count] = list(np.array(rows).T.copy())
    return True


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding (for float64, in long double)."""
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return (a.astype(wide) * b + c).astype(a.dtype)


def converted(a: Array, dtype: np.dtype[Any]) -> Array:
    """The lanes as numbers of another type; of floats the whole parts, as the nearest integers that the type has."""
    return truncated(a, dtype) if a.dtype.kind == "f" and dtype.kind in "iu" else a.astype(dtype)


def lanes_of(type: Attribute) -> int:
    """The lanes of a vector; TreadleError for one of another rank than 1."""
    shape = cast("VectorType[Attribute]", type).get_shape()
    if len(shape) != 1:
        raise TreadleError(f"{type} in a kernel", accepted="vectors of rank 1")
    return shape[0]


VECTORS: dict[str, object] = {
    "fma": fma, "load_active": load_active, "load_lanes": load_lanes, "store_active": store_active,
    "store_lanes": store_lanes, "transpose": transpose, "converted": converted,
}  # fmt: skip
"""What the generated text calls."""


# Reductions across the lanes of a warp.

_COMBINE: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def folder(op: loop.WarpReduceOp) -> WarpFunction:
    """`loop.warp_reduce`: lanes bring (value,), and get the fold of their group.

    It takes `log2(lanes)` rounds, in which lane l folds with lane `l ^ distance`.
    """
    combine, lanes = _COMBINE[op.kind.data], op.lanes

    def fold(brought: Sequence[Any]) -> Sequence[Any]:
        values, distance = np.array([value for (value,) in brought]), lanes // 2
        while distance:
            values = combine(values, values[np.arange(len(values)) ^ distance])
            distance //= 2
        return list(values)

    return fold


def shuffled(brought: Sequence[Any]) -> Sequence[Any]:
    """`loop.shuffle`: lanes bring (value, lane), and get the value of that lane."""
    return [brought[lane][0] for _, lane in brought]


# Functions that a kernel's text calls for asynchronous copies and for tile products of a warp.

Flight: TypeAlias = list[list[tuple[list[Any], int, Any]]]
"""Copies that a thread started, oldest group first: buffer, offset and value of each element."""
WarpFunction: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""From what each lane brings to what each lane gets."""


_TF32_MASK = np.uint32(0xFFFFE000)


def start(flight: Flight, buffer: list[Any], offset: int, value: Any) -> None:
    """Starts the copy of one element, whose destination is unset until the copy completes."""
    buffer[offset] = None
    flight[-1].append((buffer, offset, value))


def land(flight: Flight, pending: int) -> None:
    """Completes groups until only the newest `pending` of those committed are incomplete."""
    while len(flight) - 1 > pending:
        for buffer, offset, value in flight.pop(0):
            buffer[offset] = value


def matrix_loader(op: loop.LoadMatrixOp, unset: Callable[[], None]) -> WarpFunction:
    """`loop.load_matrix`: lanes pass (buffer, offset) of rows, and get fragments; `unset` is called for an element that
    was never stored."""
    shape, count = op.fragment.type.get_shape(), op.matrices
    columns, transpose = 4 * shape[-1], op.transpose is not None

    def load(lanes: Sequence[Any]) -> Sequence[Any]:
        rows = [buffer[offset : offset + columns] for buffer, offset in lanes[: 8 * count]]
        if any(value is None for row in rows for value in row):
            unset()
        matrices = np.array(rows).reshape(count, 8, columns)
        if transpose:
            matrices = matrices.transpose(0, 2, 1)
        # Lane l has the l % 4-th register of row l / 4.
        registers = matrices.reshape(count, WARP, shape[-1])
        return [registers[:, lane].reshape(shape) for lane in range(WARP)]

    return load


def round_tf32(values: Array) -> Array:
    """`loop.round_tf32`: to 10 bits of mantissa, ties away from 0; what is not finite stays."""
    rounded = ((values.view(np.uint32) + np.uint32(0x1000)) & _TF32_MASK).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def round_pair(even: Array, odd: Array) -> Array:
    """`loop.round_pair`, of numbers or of vectors."""
    with np.errstate(over="ignore"):
        low, high = (np.asarray(each, np.float32).astype(scalar_dtype(bf16)) for each in (even, odd))
    bits = low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return bits.view(np.int32)[()]


def multiply(lanes: Sequence[Any]) -> Sequence[Any]:
    """`loop.mma`: lanes bring fragments of A, B and C, and get those of the product."""
    a, b, c = (np.stack(each) for each in zip(*lanes, strict=True))
    packed = a.shape[2]
    if packed == 1:
        a, b = ((x.astype(np.float32).view(np.uint32) & _TF32_MASK).view(np.float32) for x in (a, b))
    groups = (8, 4)
    # [g, t, half of K, half of M, c] to [half of M, g, half of K, t, c], and the like.
    left = a.reshape(*groups, 2, 2, packed).transpose(3, 0, 2, 1, 4).reshape(16, 8 * packed)
    right = b.reshape(*groups, 2, packed).transpose(2, 1, 3, 0).reshape(8 * packed, 8)
    before = c.reshape(*groups, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    # In f64, which holds sums of bytes, too; as i32 they wrap.
    after = before + left.astype(np.float64) @ right.astype(np.float64)
    after = after.astype(np.int64).astype(np.int32) if c.dtype == np.int32 else after.astype(np.float32)
    return list(after.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(WARP, 2, 2))


TILES: dict[str, object] = {"start": start, "land": land, "round_tf32": round_tf32, "round_pair": round_pair}
"""What the generated text calls."""


# Products of tiles on a CPU's matrix unit, as kernels' text calls them.

Buffer = list[Any]
_STEP = 32
"""Terms of bf16 that the unit takes at once: even and odd ones have sums of their own."""


def unit_product(
    op: loop.MultiplyTilesOp, unset: Callable[[], None]
) -> Callable[[Buffer, int, Buffer, int, Buffer, int], None]:
    """`loop.multiply_tiles` of buffers and the offsets of the operands in them; `unset` is called where an element was
    never stored."""
    rows, columns, depth = op.extents
    left_rows, whole = op.left, loop.whole_row(op.elements[0])
    elements = op.panel_elements
    in_words = elements < depth * columns
    places = [step * left_rows.apart + tap for step in range(op.steps // len(left_rows.taps)) for tap in left_rows.taps]
    side = loop.SIDE_BY_SIDE[op.elements[1]]
    sums = scalar_dtype(loop.SUMS[op.elements[0]])

    def product(acc: Buffer, row: int, a: Buffer, first: int, b: Buffer, start: int) -> None:
        begins = range(first, first + rows * left_rows.stride, left_rows.stride)
        lines = [[x for at in places for x in a[begin + at : begin + at + whole]] for begin in begins]
        panel = b[start : start + elements]
        if any(value is None for line in (*lines, panel) for value in line):
            unset()
        left = np.array(lines).astype(sums)
        held = np.array(panel, "<i4").view(scalar_dtype(op.elements[1])) if in_words else np.array(panel)
        right = held.reshape(depth // side, columns, side).swapaxes(1, 2).reshape(depth, columns)
        acc[row : row + rows * columns] = list(_total(left, right.astype(sums)).reshape(-1))

    return product


def _total(left: Any, right: Any) -> Any:
    if left.dtype != np.float32:
        return left @ right
    total = np.zeros((len(left), right.shape[1]), np.float32)
    for k in range(0, left.shape[1], _STEP):
        even, odd = (left[:, at : k + _STEP : 2] @ right[at : k + _STEP : 2] for at in (k, k + 1))
        total = total + (even + odd)
    return total


# State that the blocks of a launch share: the launch's buffers, and the counters at which blocks arrive.

LAUNCH = "launch"
"""The key, in a block's shared state, of the state that all blocks of the launch share."""


def space_of(type: Attribute) -> Space | None:
    """The memory space of a buffer; None for tensors, and for what is no buffer of the loop dialect."""
    if not isinstance(type, MemRefType) or not isinstance(type.memory_space, SpaceAttr):
        return None
    return type.memory_space.data


def is_of_launch(type: Attribute) -> bool:
    """Whether the buffer belongs to the launch."""
    space = space_of(type)
    return space is not None and space.is_global


def initial(type: Attribute) -> int | None:
    """A buffer's elements before the kernel begins: unset, or 0."""
    return 0 if space_of(type) is Space.ZEROED else None


def fresh(type: MemRefType[Attribute]) -> list[Any]:
    """A buffer before the kernel begins."""
    return [initial(type)] * prod(type.get_shape())


def arrive(shared: dict[Any, Any], number: int, counters: list[int], index: int, blocks: int) -> bool:
    """What `loop.arrive` gives a thread; `number` is the operation's. The first thread counts for its block."""
    if number not in shared:
        counters[index] = (counters[index] + 1) % blocks
        shared[number] = index, counters[index] == 0
    arrived, last = shared[number]
    if arrived != index:
        raise TreadleError(f"threads of a block arrive at counters {arrived} and {index}", "loop.arrive", "one counter")
    return last


def check_zeroed(types: Sequence[MemRefType[Attribute]], buffers: Sequence[list[Any]], where: str) -> None:
    """TreadleError for a zeroed buffer that a launch leaves non-zero."""
    for type, elements in zip(types, buffers, strict=True):
        left = next((n for n, value in enumerate(elements) if value), None)
        if space_of(type) is Space.ZEROED and left is not None:
            raise TreadleError(f"element {left} of {type} is {elements[left]} after the launch", where, "0")
