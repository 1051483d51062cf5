"""One fused group as a program by itself, so that it can be scheduled, measured and named apart from its model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from treadle.dialects.graph import ConstantOp, FusedOp
from treadle.errors import TreadleError
from treadle.passes.graph.demand.facts import Extents, enclosing_function, extents_of

SYMBOLS = "symbols"
"""The attribute of @main that has the ranges."""
_RANGE = (SYMBOLS, "extents")
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
        """What names the group in a database: `DIGEST_DIGITS` hexadecimal digits. Equal groups of different ranges, as
        far as types do not tell them apart, have one name."""
        unnamed = self.module.clone()
        group_of(unnamed).properties["label"] = type(self.fused.label)("")
        main_of(unnamed).attributes.pop(SYMBOLS, None)
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


def ranged_group_program(fused: FusedOp) -> GroupProgram | None:
    """The program of a group of a ranged model, with its demands, and with the module's extents as its last arguments;
    None where nothing is demanded in part."""
    main = enclosing_function(fused)
    extents: Extents = {} if main is None else extents_of(main)
    if main is None or fused.demands is None or not extents:
        return None
    operands = [value for value in captured(fused) if value not in extents]
    arguments: list[SSAValue] = [*operands, *extents]
    block = Block(arg_types=[value.type for value in arguments])
    copy = fused.clone(dict(zip(arguments, block.args, strict=True)))
    copy.schedule = None
    _forget_names(copy)
    block.add_ops([copy, ReturnOp(*copy.outputs)])
    function = FuncOp("main", ([value.type for value in arguments], list(copy.outputs.types)), Region(block))
    function.attributes.update({name: main.attributes[name] for name in _RANGE if name in main.attributes})
    constants = tuple(n for n, value in enumerate(operands) if isinstance(value.owner, ConstantOp))
    return GroupProgram(ModuleOp([function]), constants)


def main_of(module: ModuleOp) -> FuncOp:
    """The function of a group's program; TreadleError if there is none."""
    found = next((op for op in module.body.block.ops if isinstance(op, FuncOp)), None)
    if found is None:
        raise TreadleError("the program has no @main", accepted="the program of a group")
    return found


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


__all__ = [
    "DIGEST_DIGITS", "SYMBOLS", "GroupProgram", "captured", "group_of", "group_program", "main_of",
    "ranged_group_program",
]  # fmt: skip
