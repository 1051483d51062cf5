"""A cuda artifact made ready to run on the emulator: its printed kernels, in order, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from treadle.artifact import Manifest
from treadle.backends.buffers import BufferRef
from treadle.backends.cuda.driver import Shape3
from treadle.backends.cuda.emulator.emulator import Emulator
from treadle.backends.cuda.emulator.findings import Report
from treadle.backends.cuda.open_artifact import WEIGHTS
from treadle.errors import TreadleError
from treadle.knobs import available_cores, load_knobs

Array = np.ndarray[Any, Any]

LIMIT = 60.0
CHECKED_LIMIT = 600.0
"""Seconds that a kernel may take, without and with checks or counters."""

_ALIGNMENT = 256
_NEVER_WRITTEN = 0xFF
"""Fills scratch memory: NaN as a number, an index that lies outside of every buffer."""


@dataclass(frozen=True)
class _Argument:
    """A kernel's buffer: where it lies, and what the kernel takes it for."""

    buffer: BufferRef
    dtype: np.dtype[Any]
    elements: int


@dataclass(frozen=True)
class _Launch:
    emulator: Emulator
    kernel: str
    grid: Shape3
    block: Shape3
    arguments: tuple[_Argument, ...]
    dynamic_shared: int


class EmulatedModel:
    """An artifact's kernels, compiled for the emulator, and its constants.

    `checks` and `counters` are those of `Emulator`; `reports` has one report for each launch of the last run, in order.
    """

    def __init__(self, folder: Path, manifest: Manifest, checks: Sequence[str] = (), counters: bool = False):
        """Raises TreadleError where the manifest does not fit the folder, and what `Emulator` raises."""
        self.reports: tuple[Report, ...] = ()
        self._manifest = manifest
        weights = safetensors.load_file(folder / WEIGHTS) if manifest.constants else {}
        try:
            stored = [weights[t.name].view(t.dtype).reshape(t.shape) for t in manifest.constants]
            images = dict.fromkeys(str(entry["image"]) for entry in manifest.launches)
            texts = {image: (folder / image).with_suffix(".cu") for image in images}
            emulators = _compiled(texts, checks, counters)
            self._launches = [_launch(entry, emulators[entry["image"]]) for entry in manifest.launches]
        except (KeyError, TypeError, ValueError) as error:
            raise TreadleError(f"the manifest does not fit the folder: {error!r}", folder) from error
        self._constants = [_copied(constant) for constant in stored]
        self._arena = _allocated(manifest.arena_bytes)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The model's outputs for `arrays`, which must have the inputs' shapes and types, in order.

        Raises what `Emulator.launch` raises.
        """
        inputs = [_copied(array) for array in arrays]
        outputs = [
            _allocated(prod(tensor.shape) * np.dtype(tensor.dtype).itemsize).view(tensor.dtype).reshape(tensor.shape)
            for tensor in self._manifest.outputs
        ]
        memory = {"input": inputs, "output": outputs, "constant": self._constants}
        self._arena.fill(_NEVER_WRITTEN)
        reports: list[Report] = []
        for launch in self._launches:
            args = [self._array(argument, memory) for argument in launch.arguments]
            reports.append(
                launch.emulator.launch(launch.kernel, launch.grid, launch.block, args, launch.dynamic_shared)
            )
        self.reports = tuple(reports)
        return outputs

    def close(self) -> None:
        """Gives the memory back; the model cannot run afterwards."""
        self._launches, self._constants, self._arena = [], [], _allocated(0)

    def _array(self, argument: _Argument, memory: dict[str, list[Array]]) -> Array:
        """What the kernel is given: all of a tensor, or the part of the arena that is the kernel's."""
        kind, index = argument.buffer.kind, argument.buffer.index
        if kind != "arena":
            return memory[kind][index]
        return self._arena[index : index + argument.elements * argument.dtype.itemsize].view(argument.dtype)


def _compiled(texts: dict[str, Path], checks: Sequence[str], counters: bool) -> dict[str, Emulator]:
    """An emulator for each text, compiled on all cores."""
    knobs, limit = load_knobs(), CHECKED_LIMIT if checks or counters else LIMIT

    def compile_one(path: Path) -> Emulator:
        return Emulator(path.read_text(), checks, counters=counters, name=path.name, limit=limit, knobs=knobs)

    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(texts, pool.map(compile_one, texts.values()), strict=True))


def _launch(entry: Any, emulator: Emulator) -> _Launch:
    x, y, z = map(int, entry["grid"])
    threads_x, threads_y, threads_z = map(int, entry["block"])
    arguments = (
        _Argument(BufferRef(kind, int(index)), np.dtype(dtype), int(elements))
        for (kind, index), (dtype, elements) in zip(entry["buffers"], entry["types"], strict=True)
    )
    return _Launch(
        emulator=emulator,
        kernel=str(entry["kernel"]),
        grid=(x, y, z),
        block=(threads_x, threads_y, threads_z),
        arguments=tuple(arguments),
        dynamic_shared=int(entry["dynamic_shared"]),
    )


def _copied(array: Array) -> Array:
    """A copy that is aligned as device memory is: vector loads of an array that NumPy made may not be."""
    copy = _allocated(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _allocated(num_bytes: int) -> Array:
    """Bytes that begin at a multiple of 256, as device memory does."""
    raw = np.full(num_bytes + _ALIGNMENT, _NEVER_WRITTEN, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes]
