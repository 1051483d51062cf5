"""From an ONNX model to a module of graph operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import GraphProto, NodeProto
from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.model_nodes import ascii_text, name_hint, node_location
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters import find_converter
from treadle.frontends.onnx.inputs import Shapes, input_types
from treadle.frontends.onnx.loader import LoadedModel, load_model, node_context, node_label
from treadle.frontends.onnx.node import Bytes, Node
from treadle.frontends.onnx.tensor_data import to_array


def import_model(path_or_bytes: str | Path | bytes, shapes: Shapes | None = None) -> ModuleOp:
    """Converts a model to `func.func @main` over graph operators, every dimension static.

    path_or_bytes: an .onnx file, or its content (then without external data)
    shapes:        a shape for each input that the file leaves dynamic, for example `{"x": (1, 3, 48, 320)}`

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
    return import_loaded(load_model(path_or_bytes), shapes)


def import_loaded(model: LoadedModel, shapes: Shapes | None = None) -> ModuleOp:
    """As `import_model`, of a model that was read; `model.files` records the external data that is read."""
    walk = GraphWalk.start(model, shapes or {})
    for position in live_nodes(model.graph):
        walk.convert(position)
    return _module(model, walk)


@dataclass(eq=False)
class GraphWalk:
    """The state of a conversion: the block being written, and the tensor of each name so far."""

    model: LoadedModel
    types: dict[str, TensorType]
    block: Block
    builder: GraphBuilder
    tensors: dict[str, Tensor]
    read: frozenset[str]
    made: Bytes = field(default_factory=Bytes)

    @classmethod
    def start(cls, model: LoadedModel, shapes: Shapes) -> GraphWalk:
        """A walk that knows the model's inputs and its initialisers."""
        types = input_types(model.graph, shapes)
        block = Block(arg_types=list(types.values()))
        builder = GraphBuilder(block)
        tensors: dict[str, Tensor] = {}
        for (name, type), argument in zip(types.items(), block.args, strict=True):
            argument.name_hint = name_hint(name)
            tensors[name] = Tensor(type, None, argument)
        live = {operand for n in live_nodes(model.graph) for operand in model.graph.node[n].input}
        read = frozenset(live | {output.name for output in model.graph.output})
        for initialiser in model.graph.initializer:
            if initialiser.name in read:
                builder.location = NameLoc(ascii_text(initialiser.name), NoneAttr())
                array = to_array(initialiser, model.files, f"initialiser '{initialiser.name}'")
                tensors[initialiser.name] = builder.constant(array)
        return cls(model, types, block, builder, tensors, read)

    def where(self, position: int) -> str:
        return node_context(self.model.graph.node[position], position, self.model.opset)

    def convert(self, position: int) -> None:
        """Writes the operators of one node, whose operands were converted; TreadleError naming the node."""
        proto = self.model.graph.node[position]
        where = self.where(position)
        convert = find_converter(proto.op_type, proto.domain, self.model.opset, where)
        inputs = [self.tensors[name] if name else None for name in proto.input]
        used = [name in self.read for name in proto.output]
        node = Node(proto, inputs, used, self.model.opset, where, self.model.files, self.made)
        self.builder.location = node_location(node_label(proto, position), proto.op_type)
        try:
            results = convert(node, self.builder)
        except VerifyException as error:
            raise node.error(str(error)) from error
        node.check_attributes()
        self._define(node, [results] if isinstance(results, Tensor) else results)

    def _define(self, node: Node, results: Sequence[Tensor]) -> None:
        node.only_output(len(results) - 1)
        for name, tensor in zip(node.proto.output, results, strict=False):
            self.tensors[name] = tensor
            if tensor.ssa is not None and tensor.ssa.name_hint is None:
                tensor.ssa.name_hint = name_hint(name)


def live_nodes(graph: GraphProto) -> list[int]:
    """Positions of the nodes that the graph's outputs depend on, in order."""
    needed = {output.name for output in graph.output}
    live: list[int] = []
    for position in reversed(range(len(graph.node))):
        node: NodeProto = graph.node[position]
        if needed.isdisjoint(filter(None, node.output)):
            continue
        live.append(position)
        needed.update(filter(None, node.input))
    return live[::-1]


def _module(model: LoadedModel, walk: GraphWalk) -> ModuleOp:
    outputs = [output.name for output in model.graph.output]
    values = [walk.builder.value(walk.tensors[name]) for name in outputs]
    walk.block.add_op(ReturnOp(*values))
    _erase_dead(walk.block)
    type = FunctionType.from_lists(list(walk.types.values()), [value.type for value in values])
    func = FuncOp("main", type, Region(walk.block))
    func.attributes["input_names"] = ArrayAttr([StringAttr(name) for name in walk.types])
    func.attributes["output_names"] = ArrayAttr([StringAttr(name) for name in outputs])
    if model.metadata:
        entries = {key: _text(value) for key, value in sorted(model.metadata.items())}
        func.attributes["metadata"] = DictionaryAttr(entries)
    return ModuleOp([func])


def _text(value: str) -> StringAttr | BytesAttr:
    return StringAttr(value) if value.isascii() else BytesAttr(value.encode())


def _erase_dead(block: Block) -> None:
    """Erases operators without users, such as those whose shape alone was read."""
    for op in reversed(list(block.ops)):
        if op.results and all(result.first_use is None for result in op.results):
            op.detach()
            op.erase()


__all__ = ["GraphWalk", "import_loaded", "import_model", "live_nodes"]
