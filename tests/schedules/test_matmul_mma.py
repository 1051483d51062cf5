"""Products on tensor cores: the kernels that the template writes, on the interpreter of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Region

from tests.helpers.sampling import in_turn
from tests.schedules.tensor_cores import GPU, SHAPES, TEMPLATE, Shape, assert_product, product, sample
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.graph import FusedOp, YieldOp
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


def check(shapes: tuple[Shape, Shape], dtype: str, reverse: bool = False, **choices: Choice) -> None:
    """Builds the kernel of one product, and compares what it computes with the product."""
    anchor, template = product(shapes, dtype), TEMPLATES[TEMPLATE[dtype]]
    knobs = template.default(anchor, GPU) | choices
    template.check(anchor, knobs, GPU, "here")
    kernel = template.build(anchor, knobs, GPU, "kernel")
    kernel.verify()
    a, b = (sample(shape, dtype, seed) for seed, shape in enumerate(shapes))
    assert_product(evaluate_kernel(kernel, [a, b], reverse=reverse), a, b)


@pytest.mark.parametrize(("shapes", "dtype"), in_turn(SHAPES, ["float16", "bfloat16", "float32"], step=2), ids=str)
def test_products_of_any_size(shapes: tuple[Shape, Shape], dtype: str):
    check(shapes, dtype)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_pipelines_shorter_and_longer_than_their_stages(stages: int, steps: int, fragments: int):
    reverse = (stages + steps) % 2 > 0
    shapes = (16, 32 * steps - 8), (32 * steps - 8, 24)
    check(shapes, "float16", reverse, stages=stages, fragments=fragments)


TILES = [
    ((16, 128), (1, 4)),
    ((32, 64), (1, 4)),
    ((32, 64), (2, 2)),
    ((64, 64), (2, 4)),
    ((64, 128), (2, 2)),
    ((128, 64), (4, 2)),
    ((128, 128), (2, 2)),
    ((128, 256), (2, 4)),
    ((256, 128), (4, 2)),
]
"""Of blocks and of warps."""


@pytest.mark.parametrize(("tile", "dtype"), in_turn(TILES, ["float16", "float32"]), ids=str)
def test_tiles(tile: tuple[tuple[int, int], tuple[int, int]], dtype: str):
    choices: dict[str, Any] = {"block": tile[0], "warps": tile[1]} | ({"stages": 3} if dtype == "float32" else {})
    check(((50, 40), (40, 70)), dtype, **choices)


@pytest.mark.parametrize(("tile", "block_k"), in_turn(TILES, [32, 64]), ids=str)
def test_tiles_with_two_sets_of_fragments(tile: tuple[tuple[int, int], tuple[int, int]], block_k: int):
    choices: dict[str, Any] = {"block": tile[0], "warps": tile[1], "block_k": block_k, "stages": 3, "fragments": 2}
    check(((50, 100), (100, 70)), "bfloat16", **choices)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_depths(dtype: str):
    (extents,) = [knob.values for knob in TEMPLATES[TEMPLATE[dtype]].knobs if knob.name == "block_k"]
    for block_k in extents:
        check(((33, 100), (100, 40)), dtype, block_k=block_k, stages=2)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, pytest.param(17, marks=pytest.mark.slow)])  # one group more than of 9
def test_grouped_blocks_cover_every_row(rows: int):
    check(((32 * rows - 5, 8), (8, 130)), "float16", group=8)


def test_the_product_of_a_matrix_with_itself():
    anchor = product(((40, 40), (40, 40)))
    anchor.operands[1] = anchor.a
    template = TEMPLATES["matmul_mma"]
    kernel = template.build(anchor, template.default(anchor, GPU), GPU, "kernel")
    x = sample((40, 40), "float16", 0)
    assert_product(evaluate_kernel(kernel, [x for _ in kernel.inputs]), x, x)


def test_not_finite_numbers_stay_where_they_are():
    a, b = np.zeros((20, 40), np.float16), np.ones((40, 24), np.float16)
    a[3, 39], a[5, 0] = np.inf, np.nan
    anchor, template = product(((20, 40), (40, 24))), TEMPLATES["matmul_mma"]
    kernel = template.build(anchor, template.default(anchor, GPU), GPU, "kernel")
    result = evaluate_kernel(kernel, [a, b])
    assert np.isinf(result[3]).all() and np.isnan(result[5]).all()
    assert not np.delete(result, [3, 5], axis=0).any()


@pytest.mark.parametrize(("size", "target"), in_turn([1, 100, 1000, 2039, 8192], ["sm_80", "sm_86", "sm_90", "sm_120"]))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_space_is_small_and_holds_the_default(size: int, dtype: str, target: str):
    anchor, template, gpu = (
        product(((size, size), (size, size)), dtype),
        TEMPLATES[TEMPLATE[dtype]],
        Target.parse(target),
    )
    template.check(anchor, template.default(anchor, gpu), gpu, "here")
    space = template.space(anchor, gpu)
    assert template.default(anchor, gpu) in space
    assert all(error.accepted for _, error in space.excluded())
    assert 100 < len(space) < 200


@pytest.mark.parametrize(
    ("columns", "block", "message"),
    [
        (24, (64, 128), "tiles of 128 columns for a product of 24 columns are too wide by 64"),
        (72, (64, 32), "tiles of 32 columns for a product of 72 columns are too narrow by 1"),
    ],
)
def test_narrow_tiles_are_for_narrow_products(columns: int, block: tuple[int, int], message: str):
    anchor, template = product(((512, 64), (64, columns))), TEMPLATES["matmul_mma"]
    choices = template.default(anchor, GPU) | {"block": block, "warps": (2, 2)}
    with pytest.raises(TreadleError, match=message):
        template.check(anchor, choices, GPU, "here")


@pytest.mark.parametrize(
    ("m", "k", "n", "block"),
    [
        (4096, 256, 4096, (128, 128)), (512, 256, 1024, (64, 64)), (8, 256, 4096, (16, 128)),
        (65536, 256, 16, (128, 32)), (784, 256, 32, (64, 32)),
        # 100 of 128 x 128 would leave some multiprocessors without any.
        (1280, 1024, 1280, (64, 128)),
        # Convolutions to 64, 96 and 48 channels: 128 columns would be half zeros.
        (25088, 576, 64, (128, 64)), (100352, 64, 64, (128, 64)), (25088, 864, 96, (128, 64)),
        (32768, 1024, 48, (128, 64)), (12544, 147, 64, (64, 64)),
    ],
)  # fmt: skip
def test_the_default_gives_every_multiprocessor_a_block_and_wastes_least(
    m: int, k: int, n: int, block: tuple[int, int]
):
    assert TEMPLATES["matmul_mma"].default(product(((m, k), (k, n))), GPU)["block"] == block


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90"])
def test_the_default_of_few_columns_multiplies_few_zeros(target: str):
    for columns in range(33, 97):
        for rows in (784, 12544, 100352):
            default = TEMPLATES["matmul_mma"].default(product(((rows, 576), (576, columns))), Target.parse(target))
            assert default["block"] in ((128, 64), (64, 64), (32, 64)), (rows, columns)


@pytest.mark.parametrize(
    ("shapes", "dtype", "block", "stages", "split_k"),
    [
        (((128, 768), (768, 3072)), "float16", (32, 64), 5, 1),
        (((4096, 4096), (4096, 4096)), "float16", (128, 128), 5, 1),
        (((64, 4096), (4096, 64)), "float16", (32, 64), 5, 16),
        (((128, 3072), (3072, 768)), "float32", (64, 64), 5, 6),
    ],
)  # fmt: skip
def test_defaults_whose_spaces_an_h100_has_measured(
    shapes: tuple[Shape, Shape], dtype: str, block: tuple[int, int], stages: int, split_k: int
):
    """With one set of fragments 9.4, 328, 8.6 and 19.3 us; the best of each space 9.3, 328, 8.4 and 18.2, and four
    stages 10.2, 361, 9.5 and 20.5 (2026-11-26, commit e9d5a2f5, caches cold)."""
    default = TEMPLATES[TEMPLATE[dtype]].default(product(shapes, dtype), Target.parse("sm_90"))
    assert (default["block"], default["stages"], default["split_k"]) == (block, stages, split_k)


@pytest.mark.parametrize(
    ("shapes", "dtype", "fragments"),
    [
        (((4096, 4096), (4096, 4096)), "float16", 2), (((4096, 4096), (4096, 4096)), "bfloat16", 2),
        (((128, 768), (768, 3072)), "float16", 1), (((2039, 2039), (2039, 2039)), "float16", 1),
    ],
)  # fmt: skip
def test_the_default_loads_fragments_ahead_where_warps_have_large_tiles(
    shapes: tuple[Shape, Shape], dtype: str, fragments: int
):
    """And where copies are asynchronous: rows of an odd number of halves go through registers."""
    assert TEMPLATES[TEMPLATE[dtype]].default(product(shapes, dtype), GPU)["fragments"] == fragments
    assert "fragments" not in TEMPLATES["matmul_tf32"].default(product(shapes, "float32"), GPU)


def test_other_types_are_left_to_other_templates():
    for dtype, name in (("float32", "matmul_mma"), ("float16", "matmul_tf32")):
        assert not TEMPLATES[name].fits(product(((8, 8), (8, 8)), dtype))


def test_tf32_is_the_default_only_where_a_product_allows_it():
    for allowed, name in ((None, "matmul_simt"), (StringAttr("tf32"), "matmul_tf32")):
        anchor = product(((512, 512), (512, 512)), "float32")
        if allowed is not None:
            anchor.properties["precision"] = allowed
        group = FusedOp("group", Region(Block([anchor, YieldOp(anchor.result)])))
        assert default_schedule(group, GPU).template.data == name


def rejection(dtype: str = "float16", target: Target = GPU, **choices: Any) -> str:
    """The message for the default choices with some of them replaced."""
    anchor, template = product(((512, 512), (512, 512)), dtype), TEMPLATES[TEMPLATE[dtype]]
    with pytest.raises(TreadleError) as caught:
        template.check(anchor, template.default(anchor, target) | choices, target, "group 'g'")
    return str(caught.value)


def test_too_much_shared_memory_is_rejected():
    message = rejection(target=Target.parse("sm_86"), block=(128, 256), warps=(2, 4), stages=5)
    assert "128 x 256 x 32 tiles in 5 stages takes 139264 bytes of shared memory, 37888 too many" in message
    assert "accepted: at most 101376 on sm_86" in message


def test_too_many_registers_are_rejected():
    message = rejection(block=(128, 256), warps=(2, 2), stages=2)
    assert "registers a thread" in message and "too many" in message and "at most 255" in message


def test_more_tiles_than_are_worth_it_are_rejected():
    assert "640 bytes along K in all stages, 256 too many; accepted: at most 384" in rejection(block_k=64, stages=5)


def test_tiles_too_small_for_a_warp_are_rejected():
    message = rejection(block=(32, 64), warps=(4, 2))
    assert "4 x 2 warps share 32 x 64 tiles as 8 x 32, 256 elements too few for a warp" in message


def test_a_tile_that_the_threads_do_not_share_is_rejected():
    template = TEMPLATES["matmul_mma"]
    anchor = product(((512, 512), (512, 512)))
    uneven = template.default(anchor, GPU) | {"block": (96, 128), "warps": (2, 2)}
    with pytest.raises(
        TreadleError, match="B's tile of 512 chunks is not shared out evenly by 192 threads, 128 remain"
    ):
        template.limits(anchor, uneven | {"warps": (3, 2)}, GPU)
