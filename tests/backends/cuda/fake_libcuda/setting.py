"""What the cases on the fake driver share: small kernels, programs, an open driver."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.emulator.build import build_text
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.backends.cuda.open_driver import open_driver
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.cuda.write_artifact import buffer_maps
from treadle.backends.program import Program
from treadle.dialects.cuda import KernelOp
from treadle.environment import load_environment
from treadle.errors import TreadleError

CAPACITY = 1 << 24
"""Bytes of memory that the device has."""

SIZE = 64
F32 = np.dtype(np.float32)
X = np.arange(SIZE, dtype=np.float32)
SPEC = TensorSpec("x", (SIZE,), F32)
INPUT, OUTPUT, CONSTANT, SCRATCH = (
    BufferRef("input", 0), BufferRef("output", 0), BufferRef("constant", 0), BufferRef("arena", 256),
)  # fmt: skip


@cache
def image(text: str) -> bytes:
    """What the fake driver loads in place of a cubin."""
    return build_text(text, "kernel.cu", False, load_environment()).read_bytes()


def kernel(body: str, parameters: str = "const float *x, float *y") -> bytes:
    """The image of a kernel `k`, `t` being the thread."""
    return image(f'extern "C" __global__ void k({parameters}) {{ int t = threadIdx.x; {body} }}\n')


DOUBLE = "y[t] = 2 * x[t];"
ONE = ((1, 1, 1), (SIZE, 1, 1))
"""Grid and block of one block."""


def launch(body: str, threads: int = SIZE, shared: int = 0) -> Launch:
    """One block of the kernel of `body`, from the input to the output."""
    return Launch("k", kernel(body), (1, 1, 1), (threads, 1, 1), (INPUT, OUTPUT), shared)


def program(driver: Device, *launches: Launch) -> CudaProgram:
    """A model of one input and one output of `SIZE` elements."""
    return CudaProgram(driver, launches, [SPEC], [SPEC])


def compiled(module: ModuleOp, planned: Program) -> list[Launch]:
    """The launches of a lowered module."""
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
    images = {unit.name: image(unit.text) for unit in print_kernels(module)}

    def make(name: str, buffers: tuple[BufferRef, ...]) -> Launch:
        op = kernels[name]
        grid, block = shape3(op.grid_shape), shape3(op.block_shape)
        return Launch(name, images[name], grid, block, buffers, op.shared_bytes(dynamic=True), buffer_maps(op))

    return [make(each.kernel, each.buffers) for each in planned.launches]


def shape3(extents: Sequence[int]) -> tuple[int, int, int]:
    """Three extents as such."""
    x, y, z = extents
    return x, y, z


@contextmanager
def opened() -> Generator[Device]:
    """The driver that TREADLE_CUDA_DRIVER names, closed afterwards."""
    driver = open_driver()
    try:
        yield driver
    finally:
        driver.close()


def free_bytes(driver: Device) -> int:
    """What the device says about its memory."""
    return driver.memory()[0]


def fails(expected: str) -> Any:
    """Expects a `TreadleError` that says so."""
    return pytest.raises(TreadleError, match=expected)
