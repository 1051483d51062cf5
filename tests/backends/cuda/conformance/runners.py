"""Runs a case: on the emulator with all checks, or through the executor on whatever a driver drives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.cases import CASES, kernel_of
from treadle.backends.cuda.driver import Driver
from treadle.backends.cuda.emulator import Emulator
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec

Array = NDArray[Any]


def on_emulator(function: str, emulator: Emulator) -> Array:
    """What the case of `function` computes there; nothing may be found."""
    case = CASES[function]
    result = np.zeros(case.expected.shape, case.expected.dtype)
    arguments = [*(array.copy() for array in case.inputs.values()), result]
    report = emulator.launch(kernel_of(function), (case.grid, 1, 1), (case.block, 1, 1), arguments)
    assert not report.findings, str(report)
    return result


def on_device(function: str, driver: Driver, image: bytes) -> Array:
    """What the case of `function` computes on a device, `image` being all kernels compiled for it."""
    case = CASES[function]
    inputs = [TensorSpec(name, array.shape, array.dtype) for name, array in case.inputs.items()]
    buffers = (*(BufferRef("input", n) for n in range(len(inputs))), BufferRef("output", 0))
    launch = Launch(kernel_of(function), image, (case.grid, 1, 1), (case.block, 1, 1), buffers)
    output = TensorSpec("out", case.expected.shape, case.expected.dtype)
    with CudaProgram(driver, [launch], inputs, [output]) as program:
        return program.run(list(case.inputs.values()))[0]
