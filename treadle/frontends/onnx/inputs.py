"""The shapes of a model's inputs, from the file and from the caller, which have to agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ValueInfoProto
from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import TensorSizes, element_type, is_float_dtype
from treadle.dialects.graph.fused import Constraint, RequiredAttr, dimension
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbol, Symbolic, bound_of, bounds_of, expression_of
from treadle.frontends.onnx.tensor_data import dtype_of
from treadle.index.expr import Expr
from treadle.shapes.dim import Dim, Shapes, normalized
from treadle.shapes.dynamic import ExtentExpression

# Inputs of a model that a caller fixes to values: they are constants of the graph, and no inputs of a call.

Array = NDArray[Any]


def constant_inputs(graph: GraphProto, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The values in the types of the model's inputs; a single number also stands for an input of one element.

    TreadleError that names the input: one that the model does not have, a value of another shape than the file
    declares, and numbers that are no values of the input's type.
    """
    entries = {entry.name: entry for entry in free_inputs(graph)}
    for name in constants:
        if name not in entries:
            raise TreadleError(f"there is no input '{name}'", "constants", list(entries) or "no constants")
    return {name: _value(entries[name], array) for name, array in constants.items()}


def _value(entry: ValueInfoProto, array: Array) -> Array:
    where = f"constants['{entry.name}']"
    if entry.type.WhichOneof("value") != "tensor_type":
        raise TreadleError("the input is no tensor", where, "an input that is a tensor")
    return _of_type(_of_shape(entry, array, where), dtype_of(entry.type.tensor_type.elem_type, where), where)


def _of_shape(entry: ValueInfoProto, array: Array, where: str) -> Array:
    tensor = entry.type.tensor_type
    if not tensor.HasField("shape"):
        return array
    declared = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim]
    if array.ndim == 0 and all(extent in (1, None) for extent in declared):
        return array.reshape((1,) * len(declared))
    fits = array.ndim == len(declared) and all(
        wanted in (extent, None) for wanted, extent in zip(declared, array.shape, strict=True)
    )
    if not fits:
        shown = ", ".join(
            d.dim_param or "?" if e is None else str(e) for d, e in zip(tensor.shape.dim, declared, strict=True)
        )
        raise TreadleError(f"the value has the shape {list(array.shape)}", where, f"the shape [{shown}]")
    return array


def _of_type(array: Array, dtype: np.dtype[np.generic], where: str) -> Array:
    """The array in a type; floats are rounded to it, all other numbers have to be among its values."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    floats = is_float_dtype(dtype)
    wide = np.float64 if floats or array.dtype.kind not in "biu" else object
    given, kept = array.astype(wide), converted.astype(wide)
    wrong = np.isfinite(given) & ~np.isfinite(kept) if floats else given != kept
    if np.any(wrong):
        number = array.reshape(-1)[int(np.argmax(wrong))].item()
        raise TreadleError(f"{number} is no value of {dtype}", where, _values_of(dtype))
    return converted


def _values_of(dtype: np.dtype[np.generic]) -> str:
    if dtype == np.bool_:
        return "0 and 1"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.name)
        return f"whole numbers from {limits.min} to {limits.max}"
    return "numbers within the range of the type"


# What @main says of dimensions that change from call to call: attributes for the runtime and for
# `graph-required-regions`.
#
# - `symbols = ["batch:1..8", "w:32..2048:32"]`: what a caller chooses: name, range, and what it is a multiple of;
# - `input_extents = [["batch", "3"], ...]`: the extent of each dimension of each input;
# - `extents = ["batch", "2 * seq"]`: what the last arguments are;
# - `output_extents = [["batch", "seq", "768"], ["batch<=8, seq<=512"]]`: the extent of each dimension of each
#   result; one that merges several lists them, with the largest of each, outermost first;
# - `output_required`: the elements within those extents;
# - `found = ["found0"]`: extents that depend on data (docs/adr/0047): the last results, scalars, are their values.


def symbolic_attributes(
    symbols: Symbols, inputs: Sequence[Input], results: Sequence[Tensor], g: GraphBuilder
) -> dict[str, Attribute]:
    """The attributes, by name; `g` gets the arguments that results' extents need."""
    for part in (part for tensor in results for extent in tensor.shape for part in _parts(extent)):
        if isinstance(part, Extent) and not g.found.occur_in(expression_of(part)):
            g.extent(part)
    numbers = {expression: n for n, expression in enumerate(g.extents)}
    attributes: dict[str, Attribute] = {
        "output_extents": ArrayAttr([_texts(map(_text, tensor.shape)) for tensor in results]),
        "found": _texts(g.found.counts),
    }
    if not symbols.dims:
        return attributes
    return attributes | {
        "symbols": _texts(symbols.dims.values()),
        "input_extents": ArrayAttr([_texts(map(_input_text, each.extents)) for each in inputs]),
        "extents": _texts(g.extents),
        "output_required": ArrayAttr([_required_region(tensor.shape, numbers) for tensor in results]),
    }


def _texts(values: Iterable[object]) -> ArrayAttr[StringAttr]:
    return ArrayAttr([StringAttr(str(value)) for value in values])


def _parts(extent: Symbolic) -> tuple[Symbolic, ...]:
    return extent.parts if isinstance(extent, Extent) else (extent,)


def _input_text(extent: Symbolic) -> str:
    return extent.name if isinstance(extent, Symbol) else _text(extent)


def _text(extent: Symbolic) -> str:
    if isinstance(extent, Extent) and extent.factors:
        return ", ".join(f"{expression_of(part)}<={bound_of(part)}" for part in extent.factors)
    return str(expression_of(extent))


def _required_region(shape: Sequence[Symbolic], numbers: Mapping[Expr, int]) -> RequiredAttr:
    """The elements within the extents: of a merged dimension, positions have a digit for each factor."""
    constraints: list[Constraint] = []
    if 0 in bounds_of(shape):
        return RequiredAttr.of(constraints)
    for d, extent in enumerate(shape):
        parts, rest = _parts(extent), dimension(d)
        for n, part in reversed(list(enumerate(parts))):
            number = numbers.get(expression_of(part)) if isinstance(part, Extent) else None
            if number is not None:
                constraints.append(Constraint(rest % bound_of(part) if n else rest, number))
            rest = rest // bound_of(part)
    return RequiredAttr.of(constraints)


_RANGES = ", each a number, or a range such as 1..64"


class MissingExtents(TreadleError):
    """An input has dimensions without a value."""


@dataclass
class Symbols:
    """The dimensions that change from call to call, by name."""

    dims: dict[str, Dim] = field(default_factory=dict[str, Dim])

    def extent(self, given: int | Dim | str, where: str, known: Mapping[str, Symbolic]) -> Symbolic:
        """An extent as the importer computes with it, which a text computes from `known` ones; TreadleError for a name
        with two ranges, and for a text that is no expression of such."""
        if isinstance(given, str):
            computed = derived(given, known)
            if computed is None:
                raise TreadleError(f"{given!r} is no expression of extents", where, list(known) or "numbers and ranges")
            return computed
        if not isinstance(given, Dim):
            return given
        first = self.dims.setdefault(given.name, given)
        if first != given:
            message = f"dimension '{given.name}' is {given} here and {first} before"
            raise TreadleError(message, where, "one range for each name, or another name")
        if given.least == given.greatest:
            return given.greatest
        return Symbol(given.name, given.lower, given.upper, given.multiple)


@dataclass(frozen=True)
class Input:
    """An input of a model: its type with the largest extents, and its extents where some change from call to call."""

    type: TensorType
    extents: tuple[Symbolic, ...]


def model_inputs(
    graph: GraphProto, shapes: Shapes, constants: Collection[str] = ()
) -> tuple[dict[str, Input], Symbols]:
    """Each input that is neither initialiser nor constant, in the file's order, and the dimensions that change from
    call to call.

    A name in `shapes` is that of an input, or that of a dynamic dimension, which gets the extent in every input; so do
    the dynamic dimensions of an input whose shape is given, in the inputs whose shapes are not. A dynamic dimension
    that is called an expression of such, `past + new`, is what that gives. TreadleError: an
    unknown name in `shapes`, a shape that contradicts the file or an extent, a dimension without a value, one name for
    two ranges, an element type that is unsupported.
    """
    inputs = [entry for entry in free_inputs(graph) if entry.name not in constants]
    names, dimensions = [entry.name for entry in inputs], dynamic_dimensions(inputs)
    symbols = Symbols()
    listed = normalized(shapes)
    known: dict[str, Symbolic] = {}
    for name, shape in listed.items():
        for extent in shape:
            if isinstance(extent, Dim):
                known[extent.name] = symbols.extent(extent, f"shapes['{name}']", known)
        if name in dimensions and len(shape) == 1 and not isinstance(shape[0], str):
            known[name] = symbols.extent(shape[0], f"shapes['{name}']", known)
    given = {
        name: tuple(symbols.extent(extent, f"shapes['{name}']", known) for extent in shape)
        for name, shape in listed.items()
    }
    extents: dict[str, Symbolic] = {}
    for name, shape in given.items():
        if name in names:
            continue
        if name in constants:
            raise TreadleError(f"input '{name}' is a constant, which has its own shape", "shapes", "no shape for it")
        if name not in dimensions:
            raise TreadleError(f"'{name}' is no input and no dynamic dimension", "shapes", [*names, *dimensions])
        if len(shape) != 1:
            raise TreadleError(f"'{name}' is a dimension, and {shape} is a shape", "shapes", "one extent")
        extents[name] = shape[0]
    for entry in inputs:
        for dim, extent in zip(entry.type.tensor_type.shape.dim, given.get(entry.name, ()), strict=False):
            if not dim.dim_param or not isinstance(extent, Extent):
                continue
            if extents.setdefault(dim.dim_param, extent) != extent:
                message = f"dimension '{dim.dim_param}' is {extents[dim.dim_param]} elsewhere and {extent} here"
                raise TreadleError(message, f"input '{entry.name}'", "one extent for each dimension of the model")
    found = {entry.name: _input(entry, given.get(entry.name), extents) for entry in inputs}
    sizes = TensorSizes()
    for name, each in found.items():
        try:
            sizes.add(each.type)
        except VerifyException as error:
            raise TreadleError(str(error), f"input '{name}'") from error
    return found, symbols


def free_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that are no initialisers: old files list those, too."""
    initialisers = {entry.name for entry in graph.initializer}
    return [entry for entry in graph.input if entry.name not in initialisers]


def dynamic_dimensions(inputs: Iterable[ValueInfoProto]) -> list[str]:
    """The names of the dimensions that inputs leave dynamic, each once."""
    dims = (dim for entry in inputs for dim in entry.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))


def _input(entry: ValueInfoProto, given: Sequence[Symbolic] | None, extents: Mapping[str, Symbolic]) -> Input:
    where = f"input '{entry.name}'"
    if entry.type.WhichOneof("value") != "tensor_type":
        kind = entry.type.WhichOneof("value") or "value without a type"
        raise TreadleError(f"the input is a {kind}", where, "a tensor")
    tensor = entry.type.tensor_type
    element = element_type(dtype_of(tensor.elem_type, where))
    dims = [_Dimension.of(d) for d in tensor.shape.dim]
    bound = [_Dimension(_extent_of(d, extents), d.label) for d in dims]
    declared = bound if tensor.HasField("shape") else None
    if given is not None:
        agreed = tuple(_agreed(entry.name, declared, given))
        return Input(TensorType(element, bounds_of(agreed)), agreed)
    if declared is None:
        raise MissingExtents(
            "the model does not say the input's shape", where, f"--shape {entry.name}=<d0>,<d1>,..." + _RANGES
        )
    missing = [n for n, dimension in enumerate(declared) if dimension.extent is None]
    if missing:
        listed = ", ".join(f"{n} ({declared[n].label!r})" for n in missing)
        text = ",".join(_placeholder(n, d) for n, d in enumerate(declared))
        plural = "dimensions" if len(missing) > 1 else "dimension"
        raise MissingExtents(
            f"{plural} {listed} without a value",
            where,
            f"--shape {entry.name}={text}" + _by_name(declared[n] for n in missing) + _RANGES,
        )
    bounds = tuple(d.extent for d in declared if d.extent is not None)
    return Input(TensorType(element, bounds_of(bounds)), bounds)


def derived(text: str, known: Mapping[str, Symbolic]) -> Symbolic | None:
    """What a text such as `past + new` computes from known extents; None for one that is no such expression."""
    try:
        return ExtentExpression(text, list(known)).value(known)
    except ValueError:
        return None


def _extent_of(dimension: _Dimension, extents: Mapping[str, Symbolic]) -> Symbolic | None:
    if dimension.extent is not None:
        return dimension.extent
    return extents[dimension.label] if dimension.label in extents else derived(dimension.label, extents)


class _Dimension:
    """A dimension of a declared shape: its extent, or its name if it is dynamic."""

    def __init__(self, extent: Symbolic | None, label: str):
        self.extent = extent
        self.label = label

    @classmethod
    def of(cls, dim: object) -> _Dimension:
        # Some exporters write -1 for a dynamic extent.
        if dim.HasField("dim_value") and dim.dim_value >= 0:  # pyright: ignore
            return cls(int(dim.dim_value), str(dim.dim_value))  # pyright: ignore
        return cls(None, str(dim.dim_param) or "?")  # pyright: ignore


def _placeholder(n: int, dimension: _Dimension) -> str:
    if dimension.extent is not None:
        return str(dimension.extent)
    return f"<{dimension.label if dimension.label.isidentifier() else f'd{n}'}>"


def _by_name(dimensions: Iterable[_Dimension]) -> str:
    """The alternative, for dimensions with names."""
    names = list(dict.fromkeys(d.label for d in dimensions))
    return "" if "?" in names else f", or {' '.join(f'--shape {name}=<n>' for name in names)}"


def _agreed(name: str, declared: list[_Dimension] | None, given: Sequence[Symbolic]) -> Sequence[Symbolic]:
    where = f"input '{name}'"
    if declared is None:
        return given
    text = ",".join(_placeholder(n, d) for n, d in enumerate(declared))
    fits = len(given) == len(declared) and all(
        d.extent is None or d.extent == extent for d, extent in zip(declared, given, strict=True)
    )
    if not fits:
        shown = ",".join(map(str, given))
        raise TreadleError(f"shape {shown} contradicts the model's {text}", where, f"--shape {name}={text}")
    return given


__all__ = [
    "Input",
    "MissingExtents",
    "Shapes",
    "Symbols",
    "constant_inputs",
    "dynamic_dimensions",
    "free_inputs",
    "model_inputs",
]
