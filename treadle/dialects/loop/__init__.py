"""The loop dialect: a scheduled tensor program, one kernel a launch.

Kernels and launches: `kernel.py`. Loads, stores, buffers and barriers: `access.py`, of vectors with
masks and strides: `lanes.py`; comparisons of their lanes: `lane_logic.py`; folds of a warp: `warp.py`. Everything else
that a kernel says is upstream's `arith`, `math`, `scf`, and the task dialect's `task.for`.
"""

from xdsl.ir import Dialect

from treadle.dialects.loop.access import AllocOp, BarrierOp, LoadOp, StoreOp
from treadle.dialects.loop.attributes import Space, SpaceAttr, buffer_type, memref_of
from treadle.dialects.loop.kernel import BufferOp, FuncOp, KernelOp, LaunchOp, ReturnOp
from treadle.dialects.loop.lane_logic import LaneCompareOp, LaneSelectOp
from treadle.dialects.loop.lanes import LaneMaskOp, StridedLoadOp, StridedStoreOp
from treadle.dialects.loop.warp import WarpReduceOp

LOOP = Dialect(
    "loop",
    [
        AllocOp, BarrierOp, BufferOp, FuncOp, KernelOp, LaneCompareOp, LaneMaskOp, LaneSelectOp, LaunchOp, LoadOp,
        ReturnOp, StoreOp, StridedLoadOp, StridedStoreOp, WarpReduceOp,
    ],
    [SpaceAttr],
)  # fmt: skip

__all__ = [
    "LOOP", "AllocOp", "BarrierOp", "BufferOp", "FuncOp", "KernelOp", "LaneCompareOp", "LaneMaskOp", "LaneSelectOp",
    "LaunchOp", "LoadOp", "ReturnOp", "Space", "SpaceAttr", "StoreOp", "StridedLoadOp", "StridedStoreOp",
    "WarpReduceOp", "buffer_type", "memref_of",
]  # fmt: skip
