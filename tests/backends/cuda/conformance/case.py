"""One function of treadle_cuda.h on chosen inputs: a tiny kernel, what it must compute, and how exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 256
"""Threads of a block where the case does not say."""

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "treadle_half",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
}

_WIDER: Mapping[str, type[np.generic]] = {"float32": np.float64, "float64": np.longdouble}


@dataclass(frozen=True)
class Case:
    """A kernel that calls one function, on the emulator and on a GPU.

    body:     statements; `t` is the thread of the block and `i` that of the grid, the inputs have their names, and
              the result is stored to `out`, which has the type and the number of elements of `expected`
    ulps:     by how many floats the result may miss `expected`, which is correctly rounded; 0 says the same bits
    absolute: instead of `ulps`: how large each element's error may be
    sass:     the machine instruction that the function stands for, as `Sass.has` takes it; None where it is arithmetic
    """

    body: str
    inputs: Mapping[str, Array]
    expected: Array
    ulps: int = 0
    absolute: Array | None = None
    sass: str | None = None
    grid: int = 1
    block: int = 32

    def text(self, kernel: str) -> str:
        """The kernel's CUDA text."""
        inputs = [f"const {C_TYPES[array.dtype.name]} *{name}" for name, array in self.inputs.items()]
        parameters = ", ".join([*inputs, f"{C_TYPES[self.expected.dtype.name]} *out"])
        index = "const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;"
        return f'extern "C" __global__ void {kernel}({parameters}) {{\n  {index}\n  {self.body.strip()}\n}}\n'


def elementwise(
    expression: str,
    reference: Callable[..., Array],
    *inputs: Array,
    ulps: int = 0,
    result: type[np.generic] = np.float32,
    sass: str | None = None,
) -> Case:
    """A case of one call an element: `expression` reads `x`, `y` and `z`, which are elements of the inputs.

    `reference` is given the inputs, floats in a wider type unless the result has to be exact, in which case NumPy
    computes in the type at hand; what it returns is rounded to `result`.
    """
    names = dict(zip("xyz", inputs, strict=False))
    with np.errstate(all="ignore"):
        wide = [array.astype(_WIDER[array.dtype.name]) if ulps else array for array in inputs]
        expected = np.asarray(reference(*wide)).astype(result)
    count = prod(expected.shape)
    values = " ".join(f"const auto {name} = {name}_[i];" for name in names)
    body = f"if (i >= {count}) return;\n  {values}\n  out[i] = {expression};"
    arrays = {f"{name}_": array for name, array in names.items()}
    return Case(body, arrays, expected, ulps, sass=sass, grid=-(-count // BLOCK), block=BLOCK)
