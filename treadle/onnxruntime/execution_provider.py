"""Treadle as an execution provider of ONNX Runtime: a library that ONNX Runtime loads through its plug-in interface."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

from treadle.backends.c import static_library
from treadle.backends.c.compiler import Unit, build_library
from treadle.errors import TreadleError
from treadle.support.version import __version__

PROVIDER = "TreadleExecutionProvider"
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
    definitions = {
        "PYTHON": sys.executable,
        "PACKAGE_FOLDER": str(_HERE.parents[1]),
        "TREADLE_VERSION": __version__,
    }
    lines = [f"#define {name} {json.dumps(value)}" for name, value in definitions.items()]
    text = (_HERE / "provider" / _SOURCE).read_text()
    return build_library([Unit(_SOURCE, "\n".join([*lines, text]))], headers=headers)


def register(name: str = PROVIDER) -> Path:
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
    if PROVIDER in {device.ep_name for device in runtime.get_ep_devices()}:
        return library
    try:
        runtime.register_execution_provider_library(name, str(library))
    except Exception as error:  # classes of ONNX Runtime's own
        raise TreadleError(f"ONNX Runtime does not take the library: {error}", library, _NEEDED) from error
    return library
