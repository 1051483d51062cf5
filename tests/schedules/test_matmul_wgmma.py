"""Products of warpgroups: emulated with all checks, and what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, f32, i8, i32
from xdsl.ir import Block, SSAValue

from benchmarks.warpgroup_kernels import MOST_OTHERS, forms, instructions_of_a_step
from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import (
    Array,
    Shape,
    assert_product,
    in_one_group,
    legal_choices,
    product,
    sample,
    scheduled,
)
from tests.schedules.warpgroup_steps import assert_as_by_hand
from treadle.backends.cuda.compiler import Cubin, compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp, ReshapeOp, TransposeOp, UnaryOp
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_wgmma import MatmulWgmma
from treadle.target import Target

NAME = MatmulWgmma.name
FEW = Target.parse("sm_90a{multiprocessors=3}")
HOPPER = Target.parse("sm_90a")
needs_nvrtc = pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")

BLOCKS = [(64, 128), (64, 256), (128, 128), (128, 192), (128, 256), (256, 128)]
OVERHANGING: list[tuple[Shape, Shape]] = [
    ((1, 8), (8, 8)),
    ((1, 64), (64, 128)),
    ((8, 72), (72, 8)),
    ((63, 200), (200, 136)),
    ((65, 64), (64, 264)),
    ((130, 136), (136, 200)),
    ((200, 264), (264, 136)),
    ((300, 72), (72, 392)),
    ((257, 128), (128, 520)),
    ((3, 100, 40), (3, 40, 72)),
    ((2, 2, 70, 64), (2, 2, 64, 136)),
    ((3, 129, 72), (72, 264)),
]


def graph_of(
    shapes: tuple[Shape, Shape], dtype: str, transposed: Sequence[bool] = (False, False)
) -> tuple[Graph, list[Array]]:
    """Inputs of a product, some of them stored with the last two dimensions exchanged; and what they mean."""
    operands = [sample(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    stored = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if t else x for x, t in zip(operands, transposed, strict=True)
    ]
    return Graph(*stored), operands


def emulated(
    shapes: tuple[Shape, Shape], dtype: str, transposed: Sequence[bool] = (False, False), **choices: Choice
) -> None:
    """Runs a product on few multiprocessors, so that a block has several tiles, with all checks."""
    graph, operands = graph_of(shapes, dtype, transposed)
    values = []
    for number, is_transposed in enumerate(transposed):
        rank = len(shapes[number])
        order = [*range(rank - 2), rank - 1, rank - 2]
        values.append(graph.add(TransposeOp(graph[number], order)) if is_transposed else graph[number])
    module = scheduled(graph.module(graph.add(MatmulOp(*values))), NAME, choices, FEW)
    (result,), reports = EmulatedProgram(module).run(graph.inputs)
    assert len(reports) == 1 and not reports[0].findings
    assert_product(result, *operands)


@pytest.mark.parametrize("shapes", OVERHANGING, ids=str)
def test_tiles_that_overhang(shapes: tuple[Shape, Shape]) -> None:
    number = OVERHANGING.index(shapes)
    dtype = ("float16", "bfloat16")[number % 2]
    emulated(shapes, dtype, block=BLOCKS[number % len(BLOCKS)], stages=2 + number % 3, group=(1, 8)[number % 2])


@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_operands_that_lie_the_other_way(block: tuple[int, int], transposed: tuple[bool, bool]) -> None:
    emulated(((136, 200), (200, 328)), "float16", transposed, block=block, stages=2)


def test_more_steps_than_stages_and_more_tiles_than_blocks() -> None:
    emulated(((520, 712), (712, 392)), "float16", block=(128, 128), stages=3, group=8)


SIGNS = [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.int8), (np.uint8, np.uint8)]


@pytest.mark.parametrize(("number", "signs"), list(enumerate(SIGNS)), ids=str)
def test_bytes(number: int, signs: tuple[type[np.int8 | np.uint8], type[np.int8 | np.uint8]]) -> None:
    """Sums are exact; B lies along the terms, as constants do."""
    choose = np.random.default_rng(number)
    shapes = ((130, 272), (200, 272))
    a, b = (
        choose.integers(np.iinfo(sign).min, np.iinfo(sign).max, shape, sign, endpoint=True)
        for sign, shape in zip(signs, shapes, strict=True)
    )
    graph = Graph(a, b)
    right = graph.add(TransposeOp(graph[1], [1, 0]))
    module = graph.module(graph.add(MatmulOp(graph[0], right, sums=i32)))
    lowered = scheduled(module, NAME, {"block": BLOCKS[number], "stages": 2}, FEW)
    (result,), (report,) = EmulatedProgram(lowered).run([a, b])
    assert not report.findings
    np.testing.assert_array_equal(result, a.astype(np.int32) @ b.astype(np.int32).T)


def test_values_at_the_ends_of_the_type() -> None:
    """Infinities, NaN and the largest numbers, of which sums in f32 still are numbers."""
    a, b = np.zeros((64, 64), np.float16), np.zeros((64, 128), np.float16)
    a[0, 0], a[1, 1], a[2, :2], b[:2] = np.inf, np.nan, 65504, 1
    graph = Graph(a, b)
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), NAME, {"block": (64, 128)}, FEW)
    (result,), _ = EmulatedProgram(module).run([a, b])
    assert np.isposinf(result[0]).all() and np.isnan(result[1]).all() and np.isposinf(result[2]).all()
    assert not result[3:].any()


def _block(g: Graph) -> SSAValue:
    biased = g.add(BinaryOp("add", g.add(MatmulOp(g[0], g[1])), g[2]))
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", biased, g[3]))))


def _heads(g: Graph) -> SSAValue:
    """Columns as 3 heads of 64, before the rows."""
    product = g.add(MatmulOp(g[0], g[1]))
    return g.add(TransposeOp(g.add(ReshapeOp(product, [4, 32, 3, 64])), [0, 2, 1, 3]))


def _batch(g: Graph) -> SSAValue:
    """Two matrices of 75 rows as one of 150."""
    product = g.add(MatmulOp(g.add(ReshapeOp(g[0], [150, 72])), g[1]))
    return g.add(UnaryOp("relu", g.add(ReshapeOp(product, [2, 75, 192]))))


A, B = (70, 64), (64, 136)
EPILOGUES: dict[str, tuple[Callable[[Graph], SSAValue], tuple[Shape, ...], bool]] = {
    "bias, residual, relu": (_block, (A, B, (136,), (70, 136)), True),
    "heads before rows": (_heads, ((128, 72), (72, 192)), True),
    "a batch as rows": (_batch, ((2, 75, 72), (72, 192)), True),
    "a cast of the result": (lambda g: g.add(CastOp(g.add(MatmulOp(g[0], g[1])), f32)), (A, B), False),
    "a transpose of the result": (
        lambda g: g.add(TransposeOp(g.add(MatmulOp(g[0], g[1])), [1, 0])),
        ((72, 64), B),
        False,
    ),
    "bytes": (
        lambda g: g.add(CastOp(g.add(UnaryOp("relu", g.add(MatmulOp(g[0], g[1])))), ui8)),
        (A, B),
        False,
    ),
}
"""What is fused behind a product, the inputs' shapes, and whether tiles of the result are boxes of a tensor."""


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    build, shapes, is_box = EPILOGUES[name]
    graph = Graph(*(random(*shape, seed=seed).astype(np.float16) for seed, shape in enumerate(shapes)))
    module, expected = in_one_group(graph, build)
    lowered = scheduled(module, NAME, {"block": (128, 192), "stages": 2, "group": 1}, FEW)
    (unit,) = print_kernels(lowered)
    assert ("treadle_tensor_store" in unit.text) == is_box
    (result,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings
    # Both round the sum of up to 72 terms to 11 bits, and each of the operations behind it.
    scale = float(np.abs(expected.astype(np.float64)).max())
    limit = 1.0 if result.dtype == np.uint8 else 4 * 2.0**-11 * scale
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=0, atol=limit)


def machine_code(shapes: tuple[Shape, Shape], **choices: Choice) -> tuple[Sass, Cubin]:
    """The instructions of a product's kernel for all multiprocessors, and its cubin."""
    graph = Graph(*(np.broadcast_to(np.zeros((), np.float16), shape) for shape in shapes))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (unit,) = print_kernels(scheduled(module, NAME, choices, HOPPER))
    cubin = compile_cubin(unit, HOPPER)
    (sass,) = disassembled(cubin).values()
    return sass, cubin


INSTRUCTIONS = {
    "128 x 256, 4 stages": "64x256x16",
    "128 x 192, 4 stages": "64x192x16",
    "128 x 192, 5 stages": "64x192x16",
    "256 x 128, 4 stages": "64x128x16",
}
"""The product of each kernel that was written by hand; of 5 stages the steps are no multiple."""


@needs_nvrtc
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_machine_code(name: str) -> None:
    sass, cubin = assert_as_by_hand(forms()[f"{NAME} {name}"])
    assert_only_products_and_copies(sass, INSTRUCTIONS[name])
    (resources,) = cubin.resources.values()
    assert sass.count("USETMAXREG") == 2 and resources.registers == 168


@needs_nvrtc
def test_machine_code_of_one_consumer() -> None:
    """A step is that of two: nothing is exchanged between them."""
    sass, cubin = machine_code(((4096, 4096), (4096, 4096)), block=(64, 256), stages=4)
    (resources,) = cubin.resources.values()
    assert not cubin.warnings and not resources.spills and not resources.stack_bytes
    assert_only_products_and_copies(sass, "64x256x16")
    by_hand = forms()[f"{NAME} 128 x 256, 4 stages"].by_hand
    products, others = instructions_of_a_step(sass, 1)
    assert products == by_hand.products and others <= MOST_OTHERS * by_hand.others and not sass.has("USETMAXREG")


def assert_only_products_and_copies(sass: Sass, instruction: str) -> None:
    """A kernel multiplies by this instruction, and copies boxes."""
    assert {each.opcode for each in sass.instructions if each.opcode.startswith("HGMMA")} == {
        f"HGMMA.{instruction}.F32"
    }
    assert sass.has("UTMALDG") and sass.has("UTMASTG")
    assert not any(sass.has(opcode) for opcode in ("HMMA", "LDGSTS", "STG", "LDG"))


@needs_nvrtc
@pytest.mark.slow
def test_every_choice_compiles_without_spills_and_warnings() -> None:
    shapes = ((4096, 4096), (4096, 4096))
    for choices in legal_choices(TEMPLATES[NAME], product(shapes), HOPPER):
        _, cubin = machine_code(shapes, **choices)
        (resources,) = cubin.resources.values()
        assert not cubin.warnings and not resources.spills, choices


@pytest.mark.parametrize(
    ("shapes", "block"),
    [
        (((4096, 4096), (4096, 4096)), (128, 256)),
        (((3072, 3072), (3072, 3072)), (128, 192)),
        (((8192, 8192), (8192, 8192)), (128, 256)),
        (((4096, 11008), (11008, 4096)), (128, 256)),
    ],
)
def test_the_default_is_the_tile_whose_waves_take_least(shapes: tuple[Shape, Shape], block: tuple[int, int]) -> None:
    """The fastest of the tiles that were measured on an H100."""
    template, anchor = TEMPLATES[NAME], product(shapes)
    assert template.has_default(anchor, HOPPER) and template.default(anchor, HOPPER)["block"] == block
    template.check(anchor, template.default(anchor, HOPPER), HOPPER, "default")


def test_products_of_few_tiles_are_left_to_others() -> None:
    """On an H100 the fastest kernel of this form takes 18 us for the first, and `matmul_mma` 8."""
    template = TEMPLATES[NAME]
    assert not template.has_default(product(((128, 768), (768, 3072))), HOPPER)
    assert template.has_default(product(((12, 1024, 768), (12, 768, 1024))), HOPPER)


def test_what_no_box_can_bring_is_refused() -> None:
    template = TEMPLATES[NAME]
    assert not template.fits(product(((64, 66), (66, 64)))), "rows of 132 bytes"
    assert not template.fits(product(((64, 64), (64, 50257)))), "rows of an odd number of halves"
    assert not template.fits(product(((64, 64), (64, 64)), "float32"))
    rows, columns = (Block(arg_types=[TensorType(i8, [64, 64])]).args[0] for _ in range(2))
    assert not template.fits(MatmulOp(rows, columns, sums=i32)), "bytes that lie across the terms"
    with pytest.raises(TreadleError, match="needs instructions that sm_90 does not have"):
        template.check(product(((64, 64), (64, 64))), {}, Target.parse("sm_90"), "here")
