"""Matrix products on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type

from treadle.dialects.graph import MatmulOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.schedule import Choice
from treadle.schedules.gpu_work import GpuWork
from treadle.schedules.limits import check_divides, check_limit, check_limits
from treadle.schedules.operand_layout import has_contiguous_rows
from treadle.schedules.split_k import SPLIT_K, Slices, first_that_fills, number_of_slices, shared_out, tiles_of
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.matmul_mma_kernel import MmaKernel
from treadle.schedules.templates.matmul_mma_tile import MmaTile, mma_tile
from treadle.schedules.templates.mma_work import mma_work
from treadle.target import Target

_TERMS = 256
"""Terms of a slice, at least: fewer are multiplied faster than their sum is written and read."""
_BLOCKS = (
    (16, 128), (32, 64), (64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128), (128, 256), (256, 128),
)  # fmt: skip
_NARROW = 32
"""Columns of the narrowest tiles: those of products that have no more, such as convolutions to few channels."""
_MOST_SPLIT = 64
"""Accumulators of a thread up to which there are registers for them and for what adds slices up."""
_SMALLEST_WARP_TILE = 16 * 32
_MOST_GATHERING = 64
"""The same of a thread that loads single bytes, each by a load of its own, all of which are under way at once."""
_LEAST_COPY = 4
"""Bytes of the smallest asynchronous copy."""
_LARGEST_AHEAD = 384
"""Bytes along K of all stages: copies that start earlier take shared memory from other blocks, and win nothing."""
_OTHER_REGISTERS = 64
"""What addresses, predicates and the loop take beside matrices; generous, since a spill costs more than it saves."""


class MatmulMma(Template):
    """The tensor-core product: `stages` tiles of A and B in swizzled shared memory, filled by asynchronous copies of
    16 bytes a thread, loaded as fragments and multiplied by warps, C accumulated in f32 and rounded once.

    Every size is covered: copies beyond the matrices write 0, stores beyond C are left out.
    Source: Hidet (ASPLOS 2023), sections 4.2 and 5.1.2; CUTLASS' multistage pipelines for the order of its steps.
    """

    name: ClassVar[str] = "matmul_mma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", _BLOCKS, "rows and columns of a block's tile of C"),
        Knob("warps", ((1, 4), (2, 2), (2, 4), (4, 2)), "warps of a block along M and N"),
        Knob("block_k", (32, 64), "extent of the tiles along K"),
        Knob("stages", (2, 3, 4, 5), "tiles of A and of B in shared memory"),
        Knob("group", (1, 8), "rows of blocks that run next to one another, so that they share B's columns in L2"),
        SPLIT_K,
    )
    default_block_k: ClassVar[int] = 32

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        m, block_k, warps = anchor.shape[-2], self.default_block_k, self._preferred(anchor)

        def split_k(rows: int, columns: int) -> int:
            return _slices(anchor, rows, columns, block_k, target)

        block = first_that_fills(anchor, list(warps), split_k, target.multiprocessors)
        return {
            "block": block,
            "warps": warps[block],
            "block_k": block_k,
            "stages": 4,
            "group": 8 if ceil(m / block[0]) >= 8 else 1,
            "split_k": split_k(*block),
        }

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        """Tiles in the order of preference, and their warps."""
        m, n = anchor.shape[-2:]
        if n <= _NARROW:
            return {(128, _NARROW): (4, 2), (64, _NARROW): (2, 2)}
        if m <= 16:
            return {(16, 128): (1, 4)}
        return {(128, 128): (2, 2), (64, 128): (2, 2), (64, 64): (2, 2), (32, 64): (2, 2)}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        def split_k(choices: Choices) -> Choice:
            assert isinstance(anchor, MatmulOp)
            tile = mma_tile(anchor, choices)
            splits = tile.accumulators <= _MOST_SPLIT
            return _slices(anchor, tile.m, tile.n, tile.block_k, target) if splits else 1

        return {"split_k": split_k}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        self._check_warps(tile)
        self._check_slices(tile, shared_out(anchor, number(choices, "split_k"), tile.block_k))
        self._check_columns(tile, anchor.shape[-1])
        used = (
            ("threads", tile.threads, target.max_threads_per_block),
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("registers a thread", tile.registers + _OTHER_REGISTERS, target.registers_per_thread),
            ("bytes along K in all stages", tile.stages * tile.block_k * tile.a.element_bytes, _LARGEST_AHEAD),
        )
        who = f"{self.name} with {tile.m} x {tile.n} x {tile.block_k} tiles in {tile.stages} stages"
        check_limits(who, used, target)
        for operand, shared in (("A", tile.a), ("B", tile.b)):
            check_divides(
                f"chunks of {operand}'s tile that all threads copy",
                min(tile.threads, shared.chunks),
                shared.chunks,
                f"{self.name}: {operand}'s tile of {shared.chunks} chunks is not shared out evenly by "
                f"{tile.threads} threads, {shared.chunks % tile.threads} remain",
                accepted="a tile whose chunks of 16 bytes are a multiple of the threads",
            )

    def _check_warps(self, tile: MmaTile) -> None:
        """TreadleError for warps' tiles that are too small or too narrow to reuse what they load."""
        rows, columns = tile.warp
        message = (
            f"{self.name}: {tile.warps[0]} x {tile.warps[1]} warps share {tile.m} x {tile.n} tiles as {rows} x "
            f"{columns}, {max(0, _SMALLEST_WARP_TILE - rows * columns)} elements too few for a warp"
        )
        accepted = f"multiples of 16, at least {_SMALLEST_WARP_TILE} elements, one side at most twice the other"
        for what, used, limit in (
            ("elements that a warp needs", _SMALLEST_WARP_TILE, rows * columns),
            ("elements along the longer side of a warp's tile", max(rows, columns), 2 * min(rows, columns)),
            ("rows of a warp's products", rows + -rows % 16, rows),
            ("columns of a warp's products", columns + -columns % 16, columns),
        ):
            check_limit(what, used, limit, message=message, accepted=accepted)

    def _check_slices(self, tile: MmaTile, slices: Slices) -> None:
        """TreadleError for slices without terms, and for more accumulators than can be added up in registers."""
        slices.check(self.name)
        if slices.number > 1:
            check_limit(
                "accumulators a thread that are added up",
                tile.accumulators,
                _MOST_SPLIT,
                message=f"{self.name} with {slices.number} slices and {tile.accumulators} accumulators a thread has "
                f"{tile.accumulators - _MOST_SPLIT} too many to add them up in registers",
                accepted=f"at most {_MOST_SPLIT} accumulators a thread, or split_k = 1",
            )

    def _check_columns(self, tile: MmaTile, columns: int) -> None:
        """TreadleError for narrow tiles of wide products, which would load A too often, and the other way round."""
        narrow = columns <= _NARROW
        if narrow == (tile.n <= _NARROW) or (narrow and tile.n <= 2 * _NARROW):
            return
        what, used, allowed = (
            ("columns of a narrow product's tile", tile.n, 2 * _NARROW)
            if narrow
            else ("columns that a wide product's tile needs", _NARROW + 1, tile.n)
        )
        check_limit(
            what,
            used,
            allowed,
            message=f"{self.name}: tiles of {tile.n} columns for a product of {columns} columns are too "
            f"{'wide' if narrow else 'narrow'} by {used - allowed}",
            accepted=f"at most {2 * _NARROW} columns for products of at most {_NARROW}, else more than {_NARROW}",
        )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        return MmaKernel(anchor, tile, number(choices, "split_k")).build(name)

    def work(self, anchor: Anchor, choices: Choices, target: Target) -> GpuWork | None:
        assert isinstance(anchor, MatmulOp)
        return mma_work(anchor, mma_tile(anchor, choices), number(choices, "split_k"))


class MatmulTf32(MatmulMma):
    """The same of f32 matrices, whose elements are rounded to tf32, 10 bits of mantissa, before they are multiplied.

    It computes another result than f32, hence it is a default only for a product that allows it: `precision = "tf32"`.
    """

    name: ClassVar[str] = "matmul_tf32"
    precision: ClassVar[str] = "tf32"
    knobs: ClassVar[tuple[Knob, ...]] = (
        *(knob for knob in MatmulMma.knobs if knob.name != "block_k"),
        Knob("block_k", (16, 32), "extent of the tiles along K"),
    )
    default_block_k: ClassVar[int] = 16

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and isinstance(anchor.type.get_element_type(), Float32Type)

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        super().limits(anchor, choices, target)
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        overhang = anchor.shape[-2] % tile.m or anchor.shape[-1] % tile.n
        # Found by compiling: copies of twice as many bytes as f16 take an address and a predicate each.
        if overhang and tile.accumulators > _MOST_SPLIT:
            check_limit(
                "terms of tiles that overhang",
                tile.block_k,
                self.default_block_k,
                message=f"{self.name}: {tile.accumulators} accumulators a thread leave no registers for the predicates "
                f"of copies with block_k = {tile.block_k}, {tile.block_k - self.default_block_k} too many, in tiles "
                f"that overhang by {overhang}",
                accepted=f"block_k = {self.default_block_k}, or at most {_MOST_SPLIT} accumulators a thread",
            )


class MatmulInt8(MatmulMma):
    """The same of bytes, each operand's signed or not, with sums in i32, which are exact.

    Both tiles in shared memory have rows along K, since no instruction transposes bytes: constants lie so
    (`graph-multiply-bytes`), and of other operands that do not each byte is loaded by itself, without asynchronous
    copies.
    """

    name: ClassVar[str] = "matmul_int8"
    knobs: ClassVar[tuple[Knob, ...]] = (
        *(knob for knob in MatmulMma.knobs if knob.name != "block_k"),
        Knob("block_k", (64, 128), "extent of the tiles along K"),
    )
    default_block_k: ClassVar[int] = 64

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.sums is not None

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        tiles = super()._preferred(anchor)
        if not _gathers_bytes(anchor):
            return tiles
        return {(m, n): warps for (m, n), warps in tiles.items() if m * n <= _MOST_GATHERING * WARP * prod(warps)}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        super().limits(anchor, choices, target)
        assert isinstance(anchor, MatmulOp)
        accumulators = mma_tile(anchor, choices).accumulators
        # Found by compiling.
        if _gathers_bytes(anchor):
            check_limit(
                "accumulators a thread beside single bytes",
                accumulators,
                _MOST_GATHERING,
                message=f"{self.name}: {accumulators} accumulators a thread, {accumulators - _MOST_GATHERING} too "
                "many, leave no registers for copies of single bytes",
                accepted=f"at most {_MOST_GATHERING} accumulators a thread, or operands along K in groups of "
                f"{_LEAST_COPY} bytes",
            )


def _gathers_bytes(anchor: MatmulOp) -> bool:
    """Whether an operand's bytes do not lie together along K as the smallest asynchronous copy moves them."""
    along_k = has_contiguous_rows(anchor, anchor.a, together=_LEAST_COPY)
    along_k = along_k and has_contiguous_rows(anchor, anchor.b, across=True, together=_LEAST_COPY)
    return not along_k or anchor.reduction_extent % _LEAST_COPY > 0


def _slices(anchor: MatmulOp, rows: int, columns: int, block_k: int, target: Target) -> int:
    """Into how many slices the terms of tiles of `rows` x `columns` are split."""
    terms, blocks = anchor.reduction_extent, tiles_of(anchor, rows, columns)
    return number_of_slices(blocks, terms, block_k, _TERMS, target.multiprocessors)
