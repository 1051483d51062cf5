"""The loop dialect: a scheduled tensor program, one kernel a launch.

Kernels, and what their blocks share: `kernel.py`; the program that launches them is the host dialect's. Loads, stores,
buffers, barriers, prefetches: `access.py`. Vectors, where upstream has no operation: `vector.py`. Copies to shared
memory, which may be asynchronous: `copy.py`. Folds of a warp, products of tiles: `tiles.py`.
`treadle/passes/instruments.py` lists which of them belong to which target. Everything else in a kernel is upstream's
`arith`, `math`, `scf`, and the task dialect's `task.for`.
"""

from xdsl.ir import Dialect

from treadle.dialects.loop.access import AllocOp, BarrierOp, LoadOp, OpaqueBufferOp, OpaqueOp, PrefetchOp, StoreOp
from treadle.dialects.loop.attributes import (
    CountAttr,
    Space,
    SpaceAttr,
    Swizzle,
    SwizzleAttr,
    buffer_type,
    memref_of,
    swizzle_of,
    swizzle_of_rows,
    type_of,
    zeros,
)
from treadle.dialects.loop.copy import AsyncCopyOp, CommitOp, CopyOp, WaitOp, YieldOp
from treadle.dialects.loop.kernel import ArriveOp, DispatchOp, FuncOp, KernelOp
from treadle.dialects.loop.tiles import (
    ROW_BYTES,
    SIDE_BY_SIDE,
    SUMS,
    TILE_COLUMNS,
    TILE_ROWS,
    WARP,
    LoadMatrixOp,
    MmaOp,
    MultiplyTilesOp,
    RoundPairOp,
    RoundTf32Op,
    ShuffleOp,
    TileRows,
    WarpReduceOp,
    whole_row,
)
from treadle.dialects.loop.vector import (
    LANE_CONVERSIONS,
    LaneCompareOp,
    LaneConvertOp,
    LaneLookupOp,
    LaneMaskOp,
    LaneSelectOp,
    StridedLoadOp,
    StridedStoreOp,
    TransposeOp,
)

LOOP = Dialect(
    "loop",
    [
        OpaqueBufferOp, OpaqueOp, AllocOp, ArriveOp, AsyncCopyOp, BarrierOp, CommitOp, CopyOp, DispatchOp, FuncOp,
        KernelOp, LaneCompareOp, LaneConvertOp, LaneLookupOp, LaneMaskOp, LaneSelectOp, LoadMatrixOp, LoadOp, MmaOp,
        MultiplyTilesOp, PrefetchOp, RoundPairOp, RoundTf32Op, ShuffleOp, StoreOp, StridedLoadOp, StridedStoreOp,
        TransposeOp, WaitOp, WarpReduceOp, YieldOp,
    ],
    [CountAttr, SpaceAttr, SwizzleAttr],
)  # fmt: skip

__all__ = [
    "LANE_CONVERSIONS",
    "LOOP",
    "ROW_BYTES",
    "SIDE_BY_SIDE",
    "SUMS",
    "TILE_COLUMNS",
    "TILE_ROWS",
    "WARP",
    "AllocOp",
    "ArriveOp",
    "AsyncCopyOp",
    "BarrierOp",
    "CommitOp",
    "CopyOp",
    "CountAttr",
    "DispatchOp",
    "FuncOp",
    "KernelOp",
    "LaneCompareOp",
    "LaneConvertOp",
    "LaneLookupOp",
    "LaneMaskOp",
    "LaneSelectOp",
    "LoadMatrixOp",
    "LoadOp",
    "MmaOp",
    "MultiplyTilesOp",
    "OpaqueBufferOp",
    "OpaqueOp",
    "PrefetchOp",
    "RoundPairOp",
    "RoundTf32Op",
    "ShuffleOp",
    "Space",
    "SpaceAttr",
    "StoreOp",
    "StridedLoadOp",
    "StridedStoreOp",
    "Swizzle",
    "SwizzleAttr",
    "TileRows",
    "TransposeOp",
    "WaitOp",
    "WarpReduceOp",
    "YieldOp",
    "buffer_type",
    "memref_of",
    "swizzle_of",
    "swizzle_of_rows",
    "type_of",
    "whole_row",
    "zeros",
]
