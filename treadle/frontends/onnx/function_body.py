"""Functions that loops and branches call, while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import FunctionType, LocationAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.onnx.node import ValueNeeded


class SymbolicBody(TreadleError):
    """A loop or a branch reads or gives a tensor whose extents change from call to call."""

    def __init__(self, what: str, where: str):
        super().__init__(f"{what} has extents that change from call to call", where, "static extents in its body")


class IteratedValue(ValueNeeded):
    """A loop's body needs the value of what each iteration has another one of: its counter, its state, its slices."""


class FunctionBody:
    """A block with a builder of its own.

    captures: the tensors of the names around it, as its own: what is known is known here, too, the others become
        arguments behind those of `types`
    """

    def __init__(
        self, types: Sequence[TensorType], around: Mapping[str, Tensor], where: str, location: LocationAttr
    ) -> None:
        self._block = Block(arg_types=types)
        self._where, self._given = where, len(types)
        self.builder = GraphBuilder(self._block)
        self.builder.location = location
        self.arguments = [Tensor(type, None, each) for type, each in zip(types, self._block.args, strict=True)]
        self.captures = _Captures(around, self._block, where)

    def outside(self, error: ValueNeeded) -> ValueNeeded:
        """An error of this body as one of what is around it: of the tensors that it captures."""
        reached = arguments_of(error.tensors)
        kind = ValueNeeded if reached.isdisjoint(self._block.args[: self._given]) else IteratedValue
        captured = zip(self._block.args[self._given :], self.captures.outer, strict=True)
        tensors = [outer for argument, outer in captured if argument in reached]
        return kind(error.message, error.where, error.accepted, *tensors)

    def function(self, name: str, results: Sequence[Tensor]) -> tuple[FuncOp, list[Tensor]]:
        """Ends it: the function, and the tensors that it captures."""
        for tensor in results:
            if tensor.extents is not None or tensor.elements is not None:
                raise SymbolicBody("a result of the body", self._where)
        values = [self.builder.value(tensor) for tensor in results]
        if self.builder.extents or self.builder.found.counts:
            raise SymbolicBody("an operator of the body", self._where)
        self._block.add_op(ReturnOp(*values))
        erase_dead(self._block)
        captured = list(self.captures.outer)
        for position in reversed(range(len(captured))):
            argument = self._block.args[self._given + position]
            if argument.first_use is None:
                self._block.erase_arg(argument)
                del captured[position]
        types = FunctionType.from_lists(self._block.arg_types, [value.type for value in values])
        return FuncOp(name, types, Region(self._block), StringAttr("private")), captured


def arguments_of(tensors: Iterable[Tensor]) -> set[SSAValue]:
    """The arguments of the block that tensors are computed from."""
    pending, seen = [x.ssa for x in tensors if x.ssa is not None], set[SSAValue]()
    found = set[SSAValue]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, Operation):
            pending += value.owner.operands
        else:
            found.add(value)
    return found


class _Captures(dict[str, Tensor]):
    """The tensors of a body by the names around it, made when they are first read."""

    def __init__(self, around: Mapping[str, Tensor], block: Block, where: str) -> None:
        super().__init__()
        self._around, self._block, self._where = around, block, where
        self._known: dict[int, Tensor] = {}
        self.outer: list[Tensor] = []

    def __missing__(self, name: str) -> Tensor:
        outer = self._around[name]
        known = self._known.get(id(outer))
        if known is None:
            known = self._known[id(outer)] = self._captured(name, outer)
        self[name] = known
        return known

    def _captured(self, name: str, outer: Tensor) -> Tensor:
        if outer.elements is not None or (outer.extents is not None and is_symbolic(outer.extents)):
            raise SymbolicBody(f"'{name}', which the body reads,", self._where)
        if outer.array is not None:
            return Tensor(outer.type, outer.array, None, outer.location)
        if 0 in outer.shape:
            return Tensor(outer.type, np.empty(outer.type.get_shape(), outer.dtype), None, outer.location)
        argument = self._block.insert_arg(outer.type, len(self._block.args))
        assert outer.ssa is not None
        argument.name_hint = outer.ssa.name_hint
        self.outer.append(outer)
        return Tensor(outer.type, None, argument)


__all__ = ["FunctionBody", "IteratedValue", "SymbolicBody", "arguments_of"]
