"""How many terms of a product's sum a call computes, as the choice of kernels for a range counts them."""

from __future__ import annotations

import pytest
from xdsl.dialects.func import FuncOp

from treadle.dialects.graph import MatmulOp
from treadle.ir import lower, parse
from treadle.passes.schedule.instance import CallShape, instance_of, needed_terms

MODULE = """
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %m: tensor<i64>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {{input_names = ["x", "w", "m", "n"], output_names = ["y"], extents = ["m", "n"],
                output_required = [#graph.required<d0 < 0>]}} {{
  %a = graph.mask %x below %n {{dim = 1 : i64, fill = 0.0 : f32}}
      : (tensor<64x32xf32>, tensor<i64>) -> tensor<64x32xf32>
  %b = graph.mask %w below %{extent} {{dim = {dim} : i64, fill = 0.0 : f32}}
      : (tensor<32x48xf32>, tensor<i64>) -> tensor<32x48xf32>
  %y = graph.matmul %a, %b : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}}
"""


def product(extent: str, dim: int) -> tuple[MatmulOp, FuncOp]:
    """The product in its group, and @main."""
    module = parse(MODULE.format(extent=extent, dim=dim))
    lower(module, "avx512", to="fuse")
    (found,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    (main,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return found, main


@pytest.mark.parametrize(
    ("extent", "dim", "values", "terms"),
    [("n", 0, (64, 5), 5), ("n", 0, (5, 99), 32), ("n", 0, (5, 0), 1), ("m", 0, (7, 5), 5), ("n", 1, (7, 5), 5)],
)
def test_terms_below_the_extent_of_a_mask(extent: str, dim: int, values: tuple[int, int], terms: int) -> None:
    anchor, main = product(extent, dim)
    assert needed_terms(anchor, values, fused=True) == terms
    del main.attributes["extents"]
    assert needed_terms(anchor, values, fused=True) == 32, "no extent is known"


def test_an_instance_has_these_terms() -> None:
    anchor, _ = product("n", 0)
    instance = instance_of(anchor, CallShape((3, 48), 5))
    assert isinstance(instance, MatmulOp)
    assert instance.shape == (3, 48) and instance.reduction_extent == 5
