"""Reading a model file, which is untrusted, and checking its structure before anything is converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, checker, inliner

from treadle.errors import TreadleError
from treadle.frontends.onnx.tensor_data import ExternalFiles, refuse_foreign_file
from treadle.support.files import MODEL_BYTES, read_regular

# The size of a model after the calls of its own functions are inlined.

MAX_NODES = 100_000
MAX_BYTES = 1 << 30
MAX_DEPTH = 200
"""Functions that call each other one inside the other; the inliner recurses."""

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Size:
    """The size of an expanded list of nodes: their number, their bytes, and the nesting of calls."""

    nodes: int
    bytes: int
    depth: int


def check_expansion(proto: ModelProto, where: str) -> None:
    """TreadleError unless the model's functions, expanded where they are called, stay within the limits.

    The sizes of bodies are added up, each body once, so that the check takes no longer than reading the file. Calls in
    bodies of control flow count as others. TreadleError, too, for functions that call each other in a circle.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[_Key, _Size] = {}
    for key in _callees_first(functions, where):
        size = _size_of(functions[key].node, sizes)
        _check(size, f"function '{key[1]}'", where)
        sizes[key] = size
    _check(_size_of(proto.graph.node, sizes), "the model", where)


def _check(size: _Size, what: str, where: str) -> None:
    for found, most, unit in ((size.nodes, MAX_NODES, "nodes"), (size.bytes, MAX_BYTES, "bytes")):
        if found > most:
            raise TreadleError(
                f"{what} has {found} {unit} when the functions it calls are expanded", where, f"up to {most}"
            )
    if size.depth > MAX_DEPTH:
        raise TreadleError(f"{what} nests {size.depth} calls of functions", where, f"up to {MAX_DEPTH}")


def _size_of(nodes: Sequence[NodeProto], sizes: dict[_Key, _Size]) -> _Size:
    count = total = depth = 0
    for node in nodes_of(nodes):
        called = sizes.get(_called(node))
        count += 1 if called is None else called.nodes
        total += node.ByteSize() + (0 if called is None else called.bytes)
        depth = max(depth, 0 if called is None else called.depth + 1)
    return _Size(count, total, depth)


def _callees_first(functions: dict[_Key, FunctionProto], where: str) -> list[_Key]:
    """The functions, each after those that it calls."""
    calls = {key: [c for c in map(_called, nodes_of(f.node)) if c in functions] for key, f in functions.items()}
    done: dict[_Key, bool] = {}
    order: list[_Key] = []
    stack: list[_Key] = []
    for start in functions:
        stack.append(start)
        while stack:
            key = stack[-1]
            if key not in done:
                done[key] = False
                waiting = [c for c in calls[key] if not done.get(c, False)]
                circle = next((c for c in waiting if c in done), None)
                if circle is not None:
                    raise TreadleError(
                        f"function '{circle[1]}' calls itself",
                        where,
                        "functions that are well formed and not recursive",
                    )
                stack += waiting
                continue
            stack.pop()
            if not done[key]:
                done[key] = True
                order.append(key)
    return order


def _called(node: NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def nodes_of(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of the graphs in their attributes."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += attribute.g.node
            for graph in attribute.graphs:
                pending += graph.node


DEFAULT_DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's own operator domain."""


@dataclass(frozen=True)
class LoadedModel:
    """A model whose structure was checked.

    files:  where its external data is read
    name:   how errors call it
    opsets: the version of each domain's operators; that of ONNX's own has the name ''
    functions: those of its own that are not inlined, since they use another version, by domain, name and overload
    """

    proto: ModelProto
    files: ExternalFiles
    name: str
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]

    def function(self, node: NodeProto) -> FunctionProto | None:
        """What a node calls, if that is a function of the model's own."""
        return self.functions.get((node.domain, node.op_type, node.overload))

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return self.opsets[""]

    @property
    def graph(self) -> GraphProto:
        return self.proto.graph

    @property
    def metadata(self) -> dict[str, str]:
        """The free-form properties that the exporter attached."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}


def load_model(source: str | Path | bytes, content: bytes | None = None) -> LoadedModel:
    """Reads a model from a path or from its bytes; `content` has the bytes of the file, if they were read before.

    TreadleError: no such file, bytes that are no ONNX model (or a part of one), a graph whose names
    do not fit.
    """
    if isinstance(source, bytes):
        return _checked(source, None, "the model's bytes")
    path = Path(source)
    data = read_regular(path, MODEL_BYTES, "the path of an .onnx file") if content is None else content
    refuse_foreign_file(data, str(path))
    return _checked(data, path, str(path))


def _checked(data: bytes, path: Path | None, name: str) -> LoadedModel:
    _refuse_archive(data, name)
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        # Protobuf reads messages in up to 100 others, and a graph in a node's attribute takes three.
        if "depth" in str(error).lower() or "recursion" in str(error).lower():
            message, accepted = "graphs are nested deeper than protobuf reads them", "up to 32 graphs inside each other"
            raise TreadleError(message, name, accepted) from error
        message = f"{len(data)} bytes are no ONNX model: the file is corrupt or truncated"
        raise TreadleError(message, name, "a complete .onnx file") from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise TreadleError(
            "the file holds no graph: it is empty, truncated, or not ONNX", name, "a complete .onnx file"
        )
    proto = _inlined(proto, name)
    _check_text(proto, name)
    opsets = opset_versions(proto.opset_import)
    if "" not in opsets:
        raise TreadleError("the model imports no version of ONNX's operators", name, "an opset_import of domain ''")
    _check_graph(proto.graph, name, frozenset())
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    for each in proto.functions:
        _check_graph(_graph_of(each), f"function '{each.name}'", frozenset())
    return LoadedModel(proto, ExternalFiles(path), name, opsets, functions)


def _refuse_archive(data: bytes, name: str) -> None:
    """TreadleError for what `torch.export.save` and `torch.save` write; loading these may run code of the file."""
    if not data.startswith(b"PK\x03\x04"):
        return
    try:
        entries = [Path(entry).name for entry in ZipFile(BytesIO(data)).namelist()]
    except BadZipFile:
        entries = []
    if {"archive_format", "serialized_exported_program.json"} & set(entries):
        message, other = "the file is an exported PyTorch program", "treadle.compile(torch.export.load(path))"
        accepted = f"a complete .onnx file; only for files that you trust, since it unpickles: in Python {other}, or "
        accepted += "`treadle compile --trust-pickle`"
    elif "data.pkl" in entries:
        message = "the file is a PyTorch checkpoint or TorchScript"
        accepted = "a complete .onnx file; in Python treadle.compile(module, example_inputs=...)"
    else:
        message, accepted = "the file is a zip archive", "a complete .onnx file"
    raise TreadleError(message, name, accepted)


def _inlined(proto: ModelProto, name: str) -> ModelProto:
    """The model with the calls of its own functions replaced by their bodies, where these use the same versions of
    operators as the model."""
    if not proto.functions:
        return proto
    check_expansion(proto, name)
    _give_defaults(proto)
    try:
        return inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, checker.ValidationError) as error:
        message = f"the model's functions cannot be inlined: {error}"
        raise TreadleError(message, name, "functions that are well formed and not recursive") from error


def _give_defaults(proto: ModelProto) -> None:
    """Gives calls of the model's functions, in place, the default attributes that they leave out: ONNX's inliner drops
    them."""
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    for node in nodes_of([*proto.graph.node, *(node for each in proto.functions for node in each.node)]):
        called = functions.get((node.domain, node.op_type, node.overload))
        if called is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(each for each in called.attribute_proto if each.name not in given)


def _check_text(proto: ModelProto, where: str) -> None:
    """Protobuf gives a name that is no UTF-8 as bytes."""
    names: list[object] = []
    pending = [proto.graph, *map(_graph_of, proto.functions)]
    while pending:
        graph = pending.pop()
        names += [entry.name for entry in [*graph.input, *graph.output, *graph.initializer, *graph.node]]
        for node in graph.node:
            names += [node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
            pending += graphs_of(node)
    for entry in proto.metadata_props:
        names += [entry.key, entry.value]
    names += [entry.domain for entry in proto.opset_import]
    for name in names:
        if not isinstance(name, str):
            raise TreadleError(f"the name {name!r} is no text", where, "names in UTF-8")


def _graph_of(function: FunctionProto) -> GraphProto:
    """A function's body as a graph."""
    inputs, outputs = ([ValueInfoProto(name=name) for name in names] for names in (function.input, function.output))
    return GraphProto(node=function.node, input=inputs, output=outputs)


def opset_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The version of each domain's operators, the first that is given; ONNX's own domain is ''."""
    versions: dict[str, int] = {}
    for entry in imports:
        versions.setdefault("" if entry.domain in DEFAULT_DOMAINS else entry.domain, entry.version)
    return versions


def _check_graph(graph: GraphProto, name: str, outside: Set[str]) -> None:
    """Every name has one producer and is produced before it is used; `outside` are those of enclosing graphs."""
    if graph.sparse_initializer:
        raise TreadleError("sparse initialisers are not supported", name, "dense initialisers")
    defined = {entry.name for entry in graph.input} | {entry.name for entry in graph.initializer}
    _check_unique([entry.name for entry in graph.input], "input", name)
    _check_unique([entry.name for entry in graph.initializer], "initialiser", name)
    for position, node in enumerate(graph.node):
        where = node_context(node, position)
        for operand in node.input:
            if operand and operand not in defined and operand not in outside:
                raise TreadleError(
                    f"input '{operand}' is not defined before this node",
                    where,
                    "a topologically sorted graph",
                )
        for inner in graphs_of(node):
            _check_graph(inner, where, outside | defined)
        for result in filter(None, node.output):
            if result in defined:
                raise TreadleError(f"output '{result}' is defined a second time", where, "one definition for each name")
            defined.add(result)
    if not graph.output:
        raise TreadleError("the graph has no output", name, "at least one output")
    for output in graph.output:
        if output.name not in defined and output.name not in outside:
            raise TreadleError(f"output '{output.name}' is computed by no node", name, "an output of some node")


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs in a node's attributes."""
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else list(a.graphs))]


def _check_unique(names: list[str], kind: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TreadleError(f"{kind} '{name}' appears twice", where, f"one {kind} of each name")
        seen.add(name)


def node_label(node: NodeProto, position: int) -> str:
    """The node's name; of a node without one, its first output, or its position."""
    return node.name or next(filter(None, node.output), f"#{position}")


def node_context(node: NodeProto, position: int, opset: int | None = None) -> str:
    """The node as errors name it: `node 'name' (OpType, opset N)`."""
    domain = "" if node.domain in DEFAULT_DOMAINS else f"{node.domain}."
    version = "" if opset is None else f", opset {opset}"
    return f"node '{node_label(node, position)}' ({domain}{node.op_type}{version})"
