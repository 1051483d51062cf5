"""The template of attention on tensor cores: masks, knobs, special values, and what it rejects.

Its shapes are tried on the emulator (`tests/backends/cuda/emulator/test_template_shapes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import SSAValue

from benchmarks.schedule_cases import Case
from tests.helpers.limits import assert_within, limits_of_template
from tests.helpers.sampling import every
from tests.schedules.attention_cases import SMALL, Array, Sizes, attention, environment, hidden_by, masked_by_floats
from tests.schedules.row_cases import tensor
from treadle.backends.reference.bounded import Bounded
from treadle.backends.reference.kernels import Kernel
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, MatmulOp
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.loop import FuncOp, Space
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat, spatial
from treadle.errors import TreadleError
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.attention_mma_tile import AttentionMmaTile
from treadle.target import TARGETS, Target

GPU = Target.parse("sm_80")
TEMPLATE = TEMPLATES["attention_mma"]
TINY: dict[str, Choice] = {"rows": 16, "columns": 16, "warps": 1, "parts": 1, "stages": 2}
MANY_TILES = Sizes((), 1, 1, 19, 70, 9, 20)


def check(
    op: AttentionOp,
    choices: Mapping[str, Choice] | None = None,
    env: Mapping[SSAValue, Array] | None = None,
    accepted: Bounded | None = None,
) -> Array:
    """Compares the kernel with the definition, or with what is `accepted`, blocks and threads in both orders; the
    definition's result."""
    env = env or environment(op)
    knobs = TEMPLATE.default(op, GPU) | dict(choices or {})
    TEMPLATE.check(op, knobs, GPU, "here")
    kernel = TEMPLATE.build(op, knobs, GPU, "kernel")
    kernel.verify()
    expected = evaluate(op, env)
    accepted = accepted or limits_of_template(TEMPLATE.name, op, env, "f32")
    runner = Kernel(kernel)
    for reverse in (False, True):
        actual = runner.run([env[operand] for operand in kernel.inputs], reverse=reverse)
        assert_within(actual, accepted, expected.dtype, op.type)
    return expected


@pytest.mark.parametrize("mask", range(8))
def test_masks_of_every_broadcast(mask: int):
    check(attention(SMALL, "float16", SMALL.masks[mask], causal=mask % 2 == 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tiles_beyond_the_diagonal_are_hidden(dtype: str):
    check(attention(MANY_TILES, dtype, causal=True), TINY)
    check(attention(Sizes((), 1, 1, 50, 50, 8, 8), dtype, causal=True), TINY)


def test_a_mask_of_another_type():
    op, env = masked_by_floats(SMALL)
    check(op, env=env)


RAGGED = attention(Sizes((), 1, 1, 70, 37, 20, 11), "float16", causal=True)
SPACE = list(TEMPLATE.space(RAGGED, GPU))


@pytest.mark.parametrize("choices", every(11, SPACE), ids=lambda c: "-".join(map(str, c.values())))
def test_knobs(choices: dict[str, Choice]):
    check(RAGGED, choices)


def test_every_value_of_a_knob_is_legal_somewhere_and_tried():
    for knob in TEMPLATE.knobs:
        assert {choices[knob.name] for choices in SPACE} == set(knob.values)
        assert {choices[knob.name] for choices in SPACE[::11]} == set(knob.values)


@pytest.mark.parametrize("guard", [False, True])
def test_rows_without_a_score(guard: bool):
    """A mask hides every key of row 0; with more rows than keys, causality those of the first rows."""
    expected = check(attention(Sizes((), 1, 1, 6, 20, 3, 3), "float16", (6, 20), guard=guard), TINY)
    assert (expected[0, 0] == 0).all() if guard else np.isnan(expected[0, 0]).all()
    early = attention(Sizes((), 1, 1, 23, 3, 3, 3), "float16", causal=True, guard=guard)
    expected = check(early, TINY)
    assert (expected[0, :20] == 0).all() if guard else np.isnan(expected[0, :20]).all()
    assert np.isfinite(expected[0, 20:]).all()


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(value: float, guard: bool):
    """Of rows 1 and 2 and of a late key: what comes after a row's NaN does not heal it."""
    op = attention(Sizes((), 1, 1, 5, 40, 2, 3), "float16", (5, 40), guard=guard)
    env = environment(op)
    mask = env[op.operands[3]]
    mask[1, 1], mask[2, 39] = value, value
    with np.errstate(all="ignore"):
        check(op, TINY, env)


@pytest.mark.parametrize("largest", [60000.0, -60000.0, float(np.finfo(np.float32).min)])
def test_scores_near_the_end_of_their_range(largest: float):
    """All keys of a row are hidden by a large finite number: by the largest, they count alike."""
    op, env, accepted = hidden_by(SMALL, largest)
    assert np.isfinite(check(op, TINY, env, accepted)).all()


def test_queries_that_are_the_keys_and_the_values():
    x = tensor(2, 9, 6, dtype="float16")
    op = AttentionOp(x, x, x, scale=1.0)
    check(op, env={x: environment(op)[x]})


def test_what_it_fits():
    assert TEMPLATE.fits(attention(SMALL, "float16")) and TEMPLATE.fits(attention(SMALL, "bfloat16"))
    assert not TEMPLATE.fits(attention(SMALL, "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 5, 0, 4, 4), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, DYNAMIC_INDEX, 4, 4, 4), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 4, 257, 4), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 4, 240, 240), "float16"))
    assert not TEMPLATE.fits(MatmulOp(tensor(3, 4, dtype="float16"), tensor(4, 5, dtype="float16")))


def test_it_comes_before_the_template_without_tensor_cores():
    assert list(TEMPLATES).index("attention_mma") < list(TEMPLATES).index("attention_cuda")


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if TEMPLATE.runs_on(t)], ids=lambda t: t.name)
@pytest.mark.parametrize("size", [1, 7, 64, 97, 128, 160, 176])
def test_defaults_are_legal(size: int, target: Target):
    for m, n, heads in ((1, 1000, 1), (128, 128, 12), (5, 3, 2), (4096, 4096, 32)):
        op = attention(Sizes((), heads, heads, m, n, size, size), "float16")
        TEMPLATE.check(op, TEMPLATE.default(op, target), target, "here")


def test_defaults_fill_the_multiprocessors():
    def default(heads: int, m: int, n: int, size: int) -> tuple[Choice, ...]:
        op = attention(Sizes((), heads, heads, m, n, size, size), "float16")
        return tuple(TEMPLATE.default(op, GPU).values())

    assert default(12, 128, 128, 64) == (16, 64, 1, 4, 2)
    assert default(12, 512, 512, 64) == (64, 64, 4, 2, 2)
    assert default(16, 2048, 2048, 64) == (128, 64, 4, 1, 2)
    assert default(16, 2048, 2048, 128) == (64, 64, 4, 1, 2)
    assert default(16, 1, 20, 64) == (16, 32, 1, 2, 2)


@pytest.mark.parametrize("size", [8, 13, 24, 40, 48, 64, 72, 80, 96, 112, 128, 160])
def test_defaults_meet_in_no_bank_whatever_the_size_of_heads(size: int):
    case = Case("heads", ((1, 12, 128, size),) * 3, lambda x: [AttentionOp(*x[:3], scale=size**-0.5)], "float16")
    module = case.module()
    lower(treadle_context(), module, GPU, after="fuse", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    accesses = [access for access in memory_transactions(kernel) if access.space is Space.SHARED]
    assert len(accesses) > 5 and not [access for access in accesses if access.conflicts]


def rejection(size: int, **choices: Choice) -> str:
    with pytest.raises(TreadleError) as caught:
        op = attention(Sizes((), 1, 1, 64, 64, size, size), "float16")
        TEMPLATE.check(op, TEMPLATE.default(op, GPU) | choices, GPU, "group 'g'")
    return str(caught.value)


def test_too_few_and_too_many_rows_of_a_warp_are_rejected():
    message = rejection(64, rows=64, warps=8)
    assert "attention_mma: 64 rows for 8 warps are 8 each, 8 too few; accepted: 16 to 32 rows a warp" in message
    assert "64 rows for 1 warps are 64 each, 32 too many" in rejection(64, rows=64, warps=1)


def test_parts_of_too_few_keys_are_rejected():
    message = rejection(64, columns=32, parts=4)
    assert "attention_mma: 32 keys in 4 parts are 8 each, 8 too few; accepted: at least 16 keys a warp" in message


def test_more_warps_than_have_room_are_rejected():
    message = rejection(64, rows=128, warps=8, parts=2)
    assert "takes 512 threads, 256 too many; accepted: at most 256 on sm_80" in message


def test_tiles_beyond_shared_memory_are_rejected():
    message = rejection(160, rows=64, columns=128, warps=4, parts=1, stages=3)
    assert "64 queries of 160 elements and 128 values of 160 in 3 stages takes 266240 bytes of shared memory" in message
    assert "99328 too many; accepted: at most 166912 on sm_80" in message


def test_tiles_beyond_the_registers_are_rejected():
    message = rejection(128, rows=128, columns=64, warps=4, parts=1)
    assert "takes 352 registers a thread, 97 too many; accepted: at most 255 on sm_80" in message


def test_extents_of_tiles():
    tile = AttentionMmaTile(64, 32, 4, 1, 2, 13, 40)
    assert (tile.padded_size, tile.padded_width, tile.slabs, tile.threads) == (16, 48, 1, 128)
    assert tile.shared_bytes == 2 * (64 * 48 + 2 * 32 * (16 + 48))
    shared = AttentionMmaTile(16, 64, 1, 4, 2, 64, 64)
    assert (shared.own_columns, shared.threads) == (16, 128)
    assert shared.shared_bytes == 2 * (16 + 4 * 64) * 64 + 4 * 16 * (3 * 64 + 2 * 4 * 4)
    assert tile.values.tasks(128) == repeat(2, 1) * spatial(21, 6)
    assert tile.keys.tasks(128) == repeat(1, 1) * spatial(32, 2)
