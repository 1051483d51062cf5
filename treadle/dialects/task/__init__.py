"""The task dialect: which worker does which tasks, in which order (Hidet, ASPLOS 2023, section 5.1).

It does not depend on what a task is.  `mapping` holds the algebra as plain values.
"""

from xdsl.ir import Dialect

from treadle.dialects.task.mapping import Mapping, custom, parse_mapping, prove_cover, repeat, replicate, spatial
from treadle.dialects.task.ops import ForOp, MapAttr, YieldOp

Task = Dialect("task", [ForOp, YieldOp], [MapAttr])

__all__ = [
    "ForOp",
    "MapAttr",
    "Mapping",
    "Task",
    "YieldOp",
    "custom",
    "parse_mapping",
    "prove_cover",
    "repeat",
    "replicate",
    "spatial",
]
