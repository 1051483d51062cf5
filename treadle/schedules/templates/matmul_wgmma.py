"""Matrix products of warpgroups, on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, TensorType, f32, i32
from xdsl.ir import SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.linear import BF16
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.boxes import Windows, contiguous_axis, obstacle_to_windows, windows_of
from treadle.schedules.kernel_builder import Index, kernel_builder
from treadle.schedules.reduction_end import reduction_end
from treadle.schedules.split_k import block_coordinates, outer_indices, tiles_of
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits, number, pair
from treadle.schedules.tiles import Region
from treadle.schedules.warpgroups import (
    SLAB,
    SPAN,
    TERM_BYTES,
    WARPGROUP,
    Matrix,
    Operand,
    OperandTile,
    Pipe,
    WarpgroupBuilder,
    without_warpgroups,
)
from treadle.target import KIB, Target

_TILE_COST: Mapping[tuple[int, int], float] = {(128, 256): 1.0, (128, 192): 1.02, (128, 128): 1.08}
"""The time of an element of a block's tile, beside that of the largest.

Of kernels of this form on an H100 (operands and result f16, TFLOP/s): 4096^3 763, 673, 675, where the tiles fill 4, 6
and 8 waves; 3072^3 531, 694, 616 in 3, 3 and 5 waves; 8192^3 720, 717, 615 in 16, 21 and 32.
"""
_SMALLEST = min(_TILE_COST, key=prod)
_RATE, _RATE_OF_MMA = 763e12, 370e12
"""Operations a second on an H100 at 4096^3: of this kernel, and of `matmul_mma`, which takes smaller products: of these
the tiles are too few, and are not split along the terms."""
RATE_OF_MMA_ON_WINDOWS = 228e12
"""The same of `matmul_mma` on windows over images, whose every copy has a place and a predicate of its own: 3 x 3 of 32
images of 14 x 14 x 256 in 32.4 us; 112e12 of 8 of 56 x 56 x 64."""
_SHARED = 227 * KIB
"""Of a block, in bytes, on every device of compute capability 9.0."""
OTHER_BYTES = 2048
"""Of shared memory: barriers, and what alignment leaves."""
_MOST_ACCUMULATORS = 192
"""Of a consumer's thread. Found by compiling: of floats of 8 bits, two sets of 128 spill."""


class MatmulWgmma(Template):
    """The product on Hopper's tensor cores: one thread copies boxes of A and B to `stages` of swizzled shared memory,
    one or two warpgroups multiply them, sums in f32, or of bytes in i32; blocks stay and take one tile after another,
    so that what the next one needs is copied while one is stored.

    Of floats of 8 bits, products keep sums in about 14 bits, rounded towards 0: those of 128 terms where the anchor has
    `precision = "bf16"`, else of 32, are added to others in f32, by the multiplying threads.

    Every size is covered whose rows begin at multiples of 16 bytes: copies beyond the matrices write 0, stores beyond C
    are left out. Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA": warp-specialised persistent kernels.
    """

    name: ClassVar[str] = "matmul_wgmma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 90
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob(
            "block",
            ((64, 128), (64, 256), (128, 128), (128, 192), (128, 256), (256, 128)),
            "rows and columns of a block's tile of C",
        ),
        Knob("stages", (2, 3, 4, 5, 6, 7, 8), "tiles of A and of B in shared memory"),
        Knob("group", (1, 8, 16), "rows of tiles that follow one another, so that they share B's columns in L2"),
    )

    def runs_on(self, target: Target) -> bool:
        return super().runs_on(target) and target.has_warpgroups

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and refusal(anchor) is None

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, MatmulOp) or target.capability != self.least_capability:
            return None
        if not self.runs_on(target):
            return without_warpgroups(target)
        why = refusal(anchor)
        if why is None and not self.has_default(anchor, target):
            tiles, multiprocessors = tiles_of(anchor, *_SMALLEST), target.multiprocessors
            if tiles >= multiprocessors:
                return f"too much of its tiles of {_SMALLEST[0]} x {_SMALLEST[1]} would lie outside of the result"
            return f"its tiles are too few for {multiprocessors} multiprocessors"
        return why

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether tiles fill the device well enough to be faster than products of warps, whose terms are split; floats
        of 8 bits are multiplied by ordinary cores else."""
        assert isinstance(anchor, MatmulOp)
        if anchor.is_of_small_floats:
            return _seconds(anchor, target) <= _operations(anchor) / target.peak_f32
        return outpaces_mma(anchor, target)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        costs = _tile_costs(anchor)
        block = min(costs, key=lambda tile: (_waves(anchor, tile, target) * costs[tile], -prod(tile)))
        tile = WgmmaTile.of(anchor, block, 1)
        rows = ceil(anchor.shape[-2] / block[0])
        stages = min(tile.most_stages(target.shared_per_block), 8)
        return {"block": block, "stages": stages, "group": 8 if rows >= 8 else 1}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = WgmmaTile.of(anchor, pair(choices, "block"), number(choices, "stages"))
        used = (
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("accumulators a thread", tile.accumulators, _MOST_ACCUMULATORS),
        )
        check_limits(f"{self.name} with {tile.m} x {tile.n} tiles in {tile.stages} stages", used, target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        tile = WgmmaTile.of(anchor, pair(choices, "block"), number(choices, "stages"))
        return wgmma_kernel(anchor, tile, number(choices, "group"), target.multiprocessors, name)


def outpaces_mma(anchor: MatmulOp, target: Target) -> bool:
    """Whether tiles fill the device well enough to be faster than products of warps, whose terms are split."""
    rate = _RATE_OF_MMA if _windows(anchor) is None else RATE_OF_MMA_ON_WINDOWS
    return _seconds(anchor, target) <= _operations(anchor) / rate


def _tile_costs(anchor: MatmulOp) -> Mapping[tuple[int, int], float]:
    """Of the tiles that a default is chosen from: those that registers hold."""
    return {
        block: cost
        for block, cost in _TILE_COST.items()
        if WgmmaTile.of(anchor, block, 1).accumulators <= _MOST_ACCUMULATORS
    }


def _seconds(anchor: MatmulOp, target: Target) -> float:
    """Of the tile whose waves take least, at the rate of 16 bits."""
    cost = min(_waves(anchor, tile, target) * weight for tile, weight in _tile_costs(anchor).items())
    windows = _windows(anchor)
    terms = anchor.reduction_extent
    if windows is not None:
        tile = WgmmaTile.of(anchor, next(iter(_TILE_COST)), 1)
        terms = tile.steps * tile.a.terms
    return cost * 2 * terms / (_RATE / target.multiprocessors)


def _operations(anchor: MatmulOp) -> int:
    """Multiplications and additions."""
    return 2 * prod(anchor.shape) * anchor.reduction_extent


def _waves(anchor: MatmulOp, tile: tuple[int, int], target: Target) -> int:
    """Elements of C that a multiprocessor computes."""
    return ceil(tiles_of(anchor, *tile) / target.multiprocessors) * prod(tile)


def refusal(anchor: MatmulOp) -> str | None:
    """Why copies of boxes and products of warpgroups cannot compute a product; None if they can."""
    if reduction_end(anchor) is not None:
        return "its terms end at an extent of a call"
    type = anchor.type.get_element_type()
    if anchor.sums is None and not isinstance(type, Float16Type | BFloat16Type):
        return f"its operands are {type}: f16, bf16, bytes and floats of 8 bits are multiplied so"
    for name, (operand, axis) in zip("AB", _along_k(anchor), strict=True):
        found = _axis(anchor, operand)
        why = obstacle_to_windows(anchor, operand) if found is None and operand is anchor.a else None
        if why is not None:
            return f"{name} is windows over images: {why}"
        if found is None:
            return f"{name} is computed by the group, or its rows begin at no multiples of 16 bytes"
        if anchor.sums is not None and found != axis:
            return f"{name}'s elements, of 8 bits, lie across the terms"
    return None


def _terms_apart(anchor: MatmulOp) -> int:
    """Of floats of 8 bits, the terms whose sum products carry, in 14 bits (docs/adr/0099)."""
    if not anchor.is_of_small_floats:
        return 0
    return SPAN if anchor.precision == BF16 else TERM_BYTES


def _axis(anchor: MatmulOp, operand: SSAValue) -> int | None:
    """The axis of an operand along which copies bring it, of windows that of their channels; None where none do."""
    return -1 if operand is anchor.a and _windows(anchor) is not None else contiguous_axis(anchor, operand)


def _windows(anchor: MatmulOp) -> Windows | None:
    """The terms of a convolution, whose left operand comes by copies of pixels; None for other products."""
    return windows_of(anchor, anchor.a) if contiguous_axis(anchor, anchor.a) is None else None


def _along_k(anchor: MatmulOp) -> list[tuple[SSAValue, int]]:
    """Both operands, and the axis of their terms."""
    return [(anchor.a, -1), (anchor.b, -2)]


@dataclass(frozen=True)
class WgmmaTile:
    """The extents that choices imply for an anchor.

    m, n: of the block's tile; a, b: how operands lie in a stage
    windows: what the terms are; those of an ordinary product count as one position's channels
    is_of_windows: whether it is a convolution's
    terms_apart: those whose sum tensor cores carry before it is added to others; 0 where that is all of them
    """

    m: int
    n: int
    stages: int
    a: OperandTile
    b: OperandTile
    windows: Windows
    is_of_windows: bool
    terms_apart: int = 0

    @staticmethod
    def of(anchor: MatmulOp, block: tuple[int, int], stages: int) -> WgmmaTile:
        """The extents of some choices."""
        assert isinstance(anchor.a.type, TensorType)
        size = byte_width(anchor.a.type.get_element_type())
        terms = SPAN // size
        a, b = (
            OperandTile(own, terms, size, _axis(anchor, operand) == axis)
            for own, (operand, axis) in zip(block, _along_k(anchor), strict=True)
        )
        windows = _windows(anchor)
        terms = windows or Windows(1, anchor.reduction_extent)
        return WgmmaTile(*block, stages, a, b, terms, windows is not None, _terms_apart(anchor))

    @property
    def channel_steps(self) -> int:
        """Steps of a position in the window."""
        return ceil(self.windows.channels / self.a.terms)

    @property
    def steps(self) -> int:
        """Along the terms."""
        return self.windows.taps * self.channel_steps

    @property
    def accumulators(self) -> int:
        """Registers of a consumer's thread for sums."""
        slabs = self.m // self.consumers // SLAB + (self.terms_apart > 0)
        return slabs * SLAB * self.n // WARPGROUP

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return min(2, self.m // SLAB)

    @property
    def stage_bytes(self) -> int:
        """Of a stage."""
        return self.a.bytes + self.b.bytes

    @property
    def piece_bytes(self) -> int:
        """Of what all warps store at a time."""
        return self.consumers * SLAB * SPAN

    def most_stages(self, shared: int) -> int:
        """That fit into so much shared memory."""
        return (shared - self.piece_bytes - OTHER_BYTES) // self.stage_bytes

    @property
    def pieces(self) -> int:
        """That may be under way: two where that costs no stage."""
        left = _SHARED - self.stages * self.stage_bytes - OTHER_BYTES
        return max(1, min(2, left // self.piece_bytes))

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.stages * self.stage_bytes + self.pieces * self.piece_bytes + OTHER_BYTES


@dataclass(frozen=True)
class Factors:
    """Stages of both operands of a product in shared memory, and the pipe that fills them."""

    anchor: MatmulOp
    tile: WgmmaTile
    w: WarpgroupBuilder
    a: Operand
    b: Operand
    pipe: Pipe

    @staticmethod
    def of(anchor: MatmulOp, tile: WgmmaTile, w: WarpgroupBuilder) -> Factors:
        """Those of a tile. All threads reach it; a barrier of the block is behind it."""
        types = [x.type for x in (anchor.a, anchor.b) if isinstance(x.type, TensorType)]
        a = w.operand("shared_a", tile.a, types[0].get_element_type(), tile.stages)
        b = w.operand("shared_b", tile.b, types[1].get_element_type(), tile.stages)
        return Factors(anchor, tile, w, a, b, w.pipe(tile.stages, tile.stage_bytes))

    def bring(self, number: Index, step: Index, at: Place, steps: int) -> None:
        """The producer's: fills the stage of a step of the pipe by a tile's step along the terms, which is one of
        `steps`: those behind the last term bring zeros."""
        b, tile, (m, n), k = self.w.b, self.tile, self.anchor.shape[-2:], self.anchor.reduction_extent
        row, column, outer = at
        of_a, of_b = tile.a, tile.b
        stage, term = self.pipe.acquire(number), step * of_a.terms
        left, right = (outer_indices(operand, outer) for operand in (self.anchor.a, self.anchor.b))
        terms = of_a.terms * steps
        rows = Region.of(b, b.inputs[0], (row, term), (m, k), (of_a.own, terms), left)
        columns = Region.of(b, b.inputs[1], (term, column), (k, n), (terms, of_b.own), right)
        matrices: tuple[Matrix | None, Matrix | None] = None, None
        if tile.is_of_windows:
            channels = tile.windows.channels
            channel = step % tile.channel_steps * of_a.terms
            if steps > tile.steps:
                channel = (step < tile.steps).select(channel, b.index(channels))
            term = step // tile.channel_steps * channels + channel
            rows = replace(rows, first=(row, term), ends=(None, None))
            columns = replace(columns, first=(term, column))
            matrices = Matrix(m, channel, channels), None
            if channels % of_a.terms:
                columns = replace(columns, ends=(None, None))
                matrices = matrices[0], Matrix(n, channel, channels)
        self.w.copy(rows, self.a, stage, self.pipe, matrices[0])
        self.w.copy(columns.transposed, self.b, stage, self.pipe, matrices[1])


Place = tuple[Index, Index, Sequence[Index]]
"""Of a tile: its first row and column, and the indices of the outer dimensions."""


def place_of(number: Index, anchor: MatmulOp, tile: WgmmaTile, group: int) -> Place:
    """Where a tile lies: as many rows of tiles as `group` says follow one another."""
    (*batch, m, n) = anchor.shape
    rows, columns = ceil(m / tile.m), ceil(n / tile.n)
    of_matrix = number % (rows * columns) if batch else number
    row, column = block_coordinates(of_matrix, rows, columns, group)
    outer = (number // (rows * columns)).delinearize(batch) if batch else []
    return row * tile.m, column * tile.n, outer


def wgmma_kernel(anchor: MatmulOp, tile: WgmmaTile, group: int, blocks: int, name: str) -> KernelOp:
    """The kernel of one product, of at most so many blocks: a producer's copies, and consumers' products and stores."""
    operands = [anchor.a, anchor.b]
    b = kernel_builder(operands, anchor.type)
    w = WarpgroupBuilder(b, tile.consumers)
    (m, n), k = anchor.shape[-2:], anchor.reduction_extent
    steps, total = tile.steps, tiles_of(anchor, tile.m, tile.n)
    blocks = min(blocks, total)
    factors = Factors.of(anchor, tile, w)
    pipe = factors.pipe
    with w.producer(), w.tiles(total, blocks) as (before, number):
        at = place_of(number, anchor, tile, group)
        # Of few steps with a quotient each, the producer's registers do not hold what all of them need.
        with b.loop("step", steps, at_once=1 if tile.is_of_windows else None) as step:
            factors.bring(before * steps + step, step, at, steps)

    with w.consumer() as consumer:
        c = consumer.sums("acc", i32 if anchor.is_of_bytes else f32, tile.m // tile.consumers, tile.n)
        part = consumer.sums("part", f32, SLAB, tile.n) if tile.terms_apart else None
        with w.tiles(total, blocks) as (before, number):
            first = before * steps
            apart = None if part is None else (part, tile.terms_apart)
            consumer.multiply_steps(factors.a, factors.b, c, pipe, first, steps, apart)
            pipe.release(pipe.stage(first + (steps - 1)), consumer.lane)
            row, column, outer = place_of(number, anchor, tile, group)
            of_c = Region.of(b, b.output, (row, column), (m, n), (tile.m, tile.n), outer)
            consumer.store_pieces(c, of_c, tile.pieces, before)
        consumer.drain()
    comment = f"C[{m}, {n}] = A[{m}, {k}] * B[{k}, {n}]"
    return b.kernel(name, operands, anchor.type, blocks, w.threads, comment, 1)
