"""The `hopper` dialect: what kernels of compute capability 9.0 have beside the `cuda` dialect.

Barriers of arrivals and bytes, copies of boxes by tensor maps, stores within a cluster, products of a warpgroup. Its
operations stand in kernels from the templates on: `loop-to-cuda` leaves them as they are, with the buffers of the
`cuda` dialect in place of the loop dialect's.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from treadle.dialects.hopper.attributes import MBARRIER_BYTES, MbarrierType, TensorMapType
from treadle.dialects.hopper.barrier import (
    MbarrierArriveOp,
    MbarrierFenceOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    NamedBarrierOp,
    RegistersOp,
    UniformOp,
    WarpBarrierOp,
)
from treadle.dialects.hopper.bulk import (
    BulkCommitOp,
    BulkCopyOp,
    BulkStoreOp,
    BulkWaitOp,
    FenceAsyncOp,
    TensorLoadOp,
    TensorMapOp,
    TensorStoreOp,
    YieldOp,
)
from treadle.dialects.hopper.cluster import ClusterArriveOp, ClusterWaitOp, StoreAsyncOp
from treadle.dialects.hopper.wgmma import (
    BeforeWaitOp,
    WgmmaCommitOp,
    WgmmaFenceOp,
    WgmmaOp,
    WgmmaRegistersOp,
    WgmmaSumsOp,
    WgmmaWaitOp,
)
from treadle.target.tensor_map import TensorMap

__all__ = [
    "HOPPER",
    "MBARRIER_BYTES",
    "BeforeWaitOp",
    "BulkCommitOp",
    "BulkCopyOp",
    "BulkStoreOp",
    "BulkWaitOp",
    "ClusterArriveOp",
    "ClusterWaitOp",
    "FenceAsyncOp",
    "MbarrierArriveOp",
    "MbarrierFenceOp",
    "MbarrierInitOp",
    "MbarrierType",
    "MbarrierWaitOp",
    "NamedBarrierOp",
    "RegistersOp",
    "StoreAsyncOp",
    "TensorLoadOp",
    "TensorMap",
    "TensorMapOp",
    "TensorMapType",
    "TensorStoreOp",
    "UniformOp",
    "WarpBarrierOp",
    "WgmmaCommitOp",
    "WgmmaFenceOp",
    "WgmmaOp",
    "WgmmaRegistersOp",
    "WgmmaSumsOp",
    "WgmmaWaitOp",
    "YieldOp",
]

HOPPER = Dialect(
    "hopper",
    [
        UniformOp,
        MbarrierInitOp,
        MbarrierFenceOp,
        MbarrierArriveOp,
        MbarrierWaitOp,
        NamedBarrierOp,
        RegistersOp,
        WarpBarrierOp,
        ClusterArriveOp,
        ClusterWaitOp,
        StoreAsyncOp,
        BulkCopyOp,
        BulkStoreOp,
        YieldOp,
        TensorMapOp,
        TensorLoadOp,
        TensorStoreOp,
        BulkCommitOp,
        BulkWaitOp,
        FenceAsyncOp,
        WgmmaOp,
        WgmmaRegistersOp,
        WgmmaSumsOp,
        BeforeWaitOp,
        WgmmaFenceOp,
        WgmmaCommitOp,
        WgmmaWaitOp,
    ],
    [MbarrierType, TensorMapType],
)
"""The dialect, to be registered in a context."""
