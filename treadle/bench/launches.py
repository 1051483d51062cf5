"""What the launches of a compiled model do, read from the IR that the artifact carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import IntAttr, MemRefType
from xdsl.ir import SSAValue

from treadle.artifact import MODULE, Artifact
from treadle.bench.gathers import gathered_buffers, stored_elements
from treadle.compile_request import read_module
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import DispatchOp, LaunchOp
from treadle.dialects.location import name_nodes
from treadle.errors import TreadleError


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    nodes:      the nodes of the model that it computes, as text
    operations: arithmetic operations by the definition of what it computes (`count_operations`)
    nbytes:     of its operands and results, each once: what has to move at least. Of one that is read at places which
        other data says, as many elements count as there are results
    """

    kernel: str
    nodes: str
    operations: int
    nbytes: int


def launches_of(artifact: Artifact) -> list[Launch]:
    """The launches of a model for a CPU, in order; TreadleError where its IR is missing or changed, and where
    a call takes one of several launches."""
    module = read_module(artifact.module_text(), str(artifact.folder / MODULE))
    kernels = {op.sym_name.data: _Kernel(op) for op in module.ops if isinstance(op, func.FuncOp)}
    if any(isinstance(op, DispatchOp) for op in module.walk()):
        message = "a call takes one of several kernels, by its shapes"
        raise TreadleError(message, artifact.folder / MODULE, "a model compiled for one shape")
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    if not launches:
        raise TreadleError("there are no launches in it", artifact.folder / MODULE, "the IR of a compiled model")
    return [
        Launch(
            launch.kernel.string_value(),
            name_nodes(launch.location),
            kernels[launch.kernel.string_value()].operations,
            kernels[launch.kernel.string_value()].nbytes(launch.buffers),
        )
        for launch in launches
    ]


def takes_one_of_several(artifact: Artifact) -> bool:
    """Whether a call takes one of several kernels somewhere, so that `launches_of` cannot list them."""
    module = read_module(artifact.module_text(), str(artifact.folder / MODULE))
    return any(isinstance(op, DispatchOp) for op in module.walk())


class _Kernel:
    """What the text of a kernel says of its launches."""

    def __init__(self, kernel: func.FuncOp):
        counted = kernel.attributes.get("operations")
        self.operations = counted.data if isinstance(counted, IntAttr) else 0
        self._gathered, self._stored = gathered_buffers(kernel), stored_elements(kernel)

    def nbytes(self, buffers: Sequence[SSAValue]) -> int:
        """Of the buffers of a launch, each once."""
        gathered = {buffers[n] for n in self._gathered}
        return sum(self._nbytes(buffer, buffer in gathered) for buffer in dict.fromkeys(buffers))

    def _nbytes(self, buffer: SSAValue, is_gathered: bool) -> int:
        assert isinstance(buffer.type, MemRefType)
        elements = prod(buffer.type.get_shape())
        return (min(elements, self._stored) if is_gathered else elements) * byte_width(buffer.type.element_type)


__all__ = ["Launch", "launches_of", "takes_one_of_several"]
