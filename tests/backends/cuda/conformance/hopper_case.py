"""One function of treadle_hopper.h on chosen inputs, some of them through tensor maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import C_TYPES
from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.driver import Driver
from treadle.backends.cuda.emulator import Emulator
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.target.tensor_map import TensorMap

Array = NDArray[Any]

CLEAR = 'extern "C" __global__ void clear(unsigned char *out) { out[blockIdx.x] = 0; }\n'
"""Clears the bytes of a result."""


@dataclass(frozen=True)
class HopperCase:
    """A kernel of one block, or one cluster of blocks, that calls one function, on the emulator and on a GPU.

    body:     statements; `t` is the thread, the inputs and maps have their names, and `out` those of `expected`
    maps:     by the name of an input or `out`: its map, which the kernel is given as `NAME_map`
    prelude:  what stands before the kernel
    absolute: how large each element's error may be
    sass:     the machine instruction that the function stands for
    """

    body: str
    inputs: Mapping[str, Array]
    expected: Array
    maps: Mapping[str, TensorMap] = field(default_factory=dict[str, TensorMap])
    prelude: str = ""
    absolute: Array | None = None
    sass: str | None = None
    block: int = 128
    cluster: int = 1

    def text(self, kernel: str) -> str:
        """The kernel's CUDA text."""
        pointers = [f"const {C_TYPES[array.dtype.name]} *{name}" for name, array in self.inputs.items()]
        maps = [f"const __grid_constant__ treadle_tensor_map {name}_map" for name in self.maps]
        parameters = ", ".join([*pointers, f"{C_TYPES[self.expected.dtype.name]} *out", *maps])
        bounds = f"__launch_bounds__({self.block}, 1)"
        if self.cluster > 1:
            bounds = f"__cluster_dims__({self.cluster}, 1, 1) {bounds}"
        head = f'extern "C" __global__ void {bounds} {kernel}({parameters}) {{\n  const int t = threadIdx.x;'
        return f'#include "treadle_hopper.h"\n{self.prelude}{head}\n  {self.body.strip()}\n}}\n'

    def on_emulator(self, emulator: Emulator, kernel: str) -> Array:
        """What it computes there; nothing may be found."""
        arrays = {name: aligned(array) for name, array in self.inputs.items()}
        result = aligned(np.zeros_like(self.expected))
        mapped = [(map, {**arrays, "out": result}[name]) for name, map in self.maps.items()]
        report = emulator.launch(kernel, (self.cluster, 1, 1), (self.block, 1, 1), [*arrays.values(), result, *mapped])
        assert not report.findings, str(report)
        return result

    def on_device(self, driver: Driver, image: bytes, kernel: str) -> Array:
        """What it computes on a device, `image` being all kernels and `CLEAR` compiled for it."""
        inputs = [TensorSpec(name, array.shape, array.dtype) for name, array in self.inputs.items()]
        buffers = (*(BufferRef("input", n) for n in range(len(inputs))), BufferRef("output", 0))
        names = [*self.inputs, "out"]
        maps = tuple(BufferMap(names.index(name), map) for name, map in self.maps.items())
        # What a store leaves is as the kernel found it.
        clear = Launch("clear", image, (self.expected.nbytes, 1, 1), (1, 1, 1), (BufferRef("output", 0),))
        launch = Launch(kernel, image, (self.cluster, 1, 1), (self.block, 1, 1), buffers, maps=maps)
        output = TensorSpec("out", self.expected.shape, self.expected.dtype)
        with CudaProgram(driver, [clear, launch], inputs, [output]) as program:
            return program.run(list(self.inputs.values()))[0]


def aligned(array: Array) -> Array:
    """A copy that begins at a multiple of 256, as device memory does."""
    raw = np.zeros(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
