"""Work counted on kernels for GPUs: products by hand, and what warps cost as addresses one by one say."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, strategies

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, FusedOp, GatherOp, MatmulOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.passes.loop.fetched_sectors import bank_conflicts
from treadle.passes.loop.fetched_sectors import sectors as sectors_one_by_one
from treadle.schedules.gpu_time import GpuWork, gpu_seconds, resident_blocks
from treadle.schedules.templates.matmul_mma import tile_work
from treadle.schedules.work.gpu_work import OTHER_REGISTERS, in_warps, sectors, shared_cycles
from treadle.schedules.work.lowered import count_gpu_work
from treadle.target import Target

A100 = Target.parse("sm_80")


def counted(graph: Graph, operator: BinaryOp | GatherOp | MatmulOp, template: str, **choices: Choice) -> GpuWork:
    """The work of one operator's kernel."""
    module = graph.module(graph.add(operator))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    fused.schedule = UseAttr.get(template, choices)
    lower(treadle_context(), module, A100, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return count_gpu_work(kernel)


SIMT: dict[str, Choice] = {
    "warps": (2, 2), "repeats": (1, 1), "thread": (4, 4), "block_k": 8, "min_blocks_per_sm": 1,
    "a_order": "k", "b_order": "n", "a_vector": 4, "b_vector": 4, "split_k": 1,
}  # fmt: skip


def test_a_product_of_cuda_cores_is_counted_as_by_hand() -> None:
    """Tiles of 32 x 64 by 4 warps, in 32 steps of 8."""
    graph = Graph(np.zeros((256, 256), np.float32), np.zeros((256, 256), np.float32))
    work = counted(graph, MatmulOp(graph[0], graph[1]), "matmul_simt", **SIMT)
    assert (work.blocks, work.threads, work.bytes) == (8 * 4, 128, 3 * 256 * 256 * 4)
    assert work.operations == 32 * 64 * 256
    # A step takes 32 rows of A of one sector, and 8 rows of B of 8; 32 rows of C have 8.
    assert work.sectors == 32 * (32 + 8 * 8) + 32 * 8
    # A thread loads 4 rows and 4 columns at once, a quarter of a warp in a cycle.
    assert work.shared_loads == 256 * 4 * (4 + 4)
    assert work.shared_bytes == 2 * 8 * (36 + 64) * 4
    assert (work.steps, work.ahead, work.round_trips, work.barriers) == (31, 1, 1, 32)
    # 16 sums, 2 and 4 elements loaded ahead, 4 rows and 4 columns.
    assert work.registers == 16 + 2 + 4 + 8 + OTHER_REGISTERS


def test_a_product_of_tensor_cores_is_counted_as_by_hand() -> None:
    """Tiles of 64 x 64 by 4 warps of 32 x 32, in 8 steps of 32, 3 of which are under way."""
    graph = Graph(np.zeros((256, 256), np.float16), np.zeros((256, 256), np.float16))
    choices: dict[str, Choice] = {
        "block": (64, 64), "warps": (2, 2), "block_k": 32, "stages": 4, "group": 1, "fragments": 1, "split_k": 1,
    }  # fmt: skip
    work = counted(graph, MatmulOp(graph[0], graph[1]), "matmul_mma", **choices)
    assert (work.blocks, work.threads, work.tensor_bytes) == (16, 128, 2)
    assert work.tensor_flops == 2 * 64 * 64 * 256
    # 64 rows of A of two sectors, and 32 rows of B of four; 64 rows of C of four.
    assert work.sectors == 8 * (64 * 2 + 32 * 4) + 64 * 4
    # A step of 16 takes 2 loads of A and 2 of B, each of 4 cycles; 2 slabs of C pass, of 16 rows of 32 halves a warp.
    assert work.shared_loads == 16 * 4 * (2 + 2) * 4 + 2 * 4 * 16 * 32 * 2 // 128
    assert (work.steps, work.ahead, work.round_trips, work.barriers) == (8, 3, 0, 8 + 2 * 2)


def test_fragments_that_are_loaded_ahead_wait_for_no_barrier() -> None:
    """Of 8 steps with one barrier each, another one before the first fragments, and 2 for each of two slabs of C."""
    tile: dict[str, Choice] = {"block": (64, 64), "warps": (2, 2), "block_k": 32, "stages": 4, "group": 1, "split_k": 1}
    found: list[GpuWork] = []
    for sets in (1, 2):
        graph = Graph(np.zeros((256, 256), np.float16), np.zeros((256, 256), np.float16))
        found.append(counted(graph, MatmulOp(graph[0], graph[1]), "matmul_mma", **tile, fragments=sets))
    one, two = found
    assert (one.barriers, one.waiting) == (8 + 4, 8 + 4)
    assert (two.barriers, two.waiting) == (9 + 4, 1 + 4)
    # The last step loads a set of fragments that nobody multiplies.
    assert two.shared_loads == one.shared_loads + 4 * (2 + 2) * 4
    assert gpu_seconds(two, A100) < gpu_seconds(one, A100)
    assert two.registers == one.registers + 2 * 4 + 4 * 2


def test_the_work_by_which_defaults_are_compared_is_what_is_recorded() -> None:
    """Of whole tiles, but for registers, of which the template allows for more, and accesses, as wide as rows allow."""
    for block, warps, sets in (((128, 128), (2, 2), 2), ((128, 64), (2, 2), 1), ((32, 64), (2, 2), 1)):
        tile: dict[str, Choice] = {"block": block, "warps": warps, "block_k": 32, "stages": 4, "group": 1}
        graph = Graph(np.zeros((512, 256), np.float16), np.zeros((256, 512), np.float16))
        anchor, choices = MatmulOp(graph[0], graph[1]), {**tile, "fragments": sets, "split_k": 1}
        expected = tile_work(anchor, choices)
        work = counted(graph, anchor, "matmul_mma", **choices)
        # The first fragments of two sets, and those that nobody multiplies, have a barrier and a load more.
        extra = warps[0] * warps[1] * (block[0] // warps[0] + block[1] // warps[1]) * 16 * 2 // 128 * (sets - 1)
        others = {"registers", "tensor_bytes", "min_blocks", "barriers", "shared_loads", "accesses"}
        for count in {each.name for each in fields(GpuWork)} - others:
            assert getattr(work, count) == getattr(expected, count), count
        assert (work.barriers, work.shared_loads) == (expected.barriers + sets - 1, expected.shared_loads + extra)


def test_nothing_hides_what_an_elementwise_kernel_waits_for() -> None:
    graph = Graph(np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32))
    work = counted(graph, BinaryOp("add", graph[0], graph[1]), "generic_cuda", threads=128, repeats=1, vector=4)
    assert (work.blocks, work.operations, work.sectors) == (8, 512, 3 * 64)
    assert (work.steps, work.round_trips, work.barriers) == (0, 1, 0)


def test_lanes_that_gather_take_a_sector_each() -> None:
    graph = Graph(np.zeros((64, 64), np.float32), np.zeros((1024,), np.int64))
    work = counted(graph, GatherOp(graph[0], graph[1], 1), "generic_cuda", threads=128, repeats=1, vector=1)
    # Of 128 threads: 8 bytes of an index, an element of theirs, and an element stored.
    assert work.sectors == 128 * 8 // 32 + 128 + 128 * 4 // 32


addresses = strategies.lists(strategies.integers(0, 400), min_size=32, max_size=64)


@given(addresses, strategies.sampled_from([4, 8, 16]))
def test_warps_cost_what_their_lanes_say(places: list[int], width: int) -> None:
    every = np.array(places) * width
    whole = in_warps(every)
    warps = [[int(address) for address in warp] for warp in whole]
    waves = sum(len(warp) * width // 128 if width > 4 else 1 for warp in warps)
    assert shared_cycles(whole, width) == waves + sum(bank_conflicts(warp, width) for warp in warps)
    assert sectors(whole, width) == sum(sectors_one_by_one(warp, width)[0] for warp in warps)


def kernel_of(**changes: float) -> GpuWork:
    """A block of 256 threads that multiplies and adds, and waits for nothing."""
    values: dict[str, float] = {
        "blocks": 108, "threads": 256, "registers": 64, "min_blocks": 1, "shared_bytes": 0, "operations": 256e4,
        "tensor_flops": 0, "tensor_bytes": 0, "sectors": 0, "shared_loads": 0, "shared_stores": 0, "accesses": 0,
        "steps": 0, "ahead": 0, "round_trips": 0, "barriers": 0, "waiting": 0, "bytes": 0,
    }  # fmt: skip
    return GpuWork(**(values | changes))  # pyright: ignore[reportArgumentType]


def test_a_kernel_is_not_faster_than_its_peaks() -> None:
    whole = kernel_of(blocks=108 * 64)
    assert 1.0 < gpu_seconds(whole, A100) / (whole.blocks * whole.operations * 2 / A100.peak_f32) < 1.05
    moved = kernel_of(operations=0, bytes=10**9)
    assert 1.0 < gpu_seconds(moved, A100) / (1e9 / A100.peak_bandwidth) < 1.05


def test_one_block_more_than_fit_takes_another_round() -> None:
    fit = resident_blocks(kernel_of(), A100)
    assert fit == 4
    times = [gpu_seconds(kernel_of(blocks=108 * n), A100) for n in (1, fit, fit + 1, 2 * fit)]
    assert times == sorted(times)
    assert times[2] - times[1] == pytest.approx(times[0] - gpu_seconds(kernel_of(blocks=0), A100))


def test_what_is_loaded_ahead_is_not_waited_for() -> None:
    """A step takes 40 cycles of the 500 that a load takes."""
    steps = [gpu_seconds(kernel_of(steps=1000, ahead=ahead), A100) for ahead in (0, 3, 13, 14)]
    assert steps[0] - steps[1] == pytest.approx(1000 * 3 * 40 / A100.clock, rel=0.01)
    assert steps[2] == steps[3]


def test_a_block_that_does_not_fit_takes_forever() -> None:
    assert gpu_seconds(kernel_of(shared_bytes=1 << 20), A100) == float("inf")
