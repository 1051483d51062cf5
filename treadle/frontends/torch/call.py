"""A node as its converter sees it: its arguments by name, types, errors; and the registry of converters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import torch
from torch import fx
from xdsl.dialects.builtin import NameLoc, TensorType
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import check_rank, element_type
from treadle.dialects.location import node_location
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Array, Extent, Symbolic, bounds_of
from treadle.frontends.torch.ranges import Ranges
from treadle.support.extensions import note_added

# PyTorch's tensors and types as NumPy's.

DTYPES: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
"""The element types that are supported."""
_BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
"""Of types that NumPy itself does not have, one of the same size that it has."""

_OF_TORCH = {dtype: own for own, dtype in DTYPES.items()}


def dtype_of(dtype: torch.dtype, where: str) -> np.dtype[np.generic]:
    """NumPy's type; TreadleError for one that tensors of Treadle do not hold."""
    if dtype not in DTYPES:
        raise TreadleError(f"element type {dtype} is not supported", where, ", ".join(map(str, DTYPES)))
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor, where: str) -> Array:
    """A tensor as an array that shares its memory, whatever its strides are.

    TreadleError: an unsupported element type or layout, and a tensor that is not in the CPU's memory.
    """
    dtype = dtype_of(tensor.dtype, where)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TreadleError(f"a tensor on {tensor.device} of layout {tensor.layout}", where, "dense tensors on the CPU")
    plain = tensor.detach().resolve_neg()
    bits = _BITS.get(tensor.dtype)
    return plain.numpy() if bits is None else plain.view(bits).numpy().view(dtype)


def tensor_of(array: Array) -> torch.Tensor:
    """An array as a tensor that shares its memory, if that may be written."""
    own = _OF_TORCH[array.dtype]
    writeable = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    bits = _BITS.get(own)
    return torch.from_numpy(writeable) if bits is None else torch.from_numpy(writeable.view(DTYPES[bits])).view(own)


# A node as its converter sees it: its arguments by name, tensors among them, and errors that name the node.

MAX_BYTES = 2 << 30
"""The largest constant that the conversion of a node makes."""

_TORCH_FOLDER = str(Path(torch.__file__).parent)

Value = Any
"""An argument: a tensor, a number, a type, a string, a list of these, or None."""


@dataclass(frozen=True)
class Call:
    """One call of an operator during its conversion.

    arguments: the operands and attributes by the names of the operator's schema, defaults included
    ranges:    what PyTorch's symbols are
    """

    node: fx.Node
    arguments: Mapping[str, Value]
    ranges: Ranges = field(default_factory=Ranges)

    @property
    def where(self) -> str:
        return place(self.node)

    @property
    def name(self) -> str:
        """The operator without its namespace, such as `add.Tensor`."""
        return str(self.node.target).partition(".")[2]

    def error(self, message: str, accepted: str | None = None) -> TreadleError:
        return TreadleError(message, self.where, accepted)

    def value(self, name: str) -> Value:
        """An argument as it is."""
        return self.arguments[name]

    def optional(self, name: str) -> Tensor | None:
        """A tensor that may be left out."""
        value = self.arguments.get(name)
        if value is None or isinstance(value, Tensor):
            return value
        raise self.error(f"argument '{name}' is {value!r}", "a tensor")

    def tensor(self, name: str = "self") -> Tensor:
        value = self.optional(name)
        if value is None:
            raise self.error(f"argument '{name}' is missing", "a tensor")
        return value

    def fake(self, name: str) -> Any:
        """A tensor as PyTorch knows it while exporting: with its strides, without elements."""
        position = list(self.arguments).index(name)
        return cast("fx.Node", self.node.args[position]).meta["val"]

    def tensors(self, name: str) -> list[Tensor]:
        return [cast("Tensor", each) for each in self.arguments[name]]

    def optional_extent(self, name: str) -> Symbolic | None:
        """A number that may be left out, and may change from call to call."""
        return None if self.arguments[name] is None else self.extent(name)

    def int(self, name: str) -> int:
        value = self.arguments[name]
        if not isinstance(value, int):
            raise self.error(f"argument '{name}' is {value!r}", "a number that is known while exporting")
        return value

    def extent(self, name: str) -> Symbolic:
        """A number, which may change from call to call."""
        value = self.arguments[name]
        return value if isinstance(value, Extent) else self.int(name)

    def extents(self, name: str) -> list[Symbolic]:
        """A list of numbers, some of which may change from call to call."""
        value = self.arguments[name]
        listed: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, Sequence) else [value]
        if not all(isinstance(each, int | Extent) for each in listed):
            raise self.error(f"argument '{name}' is {value!r}", "numbers, or extents")
        return listed

    def ints(self, name: str, length: int | None = None) -> list[int]:
        """A list of numbers; one number stands for as many as `length`."""
        value = self.arguments[name]
        listed: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, Sequence) else [value]
        if not all(isinstance(each, int) for each in listed):
            raise self.error(f"argument '{name}' is {value!r}", "numbers that are known while exporting")
        return listed * length if length is not None and len(listed) == 1 else listed

    def flag(self, name: str) -> bool:
        return bool(self.arguments[name])

    def dim(self, value: int, rank: int) -> int:
        """A dimension counted from the front; a scalar counts as a vector of one."""
        if not -max(rank, 1) <= value < max(rank, 1):
            raise self.error(f"dimension {value} of a tensor of rank {rank}", f"{-rank} to {rank - 1}")
        return value % max(rank, 1)

    def dims(self, name: str, rank: int) -> list[int]:
        """The dimensions of a reduction: none are all."""
        value = self.arguments[name]
        listed = [] if value is None else [value] if isinstance(value, int) else list(value)
        return sorted({self.dim(d, rank) for d in listed}) if listed and rank else list(range(rank))

    def meta(self, index: int = 0) -> torch.Tensor:
        """A result as PyTorch inferred it."""
        value: Any = self.node.meta["val"]
        return cast("torch.Tensor", value[index] if isinstance(value, Sequence) else value)

    @property
    def shape(self) -> tuple[Symbolic, ...]:
        """Of the first result."""
        return self.shape_of(0)

    def shape_of(self, index: int) -> tuple[Symbolic, ...]:
        """Of one of the results."""
        return self.ranges.shape(self.meta(index), self.where)

    @property
    def element(self) -> Attribute:
        """The element type of the first result."""
        return element_type(dtype_of(self.meta().dtype, self.where))

    def promoted(self, *names: str) -> Attribute:
        """The element type to which PyTorch converts operands, numbers among them.

        Source: PyTorch's documentation, "Tensor Attributes", type promotion."""
        given = [self._given(name) for name in names]
        values = [_known(value.meta["val"]) if isinstance(value, fx.Node) else cast("Any", value) for value in given]
        dtype = torch.result_type(*values) if len(values) > 1 else values[0].dtype
        return element_type(dtype_of(dtype, self.where))

    def _given(self, name: str) -> object:
        """The argument before nodes were replaced by tensors."""
        schema = cast("Any", self.node.target)._schema
        for position, argument in enumerate(schema.arguments):
            if argument.name == name:
                given = self.node.args[position] if position < len(self.node.args) else self.node.kwargs.get(name)
                return argument.default_value if given is None else given
        raise KeyError(name)

    def operand(self, name: str, g: GraphBuilder, element: Attribute) -> Tensor:
        """A tensor or a number, in an element type."""
        value = self.arguments[name]
        if isinstance(value, Tensor):
            return g.cast(value, element)
        like = Tensor(TensorType(element, []))
        if isinstance(value, Extent):
            return g.scalar(value, like)
        if not like.is_float:
            return g.constant(np.asarray(value).astype(like.dtype))
        return g.scalar(value, like)

    def reserve(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        """TreadleError if a constant of this shape is too large."""
        check_rank(shape)
        if prod(bounds_of(shape)) * dtype.itemsize > MAX_BYTES:
            raise self.error(f"a constant of shape {tuple(shape)} takes too much memory", f"at most {MAX_BYTES} bytes")


def _known(value: Any) -> Any:
    """A number that changes from call to call as one of its type."""
    return 1 if isinstance(value, torch.SymInt) else value


def source_line(node: fx.Node) -> str | None:
    """`file:line` of the innermost line outside of PyTorch that made a node, None if it is not known."""
    trace = str(node.meta.get("stack_trace") or "")
    found = [
        place for place in re.findall(r'File "([^"]+)", line (\d+)', trace) if not place[0].startswith(_TORCH_FOLDER)
    ]
    return f"{found[-1][0]}:{found[-1][1]}" if found else None


def place(node: fx.Node) -> str:
    """What errors say of a node: its name, its operator and its line."""
    line = source_line(node)
    return f"node '{node.name}' ({node.target}){'' if line is None else f' at {line}'}"


def location(node: fx.Node) -> NameLoc:
    """The location of the operations that a node becomes: its name with the line that made it, and its operator."""
    line = source_line(node)
    where = "" if line is None else f" ({Path(line).name})"
    return node_location(f"{node.name}{where}", str(node.target))


# The registry of converters, by the name of the ATen operator and its overload.

Converter = Callable[[Call, GraphBuilder], Tensor | Sequence[Tensor]]

_REGISTRY: dict[str, Converter] = {}


def converts(*operators: str) -> Callable[[Converter], Converter]:
    """Registers a converter for operators such as `aten.add.Tensor`, without their namespace, and for those of other
    libraries, with it.

    A converter gives the results in order; trailing ones may be left out, and are then not supported.
    """

    def register(function: Converter) -> Converter:
        for name in operators:
            assert name not in _REGISTRY, f"{name} is registered twice"
            _REGISTRY[name] = function
            note_added(name, function)
        return function

    return register


def find_converter(target: object) -> Converter | None:
    """The converter of a node's target, None if there is none.

    Operators of the namespace `treadle` are those of ATen under another name, by which PyTorch does not decompose them.
    """
    namespace, _, name = str(target).partition(".")
    return _REGISTRY.get(name if namespace in ("aten", "treadle") else str(target))


def supported_operators() -> list[str]:
    """Names of the operators that have a converter."""
    return sorted(name if name.count(".") == 2 else f"aten.{name}" for name in _REGISTRY)
