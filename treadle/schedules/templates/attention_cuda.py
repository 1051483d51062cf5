"""Attention on CUDA cores: scores and weights never leave the multiprocessor."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, Float32Type, TensorType

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.limits import check_limit, check_limits
from treadle.schedules.template import Anchor, Choices, Knob, Template
from treadle.schedules.templates.attention_cuda_kernel import AttentionKernel
from treadle.schedules.templates.attention_tile import AttentionTile
from treadle.target import TARGETS, Target

_ROWS = (4, 8, 16, 32, 64)
_COLUMNS = (16, 32, 64)
_THREADS = {8: 128, 16: 128, 32: 128, 64: 256}
"""Threads of a default block with so many rows. Fewer would fetch no faster."""
_LANES = 16
"""Threads that share a row by default: 64 elements of a value are a vector of each."""
_MODEST = 16
"""Rows of a default block where more of them leave multiprocessors idle."""
_EVERY = tuple(target for target in TARGETS.values() if target.is_cuda)


class AttentionCuda(Template):
    """A block computes `rows` rows of one head. Tiles of `columns` keys and values pass through shared memory, the
    next one is prefetched into registers meanwhile. Threads keep for their rows the largest score so far, the sum of
    the weights relative to it, and the result so far, all of which are scaled down when a larger score appears.

    Every size is covered: what is fetched beyond the end is 0, keys beyond the end weigh nothing, rows beyond the end
    are not stored. Tiles of keys that causality hides from all rows of a block are skipped; a hidden value that is
    not finite makes rows NaN only where its tile is not skipped. All arithmetic is in f32.

    Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022,
    algorithm 1, with the loop over queries outside; Milakov and Gimelshein (arXiv 1805.02867), algorithm 3, for the
    running sum.
    """

    name: ClassVar[str] = "attention_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", _ROWS, "queries of a block"),
        Knob("columns", _COLUMNS, "keys and values in shared memory at a time"),
        Knob("threads", (32, 64, 128, 256), "threads of a block"),
        Knob("lanes", (8, 16, 32), "neighbouring threads that share a row"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        element = anchor.type.get_element_type()
        if not isinstance(element, Float32Type | Float16Type | BFloat16Type) or not prod(_extents(anchor)):
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
        check_limit(
            "rows at once",
            tile.strips,
            tile.rows,
            message=f"attention_cuda: {tile.threads} threads, {tile.lanes} a row, take {tile.strips} rows at once, "
            f"{tile.strips - tile.rows} too many",
            accepted=f"at most the {tile.rows} rows of the block",
        )
        missing = tile.lanes - tile.columns
        check_limit(
            "keys that the lanes of a row need",
            tile.lanes,
            tile.columns,
            message=f"attention_cuda: {tile.columns} keys for {tile.lanes} lanes are {missing} too few",
            accepted="at least one key a lane",
        )
        who = (
            f"attention_cuda with {tile.rows} queries of {tile.size} elements and {tile.columns} values of {tile.width}"
        )
        check_limits(who, _usage(tile, target), target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionKernel(anchor, _tile(anchor, choices)).build(name)


def _usage(tile: AttentionTile, target: Target) -> tuple[tuple[str, int, int], ...]:
    """What a tile takes of the resources that bound it, and how much there is."""
    return (
        ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
        ("registers a thread", tile.registers, target.registers_per_thread),
    )


def _extents(anchor: AttentionOp) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _tile(anchor: AttentionOp, choices: Choices) -> AttentionTile:
    return AttentionTile.of(choices, *_extents(anchor)[-2:])


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """The most rows of which three quarters of the multiprocessors get a block, and 64 keys, or as many as there are;
    fewer of them, then of the rows, while the target has no room. None where it has none for the smallest tile."""
    *batch, m, n, _, _ = _extents(anchor)
    heads = prod(batch)
    columns = next((c for c in _COLUMNS if c >= n), _COLUMNS[-1])
    needed = next((r for r in _THREADS if r >= m), _ROWS[-1])
    many = (r for r in reversed(_ROWS) if 4 * heads * ceil(m / r) >= 3 * target.multiprocessors)
    rows = min(needed, max(_MODEST, next(many, _MODEST)))
    while True:
        choices: dict[str, Choice] = {"rows": rows, "columns": columns, "threads": _THREADS[rows], "lanes": _LANES}
        if all(used <= limit for _, used, limit in _usage(_tile(anchor, choices), target)):
            return choices
        if columns > _COLUMNS[0]:
            columns //= 2
        elif rows > min(_THREADS):
            rows //= 2
        else:
            return None


__all__ = ["AttentionCuda"]
