"""ONNX Runtime as a second opinion, where it has one: in a process of its own, which some models stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.fuzz.case import Case

Array = NDArray[Any]

_ERRORS = 4


def runtime_outputs(case: Case) -> dict[str, Array] | str:
    """The outputs, or why there are none."""
    try:
        return _process().submit(_run, case.content(), list(case.outputs), dict(case.inputs)).result()
    except BrokenProcessPool:
        _process.cache_clear()
        return "stops the process, as where an integer is divided by 0"


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def _run(model: bytes, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array] | str:
    """In the other process: no fusion, so that operators are what they are called."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        results = session.run(outputs, inputs)
    except Exception as error:  # its exceptions have no common base but this
        return f"does not run it: {str(error).splitlines()[0]}"
    return {name: np.asarray(array) for name, array in zip(outputs, results, strict=True)}


__all__ = ["runtime_outputs"]
