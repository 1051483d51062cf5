"""Drawn models some of whose inputs' dimensions change from call to call.

A model whose dimensions have names is imported with ranges of which its own extents are the greatest. In each call the
first elements are the inputs, and whatever lies beyond them in the buffers is drawn anew: nothing may depend on it. The
result is what the model gives that is drawn with these inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

import numpy as np
from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp

from tests.fuzz.case import Array, Case
from tests.fuzz.shrink import all_values
from tests.fuzz.values import KINDS, draw_array
from treadle.artifact.manifest import Tensor
from treadle.backends.program import Program
from treadle.frontends.onnx import import_model
from treadle.shapes.dim import Dim
from treadle.shapes.dynamic import DynamicCalls

Values = Mapping[str, int]
Place = tuple[str, int]
"""An input, and one of its dimensions."""

NAMES = ("n", "m")


@dataclass(frozen=True)
class RangedCase:
    """A case, the symbols of its inputs' dimensions, and the seed of its calls.

    exact: tensors that shapes are computed with: they have one value in each call, whatever rounding is free to do
    least: the smallest extents, where they are not 1
    """

    case: Case
    symbols: Mapping[Place, str]
    seed: int
    exact: frozenset[str] = frozenset()
    least: Values = field(default_factory=dict[str, int])

    @classmethod
    def draw(cls, case: Case, seed: int) -> RangedCase | None:
        """Up to two extents of inputs change: wherever they occur, or in one dimension alone. None if there is none
        above 1."""
        random = Random(seed)
        places = [
            (name, d) for name, array in case.inputs.items() for d, extent in enumerate(array.shape) if extent > 1
        ]
        symbols: dict[Place, str] = {}
        for symbol in NAMES[: random.randint(1, 2)]:
            free = [place for place in places if place not in symbols]
            if not free:
                break
            chosen = random.choice(free)
            alike = [p for p in free if _extent(case, p) == _extent(case, chosen)]
            symbols.update(dict.fromkeys(alike if random.random() < 0.8 else [chosen], symbol))
        return cls(case, symbols, seed) if symbols else None

    @property
    def dims(self) -> dict[str, Dim]:
        """The range of each symbol: up to the extent that the case has."""
        return {
            symbol: Dim(symbol, self.least.get(symbol, 1), _extent(self.case, place))
            for place, symbol in self.symbols.items()
        }

    def described(self) -> str:
        """The ranges, and where they are."""
        places = ", ".join(f"{symbol} in {name}[{d}]" for (name, d), symbol in self.symbols.items())
        return f"{', '.join(map(str, self.dims.values()))} ({places})"

    def model(self) -> ModelProto:
        """The case's model with names for extents, and outputs whose shapes are not said."""
        model = self.case.model()
        for entry in model.graph.input:
            for d, extent in enumerate(entry.type.tensor_type.shape.dim):
                if (entry.name, d) in self.symbols:
                    extent.dim_param = self.symbols[entry.name, d]
        for entry in model.graph.output:
            entry.type.tensor_type.ClearField("shape")
        return model

    def module(self) -> ModuleOp:
        """Imported with the ranges; raises what the importer raises."""
        return import_model(self.model().SerializeToString(), dict(self.dims))

    @cached_property
    def calls(self) -> Sequence[Values]:
        """The greatest extents, the least, and others between."""
        random = Random(self.seed)
        greatest, least = (
            {name: getattr(dim, end) for name, dim in self.dims.items()} for end in ("greatest", "least")
        )
        between = [{name: random.randint(least[name], greatest[name]) for name in greatest} for _ in range(3)]
        calls = [greatest, least, *between]
        return [dict(call) for call in dict.fromkeys(tuple(call.items()) for call in calls)]

    def at(self, values: Values) -> Case | None:
        """The case of a call; None if some node does not take its operands there."""
        inputs = {
            name: np.array(array[tuple(self._kept(name, array, values))]) for name, array in self.case.inputs.items()
        }
        case = replace(self.case, inputs=inputs)
        found = all_values(case)
        if found is None:
            return None
        nodes = [node for node in case.nodes if self.exact.isdisjoint(node.output)]
        constants = {**case.constants, **{name: found[name] for name in self.exact & found.keys()}}
        types = {name: (found[name].dtype, found[name].shape) for name in case.outputs}
        return replace(case, nodes=nodes, constants=constants, types=types)

    def _kept(self, name: str, array: Array, values: Values) -> list[slice]:
        return [slice(values.get(self.symbols.get((name, d), ""))) for d in range(array.ndim)]

    def arguments(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Buffers of the greatest extents, in which the inputs come first."""
        rng, random = np.random.default_rng(self.seed), Random(self.seed)
        buffers: list[Array] = []
        for name, array in inputs.items():
            whole = self.case.inputs[name]
            buffer = array
            if array.shape != whole.shape:
                buffer = draw_array(rng, whole.dtype, whole.shape, random.choice(KINDS)).copy()
                buffer[tuple(map(slice, array.shape))] = array
            buffers.append(buffer)
        return buffers


def _extent(case: Case, place: Place) -> int:
    return case.inputs[place[0]].shape[place[1]]


def calls_of(program: Program) -> DynamicCalls:
    """How calls become runs of a program."""
    inputs, outputs = (
        [
            Tensor(spec.name, spec.shape, str(spec.dtype), each, spec.dense)
            for spec, each in zip(specs, [*extents, *[()] * (len(specs) - len(extents))], strict=True)
        ]
        for specs, extents in ((program.inputs, program.input_extents), (program.outputs, program.output_extents))
    )
    return DynamicCalls(program.symbols, program.extents, inputs, outputs, program.found)


__all__ = ["RangedCase", "Values", "calls_of"]
