"""Whether the workers of every task mapping are the threads that run it."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import UnknownLoc
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import FuncOp, KernelOp
from treadle.dialects.task import ForOp
from treadle.errors import TreadleError
from treadle.index.reader import IndexReader

_BELOW = {"slt": 1, "ult": 1, "sle": 0, "ule": 0}
"""Comparisons that bound their left side from above, and how far below the right side it stays."""


def check_workers(kernel: KernelOp | FuncOp) -> None:
    """Raises TreadleError for a `task.for` with more workers than there are, some of whose tasks nobody would do, or
    with fewer, so that some would do tasks that do not exist.

    A worker's number is bounded by the kernel's threads and blocks, by loops, and by an enclosing `scf.if` that
    compares it with a constant. Where no upper bound is known, nothing is checked.
    """
    reader = IndexReader()
    for loop in [op for op in kernel.walk() if isinstance(op, ForOp)]:
        if loop.worker is None:
            continue
        _, last = reader.read(loop.worker).range()
        if last is None:
            continue
        last = min([last, *_bounds(loop, loop.worker, reader)])
        _check(loop, loop.worker, last + 1, f"{kernel.name} @{kernel.sym_name.data}")


def _check(loop: ForOp, worker: SSAValue, present: int, kernel: str) -> None:
    mapping, name = loop.mapping.data, f"%{worker.name_hint or 'worker'}"
    if present == mapping.workers:
        return
    accepted = f"a mapping of {present} workers"
    if present < mapping.workers:
        consequence = f"nobody does the tasks of workers {present} to {mapping.workers - 1}"
    else:
        consequence = f"workers {mapping.workers} to {present - 1} have none"
        accepted += f", or scf.if {name} < {mapping.workers} around it"
    message = f"task.for deals {mapping} to {mapping.workers} workers, but {name} counts {present}: {consequence}"
    raise TreadleError(message, kernel if isinstance(loop.location, UnknownLoc) else loop.location, accepted)


def _bounds(loop: Operation, worker: SSAValue, reader: IndexReader) -> Iterator[int]:
    """The largest numbers that the conditions around a loop let through."""
    number = reader.read(worker)
    inner, outer = loop, loop.parent_op()
    while outer is not None:
        if isinstance(outer, scf.IfOp) and inner.parent_region() is outer.true_region:
            for condition in _conjuncts(outer.cond):
                kind = arith.CMPI_COMPARISON_OPERATIONS[condition.predicate.value.data]
                limit = reader.read(condition.rhs).as_int()
                if kind in _BELOW and limit is not None and reader.read(condition.lhs) == number:
                    yield limit - _BELOW[kind]
        inner, outer = outer, outer.parent_op()


def _conjuncts(condition: SSAValue) -> Iterator[arith.CmpiOp]:
    op = condition.owner
    if isinstance(op, arith.CmpiOp):
        yield op
    elif isinstance(op, arith.AndIOp):
        yield from _conjuncts(op.lhs)
        yield from _conjuncts(op.rhs)


__all__ = ["check_workers"]
