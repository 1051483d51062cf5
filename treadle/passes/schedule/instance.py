"""Parts of a model by themselves: a fused group as a program, and its anchor as it is in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import (
    AttentionOp,
    ComputeOp,
    ConstantOp,
    FusedOp,
    MatmulOp,
    PackedMatmulOp,
    ReduceOp,
    RequiredAttr,
    WholeOp,
    YieldOp,
)
from treadle.dialects.graph.compute import only_reduce, yielded_values
from treadle.dialects.graph.extents import Extents, enclosing_function, extents_around, extents_of
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.graph.required_shape import SYMBOLS, needed_shape
from treadle.schedules.reduction_end import reduction_end
from treadle.schedules.row_analysis import Rows, analyse_rows
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


# An anchor of a ranged model as it is in one call: with the extents that are required then.


@dataclass(frozen=True)
class CallShape:
    """What a call computes of an anchor: the extents of its result, and the terms along its reduction, which are the
    keys of attention."""

    shape: tuple[int, ...]
    terms: int


def whole_shape(anchor: Anchor) -> CallShape:
    """The shape of the largest call."""
    return CallShape(tuple(anchor.shape), _all_terms(anchor))


def call_shape(anchor: Anchor, required: RequiredAttr, values: Sequence[int], *, fused: bool) -> CallShape:
    """What a call with these values of the extents computes of an anchor of which `required` is needed.

    fused: only masks in the anchor's own group end a product's sum, as `loop-clamp-reductions` finds them on a CPU, and
        no other fold; kernels for GPUs end at those that other groups store, too (`reduction_end`)
    """
    needed, whole = list(needed_shape(anchor.shape, required, values)), anchor.shape
    if isinstance(anchor, AttentionOp):
        # Elements of a head are multiplied together, and heads share keys.
        needed[-1] = whole[-1]
        if len(needed) > 2:
            needed[-3] = whole[-3]
    elif isinstance(anchor, PackedMatmulOp):
        needed[-1] = whole[-1]  # its panels are a constant of all columns
    elif isinstance(anchor, ComputeOp):
        rows = analyse_rows(anchor)
        # Row computations go over all columns, whose masks are data.
        for d in rows.inner if isinstance(rows, Rows) else ():
            needed[d] = whole[d]
    return CallShape(tuple(needed), needed_terms(anchor, values, fused=fused))


def needed_terms(anchor: Anchor, values: Sequence[int], *, fused: bool) -> int:
    """How many terms of a sum a call with these values of the extents computes, at least 1; `fused` as of
    `call_shape`."""
    most = _all_terms(anchor)
    if isinstance(anchor, AttentionOp):
        number = None if anchor.length is None else extents_around(anchor).get(anchor.length)
    else:
        end = None if fused and not isinstance(anchor, MatmulOp) else reduction_end(anchor, fused=fused)
        number = None if end is None else end.number
    return most if number is None else max(1, min(most, values[number]))


def _all_terms(anchor: Anchor) -> int:
    if isinstance(anchor, MatmulOp | PackedMatmulOp):
        return anchor.reduction_extent
    if isinstance(anchor, AttentionOp):
        return anchor.scores_shape[-1]
    reduce = only_reduce(anchor) if isinstance(anchor, ComputeOp) else None
    return 1 if reduce is None else next((extent for extent in reduce.shape if extent > 1), 1)


def instance_of(anchor: Anchor, call: CallShape) -> Anchor:
    """An anchor that computes what a call does, in a group with nothing but the definitions of its operands: these have
    fewer elements, and read what they read of tensors as large as they are.

    TreadleError for an operator of which no part is one, such as Winograd's convolution.
    """
    block, group = Block(), anchor.parent_op()
    if isinstance(anchor, MatmulOp):
        found: Anchor = _product_of(anchor, call, block, group)
    elif isinstance(anchor, PackedMatmulOp):
        rows = _smaller(anchor.a, (*call.shape[:-1], call.terms), block, group)
        found = PackedMatmulOp(rows, _smaller(anchor.panels, shape_of(anchor.panels), block, group), call.shape[-1])
    elif isinstance(anchor, AttentionOp):
        found = _attention_of(anchor, call, block, group)
    elif isinstance(anchor, ComputeOp):
        found = _definition_of(anchor, call, block, group)
    else:
        raise TreadleError(
            f"no part of {anchor.name} is one", location_of(anchor), "a product, attention, a definition"
        )
    block.add_ops([found, YieldOp(found.result)])
    FusedOp("instance", Region(block))
    return found


def _product_of(anchor: MatmulOp, call: CallShape, block: Block, group: Operation | None) -> MatmulOp:
    *batch, rows, columns = call.shape
    operands: list[SSAValue] = []
    for operand, last in ((anchor.a, (rows, call.terms)), (anchor.b, (call.terms, columns))):
        wanted = (*(batch if len(shape_of(operand)) > 2 else ()), *last)
        operands.append(_smaller(operand, wanted, block, group))
    product = MatmulOp(*operands, sums=anchor.sums)
    product.precision = anchor.precision
    return product


def _attention_of(anchor: AttentionOp, call: CallShape, block: Block, group: Operation | None) -> AttentionOp:
    """Without a length: all of its keys exist."""
    *batch, rows, _ = call.shape
    q, k, v = (shape_of(each) for each in (anchor.q, anchor.k, anchor.v))
    # Batches are those of the call, heads all of them.
    outer = tuple(batch[:-1])
    shapes = ((*batch, rows, q[-1]), (*outer, *k[-3:-2], call.terms, k[-1]), (*outer, *v[-3:-2], call.terms, v[-1]))
    operands = (anchor.q, anchor.k, anchor.v)
    queries, keys, values = (_smaller(each, s, block, group) for each, s in zip(operands, shapes, strict=True))
    mask = None
    if anchor.mask is not None:
        scores, own = (*batch, rows, call.terms), shape_of(anchor.mask)
        wanted = tuple(map(min, own, scores[len(scores) - len(own) :]))
        mask = _smaller(anchor.mask, wanted, block, group)
    causal, guard = bool(anchor.causal.value.data), bool(anchor.guard.value.data)
    return AttentionOp(queries, keys, values, mask, scale=anchor.scale.value.data, causal=causal, guard=guard)


def _definition_of(anchor: ComputeOp, call: CallShape, block: Block, group: Operation | None) -> ComputeOp:
    """A definition with fewer elements and terms; what it reads is as large as it was."""
    known: dict[SSAValue, SSAValue] = {}
    for tensor in anchor.tensors():
        known[tensor] = _smaller(tensor, shape_of(tensor), block, group)
    copy = anchor.clone(known)
    reduce = only_reduce(copy)
    if reduce is not None and call.terms < _all_terms(anchor):
        first = next(n for n, extent in enumerate(reduce.shape) if extent > 1)
        extents = [call.terms if n == first else extent for n, extent in enumerate(reduce.shape)]
        reduce.extents = DenseArrayBase.from_list(i64, extents)
    type = TensorType(anchor.type.get_element_type(), call.shape)
    result = Rewriter.replace_value_with_new_type(copy.result, type)
    assert isinstance(result.owner, ComputeOp)
    return result.owner


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
