"""ONNX Runtime's interface: a program that uses it changes one line, and runs what Treadle compiles.

```python
import treadle.onnxruntime as ort  # was: import onnxruntime as ort

session = ort.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
```
ONNX Runtime itself is not needed. `docs/onnxruntime.md` says what is the same, and what is not.
"""

from treadle.onnxruntime.execution_provider import provider_library, register
from treadle.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    Fail,
    GraphOptimizationLevel,
    InvalidArgument,
    InvalidProtobuf,
    ModelMetadata,
    NodeArg,
    NoSuchFile,
    RunOptions,
    SessionOptions,
    Unsupported,
)
from treadle.onnxruntime.session import CUDA, InferenceSession, get_available_providers
from treadle.support.version import __version__


def get_device() -> str:
    """What the first available provider runs on: `CPU`, or `GPU`."""
    return "GPU" if CUDA in get_available_providers() else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Accepted, and without effect: nothing is logged."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted, and without effect: nothing is logged."""


def set_seed(seed: int) -> None:
    """Accepted, and without effect."""


__all__ = [
    "ExecutionMode", "ExecutionOrder", "Fail", "GraphOptimizationLevel", "InferenceSession", "InvalidArgument",
    "InvalidProtobuf", "ModelMetadata", "NoSuchFile", "NodeArg", "RunOptions", "SessionOptions", "Unsupported",
    "__version__", "get_available_providers", "get_device", "provider_library", "register",
    "set_default_logger_severity", "set_default_logger_verbosity", "set_seed",
]  # fmt: skip
