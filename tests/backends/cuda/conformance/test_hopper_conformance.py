"""Every function of treadle_hopper.h computes what its cases say on the emulator, and becomes its instruction."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.backends.cuda.conformance.accuracy import assert_agrees
from tests.backends.cuda.conformance.header import functions_of
from tests.backends.cuda.conformance.hopper_case import CLEAR
from tests.backends.cuda.conformance.hopper_cases import HOPPER_CASES, kernel_of, kernels_of
from tests.backends.cuda.machine_code import disassembled
from treadle.backends.c.compiler import find_toolchain
from treadle.backends.cuda.compiler import HEADER, Unit, compile_cubin
from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.environment import load_environment
from treadle.target import Target

TEXT = kernels_of(HOPPER_CASES)


@pytest.fixture(scope="module", params=[(), tuple(CHECKS)], ids=["fast", "checked"])
def emulator(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Emulator:
    """All kernels, without checks and with all."""
    return emulate(TEXT, request.param)


def test_every_function_of_the_header_is_in_a_case() -> None:
    header = HEADER.parent / "treadle_hopper.h"
    command = [*find_toolchain(load_environment()).command, "-E", "-P", "-x", "c++"]
    both, other = (
        functions_of(subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout)
        for path in (header, HEADER)
    )
    called = set(re.findall(r"treadle_\w+", TEXT))
    assert both - other <= called


@pytest.mark.parametrize("name", HOPPER_CASES)
def test_on_the_emulator(name: str, emulator: Emulator) -> None:
    case = HOPPER_CASES[name]
    assert_agrees(case.on_emulator(emulator, kernel_of(name)), case.expected, absolute=case.absolute)


@pytest.fixture(scope="module")
def image(driver: Device) -> bytes:
    """All kernels compiled for the GPU at hand."""
    if driver.capability != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    return compile_cubin(Unit("hopper", TEXT + CLEAR), Target.parse("sm_90a")).image


@pytest.mark.gpu
@pytest.mark.parametrize("name", HOPPER_CASES)
def test_on_the_gpu(name: str, driver: Device, image: bytes) -> None:
    case = HOPPER_CASES[name]
    assert_agrees(case.on_device(driver, image, kernel_of(name)), case.expected, absolute=case.absolute)


def test_every_function_becomes_its_instruction_without_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    cubin = compile_cubin(Unit("hopper", TEXT), Target.parse("sm_90a"))
    assert {name for name, used in cubin.resources.items() if used.spills} == set()
    sass = disassembled(cubin)
    wanted = {name: case.sass for name, case in HOPPER_CASES.items() if case.sass is not None}
    assert {name: opcode for name, opcode in wanted.items() if not sass[kernel_of(name)].has(opcode)} == {}
