"""Kernels with shared memory: those of the test models, as they are printed for a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from xdsl.dialects.builtin import MemRefType

from treadle.backends.cuda.emulator.signature import kernels
from treadle.backends.cuda.printer import print_kernel
from treadle.backends.program import read_program
from treadle.compile_request import CompileRequest, lowered_module
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.target import Target

Extents = tuple[int, ...]

_COMMENT = re.compile(r"//.*")


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
    """The kernels of a model that use shared memory, printed for sm_80."""
    module = lowered_module(CompileRequest(path, Target.parse("sm_80"), shapes))
    zeroed = {
        launch.kernel: tuple(n for n, buffer in enumerate(launch.buffers) if buffer.kind == "zeroed")
        for launch in read_program(module).launches
    }
    made = (_kernel(origin, op, zeroed[op.sym_name.data]) for op in module.walk() if isinstance(op, KernelOp))
    return [kernel for kernel in made if "__shared__" in kernel.text]


def distinct(found: Iterable[SharedKernel], key: Callable[[SharedKernel], Hashable]) -> list[SharedKernel]:
    """Of the kernels with one key the one that is cheapest to emulate."""
    chosen: dict[Hashable, SharedKernel] = {}
    for kernel in found:
        known = chosen.setdefault(key(kernel), kernel)
        if kernel.work < known.work:
            chosen[key(kernel)] = kernel
    return list(chosen.values())


def _kernel(origin: str, op: KernelOp, zeroed: tuple[int, ...]) -> SharedKernel:
    types = [argument.type for argument in op.body.block.args]
    buffers = tuple(
        (prod(type.get_shape()), numpy_dtype(type.element_type).name) for type in types if isinstance(type, MemRefType)
    )
    return SharedKernel(
        origin=origin,
        name=op.sym_name.data,
        text=print_kernel(op),
        grid=op.grid_shape,
        block=op.block_shape,
        shared_bytes=op.shared_bytes(dynamic=True),
        buffers=buffers,
        zeroed=zeroed,
    )
