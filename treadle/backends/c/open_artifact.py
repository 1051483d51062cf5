"""A cpu artifact made ready to run; its library is built anew from its C text on a machine of another kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import numpy as safetensors

from treadle.artifact import Manifest, Tensor
from treadle.backends.buffers import TensorSpec
from treadle.backends.c.cache import digest
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.c.toolchain import cpu_identity
from treadle.errors import TreadleError

LIBRARY = "model.so"
WEIGHTS = "weights.safetensors"
_RUNTIME = ("pool.c",)
"""What build_library adds by itself."""


def machine_digest() -> str:
    """A digest of what a library compiled here may rely on."""
    return digest(cpu_identity())


def open_program(folder: Path, manifest: Manifest, threads: int | None) -> CpuProgram:
    """The artifact's program, its constants loaded and its threads started.

    TreadleError if the library cannot be loaded or rebuilt, or a constant is missing.
    """
    weights = safetensors.load_file(folder / WEIGHTS) if manifest.constants else {}
    constants = [_constant(weights, tensor, folder) for tensor in manifest.constants]
    specs = [_spec(tensor) for tensor in manifest.inputs], [_spec(tensor) for tensor in manifest.outputs]
    return CpuProgram(_library(folder, manifest), *specs, constants, manifest.arena_bytes, threads)


def _library(folder: Path, manifest: Manifest) -> Path:
    """The stored library, or one built from the stored text if that was compiled for another processor."""
    if manifest.machine == machine_digest() and LIBRARY in manifest.files:
        return folder / LIBRARY
    names = [name for name in manifest.files if name.startswith("kernels/") and name.endswith(".c")]
    paths = [folder / name for name in sorted(names) if Path(name).name not in _RUNTIME]
    if not paths:
        raise TreadleError("the artifact holds neither a library for this processor nor C text", folder)
    return build_library([Unit(path.stem, path.read_text()) for path in paths])


def _constant(weights: dict[str, np.ndarray], tensor: Tensor, folder: Path) -> np.ndarray:
    array = weights.get(tensor.name)
    if array is None or array.nbytes != np.dtype(tensor.dtype).itemsize * int(np.prod(tensor.shape, dtype=np.int64)):
        raise TreadleError(f"constant {tensor} is missing or has another size", folder / WEIGHTS)
    return array.view(tensor.dtype).reshape(tensor.shape)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.shape, np.dtype(tensor.dtype))
