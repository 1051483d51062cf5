"""From an ONNX model to a module of graph operators."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto
from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.append import STATES
from treadle.dialects.graph.control import called_names
from treadle.dialects.graph.definition import Misfit
from treadle.dialects.graph.dtypes import MAX_WRITTEN_OUT
from treadle.dialects.location import ascii_text, name_hint, node_location
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.common.states import appendable, state_pairs, states_attribute
from treadle.frontends.common.symbols import Input, Symbols, drop_unused, symbolic_attributes
from treadle.frontends.onnx.converters import find_conversion
from treadle.frontends.onnx.functions import (
    FunctionBody,
    Knowing,
    arguments_of,
    called_body,
    end_block,
    find_schema,
    function_body,
    function_of,
    values_read,
)
from treadle.frontends.onnx.inputs import constant_inputs, free_inputs, model_inputs
from treadle.frontends.onnx.loader import (
    DEFAULT_DOMAINS,
    LoadedModel,
    graphs_of,
    load_model,
    node_context,
    node_label,
    opset_versions,
)
from treadle.frontends.onnx.node import Aside, Bytes, Node, Outlined, ValueNeeded, Write
from treadle.frontends.onnx.tensor_data import to_array
from treadle.shapes.constants import Constants, normalized_constants
from treadle.shapes.dim import Shapes
from treadle.shapes.states import States


def import_model(
    path_or_bytes: str | Path | bytes,
    shapes: Shapes | None = None,
    constants: Constants | None = None,
    states: States | None = None,
) -> ModuleOp:
    """Converts a model to `func.func @main` over graph operators.

    path_or_bytes: an .onnx file, or its content (then without external data)
    shapes:        a shape for each input that the file leaves dynamic, for example `{"x": (1, 3, 48, 320)}`; a `Dim` in
                   it has a range, of which the largest extent is that of the types (docs/adr/0039)
    constants:     values of inputs that are the same in every call, such as `{"sr": 16000}`: @main does not take them
    states:        inputs that are outputs of the call before, which `StateAttr`s on @main name

    The function's attributes `input_names` and `output_names` are the model's names in order, `metadata` holds
    its free-form properties (text as bytes where it is not ASCII). An operator's location names its node.

    ```mlir
    func.func @main(%x : tensor<1x3xf32>) -> tensor<1x3xf32>
        attributes {input_names = ["x"], output_names = ["y"]} {
      %y = graph.unary "relu" %x : (tensor<1x3xf32>) -> tensor<1x3xf32> loc("relu_0"("Relu"))
      func.return %y : tensor<1x3xf32>
    }
    ```

    TreadleError: a file that cannot be read, shapes that do not fit, the first node that cannot be converted.
    """
    return import_loaded(load_model(path_or_bytes), shapes, constants, states)


def import_loaded(
    model: LoadedModel,
    shapes: Shapes | None = None,
    constants: Constants | None = None,
    states: States | None = None,
) -> ModuleOp:
    """As `import_model`, of a model that was read; `model.files` records the external data that is read."""
    walk = GraphWalk.start(model, shapes or {}, constants, states)
    for position in walk.live:
        walk.convert(position)
    return _module(model, walk)


_FEW = 16
"""Elements of an input that somebody would write on a command line."""


@dataclass(frozen=True)
class _Scope:
    """What a list of nodes sees: the tensors of the names so far, which names anything reads, and how errors say where
    the list is."""

    tensors: MutableMapping[str, Tensor]
    read: frozenset[str]
    opsets: Mapping[str, int]
    within: tuple[str, ...] = ()

    def opset(self, domain: str) -> int:
        return self.opsets.get("" if domain in DEFAULT_DOMAINS else domain, self.opsets[""])

    def path(self, proto: NodeProto, position: int) -> tuple[str, ...]:
        """The nodes around a node, outermost first, and itself."""
        return (*self.within, node_context(proto, position, self.opset(proto.domain)))


@dataclass(eq=False)
class GraphWalk:
    """The state of a conversion: the block being written, and the tensor of each name so far."""

    model: LoadedModel
    inputs: dict[str, Input]
    symbols: Symbols
    block: Block
    builder: GraphBuilder
    tensors: dict[str, Tensor]
    read: frozenset[str]
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    made: Bytes = field(default_factory=Bytes)
    functions: list[FuncOp] = field(default_factory=list[FuncOp])
    """What loops and branches call."""
    _expanded: int = 0

    @classmethod
    def start(
        cls,
        model: LoadedModel,
        shapes: Shapes,
        constants: Constants | None = None,
        states: States | None = None,
    ) -> GraphWalk:
        """A walk that knows the model's inputs, those that are constants, and its initialisers."""
        known = constant_inputs(model.graph, normalized_constants(constants))
        names, made = [entry.name for entry in free_inputs(model.graph)], [each.name for each in model.graph.output]
        pairs = state_pairs(names, made, states)
        inputs, symbols = model_inputs(model.graph, shapes, known)
        block = Block(arg_types=[each.type for each in inputs.values()])
        builder = GraphBuilder(block)
        tensors: dict[str, Tensor] = {}
        for (name, each), argument in zip(inputs.items(), block.args, strict=True):
            argument.name_hint = name_hint(name)
            extents = each.extents if is_symbolic(each.extents) else None
            tensors[name] = Tensor(each.type, None, argument, None, extents)
        operands = [_operands(node) for node in model.graph.node if node.op_type != "Shape"]
        appended = appendable(pairs, operands)
        builder.states = {argument for name, argument in zip(inputs, block.args, strict=True) if name in appended}
        tensors |= {name: builder.constant(array) for name, array in known.items()}
        outputs = [output.name for output in model.graph.output]
        walk = cls(model, inputs, symbols, block, builder, tensors, _names_read(model.graph.node, outputs), pairs)
        walk._initialise(model.graph, walk._scope)
        return walk

    @property
    def live(self) -> list[int]:
        """Positions of the nodes that the graph's outputs depend on, in order."""
        return live_nodes(self.model.graph.node, [output.name for output in self.model.graph.output])

    def called(self, main: FuncOp) -> list[FuncOp]:
        """The functions that are called, after the nodes that nothing needs were dropped."""
        waiting, found = [main], dict[str, None]()
        functions = {each.sym_name.data: each for each in self.functions}
        while waiting:
            names = [name for op in waiting.pop().walk() for name in called_names(op) if name not in found]
            found.update(dict.fromkeys(names))
            waiting += [functions[name] for name in names]
        return [each for each in self.functions if each.sym_name.data in found]

    @property
    def _scope(self) -> _Scope:
        return _Scope(self.tensors, self.read, self.model.opsets)

    def where(self, position: int) -> str:
        return place_of(self._scope.path(self.model.graph.node[position], position))

    def operands(self, position: int) -> list[str]:
        """The names that a node reads."""
        return _operands(self.model.graph.node[position])

    def convert(self, position: int) -> None:
        """Writes the operators of one node, whose operands were converted; TreadleError naming the node."""
        proto = self.model.graph.node[position]
        self.builder.location = node_location(node_label(proto, position), proto.op_type)
        try:
            self._convert(proto, position, self._scope)
        except ValueNeeded as error:
            self._name_inputs(error)
            raise

    def _name_inputs(self, error: ValueNeeded) -> None:
        """Says which inputs would have to be known; as constants, if they are of a few numbers."""
        reached = arguments_of(error.tensors)
        pairs = [(name, arg) for name, arg in zip(self.inputs, self.block.args, strict=False) if arg in reached]
        error.inputs = frozenset(name for name, _ in pairs)
        if pairs and all(self.inputs[name].type.element_count() <= _FEW for name, _ in pairs):
            names, options = " and ".join(f"'{n}'" for n, _ in pairs), " ".join(f"--input {n}=VALUE" for n, _ in pairs)
            inputs = "input" if len(pairs) == 1 else "inputs"
            error.accepted = f"{error.accepted}, or a constant for {inputs} {names} ({options})"

    def _convert(self, proto: NodeProto, position: int, scope: _Scope) -> None:
        path, opset = scope.path(proto, position), scope.opset(proto.domain)
        where = place_of(path)
        own = self.model.function(proto)
        conversion = find_conversion(proto.op_type, proto.domain, opset, where) if own is None else own
        inputs = [scope.tensors[name] if name else None for name in proto.input]
        used = [name in scope.read for name in proto.output]
        enter = partial(self._enter, scope, path)
        node = Node(proto, inputs, used, opset, where, self.model.files, self.made, enter)
        node.inside = bool(scope.within)
        node.outline = partial(self._outline, scope, path, node)
        node.aside, node.close = partial(self._aside, scope, path), partial(self._close, node)
        if isinstance(conversion, FunctionProto):
            self._define(self._call(called_body(node, conversion), node, path), scope)
            return
        try:
            results = conversion(node, self.builder) if callable(conversion) else None
        except VerifyException as error:
            raise node.error(str(error), error.accepted if isinstance(error, Misfit) else None) from error
        if results is None:
            schema = find_schema(proto.op_type, proto.domain, opset) if callable(conversion) else conversion
            if schema is None:
                raise node.error(
                    "it is imported by a definition that this version of onnx does not have", "a newer onnx"
                )
            self._define(self._call(function_body(node, schema, scope.opsets), node, path), scope)
            return
        node.check_attributes()
        listed = [results] if isinstance(results, Tensor) else results
        node.only_output(len(listed) - 1)
        self._define(zip(proto.output, listed, strict=False), scope)

    def _call(self, body: FunctionProto, node: Node, path: tuple[str, ...]) -> list[tuple[str, Tensor]]:
        """The outputs of a function that are used, under the names that the node gives them, by its body's nodes."""
        node.only_output(len(body.output) - 1)
        outputs = [
            (own, inner) for own, inner, used in zip(node.proto.output, body.output, node.used, strict=False) if used
        ]
        given = {name: x for name, x in zip(body.input, node.inputs, strict=False) if x is not None}
        _omit(body.node, set(body.input) - set(given))
        read = _names_read(body.node, [inner for _, inner in outputs])
        opsets = {**self.model.opsets, **opset_versions(body.opset_import)}
        scope = _Scope(given, read, opsets, (*path[:-1], f"{path[-1]}, by its definition"))
        self._convert_all(body.node, [inner for _, inner in outputs], scope)
        return [(own, scope.tensors[inner]) for own, inner in outputs]

    def _enter(self, scope: _Scope, path: tuple[str, ...], graph: GraphProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a graph in an attribute of a node, for tensors as its inputs."""
        outputs = [output.name for output in graph.output]
        names = [entry.name for entry in graph.input]
        if len(inputs) != len(names):
            raise TreadleError(f"a graph of {len(names)} inputs gets {len(inputs)} tensors", place_of(path), "as many")
        inner = _Scope(
            ChainMap(dict(zip(names, inputs, strict=True)), scope.tensors),
            _names_read(graph.node, outputs),
            scope.opsets,
            path,
        )
        self._initialise(graph, inner)
        self._convert_all(graph.node, outputs, inner)
        return [inner.tensors[name] for name in outputs]

    def _aside(self, scope: _Scope, path: tuple[str, ...], graph: GraphProto) -> Aside:
        """What a graph in an attribute of a node becomes, in a block of its own."""
        block, found = Block(), len(self.builder.found.counts)
        names = replace(scope, tensors=ChainMap[str, Tensor]({}, Knowing(scope.tensors)))
        with self.builder.writing_to(block):
            results = self._enter(names, path, graph, ())
        return Aside(block, results, len(self.builder.found.counts) > found)

    def _close(self, node: Node, sides: Mapping[str, Aside]) -> tuple[list[str], list[SSAValue]]:
        """Functions of what was converted aside, and what all of them read."""
        for each in sides.values():
            with self.builder.writing_to(each.block):
                end_block(each.block, [self.builder.value(result) for result in each.results])
        read = list(dict.fromkeys(value for each in sides.values() for value in values_read(each.block)))
        functions = [function_of(self._name(node, word), each.block, read) for word, each in sides.items()]
        self.functions += functions
        return [function.sym_name.data for function in functions], read

    def _name(self, node: Node, word: str) -> str:
        return f"{node.op_type.lower()}_{word}_{len(self.functions)}"

    def _outline(
        self, scope: _Scope, path: tuple[str, ...], node: Node, word: str, given: Sequence[Tensor], write: Write
    ) -> Outlined:
        """A function of its own, of which `write` gives the results for its arguments; see `Node.outline`."""
        outer = self.builder
        body = FunctionBody(given, scope.tensors, node.where, outer.location)
        names = replace(scope, tensors=ChainMap[str, Tensor]({}, body.captures))
        self.builder = body.builder
        try:
            enter = partial(self._enter, names, path)
            inner = replace(node, enter=enter, outline=None, aside=None, close=None)
            results = write(inner, body.builder, body.arguments)
        except ValueNeeded as error:
            raise body.outside(error) from error
        finally:
            self.builder = outer
        function, captured = body.function(self._name(node, word), results, outer)
        self.functions.append(function)
        return Outlined(function, results, captured)

    def _initialise(self, graph: GraphProto, scope: _Scope) -> None:
        location = self.builder.location
        for initialiser in graph.initializer:
            if initialiser.name in scope.read:
                self.builder.location = NameLoc(ascii_text(initialiser.name), NoneAttr())
                array = to_array(
                    initialiser, self.model.files, place_of((*scope.within, f"initialiser '{initialiser.name}'"))
                )
                scope.tensors[initialiser.name] = self.builder.constant(array)
        self.builder.location = location

    def _convert_all(self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: _Scope) -> None:
        self._expanded += 1 + len(nodes)
        if self._expanded > MAX_WRITTEN_OUT:
            message = f"the bodies of functions and loops expand to more than {MAX_WRITTEN_OUT} nodes"
            raise TreadleError(message, place_of(scope.within), "fewer iterations")
        for position in live_nodes(nodes, outputs):
            self._convert(nodes[position], position, scope)

    def _define(self, results: Iterable[tuple[str, Tensor]], scope: _Scope) -> None:
        for name, tensor in results:
            scope.tensors[name] = tensor
            if tensor.ssa is not None and tensor.ssa.name_hint is None:
                tensor.ssa.name_hint = name_hint(name)


def place_of(path: Sequence[str]) -> str:
    """Where something is inside of nodes, as errors say it: of many, the first and the last two."""
    shown = [*path[:2], f"{len(path) - 4} nodes inside each other", *path[-2:]] if len(path) > 5 else path
    return ": ".join(shown)


def live_nodes(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[int]:
    """Positions of the nodes on which some of the names that they define depend, in order."""
    needed = set(outputs)
    live: list[int] = []
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        if needed.isdisjoint(filter(None, node.output)):
            continue
        live.append(position)
        needed.update(_operands(node))
    return live[::-1]


def _operands(node: NodeProto) -> list[str]:
    """The names that a node reads, those of enclosing graphs that graphs in its attributes read included."""
    names = list(filter(None, node.input))
    for graph in graphs_of(node):
        own = {entry.name for entry in [*graph.input, *graph.initializer]}
        own.update(name for inner in graph.node for name in inner.output)
        read = [*(output.name for output in graph.output), *(name for inner in graph.node for name in _operands(inner))]
        names += [name for name in read if name not in own]
    return names


def _names_read(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> frozenset[str]:
    """The names that the outputs depend on."""
    outputs = list(outputs)
    return frozenset(outputs).union(*(_operands(nodes[n]) for n in live_nodes(nodes, outputs)))


def _omit(nodes: Sequence[NodeProto], missing: Set[str]) -> None:
    """Leaves operands out, in place, that a function's caller leaves out."""
    for node in nodes if missing else ():
        for n, name in enumerate(node.input):
            if name in missing:
                node.input[n] = ""
        for graph in graphs_of(node):
            _omit(graph.node, missing)


def _module(model: LoadedModel, walk: GraphWalk) -> ModuleOp:
    outputs = [output.name for output in model.graph.output]
    for name in map(str, walk.builder.found.counts):
        if name in walk.symbols.dims:
            message = f"dimension '{name}' has the name of an extent that depends on data"
            raise TreadleError(message, "shapes", "another name")
    results = [*(walk.tensors[name] for name in outputs), *walk.builder.found.counts.values()]
    outputs += [f"extent({expression})" for expression in walk.builder.found.counts]
    values = [walk.builder.value(tensor) for tensor in results]
    walk.block.add_op(ReturnOp(*values))
    erase_dead(walk.block)
    drop_unused(walk.builder.extents, walk.block)
    symbolic: dict[str, Attribute] = {}
    if walk.symbols.dims or walk.builder.found.counts:
        symbolic = symbolic_attributes(walk.symbols, list(walk.inputs.values()), results, walk.builder)
    type = FunctionType.from_lists([argument.type for argument in walk.block.args], [value.type for value in values])
    func = FuncOp("main", type, Region(walk.block))
    names = [*walk.inputs, *(f"extent({expression})" for expression in walk.builder.extents)]
    func.attributes["input_names"] = ArrayAttr([StringAttr(name) for name in names])
    func.attributes["output_names"] = ArrayAttr([StringAttr(name) for name in outputs])
    func.attributes |= symbolic
    if walk.states:
        arguments = dict(zip(walk.inputs, walk.block.args, strict=False))
        positions = {name: n for n, name in enumerate(outputs)}
        func.attributes[STATES] = states_attribute(walk.states, arguments, positions, values)
    if model.metadata:
        entries = {key: _text(value) for key, value in sorted(model.metadata.items())}
        func.attributes["metadata"] = DictionaryAttr(entries)
    return ModuleOp([*walk.called(func), func])


def _text(value: str) -> StringAttr | BytesAttr:
    return StringAttr(value) if value.isascii() else BytesAttr(value.encode())


# Inputs of a model whose values have to be known at compile time, such as the shape that a `Reshape` is given.


def needed_inputs(model: ModelProto, values: Mapping[str, NDArray[Any]], shapes: Shapes | None = None) -> set[str]:
    """The inputs whose values a model cannot be imported without, one of the least such sets.

    values: those of a call, for all inputs
    TreadleError: a model that cannot be imported with them either.
    """
    needed, content = set[str](), model.SerializeToString()
    while True:
        left = {name: shape for name, shape in (shapes or {}).items() if name not in needed}
        try:
            import_model(content, left, {name: values[name] for name in needed})
        except ValueNeeded as error:
            if not error.inputs - needed:
                raise
            needed |= error.inputs
        else:
            return needed
