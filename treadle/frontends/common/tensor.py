"""Tensors as converters see them, and what is known of an operator's operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from xdsl.dialects.builtin import LocationAttr, TensorType
from xdsl.ir import Attribute, Block, SSAValue

from treadle.dialects.graph import Operator
from treadle.dialects.graph.dtypes import is_float, numpy_dtype
from treadle.frontends.common.extent import Array, Symbolic, is_symbolic
from treadle.frontends.common.result_extents import Elements, Extents, result_extents

# What a model's nodes may take of memory while they are imported.


class Reserves(Protocol):
    """A node that counts the constants which its conversion makes."""

    def reserve(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        """Counts a constant of this shape; TreadleError if it is too large together with those so far."""
        ...


@dataclass(eq=False)
class Tensor:
    """A tensor of the model: known elements, an operator's result, or both once a known one was written.

    type:     with the largest extents
    extents:  where some are symbolic: those of a call
    elements: integers that are known as expressions of symbols, such as those of a shape
    numbers: floats that are known for every value of the symbols, such as half of an extent
    """

    type: TensorType
    array: Array | None = None
    ssa: SSAValue | None = None
    location: LocationAttr | None = None
    extents: Extents | None = None
    elements: Elements | None = None
    numbers: Elements | None = None

    @property
    def shape(self) -> tuple[Symbolic, ...]:
        """The extents in a call; one that changes from call to call is an `Extent`."""
        return self.type.get_shape() if self.extents is None else self.extents

    @property
    def rank(self) -> int:
        return self.type.get_num_dims()

    @property
    def element(self) -> Attribute:
        return self.type.get_element_type()

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return numpy_dtype(self.element)

    @property
    def is_float(self) -> bool:
        return is_float(self.element)


def known_elements(x: Tensor) -> Array | None:
    """What is known of each element, in an array of its own type or of objects."""
    if x.array is not None:
        return x.array
    return x.numbers if x.elements is None else x.elements


def extents_of(op: Operator, operands: Sequence[Tensor], shape: Sequence[Symbolic] | None) -> Extents | None:
    """The extents of an operator's result where some operand or result has symbolic ones, else None."""
    if all(operand.extents is None for operand in operands) and (shape is None or not is_symbolic(shape)):
        return None
    return result_extents(op, [operand.shape for operand in operands], shape)


def known_operands(operands: Sequence[Tensor]) -> tuple[list[Extents], list[Array | None]]:
    """The shapes of operands, and the elements of those that are known."""
    return [operand.shape for operand in operands], [operand.array for operand in operands]


def erase_dead(block: Block) -> None:
    """Erases operators without users, such as those whose shape alone was read."""
    for op in reversed(list(block.ops)):
        if op.results and all(result.first_use is None for result in op.results):
            op.detach()
            op.erase()
