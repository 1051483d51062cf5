"""Attention on tensor cores: scores and weights never leave the registers."""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, TensorType

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.schedule import Choice
from treadle.schedules.limits import check_limit, check_limits
from treadle.schedules.template import Anchor, Choices, Knob, Template
from treadle.schedules.templates.attention_blocks import mask_varies
from treadle.schedules.templates.attention_mma_kernel import AttentionMmaKernel
from treadle.schedules.templates.attention_mma_tile import STEP, AttentionMmaTile
from treadle.schedules.templates.matmul_mma_tile import PRODUCT_M
from treadle.target import TARGETS, Target

_COLUMNS = (16, 32, 64, 128)
_PARTS = (1, 2, 4)
_LARGEST_SIZE = 256
"""Elements of a head: a warp copies a line of so many at once."""
_MOST_SLABS = 2
"""Tile products of a warp below one another: what is loaded of keys and values serves so many."""
_OTHER_REGISTERS = 80
"""What statistics, predicates, copies and fragments in flight take beside matrices; generous, since a spill costs more
than it saves."""
_MOST_THREADS = 256
"""Of a block: more could not have as many registers each."""
_DEFAULTS = ((128, 4), (64, 4), (32, 2), (16, 1))
"""Rows and warps of default blocks."""
_DEFAULT_COLUMNS = 64
_SCHEDULERS = 4
"""Warps that a multiprocessor runs at a time."""
_EVERY = tuple(target for target in TARGETS.values() if target.is_cuda)


class AttentionMma(Template):
    """A block computes `rows` rows of one head, each warp its own. Tiles of `columns` keys and values travel to
    swizzled shared memory by asynchronous copies, `stages` at a time. A warp keeps in registers its queries, as
    operands of tile products; the scores of a tile, which become the weights and then, as they lie, operands of the
    second product; and the largest score so far, the sum of the weights relative to it, and the result so far, which
    are scaled down when a larger score appears. `parts` warps may share rows: each takes some keys of every tile, and
    in the end they add up their sums, scaled down to the largest score of all.

    Scores, weights and sums are f32; weights are rounded once more where they are multiplied with values.
    Every size is covered: what is fetched beyond the end is 0, keys beyond the end weigh nothing, rows beyond the end
    are not stored. Tiles of keys that causality hides from all rows of a block are skipped; a hidden value that is
    not finite makes rows NaN only where its tile is not skipped.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", ICLR 2024,
    algorithm 1 and section 3.3; Milakov and Gimelshein (arXiv 1805.02867), algorithm 3, for the running sum.
    """

    name: ClassVar[str] = "attention_mma"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", (16, 32, 64, 128), "queries of a block"),
        Knob("columns", _COLUMNS, "keys and values of a tile in shared memory"),
        Knob("warps", (1, 2, 4, 8), "warps along the rows of a block"),
        Knob("parts", _PARTS, "warps that share rows, each with a part of a tile's keys"),
        Knob("stages", (2, 3), "tiles of keys and of values in shared memory"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        extents = _extents(anchor)
        if not isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type) or not prod(extents):
            return False
        if max(extents[-2:]) > _LARGEST_SIZE:
            return False
        return all(_default(anchor, target) is not None for target in _EVERY)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return isinstance(anchor, AttentionOp) and _default(anchor, target) is not None

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        found = _default(anchor, target)
        assert found is not None, "asked for without has_default"
        return found

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = _tile(anchor, choices)
        least, most, each = PRODUCT_M, _MOST_SLABS * PRODUCT_M, tile.rows // tile.warps
        shared, accepted = f"{tile.rows} rows for {tile.warps} warps are {each} each", f"{least} to {most} rows a warp"
        message = f"attention_mma: {shared}, {least - each} too few"
        check_limit("rows that a warp needs", least, each, message=message, accepted=accepted)
        message = f"attention_mma: {shared}, {each - most} too many"
        check_limit("rows of a warp", each, most, message=message, accepted=accepted)
        check_limit(
            "keys that a warp needs",
            STEP,
            tile.own_columns,
            message=f"attention_mma: {tile.columns} keys in {tile.parts} parts are {tile.own_columns} each, "
            f"{STEP - tile.own_columns} too few",
            accepted=f"at least {STEP} keys a warp",
        )
        values = f"{tile.rows} queries of {tile.size} elements and {tile.columns} values of {tile.width}"
        who = f"attention_mma with {values} in {tile.stages} stages"
        check_limits(who, _usage(anchor, tile, target), target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionMmaKernel(anchor, _tile(anchor, choices)).build(name)


def _usage(anchor: AttentionOp, tile: AttentionMmaTile, target: Target) -> tuple[tuple[str, int, int], ...]:
    """What a tile takes of the resources that bound it, and how much there is."""
    registers = tile.registers + _mask_registers(anchor, tile) + _OTHER_REGISTERS
    return (
        ("threads", tile.threads, _MOST_THREADS),
        ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
        ("registers a thread", registers, target.registers_per_thread),
    )


def _mask_registers(anchor: AttentionOp, tile: AttentionMmaTile) -> int:
    """Registers for the mask's elements of a thread's scores, which are there before these are."""
    if anchor.mask is None:
        return 0
    assert isinstance(anchor.mask.type, TensorType)
    along_rows, along_keys = mask_varies(anchor.mask.type)
    return (2 * tile.slabs if along_rows else 1) * (tile.own_columns // 4 if along_keys else 1)


def _extents(anchor: AttentionOp) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _tile(anchor: AttentionOp, choices: Choices) -> AttentionMmaTile:
    return AttentionMmaTile.of(choices, *_extents(anchor)[-2:])


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """64 keys, or as many as there are, and the most rows, no more than there are, of which three quarters of the
    multiprocessors get a block; fewer rows, then keys, while the target has no room. None where it has none. Warps
    share rows where there are too few of them."""
    *batch, m, n, _, _ = _extents(anchor)
    heads = prod(batch)
    columns = min(_DEFAULT_COLUMNS, next((c for c in _COLUMNS if c >= n), _COLUMNS[-1]))
    useful = [each for each in _DEFAULTS if each[0] < 2 * m] or [_DEFAULTS[-1]]
    busy = [each for each in useful if 4 * heads * ceil(m / each[0]) >= 3 * target.multiprocessors] or useful[-1:]
    smaller = [each for each in _DEFAULTS if each[0] < busy[-1][0]]
    fewer = [c for c in reversed(_COLUMNS) if c <= columns]
    for (rows, warps), keys in sorted(product([*busy, *smaller], fewer), key=lambda each: -each[1]):
        parts = _parts(heads * ceil(m / rows) * warps, warps, keys, target)
        choices: dict[str, Choice] = {"rows": rows, "columns": keys, "warps": warps, "parts": parts, "stages": 2}
        if all(used <= limit for _, used, limit in _usage(anchor, _tile(anchor, choices), target)):
            return choices
    return None


def _parts(total: int, warps: int, columns: int, target: Target) -> int:
    """How many warps share rows, where one of them each gives so many in `total` and `warps` a block: as few as give
    every scheduler a warp, as far as keys and threads suffice."""
    wanted = next((p for p in _PARTS if p * total >= _SCHEDULERS * target.multiprocessors), _PARTS[-1])
    return min(wanted, columns // STEP, _MOST_THREADS // WARP // warps)


__all__ = ["AttentionMma"]
