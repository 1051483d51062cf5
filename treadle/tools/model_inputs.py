"""Values for a model's inputs: of a call, from files or drawn, and those that are the same in every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.manifest import Tensor

Array = NDArray[Any]


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


__all__ = ["Given", "check_of_model", "complete", "read_constants", "read_inputs", "sample"]
