"""Drawn models of whose outputs only a part is needed: nothing but that part has to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, StringAttr, TensorType, i64
from xdsl.dialects.func import FuncOp

from tests.fuzz.case import Array, Case
from treadle.dialects.graph import RequiredAttr
from treadle.dialects.graph.fused import Constraint, dimension
from treadle.frontends.onnx import import_model
from treadle.index.expr import Expr

EXTENTS = ("n", "m")
LIMITS = (1, 2, 3, 5, 8, 16, 31)


@dataclass(frozen=True)
class RequiredCase:
    """A drawn case whose outputs are needed where digits of their indices are below two numbers, which are data."""

    case: Case
    seed: int

    @cached_property
    def required_regions(self) -> Sequence[RequiredAttr]:
        """What is needed of each output."""
        random = Random(self.seed)
        return [_drawn(random, self.case.types[name][1]) for name in self.case.outputs]

    def module(self) -> ModuleOp:
        """The model with the numbers as its last arguments."""
        module = import_model(self.case.content())
        main = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
        block, names = main.body.block, main.attributes["input_names"]
        for name in EXTENTS:
            block.insert_arg(TensorType(i64, []), len(block.args)).name_hint = name
        assert isinstance(names, ArrayAttr)
        extents = [StringAttr(name) for name in EXTENTS]
        main.function_type = FunctionType.from_lists(block.arg_types, [*main.function_type.outputs])
        main.attributes["input_names"] = ArrayAttr([*names, *extents])
        main.attributes["extents"] = ArrayAttr(extents)
        main.attributes["output_required"] = ArrayAttr(self.required_regions)
        return module

    def draw_extents(self, times: int) -> list[list[int]]:
        """So many pairs of numbers."""
        random = Random(self.seed)
        return [[random.choice(LIMITS) for _ in EXTENTS] for _ in range(times)]

    def needed(self, output: int, extents: Sequence[int]) -> Array:
        """Which elements of an output are needed."""
        shape = self.case.types[self.case.outputs[output]][1]
        needed = np.ones(shape, bool)
        for where in np.ndindex(shape):
            values = {f"d{d}": index for d, index in enumerate(where)}
            needed[where] = all(
                each.index.evaluate(values) < extents[each.extent] for each in self.required_regions[output].data
            )
        return needed


def _drawn(random: Random, shape: Sequence[int]) -> RequiredAttr:
    long = [d for d, extent in enumerate(shape) if extent > 1]
    chosen = [random.choice(long) for _ in range(random.randint(1, 2))] if long else []
    return RequiredAttr.of(Constraint(_digits(random, d, shape[d]), random.randrange(len(EXTENTS))) for d in chosen)


def _digits(random: Random, d: int, extent: int) -> Expr:
    """A dimension, or a quotient or a remainder of it, as of merged ones."""
    divisors = [c for c in range(2, extent) if extent % c == 0]
    if not divisors or random.random() < 0.6:
        return dimension(d)
    divisor = random.choice(divisors)
    return dimension(d) // divisor if random.random() < 0.5 else dimension(d) % divisor


__all__ = ["RequiredCase"]
