"""Numbers in float64 with limits of their errors, and the rules by which operations propagate limits.

A limit says how far a computation in the declared types, with sums in any order, may be from the number. The rules are
those of running error analysis, to first order:

- a rounding adds a few halves of an epsilon (`ROUNDING`, `ARITHMETIC`) of the number that is rounded;
- a function is off by how much it changes when its operands move by their limits, up or down. Operands that were
  computed from the same element of a tensor (its `root`) move together, others each by itself;
- independent errors add up as squares: the limits of a function's operands, and those of a sum's terms. So do the
  roundings of the partial sums of n terms: sqrt(n) roundings of a number as large as the terms' norm, or as the sum.

Sources: Wilkinson, "Error analysis revisited", IMA Bulletin 22 (1986), running error analysis; Higham and Mary, "A new
approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019), theorem 2.4, sqrt(n); de Figueiredo
and Stolfi, "Affine arithmetic: concepts and applications", Numerical Algorithms 37 (2004), errors that are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod, sqrt
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, bf16, f16, f32
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph.arithmetic import (
    COMBINE,
    FOLD,
    Affine,
    Array,
    apply_scalar,
    contract,
    identity,
    read,
    scalar_dtype,
    spread,
)
from treadle.dialects.graph.compute import ReduceOp
from treadle.dialects.graph.dtypes import integer_dtype_limits, is_float, is_float_dtype, is_integer_dtype, numpy_dtype
from treadle.target.options import EPSILON, Precision

ROUNDING = 12.0
"""What a rounding that a precision asks for adds to a limit, in halves of an epsilon: its error is uniform in half a
unit in the last place, with a standard deviation of 0.3 to 0.6 of these."""
ARITHMETIC = 24.0
"""The same for an operation of floats. Its rounding would need no more, but a library approximates functions, and
errors are not independent everywhere: in the flat parts of an image, neighbours have the same error. What real models
need is measured in docs/adr/0024-limits-from-the-imported-graph.md."""

_ZERO = np.zeros(())
WITHOUT_ROUNDING = (
    arith.NegfOp, arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp, arith.SelectOp, arith.ExtFOp,
    math.AbsFOp, math.FloorOp, math.CeilOp, math.RoundEvenOp,
)  # fmt: skip
"""Operations of floats whose result is one of their operands, or is exact."""
ROUNDED_ONCE = (
    arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp, arith.TruncFOp, arith.SIToFPOp, arith.UIToFPOp,
    math.SqrtOp, math.FmaOp,
)  # fmt: skip
"""Operations of floats whose result is the nearest number of the type to the exact one."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Values (floats as float64) and how far each may be off, in two parts that are independent of each other.

    root:  the tensor whose elements' errors move the elements here, one each; None if there is none
    shift: by how much, with its sign, when the root's element moves up by its limit
    own:   what came since; float64, as `shift`, and both broadcast to the values
    """

    value: Array
    own: Array = field(default_factory=lambda: _ZERO)
    shift: Array = field(default_factory=lambda: _ZERO)
    root: SSAValue | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def exact(self) -> bool:
        """Whether no value may be off."""
        return self.own is _ZERO and self.root is None

    @property
    def error(self) -> Array:
        """How far each value may be off."""
        return self.own if self.root is None else together(self.own, self.shift)

    @property
    def full_error(self) -> Array:
        """`error` with the shape of the values."""
        return np.broadcast_to(self.error, self.value.shape)

    @classmethod
    def of(cls, array: Array) -> Bounded:
        """Exact numbers."""
        return cls(array.astype(np.float64) if is_float_dtype(array.dtype) else array)

    def off_by(self, absolute: float) -> Bounded:
        """The same numbers, with limits enlarged by `error`."""
        return Bounded(self.value, together(self.full_error, np.full((), absolute)))

    def rooted(self, root: SSAValue) -> Bounded:
        """The same as the elements of a tensor, from which others are computed."""
        if self.exact or self.root is not None or not is_float_dtype(self.value.dtype):
            return self
        return Bounded(self.value, _ZERO, self.full_error, root)


@dataclass(frozen=True)
class Format:
    """What rounding to a float format costs.

    unit: half an epsilon; smallest: the smallest positive number; largest: the largest finite one
    dtype: NumPy's type of the format; None if it has none (tf32)
    """

    unit: float
    smallest: float
    largest: float
    dtype: np.dtype[Any] | None = None

    @classmethod
    def of(cls, type: Attribute) -> Format:
        """The format of a float type."""
        info = cast("Any", ml_dtypes.finfo(numpy_dtype(type)))
        return cls(float(info.eps) / 2, float(info.smallest_subnormal), float(info.max), numpy_dtype(type))

    @classmethod
    def of_precision(cls, precision: Precision) -> Format:
        """The format to which a precision rounds; tf32 has the exponents of f32."""
        if precision == "tf32":
            wide = cls.of(f32)
            return cls(EPSILON[precision] / 2, wide.smallest, wide.largest)
        return cls.of({"f32": f32, "f16": f16, "bf16": bf16}[precision])

    def nearest(self, array: Array) -> Array:
        """The numbers of the format that are nearest to those of an array of f32."""
        if self.dtype is not None:
            return array.astype(self.dtype).astype(array.dtype)
        mantissa, exponent = np.frexp(array)
        return np.where(np.isfinite(array), np.ldexp(np.rint(mantissa / self.unit) * self.unit, exponent), array)


def together(a: Array, b: Array) -> Array:
    """The limit of two errors that are independent. (`np.hypot` takes five times as long.)"""
    if a is _ZERO or b is _ZERO:
        return b if a is _ZERO else a
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.sqrt(a * a + b * b)


def rounded(value: Array, error: Array, format: Format, units: float, reach: Array | None = None) -> Bounded:
    """Numbers after a rounding to `format`: infinite where they overflow. A number has no limit if it may overflow or
    not: if it is nearer to the format's largest than `reach`, its whole limit (default: `error`).
    """
    magnitude = np.abs(value)
    if magnitude.max(initial=0.0) <= format.largest:
        return Bounded(value, together(error, units * format.unit * magnitude + format.smallest))
    beyond = (magnitude > format.largest) & np.isfinite(value)
    near = beyond & (magnitude - (error if reach is None else reach) <= format.largest)
    value = np.where(beyond, np.copysign(np.inf, value), value)
    magnitude = np.where(np.isfinite(value), magnitude, 0.0)
    own = together(error, units * format.unit * magnitude + format.smallest)
    return Bounded(value, np.where(near, np.inf, np.where(beyond, 0.0, own)))


def _fits(value: Array, dtype: np.dtype[Any]) -> bool:
    """Whether all numbers are in the range of the type."""
    return bool(fitting(value, dtype).all())


def fitting(value: Array, dtype: np.dtype[Any]) -> Array:
    """Which numbers are some of the type."""
    with np.errstate(all="ignore"):
        narrow = value.astype(dtype).astype(np.float64)
    return (value == narrow) | (np.isnan(value) & np.isnan(narrow))


def decided(error: Array, value: Array) -> Array:
    """Limits without NaN: infinite for a finite value, 0 for one that is not finite."""
    if not np.isnan(error.min(initial=0.0)):
        return error
    return np.where(np.isnan(error), np.where(np.isfinite(value), np.inf, 0.0), error)


def difference(a: Array, b: Array) -> Array:
    """How far numbers are apart: infinitely, where one of the two is not finite and the other is something else."""
    if a.dtype == np.bool_:
        return (a != b).astype(np.float64)
    with np.errstate(all="ignore"):
        apart = a.astype(np.float64) - b.astype(np.float64)
    if not np.isnan(apart.min(initial=0.0)):
        return apart
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(np.isnan(apart), np.where(same, 0.0, np.inf), apart)


@dataclass(frozen=True)
class Running:
    """Arithmetic on `Bounded` numbers, of which each operation of floats adds `units` halves of an epsilon."""

    units: float = ARITHMETIC

    def lift(self, array: Array) -> Bounded:
        return Bounded.of(array)

    def reshape(self, value: Bounded, shape: Sequence[int]) -> Bounded:
        return Bounded(value.value.reshape(shape), value.own if value.exact else value.full_error.reshape(shape))

    def broadcast(self, value: Bounded, shape: Sequence[int]) -> Bounded:
        if value.root is not None and value.shape == tuple(shape):
            return value
        return Bounded(
            np.broadcast_to(value.value, shape), value.own if value.exact else np.broadcast_to(value.error, shape)
        )

    def scalar(self, op: Operation, operands: list[Bounded]) -> Bounded:
        type = op.results[0].type
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, FloatAttr):
            exact = np.asarray(op.value.value.data, np.float64)
            return Bounded(exact) if _fits(exact, scalar_dtype(type)) else rounded(exact, _ZERO, Format.of(type), 1.0)
        value = apply(op, [operand.value for operand in operands])
        passed = _handed_on(op, operands, value)
        if not is_float(type) or isinstance(op, WITHOUT_ROUNDING):
            return passed
        once = isinstance(op, ROUNDED_ONCE)
        if passed.exact and once and _fits(value, scalar_dtype(type)):
            return passed
        result = rounded(value, passed.own, Format.of(type), self.units, passed.error)
        own = result.own
        if once and not passed.exact and (certain := passed.full_error == 0).any():
            own = np.where(certain & fitting(value, scalar_dtype(type)), 0.0, own)
        return Bounded(result.value, own, passed.shift, passed.root)

    def read(
        self,
        source: Bounded,
        indices: Sequence[Affine | Bounded],
        sizes: Sequence[int],
        predicate: Bounded | None,
        otherwise: Bounded | None,
    ) -> Bounded:
        if predicate is None and _same_element(source, indices, sizes):
            return source
        where = [i if isinstance(i, Affine) else i.value for i in indices]
        condition = None if predicate is None else predicate.value
        other = None if otherwise is None else otherwise.value
        value = read(source.value, where, sizes, condition, other)
        exact = source.exact and (otherwise is None or otherwise.exact)
        other_error = None if otherwise is None else otherwise.error
        error = _ZERO if exact else read(source.full_error, where, sizes, condition, other_error)
        # Comparisons that may come out differently: the elements that are read then have no limit.
        for decision in (predicate, *indices):
            if isinstance(decision, Bounded) and not decision.exact:
                error = np.where(decision.error > 0, np.inf, error)
        return Bounded(value, error)

    def fold(self, op: ReduceOp, value: Bounded, sizes: Sequence[int], folded: int) -> Bounded:
        kind, axes = op.kind.data, tuple(range(folded))
        full = spread(value.value, sizes, folded)
        error = _ZERO if value.exact else spread(np.broadcast_to(value.error, value.shape), sizes, folded)
        result = np.asarray(FOLD[kind](full, axis=axes))
        if kind == "add" and is_float(op.result.type):
            squares = np.square(error) + self._growth(op) ** 2 * np.square(_finite(full))
            return Bounded(result, np.sqrt(np.asarray(np.sum(squares, axis=axes))))
        if value.exact:
            return Bounded(result)
        if kind == "add":
            return Bounded(result, np.asarray(np.sum(error, axis=axes)))
        if kind == "mul":
            magnitude = np.abs(full)
            return Bounded(result, np.prod(magnitude + error, axis=axes) - np.prod(magnitude, axis=axes))
        moved = (np.asarray(FOLD[kind](_moved(full, error, sign), axis=axes)) for sign in (1, -1))
        return Bounded(result, reduce(np.maximum, (np.abs(difference(each, result)) for each in moved)))

    def contract(self, op: ReduceOp, factors: tuple[Bounded, Bounded], sizes: Sequence[int], folded: int) -> Bounded:
        a, b = factors
        if not is_float(op.result.type):
            return _contract_integers(a, b, sizes, folded)
        x, y = _finite(a.value), _finite(b.value)
        squares = np.square(a.error) + self._growth(op) ** 2 * np.square(x)
        variance = contract(squares, np.square(y), sizes, folded)
        if not b.exact:
            variance += contract(np.square(x), np.square(b.full_error), sizes, folded)
        return Bounded(contract(a.value, b.value, sizes, folded), np.sqrt(variance))

    def combine(self, kind: str, a: Bounded, b: Bounded) -> Bounded:
        value = np.asarray(COMBINE[kind](a.value, b.value))
        if kind == "add":
            return Bounded(value, together(a.error, b.error))
        if kind == "mul":
            x, y = np.abs(a.value), np.abs(b.value)
            return Bounded(value, x * b.error + y * a.error + a.error * b.error)
        if a.exact and b.exact:
            return Bounded(value)
        moved = (COMBINE[kind](_moved(a.value, a.error, sign), _moved(b.value, b.error, sign)) for sign in (1, -1))
        return Bounded(value, reduce(np.maximum, (np.abs(difference(np.asarray(each), value)) for each in moved)))

    def finish(self, op: ReduceOp, total: Bounded | None) -> Bounded:
        kind, type = op.kind.data, op.result.type
        dtype = scalar_dtype(type)
        if total is None:
            return self.lift(np.array(identity(kind, dtype), dtype))
        if not is_float(type):
            return Bounded(total.value.astype(dtype, copy=False), total.error)
        if kind not in ("add", "mul"):
            return Bounded(total.value, decided(total.error, total.value))
        roundings = sqrt(prod(op.shape)) if kind == "add" else prod(op.shape)
        return rounded(total.value, total.error, Format.of(type), self.units * roundings)

    def _growth(self, op: ReduceOp) -> float:
        """What the roundings of a sum add to its limit, as a fraction of the norm of its terms."""
        return self.units * Format.of(op.result.type).unit * sqrt(prod(op.shape))


def _contract_integers(a: Bounded, b: Bounded, sizes: Sequence[int], folded: int) -> Bounded:
    """A sum of products of integers: all elements of a factor may be off in the same direction."""
    value, error = contract(a.value, b.value, sizes, folded), _ZERO
    for moving, other in ((a, b), (b, a)):
        if not moving.exact:
            most = reduce(np.maximum, (np.abs(_shifted(moving, sign)) for sign in (1, -1)))
            error = together(error, contract(most, np.abs(other.value.astype(np.float64)), sizes, folded))
    return Bounded(value, error)


def _shifted(x: Bounded, sign: int) -> Array:
    """How far numbers move by their limits."""
    return difference(_moved(x.value, x.full_error, sign), x.value)


def _finite(values: Array) -> Array:
    """Values whose infinities and NaN are 0: their sums are certain, and do not round."""
    with np.errstate(all="ignore"):
        return values if np.isfinite(values.sum()) else np.where(np.isfinite(values), values, 0.0)


def apply(op: Operation, values: list[Array]) -> Array:
    """The value of an operation whose floats are float64, whatever they are declared to be."""
    if len(values) == 1 and isinstance(op, arith.ExtFOp | arith.TruncFOp):
        return values[0]
    if isinstance(op, arith.SIToFPOp | arith.UIToFPOp):
        return values[0].astype(np.float64)
    if isinstance(op, arith.BitcastOp):
        declared = values[0].astype(scalar_dtype(op.input.type), copy=False)
        return Bounded.of(declared.view(scalar_dtype(op.result.type))).value
    return apply_scalar(op, values)


def _same_element(source: Bounded, indices: Sequence[Affine | Bounded], sizes: Sequence[int]) -> bool:
    """Whether each point of the iteration space reads the tensor's element at the same index."""
    rank = len(source.shape)
    if len(sizes) != rank or source.shape != tuple(sizes[::-1]):
        return False
    steps = [{rank - 1 - axis: 1} if extent > 1 else {} for axis, extent in enumerate(source.shape)]
    return all(isinstance(i, Affine) and i.start == 0 and i.steps == s for i, s in zip(indices, steps, strict=True))


def _handed_on(op: Operation, operands: list[Bounded], value: Array) -> Bounded:
    """A result with the limit that follows from its operands'."""
    if all(operand.exact for operand in operands):
        return Bounded(value)
    roots = {x.root for x in operands if not x.exact and is_float_dtype(x.value.dtype)}
    root = roots.pop() if len(roots) == 1 and is_float_dtype(value.dtype) else None
    own = _ZERO
    for moving in dict.fromkeys(op.operands):
        numbers = [n for n, operand in enumerate(op.operands) if operand is moving]
        error = operands[numbers[0]].error if root is None else operands[numbers[0]].own
        if error is not _ZERO:
            own = together(
                own, np.abs(_change(op, operands, [error if n in numbers else _ZERO for n in range(3)], value))
            )
    if root is None:
        return Bounded(value, decided(own, value))
    shift = _change(op, operands, [x.shift for x in operands], value)
    return Bounded(value, decided(own, value), decided(shift, value), root)


def _change(op: Operation, operands: list[Bounded], by: Sequence[Array], value: Array) -> Array:
    """How the result changes when operands move up; where it changes more when they move down, the opposite of that."""
    if isinstance(op, arith.AddfOp):
        return by[0] + by[1]
    if isinstance(op, arith.SubfOp):
        return by[0] - by[1]
    if isinstance(op, arith.MulfOp):
        a, b = operands
        return a.value * by[1] + b.value * by[0] + by[0] * by[1]
    if isinstance(op, arith.NegfOp):
        return -by[0]
    if isinstance(op, arith.ExtFOp | arith.TruncFOp):
        return by[0]

    def moved(sign: int) -> Array:
        values = [x.value if y is _ZERO else _moved(x.value, y, sign) for x, y in zip(operands, by, strict=False)]
        return difference(apply(op, values), value)

    up, down = moved(1), moved(-1)
    return np.where(np.abs(up) >= np.abs(down), up, -down)


def _moved(value: Array, error: Array, sign: int) -> Array:
    """Values moved by their limits: truths to the other one, integers by whole steps."""
    if value.dtype == np.bool_:
        return value ^ (error > 0)
    if is_integer_dtype(value.dtype):
        moved = value.astype(np.float64) + sign * np.ceil(error)
        return np.where(error > 0, np.clip(moved, *integer_dtype_limits(value.dtype)).astype(value.dtype), value)
    return value + sign * error


__all__ = [
    "ARITHMETIC", "ROUNDED_ONCE", "ROUNDING", "WITHOUT_ROUNDING", "Bounded", "Format", "Running", "apply", "fitting",
    "rounded", "together",
]  # fmt: skip
