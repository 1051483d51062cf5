"""Whether the workers of every task mapping are the threads that run it."""

from __future__ import annotations

from xdsl.dialects.builtin import UnknownLoc
from xdsl.ir import SSAValue

from treadle.dialects.location import location_of
from treadle.dialects.loop import FuncOp, KernelOp
from treadle.dialects.task import ForOp
from treadle.errors import TreadleError
from treadle.index.reader import Bounds, IndexReader, comparisons_around

_NO_WORKER = (0, -1)


def check_workers(kernel: KernelOp | FuncOp) -> None:
    """Raises TreadleError for a `task.for` with more workers than threads, so that some tasks would not be done, or
    with fewer, so that threads would do tasks that do not exist.

    A worker's number is bounded by the kernel's threads and blocks, by loops, and by the branches around. Where no
    upper bound is known, nothing is checked.
    """
    reader = IndexReader()
    bounds = Bounds(reader)
    for loop in [op for op in kernel.walk() if isinstance(op, ForOp)]:
        if loop.worker is None:
            continue
        worker, around = reader.read(loop.worker), list(comparisons_around(reader, loop))
        _, last = bounds.range(worker, around)
        if last is None or last + 1 == loop.mapping.data.workers:
            continue
        # Only where some worker arrives: the branches around may contradict each other.
        if bounds.range(worker, around, _NO_WORKER) != _NO_WORKER:
            raise _misfit(loop, loop.worker, last + 1, f"{kernel.name} @{kernel.sym_name.data}")


def _misfit(loop: ForOp, worker: SSAValue, present: int, kernel: str) -> TreadleError:
    mapping, name = loop.mapping.data, f"%{worker.name_hint or 'worker'}"
    accepted = f"a mapping of {present} workers"
    if present < mapping.workers:
        consequence = f"nobody does the tasks of workers {present} to {mapping.workers - 1}"
    else:
        consequence = f"workers {mapping.workers} to {present - 1} have none"
        accepted += f", or scf.if {name} < {mapping.workers} around it"
    message = f"task.for deals {mapping} to {mapping.workers} workers, but {name} counts {present}: {consequence}"
    return TreadleError(message, kernel if isinstance(loop.location, UnknownLoc) else location_of(loop), accepted)


__all__ = ["check_workers"]
