"""Operators that ONNX or a model defines by others, functions of loops, and the registry of converters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol, TypeVar, cast

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, checker, defs
from xdsl.dialects.builtin import FunctionType, LocationAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import Extent
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Node, ValueNeeded
from treadle.frontends.onnx.tensor_data import DTYPES
from treadle.support.extensions import note_added

# The definitions that ONNX gives operators by means of others: the bodies of its functions.
#
# An operator without a converter is imported by the nodes of its body, where it has one.

_ELEM_TYPES = {dtype: number for number, dtype in DTYPES.items()}
_OF_WHAT_IS_UNSUPPORTED = ("Bernoulli", "SequenceMap")
"""Operators whose bodies draw random numbers or make sequences: an error names them rather than what is in the body."""
_IR_VERSION = 8
"""Of the nodes that ONNX's checker sees; nodes have been the same since long before."""


class Schema(Protocol):
    """What is used here of `onnx.defs.OpSchema`, whose stubs leave functions out."""

    name: str
    domain: str
    since_version: int
    attributes: Mapping[str, defs.OpSchema.Attribute]
    has_function: bool
    has_context_dependent_function: bool
    function_body: FunctionProto
    context_dependent_function_opset_versions: Sequence[int]

    def get_context_dependent_function_with_opset_version(
        self, opset: int, node: bytes, types: Sequence[bytes]
    ) -> bytes: ...


_LARGEST_OPSET = 2**31 - 1
"""What `onnx.defs` takes as a version."""


def find_schema(op_type: str, domain: str, opset: int) -> Schema | None:
    """The operator as a version of its domain has it, if it has a body; None without one, and for a version that ONNX's
    own numbers do not reach."""
    if opset > _LARGEST_OPSET:
        return None
    try:
        schema = _schema(defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain))
    except defs.SchemaError:
        return None
    has_body = schema.has_function or schema.has_context_dependent_function
    return schema if has_body and op_type not in _OF_WHAT_IS_UNSUPPORTED else None


def _schema(schema: defs.OpSchema) -> Schema:
    return cast("Schema", cast("object", schema))


def function_body(node: Node, schema: Schema, opsets: Mapping[str, int]) -> FunctionProto:
    """The body for a node, whose types and attributes some bodies depend on, every attribute that it refers to replaced
    by its value.

    opsets: the versions of operators where the node stands
    TreadleError: a node that does not fit the operator's schema, and one for which ONNX defines no body.
    """
    body = FunctionProto()
    depends = schema.has_context_dependent_function
    body.ParseFromString(_context_dependent(node, schema, opsets) if depends else _plain(schema))
    given = {a.name: a for a in node.proto.attribute}
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    _substitute(body.node, defaults | given)
    return body


def called_body(node: Node, function: FunctionProto) -> FunctionProto:
    """The body of a function of the model for a node, every attribute that it refers to replaced by its value.

    TreadleError for an attribute that the function does not have.
    """
    body = FunctionProto()
    body.CopyFrom(function)
    node.ignore(*function.attribute, *(a.name for a in function.attribute_proto))
    node.check_attributes()
    _substitute(body.node, {a.name: a for a in node.proto.attribute})
    return body


def defined_by_functions(supported: Iterable[str]) -> list[str]:
    """The operators whose newest version has a body of supported operators only; of other domains than ONNX's own with
    the domain before the name.

    Bodies that depend on the node's types are taken to be such.
    """
    known = set(supported)
    bodies = [
        s
        for s in map(_schema, defs.get_all_schemas())
        if find_schema(s.name, s.domain, s.since_version) and _fits(s, known)
    ]
    names = [f"{s.domain}.{s.name}" if s.domain else s.name for s in bodies]
    return sorted(set(names) - known)


def _fits(schema: Schema, known: set[str]) -> bool:
    return not schema.has_function or all(node.op_type in known for node in schema.function_body.node)


def _plain(schema: Schema) -> bytes:
    return schema.function_body.SerializeToString()


def _context_dependent(node: Node, schema: Schema, opsets: Mapping[str, int]) -> bytes:
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.opset]
    types = [b"" if x is None else _type_proto(x.type).SerializeToString() for x in node.inputs]
    context = checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = dict(opsets)
    try:
        # The builder of a body is native code that trusts the number of operands and the types of attributes.
        checker.check_node(node.proto, context)
        body = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=node.opset), node.proto.SerializeToString(), types
        )
    except (checker.ValidationError, RuntimeError, ValueError) as error:
        raise node.error(f"ONNX defines no body for the node: {error}", "a node that fits the operator") from error
    if not body:
        raise node.error("ONNX defines no body for the node's attributes and types", "a node that fits the operator")
    return body


def _type_proto(type: TensorType) -> TypeProto:
    proto = TypeProto()
    proto.tensor_type.elem_type = _ELEM_TYPES.get(numpy_dtype(type.get_element_type()), TensorProto.UNDEFINED)
    proto.tensor_type.shape.SetInParent()
    for extent in type.get_shape():
        proto.tensor_type.shape.dim.add().dim_value = extent
    return proto


def _substitute(nodes: Sequence[NodeProto], attributes: Mapping[str, AttributeProto]) -> None:
    """Replaces references to the function's attributes, in place; one without a value is left out."""
    for node in nodes:
        for position in reversed(range(len(node.attribute))):
            attribute = node.attribute[position]
            if attribute.ref_attr_name:
                _replace(node, position, attributes.get(attribute.ref_attr_name))
        for graph in graphs_of(node):
            _substitute(graph.node, attributes)


def _replace(node: NodeProto, position: int, value: AttributeProto | None) -> None:
    name = node.attribute[position].name
    if value is None:
        del node.attribute[position]
        return
    node.attribute[position].CopyFrom(value)
    node.attribute[position].name = name


# Functions that loops and branches call, while they are written.


class FoundInBody(TreadleError):
    """A loop or a branch finds extents that depend on data."""

    def __init__(self, where: str):
        super().__init__("an extent in the body depends on data", where, "extents in it that a caller chooses")


class IteratedValue(ValueNeeded):
    """A loop's body needs the value of what each iteration has another one of: its counter, its state, its slices."""


class FunctionBody:
    """A block with a builder of its own.

    given:    tensors that it has arguments like, with their types and extents
    captures: the tensors of the names around it, as its own: what is known is known here, too, the others become
        arguments behind those
    """

    def __init__(
        self, given: Sequence[Tensor], around: MutableMapping[str, Tensor], where: str, location: LocationAttr
    ) -> None:
        self._block = Block(arg_types=[each.type for each in given])
        self._where, self._given = where, len(given)
        self.builder = GraphBuilder(self._block)
        self.builder.location = location
        self.arguments = [
            Tensor(each.type, None, argument, None, each.extents)
            for each, argument in zip(given, self._block.args, strict=True)
        ]
        self.captures = _Captures(around, self._block)

    def outside(self, error: ValueNeeded) -> ValueNeeded:
        """An error of this body as one of what is around it: of the tensors that it captures."""
        reached = arguments_of(error.tensors)
        kind = ValueNeeded if reached.isdisjoint(self._block.args[: self._given]) else IteratedValue
        tensors = [outer for argument, outer in self.captures.outer.items() if argument in reached]
        return kind(error.message, error.where, error.accepted, *tensors)

    def function(self, name: str, results: Sequence[Tensor], around: GraphBuilder) -> tuple[FuncOp, list[Tensor]]:
        """Ends it: the function, and what its further arguments are of the tensors around it, extents among them."""
        values = [self.builder.value(tensor) for tensor in results]
        if self.builder.found.counts:
            raise FoundInBody(self._where)
        end_block(self._block, values)
        outer = dict(self.captures.outer)
        for expression, argument in self.builder.extents.items():
            if argument.first_use is not None:
                outer[argument] = around.extent(Extent(expression))
        for argument in list(self._block.args[self._given :]):
            if argument.first_use is None:
                self._block.erase_arg(argument)
        captured = [outer[argument] for argument in self._block.args[self._given :]]
        return _function(name, self._block, values), captured


def end_block(block: Block, results: Sequence[SSAValue]) -> None:
    """Writes what a block gives; operators that it does not need are erased."""
    block.add_op(ReturnOp(*results))
    erase_dead(block)


def function_of(name: str, block: Block, read: Sequence[SSAValue]) -> FuncOp:
    """A function of a block without arguments, which reads values of the block around it: these become its
    arguments."""
    for value in read:
        argument = block.insert_arg(value.type, len(block.args))
        argument.name_hint = value.name_hint
        for use in [use for use in value.uses if _is_inside(use.operation, block)]:
            use.operation.operands[use.index] = argument
    assert isinstance(block.last_op, ReturnOp)
    return _function(name, block, list(block.last_op.operands))


def values_read(block: Block) -> list[SSAValue]:
    """What the operations of a block read of the blocks around it."""
    read = (operand for op in block.walk() for operand in op.operands)
    return list(dict.fromkeys(value for value in read if not _is_of(value, block)))


def arguments_of(tensors: Iterable[Tensor]) -> set[SSAValue]:
    """The arguments of the block that tensors are computed from."""
    pending, seen = [x.ssa for x in tensors if x.ssa is not None], set[SSAValue]()
    found = set[SSAValue]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, Operation):
            pending += value.owner.operands
        else:
            found.add(value)
    return found


def _function(name: str, block: Block, values: Sequence[SSAValue]) -> FuncOp:
    types = FunctionType.from_lists(block.arg_types, [value.type for value in values])
    return FuncOp(name, types, Region(block), StringAttr("private"))


def _is_inside(op: Operation, block: Block) -> bool:
    return op.parent is block or (op.parent_op() is not None and _is_inside(op.parent_op(), block))  # pyright: ignore


def _is_of(value: SSAValue, block: Block) -> bool:
    owner = value.owner
    return _is_inside(owner, block) if isinstance(owner, Operation) else owner is block


class Knowing(dict[str, Tensor]):
    """The tensors of the names around a block: what is known is written in it anew where it is read."""

    def __init__(self, around: MutableMapping[str, Tensor]) -> None:
        super().__init__()
        self._around = around

    def __missing__(self, name: str) -> Tensor:
        outer = self._around[name]
        self[name] = outer if outer.array is None and outer.elements is None else _known(outer)
        return self[name]


class _Captures(dict[str, Tensor]):
    """The tensors of a body by the names around it, made when they are first read.

    outer: the tensors around it that its arguments are
    """

    def __init__(self, around: MutableMapping[str, Tensor], block: Block) -> None:
        super().__init__()
        self._around, self._block = around, block
        self._made: dict[int, Tensor] = {}
        self.outer: dict[SSAValue, Tensor] = {}

    def __missing__(self, name: str) -> Tensor:
        outer = self._around[name]
        known = self._made.get(id(outer))
        if known is None:
            known = self._made[id(outer)] = self._captured(outer)
        self[name] = known
        return known

    def _captured(self, outer: Tensor) -> Tensor:
        if outer.array is not None or outer.elements is not None:
            return _known(outer)
        if 0 in outer.type.get_shape():
            array = np.empty(outer.type.get_shape(), outer.dtype)
            return Tensor(outer.type, array, None, outer.location, outer.extents)
        argument = self._block.insert_arg(outer.type, len(self._block.args))
        assert outer.ssa is not None
        argument.name_hint = outer.ssa.name_hint
        self.outer[argument] = outer
        return Tensor(outer.type, None, argument, None, outer.extents)


def _known(outer: Tensor) -> Tensor:
    return Tensor(outer.type, outer.array, None, outer.location, outer.extents, outer.elements)


# The registry of converters, by operator and version.

MAX_OPSET = 28
"""The newest version of ONNX's operators whose changes the converters know."""

Converter = Callable[[Node, GraphBuilder], Tensor | Sequence[Tensor] | None]
C = TypeVar("C", bound=Converter)


@dataclass(frozen=True)
class _Entry:
    since: int
    convert: Converter


_REGISTRY: dict[tuple[str, str], list[_Entry]] = {}
"""Versions by domain and name; ONNX's own domain is ''."""


def converts(*op_types: str, since: int = 1, domain: str = "") -> Callable[[C], C]:
    """Registers a converter for operators as they are from opset `since` up to the next registered version.

    domain: that of the operators, by default ONNX's own

    A converter gives the outputs in order; trailing ones may be left out if nothing uses them. One that gives None, and
    has written nothing, leaves the node to the body that ONNX defines it with. TreadleError for an operator that has a
    converter from that version on.
    """

    def register(function: C) -> C:
        for op_type in op_types:
            entries = _REGISTRY.setdefault((domain, op_type), [])
            if any(entry.since == since for entry in entries):
                message = f"there is a converter of {f'{domain}.' if domain else ''}{op_type} since opset {since}"
                raise TreadleError(message, f"converter {function.__name__}", "another operator, domain or version")
            entries.append(_Entry(since, function))
            entries.sort(key=lambda entry: entry.since)
            note_added(f"{domain}.{op_type} since {since}", function)
        return function

    return register


def is_converter(function: object) -> bool:
    """Whether a function converts some operator."""
    return any(entry.convert is function for entries in _REGISTRY.values() for entry in entries)


def supported_operators() -> list[str]:
    """Names of the operators that have a converter, or a body of others that have one; of other domains than ONNX's own
    with the domain before the name."""
    return sorted([*_converted(), *functions_expanded()])


def functions_expanded() -> list[str]:
    """Names of the operators that are imported by the bodies that ONNX defines them with."""
    return defined_by_functions(_converted())


def _converted() -> list[str]:
    return [f"{domain}.{name}" if domain else name for domain, name in _REGISTRY]


def find_conversion(op_type: str, domain: str, opset: int, where: str) -> Converter | Schema:
    """The converter for an operator, or the schema that defines it by others.

    TreadleError if there is neither for it, its domain or its version.
    """
    own = domain in ("", "ai.onnx")
    entries = _REGISTRY.get(("" if own else domain, op_type))
    if entries is None:
        schema = find_schema(op_type, domain, opset)
        if schema is not None:
            return schema
        if not own and all(known != domain for known, _ in _REGISTRY):
            message = f"operators of domain '{domain}' are not supported"
            raise TreadleError(message, where, "operators of ONNX's own domain, or a plug-in with converters for it")
        name = op_type if own else f"{domain}.{op_type}"
        raise TreadleError(f"operator {name} is not supported", where, _accepted(name))
    if not own:
        return entries[-1].convert
    if opset > MAX_OPSET or opset < entries[0].since:
        message = f"{op_type} of opset {opset} is not supported"
        raise TreadleError(message, where, f"{op_type} of opset {entries[0].since} to {MAX_OPSET}")
    return next(entry.convert for entry in reversed(entries) if entry.since <= opset)


def _accepted(op_type: str) -> str:
    """Operators of similar names; all of them would fill a screen, once for each node."""
    operators = supported_operators()
    similar = get_close_matches(op_type, operators, n=3)
    others = f"{', '.join(similar)}, and " if similar else ""
    return f"{others}{len(operators) - len(similar)} other operators (`treadle check --operators` lists them)"
