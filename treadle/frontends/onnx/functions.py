"""The definitions that ONNX gives operators by means of others: the bodies of its functions.

An operator without a converter is imported by the nodes of its body, where it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, checker, defs
from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import DTYPES

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


__all__ = ["Schema", "called_body", "defined_by_functions", "find_schema", "function_body"]
