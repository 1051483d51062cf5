"""Attention of few queries on tensor cores, such as a language model's next token: keys and values are read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits, number
from treadle.schedules.templates.attention_decode_mma_kernel import LANE, AttentionDecodeKernel, AttentionDecodeTile
from treadle.schedules.templates.attention_tile import sizes_of
from treadle.target import GPUS, Target

_ROWS, _KEYS, _WARPS = (8, 16), (16, 32), (1, 2, 4, 8)
_MOST_PARTS = 128
_MOST_QUERIES = 8
"""Of attention that gets it by default."""
_FEWEST_KEYS = 64
"""The same: with fewer there is nothing to share out."""
_OTHER_REGISTERS = 74
"""What statistics, addresses, predicates and fragments in flight take beside matrices: NVRTC 13.0 takes 58 to 74."""
_DEFAULT_WARPS = 4
_FULL = 4096
"""Elements of keys and of values that a warp has in flight by default: 8 KiB."""
_BLOCKS = 2
"""That a multiprocessor gets by default. An H100 took 13.4 us for one query of 32 heads over 8 heads of 4096 keys of
128 elements with 256 blocks, 13.3 to 15.0 with others; for 32 times as much it took no longer with one block for a head
of keys than with several."""


class AttentionDecodeMma(Template):
    """A block computes `rows` rows, which are queries of all heads that share a head of keys and values, so that it
    reads each key and each value once. Each of its warps takes `keys` keys at a time, whose keys and values go from
    memory to registers by loads of 16 bytes, a step ahead, and are operands of tile products there as they lie: scores
    are products of queries and keys, and the result, transposed, those of values and weights. Nothing passes through
    shared memory before the end, when the warps add up their sums.

    Keys are shared out to `parts` blocks, which take tiles of them in turn; the last one to arrive adds up what all
    have, always in the same order. Keys beyond a length, and those that causality hides from all rows of a block, are
    not read, and blocks without any only arrive.

    Scores, weights and sums are f32; weights are rounded once more where they are multiplied with values. Sizes of
    heads are multiples of eight elements. A hidden value that is not finite makes rows NaN only where its tile of keys
    has one that a row of the block sees.

    Source: Shazeer, "Fast Transformer Decoding" (arXiv 1911.02150), section 3, and Ainslie et al., GQA (arXiv
    2305.13245), for heads that share keys; Dao et al., "Flash-Decoding for long-context inference" (2023), for parts;
    Milakov and Gimelshein (arXiv 1805.02867), algorithm 3, for the running sum.
    """

    name: ClassVar[str] = "attention_decode_mma"
    kind: ClassVar[str] = "cuda"
    least_capability: ClassVar[int] = 80
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", _ROWS, "rows of a block: queries of all heads that share keys"),
        Knob("keys", _KEYS, "keys and values that a warp has in registers"),
        Knob("warps", _WARPS, "warps of a block, which take tiles of keys in turn"),
        Knob(
            "parts", tuple(range(1, _MOST_PARTS + 1)), "blocks that share out the keys of a head; the last one adds up"
        ),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or _refusal(anchor) is not None:
            return False
        return all(_default(anchor, target) is not None for target in GPUS if self.runs_on(target))

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, AttentionOp) or not self.runs_on(target) or self.has_default(anchor, target):
            return None
        queries, keys = anchor.scores_shape[-2:]
        if DYNAMIC_INDEX not in (queries, keys) and queries > _MOST_QUERIES:
            return None
        if not isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type):
            # `attention_mma` says what that costs.
            return None
        why = _refusal(anchor)
        if why is None and keys < _FEWEST_KEYS:
            return f"fewer than {_FEWEST_KEYS} keys are too little to share out"
        return why or "no room for keys and values of such heads in registers"

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        if not isinstance(anchor, AttentionOp) or _refusal(anchor) is not None:
            return False
        queries, keys = anchor.scores_shape[-2:]
        return queries <= _MOST_QUERIES and keys >= _FEWEST_KEYS and _default(anchor, target) is not None

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        found = _default(anchor, target)
        assert found is not None, "asked for without has_default"
        return found

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = AttentionDecodeTile.of(choices, *sizes_of(anchor))
        who = f"{self.name} with {tile.rows} rows and {tile.keys} keys of {tile.size} and {tile.width} elements"
        check_limits(who, _usage(tile, target), target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no eight rows of which none exists, and no more blocks share keys than there are tiles."""
        assert isinstance(anchor, AttentionOp)
        tiles = ceil(anchor.scores_shape[-1] / (number(choices, "keys") * number(choices, "warps")))
        return {
            "rows": min(number(choices, "rows"), _rows(anchor)),
            "keys": number(choices, "keys"),
            "warps": number(choices, "warps"),
            "parts": min(number(choices, "parts"), tiles),
        }

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """Every tile, with as many parts as fill the multiprocessors, half and twice as many."""
        assert isinstance(anchor, AttentionOp)
        tried = [
            {"rows": rows, "keys": keys, "warps": warps, "parts": max(1, min(parts, _MOST_PARTS))}
            for rows in _ROWS
            for keys in _KEYS
            for warps in _WARPS
            for filling in [_parts(anchor, target, rows, keys * warps)]
            for parts in (filling, filling // 2, filling * 2)
        ]
        return self.canonical_forms(anchor, target, tried)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionDecodeKernel(anchor, AttentionDecodeTile.of(choices, *sizes_of(anchor))).build(name)


def _refusal(anchor: AttentionOp) -> str | None:
    """Why it cannot be computed so; None if it can."""
    if DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
        return "its extents change"
    type = anchor.type.get_element_type()
    if not isinstance(type, Float16Type | BFloat16Type):
        return f"its elements are {type}: f16 and bf16 are multiplied so"
    sizes = sizes_of(anchor)
    if not prod((*anchor.scores_shape, *sizes)):
        return "it has no scores, or no elements"
    if any(size % LANE for size in sizes):
        return f"heads whose size is no multiple of {LANE} elements"
    return None


def _usage(tile: AttentionDecodeTile, target: Target) -> Sequence[tuple[str, int, int]]:
    """What a tile takes of the resources that bound it, and how much there is."""
    most = min(target.registers_per_thread, target.registers_per_multiprocessor // tile.threads)
    return (
        ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
        ("registers a thread", tile.registers + _OTHER_REGISTERS, most),
    )


def _rows(anchor: AttentionOp) -> int:
    """Rows of a block: the fewest that all have room in, or the most."""
    total = anchor.shape[-2] * anchor.group_size
    return next((rows for rows in _ROWS if rows >= total), _ROWS[-1])


def _parts(anchor: AttentionOp, target: Target, rows: int, keys: int) -> int:
    """Blocks that share out the keys of a head so that every multiprocessor has `_BLOCKS`; no more than take a tile,
    and no more than are needed where none takes more tiles."""
    heads = prod(anchor.shape[:-2]) // anchor.group_size
    units = heads * ceil(anchor.shape[-2] * anchor.group_size / rows)
    tiles = ceil(anchor.scores_shape[-1] / keys)
    most = max(1, min(_BLOCKS * target.multiprocessors // units, tiles, _MOST_PARTS))
    return ceil(tiles / ceil(tiles / most))


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """As many keys as fill what a warp has in flight, four warps, or as many as there are tiles; fewer keys, then rows,
    while there are too few registers. None where there are too few for the smallest tile."""
    sizes, n = sizes_of(anchor), anchor.scores_shape[-1]
    wanted = _KEYS[-1] if sum(sizes) * _KEYS[-1] <= _FULL else _KEYS[0]
    tried = [(rows, keys) for rows in (_rows(anchor), _ROWS[0]) for keys in (wanted, _KEYS[0])]
    for rows, keys in tried:
        warps = next(w for w in _WARPS if w * keys >= n or w == _DEFAULT_WARPS)
        choices: dict[str, Choice] = {"rows": rows, "keys": keys, "warps": warps}
        choices["parts"] = _parts(anchor, target, rows, keys * warps)
        tile = AttentionDecodeTile.of(choices, *sizes)
        if all(used <= limit for _, used, limit in _usage(tile, target)):
            return choices
    return None
