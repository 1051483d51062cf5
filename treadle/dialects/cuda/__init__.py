"""The `cuda` dialect: what GPU kernels need beyond arithmetic, loops and plain memory accesses.

Kernels, thread and block ids, shared memory, barriers, warp operations, asynchronous copies and tensor core
products. It depends on neither tensors nor task mappings. Everything else in a kernel is `arith`, `math`, `scf`,
`memref` and `vector`.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from treadle.dialects.cuda.attributes import (
    Dimension,
    DimensionAttr,
    MmaShape,
    MmaShapeAttr,
    ShuffleMode,
    ShuffleModeAttr,
    Space,
    SpaceAttr,
    buffer_bytes,
    element_bytes,
    space_of,
)
from treadle.dialects.cuda.kernel import BlockIdOp, KernelOp, ReturnOp, ThreadIdOp
from treadle.dialects.cuda.memory import AllocOp, ArriveOp, BarrierOp, CpAsyncCommitOp, CpAsyncOp, CpAsyncWaitOp
from treadle.dialects.cuda.warp import LdmatrixOp, MmaOp, RoundTf32Op, ShuffleOp

__all__ = [
    "CUDA",
    "AllocOp",
    "ArriveOp",
    "BarrierOp",
    "BlockIdOp",
    "CpAsyncCommitOp",
    "CpAsyncOp",
    "CpAsyncWaitOp",
    "Dimension",
    "DimensionAttr",
    "KernelOp",
    "LdmatrixOp",
    "MmaOp",
    "MmaShape",
    "MmaShapeAttr",
    "ReturnOp",
    "RoundTf32Op",
    "ShuffleMode",
    "ShuffleModeAttr",
    "ShuffleOp",
    "Space",
    "SpaceAttr",
    "ThreadIdOp",
    "buffer_bytes",
    "element_bytes",
    "space_of",
]

CUDA = Dialect(
    "cuda",
    [
        KernelOp,
        ReturnOp,
        ThreadIdOp,
        BlockIdOp,
        AllocOp,
        BarrierOp,
        ArriveOp,
        ShuffleOp,
        CpAsyncOp,
        CpAsyncCommitOp,
        CpAsyncWaitOp,
        LdmatrixOp,
        MmaOp,
        RoundTf32Op,
    ],
    [SpaceAttr, DimensionAttr, ShuffleModeAttr, MmaShapeAttr],
)
"""The dialect, to be registered in a context."""
