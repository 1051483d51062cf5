"""Whether a model can be imported, node by node, without stopping at the first obstacle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

from onnx import NodeProto
from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue

from treadle.artifact.store import StoreError
from treadle.dialects.graph import BinaryOp, ConstantOp, Operator, UnaryOp
from treadle.dialects.graph.dtypes import byte_width, element_type
from treadle.dialects.graph.operation_count import count_operations
from treadle.errors import TreadleError
from treadle.frontends.common.builder import Tensor
from treadle.frontends.onnx.converters import find_conversion
from treadle.frontends.onnx.importer import GraphWalk, live_nodes
from treadle.frontends.onnx.inputs import Shapes
from treadle.frontends.onnx.loader import LoadedModel, load_model, node_context, node_label, opset_versions
from treadle.frontends.onnx.tensor_data import DTYPES
from treadle.shapes.constants import Constants

Verdict = Literal["supported", "unsupported", "unknown"]


@dataclass(frozen=True)
class NodeReport:
    """The verdict on one node.

    verdict: `unknown` if it has a converter, but the shape of an operand depends on an unsupported node
    reason:  why it is not supported, and what would be; None if it is
    becomes: the graph operators that stand for it, each once, in their order; none where its results are known
    operations: of arithmetic on elements, by the definitions of these operators
    bytes:   of their operands and results, each operator by itself
    open:    its outputs with extents that are not numbers: those of a range, or that depend on data
    """

    name: str
    op_type: str
    verdict: Verdict
    reason: str | None = None
    becomes: tuple[str, ...] = ()
    operations: int = 0
    bytes: int = 0
    open: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        return self.verdict == "supported"


def check_model(
    path_or_bytes: str | Path | bytes, shapes: Shapes | None = None, constants: Constants | None = None
) -> list[NodeReport]:
    """A report on every node that the outputs depend on, in order.

    After an unsupported node the walk goes on with the shapes that the file declares for its outputs.
    TreadleError: a file that cannot be read, shapes or constants that do not fit.
    """
    model = load_model(path_or_bytes)
    walk = GraphWalk.start(model, shapes or {}, constants)
    declared = _declared_types(model)
    reports: list[NodeReport] = []
    for position in walk.live:
        report = _check_node(walk, position)
        reports.append(report)
        if report.supported:
            continue
        _assume(walk, model.graph.node[position].output, declared)
    return reports


def look_up_nodes(path_or_bytes: str | Path | bytes) -> list[NodeReport]:
    """A report on every node that needs no shapes: whether there is a converter for its operator and version."""
    model = load_model(path_or_bytes)
    outputs = [output.name for output in model.graph.output]
    return [_look_up(model, position) for position in live_nodes(model.graph.node, outputs)]


def _look_up(model: LoadedModel, position: int) -> NodeReport:
    proto = model.graph.node[position]
    name = node_label(proto, position)
    try:
        _find(model, proto, model.opsets, node_context(proto, position, model.opset))
    except TreadleError as error:
        return NodeReport(name, proto.op_type, "unsupported", str(error))
    return NodeReport(name, proto.op_type, "supported")


def _find(model: LoadedModel, proto: NodeProto, opsets: Mapping[str, int], where: str) -> None:
    """TreadleError where a node, or one of the function that it calls, has no converter."""
    function = model.function(proto)
    if function is None:
        find_conversion(proto.op_type, proto.domain, opsets.get("", model.opset), where)
        return
    inner = {**model.opsets, **opset_versions(function.opset_import)}
    for position, each in enumerate(function.node):
        _find(model, each, inner, f"{where}: {node_context(each, position, inner[''])}")


def _check_node(walk: GraphWalk, position: int) -> NodeReport:
    proto: NodeProto = walk.model.graph.node[position]
    name = node_label(proto, position)
    unknown = [operand for operand in walk.operands(position) if operand not in walk.tensors]
    try:
        if not unknown:
            last = walk.block.last_op
            walk.convert(position)
            made = [each for each in proto.output if each in walk.tensors]
            changing = tuple(each for each in made if walk.tensors[each].extents is not None)
            operators = _operators(walk.block.first_op if last is None else last.next_op)
            return replace(_supported(name, proto.op_type, operators), open=changing)
        _find(walk.model, proto, walk.model.opsets, walk.where(position))
    except StoreError:  # of a full disk, which says nothing of the node
        raise
    except TreadleError as error:
        return NodeReport(name, proto.op_type, "unsupported", str(error))
    reason = f"{walk.where(position)}: the shape of '{unknown[0]}' is unknown, since its node is not supported"
    return NodeReport(name, proto.op_type, "unknown", reason)


def _operators(first: Operation | None) -> list[Operator]:
    """The operators from one on; constants are none."""
    found: list[Operator] = []
    while first is not None:
        if isinstance(first, Operator) and not isinstance(first, ConstantOp):
            found.append(first)
        first = first.next_op
    return found


def _supported(name: str, op_type: str, operators: Sequence[Operator]) -> NodeReport:
    values = [value for op in operators for value in (*op.operands, op.result)]
    kinds = dict.fromkeys(_kind(op) for op in operators)
    operations, size = sum(map(count_operations, operators)), sum(map(_size, values))
    return NodeReport(name, op_type, "supported", None, tuple(kinds), operations, size)


def _kind(op: Operator) -> str:
    """An operator's name, or the function that it is of elements."""
    kind = op.properties.get("kind")
    return kind.data if isinstance(kind, StringAttr) and isinstance(op, UnaryOp | BinaryOp) else op.name.split(".")[1]


def _size(value: SSAValue) -> int:
    type = value.type
    assert isinstance(type, TensorType)
    return prod(type.get_shape()) * byte_width(type.get_element_type())


def _assume(walk: GraphWalk, outputs: Iterable[str], declared: dict[str, TensorType]) -> None:
    """Replaces the outputs of a node that failed by values of their declared types, if they have any."""
    for name in outputs:
        if name in declared and name not in walk.tensors:
            walk.tensors[name] = Tensor(declared[name], None, Block(arg_types=[declared[name]]).args[0])


def _declared_types(model: LoadedModel) -> dict[str, TensorType]:
    """The static types that the file itself declares for values inside the graph.

    ONNX's own shape inference would find more, but is native code that malformed models crash.
    """
    types: dict[str, TensorType] = {}
    for entry in [*model.graph.value_info, *model.graph.output]:
        tensor = entry.type.tensor_type
        static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
        extents = [d.dim_value for d in tensor.shape.dim]
        if static and min(extents, default=0) >= 0 and tensor.elem_type in DTYPES:
            types[entry.name] = TensorType(element_type(DTYPES[tensor.elem_type]), extents)
    return types


__all__ = ["NodeReport", "Verdict", "check_model", "look_up_nodes"]
