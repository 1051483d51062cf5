"""The work of nests on tensor cores: as on their kernels, as by hand, and as that of the template of the same tiles."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.schedules.nest.test_mma_emulated import AHEAD, CASES, GPU, TILES, Product, shared
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.work.group import Group
from treadle.schedules.work.lowered import count_gpu_work
from treadle.schedules.work.recorder import work_of

BLOCK = TILES.format(depth=16).replace("(2, 1, 16)", "(2, 2, 16)")
"""Tiles of 64 x 64 by 4 warps of 32 x 32, in steps of 32."""


def recorded(module: ModuleOp, schedule: UseAttr | None = None) -> GpuWork:
    """The work of the last group's nest, or of a template's kernel, from the value alone."""
    anchor = anchor_of([op for op in module.walk() if isinstance(op, FusedOp)][-1])
    (scheme,) = [op for op in module.body.block.ops if isinstance(op, ProgramOp)]
    nest: Nest = nest_of(scheme, {}, workload_of(anchor), GPU)
    found = work_of(Group(anchor), nest if schedule is None else schedule, GPU)
    assert isinstance(found, GpuWork)
    return found


def counted(module: ModuleOp) -> GpuWork:
    """That of the lowered kernel."""
    lower(treadle_context(), module, GPU, after="schedule", to="loops")
    return count_gpu_work([op for op in module.walk() if isinstance(op, FuncOp)][-1])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if min(*case.a, *case.b) > 1])
def test_predictions_are_the_counts_of_the_kernel(name: str) -> None:
    """Of matrices with more than one row and column: of others the loop passes prove more accesses to be masked."""
    module = CASES[name].module()
    found = recorded(module)
    assert asdict(found) == pytest.approx(asdict(counted(module)))


def test_a_product_is_counted_as_by_hand() -> None:
    work = recorded(Product((256, 256), (256, 256), BLOCK + shared("%k0", "vector 8 buffers 4 async")).module())
    assert (work.blocks, work.threads, work.tensor_bytes) == (16, 128, 2)
    assert work.tensor_flops == 2 * 64 * 64 * 256
    # 64 rows of A of two sectors, and 32 rows of B of four. Of C a warp stores 8 rows of 4 times 4 bytes at once.
    assert work.sectors == 8 * (64 * 2 + 32 * 4) + 4 * (2 * 2 * 2 * 2) * 8
    # A step of 16 takes 2 loads of A and 2 of B, each of 4 cycles: no two rows of 16 bytes meet in a bank.
    assert work.shared_loads == 16 * 4 * (2 + 2) * 4
    assert (work.steps, work.ahead, work.round_trips, work.barriers) == (8, 3, 0, 8)


def test_tiles_of_the_template_do_its_work() -> None:
    """But for how it stores: the template hands halves through shared memory to lanes that store 16 bytes."""
    module = Product((256, 256), (256, 256), BLOCK + shared("%k0", "vector 8 buffers 4 async")).module()
    tile = {"block": (64, 64), "warps": (2, 2), "block_k": 32}
    knobs = tile | {"stages": 4, "group": 1, "fragments": 1, "split_k": 1}
    nest, template = asdict(recorded(module)), asdict(recorded(module, UseAttr.get("matmul_mma", knobs)))
    for count in ("blocks", "threads", "operations", "tensor_flops", "steps", "ahead", "round_trips", "bytes"):
        assert nest[count] == template[count], count
    slabs = 2 * 4 * 16 * 32 * 2 // 128
    assert nest["shared_loads"] == template["shared_loads"] - slabs
    assert nest["shared_bytes"] == template["shared_bytes"] - 16 * 2 * 64 * 2
    assert nest["barriers"] == template["barriers"] - 4


def test_rows_that_are_copied_ahead_keep_the_swizzle() -> None:
    """Transposed operands and two products a stage: rows still meet in no bank."""
    plain, turned = (
        recorded(Product((64, 64), (64, 64), BLOCK + shared("%k0", AHEAD), transposed=each).module())
        for each in ("", "ab")
    )
    assert plain.shared_loads == turned.shared_loads
