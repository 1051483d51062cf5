"""The tiles of attention on CUDA cores: what a choice of knobs implies for heads of given sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.schedules.template import Choices, number

_VECTOR = 4
"""Floats of the longest access to shared memory."""
_BANKS = 32
_OTHER_REGISTERS = 48
"""Registers of a thread for addresses, predicates and arithmetic in flight."""


@dataclass(frozen=True)
class AttentionTile:
    """A block's tiles: `rows` queries, `columns` keys with their values, and the weights of these by those.

    Shared memory holds them in f32. `lanes` neighbouring threads take one *strip*: the rows `strip + strips * i`. Of
    a row's keys, a lane takes `lane + lanes * j`; of its result, vectors of neighbours, `lanes` vectors apart.

    size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    columns: int
    threads: int
    lanes: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionTile:
        """The tiles that a choice of knobs means."""
        rows, columns, threads, lanes = (number(choices, knob) for knob in ("rows", "columns", "threads", "lanes"))
        return AttentionTile(rows, columns, threads, lanes, size, width)

    @property
    def strips(self) -> int:
        """Groups of threads that share rows."""
        return self.threads // self.lanes

    @property
    def rows_each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.strips

    @property
    def columns_each(self) -> int:
        """Keys of a thread."""
        return self.columns // self.lanes

    @property
    def padded_size(self) -> int:
        """Elements of a query and a key, with the zeros that fill the last vector."""
        return -(-self.size // _VECTOR) * _VECTOR

    @property
    def key_stride(self) -> int:
        """Elements from one query or key to the next. Lanes that read vectors of neighbouring keys meet in no bank if
        these are an odd number of vectors apart: rows that fill all banks once or more are padded, others swizzled."""
        return self.padded_size + (0 if self.padded_size % _BANKS else _VECTOR)

    @property
    def key_swizzle(self) -> Swizzle | None:
        """How the vectors of queries and keys are permuted where padding does not do: lanes that write the end of one
        key and the begin of the next would meet across it."""
        swizzle = swizzle_of_rows(4 * self.key_stride, 4, 4 * _VECTOR)
        return swizzle if swizzle.phases > 1 else None

    @property
    def weight_stride(self) -> int:
        """Elements from one row of weights to the next: the strips of a warp write side by side."""
        return self.columns + (self.lanes - self.columns) % _BANKS

    @property
    def vector(self) -> int:
        """Neighbours in a vector of values: the longest that pads them by a quarter at most, or as little as can be."""
        least = self._padded(1)
        return next(v for v in (_VECTOR, 2, 1) if 4 * self._padded(v) <= 5 * least)

    def _padded(self, vector: int) -> int:
        return -(-self.width // (self.lanes * vector)) * self.lanes * vector

    @property
    def padded_width(self) -> int:
        """Elements of a value, with zeros up to whole vectors of every lane."""
        return self._padded(self.vector)

    @property
    def vectors(self) -> int:
        """Vectors of a row of the result that a thread computes."""
        return self.padded_width // self.lanes // self.vector

    @property
    def size_vector(self) -> int:
        """Elements of queries and keys that a thread fetches at once: they never straddle the end of one."""
        return gcd(self.size, _VECTOR)

    @property
    def width_vector(self) -> int:
        """The same of values."""
        return gcd(self.width, _VECTOR)

    def fetched(self, lines: int, extent: int, vector: int) -> int:
        """Elements that a thread fetches of a tile."""
        return -(-lines * extent // vector // self.threads) * vector

    def _ahead(self, extent: int, vector: int) -> int:
        """Registers for the elements that a thread fetches ahead, and for the addresses of each vector of them."""
        elements = self.fetched(self.columns, extent, vector)
        return elements + 2 * elements // vector

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        keyed = (self.rows + self.columns) * self.key_stride
        return 4 * (keyed + self.columns * self.padded_width + self.rows * self.weight_stride)

    @property
    def registers(self) -> int:
        """Registers of a thread, about: the result so far, the next keys and values, and what a product is made of."""
        result = self.rows_each * (self.vectors * self.vector + 2)
        ahead = self._ahead(self.padded_size, self.size_vector) + self._ahead(self.padded_width, self.width_vector)
        scores = self.rows_each * self.columns_each + _VECTOR * (self.rows_each + self.columns_each)
        weighted = _VECTOR * self.rows_each + self.vectors * self.vector
        return result + ahead + max(scores, weighted) + _OTHER_REGISTERS


__all__ = ["AttentionTile"]
