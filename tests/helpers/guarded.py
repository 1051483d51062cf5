"""Arrays beside pages that nobody may touch: an access outside of one ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import DTypeLike, NDArray

from treadle.backends.c import executor

Array = NDArray[Any]

_PAGE = mmap.PAGESIZE
_NONE = 0
_READ = 1
_libc = ctypes.CDLL(None, use_errno=True)


def guarded_empty(shape: Sequence[int], dtype: DTypeLike, at_end: bool = True) -> Array:
    """An uninitialised array that ends, or begins, where a page does; the pages before and behind are no memory."""
    element = np.dtype(dtype)
    size = prod(shape) * element.itemsize
    inside = max(_PAGE, -(-size // _PAGE) * _PAGE)
    memory = mmap.mmap(-1, inside + 2 * _PAGE)
    view = np.frombuffer(memory, np.uint8)
    first = view.__array_interface__["data"][0]
    for page in (first, first + _PAGE + inside):
        _protect(page, _PAGE, _NONE)
    start = _PAGE + (inside - size if at_end else 0)
    return np.ndarray(shape, element, view, start)


def guarded(array: Array, at_end: bool = True) -> Array:
    """A copy of an array that is read-only memory between such pages, as far as it fills them."""
    copy = guarded_empty(array.shape, array.dtype, at_end)
    copy[...] = array
    start = copy.__array_interface__["data"][0]
    first = -(-start // _PAGE) * _PAGE
    whole = (start + copy.nbytes - first) // _PAGE * _PAGE
    if whole > 0:
        _protect(first, whole, _READ)
    return copy


def _protect(start: int, size: int, access: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), access) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


@contextmanager
def guarded_outputs(at_end: bool = True) -> Generator[None]:
    """Outputs, constants and arenas of compiled programs lie between such pages, too."""
    with patch.object(executor, "aligned_empty", lambda shape, dtype: guarded_empty(shape, dtype, at_end)):
        yield


__all__ = ["guarded", "guarded_empty", "guarded_outputs"]
