"""ONNX Runtime's interface: a program that uses it changes one line, and runs what Treadle compiles.

```python
import treadle.onnxruntime as ort  # was: import onnxruntime as ort

session = ort.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
```
ONNX Runtime itself is not needed. `docs/onnxruntime.md` says what is the same, and what is not. `register` is the other
way: Treadle as an execution provider of ONNX Runtime itself, which loads a library of C (docs/adr/0088).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

from treadle.backends.c import static_library
from treadle.backends.c.compiler import Unit, build_library
from treadle.errors import TreadleError
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

_PROVIDER = "TreadleExecutionProvider"
_HERE = Path(__file__).parent
_OLDEST = (1, 24)
"""The version of ONNX Runtime whose interface `provider/ort_api.h` has."""
_NEEDED = "onnxruntime 1.24 or newer (pip install onnxruntime)"
_SOURCE = "provider.c"


def provider_library() -> Path:
    """The path of the provider's library, which is compiled if the cache does not have it.

    Programs in C and C++ give it to `RegisterExecutionProviderLibrary`. It starts this Python as the compiler.
    TreadleError if there is no C compiler, and on other systems than Linux.
    """
    if sys.platform != "linux":
        raise TreadleError(f"no execution provider on {sys.platform}", "provider_library", "Linux")
    headers = {path.name: path.read_text() for path in sorted((_HERE / "provider").glob("*.h"))}
    headers["sha256.h"] = (Path(static_library.__file__).parent / "library" / "sha256.h").read_text()
    if not sys.executable:
        raise TreadleError("this Python does not know its interpreter", "provider_library", "a program of Python's own")
    words = {"PYTHON": sys.executable, "PACKAGE_FOLDER": str(_HERE.parents[1]), "TREADLE_VERSION": __version__}
    octal = {name: "".join(f"\\{byte:03o}" for byte in os.fsencode(word)) for name, word in words.items()}
    lines = [f'#define {name} "{word}"' for name, word in octal.items()]
    text = (_HERE / "provider" / _SOURCE).read_text()
    return build_library([Unit(_SOURCE, "\n".join([*lines, text]))], headers=headers)


def register(name: str = _PROVIDER) -> Path:
    """Makes ONNX Runtime know the provider; the path of its library. A second call does nothing.

    ```python
    import onnxruntime
    import treadle.onnxruntime

    treadle.onnxruntime.register()
    session = onnxruntime.InferenceSession("model.onnx", providers=["TreadleExecutionProvider", "CPUExecutionProvider"])
    ```
    name: under which ONNX Runtime has the library, for `onnxruntime.unregister_execution_provider_library`

    TreadleError: ONNX Runtime is not installed, or older than 1.24, or does not take the library; no C compiler.
    """
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise TreadleError("ONNX Runtime is not installed", "register", _NEEDED) from error
    version = str(runtime.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        raise TreadleError(f"ONNX Runtime is {version}", "register", _NEEDED)
    library = provider_library()
    if _PROVIDER in {device.ep_name for device in runtime.get_ep_devices()}:
        return library
    try:
        runtime.register_execution_provider_library(name, str(library))
    except Exception as error:  # classes of ONNX Runtime's own
        raise TreadleError(f"ONNX Runtime does not take the library: {error}", library, _NEEDED) from error
    return library


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
