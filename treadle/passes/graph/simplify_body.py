"""Tidies a definition: canonical index arithmetic, decided predicates, each value once, nothing dead.

Inlining chains of reshapes leaves `((i * 50 + j) / 50)`; rewritten from its canonical expression it is `i`; so two
reads of one element become equal, and a bounds check that is always true disappears.  xDSL's `cse` is quadratic in
equal reads and knows nothing of ranges.
"""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.index.algebra import always_less
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader
from treadle.passes.graph.definition_analysis import index_range, index_reader, read_index

_Scope = dict[Hashable, SSAValue]

_LESS = {"slt": (0, 1, True), "sgt": (1, 0, True), "sge": (0, 1, False), "sle": (1, 0, False)}
"""Signed comparisons as `operand < operand` being true or false."""


def simplify_body(compute: ComputeOp) -> None:
    """Simplifies indices and predicates, shares equal values, and drops unused ones."""
    reader = index_reader()
    for op in list(compute.body.walk()):
        if isinstance(op, AtOp):
            _simplify_indices(op, reader)
        elif isinstance(op, arith.CmpiOp):
            _simplify_comparison(op, reader)
    _fold_predicates(compute.body)
    share_values(compute.body)
    drop_dead(compute.body)


def _simplify_indices(at: AtOp, reader: IndexReader) -> None:
    for index in at.indices:
        _rewrite_operand(at, index, reader)


def _rewrite_operand(op: Operation, value: SSAValue, reader: IndexReader) -> None:
    """Replaces an index operand by its canonical expression."""
    if isinstance(value.owner, Block) and index_range(value) != (0, 0):
        return
    written = IndexEmitter(InsertPoint.before(op), location=op.location).emit(read_index(reader, value))
    for n, operand in enumerate(op.operands):
        if operand is value:
            op.operands[n] = written


def _simplify_comparison(op: arith.CmpiOp, reader: IndexReader) -> None:
    """Decides a comparison of indices by their ranges, or writes its operands canonically."""
    if not isinstance(op.lhs.type, IndexType):
        return
    holds = _decided(op, read_index(reader, op.lhs), read_index(reader, op.rhs))
    if holds is not None:
        _replace(op, _boolean(op, holds))
        return
    for value in (op.lhs, op.rhs):
        _rewrite_operand(op, value, reader)


def _decided(op: arith.CmpiOp, lhs: Expr, rhs: Expr) -> bool | None:
    """Whether the comparison holds for all indices (True), for none (False), or for some (None)."""
    kind = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    if kind not in _LESS:
        return None
    a, b, positive = _LESS[kind]
    operands = (lhs, rhs)
    less = always_less(operands[a], operands[b])
    return None if less is None else less == positive


def _boolean(before: Operation, value: bool) -> SSAValue:
    constant = arith.ConstantOp(IntegerAttr(int(value), i1))
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(constant, before)
    return constant.result


def _fold_predicates(body: Region) -> None:
    """Folds conjunctions, selects and predicated reads whose condition is a constant."""
    for op in list(body.walk()):
        if isinstance(op, arith.AndIOp):
            _fold_and(op)
        elif isinstance(op, arith.SelectOp) and (known := _known(op.cond)) is not None:
            _replace(op, op.lhs if known else op.rhs)
        elif isinstance(op, AtOp) and op.predicate is not None and op.otherwise is not None:
            known = _known(op.predicate)
            if known is False:
                _replace(op, op.otherwise)
            elif known:
                _replace_at(op)


def _fold_and(op: arith.AndIOp) -> None:
    for known, other in ((_known(op.lhs), op.rhs), (_known(op.rhs), op.lhs)):
        if known is not None:
            _replace(op, other if known else _boolean(op, False))
            return
    if op.lhs is op.rhs:
        _replace(op, op.lhs)


def _replace_at(at: AtOp) -> None:
    plain = AtOp(at.source, list(at.indices))
    plain.location = at.location
    block = at.parent_block()
    assert block is not None
    block.insert_op_before(plain, at)
    _replace(at, plain.result)


def _known(value: SSAValue) -> bool | None:
    """The value of a constant `i1`."""
    op = value.owner
    if value.type != i1 or not isinstance(op, arith.ConstantOp) or not isinstance(op.value, IntegerAttr):
        return None
    return op.value.value.data != 0


def _replace(op: Operation, value: SSAValue) -> None:
    op.results[0].replace_all_uses_with(value)
    op.detach()
    op.erase()


def share_values(body: Region, outer: _Scope | None = None) -> None:
    """Computes each value once: local value numbering, where inner regions see the values around them."""
    scope = dict(outer or {})
    for op in list(body.block.ops):
        if isinstance(op, ReduceOp):
            share_values(op.body, scope)
        elif not isinstance(op, YieldOp) and not op.regions:
            known = scope.setdefault(_key(op), op.results[0])
            if known is not op.results[0]:
                _replace(op, known)


def _key(op: Operation) -> Hashable:
    """A key that is equal for operations that compute the same value."""
    if isinstance(op, arith.ConstantOp):
        return op.name, str(op.value), op.result.type  # as text, 0.0 and -0.0 differ
    return op.name, tuple(op.operands), frozenset(op.properties.items()), op.results[0].type


def drop_dead(body: Region) -> None:
    """Erases operations whose results nobody uses."""
    for op in reversed(list(body.block.ops)):
        if isinstance(op, YieldOp):
            continue
        if not any(result.uses for result in op.results):
            op.detach()
            op.erase()
        elif isinstance(op, ReduceOp):
            drop_dead(op.body)


__all__ = ["drop_dead", "share_values", "simplify_body"]
