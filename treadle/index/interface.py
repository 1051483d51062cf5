"""The interface by which an operation bounds the indices that it defines."""

from __future__ import annotations

from abc import ABC, abstractmethod

from xdsl.ir import Operation, SSAValue

from treadle.index.ranges import Range


class HasIndexRanges(Operation, ABC):
    """An operation that bounds indices: arguments of its blocks, or its results.

    Index algebra asks every operation through it, and depends on no dialect but `arith` and `scf`.
    """

    @abstractmethod
    def index_range(self, value: SSAValue) -> Range | None:
        """The inclusive bounds of a block argument or a result; None where it is no index that this bounds."""
