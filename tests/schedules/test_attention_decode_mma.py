"""The template of attention of few queries on tensor cores: masks, knobs, special values, and what it rejects.

Its shapes are tried on the emulator, too (`test_attention_decode_mma_emulated.py`).
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
from tests.schedules.attention_cases import Array, Sizes, attention, environment, hidden_by, masked_by_floats
from tests.schedules.row_cases import tensor
from treadle.backends.reference.bounded import Bounded
from treadle.backends.reference.kernels import Kernel
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, MatmulOp
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.loop import FuncOp, Space
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.schedules.default_template import default_template, obstacles
from treadle.schedules.gpu_time import GpuWork, gpu_seconds
from treadle.schedules.template import number
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import TARGETS, Target

GPU = Target.parse("sm_80")
TEMPLATE = TEMPLATES["attention_decode_mma"]
TINY: dict[str, Choice] = {"rows": 8, "keys": 16, "warps": 1, "parts": 1}
SMALL = Sizes((2,), 4, 2, 3, 37, 8, 16)
HALVES = ["float16", "bfloat16"]


def check(
    op: AttentionOp,
    choices: Mapping[str, Choice] | None = None,
    env: Mapping[SSAValue, Array] | None = None,
    accepted: Bounded | None = None,
) -> Array:
    """Compares the kernel with the definition, or with what is `accepted`, blocks and threads in both orders, which
    give the same bits; the definition's result."""
    env = env or environment(op)
    knobs = TEMPLATE.default(op, GPU) | dict(choices or {})
    TEMPLATE.check(op, knobs, GPU, "here")
    kernel = TEMPLATE.build(op, knobs, GPU, "kernel")
    kernel.verify()
    expected = evaluate(op, env)
    accepted = accepted or limits_of_template(TEMPLATE.name, op, env, "f32")
    runner = Kernel(kernel)
    forwards, backwards = (
        runner.run([env[operand] for operand in kernel.inputs], reverse=reverse) for reverse in (False, True)
    )
    assert_within(forwards, accepted, expected.dtype, op.type)
    np.testing.assert_array_equal(forwards, backwards)
    return expected


@pytest.mark.parametrize("mask", range(8))
def test_masks_of_every_broadcast(mask: int):
    parts: dict[str, Choice] = {"keys": 16, "warps": 1, "parts": 2}
    check(attention(SMALL, "float16", SMALL.masks[mask], causal=mask % 2 == 0), parts)


@pytest.mark.parametrize("dtype", HALVES)
def test_tiles_beyond_the_diagonal_are_hidden(dtype: str):
    check(attention(Sizes((), 1, 1, 8, 70, 8, 24), dtype, causal=True), TINY)
    check(attention(Sizes((), 3, 1, 7, 70, 8, 8), dtype, causal=True), TINY | {"warps": 2, "parts": 2})
    check(attention(Sizes((), 2, 1, 20, 20, 8, 8), dtype, causal=True), TINY | {"rows": 16})


def test_a_mask_of_another_type():
    op, env = masked_by_floats(SMALL)
    check(op, env=env)


RAGGED = attention(Sizes((), 6, 2, 4, 133, 24, 16), "float16", causal=True)
SPACE = list(TEMPLATE.space(RAGGED, GPU))


@pytest.mark.parametrize("choices", every(3, SPACE), ids=lambda c: "-".join(map(str, c.values())))
def test_knobs(choices: dict[str, Choice]):
    check(RAGGED, choices)


def test_every_tile_is_legal_somewhere_and_tried():
    for knob in TEMPLATE.knobs[:3]:
        assert {choices[knob.name] for choices in SPACE} == set(knob.values)
        assert {choices[knob.name] for choices in SPACE[::3]} == set(knob.values)
    assert len({choices["parts"] for choices in SPACE}) > 3


def test_more_parts_than_tiles_of_keys():
    """Blocks of the last parts only arrive."""
    check(attention(Sizes((), 4, 2, 1, 40, 8, 8), "float16"), TINY | {"parts": 7})
    check(attention(Sizes((2,), 2, 2, 2, 9, 16, 8), "bfloat16", causal=True), TINY | {"warps": 4, "parts": 128})


@pytest.mark.parametrize("guard", [False, True])
def test_rows_without_a_score(guard: bool):
    """A mask hides every key of row 0; with more rows than keys, causality those of the first rows."""
    parts = TINY | {"parts": 2}
    expected = check(attention(Sizes((), 1, 1, 6, 20, 8, 8), "float16", (6, 20), guard=guard), parts)
    assert (expected[0, 0] == 0).all() if guard else np.isnan(expected[0, 0]).all()
    early = attention(Sizes((), 1, 1, 23, 3, 8, 8), "float16", causal=True, guard=guard)
    expected = check(early, parts)
    assert (expected[0, :20] == 0).all() if guard else np.isnan(expected[0, :20]).all()
    assert np.isfinite(expected[0, 20:]).all()


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(value: float, guard: bool):
    """Of rows 1 and 2 and of a late key: what comes after a row's NaN does not heal it."""
    op = attention(Sizes((), 1, 1, 5, 40, 8, 8), "float16", (5, 40), guard=guard)
    env = environment(op)
    mask = env[op.operands[3]]
    mask[1, 1], mask[2, 39] = value, value
    with np.errstate(all="ignore"):
        check(op, TINY | {"parts": 3}, env)


@pytest.mark.parametrize("largest", [60000.0, -60000.0, float(np.finfo(np.float32).min)])
def test_scores_near_the_end_of_their_range(largest: float):
    """All keys of a row are hidden by a large finite number: by the largest, they count alike."""
    op, env, accepted = hidden_by(SMALL, largest)
    assert np.isfinite(check(op, TINY | {"parts": 2}, env, accepted)).all()


def test_scores_that_differ_by_more_than_weights_reach():
    """The largest score comes late: what came before weighs nothing beside it, in its warp and in others."""
    op = attention(Sizes((), 2, 1, 2, 150, 8, 8), "float16")
    env = environment(op)
    env[op.k][0, 140] = 100 * env[op.q][0, 0]
    env[op.k][0, 3] = -100 * env[op.q][0, 0]
    check(op, TINY | {"warps": 2, "parts": 2}, env)


def test_queries_that_are_the_keys_and_the_values():
    x = tensor(2, 9, 8, dtype="float16")
    op = AttentionOp(x, x, x, scale=1.0)
    check(op, env={x: environment(op)[x]})


def test_what_it_fits():
    for dtype in HALVES:
        assert TEMPLATE.fits(attention(SMALL, dtype))
        assert TEMPLATE.fits(attention(Sizes((), 32, 8, 512, 4096, 128, 128), dtype))
    assert TEMPLATE.fits(attention(Sizes((), 16, 1, 1, 4096, 192, 128), "float16"))
    assert not TEMPLATE.fits(attention(SMALL, "float32"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 5, 0, 8, 8), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, DYNAMIC_INDEX, 8, 8, 8), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 70, 12, 8), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 4, 70, 256, 256), "float16"))
    assert not TEMPLATE.fits(MatmulOp(tensor(8, 8, dtype="float16"), tensor(8, 8, dtype="float16")))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a"])
def test_it_is_the_default_of_few_queries_and_many_keys(target: str):
    def name(*sizes: int) -> str:
        found = default_template(attention(Sizes((), *sizes), "float16"), Target.parse(target))
        assert found is not None
        return found.name

    for queries in (1, 2, 8):
        assert name(32, 8, queries, 4096, 128, 128) == name(12, 12, queries, 64, 64, 64) == TEMPLATE.name
    assert TEMPLATE.name not in (name(32, 8, 9, 4096, 128, 128), name(32, 8, 1, 63, 128, 128))
    assert TEMPLATE.name not in (name(8, 8, 1, 4096, 100, 100), name(8, 8, 1, 4096, 256, 256))


def test_why_it_is_not_the_default():
    def why(*sizes: int, dtype: str = "float16") -> str | None:
        return obstacles(attention(Sizes((), *sizes), dtype), GPU).get(TEMPLATE.name)

    assert why(8, 8, 1, 4096, 100, 100) == "heads whose size is no multiple of 8 elements"
    assert why(8, 8, 1, 4096, 256, 256) == "no room for keys and values of such heads in registers"
    assert why(8, 8, 1, 63, 64, 64) == "fewer than 64 keys are too little to share out"
    assert why(8, 8, 64, 64, 64, 64) is why(8, 8, 1, 4096, 64, 64) is why(8, 8, 1, 64, 64, 64, dtype="float32") is None


LARGE = [
    Sizes((1,), 32, 8, 1, 4096, 128, 128), Sizes((32,), 32, 8, 1, 4096, 128, 128), Sizes((1,), 14, 2, 1, 4096, 64, 64),
    Sizes((1,), 12, 12, 1, 1024, 64, 64), Sizes((8,), 12, 12, 8, 1024, 64, 64), Sizes((1,), 32, 8, 8, 4096, 128, 128),
    Sizes((8,), 64, 8, 8, 4096, 128, 128), Sizes((1,), 32, 1, 1, 4096, 128, 128), Sizes((1,), 12, 12, 1, 64, 64, 64),
    Sizes((1,), 32, 32, 1, 2048, 96, 96),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_it_is_predicted_to_take_no_longer_than_templates_of_many_queries(name: str, sizes: Sizes, causal: bool):
    target, op = Target.parse(name), attention(sizes, "float16", causal=causal)

    def seconds(template: str) -> float:
        use = UseAttr.get(template, TEMPLATES[template].default(op, target))
        work = work_of(Group(op), use, target)
        assert isinstance(work, GpuWork)
        return gpu_seconds(work, target)

    others = [each for each in ("attention_mma", "attention_wgmma") if TEMPLATES[each].runs_on(target)]
    assert default_template(op, target) is TEMPLATE
    # What parts store counts as traffic of the memory, though it stays in the caches.
    assert seconds(TEMPLATE.name) <= 1.02 * min(map(seconds, others))


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if TEMPLATE.runs_on(t)], ids=lambda t: t.name)
@pytest.mark.parametrize("size", [8, 64, 80, 96, 112, 128])
def test_defaults_are_legal(size: int, target: Target):
    for m, n, heads in ((1, 1000, 1), (8, 128, 12), (5, 3, 2), (2, 4096, 32), (300, 300, 4)):
        op = attention(Sizes((), heads, heads, m, n, size, size), "float16")
        TEMPLATE.check(op, TEMPLATE.default(op, target), target, "here")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_defaults_fill_the_multiprocessors(target: str):
    found = Target.parse(target)
    op = attention(Sizes((1,), 32, 8, 1, 4096, 128, 128), "float16")
    kernel = TEMPLATE.build(op, TEMPLATE.default(op, found), found, "kernel")
    assert 0.9 * found.multiprocessors <= kernel.grid.value.data <= 2 * found.multiprocessors
    many = TEMPLATE.default(attention(Sizes((32,), 32, 8, 1, 4096, 128, 128), "float16"), found)
    assert (many["rows"], many["keys"], many["warps"], many["parts"]) == (8, 16, 4, 1)


def test_defaults_of_several_sizes():
    def default(*sizes: int) -> tuple[Choice, ...]:
        return tuple(TEMPLATE.default(attention(Sizes((), *sizes), "float16"), GPU).values())

    assert default(32, 8, 1, 4096, 128, 128) == (8, 16, 4, 22)
    assert default(32, 8, 4, 4096, 128, 128) == (16, 16, 4, 22)
    assert default(12, 12, 1, 1024, 64, 64) == (8, 32, 4, 8)
    assert default(12, 12, 1, 40, 64, 64) == (8, 32, 2, 1)
    assert default(16, 1, 1, 4096, 192, 128) == (8, 16, 4, 64)


def test_canonical_choices_have_no_idle_rows_and_parts():
    op = attention(Sizes((), 4, 1, 2, 100, 64, 64), "float16")
    idle: dict[str, Choice] = {"rows": 16, "keys": 16, "warps": 4, "parts": 9}
    assert TEMPLATE.canonical(op, idle, GPU) == idle | {"rows": 8, "parts": 2}
    assert all(TEMPLATE.canonical(op, each, GPU) == each for each in TEMPLATE.candidates(op, GPU))


@pytest.mark.parametrize(("size", "heads", "m"), [(128, 4, 1), (64, 4, 1), (96, 4, 1), (128, 4, 4), (32, 1, 8)])
def test_defaults_meet_in_no_bank_and_read_whole_sectors(size: int, heads: int, m: int):
    shapes = (1, 2 * heads, m, size), (1, 2, 1024, size), (1, 2, 1024, size)
    case = Case("heads", shapes, lambda x: [AttentionOp(*x[:3], scale=size**-0.5)], "float16")
    module = case.module()
    lower(treadle_context(), module, GPU, after="fuse", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    assert number(case.default(GPU).knobs(), "parts") > 1
    accesses = list(memory_transactions(kernel))
    assert len([each for each in accesses if each.space is Space.SHARED]) > 5
    assert not [each for each in accesses if each.conflicts]
    assert not [each for each in accesses if each.is_global and each.bytes > 4 and each.excess]


def rejection(size: int, **choices: Choice) -> str:
    with pytest.raises(TreadleError) as caught:
        op = attention(Sizes((), 1, 1, 4, 64, size, size), "float16")
        TEMPLATE.check(op, TEMPLATE.default(op, GPU) | choices, GPU, "group 'g'")
    return str(caught.value)


def test_registers_are_limited():
    message = rejection(128, rows=16, keys=32)
    assert (
        "attention_decode_mma with 16 rows and 32 keys of 128 and 128 elements takes 314 registers a thread" in message
    )
    assert "59 too many; accepted: at most 255 on sm_80" in message


def test_sizes_that_do_not_fit_are_rejected():
    assert "template 'attention_decode_mma' does not schedule graph.attention" in rejection(12)
