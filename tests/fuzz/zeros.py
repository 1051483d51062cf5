"""Zeros whose sign ONNX leaves free.

It says nothing of which zero an extremum of 0 and -0 is, and IEEE 754-2008 (5.3.1) leaves it free, too. The sign of -0
is 0, but not which. Celu of -0 is 0 by `exp(x) - 1`, and may be -0 where that is computed as one function.
Everything else has the sign that IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.own_definitions import Array

Operands = Sequence[Array | None]
Evaluate = Callable[[NodeProto, Operands], "Sequence[Array]"]

EXTREMA = ("Max", "Min", "Clip", "Relu", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
OF_NEGATIVE_ZERO = ("Celu", "Sign")
"""Operators that give a zero of either sign for -0."""


def free_zeros(node: NodeProto, operands: Operands, result: Array, evaluate: Evaluate) -> Array | None:
    """Which elements of a node's first result are zeros of either sign; None if there is none.

    evaluate: gives a node's results for other operands
    """
    if result.dtype.kind != "f" or node.op_type not in (*EXTREMA, *OF_NEGATIVE_ZERO):
        return None
    negative = [_negative_zeros(x) for x in operands if x is not None]
    if not any(x.any() for x in negative):
        return None
    if node.op_type in OF_NEGATIVE_ZERO:
        return negative[0]
    if node.op_type == "Relu":
        node = helper.make_node("Max", [*node.input, "zero"], list(node.output))
        operands = [*operands, np.zeros((), result.dtype)]
    # With numbers in place of the zeros, greater and less ones by their signs, then the other way around, one zero is
    # found twice, and of two the one that has the same sign in place both times.
    first, second = (evaluate(node, [_replaced(x, by) for x in operands])[0] for by in (_LEAST, -_LEAST))
    return np.asarray((result == 0) & (first == second))


_LEAST = float(np.finfo(np.float64).smallest_subnormal)


def _negative_zeros(x: Array) -> Array:
    return (x == 0) & np.signbit(x) if x.dtype.kind == "f" else np.zeros(x.shape, np.bool_)


def _replaced(x: Array | None, by: float) -> Array | None:
    """An operand with a number that has the sign of `by` for 0, and the other sign for -0."""
    if x is None or x.dtype.kind != "f":
        return x
    return np.where(x == 0, by * np.copysign(1.0, x), x)


__all__ = ["free_zeros"]
