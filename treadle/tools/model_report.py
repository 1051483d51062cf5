"""What `treadle report` says of a compiled model, as values: nodes, groups, launches, tensors, times and errors."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import SymbolTable

from treadle.artifact.artifact import MODULE, Artifact
from treadle.artifact.manifest import Manifest
from treadle.backends.c_like.folding import read_buffers, written_buffers
from treadle.backends.launch_names import has_choices
from treadle.backends.program import planned_main
from treadle.bench.interleave import Times
from treadle.bench.model import Benchmark, KernelTime
from treadle.bench.peaks import kernels_of, launches_in
from treadle.compiler.pipeline import STAGE_NAMES, lower, stage_of
from treadle.compiler.request import CompileRequest, is_ir_file, lowered_module, read_module
from treadle.dialects.graph import FusedOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.host import BufferOp, DispatchOp, IfOp, LaunchOp, LoopOp
from treadle.dialects.location import ModelNode, NamesNodes, nodes_of
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.fusion_group import Decision, describe
from treadle.passes.graph.graph_fuse import fusion_decisions
from treadle.tools.certify_command import Certificate
from treadle.tools.oracle import Check
from treadle.tools.report_source import Report

# The values.


@dataclass(frozen=True)
class Group:
    """A group of the stage `schedule`, which becomes one launch or several.

    schedule: the decision as text; nodes: all that its operators come from
    """

    label: str
    schedule: str
    nodes: tuple[ModelNode, ...]
    location: Attribute = field(repr=False)


@dataclass(frozen=True)
class Remark:
    """Whether two neighbours were fused, and why (not), in words. nodes: those of both."""

    producer: str
    consumer: str
    fused: bool
    reason: str
    nodes: tuple[ModelNode, ...]


@dataclass(frozen=True)
class Decisions:
    """What the compiler decided before there were kernels. nodes: of the model as it was imported, in order."""

    nodes: tuple[ModelNode, ...] = ()
    groups: tuple[Group, ...] = ()
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Value:
    """A tensor in the memory of a call, as one step writes it.

    name: empty where the program gives it none
    kind: of the buffer, `input`, `output` or `arena`; start: its first byte in the arena
    writer: the step, None of what a caller gives; readers: the steps that read it, in order
    """

    name: str
    kind: str
    start: int
    nbytes: int
    writer: int | None
    readers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """What @main does at once: a launch, or a dispatch, a loop or a branch, which run some of their kernels.

    located: nodes that its location names, of which there are a few at most; nodes: all of them
    group: the number of its group, if that is known
    time: of a launch, its operations, bytes and seconds (0 where it was not timed)
    """

    kind: str
    kernels: tuple[str, ...]
    located: tuple[ModelNode, ...]
    nodes: tuple[ModelNode, ...]
    group: int | None = None
    time: KernelTime | None = None


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, in a file of the artifact.

    comment: what it computes, in words; ir: the operations that the text was printed from
    """

    name: str
    file: str
    text: str
    comment: str
    ir: str = ""


@dataclass(frozen=True)
class ModelReport:
    """Everything on the page.

    facts: name and value, of all; notes: what is missing, and why
    along: calls at points of a range; checks: outputs compared with the definition, and with which extents
    certificates: of the dispatches; always: kernels that no dispatch chooses
    tuning: what a search tried for the model's groups, if there is a database of it
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    decisions: Decisions
    steps: tuple[Step, ...]
    values: tuple[Value, ...]
    kernels: tuple[Kernel, ...]
    program: str = ""
    arena_bytes: int = 0
    benchmark: Benchmark | None = None
    along: tuple[tuple[Mapping[str, int], Times], ...] = ()
    checks: tuple[tuple[str, Check], ...] = ()
    symbols: str = ""
    certificates: tuple[Certificate, ...] = ()
    always: tuple[str, ...] = ()
    tuning: Report | None = None

    @property
    def nodes(self) -> tuple[ModelNode, ...]:
        """All that are known: those of the model in its order, then others that launches name."""
        more = (node for step in self.steps for node in step.nodes)
        return tuple(dict.fromkeys((*self.decisions.nodes, *more)))


# Decisions, from the model itself.

_FUSION = "fuse"
_LAST = "schedule"


def decisions_of(request: CompileRequest) -> Decisions:
    """Nodes, remarks and groups of a model, lowered to the stage `schedule`; nothing of IR that is beyond it, and no
    remarks of IR whose groups are formed. Raises what importing and lowering raise."""
    module = request.model
    if isinstance(module, Path) and is_ir_file(module):
        module = read_module(module.read_text(), str(module))
    at = stage_of(module, request.after) if isinstance(module, ModuleOp) else None
    place, fusion, last = (-1 if each is None else STAGE_NAMES.index(each) for each in (at, _FUSION, _LAST))
    if place > last:
        return Decisions()
    first = at or STAGE_NAMES[0]
    module = lowered_module(replace(request, model=module), first)
    nodes, remarks = _named(module), list[Remark]()
    if place < fusion:
        first = _lowered(module, request, first, STAGE_NAMES[fusion - 1])
        remarks += map(_remark, fusion_decisions(module, request.target))
    _lowered(module, request, first, _LAST)
    return Decisions(nodes, _groups(module), tuple(remarks))


def _lowered(module: ModuleOp, request: CompileRequest, after: str, to: str) -> str:
    """Lowers a module in place; the stage that it has reached."""
    lower(treadle_context(), module, request.target, after=after, to=to, options=request.options)
    return to


def _remark(each: Decision) -> Remark:
    nodes = dict.fromkeys((*nodes_of(each.producer.location), *nodes_of(each.consumer.location)))
    return Remark(describe(each.producer), describe(each.consumer), each.fused, each.reason, tuple(nodes))


def _named(module: ModuleOp) -> tuple[ModelNode, ...]:
    """The nodes that operations name, each once, in order."""
    return tuple(dict.fromkeys(node for op in module.walk() for node in nodes_of(op.location)))


def _groups(module: ModuleOp) -> tuple[Group, ...]:
    return tuple(
        Group(
            op.label.data,
            "" if op.schedule is None else str(op.schedule),
            tuple(dict.fromkeys((*nodes_of(op.location), *_inside(op)))),
            op.location,
        )
        for op in module.walk()
        if isinstance(op, FusedOp)
    )


def _inside(op: Operation) -> Iterable[ModelNode]:
    return (node for inner in op.walk() if isinstance(inner, NamesNodes) for node in nodes_of(inner.location))


# Steps and tensors, from the artifact's IR.


def program_of(
    artifact: Artifact, module: ModuleOp, groups: Sequence[Group]
) -> tuple[tuple[Step, ...], tuple[Value, ...]]:
    """The steps of @main of an artifact's module, each in its group, and the tensors that they write and read."""
    kernels = {name: _Access.of(op) for name, op in kernels_of(module).items()}
    counted = iter(() if has_choices(module) else launches_in(module, artifact.folder / MODULE))
    memory, steps, places = _Memory(artifact.manifest), list[Step](), list[Attribute]()
    for op in planned_main(module).body.block.ops:
        touched = _touched(op, kernels)
        if touched is None:
            continue
        launch = next(counted, None) if isinstance(op, LaunchOp) else None
        time = None if launch is None else KernelTime(launch.kernel, (launch,), 0.0)
        memory.step(len(steps), *touched)
        named = nodes_of(op.location)
        steps.append(Step(_KINDS[type(op)], tuple(dict.fromkeys(_launched(op, module))), named, named, time=time))
        places.append(op.location)
    return tuple(_in_groups(steps, places, groups)), memory.values()


_KINDS: Mapping[type[Operation], str] = {LaunchOp: "launch", DispatchOp: "dispatch", LoopOp: "loop", IfOp: "branch"}


@dataclass(frozen=True)
class _Access:
    """Which arguments a kernel reads, and which it writes."""

    reads: tuple[bool, ...]
    writes: tuple[bool, ...]

    @staticmethod
    def of(kernel: Operation) -> _Access:
        block = kernel.regions[0].block
        read, written = read_buffers(block), written_buffers(block)
        return _Access(tuple(a in read for a in block.args), tuple(a in written for a in block.args))


def _touched(op: Operation, kernels: Mapping[str, _Access]) -> tuple[list[SSAValue], list[SSAValue]] | None:
    """The buffers that a step reads, and those that it writes; None for what is no step."""
    match op:
        case LaunchOp():
            access = kernels[op.kernel.string_value()]
            reads = [b for b, is_read in zip(op.buffers, access.reads, strict=False) if is_read]
            return reads, [b for b, is_written in zip(op.buffers, access.writes, strict=False) if is_written]
        case DispatchOp():
            each = [found for inner in op.launches.block.ops if (found := _touched(inner, kernels)) is not None]
            return [*op.extents, *(b for reads, _ in each for b in reads)], [b for _, writes in each for b in writes]
        case LoopOp():
            return [*op.tests, *op.initial, *op.read], [*op.final, *op.spare, *op.rows, op.counter, *op.again, op.arena]
        case IfOp():
            return [op.condition, *op.read], [*op.final, op.arena]
        case _:
            return None


def _launched(op: Operation, module: ModuleOp) -> list[str]:
    """The kernels that a step may run, in the functions that it calls, too."""
    match op:
        case LaunchOp():
            return [op.kernel.string_value()]
        case LoopOp():
            called = [op.body]
        case IfOp():
            called = [op.then, op.otherwise]
        case _:
            called = []
    bodies = [SymbolTable.lookup_symbol(module, symbol) for symbol in called]
    inside = [inner for body in (op, *bodies) if body is not None for region in body.regions for inner in region.walk()]
    return [name for inner in inside for name in _launched(inner, module)]


def _in_groups(steps: Sequence[Step], places: Sequence[Attribute], groups: Sequence[Group]) -> list[Step]:
    """The steps with their groups, which have the same location: equal kernels have one name, so that labels alone say
    nothing. Of several groups with one location, those are meant whose label the kernel has, else the next one."""
    free: dict[Attribute, list[int]] = {}
    for number, group in enumerate(groups):
        free.setdefault(group.location, []).append(number)
    found: list[Step] = []
    for step, place in zip(steps, places, strict=True):
        candidates = free.get(place, [])
        named = [n for n in candidates if groups[n].label in step.kernels]
        number = next(iter(named or candidates), None)
        if number is None:
            found.append(step)
            continue
        if len(candidates) > 1:
            candidates.remove(number)
        found.append(replace(step, group=number, nodes=groups[number].nodes))
    return found


class _Memory:
    """Which step wrote the bytes that another one reads."""

    def __init__(self, manifest: Manifest):
        self._names = {"input": manifest.inputs, "output": manifest.outputs}
        self._values: list[Value] = []
        self._live: dict[str, list[tuple[int, int, int]]] = {}
        """Of the arena, and of each input and output: bytes that a tensor holds, from, to, and its number; in order."""
        self._extents = {f"input {len(manifest.inputs) - 1 - n}" for n in range(len(manifest.extents))}

    def values(self) -> tuple[Value, ...]:
        """All tensors, in the order in which they are written."""
        return tuple(self._values)

    def step(self, number: int, reads: Iterable[SSAValue], writes: Iterable[SSAValue]) -> None:
        """The next step reads and writes buffers."""
        for buffer in dict.fromkeys(reads):
            self._read(number, buffer)
        for buffer in dict.fromkeys(writes):
            self._write(number, buffer)

    def _read(self, step: int, buffer: SSAValue) -> None:
        space, start, end = _place(buffer)
        if space in self._extents:
            return  # numbers that nearly every kernel of a range reads
        if space.startswith("input") and space not in self._live:
            self._add(None, buffer)
        for _, _, value in self._overlapping(space, start, end):
            self._note_reader(value, step)

    def _write(self, step: int, buffer: SSAValue) -> None:
        space, start, end = _place(buffer)
        if not space:
            return
        for at, to, value in self._overlapping(space, start, end):
            if not self._values[value].readers and start <= at and to <= end:
                self._note_reader(value, step)  # a border that was written before: this step completes it
        self._add(step, buffer)

    def _add(self, step: int | None, buffer: SSAValue) -> None:
        space, start, end = _place(buffer)
        live = self._live.setdefault(space, [])
        kept: list[tuple[int, int, int]] = []
        for at, to, value in self._overlapping(space, start, end):
            kept += [(at, start, value)] if at < start else []
            kept += [(end, to, value)] if to > end else []
        low = bisect_right(live, start, key=lambda each: each[1])
        high = bisect_left(live, end, key=lambda each: each[0])
        live[low:high] = sorted([*kept, (start, end, len(self._values))])
        kind = space.split()[0]
        self._values.append(Value(self._name(buffer, space), kind, start, end - start, step))

    def _overlapping(self, space: str, start: int, end: int) -> list[tuple[int, int, int]]:
        live = self._live.get(space, [])
        low = bisect_right(live, start, key=lambda each: each[1])
        return live[low : bisect_left(live, end, key=lambda each: each[0])]

    def _note_reader(self, value: int, step: int) -> None:
        old = self._values[value]
        if step != old.writer and step not in old.readers[-1:]:
            self._values[value] = replace(old, readers=(*old.readers, step))

    def _name(self, buffer: SSAValue, space: str) -> str:
        kind, _, number = space.partition(" ")
        tensors = self._names.get(kind, ())
        return tensors[int(number)].name if number and int(number) < len(tensors) else buffer.name_hint or ""


def _place(buffer: SSAValue) -> tuple[str, int, int]:
    """The space of a buffer, its first byte there, and the one behind its last; no space of a constant."""
    op = buffer.owner
    if not isinstance(op, BufferOp) or op.position is None or op.kind.data not in ("arena", "input", "output"):
        return "", 0, 0
    nbytes = prod(op.type.get_shape()) * byte_width(op.type.get_element_type())
    position = op.position.value.data
    return (
        ("arena", position, position + nbytes) if op.kind.data == "arena" else (f"{op.kind.data} {position}", 0, nbytes)
    )


# The kernels' texts.


def kernels_in(artifact: Artifact, module: ModuleOp) -> tuple[Kernel, ...]:
    """The kernels of an artifact's module with their texts; TreadleError for a file that is missing or changed."""
    suffix = ".cu" if artifact.manifest.kind == "cuda" else ".c"
    parts = _parts(artifact.module_text())
    found: list[Kernel] = []
    for name, op in kernels_of(module).items():
        file, comment = f"kernels/{name}{suffix}", op.attributes.get("comment") or op.properties.get("comment")
        text = artifact.read_text(file) if file in artifact.manifest.files else ""
        said = comment.data if isinstance(comment, StringAttr) else ""
        found.append(Kernel(name, file, text, said, parts.get(name, "")))
    return tuple(found)


def _parts(text: str) -> dict[str, str]:
    """The text of each function of a printed module, by its name: what is indented by two begins one, or ends it."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if begun := _FUNCTION.match(line):
            lines = found.setdefault(begun[1], [])
        lines.append(line[2:])
    return {name: "\n".join(lines) for name, lines in found.items()}


_FUNCTION = re.compile(r"  \S[^\n@]*@(\w+)\b")
HOST = "kernels/treadle_run.c"


def program_text(artifact: Artifact) -> str:
    """The C text that launches the kernels; empty for a GPU, whose launches are data."""
    return artifact.read_text(HOST) if HOST in artifact.manifest.files else ""
