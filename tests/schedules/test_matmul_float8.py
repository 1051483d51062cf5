"""Products of floats of 8 bits by warpgroups: emulated with all checks, and what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr, TensorType, bf16, f32
from xdsl.ir import Block, SSAValue

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.schedules.tensor_cores import Array, in_one_group, legal_choices, scheduled
from treadle.backends.cuda.compiler import compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.graph.linear import BF16
from treadle.dialects.schedule import Choice
from treadle.schedules.default_template import default_template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_wgmma import MatmulWgmma
from treadle.target import Target

NAME = MatmulWgmma.name
FEW, HOPPER = Target.parse("sm_90a{multiprocessors=3}"), Target.parse("sm_90a")
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
DType = np.dtype[Any]
needs_nvrtc = pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")

PRECISIONS: dict[StringAttr | None, int] = {None: 32, BF16: 128}
"""Of a product, and the terms whose sum tensor cores carry."""
UNIT = 2.0**-13
"""The last of 14 bits."""


def product_of(g: Graph, precision: StringAttr | None = BF16) -> SSAValue:
    """The product of the first two inputs, of which both are stored along the terms."""
    return g.add(MatmulOp(g[0], g.add(TransposeOp(g[1], [1, 0])), sums=f32, precision=precision))


def emulated(a: Array, b: Array, precision: StringAttr | None, **choices: Choice) -> Array:
    graph = Graph(a, b)
    lowered = scheduled(graph.module(product_of(graph, precision)), NAME, choices, FEW)
    assert "treadle_wgmma<" in print_kernels(lowered)[0].text
    (result,), (report,) = EmulatedProgram(lowered).run([a, b])
    assert not report.findings
    return result


def limits(a: Array, b: Array, apart: int) -> Array:
    """How far `a @ b.T` may be off.

    An instruction has 32 terms; they and the sum so far are cut to 14 bits of the largest of them. After `apart` terms
    the sum is added to others, in f32, and begins with 0. (DeepSeek-V3 Technical Report, section 3.5.2.)
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64).T
    allowed, total = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], apart):
        part = np.zeros_like(total)
        for first in range(start, min(start + apart, a.shape[1]), 32):
            x, y = wide_a[:, first : first + 32], wide_b[first : first + 32]
            largest = np.maximum(np.abs(part), np.abs(x[:, :, None] * y[None]).max(1))
            allowed += 33 * UNIT * largest * (1 + 2.0**-6)
            part += x @ y
        total += part
        allowed += 2.0**-23 * (np.abs(total) + allowed)
    return allowed


def assert_close(result: Array, a: Array, b: Array, apart: int) -> None:
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    excess = np.abs(result - exact) - limits(a, b, apart)
    assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed"


OVERHANGING = [
    (1, 16, 8), (8, 80, 16), (63, 208, 136), (65, 128, 264), (130, 272, 200), (257, 144, 392), (300, 400, 72),
]  # fmt: skip
BLOCKS = [(64, 128), (128, 128), (128, 192), (256, 128)]
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)]


@pytest.mark.parametrize("precision", PRECISIONS, ids=["f16", "bf16"])
@pytest.mark.parametrize("shape", OVERHANGING, ids=str)
def test_tiles_that_overhang(shape: tuple[int, int, int], precision: StringAttr | None) -> None:
    """Of all pairs of types, by all tiles, with more tiles than blocks."""
    number, (m, k, n) = OVERHANGING.index(shape), shape
    choose, (left, right) = np.random.default_rng(number), PAIRS[number % len(PAIRS)]
    a, b = choose.standard_normal((m, k)).astype(left), choose.standard_normal((n, k)).astype(right)
    result = emulated(
        a, b, precision, block=BLOCKS[number % len(BLOCKS)], stages=2 + number % 3, group=(1, 8)[number % 2]
    )
    assert_close(result, a, b, PRECISIONS[precision])


def test_sums_of_many_terms_of_one_sign() -> None:
    """What 14 bits cut off is of one sign, too: without sums in f32 it would be 7% of the result."""
    choose = np.random.default_rng(0)
    a, b = (np.abs(choose.standard_normal((64, 4096))).astype(E4M3) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for precision, most in ((None, 2.0**-12), (BF16, 2.0**-9)):
        result = emulated(a, b, precision, block=(64, 128), stages=2)
        assert np.abs(result / exact - 1).max() < most
        assert_close(result, a, b, PRECISIONS[precision])


@pytest.mark.parametrize("type", [E4M3, E5M2], ids=str)
def test_values_at_the_ends_of_the_types(type: DType) -> None:
    """The largest numbers, the smallest, which are subnormal, NaN, and the infinities of e5m2."""
    info = ml_dtypes.finfo(type)
    a, b = np.zeros((64, 32), type), np.ones((128, 32), type)
    a[0], a[1, 5], a[2, 0], a[3, 1], a[4, 2] = info.max, info.max, info.smallest_subnormal, np.nan, np.nan
    b[7] = info.max
    if type == E5M2:
        a[4] = 0
        a[4, 2] = np.inf
    result = emulated(a, b, BF16, block=(64, 128), stages=2)
    largest, smallest = float(info.max), float(info.smallest_subnormal)
    assert (result[0, :7] == 32 * largest).all() and result[0, 7] == 32 * largest**2
    assert (result[1, :7] == largest).all() and (result[2, :7] == smallest).all()
    assert result[2, 7] == smallest * largest
    assert np.isnan(result[3]).all() and not result[5:].any()
    assert (np.isposinf(result[4]) if type == E5M2 else np.isnan(result[4])).all()


def _scaled(g: Graph) -> SSAValue:
    """Scales of the tensor and of columns, a bias, a relu, rounded to bf16."""
    scaled = g.add(BinaryOp("mul", product_of(g), g[2]))
    return g.add(CastOp(g.add(UnaryOp("relu", g.add(BinaryOp("add", scaled, g[3])))), bf16))


def _small(g: Graph) -> SSAValue:
    """A result of 8 bits again."""
    return g.add(CastOp(g.add(BinaryOp("mul", product_of(g), g[2])), element_type(E4M3)))


@pytest.mark.parametrize("build", [_scaled, _small])
def test_epilogues(build: Callable[[Graph], SSAValue]) -> None:
    choose = np.random.default_rng(3)
    a, b = choose.standard_normal((70, 144)).astype(E4M3), choose.standard_normal((136, 144)).astype(E4M3)
    scales, bias = (choose.random(136) / 16 + 0.01).astype(np.float32), choose.standard_normal(136).astype(np.float32)
    graph = Graph(a, b, scales, bias)
    module, _ = in_one_group(graph, build, FEW)
    lowered = scheduled(module, NAME, {"block": (128, 128), "stages": 2}, FEW)
    (result,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings
    exact, allowed = (a.astype(np.float64) @ b.astype(np.float64).T) * scales, limits(a, b, 128) * scales
    exact = np.maximum(exact + bias, 0) if build is _scaled else exact
    rounding = float(ml_dtypes.finfo(result.dtype).eps) / 2 * (np.abs(exact) + allowed)
    smallest = float(ml_dtypes.finfo(result.dtype).smallest_subnormal)
    assert (np.abs(result.astype(np.float64) - exact) <= allowed + rounding + smallest).all()


def test_ordinary_cores_multiply_what_tensor_cores_cannot_read() -> None:
    """An operand that lies across the terms."""
    choose = np.random.default_rng(4)
    a, b = choose.standard_normal((72, 144)).astype(E4M3), choose.standard_normal((144, 80)).astype(E5M2)
    graph = Graph(a, b)
    anchor = MatmulOp(_tensor(a), _tensor(b), sums=f32)
    assert TEMPLATES[NAME].obstacle(anchor, HOPPER) == "B's elements, of 8 bits, lie across the terms"
    chosen = default_template(anchor, HOPPER)
    assert chosen is not None and chosen.name == "matmul_simt"
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1], sums=f32)))
    lowered = scheduled(module, "matmul_simt", {}, Target.parse("sm_80"))
    (result,), (report,) = EmulatedProgram(lowered).run([a, b])
    assert not report.findings
    exact = a.astype(np.float64) @ b.astype(np.float64)
    norm = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert (np.abs(result - exact) <= 144 * 2.0**-24 * norm).all()


def _tensor(array: Array) -> SSAValue:
    return Block(arg_types=[TensorType(element_type(array.dtype), array.shape)]).args[0]


def _cubin(precision: StringAttr | None, pair: tuple[DType, DType], choices: Mapping[str, Choice]):
    """The instructions and the cubin of 4096 x 4096 x 4096, with a result of bf16."""
    operands = [np.broadcast_to(np.zeros((), type), (4096, 4096)) for type in pair]
    graph = Graph(*operands)
    module = graph.module(graph.add(CastOp(product_of(graph, precision), bf16)))
    (unit,) = print_kernels(scheduled(module, NAME, choices, HOPPER))
    cubin = compile_cubin(unit, HOPPER)
    (sass,) = disassembled(cubin).values()
    (resources,) = cubin.resources.values()
    assert not cubin.warnings and not resources.spills and not resources.stack_bytes
    return sass, resources


@needs_nvrtc
@pytest.mark.parametrize("precision", PRECISIONS, ids=["f16", "bf16"])
@pytest.mark.parametrize(
    ("block", "slabs", "types"),
    [((128, 128), 1, (E4M3, E4M3)), ((128, 192), 1, (E4M3, E5M2)), ((256, 128), 2, (E5M2, E4M3))],
    ids=str,
)
def test_machine_code(
    block: tuple[int, int], slabs: int, types: tuple[DType, DType], precision: StringAttr | None
) -> None:
    """Four products of 32 terms a step and 64 rows; an addition of each element behind those whose sum is apart."""
    sass, resources = _cubin(precision, types, {"block": block, "stages": 4})
    assert sass.has("UTMALDG") and sass.has("UTMASTG") and not sass.has("LDG") and not sass.has("STG")
    names = {"float8_e4m3fn": "E4M3", "float8_e5m2": "E5M2"}
    instruction = f"QGMMA.64x{block[1]}x32.F32.{names[str(types[0])]}.{names[str(types[1])]}"
    assert {each.opcode for each in sass.instructions if "GMMA" in each.opcode} == {instruction}
    steps, rest = divmod(sass.count(instruction), 4 * slabs)
    assert steps and not rest
    sums = (128 // PRECISIONS[precision]) * slabs * block[1] // 2
    assert sum(each.opcode == "FADD" for each in sass.instructions) == steps * sums
    assert resources.registers == 168


@needs_nvrtc
@pytest.mark.slow
def test_every_choice_compiles_without_spills_and_warnings() -> None:
    operands = [_tensor(np.broadcast_to(np.zeros((), E4M3), (4096, 4096))) for _ in range(2)]
    for precision in PRECISIONS:
        transposed = TransposeOp(operands[1], [1, 0])
        anchor = MatmulOp(operands[0], transposed.result, sums=f32, precision=precision)
        for choices in legal_choices(TEMPLATES[NAME], anchor, HOPPER):
            _cubin(precision, (E4M3, E4M3), choices)
