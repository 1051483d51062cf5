"""Inputs of a compiled model's calls: from files or drawn, along a range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.artifact.manifest import Tensor
from treadle.errors import TreadleError
from treadle.runtime.model import Model
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import ExtentExpression

# Calls of a model that is compiled for ranges: the corners and some points between, and inputs for them.

Array = NDArray[Any]
Values = Mapping[str, int]
_ALL_CORNERS = 3
"""Symbols up to which all corners are taken: of more, those where all are least or greatest, or one alone is."""
_BETWEEN = 2


def points_of(symbols: Sequence[Dim], seed: int) -> list[Values]:
    """The corners of the range and two points in it that are drawn, each once, by the symbols' values."""
    random = Random(seed)
    ends = [(dim.least, dim.greatest) for dim in symbols]
    corners: Iterable[tuple[int, ...]] = product(*ends)
    if len(ends) > _ALL_CORNERS:
        corners = [each for each in product(*ends) if _is_outer(each, ends)]
    drawn = [
        tuple(random.randrange(dim.least, dim.greatest + 1, dim.multiple) for dim in symbols) for _ in range(_BETWEEN)
    ]
    names = [dim.name for dim in symbols]
    return [dict(zip(names, point, strict=True)) for point in dict.fromkeys([*corners, *drawn])]


def inputs_at(tensors: Sequence[Tensor], values: Values, given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Inputs of a call: the given ones, cut or repeated along each dimension that has another extent there, so that
    their elements stay valid ones; seeded random ones for the rest."""
    here = [replace(each, shape=_shape(each, values), extents=()) for each in tensors]
    fitted = {each.name: _fitted(given[each.name], each.shape) for each in here if each.name in given}
    return complete(here, fitted, seed)


def inputs_of(model: Model, given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Inputs of a call: the given ones, random ones in their largest shapes for the rest, where states are empty."""
    if not model.lengths:
        return complete(model.inputs, given, seed)
    return inputs_at(
        model.inputs, {dim.name: dim.greatest for dim in model.symbols} | empty_lengths(model), given, seed
    )


def empty_lengths(model: Model) -> dict[str, int]:
    """The extents of states that hold nothing."""
    return {dim.name: dim.least for dim in model.symbols if dim.name in model.lengths}


def empty_states(model: Model) -> dict[str, tuple[int, ...]]:
    """The shapes of states that hold nothing, by the names of their inputs."""
    values = {dim.name: dim.greatest for dim in model.symbols} | empty_lengths(model)
    kept = [model.manifest.inputs[state.argument] for state in model.manifest.states]
    return {tensor.name: _shape(tensor, values) for tensor in kept}


def _is_outer(corner: Sequence[int], ends: Sequence[tuple[int, int]]) -> bool:
    greatest = sum(value == end for value, (_, end) in zip(corner, ends, strict=True))
    return min(greatest, len(ends) - greatest) < 2


def _shape(tensor: Tensor, values: Values) -> tuple[int, ...]:
    return tuple(ExtentExpression(text, list(values)).value(values) for text in tensor.extents) or tensor.shape


def _fitted(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape or array.ndim != len(shape) or 0 in array.shape:
        return array
    return np.ascontiguousarray(
        array[np.ix_(*(np.arange(to) % own for to, own in zip(shape, array.shape, strict=True)))]
    )


# Values for a model's inputs: of a call, from files or drawn, and those that are the same in every call.

_FORM = "NAME=FILE.npy, or for a constant NAME=16000 or NAME=1,2,3"


@dataclass(frozen=True)
class Given:
    """What the command line says of a model's inputs, by name: arrays of a call, and constants."""

    arrays: dict[str, Array] = field(default_factory=dict[str, Array])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the arrays."""
        return {name: array.shape for name, array in self.arrays.items()}


def read_inputs(arguments: Sequence[str]) -> Given:
    """`x=f.npy` is the array of a call in a file, `sr=16000` and `n=1,2,3` are constants; a name may contain `=`.

    TreadleError for a file that is no .npy array, and for a name given twice.
    """
    given = Given()
    for argument in arguments:
        name, sign, value = argument.rpartition("=")
        if not sign or not name or not value:
            raise TreadleError(f"cannot read {argument!r}", "--input", _FORM)
        if name in given.arrays or name in given.constants:
            raise TreadleError(f"two arrays for input '{name}'", "--input", "one array an input")
        numbers = [number(word) for word in value.split(",")]
        if None in numbers:
            given.arrays[name] = read_array(value, f"a .npy file without objects ({_FORM})")
        else:
            given.constants[name] = np.array(numbers[0] if len(numbers) == 1 else numbers)
    return given


def check_of_model(given: Given, path: Path) -> None:
    """TreadleError if there are constants for what was compiled already."""
    for name in given.constants:
        accepted = "the .onnx file, or NAME=FILE.npy"
        raise TreadleError(f"--input {name} is a constant, for a model that is compiled", path, accepted)


def number(word: str) -> bool | float | None:
    """None for what is no number."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None


def read_array(file: str, accepted: str) -> Array:
    """The array of a `.npy` file; TreadleError with what is accepted if it is none."""
    try:
        array: object = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TreadleError(f"cannot read the array: {error}", file, accepted) from error
    if not isinstance(array, np.ndarray):
        raise TreadleError("several arrays in one file", file, "a .npy file with one array")
    return array


def sample(tensor: Tensor, generator: np.random.Generator) -> Array:
    """Values for an input: floats in [-1, 1); integers 0 and 1, which are valid ids and masks nearly everywhere."""
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return generator.uniform(-1.0, 1.0, tensor.shape).astype(dtype)
    return generator.integers(0, 2, tensor.shape).astype(dtype)


def complete(tensors: Sequence[Tensor], given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The given inputs; seeded random ones for the rest."""
    generator = np.random.default_rng(seed)
    drawn = {tensor.name: sample(tensor, generator) for tensor in tensors}
    named = {tensor.name: _named(given[tensor.name], tensor) for tensor in tensors if tensor.name in given}
    return drawn | dict(given) | named


def _named(array: Array, tensor: Tensor) -> Array:
    """An array in the input's type, if it is of bytes without one: so .npy files have the types of `ml_dtypes`."""
    dtype = np.dtype(tensor.dtype)
    is_unnamed = array.dtype == np.dtype(f"V{dtype.itemsize}") and dtype.isbuiltin != 1
    return array.view(dtype) if is_unnamed else array
