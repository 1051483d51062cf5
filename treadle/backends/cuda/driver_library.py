"""The NVIDIA driver's library by ctypes: what the bindings to it lack, or have each in a form of its own."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from treadle.backends.cuda.gpu_probe import LIBRARY
from treadle.errors import TreadleError


def call(doing: str, name: str, *arguments: object) -> None:
    """Calls a function of the driver; numbers that are handles, addresses or sizes come as values of ctypes.

    TreadleError that names `doing`, the function and the driver's own words where the status is not 0, and where the
    library cannot be loaded.
    """
    status = status_of(name, *arguments)
    if status != 0:
        raise TreadleError(f"the GPU failed: {name.partition('_')[0]} failed: {_words(status)}", where=doing)


def status_of(name: str, *arguments: object) -> int:
    """What a function of the driver returns; for calls that may fail."""
    return int(getattr(_library(), name)(*arguments))


def handle(value: int) -> ctypes.c_void_p:
    """A handle or an address of the host as an argument."""
    return ctypes.c_void_p(value)


def address(value: int) -> ctypes.c_uint64:
    """An address of the device as an argument."""
    return ctypes.c_uint64(value)


def size(value: int) -> ctypes.c_size_t:
    """A number of bytes or elements as an argument."""
    return ctypes.c_size_t(value)


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        message = f"the NVIDIA driver cannot be loaded ({error})"
        raise TreadleError(message, where="cuda driver", accepted=f"a machine with {LIBRARY}") from error


def _words(status: int) -> str:
    """The driver's description of a status, such as `out of memory`."""
    text = ctypes.c_char_p()
    if status_of("cuGetErrorString", status, ctypes.byref(text)) != 0 or text.value is None:
        return f"error {status}"
    return text.value.decode()
