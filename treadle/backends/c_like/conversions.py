"""Conversions between types of scalars."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.backends.c_like.operators import CONVERSIONS, Level
from treadle.backends.c_like.values import Text, Values, Writers, float_type
from treadle.dialects.graph.dtypes import is_stored
from treadle.dialects.scalar import is_unsigned


class Conversions:
    """Writes casts, and the functions that stand for them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (CONVERSIONS, self._convert),
            (arith.BitcastOp, self._bitcast),
        )

    def _convert(self, op: Operation) -> Text:
        source, target = op.operands[0], op.results[0].type
        widening = self._language.widening(source.type)
        if widening is not None and not self._language.has_operators(source.type):
            text, wide = Text(f"{widening[0]}({self._values.at(source)})"), float_type(self._language)
            if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
                return self._whole(wide, target, text)
            narrowing = self._language.narrowing(wide, target)
            if narrowing is not None and not self._language.has_operators(target):
                return Text(f"{narrowing}({text.text})")
            return text if isinstance(op, arith.ExtFOp) else self._cast(target, text)
        narrowing = self._language.narrowing(source.type, target)
        if narrowing is not None and not self._language.has_operators(target):
            return Text(f"{narrowing}({self._values.at(source)})")
        if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
            return self._whole(source.type, target, self._values.text(source))
        if is_stored(source.type) or is_stored(target):
            return self._stored(source, target)
        one_bit = source.type == IntegerType(1)
        if target == IntegerType(1):
            return Text(f"{self._values.at(source, Level.UNARY)} & 1", Level.AND_BITS)
        if isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and one_bit:
            return Text(f"-{self._cast(target, self._values.text(source)).text}", Level.UNARY)
        if isinstance(op, arith.ExtUIOp | arith.UIToFPOp) and not one_bit and not is_unsigned(source.type):
            return self._cast(target, self._cast_to(self._language.unsigned(source.type), self._values.text(source)))
        return self._cast(target, self._values.text(source))

    def _stored(self, source: SSAValue, target: Attribute) -> Text:
        """Integers of 4 and 2 bits are the low bits of a byte; what the others are does not matter."""
        if is_stored(target):
            assert isinstance(target, IntegerType)
            low = f"{self._values.at(source, Level.EQUALITY)} & {(1 << target.width.data) - 1}"
            return self._cast(target, Text(low, Level.AND_BITS))
        assert isinstance(source.type, IntegerType)
        bits = source.type.width.data
        low = f"{self._values.at(source, Level.EQUALITY)} & {(1 << bits) - 1}"
        if is_unsigned(source.type):
            return self._cast(target, Text(low, Level.AND_BITS))
        sign = 1 << bits - 1
        return self._cast(target, Text(f"(({low}) ^ {sign}) - {sign}", Level.ADD))

    def _whole(self, source: Attribute, target: Attribute, text: Text) -> Text:
        """A float's whole part, by a function: C leaves the conversion of a value that does not fit undefined."""
        return Text(f"{self._language.truncation(source, target)}({text.text})")

    def _cast(self, type: Attribute, text: Text) -> Text:
        return self._cast_to(self._language.type_name(type), text)

    def _cast_to(self, name: str, text: Text) -> Text:
        return Text(f"({name}){text.at(Level.UNARY)}", Level.UNARY)

    def _bitcast(self, op: arith.BitcastOp) -> Text:
        same = isinstance(op.input.type, IntegerType) and isinstance(op.result.type, IntegerType)
        if same or is_stored(op.input.type) or is_stored(op.result.type):
            return self._cast(op.result.type, self._values.text(op.input))
        name = "bits" if isinstance(op.result.type, IntegerType) else "from_bits"
        float_type = op.input.type if name == "bits" else op.result.type
        text = Text(f"{self._language.function(name, float_type)}({self._values.at(op.input)})")
        return self._cast(op.result.type, text) if is_unsigned(op.result.type) else text
