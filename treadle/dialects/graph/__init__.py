"""The graph dialect: tensors, operators, and the definition of each operator.

Definition language: `compute.py`. Groups, and which of their elements are needed: `fused.py`. Operators by family:
`elementwise.py`, `linear.py`, `reduction.py`, `movement.py`, `normalize.py`, `attention.py`, `winograd.py`,
`constant.py`. What a program keeps between calls: `append.py`. Loops and branches of functions: `control.py`.
"""

from xdsl.ir import Dialect

from treadle.dialects.graph.append import AppendOp, StateAttr
from treadle.dialects.graph.attention import AttentionOp
from treadle.dialects.graph.attributes import BlobAttr, DimsAttr, InlineAttr
from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.constant import ConstantOp
from treadle.dialects.graph.control import IfOp, LoopOp
from treadle.dialects.graph.definition import Operator, definition
from treadle.dialects.graph.elementwise import BinaryOp, BitcastOp, CastOp, UnaryOp, WhereOp
from treadle.dialects.graph.fused import FusedOp, RequiredAttr
from treadle.dialects.graph.linear import ConvOp, ConvTransposeOp, MatmulOp, PackedConvOp, PackedMatmulOp
from treadle.dialects.graph.movement import (
    BroadcastOp,
    ConcatOp,
    GatherOp,
    MaskOp,
    PadOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
)
from treadle.dialects.graph.normalize import BatchNormOp, LayerNormOp, RmsNormOp, SoftmaxOp
from treadle.dialects.graph.reduction import ArgReductionOp, PoolOp, ReductionOp
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
        AppendOp, BroadcastOp, ConcatOp, GatherOp, MaskOp, PadOp, ReshapeOp, ResizeOp, SliceOp, TransposeOp,
        AttentionOp, BatchNormOp, LayerNormOp, RmsNormOp, SoftmaxOp,
        ArgReductionOp, PoolOp, ReductionOp,
    ],
    [BlobAttr, RequiredAttr, DimsAttr, InlineAttr, StateAttr],
)  # fmt: skip

__all__ = [
    "GRAPH",
    "AppendOp",
    "ArgReductionOp",
    "AtOp",
    "AttentionOp",
    "BatchNormOp",
    "BinaryOp",
    "BitcastOp",
    "BlobAttr",
    "BroadcastOp",
    "CastOp",
    "ComputeOp",
    "ConcatOp",
    "ConstantOp",
    "ConvOp",
    "ConvTransposeOp",
    "DimsAttr",
    "FusedOp",
    "GatherOp",
    "IfOp",
    "InlineAttr",
    "LayerNormOp",
    "LoopOp",
    "MaskOp",
    "MatmulOp",
    "Operator",
    "PackedConvOp",
    "PackedMatmulOp",
    "PadOp",
    "PoolOp",
    "ReduceOp",
    "ReductionOp",
    "RequiredAttr",
    "ReshapeOp",
    "ResizeOp",
    "RmsNormOp",
    "SliceOp",
    "SoftmaxOp",
    "StateAttr",
    "TransposeOp",
    "UnaryOp",
    "WhereOp",
    "WholeOp",
    "WinogradConvOp",
    "YieldOp",
    "definition",
]  # fmt: skip
