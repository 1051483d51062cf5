"""The work of a CPU's product by its choices is what is counted on its kernel."""

from __future__ import annotations

import pytest

from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.schedule import Choice, UseAttr
from treadle.ir import lower, parse
from treadle.schedules.search.predict import cpu_seconds, cpu_terms
from treadle.schedules.search.product_work import blocks_of, product_work
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.lowered import count_work
from treadle.target import Target

CPU = Target.parse("avx512{cores=2}")
BATCH = """
func.func @main(%x: tensor<12x128x64xf32>, %w: tensor<12x96x64xf32>) -> tensor<12x128x96xf32> {
  %y = graph.fused "nt" {
    %t = graph.compute (%b, %k, %n) {
      %a = graph.at %w[%b, %n, %k] : tensor<12x96x64xf32>
      graph.yield %a : f32
    } : tensor<12x64x96xf32>
    %m = graph.matmul %x, %t : (tensor<12x128x64xf32>, tensor<12x64x96xf32>) -> tensor<12x128x96xf32>
    graph.yield %m : tensor<12x128x96xf32>
  } : tensor<12x128x96xf32>
  func.return %y : tensor<12x128x96xf32>
}"""
PLAIN = """
func.func @main(%x: tensor<ROWSx96xf32>, %w: tensor<96x480xf32>) -> tensor<ROWSx480xf32> {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<ROWSx96xf32>, tensor<96x480xf32>) -> tensor<ROWSx480xf32>
    graph.yield %m : tensor<ROWSx480xf32>
  } : tensor<ROWSx480xf32>
  func.return %y : tensor<ROWSx480xf32>
}"""


COMPUTED = """
func.func @main(%x: tensor<4x96xf32>, %w: tensor<96x480xui8>, %s: tensor<3x480xf32>) -> tensor<4x480xf32> {
  %y = graph.fused "bytes" {
    %t = graph.compute (%k, %n) {
      %a = graph.at %w[%k, %n] : tensor<96x480xui8>
      %f = arith.uitofp %a : ui8 to f32
      %c32 = arith.constant 32 : index
      %b = arith.divui %k, %c32 : index
      %c = graph.at %s[%b, %n] : tensor<3x480xf32>
      %p = arith.mulf %f, %c : f32
      graph.yield %p : f32
    } : tensor<96x480xf32>
    %m = graph.matmul %x, %t : (tensor<4x96xf32>, tensor<96x480xf32>) -> tensor<4x480xf32>
    graph.yield %m : tensor<4x480xf32>
  } : tensor<4x480xf32>
  func.return %y : tensor<4x480xf32>
}"""


def works(text: str, **choices: Choice) -> tuple[Work, Work]:
    """By the choices, and counted."""
    module, choices = parse(text), {"pack": False, "passes": 1} | choices
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    (product,) = [op for op in fused.walk() if isinstance(op, MatmulOp)]
    predicted = product_work(product, choices, CPU)
    fused.schedule = UseAttr.get("matmul_cpu", choices)
    lower(module, str(CPU), after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return predicted, count_work(kernel, CPU)


@pytest.mark.parametrize("rows", [128, 256])
@pytest.mark.parametrize(("tile", "vectors", "chunk"), [(8, 3, 128), (8, 3, 64), (4, 1, 16), (1, 2, 2)])
def test_plain_products(rows: int, tile: int, vectors: int, chunk: int):
    predicted, counted = works(PLAIN.replace("ROWS", str(rows)), rows=tile, vectors=vectors, chunk=chunk)
    mine, exact = cpu_terms(predicted, CPU), cpu_terms(counted, CPU)
    traffic = {"from L2", "from L3"}
    assert {k: v for k, v in mine.items() if k not in traffic} == pytest.approx(
        {k: v for k, v in exact.items() if k not in traffic}
    )
    assert cpu_seconds(predicted, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.4)


@pytest.mark.parametrize("pack", [False, True])
def test_strided_operands_cost_a_load_an_element_unless_packed(pack: bool):
    predicted, counted = works(BATCH, rows=8, vectors=3, chunk=64, pack=pack)
    assert cpu_seconds(predicted, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.3)


@pytest.mark.parametrize(("tile", "vectors"), [(1, 4), (4, 3)])
def test_what_computes_a_matrix_is_counted(tile: int, vectors: int):
    predicted, counted = works(COMPUTED, rows=tile, vectors=vectors, chunk=4)
    assert cpu_seconds(predicted, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.3)
    bytes_read = 96 * 480 * (1 + 4 / 32)
    assert predicted.reuse[0].traffic * CPU.cores == pytest.approx(bytes_read * 4 / tile, rel=0.5)


def test_panels_of_rows_are_transposed():
    predicted, counted = works(BATCH, rows=8, vectors=3, chunk=64, pack=True)
    squares = [body for body in counted.bodies if body.loads == body.stores == 16]
    assert [(body.executions, body.arithmetic) for body in squares] == [(4 * 3, 64)]
    assert squares[0] in predicted.bodies


def test_the_last_tile_has_the_least_height_that_suffices():
    (product,) = [op for op in parse(PLAIN.replace("ROWS", "17")).walk() if isinstance(op, MatmulOp)]
    choices = {"rows": 8, "vectors": 3, "chunk": 24, "pack": False, "passes": 1}
    rows = {
        heights: sum(body.executions * body.arithmetic for body in product_work(product, choices, CPU, heights).bodies)
        for heights in ((), (1, 2, 4, 6), (2, 6))
    }
    assert rows == {(): 24 * 3 * 96, (1, 2, 4, 6): 17 * 3 * 96, (2, 6): 18 * 3 * 96}


def test_blocks_that_nobody_needs_take_a_few_cycles():
    (product,) = [op for op in parse(PLAIN.replace("ROWS", "8")).walk() if isinstance(op, MatmulOp)]
    choices = {"rows": 1, "vectors": 1, "chunk": 1, "pack": False, "passes": 1}
    needed = blocks_of(product, choices, CPU)
    assert needed == 8 * 30
    few, many = (cpu_seconds(product_work(product, choices, CPU, (), grid), CPU) for grid in (needed, needed + 1000))
    assert many - few == pytest.approx(20 * 1000 / 2 * 4 * CPU.lanes / CPU.peak_f32)
