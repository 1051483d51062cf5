"""Parts of a model by themselves: a fused group as a program, and a product as it is in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import ComputeOp, ConstantOp, FusedOp, MatmulOp, ReduceOp, RequiredAttr, WholeOp, YieldOp
from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.graph.extents import Extents, enclosing_function, extents_of
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.graph.graph_required_regions import unknown_extent
from treadle.schedules.reduction_end import reduction_end
from treadle.schedules.template import Anchor

# Which member of a fused group is scheduled.


def anchor_of(fused: FusedOp) -> Anchor:
    """The group's product or reduction; without one, the operator that gives the group's result; of several results,
    the first member, with which the others are aligned.

    TreadleError where the group has two candidates, or is scheduled already.
    """
    members = list(fused.body.block.ops)
    heavy: list[Anchor] = [
        op
        for op in members
        if isinstance(op, WholeOp)
        or (isinstance(op, ComputeOp) and any(isinstance(o, ReduceOp) for o in op.body.walk()))
    ]
    if len(heavy) > 1:
        raise TreadleError(
            f"group {fused.label.data!r} has {len(heavy)} anchors", location_of(fused), "one matmul or reduction"
        )
    if heavy:
        return heavy[0]
    results = yielded_values(fused.body)
    last = results[0].owner if len(results) == 1 else members[0]
    if not isinstance(last, ComputeOp):
        raise TreadleError(f"group {fused.label.data!r} gives no graph.compute, and has no matmul", location_of(fused))
    return last


# One fused group as a program by itself, so that it can be scheduled, measured and named apart from its model.

SYMBOLS = "symbols"
"""The attribute of @main that has the ranges."""
_RANGE = (SYMBOLS, "extents")
DIGEST_DIGITS = 12
"""Of a group's name: chance confuses two groups among ten million once in a thousand databases."""


@dataclass(frozen=True)
class GroupProgram:
    """A group whose operands are the arguments of @main, without names, locations, decisions, required regions and
    constants' values.

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
    copy.schedule = copy.required_regions = None
    _forget_names(copy)
    block.add_ops([copy, ReturnOp(*copy.outputs)])
    types = [value.type for value in operands], list(copy.outputs.types)
    module = ModuleOp([FuncOp("main", types, Region(block))])
    constants = tuple(n for n, value in enumerate(operands) if isinstance(value.owner, ConstantOp))
    return GroupProgram(module, constants)


def ranged_group_program(fused: FusedOp) -> GroupProgram | None:
    """The program of a group of a ranged model, with its required regions, and with the module's extents as its last
    arguments; None where nothing is required in part."""
    main = enclosing_function(fused)
    extents: Extents = {} if main is None else extents_of(main)
    if main is None or fused.required_regions is None or not extents:
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


# A product of a ranged model as it is in one call: with the extents that somebody needs then.


def needed_shape(shape: Sequence[int], required: RequiredAttr, extents: Sequence[int]) -> tuple[int, ...]:
    """How many indices of each dimension are required where the extents have these values.

    Constraints on several dimensions at once are left out: they need more elements than there are counted.
    TreadleError for one on an extent that has no value.
    """
    unknown = [constraint for constraint in required.data if constraint.extent >= len(extents)]
    if unknown:
        raise unknown_extent(unknown[0].extent, len(extents))
    found: list[int] = []
    for d, extent in enumerate(shape):
        inside = np.ones(extent, np.bool_)
        for constraint in required.data:
            if {str(v) for v in constraint.index.vars()} == {f"d{d}"}:
                indices: Any = np.arange(extent)
                inside &= constraint.index.evaluate({f"d{d}": indices}) < extents[constraint.extent]
        found.append(max(1, int(inside.sum())))
    return tuple(found)


def needed_terms(anchor: MatmulOp, values: Sequence[int], *, fused: bool) -> int:
    """How many terms of a sum a call with these values of the extents computes, at least 1.

    fused: only masks in the product's own group end it, as `loop-clamp-reductions` finds them on a CPU; kernels for
        GPUs end at those that other groups store, too
    """
    end = reduction_end(anchor, fused=fused)
    return anchor.reduction_extent if end is None else max(1, min(anchor.reduction_extent, values[end.number]))


def instance_of(
    anchor: MatmulOp, shape: Sequence[int], *, terms: int | None = None, is_plain: bool = False
) -> MatmulOp:
    """A product of this result and of so many terms, in a group with nothing but the definitions of its operands: these
    have fewer elements, and read what they read of tensors as large as they are. The operands of a plain one come from
    outside."""
    *batch, rows, columns = shape
    block, group, terms = Block(), anchor.parent_op(), terms or anchor.reduction_extent
    operands: list[SSAValue] = []
    for operand, last in ((anchor.a, (rows, terms)), (anchor.b, (terms, columns))):
        own = shape_of(operand)
        wanted = (*(batch if len(own) > 2 else ()), *last)
        operands.append(_smaller(operand, wanted, block, None if is_plain else group))
    product = MatmulOp(*operands, sums=anchor.sums)
    product.precision = anchor.precision
    block.add_ops([product, YieldOp(product.result)])
    FusedOp("instance", Region(block))
    return product


def _smaller(operand: SSAValue, shape: Sequence[int], block: Block, group: Operation | None) -> SSAValue:
    """An operand with fewer elements: its definition, if the group has that, else a tensor from outside."""
    assert isinstance(operand.type, TensorType)
    type = TensorType(operand.type.get_element_type(), shape)
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or group is None or not group.is_ancestor(producer):
        return Block(arg_types=[type]).args[0]
    copy = producer.clone()
    block.add_op(copy)
    return Rewriter.replace_value_with_new_type(copy.result, type)
