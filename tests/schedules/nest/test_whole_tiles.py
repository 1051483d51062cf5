"""Tiles inside of all extents have code without masks and clamps; those that overhang have code of their own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tests.helpers.program_batch import (
    Backend,
    CompiledProgram,
    PrintedProgram,
    ProgramBatch,
    compile_programs,
    print_program,
)
from tests.schedules.nest.random_nests import Case, convolution, product, scheduled_by
from tests.schedules.nest.test_nest import program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.loop.accesses import accesses
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.kernel import parts, whole_along
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.target import Target

CPU = Target.parse("cpu")
ROWS, COLUMNS = 3, 32
TILED = f"""%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by ({ROWS})
%j0, %j1, %j2 = schedule.split %j by (2, {COLUMNS})
%k0, %k1 = schedule.split %k by (4)
schedule.arrange block(%i0, %j0) repeat(%j1) loop(%k0) loop(%k1) repeat(%i1, %j2)
schedule.mark vector %j2
"""
ONE_STAGE = TILED + 'schedule.stage 1 at %k0 in "register"\n'
STAGED = ONE_STAGE + 'schedule.stage 0 at %k0 in "register"\n'
CHECKED = TILED.replace("repeat(%i1, %j2)", "repeat(%i1, %j2) checks_borders")
FUSED = """%n, %o, %y, %x, %c, %u, %v = schedule.axes 4 spatial, 3 reduction
%p = schedule.fuse %y, %x
%o0, %o1 = schedule.split %o by (3)
%p0, %p1 = schedule.split %p by (16)
schedule.arrange block(%n, %o0, %p0) loop(%c, %u, %v) repeat(%o1, %p1)
schedule.mark vector %p1
"""


def matrices(rows: int, columns: int) -> Case:
    """Of a depth that steps of 4 overhang."""
    return Case(((rows, 10), (10, columns)), product, epilogue=True)


def case_of(rows: int, columns: int, text: str) -> ModuleOp:
    return scheduled_by(matrices(rows, columns), CPU, lambda _: program(text))


def sizes(tile: int) -> list[int]:
    """Extents around the tile's."""
    return [1, tile - 1, tile, tile + 1, 2 * tile + 3]


PAIRS = [*zip(sizes(ROWS), sizes(COLUMNS), strict=True), (ROWS - 1, 3 * COLUMNS + 5), (4 * ROWS + 1, COLUMNS)]
CONVOLVED = Case(((1, 4, 9, 9), (8, 4, 3, 3)), convolution(2, 1, 0), epilogue=True)
"""Of 7 x 7 pixels, which tiles of 16 overhang."""


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch[PrintedProgram, CompiledProgram]:
    texts = {"tiled": TILED, "staged": STAGED, "checked": CHECKED}
    makers = {f"{name} {m} {n}": partial(case_of, m, n, text) for name, text in texts.items() for m, n in PAIRS}
    made = {**makers, "fused": lambda: scheduled_by(CONVOLVED, CPU, lambda _: program(FUSED))}
    return ProgramBatch(made, Backend(partial(print_program, after="schedule"), compile_programs))


@pytest.mark.parametrize(("rows", "columns"), PAIRS)
@pytest.mark.parametrize("name", ["tiled", "staged", "checked"])
def test_values(compiled: ProgramBatch[PrintedProgram, CompiledProgram], name: str, rows: int, columns: int) -> None:
    case = matrices(rows, columns)
    (actual,) = compiled[f"{name} {rows} {columns}"].run(case.inputs())
    np.testing.assert_allclose(actual, case.expected(), rtol=1e-5, atol=2e-5)


def test_values_of_tiles_across_rows(compiled: ProgramBatch[PrintedProgram, CompiledProgram]) -> None:
    (actual,) = compiled["fused"].run(CONVOLVED.inputs())
    np.testing.assert_allclose(actual, CONVOLVED.expected(), rtol=1e-5, atol=2e-5)


def versions(module: ModuleOp) -> list[scf.IfOp]:
    """The branches around whole tiles and around others, at the end of stage `loops`."""
    lower(treadle_context(), module, CPU, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    branches = [op for op in kernel.body.walk() if isinstance(op, scf.IfOp)]
    return [branch for branch in branches if any(isinstance(op, scf.ForOp) for op in branch.walk())]


def is_guarded(op: Operation) -> bool:
    """Whether an operation clamps, or masks an access."""
    is_masked = any(access.predicate is not None or access.mask is not None for access in accesses(op))
    return is_masked or isinstance(op, arith.MinSIOp)


@pytest.mark.parametrize("text", [TILED, ONE_STAGE], ids=["tiled", "staged"])
def test_whole_tiles_are_not_guarded(text: str) -> None:
    """Of a depth that no tile overhangs, and with stages of whole vectors."""
    case = Case(((2 * ROWS + 1, 12), (12, 3 * COLUMNS + 5)), product, epilogue=True)
    whole, ragged = versions(scheduled_by(case, CPU, lambda _: program(text)))
    assert not [op for op in whole.walk() if is_guarded(op)]
    assert [op for op in ragged.walk() if is_guarded(op)]


def test_checks_of_borders_are_in_the_innermost_loop() -> None:
    """Every tile has them, and none clamps or has a version without."""
    module = case_of(2 * ROWS + 1, 3 * COLUMNS + 5, CHECKED)
    assert not versions(module)
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    inner = [op for op in kernel.body.walk() if isinstance(op, scf.ForOp)][-1]
    assert [op for op in inner.walk() if is_guarded(op)]
    assert not [op for op in kernel.body.walk() if isinstance(op, arith.MinSIOp)]


@pytest.mark.parametrize(("rows", "columns"), [(ROWS - 1, COLUMNS - 1), (2 * ROWS, 2 * COLUMNS)])
def test_one_version_where_all_tiles_are_alike(rows: int, columns: int) -> None:
    assert not versions(case_of(rows, columns, TILED))


def test_tiles_are_counted() -> None:
    """2 of 3 tiles of rows, and 3 of 4 of columns (2 in each block, the last one of which is beyond the end)."""
    module = matrices(2 * ROWS + 1, 3 * COLUMNS).module()
    lower(treadle_context(), module, CPU, after="graph", to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    whole = whole_along(nest_of(program(TILED), {}, workload_of(anchor_of(fused)), CPU))
    assert [(each.limit, each.most) for each in whole] == [(2, 2), (3, 3)]
    assert parts(whole) == pytest.approx((1 / 2, 1 / 2))
