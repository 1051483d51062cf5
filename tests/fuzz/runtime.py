"""ONNX Runtime as a second opinion, where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.fuzz.case import Case

Array = NDArray[Any]

_ERRORS = 4
_DIVIDING = frozenset({"Div", "Mod"})


def runtime_outputs(case: Case) -> dict[str, Array] | str:
    """The outputs, or why there are none; no fusion, so that operators are what they are called."""
    if any(node.op_type in _DIVIDING for node in case.nodes) and _divides_integers(case):
        return "stops the process where an integer is divided by 0"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(case.content(), options, providers=["CPUExecutionProvider"])
        results = session.run(list(case.outputs), dict(case.inputs))
    except Exception as error:  # its exceptions have no common base but this
        return f"does not run it: {str(error).splitlines()[0]}"
    return {name: np.asarray(array) for name, array in zip(case.outputs, results, strict=True)}


def _divides_integers(case: Case) -> bool:
    arrays: Mapping[str, Array] = {**case.inputs, **case.constants}
    return any(array.dtype.kind == "i" for array in arrays.values())


__all__ = ["runtime_outputs"]
