"""Memory that is a mapped file's."""

from __future__ import annotations

import mmap
from typing import Any, cast

import numpy as np


def mapping_of(array: np.ndarray[Any, Any]) -> mmap.mmap | None:
    """The mapping whose bytes an array is a view of; None if it is in other memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = cast("Any", owner.obj if isinstance(owner, memoryview) else owner.base)
    return owner if isinstance(owner, mmap.mmap) else None


def release_pages(array: np.ndarray[Any, Any]) -> None:
    """Takes the pages of a contiguous array of a read-only mapped file out of the process's resident memory. The next
    read loads them again, from the system's cache of files as a rule."""
    mapping = mapping_of(array)
    if mapping is None or array.flags.writeable or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE), (start + array.nbytes) // mmap.PAGESIZE
    if first < last:
        mapping.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)
