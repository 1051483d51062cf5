"""Shapes of PyTorch whose extents are symbols, as the extents that converters compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import Any, cast

import torch
from torch import fx
from xdsl.utils.exceptions import VerifyException

from treadle.errors import TreadleError
from treadle.frontends.common.extent import Extent, Symbol, Symbolic, maximum, minimum
from treadle.frontends.common.symbols import Symbols
from treadle.index.expr import Expr
from treadle.shapes.dim import LARGEST, Dim

Bounds = Mapping[str, tuple[int, int | None]]
"""The least and the greatest value of PyTorch's symbols by their names; None: there is no greatest."""

STATIC = "numbers, and expressions of the extents of inputs"
_EXPRESSION = "sums, products, quotients by numbers, minima and maxima of extents of inputs"


def expression(value: object) -> Any:
    """The expression of a number that PyTorch knows by its symbols."""
    return cast("Any", value).node.expr


def is_symbolic_number(value: object) -> bool:
    """Whether a value is a number that depends on symbols of PyTorch."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_number(node: fx.Node) -> bool:
    """Whether a node computes with extents, or says something of them."""
    value = node.meta.get("val")
    asserts = value is None and not node.users
    return node.op == "call_function" and (asserts or is_symbolic_number(value) or isinstance(value, int | float))


def symbols_of(value: object) -> set[str]:
    """The names of PyTorch's symbols on which a number depends."""
    return {str(each) for each in expression(value).free_symbols} if is_symbolic_number(value) else set()


@dataclass(frozen=True)
class Ranges:
    """What PyTorch's symbols are: extents of a range, or numbers.

    dims:   the dimensions that a caller chooses
    values: the extents, or numbers, by the names of PyTorch's symbols
    chosen: the extents that a caller chooses, by their expressions
    """

    dims: Symbols = field(default_factory=Symbols)
    values: Mapping[str, Symbolic] = field(default_factory=dict[str, Symbolic])
    chosen: Mapping[Expr, Symbol] = field(default_factory=dict[Expr, Symbol])

    @staticmethod
    def of(inputs: Mapping[str, torch.Tensor], bounds: Bounds, names: Mapping[str, str] | None = None) -> Ranges:
        """The symbols that the extents of inputs are expressions of.

        inputs: by their names, as PyTorch knows them
        names:  what symbols are called; by default by input and dimension, such as `x_0`

        TreadleError: a dimension without a greatest extent, a symbol that no extent of an input gives.
        """
        found = dict[str, Symbolic]()
        symbols = Symbols()
        places = list(_places(inputs))
        for name, dimension, extent in sorted(places, key=lambda place: not place[2].is_Symbol):
            free = sorted(map(str, extent.free_symbols))
            unknown = [each for each in free if each not in found]
            if not unknown:
                continue
            where = f"dimension {dimension} of input '{name}'"
            if len(unknown) > 1:
                raise TreadleError(f"the extent {extent} says none of {', '.join(unknown)}", where, _EXPRESSION)
            chosen = (names or {}).get(unknown[0], f"{name}_{dimension}")
            found[unknown[0]] = _solved(extent, unknown[0], bounds, symbols, chosen, where)
        chosen = (symbols.extent(dim, name, {}) for name, dim in symbols.dims.items())
        return Ranges(symbols, found, {each.expression: each for each in chosen if isinstance(each, Symbol)})

    def extent(self, value: object, where: str) -> Symbolic:
        """A number of PyTorch's; TreadleError for one that depends on data, and for what extents do not say."""
        if not is_symbolic_number(value):
            return cast("int", value)
        if not isinstance(value, torch.SymInt):
            raise TreadleError(f"the number {value} changes from call to call", where, "whole numbers")
        return self.of_expression(expression(value), where)

    def of_expression(self, value: Any, where: str) -> Symbolic:
        """The extent of an expression of PyTorch's symbols. Raises what `extent` raises."""
        try:
            found = _computed(value, self.values)
            return self.chosen.get(found.expression, found) if isinstance(found, Extent) else found
        except KeyError as error:
            (missing,) = error.args
            message = f"the extent {value}, of {missing}, which depends on data or is no extent of an input"
            raise TreadleError(message, where, STATIC) from error
        except (_Unknown, VerifyException) as error:
            raise TreadleError(f"the extent {value}: {error}", where, _EXPRESSION) from error

    def shape(self, value: torch.Tensor, where: str) -> tuple[Symbolic, ...]:
        """The extents of a tensor. Raises what `extent` raises."""
        return tuple(self.extent(each, where) for each in cast("Sequence[object]", value.shape))


def _places(inputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, int, Any]]:
    for name, tensor in inputs.items():
        for dimension, extent in enumerate(cast("Sequence[object]", tensor.shape)):
            if is_symbolic_number(extent) and expression(extent).free_symbols:
                yield name, dimension, expression(extent)


def _solved(extent: Any, symbol: str, bounds: Bounds, symbols: Symbols, name: str, where: str) -> Symbolic:
    """A symbol by an extent that is a multiple of it, or as many more; the extent becomes a dimension of its own."""
    (free,) = (each for each in extent.free_symbols if str(each) == symbol)
    offset, step = extent.subs(free, 0), extent.subs(free, 1) - extent.subs(free, 0)
    affine = offset.is_Integer and step.is_Integer and extent.subs(free, 7) == 7 * step + offset
    if not affine or step < 1 or (step != 1 and offset != 0):
        raise TreadleError(f"the extent {extent} does not say {symbol}", where, f"{symbol} itself, or a multiple of it")
    low, high = bounds.get(symbol, (0, None))
    if high is None or high * int(step) + int(offset) > LARGEST:
        message = f"the extent {extent} has no upper bound"
        raise TreadleError(message, where, 'one, such as torch.export.Dim("n", max=512), for which memory is planned')
    multiple, more = int(step), int(offset)
    own = symbols.extent(_dim(name, low * multiple + more, high * multiple + more, multiple), where, {})
    return (own - more) // multiple if isinstance(own, Extent) else (int(own) - more) // multiple


def _dim(name: str, low: int, high: int, multiple: int) -> Dim:
    plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return Dim(plain if plain.isidentifier() else f"d_{plain}", max(low, 0), high, multiple)


# Expressions of PyTorch's symbols. They are told apart by the names of their classes, most of which are private.


class _Unknown(Exception):
    """A function that extents do not have."""


_OF_NUMBERS: dict[str, Callable[[Sequence[Symbolic]], Symbolic]] = {
    "Add": sum,
    "Mul": prod,
    "FloorDiv": lambda given: given[0] // given[1],
    "CleanDiv": lambda given: given[0] // given[1],
    "Mod": lambda given: given[0] % given[1],
    "PythonMod": lambda given: given[0] % given[1],
    "ModularIndexing": lambda given: given[0] // given[1] % given[2],
    "Max": lambda given: reduce(maximum, given),
    "Min": lambda given: reduce(minimum, given),
}
_SAME = {"ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "Identity"}
"""Functions that leave whole numbers as they are."""


def _computed(value: Any, values: Mapping[str, Symbolic]) -> Symbolic:
    kind = type(value).__name__
    if value.is_Symbol:
        return values[str(value)]
    if value.is_Integer or (value.is_Float and value == int(value)):
        return int(value)
    given = [_computed(each, values) for each in value.args]
    if kind in _SAME:
        return given[0]
    if kind == "Pow" and value.args[1].is_Integer and value.args[1] > 0:
        return prod([given[0]] * int(value.args[1]))
    if kind not in _OF_NUMBERS or not given:
        raise _Unknown(f"{kind} is no function of extents")
    return _OF_NUMBERS[kind](given)


__all__ = ["Bounds", "Ranges", "expression", "is_number", "is_symbolic_number", "symbols_of"]
