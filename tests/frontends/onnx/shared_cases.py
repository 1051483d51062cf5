"""ONNX's own node tests, whose expectations one process of a run computes and the others read.

Every process of pytest-xdist imports every test file. ONNX computes its expectations when it is imported, 10 s of a
core (onnx 1.23, three quarters of them its poolings in 3 dimensions).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from treadle.environment import load_environment
from treadle.frontends.onnx.tensor_data import DTYPES

Stored = tuple[str, float, float, bytes, list[tuple[list[bytes], list[bytes]]]]
"""A case's name, tolerances and model, and the tensors of its data sets."""


def node_cases(has_data: Callable[[ModelProto], bool]) -> list[TestCase]:
    """Every node test; data sets only of the models that `has_data` chooses, all of whose values are tensors."""
    folder = load_environment().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "node-cases.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / f"node-cases-{onnx.__version__}-{len(DTYPES)}"  # what has data depends on the types
        if not path.exists():
            _write(path, [_stored(case, has_data) for case in _computed()])
    return [_read(stored) for stored in marshal.loads(path.read_bytes())]


def _write(path: Path, cases: list[Stored]) -> None:
    made = path.with_suffix(f".{os.getpid()}")
    made.write_bytes(marshal.dumps(cases))
    made.rename(path)


def _computed() -> list[TestCase]:
    # The suite computes its own expectations, some of them with overflows.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests  # noqa: PLC0415  importing it computes

        return load_model_tests(kind="node")


def _stored(case: TestCase, has_data: Callable[[ModelProto], bool]) -> Stored:
    assert case.model is not None and case.data_sets is not None
    data = case.data_sets if has_data(case.model) else []
    sets = [(_tensors(inputs), _tensors(outputs)) for inputs, outputs in data]
    return case.name, case.rtol, case.atol, case.model.SerializeToString(), sets


def _tensors(values: Sequence[Any]) -> list[bytes]:
    tensors = (v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v)) for v in values)
    return [tensor.SerializeToString() for tensor in tensors]


def _read(stored: Stored) -> TestCase:
    name, rtol, atol, model, sets = stored
    data = [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in sets]
    return TestCase(name, name, None, None, ModelProto.FromString(model), data, "node", rtol, atol)


def _arrays(tensors: Sequence[bytes]) -> list[np.ndarray[Any, Any]]:
    return [numpy_helper.to_array(TensorProto.FromString(tensor)) for tensor in tensors]


__all__ = ["node_cases"]
