"""One function of treadle_hopper.h on chosen inputs, some of them through tensor maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import C_TYPES
from treadle.backends.cuda.emulator import Emulator
from treadle.target.tensor_map import TensorMap

Array = NDArray[Any]


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
        parameters = ", ".join([*pointers, *maps, f"{C_TYPES[self.expected.dtype.name]} *out"])
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
        report = emulator.launch(kernel, (self.cluster, 1, 1), (self.block, 1, 1), [*arrays.values(), *mapped, result])
        assert not report.findings, str(report)
        return result


def aligned(array: Array) -> Array:
    """A copy that begins at a multiple of 256, as device memory does."""
    raw = np.zeros(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
