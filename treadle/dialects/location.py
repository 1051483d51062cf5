"""Where an operation comes from: nodes of the model and places in text, through parsing and printing."""

from __future__ import annotations

import re
from abc import ABC
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    ContainerType,
    DictionaryAttr,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    IntegerType,
    LocationAttr,
    MemRefLayoutAttr,
    MemRefType,
    ModuleOp,
    NameLoc,
    NoneAttr,
    Signedness,
    StringAttr,
    UnknownLoc,
    UnrankedMemRefType,
    i64,
)
from xdsl.ir import Attribute, BuiltinAttribute, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.errors import TreadleError


def location_of(op: Operation) -> str | None:
    """The nodes of the model, or the line of a file, that it comes from; else the symbol of what encloses it."""
    location = op.location
    if isinstance(location, FileLineColLoc):
        return f"{location.filename.data}:{location.line.data}:{location.column.data}"
    nodes = describe_nodes(location)
    if nodes:
        return nodes
    if isinstance(location, NameLoc):
        return location.desc.data
    enclosing: Operation | None = op
    while enclosing is not None:
        symbol = enclosing.properties.get("sym_name") or enclosing.attributes.get("sym_name")
        if isinstance(symbol, StringAttr):
            return f"{enclosing.name} @{symbol.data}"
        enclosing = enclosing.parent_op()
    return None


# Which nodes of the model an operation computes, as its source location.
#
# A node of an ONNX model is `loc("/conv1/Conv"("Conv"))`: its name, and its kind as the location of the name. What was
# made of several nodes is `loc(fused["/conv1/Conv"("Conv"), "/relu1"("Relu")])`. Locations of other forms, such as the
# lines of a file, name no nodes.

MOST_NODES = 8
"""The most nodes that a location names. A location of more ends with `unknown`, so that a chain of thousands stays one
line."""

_LONGEST_NAME = 60


class NamesNodes(Operation, ABC):
    """An operation whose text ends with its location if that names nodes, so that parsing the text restores them.

    Operations on tensors, kernels and launches do; operations on elements stand inside of one that does.
    """


@dataclass(frozen=True)
class ModelNode:
    """A node of a model."""

    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} '{_shortened(self.name)}'"


def node_location(name: str, kind: str) -> NameLoc:
    """The location of the operations that a node becomes."""
    return NameLoc(ascii_text(name), NameLoc(ascii_text(kind), NoneAttr()))


def constant_location(location: LocationAttr) -> LocationAttr:
    """The location of a constant that a node holds: its name alone. Text keeps no locations of constants, so that what
    is made of one may not name its node."""
    return NameLoc(location.desc, NoneAttr()) if isinstance(location, NameLoc) else location


def nodes_of(location: Attribute) -> tuple[ModelNode, ...]:
    """The nodes that a location names, each once, in order."""
    return tuple(dict.fromkeys(_nodes(location)))


def fused_location(locations: Iterable[LocationAttr]) -> LocationAttr:
    """The location of what is made of several operations: the nodes of all, or the first location if none has any."""
    given = list(dict.fromkeys(locations))
    nodes = list(dict.fromkeys(node for location in given for node in _nodes(location)))
    if not nodes:
        return given[0] if given else UnknownLoc()
    more = len(nodes) > MOST_NODES or any(map(leaves_nodes_out, given))
    if len(nodes) == 1 and not more:
        return node_location(nodes[0].name, nodes[0].kind)
    parts = tuple(node_location(node.name, node.kind) for node in nodes[:MOST_NODES])
    return FusedLoc((*parts, UnknownLoc()) if more else parts, NoneAttr())


def describe_nodes(location: Attribute) -> str:
    """The nodes for people, in one line: `Conv '/conv1/Conv', Relu '/relu1'`; empty if it names none."""
    nodes = list(map(str, nodes_of(location)))
    return ", ".join([*nodes, "..."] if nodes and leaves_nodes_out(location) else nodes)


def name_nodes(location: Attribute) -> str:
    """The same with the whole names, which tell nodes apart."""
    nodes = [f"{node.kind} '{node.name}'" for node in nodes_of(location)]
    return ", ".join([*nodes, "..."] if nodes and leaves_nodes_out(location) else nodes)


def _nodes(location: Attribute) -> Sequence[ModelNode]:
    if isinstance(location, NameLoc) and isinstance(location.location, NameLoc):
        return (ModelNode(location.desc.data, location.location.desc.data),)
    if isinstance(location, FusedLoc):
        return [node for each in _parts(location) for node in _nodes(each)]
    return ()


def leaves_nodes_out(location: Attribute) -> bool:
    """Whether a location names some of its nodes only: others need not be added."""
    return isinstance(location, FusedLoc) and any(isinstance(each, UnknownLoc) for each in _parts(location))


def _parts(location: FusedLoc) -> Iterable[Attribute]:
    assert isinstance(location.locations, ArrayAttr)
    return location.locations


def name_hint(name: str) -> str | None:
    """A name of the model as a value's name in the IR, or None if nothing of it is left."""
    hint = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    return f"v{hint}" if hint[:1].isdigit() else hint or None


def ascii_text(name: str) -> StringAttr:
    """A name as IR text can contain it: letters other than ASCII are escaped."""
    return StringAttr(name.encode("ascii", "backslashreplace").decode("ascii"))


def _shortened(name: str) -> str:
    """The name; of a long one its end, which distinguishes it from similar ones."""
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


# Modules as text that keeps the nodes of the model that operations compute.


class NodePrinter(Printer):
    """xDSL's printer, which also prints the locations that name nodes of the model, of operations that compute them.

    ```mlir
    %y = graph.unary "relu" %x : (tensor<4xf32>) -> tensor<4xf32> loc("relu_0"("Relu"))
    ```
    With `print_debuginfo` every location is printed, as xDSL does.

    The generic form can be read by MLIR's own tools, which do not know our dialects. What is of these can be no layout,
    memory space or type of elements there, but it may be part of a dictionary, which can be a memory space:

    ```mlir
    memref<3x128x32xf16, {layout = #loop.swizzle<8, 2, 4>, space = #loop.space<shared>}>
    memref<4xi64, {element = !hopper.mbarrier, space = #loop.space<shared>}>
    ```
    MLIR's arithmetic is of integers without a sign: an operation on others has a name there that MLIR does not know,
    `"unsigned.arith.extui"(%x) : (ui8) -> i32`. LocatedParser reads both as they were.
    """

    def print_attribute(self, attribute: Attribute) -> None:
        """Prints an attribute or a type."""
        if self.print_generic_format and isinstance(attribute, MemRefType):
            attribute = _for_mlir(attribute)
        super().print_attribute(attribute)

    def print_op(self, op: Operation) -> None:
        """Prints an operation."""
        if self.print_generic_format and _is_unsigned(op):
            self._print_results(op)
            self.print_string(f'"{_UNSIGNED}{op.name}"')
            self.print_op_with_default_format(op)
        else:
            super().print_op(op)
        if isinstance(op, NamesNodes) and not self.print_debuginfo and nodes_of(op.location):
            self.print_string(" ")
            self.print_attribute(op.location)


def ir_text(module: ModuleOp, generic: bool = False) -> str:
    """The module as text, from which it can be parsed again; `generic`: in the form that MLIR's own tools read."""
    stream = StringIO()
    NodePrinter(stream, print_generic_format=generic).print_op(module)
    return stream.getvalue() + "\n"


_UNSIGNED = "unsigned."


def _is_unsigned(op: Operation) -> bool:
    """Whether MLIR would reject an operation for an integer's sign, or its absence, in the type."""
    if op.dialect_name() not in ("arith", "math"):
        return False
    types = [value.type for value in (*op.operands, *op.results)]
    elements = [type.get_element_type() if isinstance(type, ContainerType) else type for type in types]
    return any(isinstance(each, IntegerType) and each.signedness.data != Signedness.SIGNLESS for each in elements)


def _for_mlir(type: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """A buffer whose layout, space and elements, if they are of our dialects, are entries of a dictionary."""
    parts = {"element": type.element_type, "layout": type.layout, "space": type.memory_space}
    ours = {key: part for key, part in parts.items() if not isinstance(part, BuiltinAttribute)}
    if not ours:
        return type
    layout = NoneAttr() if "layout" in ours else type.layout
    element = i64 if "element" in ours else type.element_type
    return MemRefType(element, type.shape, layout, DictionaryAttr(ours))


def _from_mlir(type: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """The buffer of which `_for_mlir` made `type`; `type` itself if it did not."""
    parts, known = type.memory_space, {"element", "layout", "space"}
    if not isinstance(parts, DictionaryAttr) or not parts.data or not parts.data.keys() <= known:
        return type
    layout = parts.data.get("layout", type.layout)
    if not isinstance(layout, MemRefLayoutAttr | NoneAttr):
        raise VerifyException(f"the layout {layout} of a buffer: expected one such as #loop.swizzle<8, 2, 4>")
    element, space = parts.data.get("element", type.element_type), parts.data.get("space", NoneAttr())
    return MemRefType(element, type.shape, layout, space)


# Reads IR text so that every later error can name file, line and column.


class LocatedParser(Parser):
    """xDSL's parser, which also gives each operation without a location its position in the text.

    What operations raise while they are parsed becomes a ParseError there; xDSL's raise more than VerifyException.
    """

    def __init__(self, context: Context, text: str, name: str):
        super().__init__(context, text, name)
        self._name = StringAttr(name)
        self._start = 0
        self._lines = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]

    def parse_operation(self) -> Operation:
        """The next operation, as xDSL parses it, with its location."""
        start = self._start = self.pos
        try:
            op = super().parse_operation()
        except (ParseError, TreadleError, RecursionError, MemoryError):
            raise
        except Exception as error:
            self.raise_error((str(error).splitlines() or [type(error).__name__])[0], start, start + 1)
        if isinstance(op.location, UnknownLoc):
            op.location = self._place(start)
        return op

    def _parse_memref_attrs(self) -> MemRefType | UnrankedMemRefType:
        """As xDSL's, and what NodePrinter writes for MLIR."""
        type = super()._parse_memref_attrs()
        return _from_mlir(type) if isinstance(type, MemRefType) else type

    def _get_op_by_name(self, name: str) -> type[Operation]:
        """As xDSL's, but an unknown name is reported where the operation begins, not where its name ends."""
        try:
            return super()._get_op_by_name(name.removeprefix(_UNSIGNED))
        except ParseError as error:
            self.raise_error(error.msg, self._start, self._start + 1)

    def _place(self, offset: int) -> FileLineColLoc:
        line = bisect_right(self._lines, offset)
        return FileLineColLoc(self._name, IntAttr(line), IntAttr(offset - self._lines[line - 1] + 1))
