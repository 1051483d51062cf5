"""Opens a cpu artifact; if its library does not run on this machine, it is compiled again from the C text."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import WROTE_IT, Tensor
from treadle.artifact.weights import read_weights
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import CpuProgram, ThreadPool
from treadle.backends.call_lock import CallLock
from treadle.backends.interface import TensorSpec, check_interface, manifest_interface
from treadle.errors import TreadleError
from treadle.target.host import lacks

# Loading a shared library from bytes in memory, so that the bytes that were checked are the ones that run.

_loaded: dict[str, ctypes.CDLL] = {}
_loading = CallLock("load_library")


def load_library(image: bytes) -> ctypes.CDLL:
    """The library with these bytes; equal ones are loaded once a process, and stay. OSError if it cannot be loaded."""
    key = hashlib.sha256(image).hexdigest()

    def load() -> ctypes.CDLL:
        if key not in _loaded:
            _loaded[key] = _from_memory(image, len(_loaded)) if _has_memory_files() else _from_folder(image)
        return _loaded[key]

    return _loading.call(load)


def _has_memory_files() -> bool:
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _from_memory(image: bytes, number: int) -> ctypes.CDLL:
    """An anonymous file cannot be changed by other processes, and needs no folder from which programs may be
    executed."""
    descriptor = os.memfd_create("treadle-model", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(image)
        return ctypes.CDLL(f"/proc/self/fd{_separator(number)}{descriptor}")
    finally:
        os.close(descriptor)


def _separator(number: int) -> str:
    """A spelling of "/" for each number: the loader would take a path that it has seen for the library that it found
    there."""
    return "/" + "".join("./" if digit == "1" else "/" for digit in f"{number:b}")


def _from_folder(image: bytes) -> ctypes.CDLL:
    """A private copy, which may go as soon as it is mapped."""
    with TemporaryDirectory(prefix="treadle-") as folder:
        path = Path(folder) / "model.so"
        path.write_bytes(image)
        return ctypes.CDLL(str(path))


LIBRARY = "model.so"
TEXT_FOLDER = "kernels/"


def open_program(artifact: Artifact, threads: int | ThreadPool | None, *, rebuild: bool = False) -> CpuProgram:
    """The artifact's program, its constants loaded and its threads started, unless a pool has them.

    The library is compiled again from the artifact's C text on request, if this processor lacks instructions that it
    needs, and if this system cannot load it. TreadleError if that fails, if a file is missing or changed, and if the
    manifest does not fit the library.
    """
    manifest = artifact.manifest
    missing = lacks(manifest.machine)
    library = None if rebuild or missing else _stored_library(artifact)
    if library is None:
        library = _rebuilt_library(artifact) if rebuild or not missing else _library_for_here(artifact, missing)
    specs = [_spec(tensor) for tensor in manifest.inputs], [_spec(tensor) for tensor in manifest.outputs]
    return CpuProgram(library, *specs, read_weights(artifact), manifest.arena_bytes, threads, states=manifest.states)


def _stored_library(artifact: Artifact) -> ctypes.CDLL | None:
    """The library as it was compiled; None if this system cannot load it, as when its C library is older."""
    image = artifact.read(LIBRARY)
    check_interface(image, manifest_interface(artifact.manifest), "the library", artifact.folder / LIBRARY)
    try:
        return load_library(image)
    except OSError:
        return None


def _library_for_here(artifact: Artifact, missing: Sequence[str]) -> ctypes.CDLL:
    """A library compiled for this processor, which lacks instructions that the artifact's library needs."""
    try:
        return _rebuilt_library(artifact)
    except TreadleError as error:
        words = f"the library needs {', '.join(missing)}, which this machine lacks, and cannot be built anew"
        accepted = "a C compiler for load(..., rebuild=True), or an artifact for this processor"
        raise TreadleError(f"{words}: {error.message}", artifact.folder, accepted) from error


def artifact_text(artifact: Artifact) -> tuple[dict[str, str], dict[str, str]]:
    """The C text of an artifact, by its path without `.c`, and its headers, by their paths, in the text's folder."""
    names = [name for name in sorted(artifact.manifest.files) if name.startswith(TEXT_FOLDER)]
    texts = {name.removeprefix(TEXT_FOLDER): artifact.read_text(name) for name in names}
    sources = {name.removesuffix(".c"): text for name, text in texts.items() if name.endswith(".c")}
    return sources, {name: text for name, text in texts.items() if name.endswith(".h")}


def _rebuilt_library(artifact: Artifact) -> ctypes.CDLL:
    """A library made of the artifact's C text and its headers; its own library is not touched."""
    sources, headers = artifact_text(artifact)
    units = [Unit(name, text) for name, text in sources.items()]
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
    return TensorSpec(tensor.name, tensor.shape, np.dtype(tensor.dtype), tensor.dense)
