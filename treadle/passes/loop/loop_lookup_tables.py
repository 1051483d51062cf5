"""loop-lookup-tables: numbers of four bits become floats by a table in a register."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, f32, i32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.loop import LaneConvertOp, LaneLookupOp
from treadle.dialects.loop.vector import LOOKUP_ENTRIES
from treadle.passes.loop.kernels import erase_dead, kernels_of
from treadle.target import Target

_REGISTER = 64
"""Bytes of a register that holds a table of floats, from which one instruction takes an entry for each lane."""


@dataclass(frozen=True)
class LoopLookupTablesPass(ModulePass):
    """Reads the float that a number of four bits less a constant becomes from a table.

    ```mlir
    %0 = arith.andi %x, %fifteen : vector<16xi32>
    %1 = arith.subi %0, %eight : vector<16xi32>
    %y = loop.lane_convert %1 : vector<16xi32> to vector<16xf32>
    ```
    becomes
    ```mlir
    %y = loop.lane_lookup %x in [-8.0, -7.0, ..., 7.0] : vector<16xi32> to vector<16xf32>
    ```
    Only with vectors of 64 bytes (`vpermps` of AVX-512): the bits above the low four need no mask, so that one
    instruction does the work of three (docs/adr/0078).
    """

    name = "loop-lookup-tables"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if Target.parse(self.target).vector_bytes != _REGISTER:
            return
        for kernel in kernels_of(op):
            converts = [inner for inner in kernel.body.walk() if isinstance(inner, LaneConvertOp)]
            found = [(convert, form) for convert in converts if (form := _four_bits(convert)) is not None]
            for convert, (number, less) in found:
                lookup = LaneLookupOp(number, [float(entry - less) for entry in range(LOOKUP_ENTRIES)])
                lookup.result.name_hint = convert.result.name_hint
                Rewriter.replace_op(convert, lookup)
            if found:
                erase_dead(kernel.body.block)


def _four_bits(convert: LaneConvertOp) -> tuple[SSAValue, int] | None:
    """The number of whose low four bits a conversion to floats is, less a constant, with that constant."""
    type = convert.result.type
    if type.element_type != f32 or type.get_shape() != (LOOKUP_ENTRIES,):
        return None
    value, less = convert.source, 0
    if isinstance(value.owner, arith.SubiOp) and (known := _splat(value.owner.rhs)) is not None:
        value, less = value.owner.lhs, known
    masked = value.owner
    if not isinstance(masked, arith.AndIOp) or _splat(masked.rhs) != LOOKUP_ENTRIES - 1:
        return None
    return masked.lhs, less


def _splat(value: SSAValue) -> int | None:
    """The integer that all lanes of a vector are."""
    splat = value.owner
    if not isinstance(splat, vector.BroadcastOp) or splat.source.type != i32:
        return None
    constant = splat.source.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, IntegerAttr):
        return None
    return constant.value.value.data


__all__ = ["LoopLookupTablesPass"]
