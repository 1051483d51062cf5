"""Functions that loops and branches call, while they are written."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

import numpy as np
from xdsl.dialects.builtin import FunctionType, LocationAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import Extent
from treadle.frontends.onnx.node import ValueNeeded
from treadle.index.expr import Expr


class FoundInBody(TreadleError):
    """A loop or a branch finds extents that depend on data."""

    def __init__(self, where: str):
        super().__init__("an extent in the body depends on data", where, "extents in it that a caller chooses")


class IteratedValue(ValueNeeded):
    """A loop's body needs the value of what each iteration has another one of: its counter, its state, its slices."""


class FunctionBody:
    """A block with a builder of its own.

    given:    tensors that it has arguments like, with their types and extents
    captures: the tensors of the names around it, as its own: what is known is known here, too, the others become
        arguments behind those
    """

    def __init__(
        self, given: Sequence[Tensor], around: MutableMapping[str, Tensor], where: str, location: LocationAttr
    ) -> None:
        self._block = Block(arg_types=[each.type for each in given])
        self._where, self._given = where, len(given)
        self.builder = GraphBuilder(self._block)
        self.builder.location = location
        self.arguments = [
            Tensor(each.type, None, argument, None, each.extents)
            for each, argument in zip(given, self._block.args, strict=True)
        ]
        self.captures = _Captures(around, self._block)

    def outside(self, error: ValueNeeded) -> ValueNeeded:
        """An error of this body as one of what is around it: of the tensors that it captures."""
        reached = arguments_of(error.tensors)
        kind = ValueNeeded if reached.isdisjoint(self._block.args[: self._given]) else IteratedValue
        tensors = [outer for argument, outer in self.captures.outer.items() if argument in reached]
        return kind(error.message, error.where, error.accepted, *tensors)

    def function(self, name: str, results: Sequence[Tensor], around: GraphBuilder) -> tuple[FuncOp, list[Tensor]]:
        """Ends it: the function, and what its further arguments are of the tensors around it, extents among them."""
        values = [self.builder.value(tensor) for tensor in results]
        if self.builder.found.counts:
            raise FoundInBody(self._where)
        end_block(self._block, values)
        outer = dict(self.captures.outer)
        for expression, argument in self.builder.extents.items():
            if argument.first_use is not None:
                outer[argument] = around.extent(Extent(expression))
        for argument in list(self._block.args[self._given :]):
            if argument.first_use is None:
                self._block.erase_arg(argument)
        captured = [outer[argument] for argument in self._block.args[self._given :]]
        return _function(name, self._block, values), captured


def end_block(block: Block, results: Sequence[SSAValue]) -> None:
    """Writes what a block gives; operators that it does not need are erased."""
    block.add_op(ReturnOp(*results))
    erase_dead(block)


def drop_unused(extents: dict[Expr, BlockArgument], block: Block) -> None:
    """Erases the arguments that hold extents which no operator reads."""
    for expression, argument in list(extents.items()):
        if argument.first_use is None:
            del extents[expression]
            block.erase_arg(argument)


def function_of(name: str, block: Block, read: Sequence[SSAValue]) -> FuncOp:
    """A function of a block without arguments, which reads values of the block around it: these become its
    arguments."""
    for value in read:
        argument = block.insert_arg(value.type, len(block.args))
        argument.name_hint = value.name_hint
        for use in [use for use in value.uses if _is_inside(use.operation, block)]:
            use.operation.operands[use.index] = argument
    assert isinstance(block.last_op, ReturnOp)
    return _function(name, block, list(block.last_op.operands))


def values_read(block: Block) -> list[SSAValue]:
    """What the operations of a block read of the blocks around it."""
    read = (operand for op in block.walk() for operand in op.operands)
    return list(dict.fromkeys(value for value in read if not _is_of(value, block)))


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


def _function(name: str, block: Block, values: Sequence[SSAValue]) -> FuncOp:
    types = FunctionType.from_lists(block.arg_types, [value.type for value in values])
    return FuncOp(name, types, Region(block), StringAttr("private"))


def _is_inside(op: Operation, block: Block) -> bool:
    return op.parent is block or (op.parent_op() is not None and _is_inside(op.parent_op(), block))  # pyright: ignore


def _is_of(value: SSAValue, block: Block) -> bool:
    owner = value.owner
    return _is_inside(owner, block) if isinstance(owner, Operation) else owner is block


class Knowing(dict[str, Tensor]):
    """The tensors of the names around a block: what is known is written in it anew where it is read."""

    def __init__(self, around: MutableMapping[str, Tensor]) -> None:
        super().__init__()
        self._around = around

    def __missing__(self, name: str) -> Tensor:
        outer = self._around[name]
        self[name] = outer if outer.array is None and outer.elements is None else _known(outer)
        return self[name]


class _Captures(dict[str, Tensor]):
    """The tensors of a body by the names around it, made when they are first read.

    outer: the tensors around it that its arguments are
    """

    def __init__(self, around: MutableMapping[str, Tensor], block: Block) -> None:
        super().__init__()
        self._around, self._block = around, block
        self._made: dict[int, Tensor] = {}
        self.outer: dict[SSAValue, Tensor] = {}

    def __missing__(self, name: str) -> Tensor:
        outer = self._around[name]
        known = self._made.get(id(outer))
        if known is None:
            known = self._made[id(outer)] = self._captured(outer)
        self[name] = known
        return known

    def _captured(self, outer: Tensor) -> Tensor:
        if outer.array is not None or outer.elements is not None:
            return _known(outer)
        if 0 in outer.type.get_shape():
            array = np.empty(outer.type.get_shape(), outer.dtype)
            return Tensor(outer.type, array, None, outer.location, outer.extents)
        argument = self._block.insert_arg(outer.type, len(self._block.args))
        assert outer.ssa is not None
        argument.name_hint = outer.ssa.name_hint
        self.outer[argument] = outer
        return Tensor(outer.type, None, argument, None, outer.extents)


def _known(outer: Tensor) -> Tensor:
    return Tensor(outer.type, outer.array, None, outer.location, outer.extents, outer.elements)


__all__ = [
    "FoundInBody", "FunctionBody", "IteratedValue", "Knowing", "arguments_of", "drop_unused", "end_block",
    "function_of", "values_read",
]  # fmt: skip
