"""Products on a CPU core's matrix unit, compiled, against float64; on processors without a unit by plain C."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, bf16, f32
from xdsl.parser import Parser

from tests.helpers.graphs import Graph, name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, CastOp, FusedOp, MatmulOp, PackedMatmulOp, ReshapeOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.graph.packed_tiles import panels_of
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_tiles_cpu import FEW_ROWS, estimated_cycles
from treadle.target import Target

Array = NDArray[Any]
TARGETS = ("sse2{matrix_unit=amx}", "cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni_bf16}")
SHAPES = {
    "whole tiles": (128, 64, 96),
    "one row": (1, 64, 40),
    "two rows": (2, 33, 70),
    "less than a tile": (3, 5, 7),
    "five rows": (5, 40, 33),
    "half a tile more": (49, 70, 45),
    "a column more": (20, 32, 33),
    "several chunks": (1100, 33, 40),
    "a batch": (2, 3, 40, 65, 34),
}
CHAIN = "a chain"


@cache
def programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([*(print_product(name, target) for name in SHAPES), print_chain(target)], target)


def operands(name: str) -> tuple[Array, Array]:
    *outer, m, k, n = SHAPES[name]
    return random(*outer, m, k), random(k, n, seed=1)


def rounded(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def print_product(name: str, target: str) -> PrintedProgram:
    a, b = operands(name)
    graph = Graph(a)
    product = MatmulOp(graph.add(CastOp(graph[0], bf16)), graph.constant(rounded(b)))
    return printed(name, graph, graph.add(CastOp(graph.add(product), f32)), target)


def print_chain(target: str) -> PrintedProgram:
    """A product whose result is moved, widened, shifted and rounded before it is multiplied again."""
    graph = Graph(random(50, 40), random(24))
    first = graph.add(MatmulOp(graph.add(CastOp(graph[0], bf16)), graph.constant(rounded(random(40, 24, seed=1)))))
    wide = graph.add(CastOp(graph.add(ReshapeOp(first, [2, 25, 24])), f32))
    shifted = graph.add(UnaryOp("relu", graph.add(BinaryOp("add", wide, graph[1]))))
    again = graph.add(ReshapeOp(graph.add(CastOp(shifted, bf16)), [50, 24]))
    second = graph.add(MatmulOp(again, graph.constant(rounded(random(24, 70, seed=2)))))
    return printed(CHAIN, graph, second, target)


def printed(name: str, graph: Graph, result: Any, target: str) -> PrintedProgram:
    module = graph.module(result)
    name_arguments(module, len(graph.inputs), 1)
    return print_program(name, module, target, after="import")


def product_of(a: Array, b: Array) -> tuple[Array, Array]:
    """In float64, and how far sums in float32 may be off: a rounding for each term, of the sum of the magnitudes."""
    wide = [rounded(x).astype(np.float64) for x in (a, b)]
    return wide[0] @ wide[1], a.shape[-1] * 2.0**-24 * (abs(wide[0]) @ abs(wide[1]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
def test_products(name: str, target: str) -> None:
    a, b = operands(name)
    (got,) = programs(target)[name].run([a])
    wanted, limit = product_of(a, b)
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_chain_rounds_operands_only(target: str) -> None:
    x, bias = random(50, 40), random(24)
    (got,) = programs(target)[CHAIN].run([x, bias])
    first, limit = product_of(x, random(40, 24, seed=1))
    between = np.maximum(first + bias, 0).astype(np.float32)
    wanted, own = product_of(between, random(24, 70, seed=2))
    # What the first product is off may round to the next bfloat16, and the result is rounded once more.
    step = (limit.max() + 2.0**-8 * abs(between).max()) * abs(random(24, 70, seed=2)).sum(axis=0)
    assert (abs(got.astype(np.float64) - wanted) <= own + step + 2.0**-8 * abs(wanted)).all()
    assert len(print_chain(target).kernels) == 2


@pytest.mark.parametrize("target", ["sse2", "cpu{matrix_unit=vnni}"])
def test_a_target_whose_unit_has_no_bfloat16_has_no_such_product(target: str) -> None:
    assert not any("treadle_tiles" in unit.text for unit in print_product("one row", target).kernels)


SCHEDULED = """
func.func @main(%a: tensor<{m}x{k}x{left}>, %p: tensor<{panels}x{right}>) -> tensor<{m}x{n}x{sums}> {{
  %y = graph.fused "tiles" {{
    %v = graph.packed_matmul %a, %p {{columns = {n} : i64}}
        : (tensor<{m}x{k}x{left}>, tensor<{panels}x{right}>) -> tensor<{m}x{n}x{sums}>
    graph.yield %v : tensor<{m}x{n}x{sums}>
  }} {schedule} : tensor<{m}x{n}x{sums}>
  func.return %y : tensor<{m}x{n}x{sums}>
}}
"""


def text(schedule: str = "", left: str = "bf16", right: str = "bf16", m: int = 72, k: int = 80, n: int = 90) -> str:
    side = 2 if right == "bf16" else 4
    panels = f"{-(-n // 32)}x{-(-k // (16 * side)) * 16}x32x{side}"
    sums = "f32" if right == "bf16" else "i32"
    return SCHEDULED.format(m=m, k=k, n=n, left=left, right=right, panels=panels, sums=sums, schedule=schedule)


@pytest.mark.parametrize(("chunk", "panels"), [(16, 1), (32, 2), (64, 3), (96, 1), (128, 7)])
def test_chunks_and_panels(chunk: int, panels: int) -> None:
    """Those that the last block leaves in part, and that no block fills."""
    schedule = f'schedule #schedule.use<"matmul_tiles_cpu", {{chunk = {chunk}, panels = {panels}}}>'
    a, b = random(72, 80), random(80, 90, seed=1)
    got = run(text(schedule), rounded(a), panels_of(rounded(b)))
    wanted, limit = product_of(a, b)
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.parametrize("rows", [1, 6, 9])
@pytest.mark.parametrize("chunk", FEW_ROWS)
def test_chunks_of_few_rows(chunk: int, rows: int) -> None:
    """By vectors, which multiply as few."""
    schedule = f'schedule #schedule.use<"matmul_tiles_cpu", {{chunk = {chunk}, panels = 2}}>'
    a, b = random(rows, 80), random(80, 90, seed=1)
    got = run(text(schedule, m=rows), rounded(a), panels_of(rounded(b)), target=TARGETS[2])
    wanted, limit = product_of(a, b)
    assert (abs(got - wanted) <= limit).all()


def test_a_unit_of_16_rows_refuses_fewer() -> None:
    schedule = 'schedule #schedule.use<"matmul_tiles_cpu", {chunk = 4, panels = 2}>'
    with pytest.raises(TreadleError, match="32 rows overrun a chunk of 4 rows; accepted: 16, or a multiple of 32"):
        run(text(schedule, m=4), rounded(random(4, 80)), panels_of(rounded(random(80, 90))))


DTYPES = {"i8": np.int8, "ui8": np.uint8}


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_products_of_bytes_are_exact(left: str, right: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(np.iinfo(DTYPES[kind]).min, np.iinfo(DTYPES[kind]).max, shape, DTYPES[kind], endpoint=True)
        for kind, shape in ((left, (72, 80)), (right, (80, 90)))
    )
    schedule = 'schedule #schedule.use<"matmul_tiles_cpu", {chunk = 32, panels = 2}>'
    got = run(text(schedule, left, right), a, panels_of(b))
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


def run(source: str, *inputs: Array, target: str = TARGETS[0]) -> Array:
    module = Parser(treadle_context(), source).parse_module()
    name_arguments(module, 2, 1)
    program = print_program("tiles", module, target, after="schedule")
    (got,) = compile_programs([program], target)["tiles"].run(inputs)
    return got


ROUNDED = """
func.func @main(%a: tensor<{m}x{k}xf32>, %q: tensor<{k}x{n}xui8>, %s: tensor<{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %y = graph.fused "rounded" {{
    %b = graph.compute (%k, %n) {{
      %0 = graph.at %q[%k, %n] : tensor<{k}x{n}xui8>
      %1 = arith.uitofp %0 : ui8 to f32
      %2 = graph.at %s[%n] : tensor<{n}xf32>
      %3 = arith.mulf %1, %2 : f32
      graph.yield %3 : f32
    }} : tensor<{k}x{n}xf32>
    %v = graph.matmul %a, %b {{precision = "bf16"}} : (tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32>
    graph.yield %v : tensor<{m}x{n}xf32>
  }} schedule #schedule.use<"matmul_rounded_cpu", {{chunk = {chunk}, panels = {panels}}}> : tensor<{m}x{n}xf32>
  func.return %y : tensor<{m}x{n}xf32>
}}
"""
COMPUTED = {
    "whole tiles": (64, 64, 96, 64, 3),
    "one row": (1, 96, 40, 16, 2),
    "odd": (35, 33, 45, 64, 1),
    "half a panel": (20, 70, 48, 32, 1),
    "several chunks": (100, 31, 65, 32, 2),
    "one term": (9, 1, 16, 16, 1),
}


def computed_module(name: str) -> ModuleOp:
    m, k, n, chunk, panels = COMPUTED[name]
    source = ROUNDED.format(m=m, k=k, n=n, chunk=chunk, panels=panels)
    module = Parser(treadle_context(), source).parse_module()
    name_arguments(module, 3, 1)
    return module


def computed_operands(name: str) -> tuple[Array, Array, Array]:
    m, k, n, *_ = COMPUTED[name]
    return random(m, k), np.random.default_rng(3).integers(0, 256, (k, n), np.uint8), random(n, seed=2)


@cache
def computed_programs(target: str) -> dict[str, CompiledProgram]:
    printed = [print_program(name, computed_module(name), target, after="schedule") for name in COMPUTED]
    return compile_programs(printed, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", COMPUTED)
def test_matrices_that_are_computed(name: str, target: str) -> None:
    """A panel is rounded to pairs before it is multiplied; rows and columns that do not exist add nothing."""
    a, q, scales = computed_operands(name)
    (got,) = computed_programs(target)[name].run([a, q, scales])
    wanted, limit = product_of(a, q.astype(np.float32) * scales)
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.parametrize("stage", ["kernels", "loops"])
def test_evaluator_of_computed_matrices(stage: str) -> None:
    """Scalars of stage kernels, and vectors of stage loops."""
    module, (a, q, scales) = computed_module("odd"), computed_operands("odd")
    lower(treadle_context(), module, Target.parse(TARGETS[0]), after="schedule", to=stage)
    (got,) = run_module(module, [a, q, scales])
    wanted, limit = product_of(a, q.astype(np.float32) * scales)
    assert (abs(got - wanted) <= limit).all()


def anchor(m: int = 72, n: int = 90) -> PackedMatmulOp:
    module = Parser(treadle_context(), text(m=m, n=n)).parse_module()
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    assert str(default_schedule(fused, Target.parse(TARGETS[0])).template.data) == "matmul_tiles_cpu"
    found = anchor_of(fused)
    assert isinstance(found, PackedMatmulOp)
    return found


def test_blocks_are_even_and_no_larger_than_the_product() -> None:
    template, target = TEMPLATES["matmul_tiles_cpu"], Target.parse(TARGETS[0])
    assert template.canonical(anchor(), {"chunk": 64, "panels": 2}, target) == {"chunk": 64, "panels": 2}
    assert template.canonical(anchor(), {"chunk": 1024, "panels": 64}, target) == {"chunk": 96, "panels": 3}
    assert template.canonical(anchor(m=5), {"chunk": 64, "panels": 64}, target)["chunk"] == 16
    for each in (anchor(), anchor(m=1000, n=300)):
        candidates = list(template.candidates(each, target))
        assert len(candidates) == len({tuple(sorted(found.items())) for found in candidates})
        assert all(template.canonical(each, found, target) == found for found in candidates)


def test_chunks_that_tiles_overrun_are_rejected() -> None:
    template, target = TEMPLATES["matmul_tiles_cpu"], Target.parse(TARGETS[0])
    with pytest.raises(TreadleError, match=r"tiles of 32 rows overrun a chunk of 48 rows"):
        template.check(anchor(), {"chunk": 48, "panels": 1}, target, "here")


def test_estimates_ask_for_equal_work_of_all_cores() -> None:
    target, product = Target.parse("cpu{matrix_unit=amx cores=2}"), anchor(m=512, n=64)
    two, one = ({"chunk": chunk, "panels": 2} for chunk in (256, 512))
    assert estimated_cycles(product, two, target) < estimated_cycles(product, one, target)
