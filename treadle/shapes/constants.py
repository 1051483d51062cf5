"""The values that a caller fixes inputs of a model to, as plain arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.errors import TreadleError

Array = NDArray[Any]
Constants = Mapping[str, ArrayLike]
"""By the name of an input its value in every call: `{"sr": 16000}`."""

_FORM = 'a dict such as {"sr": 16000} or {"mask": np.ones((1, 8), bool)}'


def normalized_constants(constants: object) -> dict[str, Array]:
    """The values as arrays. TreadleError for what is no `Constants`, and for values that are no arrays of numbers."""
    if constants is None:
        return {}
    if not isinstance(constants, Mapping):
        raise TreadleError(f"constants is a {type(constants).__name__}", "constants", _FORM)
    entries = cast("Mapping[object, object]", constants)
    return {_name(name): _array(str(name), value) for name, value in entries.items()}


def constants_text(constants: Mapping[str, Array]) -> str:
    """A text that differs where names, types, shapes or values do."""
    listed = sorted(
        (name, str(a.dtype), a.shape, hashlib.sha256(a.tobytes()).hexdigest()) for name, a in constants.items()
    )
    return repr(listed)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TreadleError(f"{name!r} is no name of an input", "constants", _FORM)
    return name


def _array(name: str, value: object) -> Array:
    where, accepted = f"constants['{name}']", "a number, or an array of numbers"
    try:
        array = np.array(value)
    except (ValueError, TypeError) as error:
        raise TreadleError(f"the value is no array: {error}", where, accepted) from error
    # The floats of `ml_dtypes` have the kind V.
    if array.dtype.kind not in "biufV" or array.dtype.names is not None or array.dtype.itemsize == 0:
        raise TreadleError(f"the value is an array of {array.dtype}", where, accepted)
    return array
