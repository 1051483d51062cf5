"""Matrix products of few tiles on Hopper's tensor cores: a cluster of blocks shares out the terms of each tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import f32, i32

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.extents import extents_around
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.clusters import ClusterSums, shared_bytes
from treadle.schedules.kernel_builder import kernel_builder
from treadle.schedules.split_k import tiles_of
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, check_limits, number, pair
from treadle.schedules.templates.matmul_wgmma import (
    OTHER_BYTES,
    RATE_OF_MMA_ON_WINDOWS,
    Factors,
    WgmmaTile,
    place_of,
    refusal,
)
from treadle.schedules.tiles import Region
from treadle.schedules.warpgroups import WARPGROUP, WarpgroupBuilder
from treadle.target import KIB, Target

_BLOCKS = ((64, 64), (128, 64))
"""Tiles that a default has. On an H100 128 x 128 took 8.2 us where these took 6.5, 64 x 128 8.8 where they took 5.0."""
_START, _STEP, _ELEMENT, _BYTE = 2.48e-6, 0.013e-6, 0.96e-6 / 4096, 0.214e-6 / KIB / KIB
"""Seconds on an H100: of a launch, of a step of a block, of an element of the tiles that a multiprocessor computes, of
a byte that blocks read.

Fitted to 35 kernels by hand, operands from memory, of products of 0.1 to 0.9 GFLOP with 2 to 8 blocks a tile, 20 of
which sum as this one does: 9% off on average, 24% at most. What is chosen took 6.8 us at 128 x 768 x 2304 (128 x 64 by
2, summed by plain stores), 4.2 at 128 x 768 x 768 (64 x 64 by 4), 8.0 at 128 x 768 x 3072 (128 x 64 by 2) and 7.2 at
128 x 3072 x 768 (128 x 64 by 8; 64 x 64 by 4 took 7.0).
"""
_START_OF_MMA, _RATE_OF_MMA = 4.5e-6, 1 / 5.7e-15
"""The same of `matmul_mma`, and operations a second: 7.2, 5.4, 8.0 and 9.9 us at these four."""
_START_ON_WINDOWS, _TERM_ON_WINDOWS = 2.57e-6, 2.66e-9
"""The same on windows over one image, of a launch and of a term: 3 x 3 of 56 x 56 x 64 in 4.1 us and of 14 x 14 x 256,
with as many operations, in 8.7."""
_LEAST_MEASURED = 1e8
"""Operations of the smallest product that was measured: whether smaller ones gain is not known."""
_FEW_SUMS = 32
"""Of a thread: two blocks of a multiprocessor have registers for them."""


class MatmulCluster(Template):
    """The product of warpgroups for few tiles: `split` blocks, a cluster, share out the terms of each; every one sums
    its part for the whole tile, sends the sums to the blocks that finish the rows, and finishes its own rows. One
    thread copies boxes of A and B to `stages` of swizzled shared memory, as for `matmul_wgmma`.

    Sums are added in the order of the blocks' ranks. Source: NVIDIA, CUDA C++ Programming Guide, "Distributed Shared
    Memory"; CUTLASS documentation, "Efficient GEMM in CUDA", parallelized reductions.
    """

    name: ClassVar[str] = "matmul_cluster"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 90
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", (*_BLOCKS, (64, 128), (128, 128)), "rows and columns of a cluster's tile of C"),
        Knob("split", (1, 2, 4, 8), "blocks of a cluster, which share out the terms"),
        Knob("stages", (2, 3, 4, 5, 6, 7, 8), "tiles of A and of B in shared memory"),
    )

    def runs_on(self, target: Target) -> bool:
        return super().runs_on(target) and target.has_warpgroups

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, MatmulOp) or anchor.is_of_small_floats or refusal(anchor) is not None:
            return False
        # Blocks that a call leaves out would be missing in their clusters.
        return not extents_around(anchor)

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, MatmulOp) or not self.runs_on(target) or refusal(anchor) is not None:
            return None
        if extents_around(anchor):
            return "a call may leave out blocks of a cluster"
        if anchor.is_of_small_floats:
            return "it does not multiply floats of 8 bits"
        if anchor.is_of_bytes:
            return "of bytes it has not been measured"
        if self.has_default(anchor, target):
            return None
        return "products of warps are predicted to end earlier"

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether one wave of blocks is predicted to beat products of warps: of floats, which were measured."""
        assert isinstance(anchor, MatmulOp)
        operations = 2 * prod(anchor.shape) * anchor.reduction_extent
        if anchor.sums is not None or operations < _LEAST_MEASURED or _steps(anchor) == 1:
            return False
        block, split = _best(anchor, target)
        is_one_wave = tiles_of(anchor, *block) * split <= target.multiprocessors
        return is_one_wave and _seconds(anchor, block, split, target) < _seconds_of_mma(anchor)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        block, split = _best(anchor, target)
        # All copies of a block start at once, if there is room: what is read is far from where it is needed.
        stages = min(
            ceil(_steps(anchor) / split), ClusterTile(WgmmaTile.of(anchor, block, 1), split).most_stages(target)
        )
        return {"block": block, "split": split, "stages": max(2, min(8, stages))}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = ClusterTile.of(anchor, choices)
        steps, split = _steps(anchor), tile.split
        message = f"{self.name} with {split} blocks for {steps} steps along K leaves {split - steps} without any"
        check_limit("blocks along K", split, steps, None, message, f"at most {steps}")
        used = (("bytes of shared memory", tile.shared_bytes, target.shared_per_block),)
        check_limits(f"{self.name} with {tile.of_block.m} x {tile.of_block.n} tiles", used, target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return cluster_kernel(anchor, ClusterTile.of(anchor, choices), name)


def _steps(anchor: MatmulOp) -> int:
    """Along the terms."""
    return WgmmaTile.of(anchor, _BLOCKS[0], 1).steps


def _best(anchor: MatmulOp, target: Target) -> tuple[tuple[int, int], int]:
    """The tile and the number of blocks that are predicted to take least."""
    splits = [split for split in (2, 4, 8) if split <= _steps(anchor)] or [1]
    return min(
        ((block, split) for block in _BLOCKS for split in splits),
        key=lambda choice: _seconds(anchor, *choice, target),
    )


def _seconds(anchor: MatmulOp, block: tuple[int, int], split: int, target: Target) -> float:
    """The predicted time of a kernel."""
    tile = WgmmaTile.of(anchor, block, 1)
    blocks, steps = tiles_of(anchor, *block) * split, ceil(_steps(anchor) / split)
    elements = ceil(blocks / target.multiprocessors) * prod(block)
    return _START + _STEP * steps + _ELEMENT * elements + _BYTE * blocks * steps * tile.stage_bytes


def _seconds_of_mma(anchor: MatmulOp) -> float:
    """The predicted time of `matmul_mma`."""
    operations, terms = 2 * prod(anchor.shape) * anchor.reduction_extent, anchor.reduction_extent
    if WgmmaTile.of(anchor, _BLOCKS[0], 1).is_of_windows:
        return max(_START_ON_WINDOWS + _TERM_ON_WINDOWS * terms, operations / RATE_OF_MMA_ON_WINDOWS)
    return _START_OF_MMA + operations / _RATE_OF_MMA


@dataclass(frozen=True)
class ClusterTile:
    """The extents that choices imply for an anchor: a block's tile, and how many blocks share out its terms."""

    of_block: WgmmaTile
    split: int

    @staticmethod
    def of(anchor: MatmulOp, choices: Choices) -> ClusterTile:
        """The extents of some choices."""
        tile = WgmmaTile.of(anchor, pair(choices, "block"), number(choices, "stages"))
        return ClusterTile(tile, number(choices, "split"))

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.of_block.stages * self.of_block.stage_bytes + self._other_bytes

    def most_stages(self, target: Target) -> int:
        """That fit into the shared memory of a block."""
        return (target.shared_per_block - self._other_bytes) // self.of_block.stage_bytes

    @property
    def _other_bytes(self) -> int:
        return shared_bytes((self.of_block.m, self.of_block.n), f32.size) + OTHER_BYTES

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor for which registers are kept free."""
        sums = self.of_block.m * self.of_block.n // (self.of_block.consumers * WARPGROUP)
        return 2 if sums <= _FEW_SUMS and 2 * self.shared_bytes <= 226 * KIB else 1


def cluster_kernel(anchor: MatmulOp, tile: ClusterTile, name: str) -> KernelOp:
    """The kernel of one product, of a cluster for each tile."""
    operands, of_block, split = [anchor.a, anchor.b], tile.of_block, tile.split
    b = kernel_builder(operands, anchor.type)
    w = WarpgroupBuilder(b, of_block.consumers, moves_registers=False)
    (m, n), k = anchor.shape[-2:], anchor.reduction_extent
    steps, tiles = _steps(anchor), tiles_of(anchor, of_block.m, of_block.n)
    rank, element = b.block % split, i32 if anchor.is_of_bytes else f32
    # Tiles that share columns of B run side by side.
    at = place_of(b.block // split, anchor, of_block, ceil(m / of_block.m))
    # As many of each block, so that stages are constants: the last ones may bring zeros.
    count = ceil(steps / split)
    sums = ClusterSums.of(b, rank, split, (of_block.m, of_block.n), element)
    factors = Factors.of(anchor, of_block, w)
    sums.start()

    with w.producer(), b.loop("step", count) as step:
        factors.bring(step, rank * count + step, at, count * split)
    with b.when(w.role.equals(0)):
        sums.meet()

    with w.consumer() as consumer:
        c = consumer.sums("acc", element, of_block.m // of_block.consumers, of_block.n)
        consumer.multiply_steps(factors.a, factors.b, c, factors.pipe, b.index(0), count)
        sums.meet()
        sums.send(c)
        row, column, outer = at
        of_c = Region.of(b, b.output, (row, column), (m, n), (of_block.m, of_block.n), outer)
        sums.store(of_c, WARPGROUP * of_block.consumers)
    comment = f"C[{m}, {n}] = A[{m}, {k}] * B[{k}, {n}]"
    return b.kernel(name, operands, anchor.type, tiles * split, w.threads, comment, tile.resident, split)
