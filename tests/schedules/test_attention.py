"""The template of attention: shapes, masks, knobs, special values, and what it rejects."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import SSAValue

from benchmarks.schedule_cases import Case
from tests.helpers.limits import assert_within, limits
from tests.helpers.sampling import every, in_turn
from tests.schedules.attention_cases import SIZES, SMALL, Array, Sizes, attention, environment
from tests.schedules.row_cases import tensor
from treadle.backends.reference.kernels import Kernel
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, MatmulOp
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.loop import FuncOp, Space
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.passes.graph.one_kernel import has_template
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.attention_tile import AttentionTile
from treadle.target import TARGETS, Target

GPU = Target.parse("sm_80")
TEMPLATE = TEMPLATES["attention_cuda"]
TINY: dict[str, Choice] = {"rows": 4, "columns": 16, "threads": 64, "lanes": 16}


def check(
    op: AttentionOp,
    sizes: Sizes,
    choices: Mapping[str, Choice] | None = None,
    env: Mapping[SSAValue, Array] | None = None,
) -> Array:
    """Compares the kernel with the definition, blocks and threads in both orders; the definition's result."""
    env = env or environment(op)
    knobs = TEMPLATE.default(op, GPU) | dict(choices or {})
    assert TEMPLATE.fits(op)
    TEMPLATE.check(op, knobs, GPU, "here")
    kernel = TEMPLATE.build(op, knobs, GPU, "kernel")
    kernel.verify()
    expected, within = evaluate(op, env), limits(op, env)
    runner = Kernel(kernel)
    for reverse in (False, True):
        actual = runner.run([env[operand] for operand in kernel.inputs], reverse=reverse)
        assert_within(actual, within, expected.dtype, sizes)
    return expected


@pytest.mark.parametrize(("sizes", "dtype"), in_turn(SIZES, ["float32", "float16"], step=4), ids=str)
def test_sizes(sizes: Sizes, dtype: str):
    mask = sizes.masks[SIZES.index(sizes) % len(sizes.masks)]
    check(attention(sizes, dtype), sizes)
    check(attention(sizes, dtype, mask), sizes, TINY)
    check(attention(sizes, dtype, causal=True), sizes, TINY)
    check(attention(sizes, dtype, mask, causal=True, guard=True), sizes)


@pytest.mark.parametrize(("mask", "causal"), in_turn(range(8), [False, True]))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_masks_of_every_broadcast(mask: int, causal: bool, dtype: str):
    check(attention(SMALL, dtype, SMALL.masks[mask], causal=causal), SMALL)


def test_a_mask_of_another_type():
    q, k, v = (tensor(*shape, dtype="float16") for shape in SMALL.shapes)
    op = AttentionOp(q, k, v, tensor(5, 19), scale=0.5)
    env = {o: a.astype(np.float32) if o is op.mask else a for o, a in environment(op).items()}
    check(op, SMALL, env=env)


RAGGED = Sizes((), 2, 1, 9, 37, 5, 11)
SPACE = list(TEMPLATE.space(attention(RAGGED, "float32"), GPU))


@pytest.mark.parametrize("choices", every(2, SPACE[::4]), ids=lambda c: "-".join(map(str, c.values())))
def test_knobs(choices: dict[str, Choice]):
    check(attention(RAGGED, "float32", causal=True), RAGGED, choices)


def test_every_value_of_a_knob_is_legal_somewhere_and_tried():
    for knob in TEMPLATE.knobs:
        assert {choices[knob.name] for choices in SPACE} == set(knob.values)
        assert {choices[knob.name] for choices in SPACE[::8]} == set(knob.values)


@pytest.mark.parametrize("guard", [False, True])
def test_rows_without_a_score(guard: bool):
    """A mask hides every key of row 0; with more rows than keys, causality those of the first rows."""
    masked = Sizes((), 1, 1, 6, 20, 3, 3)
    expected = check(attention(masked, "float32", (6, 20), guard=guard), masked, TINY)
    assert (expected[0, 0] == 0).all() if guard else np.isnan(expected[0, 0]).all()
    early = Sizes((), 1, 1, 23, 3, 3, 3)
    expected = check(attention(early, "float32", causal=True, guard=guard), early, TINY)
    assert (expected[0, :20] == 0).all() if guard else np.isnan(expected[0, :20]).all()
    assert np.isfinite(expected[0, 20:]).all()


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(value: float, guard: bool):
    """Of rows 1 and 2 and of a late key: what comes after a row's NaN does not heal it."""
    sizes = Sizes((), 1, 1, 5, 40, 2, 3)
    op = attention(sizes, "float32", (5, 40), guard=guard)
    env = environment(op)
    mask = env[op.operands[3]]
    mask[1, 1], mask[2, 39] = value, value
    with np.errstate(all="ignore"):
        check(op, sizes, TINY, env)


def test_large_scores_do_not_overflow():
    sizes = Sizes((), 1, 1, 3, 50, 4, 4)
    op = attention(sizes, "float32")
    env = environment(op)
    env[op.q] = env[op.q] * np.float32(1000)
    assert np.isfinite(check(op, sizes, TINY, env)).all()


def test_queries_that_are_the_keys_and_the_values():
    x = tensor(2, 9, 6)
    op = AttentionOp(x, x, x, scale=1.0)
    check(op, Sizes((), 2, 2, 9, 9, 6, 6), env={x: environment(op)[x]})


def test_what_it_fits():
    assert TEMPLATE.fits(attention(SMALL, "bfloat16"))
    assert not TEMPLATE.fits(attention(SMALL, "float64"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 5, 0, 4, 4), "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, DYNAMIC_INDEX, 4, 4, 4), "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 4, 4000, 4), "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 4, 4, 4000), "float32"))
    assert not TEMPLATE.fits(MatmulOp(tensor(3, 4), tensor(4, 5)))


def test_which_operators_stay_whole():
    product = MatmulOp(tensor(3, 4), tensor(4, 5))
    for name, target in TARGETS.items():
        assert has_template(attention(SMALL, "float16"), target) == target.is_cuda, name
        assert not has_template(attention(SMALL, "float64"), target), name
        assert has_template(product, target), name


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.is_cuda], ids=lambda t: t.name)
@pytest.mark.parametrize("size", [1, 7, 64, 97, 128, 256, 300])
def test_defaults_are_legal(size: int, target: Target):
    for m, n, heads in ((1, 1000, 1), (128, 128, 12), (5, 3, 2), (4096, 4096, 32)):
        op = attention(Sizes((), heads, heads, m, n, size, size), "float32")
        TEMPLATE.check(op, TEMPLATE.default(op, target), target, "here")


def test_defaults_fill_the_multiprocessors():
    def rows(heads: int, m: int) -> Choice:
        return TEMPLATE.default(attention(Sizes((), heads, heads, m, m, 64, 64), "float32"), GPU)["rows"]

    assert [rows(12, 128), rows(12, 512), rows(16, 2048), rows(12, 3)] == [16, 64, 64, 8]
    assert rows(24, 128) == 32


@pytest.mark.parametrize(
    ("size", "dtype"), in_turn([5, 8, 13, 24, 40, 48, 64, 72, 80, 96, 97, 128, 200], ["float32", "float16"])
)
def test_defaults_meet_in_no_bank_whatever_the_size_of_heads(size: int, dtype: str):
    case = Case("heads", ((1, 12, 128, size),) * 3, lambda x: [AttentionOp(*x[:3], scale=size**-0.5)], dtype)
    module = case.module()
    lower(treadle_context(), module, GPU, after="fuse", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    accesses = [access for access in memory_transactions(kernel) if access.space is Space.SHARED]
    assert len(accesses) > 5 and not [access for access in accesses if access.conflicts]


def rejection(sizes: Sizes, **choices: Choice) -> str:
    with pytest.raises(TreadleError) as caught:
        op = attention(sizes, "float32")
        TEMPLATE.check(op, TEMPLATE.default(op, GPU) | choices, GPU, "group 'g'")
    return str(caught.value)


def test_more_strips_than_rows_are_rejected():
    message = rejection(SMALL, rows=4, threads=128, lanes=8)
    assert "attention_cuda: 128 threads, 8 a row, take 16 rows at once, 12 too many; accepted: at most the 4" in message


def test_lanes_without_keys_are_rejected():
    message = rejection(SMALL, columns=16, lanes=32)
    assert "attention_cuda: 16 keys for 32 lanes are 16 too few; accepted: at least one key a lane" in message


def test_tiles_beyond_shared_memory_are_rejected():
    message = rejection(Sizes((), 1, 1, 64, 64, 256, 256), rows=64, columns=64, threads=256, lanes=16)
    assert "64 queries of 256 elements and 64 values of 256 takes 219136 bytes of shared memory, 52224" in message
    assert "accepted: at most 166912 on sm_80" in message


def test_tiles_beyond_the_registers_are_rejected():
    message = rejection(Sizes((), 1, 1, 64, 64, 64, 64), rows=16, columns=64, threads=32, lanes=8)
    assert "registers a thread" in message and "accepted: at most 255 on sm_80" in message


def test_strides_and_vectors_of_tiles():
    def tile(size: int, width: int) -> AttentionTile:
        return AttentionTile(16, 64, 128, 16, size, width)

    assert [tile(n, 1).key_stride for n in (1, 4, 5, 8, 64, 97)] == [4, 4, 8, 8, 68, 100]
    phases = [swizzle.phases if (swizzle := tile(n, 1).key_swizzle) else 1 for n in (4, 8, 16, 40, 64, 80, 97)]
    assert phases == [1, 2, 4, 2, 1, 4, 1]
    assert [tile(1, n).vector for n in (1, 16, 17, 32, 64, 80, 97, 128)] == [1, 1, 2, 2, 4, 2, 4, 4]
    assert [tile(1, n).padded_width for n in (1, 17, 64, 80, 97)] == [16, 32, 64, 96, 128]
