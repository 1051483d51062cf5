"""A module's results with random rounding errors: how far they get where whole steps are decided by a rounding.

A number that is rounded to 8 bits changes by a whole step where it is next to a tie. Limits of errors then say little
after a few layers: they are for the worst case, in which all such numbers change. What some of these changes do, drawn
at random, is a sample of what any correct computation may give.

Source: Parker, "Monte Carlo arithmetic: exploiting randomness in floating-point arithmetic", UCLA CSD-970002 (1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.backends.reference.bounded import ROUNDED_ONCE, WITHOUT_ROUNDING, Bounded, Format, apply, fitting
from treadle.backends.reference.run_module import arguments, find_function, last_uses
from treadle.dialects.graph import IfOp, LoopOp, UnaryOp
from treadle.dialects.graph.arithmetic import Exact, contract, scalar_dtype
from treadle.dialects.graph.compute import ReduceOp
from treadle.dialects.graph.dtypes import is_float, is_float_dtype
from treadle.dialects.graph.evaluate import evaluate_in, run_arrays
from treadle.errors import TreadleError

Array = NDArray[Any]

_NOISE = 4.0
"""The largest error of an operation, in halves of an epsilon: that of a library's functions."""
_SAMPLES = 2
_MARGIN = 4.0
"""How much larger limits are than the largest error of the samples. With these, the root mean squares of the errors of
quantised ResNet-50, MobileNet-V2, MiniLM and a text recogniser are 0.5, 0.6, 1e-5 and 1.0 of a sample's; those of ONNX
Runtime 0.5, 0.6, 2e-3 and 1.0 (AVX-512, 2026-11-26)."""
_MANY = 32
"""The fewest elements that a sample says something of."""


def limited_by_samples(module: ModuleOp, inputs: Sequence[Array], results: Sequence[Bounded]) -> tuple[Bounded, ...]:
    """The results of @main (`bound_module`): where the module rounds to whole steps, and the limits of a whole tensor
    are larger than its numbers, they are at most `_MARGIN` times the largest error of samples.

    TreadleError as `evaluate_module`.
    """
    chosen = [n for n, each in enumerate(results) if _says_nothing(each)]
    if not chosen or not any(isinstance(op, UnaryOp) and op.kind.data == "round" for op in module.walk()):
        return tuple(results)
    samples = [perturbed_module(module, inputs, seed) for seed in range(_SAMPLES)]
    limited = list(results)
    for n in chosen:
        value = results[n].value
        with np.errstate(invalid="ignore"):
            errors = [np.abs(sample[n] - value) for sample in samples]
        largest = max(float(np.max(error, where=np.isfinite(error), initial=0.0)) for error in errors)
        if largest > 0:
            limit = np.where(np.isfinite(value), _MARGIN * largest, np.inf)
            limited[n] = Bounded(value, np.minimum(results[n].full_error, limit))
    return tuple(limited)


def _says_nothing(result: Bounded) -> bool:
    """Whether the limits of floats are larger than the numbers, all of them."""
    if not is_float_dtype(result.value.dtype) or result.value.size < _MANY:
        return False
    finite = result.value[np.isfinite(result.value)]
    return finite.size > 0 and bool(result.full_error.min() >= np.sqrt(np.mean(np.square(finite))) > 0)


def perturbed_module(module: ModuleOp, inputs: Sequence[Array], seed: int) -> tuple[Array, ...]:
    """The results of @main for `inputs`, floats in float64, of which each operation is off by a random part of what the
    declared type's rounding may be. TreadleError as `evaluate_module`."""
    block = find_function(module, "main").body.block
    known = {arg: _widened(x) for arg, x in arguments(block, inputs).items()}
    return tuple(_run(_Perturbed(np.random.default_rng(seed)), block, known))


class _Perturbed(Exact):
    """Arithmetic in float64 with random errors."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng

    def lift(self, array: Array) -> Array:
        return _widened(array)

    def scalar(self, op: Operation, operands: list[Array]) -> Array:
        value, type = apply(op, operands), op.results[0].type
        if not is_float(type):
            return value
        value = _widened(value)
        if isinstance(op, math.RoundEvenOp):
            return _tipped(operands[0], value)
        if isinstance(op, WITHOUT_ROUNDING):
            return value
        moved = self._rounded(value, Format.of(type), 1.0)
        once = isinstance(op, (arith.ConstantOp, *ROUNDED_ONCE))
        return np.where(fitting(value, scalar_dtype(type)), value, moved) if once else moved

    def fold(self, op: ReduceOp, value: Array, sizes: Sequence[int], folded: int) -> Array:
        summed = op.kind.data == "add" and is_float_dtype(value.dtype)
        return super().fold(op, self._terms(op, value) if summed else value, sizes, folded)

    def contract(self, op: ReduceOp, factors: tuple[Array, Array], sizes: Sequence[int], folded: int) -> Array:
        a, b = factors
        return contract(self._terms(op, a) if is_float_dtype(a.dtype) else a, b, sizes, folded)

    def finish(self, op: ReduceOp, total: Array | None) -> Array:
        if total is None or not is_float(op.result.type):
            return self.lift(super().finish(op, total))
        roundings = prod(op.shape) if op.kind.data == "mul" else 1.0
        return self._rounded(total, Format.of(op.result.type), roundings)

    def _terms(self, op: ReduceOp, values: Array) -> Array:
        """Terms whose sum is off by the roundings of all partial sums."""
        return self._off(values, Format.of(op.result.type).unit * sqrt(prod(op.shape)))

    def _rounded(self, value: Array, format: Format, units: float) -> Array:
        moved = self._off(value, units * format.unit)
        with np.errstate(all="ignore"):
            return np.where(np.abs(moved) > format.largest, np.copysign(np.inf, moved), moved)

    def _off(self, value: Array, unit: float) -> Array:
        with np.errstate(all="ignore"):
            return value * (1 + _NOISE * unit * self._rng.uniform(-1, 1, value.shape))


def _run(arithmetic: _Perturbed, block: Block, env: dict[SSAValue, Array]) -> list[Array]:
    uses = last_uses(block)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return [env[value] for value in op.operands]
        env.update(zip(op.results, _results(arithmetic, op, env), strict=True))
        for value in uses.get(op, ()):
            del env[value]
    raise TreadleError("the function does not return", accepted="a func.return at its end")


def _results(arithmetic: _Perturbed, op: Operation, env: dict[SSAValue, Array]) -> Sequence[Array]:
    if not isinstance(op, LoopOp | IfOp):
        return evaluate_in(arithmetic, op, env)

    def call(function: FuncOp, given: Sequence[Array]) -> list[Array]:
        block = function.body.block
        return _run(arithmetic, block, dict(zip(block.args, given, strict=True)))

    return run_arrays(op, [env[operand] for operand in op.operands], call)


def _tipped(numbers: Array, rounded: Array) -> Array:
    """Whole numbers, of which that next to a tie has become the other one: few samples would show what is rare."""
    if numbers.size < _MANY:
        return rounded
    below = np.floor(numbers)
    distance = np.where(np.isfinite(numbers), np.abs(numbers - below - 0.5), np.inf)
    place = np.unravel_index(np.argmin(distance), numbers.shape)
    tipped = rounded.copy()
    tipped[place] = 2 * below[place] + 1 - rounded[place]
    return tipped


def _widened(array: Array) -> Array:
    return array.astype(np.float64, copy=False) if is_float_dtype(array.dtype) else array


__all__ = ["limited_by_samples", "perturbed_module"]
