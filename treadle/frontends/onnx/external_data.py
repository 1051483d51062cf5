"""The external data of a model's tensors: its location, and digests of what was read.

`location`, `offset` and `length` come from the model file, which is untrusted. A file is opened only if a tensor that
the graph needs names it, and only that tensor's bytes are read.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from treadle.confined_files import Confinement
from treadle.errors import TreadleError
from treadle.manifest import Source

Bytes = NDArray[np.uint8]

_MAX_DIGITS = 18
"""Of an offset or a length: a file has fewer than 2**63 bytes."""


@dataclass(frozen=True)
class ExternalEntry:
    """A tensor's entry for its external data; a `length` of None means as many bytes as the tensor needs."""

    location: str
    offset: int
    length: int | None


@dataclass
class ExternalFiles:
    """The files below a model's folder that its tensors were read from; `model` is its file, None if it is bytes."""

    model: Path | None
    _mapped: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    _read: dict[tuple[str, int, int], None] = field(default_factory=dict[tuple[str, int, int], None])

    def read(self, tensor: TensorProto, nbytes: int, where: str) -> Bytes:
        """The `nbytes` bytes of a tensor, mapped read-only.

        TreadleError: an entry that cannot be read or has another length, a file outside of the folder, one that is
        no regular file, and one that is too short.
        """
        entry = external_entry(tensor, where)
        if self.model is None:
            message = f"external data '{entry.location}' of a model given as bytes"
            raise TreadleError(message, where, "the path of the model's file")
        if entry.length not in (None, nbytes):
            message = f"the tensor holds {entry.length} bytes of external data"
            raise TreadleError(message, where, f"{nbytes} bytes, as its shape and type say")
        data = self._file(entry.location, self.model, where)
        if entry.offset + nbytes > data.size:
            name = Path(entry.location).name
            span = f"{entry.offset} to {entry.offset + nbytes}"
            message = f"external data '{name}' has {data.size} bytes, the tensor needs bytes {span}"
            raise TreadleError(message, where, "the complete file that was saved with the model")
        self._read[entry.location, entry.offset, nbytes] = None
        return data[entry.offset : entry.offset + nbytes]

    def sources(self) -> tuple[Source, ...]:
        """The parts of files that were read so far, with their digests."""
        return tuple(self._source(*part) for part in sorted(self._read))

    def _source(self, location: str, offset: int, nbytes: int) -> Source:
        part = self._mapped[location][offset : offset + nbytes]
        return Source(location, offset, nbytes, hashlib.sha256(part.data).hexdigest())

    def _file(self, location: str, model: Path, where: str) -> Bytes:
        """One mapping a file, however many tensors it contains: each mapping keeps a descriptor open."""
        if location not in self._mapped:
            with Confinement.of_model(model).open(location, where) as file:
                self._mapped[location] = _map(file.fileno(), location, where)
        return self._mapped[location]


def external_entry(tensor: TensorProto, where: str) -> ExternalEntry:
    """What the tensor's `external_data` says; TreadleError for a key that appears twice, and for no number."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        for text in (entry.key, entry.value):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # protobuf: or bytes
                raise TreadleError(f"external data has the entry {text!r}, which is no text", where, "UTF-8")
        if entry.key in entries:
            raise TreadleError(f"external data has '{entry.key}' twice", where, "each key once")
        entries[entry.key] = entry.value
    length = _number(entries, "length", where)
    return ExternalEntry(entries.get("location", ""), _number(entries, "offset", where) or 0, length)


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        shown = repr(text) if len(text) < 40 else f"a text of {len(text)} characters"
        raise TreadleError(f"external data has {key} {shown}", where, "a whole number from 0 upwards")
    return int(text)


def _map(descriptor: int, location: str, where: str) -> Bytes:
    size = os.fstat(descriptor).st_size
    if size == 0:
        return np.zeros(0, np.uint8)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        message = f"external data file '{location}' of {size} bytes cannot be mapped: {error}"
        raise TreadleError(message, where, "a file that fits into the address space") from error


__all__ = ["ExternalEntry", "ExternalFiles", "external_entry"]
