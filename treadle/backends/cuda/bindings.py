"""Calls of the NVIDIA driver through cuda-bindings: the one module that loads them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from treadle.errors import TreadleError

PLACE = "cuda driver"
WHEEL = "pip install 'cuda-bindings==13.0.*'"


def are_installed() -> bool:
    """Whether cuda-bindings can be imported; says nothing of a driver."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:  # no package `cuda` at all
        return False


def load() -> Any:
    """The module `cuda.bindings.driver`. TreadleError where it is not installed."""
    if not are_installed():
        raise TreadleError("cuda-bindings are not installed", where=PLACE, accepted=WHEEL)
    return importlib.import_module("cuda.bindings.driver")


def call(doing: str, function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """What a function of the driver returns beside its status: nothing, a value, or a tuple.

    TreadleError that names `doing`, the function and the driver's own words where the status is not 0, and where
    the driver's library cannot be loaded.
    """
    try:
        status, *values = function(*arguments)
    except RuntimeError as error:  # the first call loads the library
        reason = str(error).splitlines()[0]
        message = f"the NVIDIA driver cannot be loaded ({reason})"
        raise TreadleError(message, where=PLACE, accepted="a machine with libcuda.so.1") from error
    if status.value != 0:
        name = getattr(function, "__name__", "the driver").split("_")[0]
        raise TreadleError(f"the GPU failed: {name} failed: {_words(status)}", where=doing)
    return values[0] if len(values) == 1 else tuple(values)


def _words(status: Any) -> str:
    """The driver's description of a status, such as `out of memory`."""
    asked, text = load().cuGetErrorString(status)
    return text.decode() if asked.value == 0 and text else str(status.name)
