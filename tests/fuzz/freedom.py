"""What is not compared, and why: what Treadle refuses, and where ONNX Runtime is no second opinion."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.fuzz.case import Case

REFUSED: Mapping[re.Pattern[str], str] = {
    re.compile(pattern): reason
    for pattern, reason in {
        r"(sqrt|log|exp) is not defined on i": "functions of integers, which ONNX allows in reductions",
        r"mean of i\d+: floats are needed": "means of integers, which ONNX allows",
    }.items()
}

_APPROXIMATED = "approximates to an absolute error"
_NAN = "elements that are NaN"
RUNTIME: Mapping[str, str] = {
    **dict.fromkeys(("Erf", "Gelu", "Tanh", "Sigmoid", "Mish", "Swish", "Sin", "Cos"), _APPROXIMATED),
    **dict.fromkeys(
        (
            "ArgMax",
            "ArgMin",
            "Max",
            "Min",
            "Clip",
            "MaxPool",
            "ReduceMax",
            "ReduceMin",
            "Sign",
            "Relu",
            "ReduceLogSumExp",
            "GlobalMaxPool",
        ),
        _NAN,
    ),
    "Cast": "floats beyond the integers of a type",
    "Conv": "multiplies infinite weights by its padding",
    "InstanceNormalization": "cancels: x * a + (b - mean * a)",
    "MeanVarianceNormalization": "cancels: the mean of squares less the square of the mean",
    "LayerNormalization": "cancels: the mean of squares less the square of the mean",
    "Gather": "rejects indices out of range",
}
"""Operators by which ONNX Runtime may differ from the definition."""


def runtime_differs(case: Case, output: str) -> str | None:
    """Why ONNX Runtime's value of an output may be another one; None if it may not."""
    needed, reasons = {output}, list[str]()
    for node in reversed(case.nodes):
        if needed.isdisjoint(node.output):
            continue
        needed.update(node.input)
        if node.op_type in RUNTIME:
            reasons.append(f"{node.op_type}: {RUNTIME[node.op_type]}")
    return reasons[0] if reasons else None


__all__ = ["REFUSED", "RUNTIME", "runtime_differs"]
