"""The work of nests with stages from the values alone is what is counted on their kernels."""

from __future__ import annotations

import random
from itertools import count

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from tests.schedules.nest.random_nests import CASES, MOST_UNROLLED, Case, random_program, scheduled_by
from tests.schedules.nest.test_nest import program
from tests.schedules.search.test_nest_work import CPU, both, is_aligned, parts
from treadle.dialects.graph import BinaryOp, MatmulOp
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload
from treadle.schedules.search.predict import cpu_seconds
from treadle.schedules.search.work import Work

PROGRAMS = 3
"""Random programs for each definition."""
STAGED = [
    "matmul", "ragged matmul", "row times matrix", "batched matmul", "transposed matmul", "matmul of exponentials",
    "convolution in 1 dimension", "convolution", "convolution in 3 dimensions", "grouped convolution",
    "depthwise convolution", "dilated convolution", "max pooling", "maximum of columns", "product of all",
]  # fmt: skip


def is_counted(nest: Nest) -> bool:
    """Whether a nest has stages of what its reduction reads, and no vectors along that."""
    terms = all(nest.workload.reads[stage.read].is_term for stage in nest.stages)
    return bool(nest.stages) and terms and not nest.vector_reduction and nest.accumulators <= MOST_UNROLLED


def staged(case: Case, seed: int) -> ModuleOp:
    """The case after stage `schedule`, its group scheduled by the first random program that stages terms."""
    draw = random.Random(seed)

    def drawn(workload: Workload) -> ProgramOp:
        for _ in count():
            found = random_program(workload, CPU, draw, is_plain=False)
            try:
                found.verify()
                nest = nest_of(found, {}, workload, CPU)
            except (TreadleError, VerifyException):
                continue
            if is_counted(nest):
                return found
        raise AssertionError

    return scheduled_by(case, CPU, drawn)


@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("name", STAGED)
def test_random_staged_nests(name: str, seed: int) -> None:
    found, counted, nest, load = both(staged(CASES[name], seed))
    assert nest.stages
    if is_aligned(nest, load):
        assert parts(found) == parts(counted)
    # Where quotients remain in an address, both are approximations of it.
    assert cpu_seconds(found, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.3)


PADDED = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (4)
%j0, %j1 = schedule.split %j by (32)
%k0, %k1 = schedule.split %k by (DEPTH)
schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
STAGES
schedule.mark vector %j1
"""
BOTH = 'schedule.stage 0 at %k0 in "register"\nschedule.stage 1 at %k0 in "register"'


def product(depth: int, stages: str = BOTH) -> tuple[Work, Work]:
    """The work of a product of 50 x 100 and 100 x 90 in steps of the reduction, from the value and on the kernel."""
    case = Case(((50, 100), (100, 90)), lambda g, x: MatmulOp(x, g[1]))
    text = PADDED.replace("DEPTH", str(depth)).replace("STAGES", stages)
    found, counted, *_ = both(scheduled_by(case, CPU, lambda _: program(text)))
    return found, counted


@pytest.mark.parametrize("stages", [BOTH, BOTH.splitlines()[1]], ids=["both", "right"])
@pytest.mark.parametrize("depth", [8, 20, 48])
def test_tiles_that_overhang_are_counted(depth: int, stages: str) -> None:
    """Of 48 x 32 floats, a stage is not in registers."""
    found, counted = product(depth, stages)
    assert parts(found) == parts(counted)


def test_a_stage_of_what_no_reduction_reads_is_not_counted() -> None:
    case = Case(((8, 64), (64,)), lambda g, x: BinaryOp("add", x, g[1]))
    text = """%i, %j = schedule.axes 2 spatial, 0 reduction
schedule.arrange block(%i) repeat(%j)
schedule.stage 0 at %i in "register"
"""
    with pytest.raises(TreadleError, match="such a stage is counted on kernels only"):
        both(scheduled_by(case, CPU, lambda _: program(text)))
