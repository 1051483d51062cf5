"""Kernels of nests for GPUs, on the emulator with all its checks: they compute what the definition says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.emulated_batch import (
    TARGET,
    EmulatedProgram,
    PrintedKernels,
    compile_programs,
    print_program,
)
from tests.helpers.program_batch import Backend, ProgramBatch
from tests.schedules.nest.random_nests import CASES, Case, product, scheduled, scheduled_by, turned
from tests.schedules.nest.test_nest import program
from treadle.dialects.graph import ReductionOp
from treadle.target import Target

Compiled = ProgramBatch[PrintedKernels, EmulatedProgram]
GPU = Target.parse(TARGET)
STEP, MORE = 2, 12
"""A random program for every other case, and the programs for each of the slow test."""

TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3 = schedule.split %i by (2, 4, 2)
%j0, %j1, %j2, %j3 = schedule.split %j by (2, 8, 4)
%k0, %k1 = schedule.split %k by (8)
schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3)
"""
"""A tile of 16 x 64 by a warp, with virtual threads."""
CHECKED = TILES.replace("repeat(%i3, %j3)", "repeat(%i3, %j3) checks_borders")
SLICES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (4, 3)
%k0, %k1 = schedule.split %k by (16)
schedule.arrange block(%k0, %i0) thread(%i1, %j) loop(%k1) repeat(%i2)
"""
ROWS = """%i, %k = schedule.axes 1 spatial, 1 reduction
%k0, %k1 = schedule.split %k by ({parts})
%i0, %i1 = schedule.split %i by ({rows})
schedule.arrange block(%i0) thread(%i1) loop(%k0) thread(%k1)
"""
COLUMNS = """%j, %k = schedule.axes 1 spatial, 1 reduction
%k0, %k1 = schedule.split %k by (6)
%j0, %j1, %j2 = schedule.split %j by (8, 2)
schedule.arrange block(%j0) loop(%k0) thread(%k1, %j1) repeat(%j2)
"""


def reduction(shape: tuple[int, int], dim: int) -> Case:
    """The maxima of a matrix along a dimension."""
    return Case((shape,), lambda _, x: ReductionOp("max", x, [dim], keep=False), epilogue=True)


def shared(at: str, how: str) -> str:
    """Both operands in shared memory, then in registers."""
    return "".join(
        f'schedule.stage {n} at {at} in "shared" {how}\nschedule.stage {n} at %k1 in "register"\n' for n in (0, 1)
    )


WHOLE = Case(((32, 24), (24, 64)), product)
RAGGED = Case(((19, 21), (21, 71)), product, epilogue=True)
TURNED = Case(((21, 19), (21, 72)), product, prologue=turned)
WRITTEN: dict[str, tuple[Case, str]] = {
    "one buffer": (WHOLE, TILES + shared("%k0", "vector 4")),
    "filled once": (RAGGED, TILES + shared("%i0", "vector 2")),
    "fetched ahead": (WHOLE, TILES + shared("%k0", "vector 4 buffers 2")),
    "fetched ahead, ragged": (RAGGED, TILES + shared("%k0", "vector 4 buffers 2")),
    "fetched ahead, transposed": (TURNED, TILES + shared("%k0", "vector 4 buffers 2")),
    "copied ahead": (WHOLE, TILES + shared("%k0", "vector 4 buffers 3 async")),
    "copied ahead, ragged": (RAGGED, TILES + shared("%k0", "vector 4 buffers 2 async")),
    "copied far ahead": (TURNED, TILES + shared("%k0", "vector 2 buffers 6 async")),
    "checks of borders": (RAGGED, CHECKED + shared("%k0", "vector 4 buffers 2")),
    "checks of borders without stages": (RAGGED, CHECKED),
    "halves": (replace(WHOLE, dtype=np.float16), TILES + shared("%k0", "vector 4 buffers 3 async")),
    "ragged halves": (replace(RAGGED, dtype=np.float16), TILES + shared("%k0", "vector 4 buffers 2")),
    "doubles": (replace(RAGGED, dtype=np.float64), TILES + shared("%k0", "vector 4 buffers 2 async")),
    "slices": (Case(((11, 70), (70, 9)), product, epilogue=True), SLICES),
    "slices of serial tiles": (
        Case(((11, 70), (70, 9)), product),
        SLICES.replace("loop(%k1) repeat(%i2)", "repeat(%i2) loop(%k1)"),
    ),
    "slices of shared tiles": (
        Case(((12, 64), (64, 8)), product),
        SLICES + 'schedule.stage 0 at %i0 in "shared" vector 4',
    ),
    "rows by half warps": (reduction((9, 50), 1), ROWS.format(parts=16, rows=4)),
    "rows by blocks": (reduction((3, 300), 1), ROWS.format(parts=96, rows=1)),
    "rows by 12 threads": (reduction((5, 40), 1), ROWS.format(parts=12, rows=3)),
    "rows by warps of few threads": (reduction((5, 40), 1), ROWS.format(parts=8, rows=3)),
    "columns": (reduction((29, 21), 0), COLUMNS),
}

NAMES = [*WRITTEN, *(f"{name} 0" for name in list(CASES)[::STEP])]
SLOW = [name for case in CASES for seed in range(MORE) if (name := f"{case} {seed}") not in NAMES]


def _case(name: str) -> Case:
    return WRITTEN[name][0] if name in WRITTEN else CASES[name.rpartition(" ")[0]]


def _made(name: str) -> Callable[[], ModuleOp]:
    if name in WRITTEN:
        return lambda: scheduled_by(_case(name), GPU, lambda _: program(WRITTEN[name][1], "cuda"))
    return lambda: scheduled(_case(name), int(name.rpartition(" ")[2]), GPU)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    backend = Backend(partial(print_program, after="schedule"), compile_programs)
    return ProgramBatch({name: _made(name) for name in (*NAMES, *SLOW)}, backend, size=len(NAMES))


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_emulated_nests(compiled: Compiled, name: str) -> None:
    case = _case(name)
    (actual,) = compiled[name].run(case.inputs())
    rounding = {np.float16: 2.0**-11, np.float32: 1e-5, np.float64: 1e-13}[case.dtype]
    np.testing.assert_allclose(actual, case.expected(), rtol=rounding, atol=min(rounding * 2, 2e-5))
