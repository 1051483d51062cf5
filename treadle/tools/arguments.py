"""What the command line says of a model's inputs: shapes, values, and calls along a range."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from treadle.artifact.manifest import Tensor
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.shapes.dim import Dim, parse_dim
from treadle.shapes.dynamic import ExtentExpression
from treadle.shapes.states import AUTO, States

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


def inputs_of(model: CompiledModel, given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Inputs of a call: the given ones, random ones in their largest shapes for the rest, where states are empty."""
    if not model.lengths:
        return complete(model.inputs, given, seed)
    return inputs_at(
        model.inputs, {dim.name: dim.greatest for dim in model.symbols} | empty_lengths(model), given, seed
    )


def empty_lengths(model: CompiledModel) -> dict[str, int]:
    """The extents of states that hold nothing."""
    return {dim.name: dim.least for dim in model.symbols if dim.name in model.lengths}


def empty_states(model: CompiledModel) -> dict[str, tuple[int, ...]]:
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


def parse_states(arguments: Sequence[str]) -> States | None:
    """The states that `--states auto` or `--states past=present` mean; TreadleError for anything else."""
    if not arguments:
        return None
    if list(arguments) == [AUTO]:
        return AUTO
    pairs = [argument.partition("=") for argument in arguments]
    wrong = next(("".join(pair) for pair in pairs if not all(pair)), None)
    if wrong is not None:
        raise TreadleError(f"cannot read {wrong!r}", "--states", "auto, or INPUT=OUTPUT")
    return {name: output for name, _, output in pairs}


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
        numbers = [_number(word) for word in value.split(",")]
        if None in numbers:
            given.arrays[name] = _array(value)
        else:
            given.constants[name] = np.array(numbers[0] if len(numbers) == 1 else numbers)
    return given


def read_constants(arguments: Sequence[str]) -> dict[str, Array]:
    """The constants among `sr=16000`, for commands that run nothing; TreadleError for a file, which is of a call."""
    constants: dict[str, Array] = {}
    for argument in arguments:
        name, _, value = argument.rpartition("=")
        if name and value and any(_number(word) is None for word in value.split(",")):
            accepted = "a value that is the same in every call, such as sr=16000"
            raise TreadleError(f"{value!r} is no number", f"--input {name}", accepted)
        constants |= read_inputs([argument]).constants
    return constants


def check_of_model(given: Given, path: Path) -> None:
    """TreadleError if there are constants for what was compiled already."""
    for name in given.constants:
        accepted = "the .onnx file, or NAME=FILE.npy"
        raise TreadleError(f"--input {name} is a constant, for a model that is compiled", path, accepted)


def _number(word: str) -> bool | float | None:
    """None for what is no number."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None


def _array(file: str) -> Array:
    try:
        array: object = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        accepted = f"a .npy file without objects ({_FORM})"
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


# Shapes, and how often they occur, on the command line.

_SHAPE_FORM = (
    "NAME=D0,D1,... with positive whole numbers, such as x=1,3,48,320, or ranges, such as x=1..8,3,48,32..2048:32 "
    "(multiples of 32), with a name where dimensions are equal, n:1..8; of a dimension by its name, w=32..2048"
)


_HISTOGRAM = 'an object of values and how often they occur, such as {"37": 120, "128": 44}'


def parse_shapes(arguments: Sequence[str]) -> dict[str, tuple[int | Dim | str, ...]]:
    """`["x=1,3,48,320"]` as `{"x": (1, 3, 48, 320)}`; a name may contain `=`. `x=n:1..8,3` has a range, the `Dim` named
    `n`, and so has `n=1..8`, which names a dimension; that of `x=1..8,3` has a name of its own, `x_0`. `x=n+1,3` has an
    extent that is computed.

    Raises TreadleError for anything else, and for a name given twice.
    """
    shapes: dict[str, tuple[int | Dim | str, ...]] = {}
    for argument in arguments:
        name, sign, extents = argument.rpartition("=")
        words = [word.strip() for word in extents.split(",")] if extents.strip() else []
        if not sign or not name:
            raise _unreadable(argument)
        if name in shapes:
            raise TreadleError(f"two shapes for input '{name}'", "--shape", "one shape an input")
        names = [_dimension(f"{name}_{n}") for n in range(len(words))] if len(words) != 1 else [name]
        shapes[name] = tuple(_extent(word, own, argument) for word, own in zip(words, names, strict=True))
    return shapes


def parse_weights(arguments: Sequence[str]) -> dict[str, dict[int, float]]:
    """`["seq=lengths.json"]` as how often each value of `seq` occurs: the file has `{"37": 120, "128": 44}`.

    TreadleError that names the file, for one that is anything else, and for a name given twice.
    """
    found: dict[str, dict[int, float]] = {}
    for argument in arguments:
        name, sign, path = argument.partition("=")
        if not sign or not name or not path:
            raise TreadleError(f"cannot read {argument!r}", "--weights", "SYMBOL=FILE.json")
        if name in found:
            raise TreadleError(f"two files for '{name}'", "--weights", "one file a symbol")
        found[name] = _histogram(Path(path))
    return found


def _histogram(path: Path) -> dict[int, float]:
    try:
        given: object = json.loads(path.read_text())
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, _HISTOGRAM) from error
    except ValueError as error:
        raise TreadleError(f"is no JSON: {error}", path, _HISTOGRAM) from error
    if not isinstance(given, dict):
        raise TreadleError("is no object", path, _HISTOGRAM)
    found: dict[int, float] = {}
    for value, weight in cast("dict[str, object]", given).items():
        if not _is_number(value) or isinstance(weight, bool) or not isinstance(weight, int | float):
            raise TreadleError(f"{value!r} has the weight {weight!r}", path, _HISTOGRAM)
        found[int(value)] = float(weight)
    return found


def shapes_of_call(
    arguments: Sequence[str], inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int | Dim | str, ...]]:
    """The shapes to compile for where inputs of these shapes are at hand, too: with a range, they are those of a call
    only. Raises as `parse_shapes`."""
    given = parse_shapes(arguments)
    has_range = any(isinstance(extent, Dim) for shape in given.values() for extent in shape)
    return given if has_range else {**inputs, **given}


def _extent(word: str, own: str, argument: str) -> int | Dim | str:
    """An extent, a range, whose name is `own` where it has none, or an expression of such."""
    if _is_number(word):
        return int(word)
    if _EXPRESSION.fullmatch(word):
        return word
    if ".." not in word:
        raise _unreadable(argument)
    return parse_dim(word, own if own.isidentifier() and own.isascii() else None)


_EXPRESSION = re.compile(r"[\w ()]*[A-Za-z_][\w ()]*[-+*/%][\w ()+*/%-]+", re.ASCII)


def _dimension(text: str) -> str:
    """A name of a dimension like a text."""
    return re.sub(r"\W|^(?=\d)", "_", text, flags=re.ASCII)


def _unreadable(argument: str) -> TreadleError:
    return TreadleError(f"cannot read the shape {argument!r}", "--shape", _SHAPE_FORM)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word) > 0
