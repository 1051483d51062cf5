"""Matrix products on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, TensorType, f32, i32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, MatmulOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import BANK_BYTES, BANKS, SECTOR_BYTES, WARP
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.gpu_time import GpuWork, gpu_seconds
from treadle.schedules.kernel_builder import Index, kernel_builder
from treadle.schedules.occupancy import occupancy_of
from treadle.schedules.pipelines import multiplied, pipelined
from treadle.schedules.reduction_end import reduction_end, with_end
from treadle.schedules.split_k import (
    SPLIT_K,
    Slices,
    block_coordinates,
    number_of_slices,
    outer_indices,
    shared_out,
    those_that_fill,
    tiles_of,
)
from treadle.schedules.template import (
    Anchor,
    Choices,
    Knob,
    Template,
    check_divides,
    check_limit,
    check_limits,
    number,
    pair,
)
from treadle.schedules.tiles import (
    CHUNK_BYTES,
    PRODUCT_M,
    PRODUCT_N,
    Region,
    TileBuilder,
    TileLayout,
    staged_bytes,
)
from treadle.target import Target

_TERMS = 256
"""Terms of a slice, at least: fewer are multiplied faster than their sum is written and read."""
_BLOCKS = (
    (16, 128), (32, 64), (64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128), (128, 256), (256, 128),
)  # fmt: skip
_NARROW = 32
"""Columns of the narrowest tiles: those of products that have no more, such as convolutions to few channels."""
_HALF_WIDE = 96
"""Columns of products whose default tiles have 64: a tile of 128 would multiply a quarter or more of zeros."""
_ALIKE = 1.02
"""Predicted time relative to the least up to which the tile that is preferred is the default: a prediction is not
more exact."""
_MOST_SPLIT = 64
"""Accumulators of a thread up to which there are registers for them and for what adds slices up."""
_FEW_WARPS = 4
_SMALLEST_WARP_TILE = 16 * 32
_MOST_GATHERING = 64
"""The same of a thread that loads single bytes, each by a load of its own, all of which are under way at once."""
_LEAST_COPY = 4
"""Bytes of the smallest asynchronous copy."""
_LARGEST_AHEAD = 384
"""Bytes along K of all stages: copies that start earlier take shared memory from other blocks, and win nothing."""
_OTHER_REGISTERS = 48
"""What addresses, predicates and the loop take beside matrices. Found by compiling: 64 x 64 of a warp with two sets of
fragments take 236 to 255 registers, 192 of them for matrices, and spill nothing."""


class MatmulMma(Template):
    """The tensor-core product: `stages` tiles of A and B in swizzled shared memory, filled by asynchronous copies of
    16 bytes a thread, loaded as fragments and multiplied by warps, C accumulated in f32 and rounded once.

    Every size is covered: copies beyond the matrices write 0, stores beyond C are left out.
    Source: Hidet (ASPLOS 2023), sections 4.2 and 5.1.2; CUTLASS' multistage pipelines for the order of its steps.
    """

    name: ClassVar[str] = "matmul_mma"
    kind: ClassVar[str] = "cuda"
    copies_ahead: ClassVar[bool] = True
    least_capability: ClassVar[int] = 80
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", _BLOCKS, "rows and columns of a block's tile of C"),
        Knob("warps", ((1, 4), (2, 2), (2, 4), (4, 2)), "warps of a block along M and N"),
        Knob("block_k", (32, 64), "extent of the tiles along K"),
        Knob("stages", (2, 3, 4, 5), "tiles of A and of B in shared memory"),
        Knob("group", (1, 8), "rows of blocks that run next to one another, so that they share B's columns in L2"),
        Knob("fragments", (1, 2), "sets of fragments of a warp, of which one is loaded while the other is multiplied"),
        SPLIT_K,
    )
    default_block_k: ClassVar[int] = 32
    default_stages: ClassVar[tuple[int, int]] = (4, 5)
    """At least, and where two blocks have room on a multiprocessor."""

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type)

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, MatmulOp) or not isinstance(anchor.type.get_element_type(), Float32Type):
            return None
        if self.name != MatmulMma.name or not self.runs_on(target) or anchor.is_of_small_floats:
            return None
        return "its operands are f32: --precision f16 or tf32 lets tensor cores multiply them"

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        m, block_k, warps = anchor.shape[-2], self.default_block_k, self._preferred(anchor)

        def split_k(rows: int, columns: int) -> int:
            return _slices(anchor, rows, columns, block_k, target)

        def choices(block: tuple[int, int]) -> dict[str, Choice]:
            return {
                "block": block,
                "warps": warps[block],
                "block_k": block_k,
                "stages": self._stages(anchor, block, warps[block], target),
                "group": 8 if ceil(m / block[0]) >= 8 else 1,
                **self._fragments(anchor, block, warps[block]),
                "split_k": split_k(*block),
            }

        useful = [choices(block) for block in those_that_fill(anchor, list(warps), split_k, target.multiprocessors)]
        if len(useful) == 1:
            return useful[0]
        seconds = [gpu_seconds(tile_work(anchor, each), target) for each in useful]
        return next(each for each, cost in zip(useful, seconds, strict=True) if cost <= _ALIKE * min(seconds))

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        """Tiles in the order of preference, and their warps."""
        m, n = anchor.shape[-2:]
        if n <= _NARROW:
            return {(128, _NARROW): (4, 2), (64, _NARROW): (2, 2)}
        if m <= 16:
            return {(16, 128): (1, 4)}
        wide = {} if n <= _HALF_WIDE else {(128, 128): (2, 2), (64, 128): (2, 2)}
        return {**wide, (128, 64): (2, 2), (64, 64): (2, 2), (32, 64): (2, 2)}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        assert isinstance(anchor, MatmulOp)

        def split_k(choices: Choices) -> Choice:
            block, warps = pair(choices, "block"), pair(choices, "warps")
            splits = _accumulators(block, warps) <= _MOST_SPLIT
            return _slices(anchor, *block, number(choices, "block_k"), target) if splits else 1

        def fragments(choices: Choices) -> Choice:
            return self._fragments(anchor, pair(choices, "block"), pair(choices, "warps"))["fragments"]

        return {"split_k": split_k, "fragments": fragments}

    def _stages(self, anchor: MatmulOp, block: tuple[int, int], warps: tuple[int, int], target: Target) -> int:
        """The most of `default_stages` that leave as many blocks on a multiprocessor, up to two, as the fewest do.

        On an H100 5 took 0.92, 0.91, 0.92 and 0.95 of the time of 4 for 128 x 768 x 3072, 4096 cubed and 64 x 4096 x 64
        in f16 and 128 x 3072 x 768 in tf32 (2026-11-26, commit e9d5a2f5, cold). An A100 has no room for two blocks with
        5 of 128 x 128 x 32.
        """
        shape = {"block": block, "warps": warps, "block_k": self.default_block_k, "group": 1}
        few, many = self.default_stages

        def blocks(stages: int) -> int:
            return _places(mma_tile(anchor, {**shape, "stages": stages}), target)

        return many if blocks(many) >= min(2, blocks(few)) else few

    def _fragments(self, anchor: MatmulOp, block: tuple[int, int], warps: tuple[int, int]) -> dict[str, Choice]:
        """Sets of fragments: two where a warp's products outlast its loads, and where they cost no resident block.

        On an H100 two sets took 0.92, 0.89 and 0.83 of the time for 4096, 8192 and 3072 cubed, where a warp has 64 x
        64, 0.97 for 6272 x 2304 x 256, where it has 32 x 64, and 1.10 and 1.03 for 128 x 768 x 2304 and x 3072, where
        it has 16 x 32 (2026-11-26). Eight warps with 64 accumulators a thread would be one block in place of two.
        """
        each = _accumulators(block, warps) / (_MOST_SPLIT if prod(warps) <= _FEW_WARPS else 2 * _MOST_SPLIT)
        return {"fragments": 2 if each >= 1 and not _gathers(anchor) else 1}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = mma_tile(anchor, choices)
        self._check_warps(tile)
        self._check_slices(tile, shared_out(anchor, number(choices, "split_k"), tile.block_k))
        self._check_columns(tile, anchor.shape[-1])
        self._check_fragments(anchor, tile)
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

    def _check_fragments(self, anchor: MatmulOp, tile: MmaTile) -> None:
        """TreadleError for two sets of fragments beside elements on their way from global to shared memory."""
        if tile.fragments == 1:
            return
        check_limit(
            "sets of fragments beside elements that are copied through registers",
            tile.fragments,
            1 if _gathers(anchor) else tile.fragments,
            message=f"{self.name}: {tile.fragments} sets of fragments, {tile.fragments - 1} too many, leave no "
            "registers for copies that are not asynchronous",
            accepted=f"fragments = 1, or operands that lie together in groups of {_LEAST_COPY} bytes",
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
        return mma_kernel(anchor, tile, number(choices, "split_k"), name)


class MatmulTf32(MatmulMma):
    """The same of f32 matrices, whose elements are rounded to tf32, 10 bits of mantissa, before they are multiplied.

    It computes another result than f32, hence it is a default only for a product that allows it: `precision = "tf32"`.
    """

    name: ClassVar[str] = "matmul_tf32"
    precision: ClassVar[str] = "tf32"
    knobs: ClassVar[tuple[Knob, ...]] = (
        *(knob for knob in MatmulMma.knobs if knob.name not in ("block_k", "fragments")),
        Knob("block_k", (16, 32), "extent of the tiles along K"),
    )
    default_block_k: ClassVar[int] = 16

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        return {"split_k": super().dependent(anchor, target)["split_k"]}

    def _stages(self, anchor: MatmulOp, block: tuple[int, int], warps: tuple[int, int], target: Target) -> int:
        """The most of `default_stages` that leave as many blocks on a multiprocessor, up to two, as the fewest do.

        On an H100 5 took 0.92, 0.91, 0.92 and 0.95 of the time of 4 for 128 x 768 x 3072, 4096 cubed and 64 x 4096 x 64
        in f16 and 128 x 3072 x 768 in tf32 (2026-11-26, commit e9d5a2f5, cold). An A100 has no room for two blocks with
        5 of 128 x 128 x 32.
        """
        shape = {"block": block, "warps": warps, "block_k": self.default_block_k, "group": 1}
        few, many = self.default_stages

        def blocks(stages: int) -> int:
            return _places(mma_tile(anchor, {**shape, "stages": stages}), target)

        return many if blocks(many) >= min(2, blocks(few)) else few

    def _fragments(self, anchor: MatmulOp, block: tuple[int, int], warps: tuple[int, int]) -> dict[str, Choice]:
        """None to choose: loads of single elements, and their rounding, take the registers of a second set."""
        return {}

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, MatmulOp) or anchor.is_of_small_floats:
            return False
        return isinstance(anchor.type.get_element_type(), Float32Type)

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
    default_stages: ClassVar[tuple[int, int]] = (4, 4)

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.is_of_bytes

    def _preferred(self, anchor: MatmulOp) -> dict[tuple[int, int], tuple[int, int]]:
        tiles = super()._preferred(anchor)
        if not _gathers(anchor):
            return tiles
        return {(m, n): warps for (m, n), warps in tiles.items() if m * n <= _MOST_GATHERING * WARP * prod(warps)}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        super().limits(anchor, choices, target)
        assert isinstance(anchor, MatmulOp)
        accumulators = mma_tile(anchor, choices).accumulators
        # Found by compiling.
        if _gathers(anchor):
            check_limit(
                "accumulators a thread beside single bytes",
                accumulators,
                _MOST_GATHERING,
                message=f"{self.name}: {accumulators} accumulators a thread, {accumulators - _MOST_GATHERING} too "
                "many, leave no registers for copies of single bytes",
                accepted=f"at most {_MOST_GATHERING} accumulators a thread, or operands along K in groups of "
                f"{_LEAST_COPY} bytes",
            )


def _along_k(anchor: MatmulOp) -> tuple[bool, bool]:
    """Whether the tiles of A and of B have rows along K: as the operands lie, those of bytes always, since matrices of
    bytes are not transposed while they are loaded."""
    if _element_bytes(anchor) == 1:
        return True, True
    return has_contiguous_rows(anchor, anchor.a), not has_contiguous_rows(anchor, anchor.b)


def _element_bytes(anchor: MatmulOp) -> int:
    """Of the operands."""
    assert isinstance(anchor.a.type, TensorType)
    return byte_width(anchor.a.type.get_element_type())


def _gathers(anchor: MatmulOp, copy_bytes: int = _LEAST_COPY) -> bool:
    """Whether elements of an operand do not lie together, along the rows of its tiles, as an asynchronous copy of so
    many bytes moves them, or are computed while they are copied."""
    (m, n), k, (a_along_k, b_along_k) = anchor.shape[-2:], anchor.reduction_extent, _along_k(anchor)
    together = max(1, copy_bytes // _element_bytes(anchor))

    def lies_together(operand: SSAValue, across: bool, extent: int) -> bool:
        contiguous = has_contiguous_rows(anchor, operand, across=across, together=together)
        return contiguous and extent % together == 0 and not _is_computed(anchor, operand)

    of_a = lies_together(anchor.a, not a_along_k, k if a_along_k else m)
    return not (of_a and lies_together(anchor.b, b_along_k, k if b_along_k else n))


def _is_computed(anchor: MatmulOp, operand: SSAValue) -> bool:
    """Whether the group computes an operand's elements, other than by moving them."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return False
    return not isinstance(yielded(producer.body).owner, AtOp)


def _accumulators(block: tuple[int, int], warps: tuple[int, int]) -> int:
    """Elements of C that a thread holds."""
    return prod(block) // (WARP * prod(warps))


def _slices(anchor: MatmulOp, rows: int, columns: int, block_k: int, target: Target) -> int:
    """Into how many slices the terms of tiles of `rows` x `columns` are split."""
    terms, blocks = anchor.reduction_extent, tiles_of(anchor, rows, columns)
    return number_of_slices(blocks, terms, block_k, _TERMS, target.multiprocessors)


# Writes the kernel of a product on tensor cores.


@dataclass(frozen=True)
class MmaTile:
    """The extents that a choice of knobs implies for operands of an element type.

    m, n: of the block's tile; block_k: of the steps along K; warps: along M and N; stages: tiles in shared memory;
    group: rows of blocks that run next to one another; fragments: sets of a warp's fragments of A and B in registers
    """

    m: int
    n: int
    block_k: int
    warps: tuple[int, int]
    stages: int
    group: int
    fragments: int
    a: TileLayout
    b: TileLayout

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * prod(self.warps)

    @property
    def warp(self) -> tuple[int, int]:
        """Rows and columns of a warp's tile."""
        return self.m // self.warps[0], self.n // self.warps[1]

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread holds."""
        return _accumulators((self.m, self.n), self.warps)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        staged = staged_bytes(self.threads, self.warp[1], self.a.element_bytes)
        return self.stages * (self.a.bytes + self.b.bytes) + staged

    @property
    def registers(self) -> int:
        """Registers of a thread that hold C and the fragments of A and B."""
        rows, columns = self.warp
        return self.accumulators + self.fragments * (rows // PRODUCT_M * 4 + columns // PRODUCT_N * 2)


def mma_tile(anchor: MatmulOp, choices: Choices) -> MmaTile:
    """The extents for an anchor."""
    (m, n), warps, block_k = pair(choices, "block"), pair(choices, "warps"), number(choices, "block_k")
    size = _element_bytes(anchor)
    a, b = (
        TileLayout(*((own, block_k) if along else (block_k, own)), size, along)
        for own, along in zip((m, n), _along_k(anchor), strict=True)
    )
    stages, group = number(choices, "stages"), number(choices, "group")
    fragments = number(choices, "fragments") if "fragments" in choices else 1
    return MmaTile(m, n, block_k, warps, stages, group, fragments, a, b)


def _places(tile: MmaTile, target: Target) -> int:
    """Blocks on a multiprocessor for which there is shared memory; 0 where a block may not have as much."""
    if tile.shared_bytes > target.shared_per_block:
        return 0
    return occupancy_of(target, tile.threads, 0, tile.shared_bytes).blocks


def tile_work(anchor: MatmulOp, choices: Choices) -> GpuWork:
    """The work of a tile's kernel, to compare tiles: what a recording of it counts, without what is fused, and with
    predicates that hold."""
    tile, slices = mma_tile(anchor, choices), number(choices, "split_k")
    steps, size = shared_out(anchor, slices, tile.block_k).each, tile.a.element_bytes
    result = tile.m * tile.n * byte_width(anchor.type.get_element_type())
    copied, loaded = tile.a.bytes + tile.b.bytes, prod(tile.warps) * sum(tile.warp) * tile.block_k * size
    sums = 4 * tile.m * tile.n if slices > 1 else 0
    wave, staged = BANKS * BANK_BYTES, result if size == 2 else 0
    slabs = 2 * ceil(tile.warp[0] / PRODUCT_M) if staged else 0
    return GpuWork(
        blocks=tiles_of(anchor, tile.m, tile.n) * slices,
        threads=tile.threads,
        registers=tile.registers + _OTHER_REGISTERS,
        min_blocks=1,
        shared_bytes=tile.shared_bytes,
        operations=tile.m * tile.n,
        tensor_flops=2 * tile.m * tile.n * tile.block_k * steps,
        tensor_bytes=size,
        sectors=(steps * copied + result + 2 * sums) / SECTOR_BYTES,
        shared_loads=(steps * loaded + staged) / wave,
        shared_stores=(steps * copied + staged) / wave,
        accesses=(steps * (loaded + copied) + staged + result + 2 * sums) / (WARP * CHUNK_BYTES) + 2 * staged / wave,
        steps=steps,
        ahead=tile.stages - 1,
        round_trips=1 if sums else 0,
        barriers=steps + slabs,
        waiting=slabs + (steps if tile.fragments == 1 else 1),
        bytes=sum(prod(shape) * size for shape in _shapes(anchor)) + prod(anchor.shape) * result // (tile.m * tile.n),
    )


def _shapes(anchor: MatmulOp) -> list[Sequence[int]]:
    """Of the operands."""
    return [each.type.get_shape() for each in (anchor.a, anchor.b) if isinstance(each.type, TensorType)]


def mma_kernel(anchor: MatmulOp, tile: MmaTile, split_k: int, name: str) -> KernelOp:
    """The kernel of one product: a pipeline of copies, products of tiles between them, and the stores of C."""
    slices, end = shared_out(anchor, split_k, tile.block_k), reduction_end(anchor)
    operands = with_end([anchor.a, anchor.b], end)
    b = kernel_builder(operands, anchor.type)
    t = TileBuilder(b, tile.threads)
    (*batch, m, n), k = anchor.shape, anchor.reduction_extent
    rows, columns = ceil(m / tile.m), ceil(n / tile.n)
    tiles = rows * columns * prod(batch)
    index, slice = (b.block, None) if split_k == 1 else (b.block % tiles, b.block // tiles)
    of_matrix = index % (rows * columns) if batch else index
    row, column = block_coordinates(of_matrix, rows, columns, tile.group)
    row, column = row * tile.m, column * tile.n
    outer = (index // (rows * columns)).delinearize(batch) if batch else []
    steps = slices.length(b, end, operands)
    first = None if slice is None else slice * steps

    elements = [x.type.get_element_type() for x in (anchor.a, anchor.b) if isinstance(x.type, TensorType)]
    shared_a = t.shared("shared_a", tile.a, elements[0], tile.stages)
    shared_b = t.shared("shared_b", tile.b, elements[1], tile.stages)
    warp = ((t.warp // tile.warps[1]) * tile.warp[0], (t.warp % tile.warps[1]) * tile.warp[1])
    c = t.fragment("acc", f32 if anchor.sums is None else i32, tile.warp, warp)

    outer_of_a, outer_of_b = (outer_indices(operand, outer) for operand in (anchor.a, anchor.b))

    def start(step: Index, stage: Index) -> None:
        term = (step if first is None else first + step) * tile.block_k
        of_a = Region.of(b, b.inputs[0], (row, term), (m, k), (tile.m, slices.covered), outer_of_a)
        of_b = Region.of(b, b.inputs[1], (term, column), (k, n), (slices.covered, tile.n), outer_of_b)
        t.copy(of_a if tile.a.along_k else of_a.transposed, shared_a[stage])
        t.copy(of_b.transposed if tile.b.along_k else of_b, shared_b[stage])

    if tile.fragments == 1:
        pipelined(b, "step", steps, tile.stages, start, lambda _, stage: t.gemm(shared_a[stage], shared_b[stage], c))
    else:
        # Found by compiling: predicates along K, and copies of fewer bytes, leave no registers for several steps.
        plain = slices.covered == k and not _gathers(anchor, CHUNK_BYTES)
        multiplied(t, "step", steps, tile.stages, start, (shared_a, shared_b), c, at_once=None if plain else 1)
    with t.summed(c, tiles, slices.number, index, slice) as total:
        t.store(total, Region.of(b, b.output, (row, column), (m, n), (tile.m, tile.n), outer))
    comment = f"C[{m}, {n}] = A[{m}, {k}] * B[{k}, {n}]"
    return b.kernel(name, operands, anchor.type, tiles * slices.number, tile.threads, comment)
