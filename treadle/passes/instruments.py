"""Instruments, which run around passes: timing, a trace of the IR, verification. No pass depends on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove

from treadle.dialects.location import ir_text, location_of
from treadle.dialects.registry import ADDED_DIALECTS
from treadle.errors import TreadleError
from treadle.passes.scalar_forms import missing_form
from treadle.target import Target

# Whether every value is defined before it is used, which xDSL's verifier does not check.


def undominated_use(module: ModuleOp) -> tuple[Operation, int] | None:
    """The first operation that uses a value whose definition does not dominate it, and which operand; None if there is
    none.

    Regions of several blocks, which Treadle's own stages never have, are not looked into.
    """
    for region in module.regions:
        for block in region.blocks:
            found = _search(block, set())
            if found is not None:
                return found
    return None


def _search(block: Block, outside: set[SSAValue]) -> tuple[Operation, int] | None:
    """Searches one block; `outside` are the values visible in it, to which its own are added during the walk."""
    own: list[SSAValue] = [value for value in block.args if value not in outside]
    outside.update(own)
    found = None
    for op in block.ops:
        found = _search_op(op, outside)
        if found is not None:
            break
        own.extend(op.results)
        outside.update(op.results)
    outside.difference_update(own)
    return found


def _search_op(op: Operation, visible: set[SSAValue]) -> tuple[Operation, int] | None:
    for position, operand in enumerate(op.operands):
        if operand not in visible:
            return op, position
    seen = set[SSAValue]() if op.has_trait(IsolatedFromAbove) else visible
    for region in op.regions:
        if len(region.blocks) != 1:
            continue
        found = _search(region.block, seen)
        if found is not None:
            return found
    return None


# What may remain in the IR at each stage's border, as a table.

_FRAME = ("builtin.module", "func.func", "func.return")
_SCALARS = ("arith.*", "math.*", "scalar.*")
_DEFINITIONS = (*_FRAME, *_SCALARS, "graph.compute", "graph.at", "graph.reduce", "graph.yield")
_WHOLE = ("graph.matmul", "graph.packed_matmul", "graph.packed_conv", "graph.attention", "graph.winograd_conv")
_CONTROL = ("graph.loop", "graph.if")
_DEFINED = (*_DEFINITIONS, *_WHOLE, *_CONTROL, "graph.append", "graph.constant")
_BODY = (*_SCALARS, "scf.*", "memref.*", "vector.*", "loop.load", "loop.store", "loop.alloc")
_LANES = (
    "loop.lane_mask", "loop.lane_compare", "loop.lane_convert", "loop.lane_lookup", "loop.lane_select",
    "loop.strided_load", "loop.strided_store", "loop.transpose",
)  # fmt: skip
"""Vectors of the CPU: masks, strides and conversions."""
_MEMORY = ("loop.prefetch", "loop.opaque", "loop.opaque_buffer")
"""Loads that are to be done earlier, or once more."""
_UNIT = ("loop.multiply_tiles", "loop.round_pair")
"""The matrix unit of a CPU's core."""
_ARRIVE = ("loop.arrive",)
"""Counters at which the blocks of a launch arrive."""
_BLOCKS = (
    *_ARRIVE, "loop.barrier", "loop.warp_reduce", "loop.shuffle", "loop.commit", "loop.wait", "loop.load_matrix",
    "loop.mma", "loop.round_tf32", "hopper.*",
)  # fmt: skip
"""What the threads of a GPU's block do together: barriers, warp reductions, asynchronous copies, tensor cores."""
_COPIES = ("loop.copy", "loop.yield")
_GPU_KERNELS = (
    *_FRAME, "graph.append", "graph.constant", "loop.kernel", "loop.dispatch", "task.*", "tile.*", *_BODY, *_BLOCKS,
    *_COPIES,
)  # fmt: skip
_HOST = ("host.buffer", "host.launch", "host.dispatch", "host.return")
_HOST_CPU = (*_HOST, "host.loop", "host.if")

LEGAL: Mapping[str, Sequence[str]] = {
    "import": (*_FRAME, *_SCALARS, "graph.*"),
    "graph": (*_FRAME, *_SCALARS, "graph.*"),
    "define": _DEFINED,
    "fuse": (*_DEFINED, "graph.fused"),
    "schedule": (*_DEFINED, "graph.fused", "schedule.*"),
    "kernels cpu": (
        *_FRAME, *_CONTROL, "graph.append", "graph.constant", "loop.kernel", "loop.dispatch", "task.*", *_BODY, *_UNIT,
        *_ARRIVE,
    ),
    "kernels cuda": _GPU_KERNELS,
    "plan cpu": (*_FRAME, *_HOST_CPU, "loop.func", "task.*", *_BODY, *_UNIT, *_ARRIVE),
    "plan cuda": (*_FRAME, *_HOST, "loop.func", "task.*", *_BODY, *_BLOCKS, *_COPIES),
    "loops cpu": (*_FRAME, *_HOST_CPU, "loop.func", *_BODY, *_LANES, *_UNIT, *_ARRIVE),
    "loops cuda": (*_FRAME, *_HOST, "loop.func", *_BODY, *_BLOCKS, "loop.async_copy"),
    "lower cpu": (
        *_FRAME, *_HOST_CPU, *_SCALARS, "scf.*", "memref.*", "vector.*", *_LANES, *_MEMORY, *_UNIT, *_ARRIVE,
    ),
    "lower cuda": (*_FRAME, *_HOST, *_SCALARS, "scf.*", "memref.*", "vector.*", "cuda.*", "hopper.*"),
}  # fmt: skip
"""Operation names, `dialect.*` for a whole dialect, that may remain after each stage (and kind of target)."""
_OF_MODELS = ("import", "graph")
"""Stages after which operations of dialects that were added may remain, too: `graph-define` defines operators."""


def operators() -> tuple[str, ...]:
    """What a model consists of: `graph.*`, and the operations of dialects that were added."""
    return ("graph.*", *(f"{name}.*" for name in ADDED_DIALECTS))


_WITH_ELEMENTS = ("graph", "define", "fuse", "schedule", "kernels")
"""Stages after which an empty tensor is only passed through: templates and index ranges have no case for an extent of
0."""
_EMPTY_ALLOWED = ("builtin.module", "func.func", "func.return", "graph.constant")


def check_legal(module: ModuleOp, stage: str, kind: str) -> None:
    """Raises TreadleError naming the first operation that may not remain after `stage` for targets of `kind`.

    An operation on scalars or vectors also has to have element types for which the target's printer has a form.
    """
    allowed = LEGAL.get(f"{stage} {kind}") or LEGAL[stage]
    if stage in _OF_MODELS:
        allowed = (*allowed, *operators())
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


_CAPABILITIES: Mapping[str, int] = dict.fromkeys(
    ("cuda.cp_async", "cuda.cp_async_commit", "cuda.cp_async_wait", "cuda.mma", "cuda.round_tf32"), 80
)
"""The compute capability from which on GPUs have an operation's instruction, where some have not."""


def check_instructions(module: ModuleOp, target: Target) -> None:
    """Raises TreadleError naming the first operation for which a GPU has no instruction."""
    if not 0 < target.capability < max(_CAPABILITIES.values()):
        return
    for op in module.walk():
        least = _CAPABILITIES.get(op.name, 0)
        if least > target.capability:
            message = f"'{op.name}' is no instruction of {target.name}"
            raise TreadleError(message, location_of(op) or "lower", f"sm_{least} and later architectures")


def _touches_empty(op: Operation) -> bool:
    types = (value.type for value in (*op.operands, *op.results))
    return any(isinstance(type, TensorType) and 0 in type.get_shape() for type in types)


def is_allowed(op: Operation, allowed: Sequence[str]) -> bool:
    """Whether an operation is in a list of `LEGAL`."""
    return op.name in allowed or f"{op.name.partition('.')[0]}.*" in allowed


class Instrument:
    """Called before and after each pass; the methods do nothing unless they are overridden."""

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Called when `step` of `stage` is about to change `module`."""

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Called when `step` of `stage` has changed `module`."""


@dataclass
class Timing(Instrument):
    """Seconds that each pass took, in the order in which they ran."""

    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    _start: float = 0.0

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Stops the clock."""
        self.seconds.append((step.name, time.perf_counter() - self._start))


class Verify(Instrument):
    """Verifies the module after each pass."""

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Raises TreadleError naming the pass and the operation that it left invalid."""
        verify(module, f"after pass '{step.name}'")


@dataclass
class Trace(Instrument):
    """Writes the IR to `directory` after each pass that changed it, numbered by pass: `07-graph-fuse.mlir`."""

    directory: Path
    _count: int = 0
    _latest: str = ""

    def start(self, module: ModuleOp) -> None:
        """Writes the IR before the first pass, and removes an earlier trace, which would mix with this one.

        TreadleError if the directory cannot be written.
        """
        for path in self.directory.glob("[0-9][0-9]-*.mlir"):
            path.unlink()
        self._write("import", module)

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Writes the IR after `step`, if it changed."""
        self._write(step.name, module)

    def _write(self, name: str, module: ModuleOp) -> None:
        path = self.directory / f"{self._count:02}-{name}.mlir"
        self._count += 1
        text = ir_text(module)
        if text == self._latest:
            return
        self._latest = text
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise TreadleError(
                f"cannot write the trace: {error.strerror}", path, "a folder that can be written"
            ) from error


@dataclass
class Announce(Instrument):
    """Calls `announce` with the name of each pass before it runs, for a progress display."""

    announce: Callable[[str], None]

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Announces the pass."""
        self.announce(step.name)


def verify(module: ModuleOp, when: str) -> None:
    """Verifies the whole module; TreadleError with the location and the name of the first invalid operation."""
    try:
        module.verify()
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # xDSL's own operations raise more than VerifyException
        culprit = _culprit(module)
        where = when if culprit is None else location_of(culprit) or when
        name = "the IR" if culprit is None else f"'{culprit.name}'"
        reason = (str(error).removeprefix("Operation does not verify: ").splitlines() or [type(error).__name__])[0]
        raise TreadleError(f"{name} does not verify {when}: {reason}", where) from error
    unordered = undominated_use(module)
    if unordered is not None:
        op, operand = unordered
        message = f"operand {operand} of '{op.name}' is not defined before it {when}"
        raise TreadleError(message, location_of(op) or when)


def _culprit(module: ModuleOp) -> Operation | None:
    """The first operation that does not verify by itself."""
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except Exception:
            return op
    return None
