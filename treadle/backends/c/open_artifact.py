"""A cpu artifact made ready to run; where its library does not fit this machine, it is built anew from its C text."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from treadle.artifact import Artifact
from treadle.backends.buffers import TensorSpec
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.c.shared_library import load_library
from treadle.backends.c.toolchain import cpu_identity
from treadle.backends.interface import check_interface, manifest_interface
from treadle.errors import TreadleError
from treadle.manifest import WROTE_IT, Tensor
from treadle.store import digest
from treadle.weights import read_weights

LIBRARY = "model.so"


def machine_digest() -> str:
    """A digest of what a library compiled here may rely on."""
    return digest(cpu_identity())


def open_program(artifact: Artifact, threads: int | None, *, rebuild: bool = False) -> CpuProgram:
    """The artifact's program, its constants loaded and its threads started.

    The library is built anew from the artifact's C text if that is asked for, if it was compiled for another processor,
    and if this system cannot load it. TreadleError if that fails, if a file is missing or changed, and if the manifest
    does not fit the library.
    """
    manifest = artifact.manifest
    library = None if rebuild or manifest.machine != machine_digest() else _stored_library(artifact)
    if library is None:
        library = _rebuilt_library(artifact)
    specs = [_spec(tensor) for tensor in manifest.inputs], [_spec(tensor) for tensor in manifest.outputs]
    return CpuProgram(library, *specs, read_weights(artifact), manifest.arena_bytes, threads)


def _stored_library(artifact: Artifact) -> ctypes.CDLL | None:
    """The library as it was compiled; None if this system cannot load it, as when its C library is older."""
    image = artifact.read(LIBRARY)
    check_interface(image, manifest_interface(artifact.manifest), "the library", artifact.folder / LIBRARY)
    try:
        return load_library(image)
    except OSError:
        return None


def _rebuilt_library(artifact: Artifact) -> ctypes.CDLL:
    """A library made of the artifact's C text and its headers; its own library is not touched."""
    names = [name for name in sorted(artifact.manifest.files) if name.startswith("kernels/")]
    units = [Unit(Path(name).stem, artifact.read_text(name)) for name in names if name.endswith(".c")]
    headers = {Path(name).name: artifact.read_text(name) for name in names if name.endswith(".h")}
    if not units:
        raise TreadleError("the artifact has no C text to build its library from", artifact.folder, WROTE_IT)
    try:
        image = build_library(units, headers=headers).read_bytes()
        check_interface(image, manifest_interface(artifact.manifest), "the C text", artifact.folder / "kernels")
        return load_library(image)
    except OSError as error:
        message = f"the library that was built from the artifact's C text cannot be loaded: {error}"
        raise TreadleError(message, artifact.folder, "a C compiler for this machine (TREADLE_CC)") from error


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.shape, np.dtype(tensor.dtype))
