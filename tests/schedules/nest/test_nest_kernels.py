"""Kernels of nests: whatever is tiled, arranged, staged and marked how, they compute what the definition says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.program_batch import (
    Backend,
    CompiledProgram,
    PrintedProgram,
    ProgramBatch,
    compile_programs,
    print_program,
)
from tests.schedules.nest.random_nests import CASES, scheduled
from treadle.target import Target

Compiled = ProgramBatch[PrintedProgram, CompiledProgram]
CPU = Target.parse("cpu")
STEP, MORE = 2, 12
"""A random program for every other case, and the programs for each of the slow test."""

NAMES = [f"{name} 0" for name in list(CASES)[1::STEP]]
"""Those that are not emulated (`test_nest_emulated.py`)."""
SLOW = [name for case in CASES for seed in range(MORE) if (name := f"{case} {seed}") not in NAMES]


def _made(name: str) -> Callable[[], ModuleOp]:
    case, _, seed = name.rpartition(" ")
    return lambda: scheduled(CASES[case], int(seed), CPU)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    backend = Backend(partial(print_program, after="schedule"), compile_programs)
    return ProgramBatch({name: _made(name) for name in (*NAMES, *SLOW)}, backend, size=len(NAMES))


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_compiled_nests(compiled: Compiled, name: str) -> None:
    case = CASES[name.rpartition(" ")[0]]
    (actual,) = compiled[name].run(case.inputs())
    np.testing.assert_allclose(actual, case.expected(), rtol=1e-5, atol=2e-5)
