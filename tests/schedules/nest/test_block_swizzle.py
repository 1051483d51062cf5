"""Thread-block swizzle of nests: blocks go down some rows before they go right, and each tile has one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, TensorType, i64

from tests.helpers.emulated_batch import EmulatedProgram, PrintedKernels, compile_programs, print_program
from tests.helpers.program_batch import Backend, ProgramBatch
from tests.schedules.nest.random_nests import Case, product, scheduled_by
from tests.schedules.nest.test_box import GPU, nest
from tests.schedules.nest.test_mma_emulated import BATCHED, HALVES, SLICES, shared
from tests.schedules.nest.test_nest import program, work_of_operator
from tests.schedules.row_cases import tensor
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.graph import MatmulOp
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.nest import Swizzle
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.search.predict import predicted_seconds
from treadle.schedules.split_k import block_coordinates
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of

TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (4, 2)
%j0, %j1 = schedule.split %j by (8)
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k) repeat(%i2)
"""
PRODUCT = work_of_operator(MatmulOp(tensor(75, 5), tensor(5, 33)))


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 14))
def test_every_tile_has_one_block(rows: int, columns: int, group: int) -> None:
    """Down `group` rows, or those that are left, then right; then the next group."""
    b = KernelBuilder([], TensorType(i64, [rows * columns, 2]))
    for n, each in enumerate(block_coordinates(b.block, rows, columns, group)):
        b.store(b.insert(arith.IndexCastOp(each.value, i64)), b.output, [b.block, n])
    actual = evaluate_kernel(b.kernel("tiles", [], TensorType(i64, [rows * columns, 2]), rows * columns, 1, ""), [])
    firsts = range(0, rows, group)
    expected = [(r, c) for f in firsts for c in range(columns) for r in range(f, min(f + group, rows))]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("group", "expected"), [(1, None), (4, Swizzle(0, 4)), (10, Swizzle(0, 10)), (99, Swizzle(0, 10))]
)
def test_one_value_for_each_order(group: int, expected: Swizzle | None) -> None:
    assert nest(TILES + f"schedule.swizzle %i0, %j0 by {group}", PRODUCT).swizzle == expected


def test_a_grid_of_one_column_has_one_order() -> None:
    narrow = work_of_operator(MatmulOp(tensor(75, 5), tensor(5, 8)))
    assert nest(TILES + "schedule.swizzle %i0, %j0 by 8", narrow).swizzle is None


def test_the_group_may_be_sampled() -> None:
    body = TILES + '%g = schedule.sample "group" from [1, 8]\nschedule.swizzle %i0, %j0 by %g'
    found = [nest_of(program(body, "cuda"), {"group": group}, PRODUCT, GPU).swizzle for group in (1, 8)]
    assert found == [None, Swizzle(0, 8)]


ROWS = Case(((75, 9), (9, 33)), product, epilogue=True)
HALF = Case(((420, 40), (40, 70)), product, dtype=np.float16)
CASES: Mapping[str, tuple[Case, str]] = {
    "ten rows by four": (ROWS, TILES + "schedule.swizzle %i0, %j0 by 4"),
    "two groups of five": (ROWS, TILES + "schedule.swizzle %i0, %j0 by 5"),
    "one group": (ROWS, TILES + "schedule.swizzle %i0, %j0 by 16"),
    "columns as rows": (ROWS, TILES.replace("(%i0, %j0)", "(%j0, %i0)") + "schedule.swizzle %j0, %i0 by 2"),
    "tensor cores": (HALF, HALVES + shared("%k0", "vector 8 buffers 2") + "schedule.swizzle %i0, %j0 by 3"),
    "slices": (
        Case(((147, 100), (100, 80)), product, dtype=np.float16),
        SLICES + shared("%k1", "vector 8") + "schedule.swizzle %i0, %j0 by 2",
    ),
    "a batch": (
        Case(((3, 52, 24), (3, 24, 68)), product, dtype=np.float16),
        BATCHED + shared("%k0", "vector 8") + "schedule.swizzle %i0, %j0 by 3",
    ),
}


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch[PrintedKernels, EmulatedProgram]:
    def maker(name: str) -> Callable[[], ModuleOp]:
        case, text = CASES[name]
        return lambda: scheduled_by(case, GPU, lambda _: program(text, "cuda"))

    makers = {name: maker(name) for name in CASES}
    return ProgramBatch(makers, Backend(partial(print_program, after="schedule"), compile_programs), len(CASES))


@pytest.mark.parametrize("name", CASES)
def test_every_block_is_computed_once(compiled: ProgramBatch[PrintedKernels, EmulatedProgram], name: str) -> None:
    """There are as many blocks as tiles: one that was computed twice would leave another one without its sums."""
    case, _ = CASES[name]
    (actual,) = compiled[name].run(case.inputs())
    rounding = {np.float16: 2.0**-11, np.float32: 1e-5}[case.dtype]
    np.testing.assert_allclose(actual, case.expected(), rtol=rounding, atol=rounding * 2)


def test_a_prediction_tells_no_group() -> None:
    """Why no rule samples it: the model does not know which blocks share what L2 has."""
    anchor = MatmulOp(tensor(4096, 64), tensor(64, 4096))
    nests = [
        nest_of(program(TILES + f"schedule.swizzle %i0, %j0 by {group}", "cuda"), {}, workload_of(anchor), GPU)
        for group in (1, 8)
    ]
    once, grouped = (predicted_seconds(work_of(Group(anchor), each, GPU), GPU) for each in nests)
    assert nests[0] != nests[1] and once == grouped
