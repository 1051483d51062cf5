"""Into how many slices the terms of products are split, and what the interpreter makes of such kernels."""

from __future__ import annotations

from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import GPU, Shape, assert_product, product, sample
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.graph import MatmulOp
from treadle.dialects.loop import AllocOp, ArriveOp, type_of
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.split_k import LARGEST, Slices, number_of_slices, shared_out
from treadle.schedules.template import number
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

MATMULS = [("matmul_simt", "float32", 128), ("matmul_mma", "float16", 256), ("matmul_tf32", "float32", 256)]
"""Templates, a type, and the terms of a slice at least."""


@given(
    blocks=st.integers(1, 300), terms=st.integers(1, 30000), block_k=st.sampled_from([8, 16, 32]),
    multiprocessors=st.sampled_from([68, 108, 132]),
)  # fmt: skip
def test_slices_fill_the_device_and_are_long_enough(
    blocks: int, terms: int, block_k: int, multiprocessors: int
) -> None:
    slices = number_of_slices(blocks, terms, block_k, 128, multiprocessors)
    shared = Slices(slices, ceil(terms / block_k), block_k)
    shared.check("here")
    if 2 * blocks > multiprocessors:
        assert slices == 1
        return
    most = max(1, min(terms // 128, 32))
    assert slices <= most and (slices == 1 or shared.each * block_k >= 128)
    assert slices <= 2 * ceil(multiprocessors / blocks)
    # Fewer than wanted only where they would be too short, or where the last of so many would be empty.
    wanted = min(ceil(multiprocessors / blocks), most)
    assert slices >= wanted or shared.each == ceil(shared.steps / wanted)


@pytest.mark.parametrize(("template", "dtype", "fewest"), MATMULS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("m", [1, 64, 197, 2048])
@pytest.mark.parametrize("k", [300, 768, 2039, 25088])
def test_defaults_give_every_multiprocessor_a_block(
    template: str, dtype: str, fewest: int, target: str, m: int, k: int
) -> None:
    on, anchor = Target.parse(target), product(((m, k), (k, 384)), dtype)
    choices = TEMPLATES[template].default(anchor, on)
    TEMPLATES[template].check(anchor, choices, on, "here")
    slices, kernel = number(choices, "split_k"), TEMPLATES[template].build(anchor, choices, on, "kernel")
    blocks = kernel.grid.value.data
    assert (
        slices == 1
        or shared_out(anchor, slices, number(choices, "block_k")).each * number(choices, "block_k") >= fewest
    )
    assert (slices > 1) == any(isinstance(op, ArriveOp) for op in kernel.walk())
    allocs = [op for op in kernel.walk() if isinstance(op, AllocOp) and op.buffer.name_hint == "partial_sums"]
    sums = [type_of(op.buffer).get_shape() for op in allocs]
    assert slices == 1 or (sums[0][0] * slices == blocks and prod(sums[0][2:]) <= LARGEST)
    if blocks < on.multiprocessors:
        # The smallest tile, in slices of which none could be shorter.
        assert slices == 1 or slices == 32 or k // (slices + 1) < 2 * fewest


@pytest.mark.parametrize(("template", "dtype", "fewest"), MATMULS)
def test_the_space_has_one_number_of_slices_for_a_tile(template: str, dtype: str, fewest: int) -> None:
    anchor = product(((64, 4096), (4096, 64)), dtype)
    space = TEMPLATES[template].space(anchor, GPU)
    tiles: dict[tuple[object, ...], set[int]] = {}
    for choices in space:
        tiles.setdefault(tuple(value for name, value in choices.items() if name != "split_k"), set()).add(
            number(choices, "split_k")
        )
    assert 100 < len(space) < 200 and all(len(each) == 1 for each in tiles.values())
    assert max(max(each) for each in tiles.values()) == 4096 // fewest
    assert TEMPLATES[template].default(anchor, GPU) in space


def test_a_decision_by_hand_may_have_any_number_of_slices() -> None:
    template, anchor = TEMPLATES["matmul_simt"], product(((64, 4096), (4096, 64)), "float32")
    by_hand = template.default(anchor, GPU) | {"split_k": 7}
    assert by_hand not in template.space(anchor, GPU)
    template.check(anchor, by_hand, GPU, "here")


@pytest.mark.parametrize(
    ("template", "dtype", "split_k", "message"),
    [
        (
            "matmul_simt",
            "float32",
            8,
            "here: matmul_simt with 8 slices of 2 of 13 steps along K leaves 1 without any; accepted: split_k = 7",
        ),
        (
            "matmul_mma",
            "float16",
            6,
            "here: matmul_mma with 6 slices of 1 of 4 steps along K leaves 2 without any; accepted: split_k = 4",
        ),
        ("matmul_tf32", "float32", 65, "here: knob 'split_k' of template 'matmul_tf32' is 65; accepted: 1 to 64"),
        ("matmul_simt", "float32", 0, "here: knob 'split_k' of template 'matmul_simt' is 0; accepted: 1 to 64"),
    ],
)
def test_slices_without_a_step_are_rejected(template: str, dtype: str, split_k: int, message: str) -> None:
    anchor = product(((40, 100), (100, 40)), dtype)
    with pytest.raises(TreadleError) as caught:
        TEMPLATES[template].check(anchor, TEMPLATES[template].default(anchor, GPU) | {"split_k": split_k}, GPU, "here")
    assert str(caught.value).startswith(message)


def test_more_accumulators_than_can_be_added_up_are_not_split() -> None:
    """The space leaves such tiles whole; by hand it is rejected."""
    anchor, template = product(((128, 4096), (4096, 256)), "float16"), TEMPLATES["matmul_mma"]
    large = {"block": (128, 256), "warps": (2, 4), "block_k": 32, "stages": 2, "group": 1, "fragments": 2}
    assert large | {"split_k": 1} in list(template.space(anchor, GPU))
    with pytest.raises(TreadleError, match=r"2 slices and 128 accumulators a thread has 64 too many .* or split_k = 1"):
        template.check(anchor, large | {"split_k": 2}, GPU, "here")


SMALL: dict[str, dict[str, Choice]] = {
    "matmul_simt": {"warps": (1, 1), "repeats": (1, 1), "thread": (2, 2), "min_blocks_per_sm": 1},
    "matmul_mma": {"block": (32, 64), "warps": (2, 2), "stages": 2},
    "matmul_tf32": {"block": (32, 64), "warps": (2, 2), "stages": 2},
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("template", "dtype"),
    [*(each[:2] for each in MATMULS), ("matmul_simt", "float16"), ("matmul_mma", "bfloat16")],
)
def test_the_interpreter_agrees_in_any_order(template: str, dtype: str, reverse: bool) -> None:
    shapes: tuple[Shape, Shape] = ((2, 9, 90), (90, 11))
    anchor = product(shapes, dtype)
    choices = TEMPLATES[template].default(anchor, GPU) | SMALL[template] | {"split_k": 3}
    TEMPLATES[template].check(anchor, choices, GPU, "here")
    kernel = TEMPLATES[template].build(anchor, choices, GPU, "kernel")
    kernel.verify()
    a, b = (sample(shape, dtype, seed) for seed, shape in enumerate(shapes))
    assert_product(evaluate_kernel(kernel, [a, b], reverse=reverse), a, b)


def test_doubles_are_added_up_as_doubles() -> None:
    a, b = (random(*shape, seed=n).astype(np.float64) for n, shape in enumerate(((9, 70), (70, 11))))
    graph = Graph(a, b)
    anchor = MatmulOp(graph[0], graph[1])
    choices = TEMPLATES["matmul_simt"].default(anchor, GPU) | SMALL["matmul_simt"] | {"split_k": 3}
    kernel = TEMPLATES["matmul_simt"].build(anchor, choices, GPU, "kernel")
    np.testing.assert_allclose(evaluate_kernel(kernel, [a, b]), a @ b, rtol=0, atol=70 * 2.0**-52 * 70)


def test_registers_of_two_blocks_do_not_hold_slices_too() -> None:
    anchor, template = product(((128, 768), (768, 3072)), "float32"), TEMPLATES["matmul_simt"]
    large = template.default(product(((4096, 4096), (4096, 4096)), "float32"), GPU)
    assert large["min_blocks_per_sm"] == 2
    template.check(anchor, large | {"split_k": 1}, GPU, "here")
    with pytest.raises(TreadleError, match="the slices that are added to them; accepted: min_blocks_per_sm = 1"):
        template.check(anchor, large | {"split_k": 6}, GPU, "here")


def test_deep_tiles_of_tf32_do_not_overhang_with_many_accumulators() -> None:
    template = TEMPLATES["matmul_tf32"]
    large = {"block": (256, 128), "warps": (4, 2), "block_k": 32, "stages": 2, "group": 1, "split_k": 1}
    template.check(product(((256, 3072), (3072, 768)), "float32"), large, GPU, "here")
    with pytest.raises(
        TreadleError, match="block_k = 32, 16 too many, in tiles that overhang by 128; accepted: block_k = 16"
    ):
        template.check(product(((128, 3072), (3072, 768)), "float32"), large, GPU, "here")
