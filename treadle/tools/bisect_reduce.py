"""The smallest part of a graph on which a fault remains: fewer outputs first, then values in place of what computes
them.

After A. Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28 (2002): whatever is
left out, the rest is tried, and kept only if it still fails. What is left is minimal in that no single cut is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.backends.reference.run_module import arguments, find_function
from treadle.dialects.graph import ConstantOp
from treadle.dialects.graph.evaluate import evaluate_results
from treadle.tools.oracle import Array, Definition

Differs = Callable[[Definition], bool]


class Parts:
    """The values of a definition's graph, of which parts can be made."""

    def __init__(self, definition: Definition):
        self.definition = definition
        self._main = find_function(definition.module, "main")
        block = self._main.body.block
        self.values: dict[SSAValue, Array] = arguments(block, definition.inputs)
        for op in block.ops:
            if not isinstance(op, ReturnOp):
                self.values.update(zip(op.results, evaluate_results(op, self.values), strict=True))
        end = block.last_op
        assert end is not None
        self.outputs = tuple(end.operands)
        self._names = self._given_names()

    def operators(self, outputs: Collection[SSAValue], cuts: Collection[SSAValue]) -> list[Operation]:
        """The operators, without constants, that outputs need if `cuts` are given, in order."""
        needed, _ = self._needed(outputs, cuts)
        return [op for op in needed if not isinstance(op, ConstantOp)]

    def constants(self) -> frozenset[SSAValue]:
        """The values that depend on no input."""
        block = self._main.body.block
        found: set[SSAValue] = set()
        for op in block.ops:
            read = (v for inner in op.walk() for v in inner.operands if v.owner is block or v.owner.parent is block)
            if all(value in found for value in read):
                found.update(op.results)
        return frozenset(found)

    def part(self, outputs: Sequence[SSAValue], cuts: Collection[SSAValue]) -> Definition:
        """The graph that computes `outputs`, with `cuts` as inputs that have the values they had."""
        needed, inputs = self._needed(outputs, cuts)
        block = Block(arg_types=[value.type for value in inputs])
        mapper: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        for value, arg in zip(inputs, block.args, strict=True):
            arg.name_hint = value.name_hint
        for op in needed:
            copy = op.clone(mapper)
            copy.location = op.location
            block.add_op(copy)
        block.add_op(ReturnOp(*(mapper[value] for value in outputs)))
        types = [value.type for value in inputs], [value.type for value in outputs]
        main = FuncOp("main", types, Region(block))
        main.attributes["input_names"] = self._unique(inputs)
        main.attributes["output_names"] = self._unique(outputs)
        arrays = [np.ascontiguousarray(self.values[value]) for value in inputs]
        arrays = [a.reshape(self.values[value].shape) for a, value in zip(arrays, inputs, strict=True)]
        return Definition(ModuleOp([main]), arrays, self.definition.precision)

    def _needed(
        self, outputs: Collection[SSAValue], cuts: Collection[SSAValue]
    ) -> tuple[list[Operation], list[SSAValue]]:
        """Operations in order, and the values that they are given in the order of the graph."""
        block = self._main.body.block
        wanted = set(outputs)
        needed: list[Operation] = []
        for op in reversed(list(block.ops)):
            if not any(result in wanted and result not in cuts for result in op.results):
                continue
            needed.append(op)
            for inner in op.walk():
                wanted.update(v for v in inner.operands if v.owner is block or v.owner.parent is block)
        return needed[::-1], [v for v in self.values if v in wanted and (v in cuts or v.owner is block)]

    def _given_names(self) -> dict[SSAValue, str]:
        """The model's names of inputs and outputs, where they are known."""
        names: dict[SSAValue, str] = {}
        sides = ("output_names", self.outputs), ("input_names", self._main.body.block.args)
        for attribute, values in sides:
            given = self._main.attributes.get(attribute)
            if isinstance(given, ArrayAttr):
                texts = [each.data for each in given if isinstance(each, StringAttr)]
                names.update(zip(values, texts, strict=True))
        return names

    def _unique(self, values: Sequence[SSAValue]) -> ArrayAttr[StringAttr]:
        taken: list[str] = []
        for n, value in enumerate(values):
            name = self._names.get(value) or value.name_hint or f"v{n}"
            taken.append(name if name not in taken else f"{name}.{n}")
        return ArrayAttr([StringAttr(name) for name in taken])


def reduced(parts: Parts, differs: Differs, *, folded: bool) -> Definition:
    """The smallest part that was found on which `differs` holds, which it does for the whole.

    folded: whether an output may be a value that depends on no input. Kernels only copy it, once it is folded: what
            they do wrong then has little to do with its operator.
    """
    search = _Search(parts, differs, frozenset() if folded else parts.constants())
    search.one_output()
    search.earlier_output()
    search.later_start()
    while search.one_cut() or search.other_output():
        pass
    return parts.part(search.outputs, search.cuts)


class _Search:
    def __init__(self, parts: Parts, differs: Differs, excluded: frozenset[SSAValue]):
        self._parts = parts
        self._excluded = excluded
        self._differs = differs
        self.outputs: tuple[SSAValue, ...] = parts.outputs
        self.cuts: frozenset[SSAValue] = frozenset()

    def one_output(self) -> None:
        """One output alone, if one fails alone."""
        for value in self._parts.outputs if len(self.outputs) > 1 else ():
            if self._parts.operators([value], ()) and self._accept((value,), frozenset()):
                return

    def earlier_output(self) -> None:
        """The first value that fails, by halves: most of what is computed from a wrong value is wrong, too."""
        values = self._possible_outputs()
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            if self._accept((values[middle],), self.cuts):
                high = middle
            else:
                low = middle + 1

    def later_start(self) -> None:
        """As many operators as possible replaced by their values from the first on, by halves."""
        values = self._inner()
        low, high = 0, len(values)
        while low < high:
            middle = (low + high + 1) // 2
            if self._accept(self.outputs, self.cuts.union(values[:middle])):
                low = middle
            else:
                high = middle - 1

    def one_cut(self) -> bool:
        """Single values in place of what computes them, the last first; whether there was one."""
        before = self.cuts
        for value in reversed(self._inner()):
            if value in self._inner():
                self._accept(self.outputs, self.cuts | {value})
        return self.cuts != before

    def other_output(self) -> bool:
        """An inner value as the output, the first first; whether there was one."""
        return any(self._accept((value,), self.cuts) for value in self._possible_outputs())

    def _possible_outputs(self) -> list[SSAValue]:
        return [value for value in self._inner() if value not in self._excluded]

    def _inner(self) -> list[SSAValue]:
        """The values between inputs and outputs, in order."""
        operators = self._parts.operators(self.outputs, self.cuts)
        return [
            value for op in operators for value in op.results if value not in self.outputs and value not in self.cuts
        ]

    def _accept(self, outputs: tuple[SSAValue, ...], cuts: frozenset[SSAValue]) -> bool:
        if not self._differs(self._parts.part(outputs, cuts)):
            return False
        self.outputs, self.cuts = outputs, cuts
        return True


__all__ = ["Parts", "reduced"]
