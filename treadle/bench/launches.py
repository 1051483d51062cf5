"""What the launches of a compiled model do, read from the IR that the artifact carries."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import IntAttr, MemRefType
from xdsl.ir import SSAValue

from treadle.artifact import MODULE, Artifact
from treadle.compile_request import read_module
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import DispatchOp, LaunchOp
from treadle.dialects.model_nodes import describe_nodes
from treadle.errors import TreadleError


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    nodes:      the nodes of the model that it computes, as text
    operations: arithmetic operations by the definition of what it computes (`count_operations`)
    nbytes:     of its operands and results, each once: what has to move at least
    """

    kernel: str
    nodes: str
    operations: int
    nbytes: int


def launches_of(artifact: Artifact) -> list[Launch]:
    """The launches of a model for a CPU, in order; TreadleError where its IR is missing or changed, and where
    a call takes one of several launches."""
    module = read_module(artifact.module_text(), str(artifact.folder / MODULE))
    operations: dict[str, int] = {}
    for kernel in module.ops:
        counted = kernel.attributes.get("operations")
        if isinstance(kernel, func.FuncOp) and isinstance(counted, IntAttr):
            operations[kernel.sym_name.data] = counted.data
    if any(isinstance(op, DispatchOp) for op in module.walk()):
        message = "a call takes one of several kernels, by its shapes"
        raise TreadleError(message, artifact.folder / MODULE, "a model compiled for one shape")
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    if not launches:
        raise TreadleError("there are no launches in it", artifact.folder / MODULE, "the IR of a compiled model")
    return [
        Launch(
            launch.kernel.string_value(),
            describe_nodes(launch.location),
            operations.get(launch.kernel.string_value(), 0),
            sum(map(_nbytes, dict.fromkeys(launch.buffers))),
        )
        for launch in launches
    ]


def _nbytes(buffer: SSAValue) -> int:
    assert isinstance(buffer.type, MemRefType)
    return prod(buffer.type.get_shape()) * byte_width(buffer.type.element_type)


__all__ = ["Launch", "launches_of"]
