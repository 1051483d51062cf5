"""tile-lower: products of every element type and layout, in the emulator, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import treadle
from treadle import ir
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.loop.tiles import PRODUCT_K

M, N, K = 40, 56, 72

TEXT = """
builtin.module attributes {{treadle.stage = "kernels"}} {{
  func.func @main(%a: tensor<{a}>, %b: tensor<{b}>) -> tensor<{c}> attributes {{input_names = ["a", "b"], output_names = ["c"]}} {{
    %c = loop.kernel @product ins(%A = %a : tensor<{a}>, %B = %b : tensor<{b}>) outs(%C : tensor<{c}>) grid(%block in 2) threads(%thread in 32) {{
      %zero = arith.constant 0 : index
      %depth = arith.constant {depth} : index
      %steps = arith.constant {steps} : index
      %height = arith.constant 32 : index
      %row = arith.muli %block, %height : index
      %x = loop.alloc : memref<2x{x}, #loop.space<shared>>
      %w = loop.alloc : memref<2x{w}, #loop.space<shared>>
      %sums = tile.fragment at [%zero, %zero] : !tile.fragment<32x64x{sums}>
      tile.pipelined %steps stages 2 start {{
      ^bb0(%step : index, %stage : index):
        %k = arith.muli %step, %depth : index
        tile.copy %A[{of_a}] to %x[%stage] : memref<{a}>, memref<2x{x}, #loop.space<shared>>
        tile.copy %B[{of_b}] to %w[%stage] : memref<{b}>, memref<2x{w}, #loop.space<shared>>
      }} do {{
      ^bb0(%step : index, %stage : index):
        tile.gemm %x[%stage] * %w[%stage] to %sums {words} : memref<2x{x}, #loop.space<shared>>, memref<2x{w}, #loop.space<shared>>, !tile.fragment<32x64x{sums}>
      }}
      tile.store %sums to %C[%row, %zero] : !tile.fragment<32x64x{sums}>, memref<{c}>
    }}
    func.return %c : tensor<{c}>
  }}
}}
"""  # noqa: E501


def text(a: str, b: str, *, transpose_a: bool, transpose_b: bool) -> str:
    """A product whose operands lie in memory as their tiles do."""
    depth = 2 * PRODUCT_K[element_type(np.dtype(a))]
    of_a, of_b = ((K, M) if transpose_a else (M, K)), ((N, K) if transpose_b else (K, N))
    tile_a, tile_b = ((depth, 32) if transpose_a else (32, depth)), ((64, depth) if transpose_b else (depth, 64))

    def shaped(shape: tuple[int, int], dtype: str) -> str:
        return f"{shape[0]}x{shape[1]}x{element_type(np.dtype(dtype))}"

    sums = "i32" if "int8" in a else "f32"
    return TEXT.format(
        a=shaped(of_a, a), b=shaped(of_b, b), c=f"{M}x{N}x{sums}", x=shaped(tile_a, a), w=shaped(tile_b, b),
        depth=depth, steps=-(-K // depth), sums=sums, of_a="%k, %row" if transpose_a else "%row, %k",
        of_b="%zero, %k" if transpose_b else "%k, %zero",
        words=" ".join(["transpose_a"] * transpose_a + ["transpose_b"] * transpose_b),
    )  # fmt: skip


LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]
CASES = [(dtype, dtype, *layout) for dtype in ("float16", "bfloat16", "float32") for layout in LAYOUTS]


@pytest.mark.parametrize(
    ("a", "b", "transpose_a", "transpose_b"), [*CASES, ("int8", "uint8", False, True), ("uint8", "int8", False, True)]
)
def test_products(a: str, b: str, transpose_a: bool, transpose_b: bool) -> None:
    """Bytes are exact; of f16 and bf16 the sums are rounded; operands of f32 have 11 bits (tf32)."""
    rng = np.random.default_rng(0)

    def values(shape: tuple[int, int], dtype: str) -> np.ndarray:
        if "int8" in dtype:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    x, w = values((M, K), a), values((K, N), b)
    module = ir.parse(text(a, b, transpose_a=transpose_a, transpose_b=transpose_b))
    with treadle.compile(module, "sm_80", device="emulator") as model:
        (c,) = model(a=x.T.copy() if transpose_a else x, b=w.T.copy() if transpose_b else w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    rounding = K * 2.0**-23 + (2.0**-10 if a == "float32" else 0)
    assert (np.abs(c - exact) <= rounding * (np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)))).all()
    assert "int8" not in a or (c == exact).all()
