"""Every definition on a CPU: rows in parallel, one element after another along the innermost run."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod
from typing import ClassVar

from treadle.dialects.graph import ComputeOp, ReduceOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import collapsible_suffix, reads_rows
from treadle.schedules.kernel_builder import emit_element, kernel_builder
from treadle.schedules.template import Anchor, Choices, Knob, Template, least_power, number
from treadle.target import Target

_ROWS = tuple(2**n for n in range(17))


class GenericCpu(Template):
    """Each element by its definition. The innermost loop runs along the longest suffix of the output's dimensions
    that every read walks with one stride, and is vectorised; longer runs are cut in pieces of `run` elements.

    A block computes `rows` runs. Source: Hidet (ASPLOS 2023), section 5.1.3, rule-based scheduling.
    """

    name: ClassVar[str] = "generic_cpu"
    kind: ClassVar[str] = "cpu"
    takes_all: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("run", tuple(2**n for n in range(17)), "longest innermost loop"),
        Knob("rows", _ROWS, "innermost loops that a block runs"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, ComputeOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, ComputeOp)
        inner = prod(anchor.shape[collapsible_suffix(anchor) :])
        work = prod(op_extent for op in anchor.body.walk() if isinstance(op, ReduceOp) for op_extent in op.shape)
        run = 4096
        rows = 1
        runs = prod(anchor.shape) // max(inner, 1) * ceil(inner / run)
        while rows * min(inner, run) * work < 16384 and rows * 8 < runs:
            rows *= 2
        first = collapsible_suffix(anchor)
        if reads_rows(anchor, first):
            # Rows in whole squares, which are transposed.
            rows = max(rows, target.lanes)
            rows = max(
                (n for n in _ROWS if target.lanes <= n <= rows and anchor.shape[first - 1] % n == 0), default=rows
            )
        return {"run": run, "rows": rows}

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """Runs are no longer than what can be run through, blocks no longer than the tensor."""
        assert isinstance(anchor, ComputeOp)
        return _canonical(anchor, collapsible_suffix(anchor), choices)

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """The base's; the reads are analysed once for all of them."""
        assert isinstance(anchor, ComputeOp)
        first = collapsible_suffix(anchor)
        return (c for c in self.space(anchor, target) if _canonical(anchor, first, c) == c)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        tensors = anchor.tensors()
        b = kernel_builder(tensors, anchor.type)
        first = collapsible_suffix(anchor)
        outer, inner = anchor.shape[:first], anchor.shape[first:]
        length = prod(inner)
        run, rows = min(number(choices, "run"), max(length, 1)), number(choices, "rows")
        pieces = ceil(length / run)
        total = prod(outer) * pieces
        with b.tasks_of_block("row", total, rows) as position:
            index = (position // pieces).delinearize(outer)
            begin = (position % pieces) * run
            end = run if length % run == 0 else (length - begin).min(run)
            with b.loop("i", end, vector=True) as i:
                where = [*index, *(begin + i).delinearize(inner)]
                value = emit_element(b, anchor, where, dict(zip(tensors, b.inputs, strict=True)))
                b.store(value, b.output, where)
        operators = anchor.operators.data if anchor.operators is not None else "compute"
        return b.kernel(name, tensors, anchor.type, ceil(total / rows), 1, f"{operators} to {anchor.type}")


def _canonical(anchor: ComputeOp, first: int, choices: Choices) -> Choices:
    """The same of an anchor whose innermost loop runs along the dimensions from `first` on."""
    length = max(prod(anchor.shape[first:]), 1)
    run = least_power(number(choices, "run"), length)
    total = prod(anchor.shape[:first]) * ceil(length / min(run, length))
    return {"run": run, "rows": least_power(number(choices, "rows"), total)}
