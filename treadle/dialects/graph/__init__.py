"""The graph dialect: tensors, operators, and the definition of each operator.

Definition language: `compute.py`. Groups: `fused.py`. Which elements are needed: `demanded.py`. Operators by family:
`elementwise.py`, `linear.py`, `reduction.py`, `arg_reduction.py`, `movement.py`, `mask.py`, `normalize.py`,
`attention.py`, `winograd.py`, `packed_matmul.py`, `packed_conv.py`, `constant.py`. Loops and branches of functions:
`control.py`.
"""

from xdsl.ir import Dialect

from treadle.dialects.graph.arg_reduction import ArgReductionOp
from treadle.dialects.graph.attention import AttentionOp
from treadle.dialects.graph.attributes import BlobAttr, DimsAttr, InlineAttr
from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.constant import ConstantOp
from treadle.dialects.graph.control import IfOp, LoopOp
from treadle.dialects.graph.definition import Operator, definition
from treadle.dialects.graph.demanded import DemandedAttr
from treadle.dialects.graph.elementwise import BinaryOp, BitcastOp, CastOp, UnaryOp, WhereOp
from treadle.dialects.graph.fused import FusedOp
from treadle.dialects.graph.linear import ConvOp, ConvTransposeOp, MatmulOp
from treadle.dialects.graph.mask import MaskOp
from treadle.dialects.graph.movement import (
    BroadcastOp,
    ConcatOp,
    GatherOp,
    PadOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
)
from treadle.dialects.graph.normalize import BatchNormOp, LayerNormOp, SoftmaxOp
from treadle.dialects.graph.packed_conv import PackedConvOp
from treadle.dialects.graph.packed_matmul import PackedMatmulOp
from treadle.dialects.graph.reduction import PoolOp, ReductionOp
from treadle.dialects.graph.rms_norm import RmsNormOp
from treadle.dialects.graph.winograd import WinogradConvOp

WholeOp = AttentionOp | MatmulOp | PackedConvOp | PackedMatmulOp | WinogradConvOp
"""Operators that stay operators beside definitions: templates recognise them by name."""

GRAPH = Dialect(
    "graph",
    [
        AtOp, ComputeOp, FusedOp, ReduceOp, YieldOp,
        ConstantOp, IfOp, LoopOp,
        BinaryOp, BitcastOp, CastOp, UnaryOp, WhereOp,
        ConvOp, ConvTransposeOp, MatmulOp, PackedConvOp, PackedMatmulOp, WinogradConvOp,
        BroadcastOp, ConcatOp, GatherOp, MaskOp, PadOp, ReshapeOp, ResizeOp, SliceOp, TransposeOp,
        AttentionOp, BatchNormOp, LayerNormOp, RmsNormOp, SoftmaxOp,
        ArgReductionOp, PoolOp, ReductionOp,
    ],
    [BlobAttr, DemandedAttr, DimsAttr, InlineAttr],
)  # fmt: skip

__all__ = [
    "GRAPH", "ArgReductionOp", "AtOp", "AttentionOp", "BatchNormOp", "BinaryOp", "BitcastOp", "BlobAttr",
    "BroadcastOp", "CastOp", "ComputeOp", "ConcatOp", "ConstantOp", "ConvOp", "ConvTransposeOp", "DemandedAttr",
    "DimsAttr", "FusedOp", "GatherOp", "IfOp", "InlineAttr", "LayerNormOp", "LoopOp", "MaskOp", "MatmulOp", "Operator",
    "PackedConvOp", "PackedMatmulOp", "PadOp", "PoolOp", "ReduceOp", "ReductionOp", "ReshapeOp", "ResizeOp",
    "RmsNormOp", "SliceOp", "SoftmaxOp", "TransposeOp", "UnaryOp", "WhereOp", "WholeOp", "WinogradConvOp", "YieldOp",
    "definition",
]  # fmt: skip
