"""A model while it is drawn: tensors so far, and choices among what ONNX's schemas allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from random import Random
from typing import Any, TypeVar

import numpy as np
from onnx import NodeProto, defs, helper

from tests.fuzz.case import Case
from tests.fuzz.definition import evaluate_node
from tests.fuzz.values import DTYPES, KINDS, Array, draw_array

EXTENTS = (0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11, 13, 16, 17, 31, 37, 64, 67)
RANKS = (0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5)
LARGEST = 3000
"""Elements of a tensor."""

_T = TypeVar("_T")
Dtype = np.dtype[Any]
Accept = Callable[[tuple[int, ...]], bool]


class Undrawable(Exception):
    """The tensors so far, or the opset, do not allow what was tried."""


@cache
def schema_types(operator: str, opset: int, position: int) -> tuple[Dtype, ...]:
    """The element types that ONNX allows for an input, among those that are drawn."""
    try:
        schema = defs.get_schema(operator, opset)
    except defs.SchemaError as error:
        raise Undrawable(f"{operator} of opset {opset}") from error
    if schema.deprecated:
        raise Undrawable(f"{operator} of opset {opset}")
    formal = schema.inputs[min(position, len(schema.inputs) - 1)]
    return tuple(d for d in DTYPES if f"tensor({_name(d)})" in formal.types)


def _name(dtype: Dtype) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


@dataclass
class Draw:
    """The choices of one seed, and what they made so far: `values` has every tensor, in its declared type."""

    seed: int
    opset: int = 0
    values: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: dict[str, Array] = field(default_factory=dict[str, Array])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.rng = np.random.default_rng(self.seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choice(self, options: Sequence[_T]) -> _T:
        if not options:
            raise Undrawable("nothing to choose from")
        return self.random.choice(options)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def types(self, operator: str, position: int = 0) -> tuple[Dtype, ...]:
        return schema_types(operator, self.opset, position)

    def shape(self, ranks: Sequence[int] = RANKS, least: int = 0) -> tuple[int, ...]:
        """A shape of one of the ranks, of not too many elements."""
        rank = self.choice(ranks)
        shape = [self.choice([e for e in EXTENTS if e >= least]) for _ in range(rank)]
        while prod(shape) > LARGEST:
            shape[self.random.randrange(rank)] = self.choice((1, 2, 3))
        return tuple(shape)

    def tensor(
        self, types: Sequence[Dtype], ranks: Sequence[int] = RANKS, accept: Accept = lambda _: True, least: int = 0
    ) -> str:
        """The name of a tensor of one of the types and ranks: one that there is, rather a late one, or a new one."""
        found = [
            name
            for name, array in self.values.items()
            if array.dtype in types
            and array.ndim in ranks
            and accept(array.shape)
            and min(array.shape, default=1) >= least
        ]
        if found and self.chance(0.8):
            return found[max(self.random.randrange(len(found)) for _ in range(2))]
        for _ in range(50):
            shape = self.shape(ranks, least)
            if accept(shape):
                return self.new(self.preferred(types), shape)
        raise Undrawable("no shape fits")

    def preferred(self, types: Sequence[Dtype]) -> Dtype:
        """One of the types, float32 the most often."""
        return self.choice([*types, *[t for t in types if t == np.float32] * 3])

    def of(self, dtype: Dtype, shape: Sequence[int]) -> str:
        """The name of a tensor of this type and shape, one that there is or a new one."""
        found = [n for n, array in self.values.items() if array.dtype == dtype and array.shape == tuple(shape)]
        return self.choice(found) if found and self.chance(0.6) else self.new(dtype, shape)

    def new(self, dtype: Dtype, shape: Sequence[int]) -> str:
        """A new input, or a new constant."""
        array = draw_array(self.rng, dtype, shape, self.choice(KINDS))
        if self.chance(0.4):
            return self.constant(array)
        return self.input(array)

    def input(self, array: Array) -> str:
        return self._named(self.inputs, "x", array)

    def constant(self, array: Array) -> str:
        return self._named(self.constants, "c", array)

    def longs(self, values: Sequence[int]) -> str:
        """A constant of int64."""
        return self.constant(np.array(values, np.int64))

    def partner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with another one."""
        kept = tuple(shape)[self.between(0, len(shape)) if self.chance(0.4) else 0 :]
        return tuple(1 if self.chance(0.25) else extent for extent in kept)

    def array(self, name: str) -> Array:
        return self.values[name]

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Appends a node of one output; an attribute that is None is left away. Errors as `node_of`."""
        self.node_of(1, operator, inputs, **attributes)

    def node_of(self, outputs: int, operator: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Appends a node. Undrawable if ONNX's reference evaluator does not take it, or gives too much."""
        attributes = {name: value for name, value in attributes.items() if value is not None}
        names = [f"t{len(self.nodes)}_{n}" for n in range(outputs)]
        node = helper.make_node(operator, list(inputs), names, **attributes)
        try:
            results = evaluate_node(node, self.opset, [self.values[name] if name else None for name in inputs])
        except (ValueError, TypeError, IndexError, RuntimeError, ArithmeticError) as error:
            raise Undrawable(f"{operator}: {error!r}") from error
        if any(result.dtype not in DTYPES or result.size > LARGEST or result.ndim > 6 for result in results):
            raise Undrawable(f"{operator} gives too much")
        self.nodes.append(node)
        self.values.update(zip(names, results, strict=True))

    def case(self, outputs: Sequence[str]) -> Case:
        types = {name: (self.values[name].dtype, self.values[name].shape) for name in outputs}
        return Case(self.opset, self.nodes, self.inputs, self.constants, outputs, types)

    def _named(self, group: dict[str, Array], prefix: str, array: Array) -> str:
        name = f"{prefix}{len(group)}"
        group[name] = self.values[name] = array
        return name


Recipe = Callable[[Draw], None]
Recipes = Mapping[str, Recipe]

__all__ = ["LARGEST", "Draw", "Recipe", "Recipes", "Undrawable", "schema_types"]
