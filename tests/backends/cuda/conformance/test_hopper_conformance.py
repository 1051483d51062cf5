"""Every function of treadle_hopper.h computes what its cases say on the emulator, and becomes its instruction."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.backends.cuda.conformance.accuracy import assert_agrees
from tests.backends.cuda.conformance.header import functions_of
from tests.backends.cuda.conformance.hopper_cases import HOPPER_CASES, kernel_of
from tests.backends.cuda.machine_code import disassembled
from treadle.backends.c.compiler import find_toolchain
from treadle.backends.cuda.compiler import HEADER, Unit, compile_cubin
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.environment import load_environment
from treadle.target import Target

TEXT = "".join(case.text(kernel_of(name)) for name, case in HOPPER_CASES.items())


@pytest.fixture(scope="module", params=[(), tuple(CHECKS)], ids=["fast", "checked"])
def emulator(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Emulator:
    """All kernels, without checks and with all."""
    return emulate(without_repetition(TEXT), request.param)


def without_repetition(text: str) -> str:
    """Each specialisation once, where several cases have it."""
    seen: set[str] = set()

    def first(match: re.Match[str]) -> str:
        again = match[0] in seen
        seen.add(match[0])
        return "" if again else match[0]

    return re.sub(r"#ifndef TREADLE_NO_DEVICE_BODIES\n.*?#endif\n", first, text, flags=re.S)


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


def test_every_function_becomes_its_instruction_without_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    cubin = compile_cubin(Unit("hopper", without_repetition(TEXT)), Target.parse("sm_90a"))
    assert {name for name, used in cubin.resources.items() if used.spills} == set()
    sass = disassembled(cubin)
    wanted = {name: case.sass for name, case in HOPPER_CASES.items() if case.sass is not None}
    assert {name: opcode for name, opcode in wanted.items() if not sass[kernel_of(name)].has(opcode)} == {}
