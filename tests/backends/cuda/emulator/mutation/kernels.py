"""Kernels with shared memory: those of the test models, as they are printed for a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import treadle
from treadle.artifact.manifest import KernelLaunch
from treadle.backends.cuda.emulator.build import kernels

Extents = tuple[int, ...]

_COMMENT = re.compile(r"//.*")

_INTERFACE = '\nextern "C" {'
"""Begins what stands behind a kernel in an artifact: what its launch is, as a text of its own."""


@dataclass(frozen=True)
class SharedKernel:
    """A kernel's text, its launch, and of each of its buffers the number of elements and the NumPy dtype's name.

    zeroed: the numbers of the buffers that are zero before and behind every launch
    """

    origin: str
    name: str
    text: str
    grid: Extents
    block: Extents
    shared_bytes: int
    buffers: tuple[tuple[int, str], ...]
    zeroed: tuple[int, ...] = ()

    @property
    def family(self) -> str:
        """What the kernel computes, and how it fills shared memory."""
        if "by reduction" in self.text:
            return "tree reduction"
        staged = ", asynchronous copies" if "treadle_cp_async_" in self.text else ""
        return f"tensor-core product{staged}" if "treadle_mma_" in self.text else f"matrix product{staged}"

    @property
    def key(self) -> str:
        """The text without names that come from the model, and without comments."""
        signature = kernels(self.text)[self.name]
        text = _COMMENT.sub("", self.text).replace(self.name, "kernel")
        for index, parameter in enumerate(signature.parameters):
            text = re.sub(rf"\b{parameter}\b", f"buffer {index}", text)
        return text

    @property
    def work(self) -> int:
        """Threads of the launch: what emulating it takes, roughly."""
        return prod(self.grid) * prod(self.block)


def kernels_of(origin: str, path: Path, shapes: Mapping[str, Sequence[int]]) -> list[SharedKernel]:
    """The kernels of a model that use shared memory, printed for sm_80; the artifact may come from the run's cache."""
    model = treadle.compile(path, "sm_80", shapes, device="emulator")
    launches = {launch.kernel: launch for launch in model.manifest.launches}
    made = (_kernel(origin, launch, model.folder) for launch in launches.values())
    return [kernel for kernel in made if "__shared__" in kernel.text]


def distinct(found: Iterable[SharedKernel], key: Callable[[SharedKernel], Hashable]) -> list[SharedKernel]:
    """Of the kernels with one key the one that is cheapest to emulate."""
    chosen: dict[Hashable, SharedKernel] = {}
    for kernel in found:
        known = chosen.setdefault(key(kernel), kernel)
        if kernel.work < known.work:
            chosen[key(kernel)] = kernel
    return list(chosen.values())


def _kernel(origin: str, launch: KernelLaunch, folder: Path) -> SharedKernel:
    text = (folder / launch.image).with_suffix(".cu").read_text()
    return SharedKernel(
        origin=origin,
        name=launch.kernel,
        text=text.partition(_INTERFACE)[0],
        grid=launch.grid,
        block=launch.block,
        shared_bytes=launch.dynamic_shared,
        buffers=tuple((size, dtype) for dtype, size in launch.types),
        zeroed=tuple(n for n, (kind, _) in enumerate(launch.buffers) if kind == "zeroed"),
    )
