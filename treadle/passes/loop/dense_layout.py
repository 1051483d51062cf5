"""Where the elements of a call lie in an argument of @main without gaps: strides are products of extents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue

from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.graph.demand.facts import extents_of
from treadle.shapes import parse_dim


@dataclass(frozen=True)
class Part:
    """A dimension of a tensor, or a factor of one that merges several.

    dimension: its number; divisor: what the index is divided by; is_first: nothing is divided off before
    bound: the largest extent; extent: the number of the extent of @main that it has in a call, None where it is the
        bound in every call; least: the least that the extent may be
    is_strided: something behind it changes, and with that the stride
    """

    dimension: int
    divisor: int
    is_first: bool
    bound: int
    extent: int | None
    least: int
    is_strided: bool

    @property
    def size(self) -> Expr:
        """The extent as a variable of its number."""
        return const(self.bound) if self.extent is None else extent_variable(self.extent, self.least, self.bound)

    def of(self, index: Expr) -> Expr:
        """The part of an index along the dimension."""
        quotient = floordiv(index, self.divisor)
        return quotient if self.is_first else mod(quotient, self.bound)


def extent_variable(number: int, least: int, bound: int) -> Expr:
    """An extent of @main in index arithmetic."""
    return var(("extent", number), least, bound)


@dataclass(frozen=True)
class Changing:
    """A tensor of @main some of whose extents change, all of which are arguments of @main."""

    value: SSAValue
    parts: Sequence[Part]


def changing_inputs(main: FuncOp) -> dict[int, Changing]:
    """The inputs that change, by their positions."""
    values = main.body.block.args[: len(main.body.block.args) - len(extents_of(main))]
    found = parts_of(main, "input_extents", list(map(shape_of, values)))
    return {n: Changing(values[n], parts) for n, parts in found.items()}


def changing_outputs(main: FuncOp) -> dict[int, Changing]:
    """The outputs that change, by their positions."""
    end = main.body.block.last_op
    assert isinstance(end, ReturnOp)
    found = parts_of(main, "output_extents", list(map(shape_of, end.operands)))
    return {n: Changing(end.operands[n], parts) for n, parts in found.items()}


def parts_of(main: FuncOp, name: str, shapes: Sequence[Sequence[int]]) -> dict[int, Sequence[Part]]:
    """The parts of tensors that change, by their numbers.

    name: of the attribute of @main that has their extents; shapes: the largest ones
    """
    given = main.attributes.get(name)
    if not isinstance(given, ArrayAttr):
        return {}
    numbers = {text: n for n, text in enumerate(_texts(main.attributes.get("extents")))}
    least: dict[str, int] = {}
    for dim in map(parse_dim, _texts(main.attributes.get("symbols"))):
        # As an expression, `rows` in steps of 16 is `16 * (rows // 16)`.
        text = dim.name if dim.multiple == 1 else f"{dim.multiple} * ({dim.name} // {dim.multiple})"
        least |= dict.fromkeys((dim.name, text), dim.least)
        numbers |= {dim.name: numbers[text]} if text in numbers else {}
    each = enumerate(zip(map(_texts, given.data), shapes, strict=False))
    found = {n: _parts(texts, shape, numbers, least) for n, (texts, shape) in each}
    return {n: parts for n, parts in found.items() if any(part.extent is not None for part in parts)}


def _parts(
    texts: Sequence[str], shape: Sequence[int], numbers: Mapping[str, int], least: Mapping[str, int]
) -> Sequence[Part]:
    """None at all where an extent is no argument of @main."""
    found: list[Part] = []
    is_strided = False
    for d, (text, whole) in reversed(list(enumerate(zip(texts, shape, strict=True)))):
        factors = list(_factors(text, whole))
        for n, (expression, bound) in reversed(list(enumerate(factors))):
            number = numbers.get(expression)
            if number is None and not expression.isdigit():
                return []
            divisor = prod(factor for _, factor in factors[n + 1 :])
            found.append(Part(d, divisor, n == 0, bound, number, least.get(expression, 0), is_strided))
            is_strided = is_strided or number is not None
    return found[::-1]


def _factors(text: str, whole: int) -> Iterator[tuple[str, int]]:
    """The factors of a dimension, each with its bound: `batch<=8, seq<=512`, or one of them alone."""
    for factor in text.split(","):
        expression, sign, bound = factor.partition("<=")
        yield expression.strip(), int(bound) if sign else whole


def _texts(attribute: Attribute | None) -> Sequence[str]:
    listed = attribute.data if isinstance(attribute, ArrayAttr) else ()
    return [text.data for text in listed if isinstance(text, StringAttr)]


__all__ = ["Changing", "Part", "changing_inputs", "changing_outputs", "extent_variable", "parts_of"]
