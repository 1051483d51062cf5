"""The extents of an operator's result where operands have symbolic ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import (
    ArgReductionOp,
    BatchNormOp,
    BinaryOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MaskOp,
    MatmulOp,
    Operator,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import Misfit, int_list
from treadle.dialects.graph.linear import window_extent
from treadle.frontends.common.extent import MERGED, Extent, Symbolic, bound_of, bounds_of, is_symbolic, reshaped

Extents = tuple[Symbolic, ...]
Rule = Callable[..., Extents]
_RULES: dict[type[Operator], Rule] = {}
_STATIC = "static extents there"
_EQUAL = "extents that are equal in every call, or 1"
_INSIDE = "slices that lie inside in every call of the range"


def result_extents(op: Operator, operands: Sequence[Extents], shape: Sequence[Symbolic] | None) -> Extents:
    """The extents of the result of an operator on the largest shapes.

    operands: those of its operands, of which some are symbolic
    shape:    those that a reshape, a broadcast, a slice or a resize was asked for; None: as its properties say

    Misfit where they are not a function of the symbols that holds for every call, or where the operator does
    not take symbolic extents.
    """
    rule = _RULES.get(type(op))
    if rule is None:
        raise Misfit(f"{op.name} takes no symbolic extents, only static ones", _STATIC)
    found = tuple(rule(op, operands, op.shape if shape is None else shape))
    if bounds_of(found) != tuple(op.shape):
        raise Misfit(f"{op.name} of extents {found} is not of shape {op.shape} where they are largest", _STATIC)
    return found


def _rule(*kinds: type[Operator]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _check_whole(extents: Extents, dims: Iterable[int], what: str) -> None:
    """Misfit for a dimension that was merged from symbolic ones: its positions are those of the largest
    shape."""
    for d in dims:
        extent = extents[d]
        if isinstance(extent, Extent) and extent.factors:
            raise Misfit(f"{what} the merged dimension {extent}", MERGED)


def symbolic_dims(extents: Extents, dims: Sequence[int]) -> list[int]:
    """Those of some dimensions whose extents are symbolic."""
    return [d for d in dims if isinstance(extents[d], Extent)]


def _is_same(a: Symbolic, b: Symbolic) -> bool:
    """Whether two dimensions have the same extent in every call, and the same positions."""
    if isinstance(a, Extent) and isinstance(b, Extent):
        return a == b and a.parts == b.parts and bounds_of(a.parts) == bounds_of(b.parts)
    return a == b


def _agreed(extents: Sequence[Symbolic]) -> Symbolic:
    """The extent that dimensions broadcast to: all are the same, or 1."""
    result: Symbolic = 1
    for extent in extents:
        if _is_same(result, extent) or (not isinstance(extent, Extent) and extent == 1):
            continue
        if isinstance(result, Extent) or result != 1:
            raise Misfit(f"extents {result} and {extent} do not broadcast in every call", _EQUAL)
        result = extent
    return result


@_rule(UnaryOp, CastOp, BatchNormOp, LayerNormOp, SoftmaxOp, MaskOp)
def _of_first(op: Operator, operands: Sequence[Extents], shape: Extents) -> Extents:
    del shape
    if isinstance(op, BatchNormOp) and symbolic_dims(operands[0], [1]):
        raise Misfit(f"{op.name} normalises static channels only", "static channels")
    if isinstance(op, LayerNormOp) and symbolic_dims(operands[0], range(op.dim.value.data, len(operands[0]))):
        raise Misfit(f"{op.name} normalises static extents only", _STATIC)
    if any(is_symbolic(extents) for extents in operands[1:]):
        raise Misfit(f"the parameters of {op.name} have static extents only", _STATIC)
    return operands[0]


@_rule(BitcastOp)
def _of_bits(op: BitcastOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    if len(op.shape) != len(operands[0]) or isinstance(operands[0][-1], Extent):
        raise Misfit(f"{op.name} of symbolic extents keeps its dimensions", "a type of as many bits, or static extents")
    return (*operands[0][:-1], *shape[len(operands[0]) - 1 :])


@_rule(BinaryOp, WhereOp)
def _broadcast(op: Operator, operands: Sequence[Extents], shape: Extents) -> Extents:
    rank = len(shape)
    aligned = [(1,) * (rank - len(extents)) + tuple(extents) for extents in operands]
    return tuple(_agreed([extents[d] for extents in aligned]) for d in range(rank))


@_rule(BroadcastOp)
def _spread(op: BroadcastOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    source = (1,) * (len(shape) - len(operands[0])) + tuple(operands[0])
    for s, t in zip(source, shape, strict=True):
        if not _is_same(s, t) and (isinstance(s, Extent) or s != 1):
            raise Misfit(f"extent {s} does not broadcast to {t} in every call", _EQUAL)
    return tuple(shape)


@_rule(ReshapeOp)
def _reshape(op: ReshapeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    return reshaped(operands[0], shape)


@_rule(TransposeOp)
def _transpose(op: TransposeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    return tuple(operands[0][d] for d in int_list(op.properties, "perm"))


@_rule(SliceOp)
def _slice(op: SliceOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    starts, steps = int_list(op.properties, "starts"), int_list(op.properties, "steps")
    result: list[Symbolic] = []
    for extent, size, start, step in zip(operands[0], shape, starts, steps, strict=True):
        if not isinstance(extent, Extent):
            result.append(size)
            continue
        if extent.factors and not _is_same(extent, size):
            raise Misfit(f"a slice of the merged dimension {extent}", MERGED)
        if step < 1 or (isinstance(size, Extent) and step > 1):
            raise Misfit(f"a slice of {extent} in steps of {step}: symbolic extents take steps of 1", "steps of 1")
        # Both raise where it depends on the call.
        if not isinstance(size, Extent) and size > 0 and start + (size - 1) * step >= extent.lowest:
            raise Misfit(f"a slice of {size} elements from {start}, where the extent is {extent}", _INSIDE)
        if isinstance(size, Extent) and not size + start <= extent:
            raise Misfit(f"a slice of {size} elements from {start}, where the extent is {extent}", _INSIDE)
        result.append(size)
    return tuple(result)


@_rule(ConcatOp)
def _concat(op: ConcatOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    if is_symbolic([extents[dim] for extents in operands[:-1]]):
        raise Misfit(f"an operand of a concat along dimension {dim} is symbolic there", "symbolic only the last one")
    if len(operands) > 1:
        _check_whole(operands[-1], [dim], "a concat along")
    joined = sum(extents[dim] for extents in operands)
    return tuple(joined if d == dim else _agreed([e[d] for e in operands]) for d in range(len(shape)))


@_rule(PadOp)
def _pad(op: PadOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    pads, rank = int_list(op.properties, "pads"), len(shape)
    for d in symbolic_dims(operands[0], range(rank)):
        if pads[d + rank] and op.mode.data != "constant":
            raise Misfit(f"padding of mode {op.mode.data} behind a symbolic extent", "mode constant")
        # Raises as well where it depends on the call.
        if op.mode.data == "reflect" and pads[d] and not operands[0][d] > pads[d]:
            raise Misfit(f"a reflection of {pads[d]} in {operands[0][d]} elements", "fewer than there are")
        if (pads[d] or pads[d + rank]) and operands[0][d].factors:  # pyright: ignore[reportAttributeAccessIssue]
            raise Misfit(f"padding of the merged dimension {operands[0][d]}", MERGED)
    return tuple(e + pads[d] + pads[d + rank] for d, e in enumerate(operands[0]))


@_rule(GatherOp)
def _gather(op: GatherOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    return (*operands[0][:dim], *operands[1], *operands[0][dim + 1 :])


@_rule(MatmulOp)
def _matmul(op: MatmulOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    a, b = operands
    if not _is_same(a[-1], b[-2]):
        raise Misfit(f"a product over {a[-1]} and {b[-2]}, which are not equal in every call", _EQUAL)
    batch = _broadcast(op, [a[:-2], b[:-2]], shape[:-2])
    return (*batch, a[-2], b[-1])


@_rule(ReductionOp)
def _reduction(op: ReductionOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dims = int_list(op.properties, "dims")
    if op.kind.data == "mean" and symbolic_dims(operands[0], dims):
        raise Misfit("a mean over a symbolic extent", "a sum and a quotient")
    return _folded(operands[0], dims, bool(op.keep.value.data))


@_rule(ArgReductionOp)
def _arg_reduction(op: ArgReductionOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    dim = op.dim.value.data
    _check_whole(operands[0], [dim], "a position in")
    if op.last.value.data and symbolic_dims(operands[0], [dim]):
        raise Misfit("the last of equal elements along a symbolic extent", "the first one, or a static extent")
    return _folded(operands[0], [dim], bool(op.keep.value.data))


def _folded(extents: Extents, dims: Sequence[int], keep: bool) -> Extents:
    if keep:
        return tuple(1 if d in dims else e for d, e in enumerate(extents))
    return tuple(e for d, e in enumerate(extents) if d not in dims)


@_rule(ConvOp, PoolOp)
def _window(op: ConvOp | PoolOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    strides, pads, dilations = (int_list(op.properties, n) for n in ("strides", "pads", "dilations"))
    kernel, x, rank = kernel_extents(op), operands[0], len(shape) - 2
    if any(is_symbolic(extents) for extents in operands[1:]) or symbolic_dims(x, [1]):
        raise Misfit(f"{op.name} takes static weights and channels", _STATIC)
    _check_whole(x, range(2, len(x)), f"{op.name} along")
    is_pool = isinstance(op, PoolOp)
    if is_pool and symbolic_dims(x, range(2, len(x))):
        counts = op.kind.data == "avg" and not op.count_pad.value.data and any(pads)
        if op.ceil.value.data or counts:
            raise Misfit("a pool over symbolic extents with ceil, or an average that leaves padding out", "neither")
    spatial: list[Symbolic] = []
    for n in range(rank):
        extent, reach = x[n + 2], dilations[n] * (kernel[n] - 1) + 1
        if not isinstance(extent, Extent):
            spatial.append(shape[n + 2])
            continue
        if extent.lowest + pads[n] + pads[n + rank] < reach:
            padded = f"{extent.lowest} elements with padding of {pads[n]} and {pads[n + rank]}"
            accepted = f"a range of extents from {reach - pads[n] - pads[n + rank]} on"
            raise Misfit(f"a window of {reach} elements on {padded}, the fewest of {extent}", accepted)
        spatial.append(window_extent(extent, kernel[n], strides[n], pads[n], pads[n + rank], dilations[n]))
    return (x[0], shape[1], *spatial)


@_rule(ConvTransposeOp)
def _transposed_window(op: ConvTransposeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    strides, pads, dilations = (int_list(op.properties, n) for n in ("strides", "pads", "dilations"))
    extra, kernel = int_list(op.properties, "output_padding"), kernel_extents(op)
    x, rank = operands[0], len(shape) - 2
    if is_symbolic(operands[1]) or symbolic_dims(x, [1]):
        raise Misfit(f"{op.name} takes static weights and channels", _STATIC)
    _check_whole(x, range(2, len(x)), f"{op.name} along")
    spatial = [
        (x[n + 2] - 1) * strides[n] + dilations[n] * (kernel[n] - 1) + 1 - pads[n] - pads[n + rank] + extra[n]
        if isinstance(x[n + 2], Extent)
        else shape[n + 2]
        for n in range(rank)
    ]
    return (x[0], shape[1], *spatial)


@_rule(ResizeOp)
def _resize(op: ResizeOp, operands: Sequence[Extents], shape: Extents) -> Extents:
    result: list[Symbolic] = []
    for extent, size, bound in zip(operands[0], shape, op.shape, strict=True):
        if not isinstance(extent, Extent):
            if isinstance(size, Extent):
                raise Misfit(f"extent {extent} is resized to {size}, which is no whole multiple", "a whole multiple")
            result.append(size)
            continue
        _check_whole((extent,), [0], f"{op.name} along")
        # Element i of the result is element i // scale of the source only for a whole scale.
        factor, rest = divmod(bound, bound_of(extent))
        if rest or size != extent * factor:
            raise Misfit(f"extent {extent} is resized to {size}, which is no whole multiple", "a whole multiple")
        result.append(size)
    return tuple(result)


def kernel_extents(op: ConvOp | PoolOp | ConvTransposeOp) -> Sequence[int]:
    """The extents of a window."""
    if isinstance(op, PoolOp):
        return int_list(op.properties, "kernel")
    assert isinstance(op.w.type, TensorType)
    return op.w.type.get_shape()[2:]


__all__ = ["Extents", "kernel_extents", "result_extents", "symbolic_dims"]
