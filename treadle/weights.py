"""The constants of an artifact: written once each, read back as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from treadle.artifact import Artifact
from treadle.errors import TreadleError
from treadle.manifest import WROTE_IT, Tensor

WEIGHTS = "weights.safetensors"

Array = np.ndarray[Any, Any]


def write_weights(arrays: Iterable[Array], folder: Path) -> tuple[Tensor, ...]:
    """Writes the constants' bytes, equal ones once; each constant's key, shape and type."""
    stored: dict[str, Array] = {}
    key_of: dict[str, str] = {}
    constants: list[Tensor] = []
    for array in arrays:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(data.data).hexdigest()
        if digest not in key_of:
            key_of[digest] = str(len(key_of))
            stored[key_of[digest]] = data
        constants.append(Tensor(key_of[digest], array.shape, array.dtype.name))
    safetensors.save_file(stored, folder / WEIGHTS)
    return tuple(constants)


def read_weights(artifact: Artifact) -> list[Array]:
    """The constants in the manifest's order; TreadleError for one that is missing or of another size."""
    if not artifact.manifest.constants:
        return []
    where = artifact.folder / WEIGHTS
    try:
        stored = safetensors.load(artifact.read(WEIGHTS))
    except (SafetensorError, KeyError, ValueError) as error:
        raise TreadleError(f"the weights cannot be read: {error}", where, WROTE_IT) from error
    return [_constant(stored, tensor, where) for tensor in artifact.manifest.constants]


def _constant(stored: dict[str, Array], tensor: Tensor, where: Path) -> Array:
    array = stored.get(tensor.name)
    if array is None or array.nbytes != tensor.num_bytes:
        raise TreadleError(f"constant {tensor} is missing or has another size", where, WROTE_IT)
    return array.reshape(-1).view(tensor.dtype).reshape(tensor.shape)
