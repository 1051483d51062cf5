"""The loop dialect: a scheduled tensor program, one kernel a launch.

Kernels: `kernel.py`; the program that launches them is the host dialect's. Loads, stores, buffers and barriers:
`access.py`, between blocks: `arrive.py`; of vectors with masks and strides: `strided_access.py`; comparisons and
selections of vectors: `vector_compare.py`, conversions: `vector_convert.py`; requests for memory ahead of its use:
`prefetch.py`, a second time: `again.py`; products of tiles on a CPU's matrix unit: `multiply_tiles.py`. Copies to
shared memory, which may be asynchronous: `copy.py`; products of tiles on tensor cores: `tile_product.py`; folds of a
warp: `warp.py`.
`treadle/passes/legality.py` lists which of them belong to which target. Everything else in a kernel is upstream's
`arith`, `math`, `scf`, and the task dialect's `task.for`.
"""

from xdsl.ir import Dialect

from treadle.dialects.loop.access import AllocOp, BarrierOp, LoadOp, StoreOp
from treadle.dialects.loop.again import AgainBufferOp, AgainOp
from treadle.dialects.loop.arrive import ArriveOp
from treadle.dialects.loop.attributes import (
    Space,
    SpaceAttr,
    SwizzleAttr,
    buffer_type,
    memref_of,
    swizzle_of,
    type_of,
    zeros,
)
from treadle.dialects.loop.copy import AsyncCopyOp, CommitOp, CopyOp, WaitOp, YieldOp
from treadle.dialects.loop.dispatch import DispatchOp
from treadle.dialects.loop.kernel import FuncOp, KernelOp
from treadle.dialects.loop.multiply_tiles import (
    ROW_BYTES,
    SIDE_BY_SIDE,
    SUMS,
    TILE_COLUMNS,
    TILE_ROWS,
    MultiplyTilesOp,
    TileRows,
    whole_row,
)
from treadle.dialects.loop.prefetch import PrefetchOp
from treadle.dialects.loop.strided_access import LaneMaskOp, StridedLoadOp, StridedStoreOp
from treadle.dialects.loop.swizzle import Swizzle, swizzle_of_rows
from treadle.dialects.loop.tile_product import LoadMatrixOp, MmaOp, RoundTf32Op
from treadle.dialects.loop.vector_compare import LaneCompareOp, LaneSelectOp
from treadle.dialects.loop.vector_convert import LANE_CONVERSIONS, LaneConvertOp
from treadle.dialects.loop.warp import WARP, WarpReduceOp

LOOP = Dialect(
    "loop",
    [
        AgainBufferOp, AgainOp, AllocOp, ArriveOp, AsyncCopyOp, BarrierOp, CommitOp, CopyOp, DispatchOp, FuncOp,
        KernelOp, LaneCompareOp, LaneConvertOp, LaneMaskOp, LaneSelectOp, LoadMatrixOp, LoadOp, MmaOp, MultiplyTilesOp,
        PrefetchOp, RoundTf32Op, StoreOp, StridedLoadOp, StridedStoreOp, WaitOp, WarpReduceOp, YieldOp,
    ],
    [SpaceAttr, SwizzleAttr],
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
    "AgainBufferOp",
    "AgainOp",
    "AllocOp",
    "ArriveOp",
    "AsyncCopyOp",
    "BarrierOp",
    "CommitOp",
    "CopyOp",
    "DispatchOp",
    "FuncOp",
    "KernelOp",
    "LaneCompareOp",
    "LaneConvertOp",
    "LaneMaskOp",
    "LaneSelectOp",
    "LoadMatrixOp",
    "LoadOp",
    "MmaOp",
    "MultiplyTilesOp",
    "PrefetchOp",
    "RoundTf32Op",
    "Space",
    "SpaceAttr",
    "StoreOp",
    "StridedLoadOp",
    "StridedStoreOp",
    "Swizzle",
    "SwizzleAttr",
    "TileRows",
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
