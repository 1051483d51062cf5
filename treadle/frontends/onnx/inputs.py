"""The shapes of a model's inputs, from the file and from the caller, which have to agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ValueInfoProto
from xdsl.dialects.builtin import TensorType
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import TensorSizes, element_type, is_float_dtype
from treadle.errors import TreadleError
from treadle.frontends.common.extent import Extent, Symbolic, bounds_of
from treadle.frontends.common.symbols import Input, Symbols, derived
from treadle.frontends.onnx.tensor_data import dtype_of
from treadle.shapes.dim import Dim, Shapes, normalized

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


_RANGES = ", each a number, or a range such as 1..64"


class MissingExtents(TreadleError):
    """An input has dimensions without a value."""


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
            # Exporters that have no name for a dimension write this one.
            if dim.dim_param in ("", _UNNAMED) or not isinstance(extent, Extent):
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


def _extent_of(dimension: _Dimension, extents: Mapping[str, Symbolic]) -> Symbolic | None:
    if dimension.extent is not None:
        return dimension.extent
    return extents[dimension.label] if dimension.label in extents else derived(dimension.label, extents)


_UNNAMED = "?"


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
        return cls(None, str(dim.dim_param) or _UNNAMED)  # pyright: ignore


def _placeholder(n: int, dimension: _Dimension) -> str:
    if dimension.extent is not None:
        return str(dimension.extent)
    return f"<{dimension.label if dimension.label.isidentifier() else f'd{n}'}>"


def _by_name(dimensions: Iterable[_Dimension]) -> str:
    """The alternative, for dimensions with names."""
    names = list(dict.fromkeys(d.label for d in dimensions))
    return "" if _UNNAMED in names else f", or {' '.join(f'--shape {name}=<n>' for name in names)}"


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
    "MissingExtents",
    "Shapes",
    "constant_inputs",
    "dynamic_dimensions",
    "free_inputs",
    "model_inputs",
]
