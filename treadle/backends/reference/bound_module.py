"""A module's exact results, with limits of the rounding error of each element: the oracle of whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType, f32, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.backends.reference.bounded import ARITHMETIC, ROUNDING, Bounded, Format, Running, rounded, together
from treadle.backends.reference.run_module import arguments, find_function, last_uses
from treadle.dialects.graph import (
    ArgReductionOp,
    AttentionOp,
    BroadcastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    IfOp,
    LoopOp,
    MaskOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.graph.dtypes import is_float_dtype
from treadle.dialects.graph.evaluate import evaluate_in, evaluate_results, run_control, zeros
from treadle.dialects.graph.linear import BF16
from treadle.errors import TreadleError
from treadle.target.options import Precision

Array = NDArray[Any]

_Product = MatmulOp | ConvOp | ConvTransposeOp | AttentionOp
_Mover = ReshapeOp | TransposeOp | SliceOp | BroadcastOp | ConcatOp | PadOp | ResizeOp | PoolOp
_MARGIN = 8.0
"""How much larger limits are than the errors of a sample."""
_APPROXIMATED = ("sigmoid", "tanh", "erf", "gelu", "gelu_tanh")


def bound_module(
    module: ModuleOp,
    inputs: Sequence[Array],
    precision: Precision = "f32",
    *,
    approximate: float = 0.0,
    units: float = ARITHMETIC,
) -> tuple[Bounded, ...]:
    """The results of @main for `inputs`, one array an argument: in float64, with limits of their errors.

    Operators are evaluated by their definitions. Limits follow from the declared types and the lengths of sums. In
    addition, a `precision` rounds the operands of products, convolutions and attention; f16 and bf16 also round their
    results, for all readers. A product of floats of 8 bits has the limits of one whose operands are rounded to 16 bits.
    These roundings are not independent where a filter slides over an image: an evaluation with actual rounding
    calibrates by how much limits must grow. `approximate` is an absolute error of sigmoid, tanh, erf and gelu; `units`
    what each operation adds to a limit.

    TreadleError as `evaluate_module`.
    """
    block = find_function(module, "main").body.block
    coarse = _coarse_values(block, precision)
    results = _bounded_results(Running(units), block, inputs, coarse, approximate)
    return _calibrated(results, _sampled_results(block, inputs, coarse)) if coarse else results


def bounded_results(op: Operation, env: Mapping[SSAValue, Bounded]) -> tuple[Bounded, ...]:
    """The results of one operation on tensors, as `bound_module` has them in f32; `env` has what it reads.

    TreadleError as `evaluate_module`.
    """
    results = _results(Running(ARITHMETIC), op, env)
    return tuple(value.rooted(result) for result, value in zip(op.results, results, strict=True))


def _bounded_results(
    arithmetic: Running,
    block: Block,
    inputs: Sequence[Array],
    coarse: Mapping[SSAValue, Format],
    approximate: float,
) -> tuple[Bounded, ...]:
    env = {arg: _coarsened(Bounded.of(x), arg, coarse) for arg, x in arguments(block, inputs).items()}
    uses = last_uses(block)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return tuple(env[value] for value in op.operands)
        for result, value in zip(op.results, _results(arithmetic, op, env), strict=True):
            wide = isinstance(op, UnaryOp) and op.kind.data in _APPROXIMATED and approximate > 0
            value = value.off_by(approximate) if wide else value
            env[result] = _coarsened(value, result, coarse).rooted(result)
        for value in uses.get(op, ()):
            del env[value]
    raise TreadleError("@main does not return", accepted="a func.return at its end")


def _sampled_results(block: Block, inputs: Sequence[Array], coarse: Mapping[SSAValue, Format]) -> tuple[Array, ...]:
    """The results in the declared types, with the roundings of the precision."""

    def stored(value: Array, tensor: SSAValue) -> Array:
        return coarse[tensor].nearest(value) if tensor in coarse and _fits(value, coarse[tensor]) else value

    env = {arg: stored(x, arg) for arg, x in arguments(block, inputs).items()}
    uses = last_uses(block)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return tuple(env[value] for value in op.operands)
        env.update((r, stored(x, r)) for r, x in zip(op.results, evaluate_results(op, env), strict=True))
        for value in uses.get(op, ()):
            del env[value]
    raise TreadleError("@main does not return", accepted="a func.return at its end")


def _calibrated(results: Sequence[Bounded], samples: Sequence[Array]) -> tuple[Bounded, ...]:
    """Limits enlarged for rounded weights, which have the same error everywhere in an image, so that averaging does not
    reduce it.

    A limit grows with the typical error of the sample in parts of the limits, and with the sample's own error at its
    element. Where there was none, it is that of the largest error of the sample.
    """
    return tuple(_calibrated_result(result, sample) for result, sample in zip(results, samples, strict=True))


def _calibrated_result(result: Bounded, sample: Array) -> Bounded:
    limits = result.full_error
    known = np.isfinite(result.value) & np.isfinite(sample.astype(np.float64))
    if not is_float_dtype(result.value.dtype) or not known.any():
        return result
    errors = np.where(known, np.abs(sample.astype(np.float64) - np.where(known, result.value, 0)), 0.0)
    decided = known & np.isfinite(limits) & (limits > 0)
    parts = np.sort(np.square(errors[decided] / limits[decided]))[: -(-19 * int(decided.sum()) // 20)]
    growth = max(1.0, _MARGIN * float(np.sqrt(parts.mean()))) if parts.size else 1.0
    own = together(growth * limits, _MARGIN * errors)
    return Bounded(result.value, np.where(known & ~np.isfinite(limits), _MARGIN * errors.max(), own))


def _results(arithmetic: Running, op: Operation, env: Mapping[SSAValue, Bounded]) -> tuple[Bounded, ...]:
    if isinstance(op, LoopOp | IfOp):
        return _control(arithmetic, op, [env[operand] for operand in op.operands])
    if isinstance(op, ArgReductionOp) and not env[op.x].exact:
        return (_arg_reduction(op, env[op.x]),)
    return evaluate_in(arithmetic, op, env)


def _control(arithmetic: Running, op: LoopOp | IfOp, operands: Sequence[Bounded]) -> tuple[Bounded, ...]:
    """Conditions are those of the exact values. Errors of one iteration count as independent of the next one's."""

    def call(function: FuncOp, given: Sequence[Bounded]) -> list[Bounded]:
        block = function.body.block
        env = dict[SSAValue, Bounded](zip(block.args, (Bounded(x.value, x.full_error) for x in given), strict=True))
        for inner in block.ops:
            if not isinstance(inner, ReturnOp):
                env.update(zip(inner.results, _results(arithmetic, inner, env), strict=True))
        assert block.last_op is not None
        return [Bounded(env[v].value, env[v].full_error) for v in block.last_op.operands]

    def stack(rows: Sequence[Bounded]) -> Bounded:
        return Bounded(np.stack([x.value for x in rows]), np.stack([x.full_error for x in rows]))

    counter = partial(np.array, dtype=np.int64)
    return run_control(
        op,
        operands,
        call,
        lambda x: int(x.value),
        lambda n: Bounded.of(counter(n)),
        stack,
        lambda t: Bounded.of(zeros(t)),
    )


def _arg_reduction(op: ArgReductionOp, x: Bounded) -> Bounded:
    """The position of an extremum; its limit is the distance to the farthest element that may be the extremum, too."""
    (exact,) = evaluate_in(Running(), op, {op.x: Bounded(x.value)})
    position = exact.value
    dim, kept = op.dim.value.data, bool(op.keep.value.data)
    sign = 1 if op.kind.data == "max" else -1
    along, error = np.moveaxis(sign * x.value, dim, -1), np.moveaxis(x.full_error, dim, -1)
    found = np.moveaxis(position, dim, -1) if kept else position[..., None]
    best = np.take_along_axis(along, found, -1) - np.take_along_axis(error, found, -1)
    distance = np.abs(np.arange(along.shape[-1], dtype=np.float64) - found)
    farthest: Array = np.where(~(along + error < best) & (error > 0), distance, 0).max(-1, keepdims=True)
    return Bounded(position, np.moveaxis(farthest, -1, dim) if kept else farthest[..., 0])


def _coarse_values(block: Block, precision: Precision) -> dict[SSAValue, Format]:
    """The tensors that a precision rounds, and to what; operands of products of floats of 8 bits count as rounded."""
    small = [op for op in block.ops if isinstance(op, MatmulOp) and op.is_of_small_floats]
    of_small = {
        _moved_from(operand): Format.of_precision("bf16" if op.precision == BF16 else "f16")
        for op in small
        for operand in op.operands
    }
    if precision == "f32":
        return of_small
    format = Format.of_precision(precision)
    products = [
        op for op in block.ops if isinstance(op, _Product) and op.type.get_element_type() == f32 and op not in small
    ]
    read = {_moved_from(operand) for op in products for operand in op.operands if not _is_extent(operand)}
    given = {op.results[0] for op in products} if precision != "tf32" else set[SSAValue]()
    return dict.fromkeys(read | given, format) | of_small


def _is_extent(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and value.type.get_element_type() == i64


def _moved_from(value: SSAValue) -> SSAValue:
    """The tensor that an operator only moves elements of; the value itself if there are several."""
    while isinstance(op := value.owner, MaskOp) or (isinstance(op, _Mover) and len(op.operands) == 1):
        value = op.operands[0]
    return value


def _coarsened(value: Bounded, tensor: SSAValue, coarse: Mapping[SSAValue, Format]) -> Bounded:
    format = coarse.get(tensor)
    # Constants that the format cannot represent stay in f32: masks of attention.
    if format is None or not _fits(value.value, format):
        return value
    result = rounded(value.value, value.error, format, ROUNDING)
    return Bounded(result.value, result.own)


def _fits(value: Array, format: Format) -> bool:
    return bool(np.all(np.abs(value[np.isfinite(value)]) <= format.largest))


__all__ = ["bound_module", "bounded_results"]
