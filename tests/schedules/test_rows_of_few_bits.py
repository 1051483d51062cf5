"""Products of few rows by weights of 4 and 8 bits, which are dequantised in registers: what they compute, what they
read, and what the compiler makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.schedules.tensor_cores import DTYPES, assert_product, sample
from treadle.backends.cuda.compiler import compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.program import read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, CastOp, ComputeOp, FusedOp, MatmulOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.passes.graph.graph_quantize_weights import quantized
from treadle.schedules.streams import reads_of_run
from treadle.target import Target
from treadle.target.options import CompileOptions

NAME = "matmul_rows_mma"
A100, HOPPER = Target.parse("sm_80"), Target.parse("sm_90a")
Array = np.ndarray


def few_bits(
    rows: int, terms: int, columns: int, block: int, bits: int, *, zeros: bool, dtype: str = "float16"
) -> tuple[Graph, ModuleOp, Array, Array]:
    """`x @ ((numbers - zeros) * scales)`, as `MatMulNBits` is imported; and its operands."""
    choose = np.random.default_rng(rows + terms + columns)
    blocks = -(-terms // block)
    numbers = choose.integers(0, 1 << bits, (columns, blocks, block), np.uint8)
    numbers[0, 0, 0] = (1 << bits) - 1
    middle = np.array(1 << bits - 1, np.int32)
    zero = choose.integers(0, 1 << bits, (columns, blocks, 1)).astype(np.int32) if zeros else middle
    scales = choose.uniform(0.005, 0.02, (columns, blocks, 1)).astype(DTYPES[dtype])
    x = sample((rows, terms), dtype, 1)
    graph, element = Graph(x), element_type(DTYPES[dtype])
    wide = graph.add(BinaryOp("sub", graph.add(CastOp(graph.constant(numbers), i32)), graph.constant(zero)))
    scaled = graph.add(BinaryOp("mul", graph.add(CastOp(wide, element)), graph.constant(scales)))
    by_columns = graph.add(ReshapeOp(scaled, [columns, blocks * block]))
    y = graph.add(MatmulOp(graph[0], graph.add(TransposeOp(by_columns, [1, 0]))))
    # One rounding each, as in the definition: a number less a zero point is exact.
    weights = (numbers.astype(np.int32) - zero).astype(DTYPES[dtype]) * scales
    return graph, graph.module(y), x, weights.reshape(columns, blocks * block).T


def scheduled(module: ModuleOp, target: Target, **choices: Choice) -> ModuleOp:
    """A module of one group, lowered with the default, some choices replaced."""
    lower(treadle_context(), module, target, after="graph", to="schedule")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    assert isinstance(fused.schedule, UseAttr) and fused.schedule.template.data == NAME
    fused.schedule = UseAttr.get(NAME, {**fused.schedule.knobs(), **choices})
    lower(treadle_context(), module, target, after="schedule")
    return module


SHAPES: list[tuple[int, int, int, int, dict[str, Choice]]] = [
    (1, 256, 16, 32, {}),
    (1, 512, 72, 128, {"warps": (1, 4)}),
    (1, 2048, 24, 32, {"warps": (1, 8), "ahead": 4, "split_k": 2}),
    (2, 1056, 40, 32, {"warps": (2, 4), "ahead": 1, "split_k": 2}),
    (3, 1280, 200, 64, {"warps": (1, 4), "ahead": 2, "split_k": 3}),
    (4, 288, 136, 32, {"warps": (8, 1), "ahead": 2, "split_k": 1}),
    (5, 768, 17, 128, {"warps": (4, 2), "ahead": 4, "split_k": 2}),
    (7, 640, 50, 64, {"warps": (1, 8), "ahead": 2, "split_k": 1}),
    (8, 1184, 56, 32, {"warps": (1, 8), "ahead": 1, "split_k": 1}),
    (13, 544, 88, 32, {"warps": (1, 4), "ahead": 2, "split_k": 1}),
    (16, 1024, 104, 128, {"warps": (2, 4), "ahead": 1, "split_k": 2}),
    (37, 320, 80, 64, {"warps": (1, 8), "ahead": 2, "split_k": 1}),
    (64, 416, 24, 32, {"warps": (4, 2), "ahead": 2, "split_k": 1}),
]
"""Rows, terms, columns, the block of a scale, and choices."""


VARIANTS = [(bits, zeros, "float16") for bits in (4, 8) for zeros in (False, True)]
CASES = [
    *((number, *variant) for number in range(len(SHAPES)) for variant in VARIANTS),
    *((number, 4 << number % 2, number % 3 == 0, "bfloat16") for number in range(len(SHAPES))),
]


@pytest.mark.parametrize(("number", "bits", "zeros", "dtype"), CASES, ids=str)
def test_products(number: int, bits: int, zeros: bool, dtype: str, emulator_environment: Environment) -> None:
    rows, terms, columns, block, choices = SHAPES[number]
    graph, module, x, weights = few_bits(rows, terms, columns, block, bits, zeros=zeros, dtype=dtype)
    lowered = scheduled(module, A100, **choices)
    assert len(print_kernels(lowered)) == 1, "one kernel dequantises and multiplies"
    (result,), (report,) = EmulatedProgram(lowered, environment=emulator_environment).run(graph.inputs)
    assert not report.findings, str(report)
    assert_product(result, x, weights)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_the_compiler_rounds(bits: int, emulator_environment: Environment) -> None:
    """As the CPU's kernels compute what is stored, up to the rounding of products."""
    k, n = 512, 200
    matrix = sample((k, n), "float16", 2)
    graph = Graph(sample((3, k), "float16", 1))
    options = CompileOptions(weights="int4" if bits == 4 else "int8")
    build = graph.add(MatmulOp(graph[0], graph.constant(matrix)))
    module = graph.module(build)
    lower(treadle_context(), module, A100, options=options)
    assert len(print_kernels(module)) == 1 and "treadle_mma" in print_kernels(module)[0].text
    (result,), (report,) = EmulatedProgram(module, environment=emulator_environment).run(graph.inputs)
    assert not report.findings
    numbers, scales = quantized(matrix, bits, 32)
    stored = (numbers.astype(np.float32).reshape(-1, 32, n) * scales.astype(np.float32)[:, None]).reshape(k, n)
    assert_product(result, graph.inputs[0], stored.astype(np.float16))


@pytest.mark.parametrize(("bits", "bytes_a_weight"), [(4, 0.5 + 2 / 32), (8, 1 + 2 / 32)])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_weights_are_read_once_as_they_are_stored(
    rows: int, bits: int, bytes_a_weight: float, emulator_environment: Environment
) -> None:
    terms, columns = 2048, 256
    graph, module, *_ = few_bits(rows, terms, columns, 32, bits, zeros=False)
    lowered = scheduled(module, A100)
    program = read_program(lowered)
    assert sum(constant.array().nbytes for constant in program.constants) == bytes_a_weight * terms * columns
    # Sums of slices and their counters; nothing of the size of the weights.
    assert program.arena_bytes <= max(1 << 12, 16 * rows * columns * 4 * 2)
    (unit,) = print_kernels(lowered)
    load = "treadle_load<treadle_vec<unsigned char, 16>>(&B["
    assert load in unit.text
    _, (report,) = EmulatedProgram(lowered, (), counters=True, environment=emulator_environment).run(graph.inputs)
    assert report.counters is not None
    lines = report.counters.source.splitlines()
    loads = [each for each in report.counters.lines if load in lines[each.line - 1]]
    assert sum(each.global_read for each in loads) == terms * columns * bits // 8
    assert sum(each.global_sectors for each in loads) == sum(each.global_ideal for each in loads)


@pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")
@pytest.mark.parametrize("target", [A100, HOPPER], ids=lambda target: target.name)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_machine_code(rows: int, bits: int, target: Target) -> None:
    _, module, *_ = few_bits(rows, 4096, 4096, 32, bits, zeros=True)
    (unit,) = print_kernels(scheduled(module, target))
    cubin = compile_cubin(unit, target)
    (sass,), (resources,) = disassembled(cubin).values(), cubin.resources.values()
    assert not cubin.warnings and not resources.spills and not sass.uses_local_memory and not resources.stack_bytes
    # Two sets of two requests of 16 bytes a lane, before the loop and in it; slices load what others have added up.
    found = sass.count("LDG.E.128")
    assert found == 8 if rows == 1 else found >= 4
    assert sass.has("HMMA.16816.F32") and not sass.has("LDSM")
    assert resources.registers <= 128


# What a run of terms is computed from.


def definition_of(bits: int) -> ComputeOp:
    """That of a matrix in its group, whose constants are packed."""
    _, module, *_ = few_bits(1, 256, 16, 32, bits, zeros=True)
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    (product,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    assert isinstance(product.b.owner, ComputeOp)
    return product.b.owner


def test_reads_of_a_run() -> None:
    definition = definition_of(4)

    def counts(run: int) -> list[int] | None:
        reads = reads_of_run(definition, run)
        return None if reads is None else sorted(each.count for each in reads)

    assert counts(32) == [1, 1, 16] and counts(16) == [1, 1, 8]
    assert counts(64) is None, "32 bytes of one tensor"
    assert counts(24) is None, "256 terms are no multiple"
    assert [each.bytes for each in reads_of_run(definition_of(8), 16) or ()].count(16) == 1


def test_products_of_many_rows_are_left_to_others() -> None:
    _, module, *_ = few_bits(65, 512, 64, 32, 4, zeros=True)
    lower(treadle_context(), module, A100, after="graph", to="schedule")
    uses = [op.schedule for op in module.walk() if isinstance(op, FusedOp)]
    assert all(isinstance(use, UseAttr) and use.template.data != NAME for use in uses)
