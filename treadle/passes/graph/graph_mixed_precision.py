"""graph-mixed-precision: products, convolutions and attention in a narrower type, the rest in f32."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, bf16, f16, f32
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from treadle.dialects.graph import MatmulOp
from treadle.errors import TreadleError
from treadle.passes.graph.precision.narrow import Narrowing

_NARROW = {"f16": f16, "bf16": bf16}
_ACCEPTED = ("f32", "tf32", *_NARROW)


@dataclass(frozen=True)
class GraphMixedPrecisionPass(ModulePass):
    """Gives `matmul`, `conv`, `conv_transpose` and `attention` of f32 operands and results of f16 or bf16.

    ```mlir
    %m = graph.matmul %x, %w : (tensor<128x768xf32>, tensor<768x768xf32>) -> tensor<128x768xf32>
    %y = graph.unary "gelu" %m : (tensor<128x768xf32>) -> tensor<128x768xf32>
    ```
    becomes, with `precision=f16`,
    ```mlir
    %n = graph.cast %x to f16 : (tensor<128x768xf32>) -> tensor<128x768xf16>
    %h = graph.matmul %n, %w_f16 : (tensor<128x768xf16>, tensor<768x768xf16>) -> tensor<128x768xf16>
    %m = graph.cast %h to f32 : (tensor<128x768xf16>) -> tensor<128x768xf32>
    %y = graph.unary "gelu" %m : (tensor<128x768xf32>) -> tensor<128x768xf32>
    ```
    Everything else stays f32: functions, norms, softmax, sums. So do masks of attention, and operators with a constant
    that f16 cannot hold. Operators that only move data, and maximum pooling, follow their neighbours. A value is
    rounded once, where it is computed, and all its readers take the rounded one (unless it is an input or a result of
    the function), so that one copy is stored. Sums inside the converted operators run in f32: that is their definition.

    precision: f32 changes nothing. tf32 keeps all types, and marks each matmul with `precision = "tf32"`: its operands
    may be rounded to 10 bits of mantissa by tensor cores.
    Source: Micikevicius et al., "Mixed precision training", ICLR 2018, sections 3.1 and 3.3.
    """

    name = "graph-mixed-precision"
    precision: str = "f32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.precision not in _ACCEPTED:
            raise TreadleError(f"unknown precision {self.precision!r}", self.name, _ACCEPTED)
        if self.precision == "tf32":
            for matmul in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
                if matmul.type.get_element_type() == f32:
                    matmul.precision = StringAttr("tf32")
        narrow = _NARROW.get(self.precision)
        if narrow is None:
            return
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                Narrowing(function.body.block, narrow).run()


__all__ = ["GraphMixedPrecisionPass"]
