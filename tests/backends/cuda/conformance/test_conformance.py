"""Every function of treadle_cuda.h computes what its case says: on the emulator, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.backends.cuda.conformance.accuracy import assert_agrees
from tests.backends.cuda.conformance.cases import CASES, all_kernels, kernel_of, kernels_of
from tests.backends.cuda.conformance.function_cases import OF_LIBRARY
from tests.backends.cuda.conformance.header import functions_of, functions_of_header
from tests.backends.cuda.conformance.runners import on_device, on_emulator
from tests.backends.cuda.machine_code import disassembled
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.target import TARGETS, Target

ARCHS = [name for name, target in TARGETS.items() if target.copies_asynchronously]


@pytest.fixture(scope="module", params=[(), tuple(CHECKS)], ids=["fast", "checked"])
def emulator(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Emulator:
    """All kernels, without checks and with all."""
    return emulate(all_kernels(), request.param)


@pytest.fixture(scope="module")
def unchecked(emulate: Callable[..., Emulator]) -> Emulator:
    """All kernels at full speed, to be compared with a GPU."""
    return emulate(all_kernels(), ())


@pytest.fixture(scope="module")
def image(driver: Device) -> bytes:
    """All kernels compiled for the GPU at hand."""
    return compile_cubin(Unit("conformance", all_kernels()), Target.for_capability(*driver.capability)).image


def test_every_function_of_the_header_has_a_case() -> None:
    assert set(CASES) - OF_LIBRARY == functions_of_header()


@pytest.mark.parametrize("function", CASES)
def test_on_the_emulator(function: str, emulator: Emulator) -> None:
    case = CASES[function]
    assert_agrees(on_emulator(function, emulator), case.expected, case.ulps, case.absolute)


@pytest.mark.gpu
@pytest.mark.parametrize("function", CASES)
def test_on_the_gpu_and_like_the_emulator(function: str, driver: Device, image: bytes, unchecked: Emulator) -> None:
    case = CASES[function]
    result = on_device(function, driver, image)
    assert_agrees(result, case.expected, case.ulps, case.absolute)
    # Both may miss the expectation, to different sides.
    twice = None if case.absolute is None else 2 * case.absolute
    assert_agrees(result, on_emulator(function, unchecked), 2 * case.ulps, twice)


READ_ARRAYS = {kernel_of(f"treadle_{name}_double") for name in ("sin", "cos", "tan")}
"""Those of NVRTC's library that reduce large angles by an array in local memory, which no register replaces."""


def every_fourth(number: int) -> tuple[str, ...]:
    """A quarter of the functions."""
    return tuple(CASES)[number % 4 :: 4]


@pytest.mark.parametrize(
    ("arch", "functions"),
    [
        *(pytest.param(arch, tuple(CASES), id=arch) for arch in ARCHS[::3]),
        # The header has no line for these alone, so that the functions take turns.
        *(pytest.param(arch, every_fourth(n), id=f"{arch} in turn") for n, arch in enumerate(ARCHS) if n % 3),
        *(pytest.param(arch, tuple(CASES), id=arch, marks=pytest.mark.slow) for n, arch in enumerate(ARCHS) if n % 3),
    ],
)
def test_every_function_becomes_its_instruction_without_spills(arch: str, functions: tuple[str, ...]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    cubin = compile_cubin(Unit("conformance", kernels_of(functions)), Target.parse(arch))
    assert {name for name, used in cubin.resources.items() if used.spills} <= READ_ARRAYS
    sass = disassembled(cubin)
    wanted = {name: opcode for name in functions if (opcode := CASES[name].sass) is not None}
    assert {name: opcode for name, opcode in wanted.items() if not sass[kernel_of(name)].has(opcode)} == {}


def test_functions_are_found_behind_templates_and_macros() -> None:
    text = """template <typename T> inline T treadle_one(T a) { return treadle_zero(a); }
inline float treadle_two(float x) { return -x; } template <typename T>
  inline V &operator +=(V &a, const T &b) { return a; }
struct treadle_vec { int v; };"""
    assert functions_of(text) == {"treadle_one", "treadle_two", "operator+="}


@pytest.mark.parametrize(
    ("result", "expected", "ulps"),
    [
        (1.0000001, 1.0, 0),
        (1.0000003, 1.0, 2),
        (-0.0, 0.0, 2),
        (np.nan, 1.0, 2),
        (1.0, np.nan, 2),
        (np.inf, -np.inf, 4),
    ],
)
def test_a_float_too_far_away_is_an_error(result: float, expected: float, ulps: int) -> None:
    with pytest.raises(AssertionError, match="ulps"):
        assert_agrees(np.array([result], np.float32), np.array([expected], np.float32), ulps)


@pytest.mark.parametrize(
    ("result", "expected", "ulps"), [(1.0000001, 1.0, 1), (-1e-45, 1e-45, 2), (np.nan, -np.nan, 0)]
)
def test_a_float_within_its_bound_agrees(result: float, expected: float, ulps: int) -> None:
    assert_agrees(np.array([result], np.float32), np.array([expected], np.float32), ulps)


def test_an_absolute_error_is_bounded_element_by_element() -> None:
    expected, absolute = np.array([1, 100, np.inf], np.float32), np.array([0.01, 1, np.nan])
    assert_agrees(np.array([1.005, 100.5, np.inf], np.float32), expected, absolute=absolute)
    for wrong in ([1.02, 100, np.inf], [1, 102, np.inf], [1, 100, 3e38]):
        with pytest.raises(AssertionError):
            assert_agrees(np.array(wrong, np.float32), expected, absolute=absolute)
