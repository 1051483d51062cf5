"""DietCode's cost model: figures of its sections 3 and 4 that are numbers, and what is learned from measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
import pytest
from xdsl.parser import Parser

from tests.schedules.search.anchors import anchor
from treadle.dialects.graph import MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.passes.schedule.instance import CallShape, instance_of
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.joint import Adaption, AtPoint, busy, fitted_k, occupancy
from treadle.schedules.search.learned import LEAST_RECORDS, Learned
from treadle.schedules.search.predict import places_of, predicted_seconds
from treadle.schedules.search.programs import replay
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.gpu_work import AnyWork
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

CPU = Target.parse("cpu")
T4 = Target.parse("sm_75")
TILE = UseAttr.get(
    "matmul_simt",
    {"warps": (4, 2), "repeats": (2, 2), "thread": (4, 4), "block_k": 8, "min_blocks_per_sm": 1, "a_order": "k",
     "b_order": "n", "a_vector": 4, "b_vector": 4, "split_k": 1},
)  # fmt: skip
"""128 x 128 of figures 4 and 5: Y = X W^T of BERT, whose result is 16 T x 2304."""


def dense(length: int) -> GpuWork:
    """The micro-kernel on 16 T rows."""
    whole = anchor("matmul", 16 * 128, 2304)
    assert isinstance(whole, MatmulOp)
    work = work_of(Group(instance_of(whole, CallShape((16 * length, 2304), whole.reduction_extent))), TILE, T4)
    assert isinstance(work, GpuWork)
    return work


def test_figure_4_whole_tiles() -> None:
    assert dense(64).blocks == 8 * 18


def test_figure_5_the_last_column_is_padded() -> None:
    """Blocks that overhang take as long as whole ones, which is f_pad."""
    assert dense(60).blocks == dense(64).blocks == 8 * 18
    assert dense(60).operations == dense(64).operations


def test_the_same_tile_serves_every_length() -> None:
    assert [dense(t).blocks for t in (1, 8, 9, 127, 128)] == [18, 18, 36, 288, 288]


def test_figure_7_the_factors_of_a_throughput() -> None:
    """144 blocks run in four rounds of 40, of which the last is short by 16."""
    assert busy(144, 40) == pytest.approx(144 / 160)
    assert occupancy(busy(144, 40), k=0.0) == 1.0
    assert occupancy(busy(144, 40), k=1.0) == pytest.approx(0.9)
    assert occupancy(busy(144, 40), k=0.5) == pytest.approx(0.95)
    assert occupancy(busy(160, 40), k=0.7) == 1.0, "b = 1 - k"


@pytest.mark.parametrize("k", [0.0, 0.3, 0.85])
def test_k_is_found_in_measurements(k: float) -> None:
    generator = np.random.default_rng(0)
    busies = generator.uniform(0.1, 1.0, 40)
    exact = [k * each + 1 - k for each in busies]
    assert fitted_k(busies.tolist(), exact) == pytest.approx(k, abs=1e-6)
    noisy = [each * factor for each, factor in zip(exact, np.exp(generator.normal(0, 0.02, 40)), strict=True)]
    assert fitted_k(busies.tolist(), noisy) == pytest.approx(k, abs=0.04)


def test_k_stays_within_its_bounds() -> None:
    assert fitted_k([], []) == 1.0, "whole rounds, as the analytic model has it"
    assert fitted_k([0.5, 0.5], [1.2, 1.3]) == 0.0
    assert fitted_k([0.5, 0.25], [0.1, 0.05]) == pytest.approx(1.0)


POINTS = (1, 3, 8, 20, 50, 96)


def candidates() -> list[UseAttr]:
    """Micro-kernels of `matmul_simt`."""
    template, whole = TEMPLATES["matmul_simt"], anchor("matmul", 16 * POINTS[-1], 300)
    decided = dict(template.decided(whole, T4))
    warps = (1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4)
    tiles = product(warps, ((1, 1), (1, 2), (2, 1), (2, 2)), ((2, 2), (4, 4)), (8, 16))
    every = (
        {"warps": w, "repeats": r, "thread": t, "block_k": k, "min_blocks_per_sm": 1, **decided, "split_k": 1}
        for w, r, t, k in tiles
    )
    return [UseAttr.get(template.name, each) for each in every if template.legal(whole, T4).exclusion(each) is None]


def works_of(use: UseAttr) -> list[AnyWork]:
    """A micro-kernel at each point."""
    whole = anchor("matmul", 16 * POINTS[-1], 300)
    assert isinstance(whole, MatmulOp)
    calls = [CallShape((16 * t, 300), whole.reduction_extent) for t in POINTS]
    return [work_of(Group(instance_of(whole, call)), use, T4) for call in calls]


def at_points(works: Sequence[AnyWork]) -> list[AtPoint]:
    return [AtPoint(predicted_seconds(w, T4), busy(w.blocks, places_of(w, T4))) for w in works]


def measured(works: Sequence[AnyWork], k: float, random: Random) -> list[float]:
    """What the analytic model does not know of a device: small blocks wait, and a short round is not a whole one."""
    whole = works[-1]
    assert isinstance(whole, GpuWork)
    factor = 3.0 if whole.threads < 128 else 0.8 if whole.registers > 80 else 1.3
    each = [at.ideal / occupancy(at.busy, k) * factor for at in at_points(works)]
    return [seconds * random.uniform(0.97, 1.03) for seconds in each]


def agreement(predicted: Sequence[float], times: Sequence[float]) -> float:
    """Rank correlation."""
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (predicted, times))
    return float(np.corrcoef(first, second)[0, 1])


def test_k_and_factors_of_kernels_are_learned_together() -> None:
    """From half of the micro-kernels; the mean times of the others are ranked better than by the analytic model."""
    random, k = Random(3), 0.4
    works = [works_of(use) for use in candidates()]
    random.shuffle(works)
    times = [measured(each, k, random) for each in works]
    half = len(works) // 2
    assert half >= LEAST_RECORDS
    adaption, model = Adaption(), Learned()

    def means(every: Sequence[Sequence[AnyWork]]) -> list[float]:
        factors = model.seconds([each[-1] for each in every], T4)
        ratios = (sum(map(adaption.seconds, at_points(each))) / predicted_seconds(each[-1], T4) for each in every)
        return [factor * ratio for factor, ratio in zip(factors, ratios, strict=True)]

    unseen = [sum(each) for each in times[half:]]
    before = agreement(means(works[half:]), unseen)
    adaption.learn([(at_points(each), of) for each, of in zip(works[:half], times[:half], strict=True)])
    assert adaption.k == pytest.approx(k, abs=0.05)
    ratios = [sum(map(adaption.seconds, at_points(each))) / predicted_seconds(each[-1], T4) for each in works[:half]]
    learned = zip(works[:half], times[:half], ratios, strict=True)
    model.learn({"group": [(each[-1], sum(of) / ratio) for each, of, ratio in learned]}, T4)
    after = agreement(means(works[half:]), unseen)
    assert after > max(before, 0.8)


def test_nothing_is_learned_from_one_point() -> None:
    adaption = Adaption()
    adaption.learn([([AtPoint(1.0, 0.5)], [7.0])])
    assert adaption.k == 1.0
    assert adaption.seconds(AtPoint(1.0, 0.5)) == 1.0, "the analytic model's"


ROWS_OF_TEN = """schedule.program @rows for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %i0, %i1 = schedule.split %i by (10)
  schedule.arrange block(%i0, %j) loop(%k) repeat(%i1)
}
"""


def test_figure_3_lengths_share_the_tiles() -> None:
    """A tile of 10 is one for 49 as for 50, although it is no divisor of 49: five blocks of each column."""
    (rows,) = Parser(treadle_context(), ROWS_OF_TEN).parse_module().body.block.ops
    assert isinstance(rows, ProgramOp)
    for length in (49, 50):
        whole = anchor("matmul", length, 40)
        work = work_of(Group(whole), replay(rows, {}, whole, CPU), CPU)
        assert work.blocks == 5 * length
