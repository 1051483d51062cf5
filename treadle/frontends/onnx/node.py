"""A node as its converter sees it: inputs as tensors, typed attributes, errors that name the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from treadle.dialects.graph.dtypes import check_rank
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, bounds_of
from treadle.frontends.common.result_extents import symbols_in
from treadle.frontends.common.samples import is_whole, whole
from treadle.frontends.onnx.tensor_data import Array, ExternalFiles, to_array

MAX_BYTES = 2 << 30
"""The largest size of all constants that a model's nodes make; a model file cannot be larger either."""

_KINDS = {
    AttributeProto.INT: "i",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "f",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "s",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
}


@dataclass
class Bytes:
    """A sum of sizes."""

    total: int = 0

    def add(self, size: int) -> None:
        self.total += size


class ValueNeeded(TreadleError):
    """A value has to be known at compile time, and depends on the model's input data.

    tensors: what it is computed from, of the graph or the function that is being written
    inputs:  names of the inputs of the model that these are computed from
    """

    inputs: frozenset[str] = frozenset()

    def __init__(self, message: str, where: str | None, accepted: str | None, *tensors: Tensor):
        super().__init__(message, where, accepted)
        self.tensors = tensors


@dataclass(frozen=True)
class Outlined:
    """A function that a loop or a branch calls.

    results:  of its own operators, for their types and what is known of them
    captured: what its last arguments are of the tensors around it
    """

    function: FuncOp
    results: Sequence[Tensor]
    captured: Sequence[Tensor]

    @property
    def name(self) -> str:
        return self.function.sym_name.data


@dataclass(frozen=True)
class Aside:
    """What a graph becomes, in a block that reads values of the block around it.

    results: the graph's outputs
    finds:   whether it has extents that depend on data
    """

    block: Block
    results: Sequence[Tensor]
    finds: bool


@dataclass
class Node:
    """One node during its conversion.

    inputs: its operands in order, None for one that was left out
    used:   for each output, whether anything reads it
    opset:  version of ONNX's operators that the model asks for
    where:  `node 'name' (OpType, opset N)`
    files:  where its tensors' external data is read
    made:   the bytes of the constants that the model's nodes made so far
    enter:  the outputs of a graph in one of its attributes, for tensors as the graph's inputs
    outline: a function of its own, by a word for its name, tensors that it has arguments like, and what writes its
        results for these arguments
    aside:  a graph in one of its attributes, converted beside the block that is being written
    close:  makes a function of what was converted aside
    inside: whether it is a node of a function, or of a graph in an attribute
    """

    proto: NodeProto
    inputs: Sequence[Tensor | None]
    used: Sequence[bool]
    opset: int
    where: str
    files: ExternalFiles = field(default_factory=lambda: ExternalFiles(None))
    made: Bytes = field(default_factory=Bytes)
    enter: Callable[[GraphProto, Sequence[Tensor]], list[Tensor]] | None = None
    outline: Outline | None = None
    aside: Callable[[GraphProto], Aside] | None = None
    close: Close | None = None
    inside: bool = False
    _read: set[str] = field(default_factory=set[str])

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    def of(self, *inputs: Tensor | None) -> Node:
        """The node with other inputs; attributes that either reads are read."""
        return replace(self, inputs=inputs)

    def error(self, message: str, accepted: str | Iterable[object] | None = None) -> TreadleError:
        return TreadleError(message, self.where, accepted)

    def __len__(self) -> int:
        return len(self.inputs)

    def optional(self, index: int) -> Tensor | None:
        """Input `index`, or None if it was left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def input(self, index: int = 0) -> Tensor:
        tensor = self.optional(index)
        if tensor is None:
            raise self.error(f"input {index} is missing", f"a tensor as input {index}")
        return tensor

    def all_inputs(self) -> list[Tensor]:
        """Every input of a variadic operator."""
        if not self.inputs:
            raise self.error("the node has no input", "at least one input")
        return [self.input(n) for n in range(len(self.inputs))]

    def known(self, index: int, what: str) -> Array:
        """The elements of an input that has to be known at compile time."""
        tensor = self.input(index)
        changes = tensor.elements is not None or tensor.numbers is not None
        if changes or (tensor.array is not None and tensor.extents is not None):
            message = f"{what} (input '{self.proto.input[index]}') depends on symbolic extents"
            raise self.error(message, "static extents of what it is computed from")
        if tensor.array is None:
            message = f"{what} (input '{self.proto.input[index]}') depends on the model's input data"
            raise ValueNeeded(
                message, self.where, f"{what} that is a constant or follows from the inputs' shapes", tensor
            )
        return tensor.array

    def known_ints(self, index: int, what: str) -> list[int]:
        """As `known`, flattened to integers, of which some may be extents that change from call to call."""
        elements = self.input(index).elements
        if elements is not None:
            return symbols_in(elements)
        array = self.known(index, what)
        if array.dtype.kind not in "iu":
            raise self.error(f"{what} has elements of {array.dtype}", "int64")
        return [int(v) for v in array.reshape(-1)]

    def known_scalar(self, index: int, what: str) -> int | float:
        """As `known`, of one element: a Python number, or an extent that changes from call to call."""
        elements, numbers = self.input(index).elements, self.input(index).numbers
        if elements is not None and elements.size == 1:
            return elements.item()
        if numbers is not None and numbers.size == 1 and is_whole(numbers.item()):
            extent = whole(numbers.item())
            if extent is not None:
                return extent
        array = self.known(index, what)
        if array.size != 1:
            raise self.error(f"{what} has {array.size} elements", "one element")
        return cast("int | float", array.reshape(-1)[0].item())

    def known_int(self, index: int, what: str) -> int:
        """As `known_scalar`, a whole number."""
        value = self.known_scalar(index, what)
        if isinstance(value, int | Extent):
            return value
        if not value.is_integer():
            raise self.error(f"{what} is {value}", "a whole number")
        return int(value)

    def only_output(self, index: int = 0) -> None:
        """TreadleError if an output after `index` is read."""
        for n, used in enumerate(self.used):
            if used and n > index:
                raise self.error(f"output {n} ('{self.proto.output[n]}') is used", f"only output {index} being used")

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """An axis counted from the front; negative ones count from the end."""
        if not -rank <= value < rank:
            raise self.error(f"{what} {value} of a tensor of rank {rank}", f"{-rank} to {rank - 1}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> list[int]:
        axes = [self.axis(v, rank) for v in values]
        if len(set(axes)) < len(axes):
            raise self.error(f"axes {list(values)} name one twice", "each axis once")
        return axes

    def reserve(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        """Counts a constant of this shape; TreadleError if it is too large together with those that the model's nodes
        made so far."""
        self.check_volume(shape, dtype)
        self.made.add(prod(bounds_of(shape)) * dtype.itemsize)
        if self.made.total > MAX_BYTES:
            message = f"with one of shape {tuple(shape)}, the constants that nodes make take {self.made.total} bytes"
            raise self.error(message, f"at most {MAX_BYTES} bytes")

    def check_volume(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        """TreadleError if an array of this shape is too large to be made temporarily."""
        if any(extent < 0 for extent in shape):
            raise self.error(f"shape {tuple(shape)} has a negative extent", "extents from 0 upwards")
        check_rank(shape)
        if prod(bounds_of(shape)) * dtype.itemsize > MAX_BYTES:
            message = f"a constant of shape {tuple(shape)} takes too much memory"
            raise self.error(message, f"at most {MAX_BYTES} bytes")

    def ignore(self, *names: str) -> None:
        """Attributes that do not change what inference computes."""
        self._read.update(names)

    def has(self, name: str) -> bool:
        return any(a.name == name for a in self.proto.attribute)

    def _attribute(self, name: str, kind: int) -> object | None:
        self._read.add(name)
        for attribute in self.proto.attribute:
            if attribute.name != name:
                continue
            if attribute.type != kind:
                has, wants = (AttributeProto.AttributeType.Name(k) for k in (attribute.type, kind))  # pyright: ignore
                raise self.error(f"attribute '{name}' has type {has}", wants)
            return cast("object", getattr(attribute, _KINDS[kind]))  # pyright: ignore[reportArgumentType]
        return None

    def int(self, name: str, default: int) -> int:
        value = self._attribute(name, AttributeProto.INT)
        return default if value is None else cast("int", value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.int(name, default))

    def float(self, name: str, default: float) -> float:
        """A float attribute, a float32 in ONNX; so is its default, whatever the type of the tensors."""
        value = self._attribute(name, AttributeProto.FLOAT)
        return float(np.float32(default)) if value is None else cast("float", value)

    def optional_float(self, name: str) -> float | None:
        return cast("float | None", self._attribute(name, AttributeProto.FLOAT))

    def string(self, name: str, default: str, accepted: Sequence[str]) -> str:
        """A string attribute, one of `accepted`."""
        value = self._attribute(name, AttributeProto.STRING)
        text = default if value is None else cast("bytes", value).decode("utf-8", "replace")
        if text not in accepted:
            raise self.error(f"attribute '{name}' is {text!r}", accepted)
        return text

    def text(self, name: str) -> str:
        """A string attribute that has to be there."""
        value = self._attribute(name, AttributeProto.STRING)
        if value is None:
            raise self.error(f"attribute '{name}' is missing", "a string")
        return cast("bytes", value).decode("utf-8", "replace")

    def strings(self, name: str) -> list[str] | None:
        value = self._attribute(name, AttributeProto.STRINGS)
        return None if value is None else [v.decode("utf-8", "replace") for v in cast("Sequence[bytes]", value)]

    def ints(self, name: str) -> list[int] | None:
        value = self._attribute(name, AttributeProto.INTS)
        return None if value is None else list(cast("Sequence[int]", value))

    def floats(self, name: str) -> list[float] | None:
        value = self._attribute(name, AttributeProto.FLOATS)
        return None if value is None else list(cast("Sequence[float]", value))

    def ints_of_length(self, name: str, length: int, default: int) -> list[int]:
        """A list attribute with one entry for each of `length` dimensions."""
        value = self.ints(name)
        if value is None:
            return [default] * length
        if len(value) != length:
            raise self.error(f"attribute '{name}' is {value}", f"{length} entries")
        return value

    def tensor(self, name: str) -> Array | None:
        value = self._attribute(name, AttributeProto.TENSOR)
        return None if value is None else to_array(cast("TensorProto", value), self.files, self.where)

    def graph(self, name: str) -> GraphProto:
        value = self._attribute(name, AttributeProto.GRAPH)
        if value is None:
            raise self.error(f"attribute '{name}' is missing", "a graph")
        return cast("GraphProto", value)

    def run(self, graph: GraphProto, *inputs: Tensor) -> list[Tensor]:
        """The outputs of a graph in one of the node's attributes, whose operators are written here."""
        assert self.enter is not None
        return self.enter(graph, inputs)

    def function(self, word: str, given: Sequence[Tensor], write: Write) -> Outlined:
        """A function of its own, whose name has `word`; `write` gives its results for arguments like `given`.

        What it reads beside them is captured. TreadleError where it finds extents that depend on data."""
        assert self.outline is not None
        return self.outline(word, given, write)

    def beside(self, graph: GraphProto) -> Aside:
        """The operators of a graph in one of the node's attributes, in a block of their own."""
        assert self.aside is not None
        return self.aside(graph)

    def branches(self, sides: Mapping[str, Aside]) -> tuple[list[str], list[SSAValue]]:
        """Functions of what was converted aside, by words for their names: their names, and what all of them read."""
        assert self.close is not None
        return self.close(sides)

    def check_attributes(self) -> None:
        """TreadleError if the node has an attribute that its converter did not look at."""
        for attribute in self.proto.attribute:
            if attribute.name not in self._read:
                raise self.error(f"attribute '{attribute.name}' is not supported", self._read or "no attribute")


Write = Callable[[Node, GraphBuilder, Sequence[Tensor]], Sequence[Tensor]]
"""The results of a function, whose operators are written for its arguments."""
Outline = Callable[[str, Sequence[Tensor], Write], Outlined]
Close = Callable[[Mapping[str, Aside]], tuple[list[str], list[SSAValue]]]

__all__ = ["MAX_BYTES", "Aside", "Bytes", "Node", "Outlined", "ValueNeeded", "Write"]
