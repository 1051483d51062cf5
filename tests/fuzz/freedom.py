"""Where ONNX Runtime is no second opinion, and why: by operator, and where that matters by what the operator reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from tests.fuzz.case import Case
from tests.fuzz.shrink import all_values

Array = NDArray[Any]
Operands = Sequence[Array]
Applies = Callable[[Operands], bool]


@dataclass(frozen=True)
class Freedom:
    """Why ONNX Runtime may give something else; `applies` tells by a node's operands whether it may here."""

    reason: str
    applies: Applies = lambda _: True


def _any(test: Callable[[Array], Any]) -> Applies:
    """Whether an element of a float operand passes a test."""
    return lambda operands: any(bool(test(x).any()) for x in operands if x.dtype.kind == "f")


def _of_integers(operands: Operands) -> bool:
    return operands[0].dtype.kind in "iu"


def _beyond_integers(operands: Operands) -> bool:
    return _any(lambda x: ~(np.abs(x.astype(np.float64)) < 2.0**7))(operands)


def _beyond(terms: Callable[[Array], Array]) -> Applies:
    """Whether a sum of integers is none of their type, or of float64."""

    def applies(x: Operands) -> bool:
        return _of_integers(x) and bool(terms(x[0].astype(np.float64)).sum() > min(np.iinfo(x[0].dtype).max, 2**53))

    return applies


def _inexact_product(x: Operands) -> bool:
    """Whether one of the factors' products may be none of the type: then their order counts."""
    most = min(np.iinfo(x[0].dtype).max, 2**53) if _of_integers(x) else float(np.finfo(x[0].dtype).max)
    return bool(np.maximum(np.abs(x[0].astype(np.float64)), 1).prod() > most)


def _power_beyond(x: Operands) -> bool:
    base, exponent = (np.abs(operand.astype(np.float64)) for operand in x)
    return _of_integers(x) and bool((base**exponent > min(np.iinfo(x[0].dtype).max, 2**53)).any())


def _log_sum_differs(x: Operands) -> bool:
    """In opsets that ONNX Runtime has no kernel of its own for, ONNX's function is what it says: `log(sum(exp(x)))`."""
    if _of_integers(x):
        return True
    largest = float(np.finfo(x[0].dtype).max)
    return bool((~(np.exp(np.abs(x[0].astype(np.float64))) * x[0].size < largest)).any())


def _range_of_none(x: Operands) -> bool:
    """Whether a range is of zeros, or not of numbers."""
    low, high = x[0].min(initial=0), x[0].max(initial=0)
    return not 0 < high - low < np.inf


def _product_of_bytes(weights: int) -> Freedom:
    """Products of nothing are left as the memory was; where a processor has no sums of four, two products by signed
    bytes saturate at 16 bits. With a signed first factor unsigned weights are shifted by 128, and signed then."""

    def applies(x: Operands) -> bool:
        first, w = x[0].dtype.kind, x[weights].astype(np.int64)
        shifted = w - 128 if (first, x[weights].dtype.kind) == ("i", "u") else w
        largest = np.abs(shifted).max(initial=0) * 2 * 255
        return x[0].size == 0 or ("i" in (first, x[weights].dtype.kind) and bool(largest > np.iinfo(np.int16).max))

    return Freedom("products of nothing: anything; by signed bytes: sums of two saturate on some processors", applies)


_BY_FLOAT64 = "sums of integers by way of float64"
_APPROXIMATED = Freedom("approximates to an absolute error")
_NAN = Freedom("elements that are NaN", _any(np.isnan))
_LOWEST = Freedom("elements that are NaN, and -inf is the lowest number", _any(lambda x: ~(x > -np.inf)))
_CANCELS = Freedom("cancels: the mean of squares less the square of the mean")
_EMPTY = Freedom("reductions of nothing: a mean of 0, or another shape", lambda operands: operands[0].size == 0)
_OF_OPERATORS: Mapping[str, Freedom] = {
    **dict.fromkeys(("Erf", "Gelu", "Tanh", "Sigmoid", "Mish", "Swish", "Sin", "Cos"), _APPROXIMATED),
    **dict.fromkeys(("ArgMax", "ArgMin", "Max", "Min", "ReduceMax", "ReduceMin"), _NAN),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool"), _LOWEST),
    **dict.fromkeys(("Sign", "Relu"), _NAN),
    **dict.fromkeys(("Softmax", "LogSoftmax"), Freedom("infinite elements and NaN", _any(lambda x: ~np.isfinite(x)))),
    "ReduceLogSumExp": Freedom("elements that are NaN, integers, exp(x) beyond the type", _log_sum_differs),
    **dict.fromkeys(("ReduceL2", "ReduceLogSum"), Freedom("functions of integers, step by step", _of_integers)),
    "ReduceProd": Freedom("integers by way of float64; products in another order", _inexact_product),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceL1"), Freedom(_BY_FLOAT64, _beyond(np.abs))),
    "ReduceSumSquare": Freedom(_BY_FLOAT64, _beyond(np.square)),
    "Pow": Freedom("powers of integers by way of float64", _power_beyond),
    "HardSwish": Freedom("constants of float32", lambda x: x[0].dtype == np.float64),
    "Shrink": Freedom("by way of float32; of integers at each step", lambda x: x[0].dtype != np.float32),
    "Softplus": Freedom("exp(x) beyond the type", _any(lambda x: np.isinf(np.exp(x)))),
    "LRN": Freedom("cancels: adds and subtracts the squares of a window that moves"),
    "Clip": Freedom("bounds that are left out: the ends of the type", _any(lambda x: ~np.isfinite(x))),
    **dict.fromkeys(("MeanVarianceNormalization", "LayerNormalization", "GroupNormalization"), _CANCELS),
    **dict.fromkeys(("Cast", "CastLike"), Freedom("floats beyond the integers of a type", _beyond_integers)),
    "MatMul": Freedom("products of nothing: another batch", lambda operands: any(x.size == 0 for x in operands)),
    "Gemm": Freedom("products of nothing: no beta", lambda operands: any(x.size == 0 for x in operands)),
    "Conv": Freedom("multiplies by the zeros of its padding and of its layouts", _any(lambda x: ~np.isfinite(x))),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), Freedom("cancels: x * a + (b - mean * a)")),
    "Where": Freedom("-0: adds 0 for what is not chosen", _any(lambda x: (x == 0) & np.signbit(x))),
    "QuantizeLinear": _NAN,
    "DynamicQuantizeLinear": Freedom("ranges of zeros and of what is not finite", _range_of_none),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), _product_of_bytes(1)),
    **dict.fromkeys(("QLinearMatMul", "QLinearConv"), _product_of_bytes(3)),
    "Gather": Freedom("rejects indices out of range"),
}


def _freedoms(operator: str) -> list[Freedom]:
    """In what ONNX Runtime may differ from the definition of an operator."""
    found = [_OF_OPERATORS[operator]] if operator in _OF_OPERATORS else []
    return [*found, _EMPTY] if operator.startswith("Reduce") else found


def runtime_differs(case: Case, output: str) -> str | None:
    """Why ONNX Runtime's value of an output may be another one; None if it may not."""
    values = all_values(case)
    assert values is not None
    needed = {output}
    for node in reversed(case.nodes):
        if needed.isdisjoint(node.output):
            continue
        needed.update(node.input)
        operands = [values[name] for name in node.input if name]
        with np.errstate(all="ignore"):
            reasons = [freedom.reason for freedom in _freedoms(node.op_type) if freedom.applies(operands)]
        if any(values[name].dtype == np.float16 and np.isinf(values[name]).any() for name in node.output):
            reasons.append("is float32 between operators where float16 is infinite")
        if _casts_below_zero(node, values):
            reasons.append("negative floats as unsigned integers")
        if reasons:
            return f"{node.op_type}: {reasons[0]}"
    return None


def _casts_below_zero(node: NodeProto, values: Mapping[str, Array]) -> bool:
    if node.op_type not in ("Cast", "CastLike") or values[node.output[0]].dtype.kind != "u":
        return False
    x = values[node.input[0]]
    return x.dtype.kind == "f" and bool((x <= -1).any())


__all__ = ["runtime_differs"]
