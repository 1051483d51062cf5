"""What a drawn model means: ONNX's reference evaluator in float64, and how far roundings may take each element.

The limits are sampled (Parker, "Monte Carlo arithmetic", 1997): the model is evaluated again in its declared types, and
several times with relative errors of a few units in the last place, up, down and random, added where an operator
rounds. What these evaluations disagree about entirely (a NaN in some of them, another integer) is decided by rounding,
not by ONNX.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, defs, helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.case import Case
from tests.fuzz.moved import beyond
from tests.fuzz.own_definitions import EXACTLY, OWN_SCALARS, Round
from tests.fuzz.own_folds import OWN_FOLDS
from tests.fuzz.own_quantized import OWN_QUANTIZED, dequantized_factors
from tests.fuzz.own_windows import OWN_WINDOWS
from tests.fuzz.sums import Terms
from tests.fuzz.zeros import free_zeros

Array = NDArray[Any]

OWN = {**OWN_SCALARS, **OWN_FOLDS, **OWN_QUANTIZED, **OWN_WINDOWS}
UNITS = 4.0
"""Sampled errors of a rounding, in halves of an epsilon."""
MARGIN = 2.0
"""How much larger limits are than the largest deviation of the samples."""
LAST_PLACES = 4.0
LARGE_ANGLE = 0.3
"""Errors of an angle above this make a sine, cosine or tangent undecided."""
LARGEST = {"Sin": 1.0, "Cos": 1.0, "Tan": np.inf}
UNDECIDED = (np.inf, -np.inf, np.nan, 0.0)
"""What stands for a value that rounding decides, each in an evaluation of its own: whatever an operator then makes of
them, such as whether each is NaN, some evaluations disagree about every element."""
MIXED = 10
"""Evaluations in which such values are of all these kinds, beside the one of each kind. Their errors are the largest,
up or down: with as few as two, of errors drawn between, an error of a sixteenth of theirs left the limits of one model
in twenty-five."""

EXACT = {
    "Abs", "And", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike",
    "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "ConvInteger", "DepthToSpace", "Dropout", "Equal",
    "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "Greater",
    "GreaterOrEqual", "Hardmax", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "MatMulInteger", "Max",
    "MaxPool", "Min", "Neg", "Not", "OneHot", "Or", "Pad", "QuantizeLinear", "Range", "ReduceMax", "ReduceMin",
    "Relu", "Reshape", "Resize", "Round", "Shape", "Sign", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Upsample", "Where", "Xor",
}  # fmt: skip
"""Operators that give what their operands are, or a rounding of it that is their meaning."""
ONCE = {
    "Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Mod", "Exp", "Log", "Sin", "Cos", "Tan", "Tanh", "Erf",
    "DequantizeLinear",
}  # fmt: skip
"""Operators that round once, whose operands are as they are; all others may round on the way."""
LAST_PRODUCT = {
    "Celu", "Div", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Mul", "PRelu", "Pow", "RMSNormalization", "Selu",
    "Swish",
}  # fmt: skip
"""Operators that may end in a product; a division by a power of two is one, too, and so is a square."""


@dataclass(frozen=True)
class Expected:
    """An output: its values (floats as float64), their limits, and which elements are decided by rounding."""

    value: Array
    limit: Array
    undecided: Array


def evaluate_node(
    node: NodeProto, opset: int, operands: Sequence[Array | None], rounding: Round = EXACTLY
) -> list[Array]:
    """A node's results, in the types of the operands. Raises what ONNX's reference evaluator raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        own = OWN.get(node.op_type)
        if own is not None:
            attributes = {**_defaults(node.op_type, opset), **_attributes(node.attribute)}
            results = own(opset, attributes, list(operands), rounding)[: len(node.output)]
            return [np.asarray(result) for result in results]
        evaluator = _evaluator(node.SerializeToString(), opset)
        given = {name: x for name, x in zip(node.input, operands, strict=True) if name and x is not None}
        return [np.asarray(result) for result in evaluator.run(None, given)]  # pyright: ignore


def _attributes(attributes: Iterable[AttributeProto]) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in attributes}


@cache
def _defaults(operator: str, opset: int) -> dict[str, Any]:
    """Those of an operator's attributes that ONNX's schema gives a default: floats are float32."""
    defaults = (a.default_value for a in defs.get_schema(operator, opset).attributes.values())
    return _attributes(default for default in defaults if default.type != AttributeProto.UNDEFINED)


@cache
def _evaluator(content: bytes, opset: int) -> ReferenceEvaluator:
    node = NodeProto.FromString(content)
    inputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(filter(None, node.input))]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def expected_outputs(case: Case) -> dict[str, Expected]:
    """What each output must be."""
    declared = _Run(case).values({})
    types = {name: array.dtype for name, array in declared.items()}
    exact = _Run(case, types).values({})
    undecided = beyond(case.nodes, exact, types, _Run(case).evaluate)
    samples = [_Run(case, types, noise, exact, undecided).values({}) for noise in _noises(case)]
    return {
        name: _judged(exact[name], types[name], [declared[name], *(s[name] for s in samples)]) for name in case.outputs
    }


@dataclass(frozen=True)
class _Noise:
    """The errors of one evaluation's roundings, from -1 to 1, and what stands for values that rounding decides; each
    takes a shape."""

    errors: Callable[[tuple[int, ...]], Array]
    undecided: Callable[[tuple[int, ...]], Array]

    def __call__(self, shape: tuple[int, ...]) -> Array:
        return self.errors(shape)


def _noises(case: Case) -> list[_Noise]:
    """All errors up, all down, of random size, and of random sign."""
    rng = np.random.default_rng(len(case.nodes))

    def drawn(shape: tuple[int, ...]) -> Array:
        return rng.uniform(-1, 1, shape)

    def signs(shape: tuple[int, ...]) -> Array:
        return rng.choice((-1.0, 1.0), shape)

    errors = [np.ones, lambda shape: -np.ones(shape), *[drawn] * (len(UNDECIDED) - 2)]
    alike = [_Noise(e, partial(np.full, fill_value=u)) for e, u in zip(errors, UNDECIDED, strict=True)]
    return [*alike, *[_Noise(signs, partial(rng.choice, UNDECIDED)) for _ in range(MIXED)]]


@dataclass
class _Run:
    """One evaluation: without `types` in the declared types, else in float64, with `noise` where operators round.

    exact: the values of the evaluation without noise
    undecided: elements of results whose scales and biases may move, so that they overflow on the way
    """

    case: Case
    types: Mapping[str, np.dtype[Any]] = field(default_factory=dict[str, np.dtype[Any]])
    noise: Any = None
    exact: Mapping[str, Array] = field(default_factory=dict[str, Array])
    undecided: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def values(self, env: dict[str, Array]) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        for name, array in (*self.case.inputs.items(), *self.case.constants.items()):
            env[name] = self._wide(array)
        for node in self.case.nodes:
            inner = self.noise is not None and node.op_type not in EXACT and node.op_type not in ONCE
            operands = [self._operand(env, name, inner) for name in node.input]
            results = evaluate_node(node, self.case.opset, operands, self._rounding(node, inner))
            for name, array in zip(node.output, results, strict=True):
                outputs[name] = env[name] = self._stored(array, name, node.op_type)
                if self.noise is not None:
                    outputs[name], env[name] = self._sampled(env[name], name, node, operands)
        return {**env, **outputs}

    def _rounding(self, node: NodeProto, inner: bool) -> Round:
        if not self.types:
            return _Native()
        return _Noisy(self._off, self.types[node.output[0]], self.noise) if inner else EXACTLY

    def _wide(self, array: Array) -> Array:
        return array.astype(np.float64) if self.types and array.dtype.kind == "f" else array

    def _operand(self, env: Mapping[str, Array], name: str, noisy: bool) -> Array | None:
        if not name:
            return None
        if not noisy or self.types[name].kind != "f":
            return env[name]
        array, dtype = env[name], self.types[name]
        # What is stored is finite or not, and 0 or not: an error makes it neither infinite nor 0.
        largest = float(np.finfo(dtype).max)
        moved = np.clip(self._off(array, dtype), -largest, largest)
        return np.where(np.isinf(array) | (moved == 0), array, moved)

    def _stored(self, array: Array, name: str, operator: str) -> Array:
        """A result as the tensor holds it: infinite where its type ends."""
        if not self.types or self.types[name].kind != "f":
            return array
        wide = array.astype(np.float64)
        if operator not in EXACT and self.noise is not None:
            wide = self._off(wide, self.types[name])
        with np.errstate(all="ignore"):
            narrow = wide.astype(self.types[name])
        if operator in ("Cast", "CastLike"):
            return narrow.astype(np.float64)
        return np.where(np.isinf(narrow), narrow.astype(np.float64), wide)

    def _sampled(
        self, values: Array, name: str, node: NodeProto, operands: Sequence[Array | None]
    ) -> tuple[Array, Array]:
        """A result with something else where that is possible: as the tensor holds it, and as what reads it sees it."""
        if self.types[name].kind == "f":
            values = self._passing_zero(values, self.exact[name])
        if node.op_type in LARGEST:
            values = self._any_phase(values, node, np.asarray(operands[0]))
        free = free_zeros(node, operands, values, self.evaluate)
        if free is not None:
            values = np.where(free, np.copysign(values, self.noise(values.shape)), values)
        if name in self.undecided:
            values = np.where(self.undecided[name], self.noise.undecided(values.shape), values)
        factors = _last_factors(node, operands)
        if factors and name == node.output[0]:
            return values, _unrounded(values, factors, self.types[name], self.noise)
        return values, values

    def evaluate(self, node: NodeProto, operands: Sequence[Array | None]) -> list[Array]:
        """A node's results for other operands."""
        return evaluate_node(node, self.case.opset, operands)

    def _passing_zero(self, values: Array, exact: Array) -> Array:
        """Zeros of both signs among the samples where errors change the sign: they are possible, and are not drawn."""
        with np.errstate(all="ignore"):
            passed = np.isfinite(values) & np.isfinite(exact) & (np.sign(values) * np.sign(exact) < 0)
        zeros = np.copysign(0.0, self.noise(values.shape))
        return np.where(passed & ~np.isnan(self.noise.undecided(values.shape)), zeros, values)

    def _any_phase(self, values: Array, node: NodeProto, angles: Array) -> Array:
        """The ends of the range among the samples where an angle's error is large: few would show what is possible."""
        with np.errstate(all="ignore"):
            is_any = np.isfinite(angles) & (np.abs(angles - self.exact[node.input[0]]) > LARGE_ANGLE)
        return np.where(is_any, np.copysign(LARGEST[node.op_type], self.noise(values.shape)), values)

    def _off(self, array: Array, dtype: np.dtype[Any]) -> Array:
        if dtype.kind != "f":
            return array
        info = np.finfo(dtype)
        with np.errstate(all="ignore"):
            error = UNITS * float(info.eps) / 2 * np.abs(array)
            error = np.where(array == 0, 0, error + np.where(error < info.tiny, float(info.smallest_subnormal), 0))
            moved = array + error * self.noise(array.shape)
        # -0 is not moved either: it would become 0.
        return np.where(np.isfinite(array) & (array != 0), moved, array)


class _Native(Round):
    native = True


class _Noisy(Round):
    """Adds sampled errors to each step, which is infinite where its type ends."""

    def __init__(self, off: Callable[[Array, np.dtype[Any]], Array], dtype: np.dtype[Any], noise: _Noise):
        self.off, self.dtype, self.noise = off, dtype, noise

    def at_least(self, dtype: Any) -> Round:
        return _Noisy(self.off, np.promote_types(self.dtype, dtype), self.noise)

    def __call__(self, x: Any) -> Any:
        if self.dtype.kind != "f":
            return x
        wide, end = np.asarray(x, np.float64), float(np.finfo(self.dtype).max)
        moved = self.off(wide, self.dtype)
        # No rounding makes a number infinite that is within the type; errors of what it was made of have moved it.
        moved = np.where(np.abs(wide) <= end, np.clip(moved, -end, end), moved)
        with np.errstate(all="ignore"):
            return np.where(np.isinf(moved.astype(self.dtype)), np.copysign(np.inf, moved), moved)

    def total(self, total: Any, terms: Callable[[], Terms], divisor: float = 1) -> Any:
        if self.dtype.kind != "f":
            return total
        wide, known = np.finfo(np.promote_types(self.dtype, np.float32)), terms()
        unit = known.roundings * float(wide.eps) / 2 / divisor if divisor else 0.0
        error = known.error(unit)
        # Each product is off by half the smallest number at most.
        error = error + np.ceil((known.positive + known.negative) / 2) * float(wide.smallest_subnormal)
        moved = self(total + self.noise(np.shape(total)) * error)
        # Such errors change the sign of no sum whose terms all have one.
        moved = np.where((known.negative == 0) & (total >= 0) & (known.positive > 0), np.abs(moved), moved)
        return self._overflown(moved, known if divisor == 1 else known.scaled(1), float(wide.max), divisor)

    def _overflown(self, total: Any, terms: Terms, end: float, divisor: float) -> Any:
        """A sum with something else where the order of additions decides that: infinite where some partial sums are;
        anything where some are above and others below the type."""
        above, below = terms.infinities(end)
        exact = self(terms.value / divisor) if divisor else total
        total = np.where((above | below) & ~np.isfinite(total), exact, total)
        drawn = self.noise.undecided(np.shape(total))
        one = np.where(np.isfinite(drawn) | (drawn < 0), total, np.where(above, np.inf, -np.inf))
        is_any = (above & below) | (above & (total < -end)) | (below & (total > end))
        # Factors have errors, too; with few samples all may be on one side.
        is_any = is_any | terms.ends_near(end, 4 * UNITS * float(np.finfo(self.dtype).eps))
        return np.where(is_any, drawn, np.where(above | below, one, total))

    def product(self, product: Any, largest: Any, least: Any) -> Any:
        if self.dtype.kind != "f":
            return product
        wide = np.finfo(np.promote_types(self.dtype, np.float32))
        return self.undecided(self(product), (largest > float(wide.max)) | (least < float(wide.tiny)))

    def zero(self, zero: Any) -> Any:
        return np.copysign(zero, self.noise(np.shape(zero)))

    def term(self, a: Any, b: Any) -> Any:
        return _unrounded(self(a * b), (a, b), self.dtype, self.noise)

    def pair(self, a: Any, b: Any) -> Any:
        total = self(a + b)
        if self.dtype.kind != "f":
            return total
        are_equal = np.abs(a - b) <= 2 * UNITS * float(np.finfo(self.dtype).eps) * np.abs(a)
        return np.where(are_equal, _unrounded(total, (a, b), self.dtype, self.noise), total)

    def undecided(self, values: Any, where: Any) -> Any:
        """What stands for values that rounding decides (see `UNDECIDED`) instead of some."""
        return np.where(where, self.noise.undecided(np.shape(values)), values)


def _last_factors(node: NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    """Operands that are factors of what a node ends in; none if that is no product. `x + x` is `2 * x` to compilers."""
    is_doubled = node.op_type in ("Add", "Sum") and len(node.input) == 2 and node.input[0] == node.input[1]
    if node.op_type in LAST_PRODUCT or is_doubled:
        return [x for x in operands if x is not None]
    if node.op_type == "DequantizeLinear":
        return dequantized_factors(_attributes(node.attribute), list(operands))
    if node.op_type == "LayerNormalization" and len(node.input) < 3:
        return [x for x in operands[1:] if x is not None]
    return []


def _unrounded(product: Array, factors: Sequence[Any], dtype: np.dtype[Any], noise: _Noise) -> Array:
    """A product as what adds to it sees it: where a fused multiply-add does not round it, it is neither infinite nor
    0."""
    if dtype.kind != "f":
        return product
    is_finite = np.logical_and.reduce([np.broadcast_to(np.isfinite(f), product.shape) for f in factors])
    is_zero = np.logical_or.reduce([np.broadcast_to(f == 0, product.shape) for f in factors])
    info, chosen = np.finfo(dtype), noise(product.shape) > 0
    too_large = is_finite & np.isinf(product) & chosen
    too_small = is_finite & ~is_zero & (product == 0) & ~chosen
    unrounded = np.where(too_large, np.copysign(float(info.max), product), product)
    return np.where(too_small, np.copysign(float(info.smallest_subnormal), product), unrounded)


def _judged(exact: Array, dtype: np.dtype[Any], samples: Sequence[Array]) -> Expected:
    samples = [np.broadcast_to(s, exact.shape) for s in samples]
    if dtype.kind != "f":
        undecided = np.zeros(exact.shape, np.bool_)
        for sample in samples:
            undecided = undecided | (sample != exact)
        return Expected(exact, np.zeros(exact.shape), undecided)
    info = np.finfo(dtype)
    value, spread = exact, np.zeros(exact.shape)
    undecided = np.zeros(exact.shape, np.bool_)
    for sample in samples:
        wide = sample.astype(np.float64)
        with np.errstate(all="ignore"):
            same = (np.isfinite(wide) & np.isfinite(value)) | (wide == value) | (np.isnan(wide) & np.isnan(value))
            apart = np.where(np.isfinite(wide) & np.isfinite(value), np.abs(wide - value), 0)
        undecided, spread = undecided | ~same, np.maximum(spread, apart)
    with np.errstate(all="ignore"):
        own = LAST_PLACES * float(info.eps) / 2 * np.abs(value) + float(info.smallest_subnormal)
        limit = np.where(np.isfinite(value), MARGIN * spread + own, 0)
        near_the_end = np.isfinite(value) & (np.abs(value) + limit > float(info.max)) & (limit > own)
    return Expected(value, limit, undecided | near_the_end)


__all__ = ["EXACT", "ONCE", "Expected", "evaluate_node", "expected_outputs"]
