"""What may remain in the IR at each stage's border, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation

from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.passes.scalar_forms import missing_form

_FRAME = ("builtin.module", "func.func", "func.return")
_SCALARS = ("arith.*", "math.*", "scalar.*")
_DEFINITIONS = (*_FRAME, *_SCALARS, "graph.compute", "graph.at", "graph.reduce", "graph.yield")
_WHOLE = ("graph.matmul", "graph.packed_matmul", "graph.packed_conv", "graph.attention", "graph.winograd_conv")
_CONTROL = ("graph.loop", "graph.if")
_DEFINED = (*_DEFINITIONS, *_WHOLE, *_CONTROL, "graph.constant")
_BODY = (*_SCALARS, "scf.*", "memref.*", "vector.*", "loop.load", "loop.store", "loop.alloc")
_LANES = (
    "loop.lane_mask", "loop.lane_compare", "loop.lane_convert", "loop.lane_select", "loop.strided_load",
    "loop.strided_store",
)  # fmt: skip
"""Vectors of the CPU: masks, strides and conversions."""
_MEMORY = ("loop.prefetch", "loop.again", "loop.again_buffer")
"""Loads that are to be done earlier, or once more."""
_UNIT = ("loop.multiply_tiles",)
"""The matrix unit of a CPU's core."""
_BLOCKS = (
    "loop.barrier", "loop.arrive", "loop.warp_reduce", "loop.commit", "loop.wait", "loop.load_matrix", "loop.mma",
    "loop.round_tf32",
)  # fmt: skip
"""What the threads of a GPU's block do together: barriers, warp reductions, asynchronous copies, tensor cores."""
_COPIES = ("loop.copy", "loop.yield")
_HOST = ("host.buffer", "host.launch", "host.dispatch", "host.return")
_HOST_CPU = (*_HOST, "host.loop", "host.if")

LEGAL: Mapping[str, Sequence[str]] = {
    "import": (*_FRAME, "graph.*"),
    "graph": (*_FRAME, *_SCALARS, "graph.*"),
    "define": _DEFINED,
    "fuse": (*_DEFINED, "graph.fused"),
    "schedule": (*_DEFINED, "graph.fused", "schedule.*"),
    "kernels cpu": (*_FRAME, *_CONTROL, "graph.constant", "loop.kernel", "loop.dispatch", "task.*", *_BODY, *_UNIT),
    "kernels cuda": (*_FRAME, "graph.constant", "loop.kernel", "loop.dispatch", "task.*", *_BODY, *_BLOCKS, *_COPIES),
    "plan cpu": (*_FRAME, *_HOST_CPU, "loop.func", "task.*", *_BODY, *_UNIT),
    "plan cuda": (*_FRAME, *_HOST, "loop.func", "task.*", *_BODY, *_BLOCKS, *_COPIES),
    "loops cpu": (*_FRAME, *_HOST_CPU, "loop.func", *_BODY, *_LANES, *_UNIT),
    "loops cuda": (*_FRAME, *_HOST, "loop.func", *_BODY, *_BLOCKS, "loop.async_copy"),
    "lower cpu": (*_FRAME, *_HOST_CPU, *_SCALARS, "scf.*", "memref.*", "vector.*", *_LANES, *_MEMORY, *_UNIT),
    "lower cuda": (*_FRAME, *_HOST, *_SCALARS, "scf.*", "memref.*", "vector.*", "cuda.*"),
}
"""Operation names, `dialect.*` for a whole dialect, that may remain after each stage (and kind of target)."""

_WITH_ELEMENTS = ("graph", "define", "fuse", "schedule", "kernels")
"""Stages after which an empty tensor is only passed through: templates and index ranges have no case for an extent of
0."""
_EMPTY_ALLOWED = ("builtin.module", "func.func", "func.return", "graph.constant")


def check_legal(module: ModuleOp, stage: str, kind: str) -> None:
    """Raises TreadleError naming the first operation that may not remain after `stage` for targets of `kind`.

    An operation on scalars or vectors also has to have element types for which the target's printer has a form.
    """
    allowed = LEGAL.get(f"{stage} {kind}") or LEGAL[stage]
    known = set[tuple[object, ...]]()
    for op in module.walk():
        # What is asked depends on the name and the types alone, of which a module has few; they live as long as it.
        key = (op.name, len(op.results), *(id(value.type) for value in (*op.operands, *op.results)))
        if key in known:
            continue
        known.add(key)
        if not is_allowed(op, allowed):
            raise TreadleError(f"'{op.name}' may not remain after stage '{stage}'", location_of(op) or stage, allowed)
        missing = missing_form(op, kind)
        if missing is not None:
            what, accepted = missing
            raise TreadleError(f"{what} has no form on a {kind} target", location_of(op) or stage, accepted)
        if stage in _WITH_ELEMENTS and op.name not in _EMPTY_ALLOWED and _touches_empty(op):
            message = f"'{op.name}' reads or gives a tensor without elements after stage '{stage}'"
            raise TreadleError(
                message, location_of(op) or stage, "extents from 1 upwards: graph-drop-empty removes others"
            )


def _touches_empty(op: Operation) -> bool:
    types = (value.type for value in (*op.operands, *op.results))
    return any(isinstance(type, TensorType) and 0 in type.get_shape() for type in types)


def is_allowed(op: Operation, allowed: Sequence[str]) -> bool:
    """Whether an operation is in a list of `LEGAL`."""
    return op.name in allowed or f"{op.name.partition('.')[0]}.*" in allowed
