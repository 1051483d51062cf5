"""One fused group as a program by itself, so that it can be scheduled, measured and named apart from its model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.dialects.graph import ConstantOp, FusedOp
from treadle.errors import TreadleError

DIGEST_DIGITS = 12
"""Of a group's name: chance confuses two groups among ten million once in a thousand databases."""


@dataclass(frozen=True)
class GroupProgram:
    """A group whose operands are the arguments of @main, without names, locations, decisions, demands and constants'
    values.

    constants: the arguments' numbers that are constants in the model, such as weights
    """

    module: ModuleOp
    constants: tuple[int, ...]

    @property
    def fused(self) -> FusedOp:
        """The group."""
        return group_of(self.module)

    @property
    def label(self) -> str:
        """What the group is called in the model it was first found in."""
        return self.fused.label.data

    def text(self) -> str:
        """The program; equal groups have equal texts, whatever they are called."""
        return str(self.module)

    def digest(self) -> str:
        """What names the group in a database: `DIGEST_DIGITS` hexadecimal digits."""
        unnamed = self.module.clone()
        group_of(unnamed).properties["label"] = type(self.fused.label)("")
        constants = ",".join(map(str, self.constants))
        return hashlib.sha256((constants + str(unnamed)).encode()).hexdigest()[:DIGEST_DIGITS]


def group_program(fused: FusedOp) -> GroupProgram:
    """The program of one group of a module; the module stays as it is."""
    operands = captured(fused)
    block = Block(arg_types=[value.type for value in operands])
    copy = fused.clone(dict(zip(operands, block.args, strict=True)))
    copy.schedule = copy.demands = None
    _forget_names(copy)
    block.add_ops([copy, ReturnOp(*copy.outputs)])
    types = [value.type for value in operands], list(copy.outputs.types)
    module = ModuleOp([FuncOp("main", types, Region(block))])
    constants = tuple(n for n, value in enumerate(operands) if isinstance(value.owner, ConstantOp))
    return GroupProgram(module, constants)


def captured(fused: FusedOp) -> list[SSAValue]:
    """The tensors from outside that a group reads, in the order of their first uses."""
    found: dict[SSAValue, None] = {}
    for op in fused.body.walk():
        for value in op.operands:
            block = value.owner if isinstance(value.owner, Block) else value.owner.parent
            if block is not None and not fused.is_ancestor(block):
                found[value] = None
    return list(found)


def group_of(module: ModuleOp) -> FusedOp:
    """The one group of a program; TreadleError if there is none, or several."""
    groups = [op for op in module.walk() if isinstance(op, FusedOp)]
    if len(groups) != 1:
        raise TreadleError(f"the program has {len(groups)} groups", accepted="one graph.fused")
    return groups[0]


def _forget_names(op: Operation) -> None:
    for each in op.walk():
        for value in each.results:
            value.name_hint = None
        for region in each.regions:
            for block in region.blocks:
                for arg in block.args:
                    arg.name_hint = None


__all__ = ["DIGEST_DIGITS", "GroupProgram", "captured", "group_of", "group_program"]
