"""Other runtimes for ONNX models on the CPU, where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from treadle.errors import TreadleError

Inputs = Mapping[str, NDArray[Any]]
Call = Callable[[], object]

_ERRORS_ONLY = 3


def installed_peers() -> dict[str, str]:
    """Names and versions of the peers that can be imported here."""
    found: dict[str, str] = {}
    for name in PEERS:
        try:
            if find_spec(name) is not None:
                found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def peer_call(name: str, model: Path, inputs: Inputs, threads: int, precision: str = "f32") -> Call:
    """A call of the model in a peer, with `threads` threads, which gives its outputs; TreadleError if it cannot load
    the model. Arithmetic is float32, or of a narrower type where `precision` names it and the peer has it."""
    try:
        return PEERS[name](model, inputs, threads, precision)
    except Exception as error:  # whatever a peer raises: their exceptions have no common type
        message = f"{name} cannot run the model: {' '.join(str(error).split())[:200]}"
        raise TreadleError(message, model, "another choice of --peers") from error


def _onnxruntime(model: Path, inputs: Inputs, threads: int, precision: str) -> Call:
    del precision  # it computes what the model says
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    given = dict(inputs)
    session.run(None, given)
    return lambda: session.run(None, given)


def _openvino(model: Path, inputs: Inputs, threads: int, precision: str) -> Call:
    runtime = importlib.import_module("openvino")
    core = runtime.Core()
    read = core.read_model(str(model))
    read.reshape({name: list(array.shape) for name, array in inputs.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    given = dict(inputs)
    request.infer(given)
    return lambda: request.infer(given)


PEERS: Mapping[str, Callable[[Path, Inputs, int, str], Call]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
"""By the name of the package: prepares a call."""

__all__ = ["PEERS", "installed_peers", "peer_call"]
