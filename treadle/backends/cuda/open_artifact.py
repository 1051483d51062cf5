"""A cuda artifact made ready to run on the GPU at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from treadle.artifact import Manifest, Tensor
from treadle.backends.buffers import BufferRef, TensorSpec
from treadle.backends.cuda.driver import Driver, PycudaDriver
from treadle.backends.cuda.executor import CudaProgram, Launch
from treadle.errors import TreadleError

WEIGHTS = "weights.safetensors"


def open_program(folder: Path, manifest: Manifest, driver: Driver | None = None) -> CudaProgram:
    """The artifact's program on a device (default: the first GPU), its constants uploaded, its kernels loaded.

    TreadleError if there is no GPU, or the manifest's launches do not fit the folder.
    """
    weights = safetensors.load_file(folder / WEIGHTS) if manifest.constants else {}
    try:
        images = {name: (folder / name).read_bytes() for name in manifest.files if name.endswith(".cubin")}
        launches = [_launch(entry, images) for entry in manifest.launches]
        constants = [weights[t.name].view(t.dtype).reshape(t.shape) for t in manifest.constants]
    except (KeyError, TypeError, ValueError) as error:
        raise TreadleError(f"the manifest does not fit the folder: {error!r}", folder) from error
    inputs, outputs = ([_spec(tensor) for tensor in each] for each in (manifest.inputs, manifest.outputs))
    device = PycudaDriver() if driver is None else driver
    return CudaProgram(device, launches, inputs, outputs, constants, manifest.arena_bytes, manifest.zeroed_bytes)


def _launch(entry: Mapping[str, Any], images: Mapping[str, bytes]) -> Launch:
    x, y, z = map(int, entry["grid"])
    threads_x, threads_y, threads_z = map(int, entry["block"])
    return Launch(
        kernel=str(entry["kernel"]),
        image=images[entry["image"]],
        grid=(x, y, z),
        block=(threads_x, threads_y, threads_z),
        buffers=tuple(BufferRef(kind, int(index)) for kind, index in entry["buffers"]),
        dynamic_shared=int(entry["dynamic_shared"]),
    )


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.shape, np.dtype(tensor.dtype))
