"""Limits on the sizes of tensors: a few bytes of text can describe a tensor of any size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import byte_width

MAX_RANK = 32
"""Dimensions of a tensor; NumPy's arrays have at most twice as many, and a reduction lays its own beside them."""
MAX_WRITTEN_OUT = 20_000
"""Operators that the bodies of loops and functions are written out to, each as often as it runs."""
MAX_TENSOR_BYTES = 1 << 36
MAX_MODULE_BYTES = 1 << 40


class TensorSizes:
    """The bytes of a module's tensors so far."""

    def __init__(self) -> None:
        self._total = 0

    def add(self, type: TensorType) -> None:
        """Counts a tensor; VerifyException if it is too large, or all tensors together are.

        An empty one is too large if it were with extents of 1 instead of 0: NumPy has no such array.
        """
        shape = type.get_shape()
        check_rank(shape)
        # A symbolic extent counts as none.
        size = byte_width(type.get_element_type()) * prod(extent for extent in shape if extent > 0)
        is_empty = min(shape, default=1) <= 0
        if size > MAX_TENSOR_BYTES:
            takes = "is empty, but its other dimensions span" if is_empty else "takes"
            raise VerifyException(f"{type} {takes} {size} bytes: at most {MAX_TENSOR_BYTES} are accepted")
        self._total += 0 if is_empty else size
        if self._total > MAX_MODULE_BYTES:
            limit = f"at most {MAX_MODULE_BYTES} are accepted"
            raise VerifyException(f"with {type} the tensors take {self._total} bytes together: {limit}")


def check_rank(shape: Sequence[int]) -> None:
    """VerifyException if a shape has too many dimensions."""
    if len(shape) > MAX_RANK:
        raise VerifyException(f"{len(shape)} dimensions: at most {MAX_RANK} are accepted")


__all__ = ["MAX_MODULE_BYTES", "MAX_RANK", "MAX_TENSOR_BYTES", "MAX_WRITTEN_OUT", "TensorSizes", "check_rank"]
