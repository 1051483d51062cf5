"""Tests of indices against extents: which compare with the same, and what is left once they always hold."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from treadle.dialects.loop import LoadOp


def computation(value: SSAValue) -> list[Operation]:
    """The operations that a value is computed by, operands first, up to arguments."""
    found: dict[Operation, None] = {}

    def add(each: SSAValue) -> None:
        if isinstance(each.owner, Operation) and each.owner not in found:
            for operand in each.owner.operands:
                add(operand)
            found[each.owner] = None

    add(value)
    return list(found)


def text_of(value: SSAValue) -> str:
    """Equal for values that are computed from the same arguments in the same way."""
    texts: dict[SSAValue, str] = {}

    def name(each: SSAValue) -> str:
        return texts.get(each, f"argument {id(each)}")

    for op in computation(value):
        attributes: Mapping[str, object] = {**op.attributes, **op.properties}
        operands = ", ".join(map(name, op.operands))
        text = f"{op.name}({operands}) {sorted((key, str(each)) for key, each in attributes.items())}"
        texts |= dict.fromkeys(op.results, text)
    return name(value)


def drop_test(test: arith.CmpiOp) -> None:
    """Loads that were tested by it alone are always inside now."""
    for use in list(test.result.uses):
        load = use.operation
        if isinstance(load, LoadOp):
            plain = LoadOp(load.buffer, list(load.indices))
            plain.attributes |= load.attributes
            plain.location = load.location
            plain.result.name_hint = load.result.name_hint
            Rewriter.replace_op(load, plain)


__all__ = ["computation", "drop_test", "text_of"]
