"""The side effects of operations, read from their traits.

Folding, hoisting, vectorising and printing ask here whether an operation may be computed earlier, later, twice or not
at all. Treadle's operations declare their effects where they are defined; `UNDECLARED` has those of xDSL's
operations that declare none, and is the only such list. Buffers never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType
from xdsl.ir import Operation, SSAValue
from xdsl.traits import (
    AlwaysSpeculatable,
    EffectInstance,
    IsTerminator,
    MemoryEffect,
    MemoryEffectKind,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoMemoryEffect,
    OpTrait,
    Pure,
    RecursiveMemoryEffect,
)

UNDECLARED: Mapping[type[Operation], MemoryEffect] = {
    arith.RemUIOp: Pure(),
    arith.ExtSIOp: Pure(),
    vector.BitcastOp: Pure(),
    vector.CreateMaskOp: Pure(),
    vector.ReductionOp: Pure(),
    vector.ShuffleOp: Pure(),
    vector.LoadOp: MemoryReadEffect(),
    vector.MaskedLoadOp: MemoryReadEffect(),
    vector.StoreOp: MemoryWriteEffect(),
    vector.MaskedStoreOp: MemoryWriteEffect(),
}
"""Effects of the operations of xDSL 0.74 that declare none."""

_DIVISIONS = (
    arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp,
    arith.FloorDivSIOp, arith.CeilDivSIOp, arith.CeilDivUIOp,
)  # fmt: skip
"""What xDSL says of these is not what Treadle defines: see `_has_result`."""

Access = tuple[MemoryEffectKind, SSAValue | None]
"""An effect, and the buffer that it is on; None is all memory."""


class Convergent(OpTrait):
    """All lanes of a warp or threads of a block take part: the operation moves neither into nor out of a branch."""


class OrdersMemory(MemoryEffect):
    """No access to memory moves across the operation, whatever buffers it names."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        del op
        return {EffectInstance(MemoryEffectKind.READ), EffectInstance(MemoryEffectKind.WRITE)}


class SameBuffer(OpTrait):
    """The result is another name of the buffer that is the first operand: accesses to it are accesses to that."""


class CopyEffect(MemoryEffect):
    """Reads the buffer that is the first operand, and writes the other one."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        source, destination = _memrefs(op)
        return {EffectInstance(MemoryEffectKind.READ, source), EffectInstance(MemoryEffectKind.WRITE, destination)}


def accesses(op: Operation) -> Sequence[Access] | None:
    """What an operation and those in its regions do to memory; None if that is unknown."""
    declared = _declared(type(op))
    if not declared:
        return () if op.has_trait(IsTerminator) else None
    found: list[Access] = []
    for trait in declared:
        own = _of_regions(op) if isinstance(trait, RecursiveMemoryEffect) else _own(op, trait)
        if own is None:
            return None
        found += own
    return found


def _of_regions(op: Operation) -> Sequence[Access] | None:
    found: list[Access] = []
    for inner in (inner for region in op.regions for block in region.blocks for inner in block.ops):
        own = accesses(inner)
        if own is None:
            return None
        found += own
    return found


def _own(op: Operation, trait: MemoryEffect) -> Sequence[Access] | None:
    effects = trait.get_effects(op)
    if effects is None:
        return None
    found: list[Access] = []
    for effect in effects:
        if isinstance(effect.value, SSAValue):
            found.append((effect.kind, _made(effect.value)))
            continue
        named = [] if isinstance(trait, OrdersMemory) else [*_memrefs(op)]
        found += [(effect.kind, None if buffer is None else _made(buffer)) for buffer in named or [None]]
    return found


def _made(buffer: SSAValue) -> SSAValue:
    """The buffer that a value is a name of."""
    while isinstance(buffer.owner, Operation) and buffer.owner.has_trait(SameBuffer, value_if_unregistered=False):
        buffer = buffer.owner.operands[0]
    return buffer


@cache
def _declared(kind: type[Operation]) -> Sequence[MemoryEffect]:
    known = UNDECLARED.get(kind)
    return kind.get_traits_of_type(MemoryEffect) if known is None else [known]


@cache
def _computes(kind: type[Operation]) -> bool:
    """Whether operations of a kind only compute, unless in their regions. Passes ask this often."""
    if kind.has_trait(IsTerminator) or kind.has_trait(Convergent):
        return False
    declared = _declared(kind)
    return bool(declared) and all(isinstance(trait, NoMemoryEffect) for trait in declared)


@cache
def _may_come_earlier(kind: type[Operation]) -> bool:
    return kind.has_trait(AlwaysSpeculatable) or kind in UNDECLARED


def only_computes(op: Operation) -> bool:
    """Whether an operation without regions does nothing but compute: it may be computed later, or never."""
    return not op.regions and _computes(type(op))


def is_pure(op: Operation) -> bool:
    """Whether an operation only computes and always has a result: it may be computed earlier, too, however often."""
    if not only_computes(op):
        return False
    if isinstance(op, _DIVISIONS):
        return _has_result(op)
    return _may_come_earlier(type(op))


def is_load(op: Operation) -> bool:
    """Whether an operation without regions does nothing but read buffers and give what is there, for one thread."""
    return bool(op.results) and not op.regions and not op.has_trait(Convergent) and _only(op, MemoryEffectKind.READ)


def is_allocation(op: Operation) -> bool:
    """Whether an operation does nothing but make a buffer."""
    return not op.regions and _only(op, MemoryEffectKind.ALLOC)


def buffers_read(op: Operation) -> set[SSAValue]:
    """The buffers that an operation, or one in its regions, reads."""
    return {buffer for kind, buffer in accesses(op) or () if kind is MemoryEffectKind.READ and buffer is not None}


def buffers_written(op: Operation) -> set[SSAValue]:
    """The buffers that an operation, or one in its regions, writes."""
    return {buffer for kind, buffer in accesses(op) or () if kind is MemoryEffectKind.WRITE and buffer is not None}


def may_write(op: Operation, buffers: Set[SSAValue]) -> bool:
    """Whether an operation may change one of some buffers: it writes one, orders all of memory, or is unknown."""
    found = accesses(op)
    if found is None:
        return True
    return any(kind is MemoryEffectKind.WRITE and (on is None or on in buffers) for kind, on in found)


def accesses_are_known(op: Operation) -> bool:
    """Whether an operation and those in its regions touch no memory but certain buffers."""
    found = accesses(op)
    return found is not None and all(kind is MemoryEffectKind.ALLOC or on is not None for kind, on in found)


def _only(op: Operation, kind: MemoryEffectKind) -> bool:
    found = accesses(op)
    return bool(found) and all(each is kind for each, _ in found or ())


def _memrefs(op: Operation) -> Iterator[SSAValue]:
    return (operand for operand in op.operands if isinstance(operand.type, MemRefType))


def _has_result(op: Operation) -> bool:
    """Whether a division has a result: one of elements always has (docs/numerics.md), one of indices not by 0."""
    divisor = op.operands[1]
    if not isinstance(divisor.type, IndexType):
        return True
    constant = divisor.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, IntegerAttr):
        return False
    return constant.value.value.data != 0
