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
    return runtime_calls(case.content(), case.outputs, [case.inputs])[0]


def runtime_calls(
    model: bytes, outputs: Sequence[str], calls: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array] | str]:
    """The outputs of each call of a model, by the inputs, or why there are none."""
    try:
        return _process().submit(_run, model, list(outputs), [dict(call) for call in calls]).result()
    except BrokenProcessPool:
        _process.cache_clear()
        return ["stops the process, as where an integer is divided by 0"] * len(calls)


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def _run(model: bytes, outputs: Sequence[str], calls: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | str]:
    """In the other process: no fusion, so that operators are what they are called."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but this
        return [_refusal(error)] * len(calls)
    return [_called(session, outputs, inputs) for inputs in calls]


def _called(session: Any, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array] | str:
    try:
        results = session.run(outputs, inputs)
    except Exception as error:
        return _refusal(error)
    return {name: np.asarray(array) for name, array in zip(outputs, results, strict=True)}


def _refusal(error: Exception) -> str:
    return f"does not run it: {str(error).splitlines()[0]}"


__all__ = ["runtime_calls", "runtime_outputs"]
