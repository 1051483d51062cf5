"""A compile as it happened: the IR after every pass, where each of its values stands, and the kernels' lines of text.

Everything is an instrument around the passes (`treadle/passes/instruments.py`), and is kept as compressed documents of
JSON, by name: what a page asks for. Equal texts, also of several compiles, have one number.
"""

from __future__ import annotations

import inspect
import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from treadle.backends.c.printer import print_with_lines as print_c
from treadle.backends.c_like import Lines as PrintedLines
from treadle.backends.cuda.printer import print_with_lines as print_cuda
from treadle.backends.launch_names import has_choices
from treadle.dialects.effects import buffers_written
from treadle.dialects.host import LaunchOp
from treadle.dialects.location import ModelNode, NodePrinter, nodes_of
from treadle.errors import printable
from treadle.passes.instruments import Instrument
from treadle.target import TargetKind
from treadle.tools.line_diff import Block, Lines, difference

Json = Mapping[str, Any]
EDIT = "edit"
"""What an edit is called among the passes."""


@dataclass
class IndexedText:
    """A module's text, with the values that stand in each line by number, in the order in which they first stand there.

    Parsing the text and printing it again gives the same numbers.
    """

    text: str
    lines: list[list[int]]
    values: list[SSAValue]
    names: list[str]
    defined: list[int]
    """For each value, the line that defines it."""
    begun: dict[Operation, int]
    """For each operation, its first line."""


class _IndexingPrinter(NodePrinter):
    """Prints as `ir_text` does, and notes where values and operations stand."""

    def __init__(self, stream: StringIO):
        super().__init__(stream)
        self.numbers: dict[SSAValue, int] = {}
        self.found = IndexedText("", [], [], [], [], {})

    def print_ssa_value(self, value: SSAValue) -> str:
        found, line = self.found, self._current_line
        name = super().print_ssa_value(value)
        number = self.numbers.setdefault(value, len(found.values))
        if number == len(found.values):
            found.values.append(value)
            found.names.append(f"%{name}")
            found.defined.append(line)
        found.lines.extend([] for _ in range(len(found.lines), line + 1))
        found.lines[line].append(number)
        return name

    def print_op(self, op: Operation) -> None:
        """Prints an operation."""
        self.found.begun[op] = self._current_line
        super().print_op(op)


def indexed(module: ModuleOp) -> IndexedText:
    """The text of `ir_text`, with its values."""
    stream = StringIO()
    printer = _IndexingPrinter(stream)
    printer.print_op(module)
    printer.found.text = stream.getvalue() + "\n"
    return printer.found


# Documents.


def packed(document: Json) -> bytes:
    """A document as compressed JSON, without the characters that a page should not show."""
    return zlib.compress(json.dumps(_shown(document), separators=(",", ":")).encode(), 3)


def json_of(content: bytes) -> str:
    """A packed document as JSON, of ASCII alone."""
    return zlib.decompress(content).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(name): _shown(each) for name, each in cast("Json", value).items()}
    if isinstance(value, list | tuple):
        listed = cast("Sequence[Any]", value)
        return listed if listed and isinstance(listed[0], int) else [_shown(each) for each in listed]
    return value


class Interned:
    """Values that occur often, each once, by number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def listed(self) -> list[Any]:
        """All of them, in the order of their numbers."""
        return list(self.numbers)


def _of_values(text: IndexedText) -> Json:
    """What can be said of each value without running anything, as columns.

    lines: the values of each line; at: the line of the definition; type, op, function, nodes: numbers of the lists of
    that name in capitals: what gives it, the function it is in, and the model's nodes it comes from
    """
    types, ops, functions, nodes = Interned(), Interned(), Interned(), Interned()
    rows = [
        (types(str(value.type)), ops(_defined_by(value)), *_place(value, functions, nodes)) for value in text.values
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return {
        "lines": text.lines, "names": text.names, "at": text.defined,
        "type": columns[0], "op": columns[1], "function": columns[2], "nodes": columns[3],
        "TYPE": types.listed(), "OP": ops.listed(), "FUNCTION": functions.listed(),
        "NODES": [[[node.name, node.kind] for node in each] for each in nodes.listed()],
    }  # fmt: skip


def _defined_by(value: SSAValue) -> str:
    if not isinstance(value, BlockArgument):
        return value.owner.name if isinstance(value.owner, Operation) else ""
    around = value.block.parent_op()
    return f"argument {value.index} of {'a block' if around is None else around.name}"


def _place(value: SSAValue, functions: Interned, nodes: Interned) -> tuple[int, int]:
    """The symbol of the function that a value is in, and the nodes of the nearest operation around it that has some."""
    around = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    named: tuple[ModelNode, ...] = ()
    while around is not None:
        named = named or nodes_of(around.location)
        symbol = around.properties.get("sym_name")
        if isinstance(symbol, StringAttr):
            return functions(symbol.data), nodes(named)
        around = around.parent_op()
    return functions(""), nodes(named)


class Documents:
    """Documents by name. Of IR: `text-3` and what stands in it, `values-3`; of two texts, `diff-3-4`."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}

    def put(self, name: str, document: Json) -> None:
        """Keeps a document."""
        self.content[name] = packed(document)

    def get(self, name: str) -> Any:
        """A document; KeyError if there is none."""
        return json.loads(json_of(self.content[name]))

    def add_text(self, text: str, found: IndexedText | None = None) -> int:
        """The number of a text, which is kept with its values if it is new."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers)
            self.put(f"text-{number}", {"text": text})
            if found is not None:
                self.put(f"values-{number}", _of_values(found))
        return number

    def lines(self, number: int) -> Lines:
        """A text as lines to compare."""
        values = self.get(f"values-{number}")["lines"] if f"values-{number}" in self.content else ()
        return Lines(self.get(f"text-{number}")["text"].splitlines(), values)

    def difference(self, before: int, after: int) -> list[Block]:
        """The blocks of two texts; their document is kept, too."""
        name = f"diff-{before}-{after}"
        if name not in self.content:
            blocks = difference(self.lines(before), self.lines(after))
            self.put(name, {"blocks": [[int(each.equal), *each[1:]] for each in blocks]})
        return [Block(bool(equal), *ends) for equal, *ends in self.get(name)["blocks"]]


# A compile.


@dataclass(frozen=True)
class Pass:
    """A pass as it ran: seconds, and the texts before and after it, which are one if it changed nothing.

    options: as `treadle-opt -p` takes them; about: what its documentation says
    removed, added: lines
    """

    stage: str
    name: str
    options: str
    about: str
    seconds: float
    before: int
    after: int
    removed: int = 0
    added: int = 0


@dataclass
class Recorder(Instrument):
    """Keeps the IR before the first pass and after each one."""

    documents: Documents
    passes: list[Pass] = field(default_factory=list[Pass])
    first: int = -1
    _latest: int = -1
    _start: float = 0.0

    def start(self, module: ModuleOp) -> None:
        """The module before the first pass."""
        self.first = self._latest = self._kept(module)

    def resume(self, earlier: Recorder, stage: str, module: ModuleOp, change: str) -> None:
        """The module after the passes that another recorder saw up to the end of a stage, and after an edit."""
        self.first, before = earlier.first, earlier.last_of(stage)
        stages = [each.stage for each in earlier.passes]
        self.passes = earlier.passes[: len(stages) - stages[::-1].index(stage) if stage in stages else 0]
        self._latest = self._kept(module)
        self.passes.append(self._pass(stage, EDIT, change, "A decision was edited by hand.", 0.0, before))

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Stops the clock, and keeps the text."""
        seconds = time.perf_counter() - self._start
        before, self._latest = self._latest, self._kept(module)
        about = inspect.getdoc(type(step)) or ""
        self.passes.append(self._pass(stage, step.name, str(step.spec()), about, seconds, before))

    def last_of(self, stage: str) -> int:
        """The number of the text that a stage left; of what came before if none of its passes ran."""
        return next((each.after for each in reversed(self.passes) if each.stage == stage), self.first)

    def _pass(self, stage: str, name: str, options: str, about: str, seconds: float, before: int) -> Pass:
        """What led from a text to the latest one."""
        blocks = [] if before == self._latest else self.documents.difference(before, self._latest)
        removed, added = sum(each.removed for each in blocks), sum(each.added for each in blocks)
        return Pass(stage, name, options, about, seconds, before, self._latest, removed, added)

    def _kept(self, module: ModuleOp) -> int:
        found = indexed(module)
        return self.documents.add_text(found.text, found)


@dataclass(frozen=True)
class Code:
    """The text of a kernel, and the nodes that its launches compute.

    launches: how many there are; 0 where shapes or data decide it
    written: the lines that store to its results; lines: for a line of the last IR, those of this text
    """

    symbol: str
    text: int
    nodes: tuple[ModelNode, ...]
    launches: int
    written: tuple[int, ...]
    lines: Mapping[int, Sequence[int]]


def code_of(module: ModuleOp, kind: TargetKind, documents: Documents) -> list[Code]:
    """The kernels of a module after the last pass, as they are printed. Raises what the printers raise."""
    launched: dict[str, list[LaunchOp]] = {}
    for op in module.walk():
        if isinstance(op, LaunchOp):
            launched.setdefault(op.kernel.string_value(), []).append(op)
    begun, counted = indexed(module).begun, not has_choices(module)
    found: list[Code] = []
    for symbol, (text, lines) in (print_cuda if kind == "cuda" else print_c)(module).items():
        launches = launched.get(symbol, [])
        nodes = dict.fromkeys(node for op in launches for node in nodes_of(op.location))
        found.append(
            Code(
                symbol, documents.add_text(text), tuple(nodes), len(launches) if counted else 0,
                tuple(sorted(_written(lines))), _by_line(lines, begun),
            )
        )  # fmt: skip
    return found


def _written(lines: PrintedLines) -> set[int]:
    """The lines of stores to buffers that a kernel is given."""
    stores = (op for op in lines if not op.regions and any(_is_given(each) for each in buffers_written(op)))
    return {number for op in stores for number in lines[op]}


def _is_given(buffer: SSAValue) -> bool:
    while isinstance(buffer.owner, Operation) and buffer.owner.operands:
        buffer = buffer.owner.operands[0]  # another name of a buffer
    return isinstance(buffer, BlockArgument)


def _by_line(lines: PrintedLines, begun: Mapping[Operation, int]) -> dict[int, list[int]]:
    found: dict[int, set[int]] = {}
    for op, numbers in lines.items():
        if numbers and op in begun:
            found.setdefault(begun[op], set()).update(numbers)
    return {line: sorted(numbers) for line, numbers in sorted(found.items())}


def code_document(code: Iterable[Code]) -> Json:
    """What `code_of` found, as a document."""
    return {
        "kernels": [
            {
                "symbol": each.symbol, "text": each.text, "launches": each.launches,
                "nodes": [[node.name, node.kind] for node in each.nodes],
                "written": list(each.written), "lines": {str(line): list(n) for line, n in each.lines.items()},
            }
            for each in code
        ]
    }  # fmt: skip


__all__ = [
    "EDIT", "Code", "Documents", "IndexedText", "Interned", "Json", "Pass", "Recorder", "code_document", "code_of",
    "indexed", "json_of", "packed",
]  # fmt: skip
