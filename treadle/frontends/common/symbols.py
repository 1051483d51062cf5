"""Dimensions of inputs that change from call to call, and what @main says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Block, BlockArgument

from treadle.dialects.graph.fused import Constraint, RequiredAttr, dimension
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbol, Symbolic, bound_of, bounds_of, expression_of
from treadle.index.expr import Expr
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import ExtentExpression


@dataclass
class Symbols:
    """The dimensions that change from call to call, by name."""

    dims: dict[str, Dim] = field(default_factory=dict[str, Dim])

    def extent(self, given: int | Dim | str, where: str, known: Mapping[str, Symbolic]) -> Symbolic:
        """An extent as the importer computes with it, which a text computes from `known` ones; TreadleError for a name
        with two ranges, and for a text that is no expression of such."""
        if isinstance(given, str):
            computed = derived(given, known)
            if computed is None:
                raise TreadleError(f"{given!r} is no expression of extents", where, list(known) or "numbers and ranges")
            return computed
        if not isinstance(given, Dim):
            return given
        first = self.dims.setdefault(given.name, given)
        if first != given:
            message = f"dimension '{given.name}' is {given} here and {first} before"
            raise TreadleError(message, where, "one range for each name, or another name")
        if given.least == given.greatest:
            return given.greatest
        return Symbol(given.name, given.lower, given.upper, given.multiple)


@dataclass(frozen=True)
class Input:
    """An input of a model: its type with the largest extents, and its extents where some change from call to call."""

    type: TensorType
    extents: tuple[Symbolic, ...]


def derived(text: str, known: Mapping[str, Symbolic]) -> Symbolic | None:
    """What a text such as `past + new` computes from known extents; None for one that is no such expression."""
    try:
        return ExtentExpression(text, list(known)).value(known)
    except ValueError:
        return None


# What @main says of dimensions that change from call to call: attributes for the runtime and for
# `graph-required-regions`.
#
# - `symbols = ["batch:1..8", "w:32..2048:32"]`: what a caller chooses: name, range, and what it is a multiple of;
# - `input_extents = [["batch", "3"], ...]`: the extent of each dimension of each input;
# - `extents = ["batch", "2 * seq"]`: what the last arguments are;
# - `output_extents = [["batch", "seq", "768"], ["batch<=8, seq<=512"]]`: the extent of each dimension of each
#   result; one that merges several lists them, with the largest of each, outermost first;
# - `output_required`: the elements within those extents;
# - `found = ["found0"]`: extents that depend on data (docs/adr/0047): the last results, scalars, are their values.


def symbolic_attributes(
    symbols: Symbols, inputs: Sequence[Input], results: Sequence[Tensor], g: GraphBuilder
) -> dict[str, Attribute]:
    """The attributes, by name; `g` gets the arguments that results' extents need."""
    for part in (part for tensor in results for extent in tensor.shape for part in _parts(extent)):
        if isinstance(part, Extent) and not g.found.occur_in(expression_of(part)):
            g.extent(part)
    numbers = {expression: n for n, expression in enumerate(g.extents)}
    attributes: dict[str, Attribute] = {
        "output_extents": ArrayAttr([_texts(map(_text, tensor.shape)) for tensor in results]),
        "found": _texts(g.found.counts),
    }
    if not symbols.dims:
        return attributes
    return attributes | {
        "symbols": _texts(symbols.dims.values()),
        "input_extents": ArrayAttr([_texts(map(_input_text, each.extents)) for each in inputs]),
        "extents": _texts(g.extents),
        "output_required": ArrayAttr([_required_region(tensor.shape, numbers) for tensor in results]),
    }


def _texts(values: Iterable[object]) -> ArrayAttr[StringAttr]:
    return ArrayAttr([StringAttr(str(value)) for value in values])


def _parts(extent: Symbolic) -> tuple[Symbolic, ...]:
    return extent.parts if isinstance(extent, Extent) else (extent,)


def _input_text(extent: Symbolic) -> str:
    return extent.name if isinstance(extent, Symbol) else _text(extent)


def _text(extent: Symbolic) -> str:
    if isinstance(extent, Extent) and extent.factors:
        return ", ".join(f"{expression_of(part)}<={bound_of(part)}" for part in extent.factors)
    return str(expression_of(extent))


def _required_region(shape: Sequence[Symbolic], numbers: Mapping[Expr, int]) -> RequiredAttr:
    """The elements within the extents: of a merged dimension, positions have a digit for each factor."""
    constraints: list[Constraint] = []
    if 0 in bounds_of(shape):
        return RequiredAttr.of(constraints)
    for d, extent in enumerate(shape):
        parts, rest = _parts(extent), dimension(d)
        for n, part in reversed(list(enumerate(parts))):
            number = numbers.get(expression_of(part)) if isinstance(part, Extent) else None
            if number is not None:
                constraints.append(Constraint(rest % bound_of(part) if n else rest, number))
            rest = rest // bound_of(part)
    return RequiredAttr.of(constraints)


def drop_unused(extents: dict[Expr, BlockArgument], block: Block) -> None:
    """Erases the arguments that hold extents which no operator reads."""
    for expression, argument in list(extents.items()):
        if argument.first_use is None:
            del extents[expression]
            block.erase_arg(argument)


__all__ = ["Input", "Symbols", "derived", "drop_unused", "symbolic_attributes"]
