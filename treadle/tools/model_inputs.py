"""Values for a model's inputs: read from files, or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.errors import TreadleError
from treadle.manifest import Tensor

Array = NDArray[Any]


def read_inputs(arguments: Sequence[str]) -> dict[str, Array]:
    """`["x=f.npy"]` as arrays by name; a name may contain `=`. TreadleError for a file that is no .npy array."""
    inputs: dict[str, Array] = {}
    for argument in arguments:
        name, sign, file = argument.rpartition("=")
        if not sign or not name or not file:
            raise TreadleError(f"cannot read {argument!r}", "--input", "NAME=FILE.npy")
        try:
            array: object = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise TreadleError(f"cannot read the array: {error}", file, "a .npy file without objects") from error
        if not isinstance(array, np.ndarray):
            raise TreadleError("several arrays in one file", file, "a .npy file with one array")
        if name in inputs:
            raise TreadleError(f"two arrays for input '{name}'", "--input", "one array an input")
        inputs[name] = array
    return inputs


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


__all__ = ["complete", "read_inputs", "sample"]
