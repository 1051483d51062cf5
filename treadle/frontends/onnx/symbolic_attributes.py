"""What @main says of dimensions that change from call to call: attributes for the runtime and for `graph-demand`.

- `symbols = ["batch:1..8", "w:32..2048:32"]`: what a caller chooses: name, range, and what it is a multiple of;
- `input_extents = [["batch", "3"], ...]`: the extent of each dimension of each input;
- `extents = ["batch", "2 * seq"]`: what the last arguments are;
- `output_extents = [["batch", "seq", "768"], ["batch<=8, seq<=512"]]`: the extent of each dimension of each result; one
  that merges several lists them, with the largest of each, outermost first;
- `output_demand`: the elements within those extents;
- `found = ["found0"]`: extents that depend on data (docs/adr/0047): the last results, scalars, are their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute

from treadle.dialects.graph.fused import Constraint, DemandedAttr, dimension
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbol, Symbolic, bound_of, bounds_of, expression_of
from treadle.frontends.onnx.inputs import Input, Symbols
from treadle.index.expr import Expr


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
        "output_demand": ArrayAttr([_demand(tensor.shape, numbers) for tensor in results]),
    }


def _texts(values: Iterable[object]) -> ArrayAttr[StringAttr]:
    return ArrayAttr([StringAttr(str(value)) for value in values])


def _parts(extent: Symbolic) -> tuple[Symbolic, ...]:
    return extent.parts if isinstance(extent, Extent) else (extent,)


def _input_text(extent: Symbolic) -> str:
    return extent.name if isinstance(extent, Symbol) else str(extent)


def _text(extent: Symbolic) -> str:
    if isinstance(extent, Extent) and extent.factors:
        return ", ".join(f"{expression_of(part)}<={bound_of(part)}" for part in extent.factors)
    return str(expression_of(extent))


def _demand(shape: Sequence[Symbolic], numbers: Mapping[Expr, int]) -> DemandedAttr:
    """The elements within the extents: of a merged dimension, positions have a digit for each factor."""
    constraints: list[Constraint] = []
    if 0 in bounds_of(shape):
        return DemandedAttr.of(constraints)
    for d, extent in enumerate(shape):
        parts, rest = _parts(extent), dimension(d)
        for n, part in reversed(list(enumerate(parts))):
            number = numbers.get(expression_of(part)) if isinstance(part, Extent) else None
            if number is not None:
                constraints.append(Constraint(rest % bound_of(part) if n else rest, number))
            rest = rest // bound_of(part)
    return DemandedAttr.of(constraints)
