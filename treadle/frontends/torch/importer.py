"""From a program that PyTorch exported to a module of graph operators."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx.node import map_arg
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, NameLoc, NoneAttr, StringAttr, TensorType, i8
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.append import STATES
from treadle.dialects.graph.definition import Misfit
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.location import ascii_text, name_hint
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import bounds_of, is_symbolic
from treadle.frontends.common.states import appendable, state_pairs, states_attribute
from treadle.frontends.common.symbols import Input, drop_unused, symbolic_attributes
from treadle.frontends.torch.call import Call, array_of, dtype_of, location, place
from treadle.frontends.torch.converters import find_converter
from treadle.frontends.torch.ranges import Bounds, Ranges, is_number, is_symbolic_number
from treadle.shapes.states import States

Constants = Mapping[str, tuple[str, torch.Tensor]]
"""Name and value of the placeholders that are known, by the name of their node."""

# From a module to an exported program of the operators that have converters.


def exported(
    model: torch.nn.Module | ExportedProgram, example_inputs: Sequence[Any] | None, dynamic_shapes: Any = None
) -> ExportedProgram:
    """The program of a module for inputs like the examples, decomposed into the operators that have converters.

    dynamic_shapes: of a module, as `torch.export.export` takes them: which extents are ranges

    Training is not supported: TreadleError for a module in training mode, and for one that cannot be exported.
    """
    if isinstance(model, ExportedProgram):
        if example_inputs is not None:
            raise TreadleError("example inputs are given for an exported program, which has its own", "compile", "none")
        if dynamic_shapes is not None:
            raise TreadleError("dynamic shapes are given for an exported program", "compile", "those of its export")
        return decomposed(model)
    modules: list[tuple[str, torch.nn.Module]] = list(model.named_modules())  # pyright: ignore[reportUnknownArgumentType]
    training = [name or type(each).__name__ for name, each in modules if each.training]
    if training:
        raise TreadleError(f"module '{training[0]}' is in training mode", "compile", "model.eval(): inference")
    if example_inputs is None:
        message = f"a {type(model).__name__} without example inputs"
        raise TreadleError(message, "compile", "example_inputs=(x, ...), of the shapes and types of its calls")
    return decomposed(export(model, example_inputs, dynamic_shapes))


def trusted_program(path: Path) -> ExportedProgram:
    """The program of a `.pt2` file, which may run code that is in the file; TreadleError for another file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:
        message = f"torch.export.load: {_said(error)}"
        raise TreadleError(message, path, "what torch.export.save wrote") from error


def export(model: torch.nn.Module, example_inputs: Sequence[Any], dynamic_shapes: Any = None) -> ExportedProgram:
    """As `torch.export.export`; TreadleError if that fails."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, tuple(example_inputs), dynamic_shapes=dynamic_shapes)
    except Exception as error:
        message = f"torch.export: {_said(error)}"
        accepted = "a module that torch.export takes; torch.compile splits others at graph breaks"
        raise TreadleError(message, type(model).__name__, accepted) from error


def _said(error: Exception) -> str:
    """What an exception of PyTorch says, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0]}"


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program with PyTorch's own decompositions of all operators but those that have a converter.

    PyTorch traces it once more for that: a program that has no others stays as it is. (Of the cases of the converters'
    tests, an export takes 28 ms in the mean, and this 290.)
    """
    if all(_is_converted(node) for node in program.graph.nodes):
        return program
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions(decompositions())
    except Exception as error:
        message = f"run_decompositions of torch.export: {_said(error)}"
        accepted = "a program that PyTorch decomposes; one that writes into tensors that are no buffers by strict=True"
        raise TreadleError(message, "compile", accepted) from error


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions, by operator, of those that have no converter."""
    table = torch.export.default_decompositions()
    table[torch.ops.aten.lift_fresh_copy.default] = torch.clone
    return {each: table[each] for each in list(table) if find_converter(each) is None}


def _is_converted(node: fx.Node) -> bool:
    """Whether the importer takes the node as it is. What writes to its operands has no converter."""
    if node.op in ("placeholder", "output") or is_number(node):
        return True
    return node.op == "call_function" and (node.target is operator.getitem or find_converter(node.target) is not None)


_LISTED = 20
"""Nodes that an error lists."""


class UnsupportedNodes(TreadleError):
    """Nodes that cannot be converted, each with what its error says."""

    def __init__(self, errors: Mapping[str, TreadleError]):
        self.nodes = dict(errors)
        listed = list(errors.values())
        if len(listed) == 1:
            super().__init__(listed[0].message, listed[0].where, listed[0].accepted)
            return
        texts = [f"{error.where}: {error.message}" for error in listed[:_LISTED]]
        more = [f"{len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        accepted = "; ".join(dict.fromkeys(error.accepted for error in listed if error.accepted))
        super().__init__(f"{len(listed)} nodes are not supported: {'; '.join(texts + more)}", "compile", accepted)


def import_exported(program: ExportedProgram, states: States | None = None) -> ModuleOp:
    """Converts a program to `func.func @main` over graph operators.

    Parameters and buffers are constants, of the memory that they have where it is row-major. The function's attribute
    `input_names` has the names of the arguments of `forward`, `output_names` is `output`, or `output_0` and so on. An
    operator's location names its node with the line of the model's code, and the ATen operator.

    Extents that `dynamic_shapes` left open are those of a call, within `program.range_constraints`. Buffers that the
    program writes, and the inputs that `states` names with what they become, are states (`StateAttr`s).

    TreadleError: a range without an end, a program that writes into parameters, inputs, or buffers with elements other
    than 0, states that it has not, and one that lists all nodes that cannot be converted.
    """
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    written = _written_buffers(signature.output_specs, held)
    constants: dict[str, tuple[str, torch.Tensor]] = {}
    buffers: dict[str, str] = {}
    for spec in signature.input_specs:
        if spec.target in written:
            buffers[spec.arg.name] = spec.target
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            assert spec.target is not None
            constants[spec.arg.name] = (spec.target, cast("torch.Tensor", held[spec.target]))
    specs = [spec for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    results = [spec.arg.name for spec in specs if isinstance(spec.arg, TensorArgument)]
    outputs = output_names(len(results))
    inputs = _tensors(program.graph, constants)
    pairs = state_pairs([name for name in inputs if name not in buffers], outputs, states)
    kept = {name: outputs.index(output) for name, output in pairs.items()}
    kept |= {name: len(results) + n for n, name in enumerate(buffers)}
    results += [written[target] for target in buffers.values()]
    outputs += [f"{target} after a call" for target in buffers.values()]
    ranges = Ranges.of(inputs, _bounds(program))
    return import_graph(program.graph, constants, results, ranges, (), Interface(buffers, outputs, kept))


def output_names(count: int) -> list[str]:
    """What so many results are called."""
    return ["output"] if count == 1 else [f"output_{n}" for n in range(count)]


def _written_buffers(specs: Sequence[OutputSpec], held: Mapping[str, Any]) -> dict[str, str]:
    """The buffers that a program writes, by name, and the nodes that they become; TreadleError for anything else that
    it writes, and for a buffer that does not begin with zeros, as states do."""
    found: dict[str, str] = {}
    for spec in specs:
        if spec.kind == OutputKind.USER_OUTPUT:
            continue
        if spec.kind != OutputKind.BUFFER_MUTATION or spec.target is None:
            message = f"the model writes to '{spec.target}' ({spec.kind.name.lower().replace('_', ' ')})"
            raise TreadleError(message, "compile", "a model that returns what it computes, or writes into buffers")
        if bool(cast("torch.Tensor", held[spec.target]).any()):
            message = f"the model writes to '{spec.target}', a buffer that has elements other than 0"
            raise TreadleError(message, "compile", "a buffer of zeros, as which states begin")
        found[spec.target] = spec.arg.name
    return found


@dataclass(frozen=True)
class Interface:
    """What a graph's inputs and results are called, and which inputs are results of the call before.

    inputs:  names of inputs, by those of their nodes; others have those of their nodes
    outputs: the names of the results
    kept:    the states: numbers of results, by the names of the inputs' nodes
    """

    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: Sequence[str] = ()
    kept: Mapping[str, int] = field(default_factory=dict[str, int])


def _bounds(program: ExportedProgram) -> Bounds:
    """The ranges of the symbols of a program."""
    return {
        str(symbol): (
            int(each.lower) if each.lower.is_Integer else 0,
            int(each.upper) if each.upper.is_Integer else None,
        )
        for symbol, each in cast("dict[Any, Any]", program.range_constraints).items()
    }


def _tensors(graph: fx.Graph, constants: Constants) -> dict[str, torch.Tensor]:
    """The inputs of a graph that are tensors, by their names."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder" and node.name not in constants]
    values = {str(node.target): node.meta.get("val") for node in placeholders}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def import_graph(
    graph: fx.Graph,
    constants: Constants,
    results: Sequence[str],
    ranges: Ranges | None = None,
    carried: Sequence[str] = (),
    interface: Interface | None = None,
) -> ModuleOp:
    """As `import_exported`, of a graph of ATen operators.

    results:   the names of the nodes that are returned
    ranges:    what PyTorch's symbols are, if there are any
    carried:   dimensions that no input has; each is the extent of one more input, whose elements nothing reads
    """
    walk = _Walk.start(graph, constants, ranges or Ranges(), interface or Interface({}, output_names(len(results))))
    for name in carried:
        walk.carry(name)
    walk.convert(results)
    if walk.errors:
        raise UnsupportedNodes(walk.errors)
    return walk.module(results)


@dataclass(eq=False)
class _Walk:
    """The state of a conversion: the block being written, and what each node is so far."""

    graph: fx.Graph
    block: Block
    builder: GraphBuilder
    ranges: Ranges
    interface: Interface
    inputs: dict[str, Input] = field(default_factory=dict[str, Input])
    placed: list[str] = field(default_factory=list[str])
    """The nodes of the inputs."""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    errors: dict[str, TreadleError] = field(default_factory=dict[str, TreadleError])
    unknown: dict[str, TreadleError] = field(default_factory=dict[str, TreadleError])
    """Results of refused nodes that are no tensors of Treadle's."""

    @classmethod
    def start(cls, graph: fx.Graph, constants: Constants, ranges: Ranges, interface: Interface) -> _Walk:
        block = Block()
        walk = cls(graph, block, GraphBuilder(block), ranges, interface)
        for node in graph.nodes:
            if node.op == "placeholder":
                walk._place(node, constants.get(node.name))
        readers = [node for node in graph.nodes if not is_symbolic_number(node.meta.get("val"))]
        operands = [[each.name for each in node.all_input_nodes] for node in readers]
        appended = appendable(dict.fromkeys(interface.kept, ""), operands)
        walk.builder.states = {
            argument for name, argument in zip(walk.placed, block.args, strict=False) if name in appended
        }
        return walk

    def _place(self, node: fx.Node, known: tuple[str, torch.Tensor] | None) -> None:
        if known is not None:
            name, tensor = known
            self.builder.location = NameLoc(ascii_text(name), NoneAttr())
            self.values[node.name] = self.builder.constant(array_of(tensor.cpu(), f"'{name}'"))
            return
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.placed.append(node.name)
            tensor = self.values[node.name] = self._argument(node, value, f"input '{node.name}'")
            self.inputs[self.interface.inputs.get(node.name, str(node.target))] = Input(tensor.type, tensor.shape)
        elif is_symbolic_number(value):
            self.values[node.name] = self.ranges.extent(value, f"input '{node.name}'")
        else:
            self.values[node.name] = value

    def _argument(self, node: fx.Node, value: torch.Tensor, where: str) -> Tensor:
        """An argument of the block, as large as PyTorch says."""
        extents = self.ranges.shape(value, where)
        type = TensorType(element_type(dtype_of(value.dtype, where)), bounds_of(extents))
        argument = self.block.insert_arg(type, len(self.block.args))
        argument.name_hint = name_hint(node.name)
        return Tensor(type, None, argument, None, extents if is_symbolic(extents) else None)

    def carry(self, name: str) -> None:
        """One more input of a vector whose extent is a dimension."""
        (extent,) = (each for each in self.ranges.chosen.values() if each.name == name)
        type = TensorType(i8, [extent.bound])
        self.block.insert_arg(type, len(self.block.args))
        self.inputs[f"{name} elements"] = Input(type, (extent,))

    def convert(self, results: Sequence[str]) -> None:
        """Writes the operators of the nodes that the results depend on; errors are collected."""
        live: set[str] = set(results)
        nodes = list(self.graph.nodes)
        for node in reversed(nodes):
            if node.name in live:
                live.update(each.name for each in node.all_input_nodes)
        for node in nodes:
            if node.op not in ("placeholder", "output") and node.name in live:
                self._convert(node)

    def _convert(self, node: fx.Node) -> None:
        self.builder.location = location(node)
        try:
            self.values[node.name] = self._converted(node)
        except VerifyException as error:
            accepted = error.accepted if isinstance(error, Misfit) else None
            self._refuse(node, TreadleError(str(error), place(node), accepted))
        except TreadleError as error:
            self._refuse(node, error)

    def _converted(self, node: fx.Node) -> object:
        for each in node.all_input_nodes:
            if each.name in self.unknown:
                error = self.unknown[each.name]
                raise TreadleError(error.message, place(node), error.accepted)
        if is_number(node):
            return self.ranges.extent(node.meta["val"], place(node))
        if node.target is operator.getitem:
            return self._item(node)
        convert = find_converter(node.target)
        if convert is None:
            accepted = "the operators of treadle.frontends.torch.supported_operators()"
            raise TreadleError(f"operator {node.target} is not supported", place(node), accepted)
        result = convert(Call(node, self._arguments(node), self.ranges), self.builder)
        for tensor in [result] if isinstance(result, Tensor) else result:
            if tensor.ssa is not None and tensor.ssa.name_hint is None:
                tensor.ssa.name_hint = name_hint(node.name)
        return result

    def _item(self, node: fx.Node) -> object:
        source, index = cast("tuple[fx.Node, int]", node.args)
        items = cast("Sequence[object]", self.values[source.name])
        if index >= len(items):
            raise TreadleError(f"result {index} is used", place(source), f"results 0 to {len(items) - 1}")
        return items[index]

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        schema = cast("Any", node.target)._schema
        given: tuple[Sequence[Any], dict[str, Any]] = cast("Any", map_arg)((node.args, node.kwargs), self._value)
        args, kwargs = given
        named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | dict(kwargs)
        return {a.name: named.get(a.name, a.default_value) for a in schema.arguments}

    def _value(self, node: fx.Node) -> object:
        return self.values[node.name]

    def _refuse(self, node: fx.Node, error: TreadleError) -> None:
        """Remembers an error, and goes on with unknown results, so that all errors are found."""
        self.errors[node.name] = error
        value = node.meta.get("val")
        try:
            if isinstance(value, torch.Tensor):
                self.values[node.name] = self._argument(node, value, place(node))
            elif isinstance(value, Sequence):
                tensors = [each for each in value if isinstance(each, torch.Tensor)]
                self.values[node.name] = [self._argument(node, each, place(node)) for each in tensors]
        except TreadleError as unknown:
            self.unknown[node.name] = unknown

    def _states(self, results: Sequence[SSAValue]) -> Attribute:
        names = {name: self.interface.outputs[number] for name, number in self.interface.kept.items()}
        numbers = {name: number for number, name in enumerate(self.interface.outputs)}
        arguments = dict(zip(self.placed, self.block.args, strict=False))
        return states_attribute(names, arguments, numbers, results)

    def module(self, results: Sequence[str]) -> ModuleOp:
        tensors = [cast("Tensor", self.values[name]) for name in results]
        values = [self.builder.value(tensor) for tensor in tensors]
        self.block.add_op(ReturnOp(*values))
        erase_dead(self.block)
        drop_unused(self.builder.extents, self.block)
        symbolic: dict[str, Attribute] = {}
        if self.ranges.dims.dims:
            symbolic = symbolic_attributes(self.ranges.dims, list(self.inputs.values()), tensors, self.builder)
        type = FunctionType.from_lists([a.type for a in self.block.args], [value.type for value in values])
        func = FuncOp("main", type, Region(self.block))
        names = [*self.inputs, *(f"extent({expression})" for expression in self.builder.extents)]
        func.attributes["input_names"] = ArrayAttr([StringAttr(name) for name in names])
        func.attributes["output_names"] = ArrayAttr([StringAttr(name) for name in self.interface.outputs])
        if self.interface.kept:
            func.attributes[STATES] = self._states(values)
        func.attributes |= symbolic
        return ModuleOp([func])
