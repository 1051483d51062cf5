"""Values as C expressions, with as few parentheses as C's precedence allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects import arith, memref, vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.backends.c_like.folding import Folding
from treadle.backends.c_like.language import Language, Precedence
from treadle.backends.c_like.scalars import (
    Arithmetic,
    Comparisons,
    Conversions,
    Integers,
    constant_integer,
    splat_number,
)
from treadle.backends.c_like.values import Text, Writers, number_text
from treadle.backends.c_like.vectors import Vectors
from treadle.dialects.loop import LaneMaskOp


class ExpressionPrinter:
    """Writes values: by name where `names` has one, else by the expression of the operation that computes them."""

    def __init__(self, language: Language, folding: Folding) -> None:
        self.language = language
        self.folding = folding
        self.names: dict[SSAValue, str] = {}
        self.positive: set[SSAValue] = set()
        self._flat: set[SSAValue] = set()
        self._vectors = Vectors(self)
        self._writers: Writers = (
            (memref.LoadOp, self._load),
            *Arithmetic(self).writers,
            *Integers(self).writers,
            *Comparisons(self).writers,
            *Conversions(self).writers,
            *self._vectors.writers,
        )

    def text(self, value: SSAValue) -> Text:
        """The expression for a value."""
        text = self._written(value)
        if isinstance(value.owner, LaneMaskOp):  # written as the mask of an access
            return Text(f"{self.language.function('on', value.type)}({text.text})")
        return text

    def _written(self, value: SSAValue) -> Text:
        name = self.names.get(value)
        if name is not None:
            return Text(name)
        assert isinstance(value.owner, Operation), f"{value} has no name"
        return self.computed(value.owner)

    def mask(self, value: SSAValue) -> str:
        """The expression for a mask, as functions that access memory under it take it."""
        text = self._written(value).text
        return text if isinstance(value.owner, LaneMaskOp) else f"{self.language.function('mask', value.type)}({text})"

    def at(self, value: SSAValue, level: Precedence = Precedence.TERNARY) -> str:
        """The expression for a value, in parentheses unless its precedence is at least `level`."""
        return self.text(value).at(level)

    def computed(self, op: Operation) -> Text:
        """The expression that computes an operation's result."""
        for kinds, write in self._writers:
            if isinstance(op, kinds):
                return write(op)
        special = self.language.expression(op, self)
        if special is None:
            self.language.reject(op)
        return Text(special)

    def element(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """One element of a buffer, as an lvalue."""
        type = cast(MemRefType, buffer.type)
        name = self.at(buffer, Precedence.PRIMARY)
        if self.is_flat(buffer):
            return f"{name}[{self._offset(type, indices, buffer)}]"
        return name + "".join(f"[{self.at(index)}]" for index in indices)

    def declare_flat(self, buffer: SSAValue) -> None:
        """Says that a buffer is a pointer or a one-dimensional array, whatever its rank."""
        self._flat.add(buffer)

    def is_flat(self, buffer: SSAValue) -> bool:
        """Whether the text addresses the buffer by one number."""
        return buffer in self._flat

    def vector_operand(self, value: SSAValue, level: Precedence) -> str:
        """A vector operand of an operator that also takes a scalar: a broadcast is written as the scalar."""
        scalar = self.splat_scalar(value)
        return self.at(value, level) if scalar is None else scalar.at(level)

    def splat_scalar(self, value: SSAValue) -> Text | None:
        """The scalar that a vector operand may be written as."""
        if value in self.names or not self.language.has_operators(value.type):
            return None
        if isinstance(value.owner, vector.BroadcastOp) and not isinstance(value.owner.source.type, VectorType):
            return self.text(value.owner.source)
        if isinstance(value.owner, arith.ConstantOp) and isinstance(value.type, VectorType):
            number = splat_number(value.owner)
            return None if number is None else number_text(self.language, value.type.element_type, number)
        return None

    def _offset(self, type: MemRefType, indices: Sequence[SSAValue], buffer: SSAValue) -> str:
        strides = type.get_strides()
        if strides is None or None in strides or -1 in strides:
            owner = buffer.owner if isinstance(buffer.owner, Operation) else buffer.owner.parent_op()
            assert owner is not None
            self.language.reject(owner, f"a buffer of type {type}", "buffers of static extents")
        constant, terms = 0, list[str]()
        for index, stride in zip(indices, cast(Sequence[int], strides), strict=True):
            known = constant_integer(index)
            if known is not None:
                constant += known * stride
            elif stride == 1:
                terms.append(self.at(index, Precedence.ADD))
            else:
                terms.append(f"{self.at(index, Precedence.MULTIPLY)} * {stride}")
        if not terms:
            return str(constant)
        distance = f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else ""
        return " + ".join(terms) + distance

    def _load(self, op: memref.LoadOp) -> Text:
        return Text(self.element(op.memref, op.indices))

    def first_lanes(self, mask: SSAValue) -> str:
        """The number of lanes that a mask of `vector.create_mask` lets through."""
        return self._vectors.first_lanes(mask)
