"""Kernels of warpgroups held against those that were written by hand, and against docs/schedules.md."""

from __future__ import annotations

from benchmarks.warpgroup_kernels import MOST_OTHERS, Form
from docs.build.architecture import ROOT
from docs.build.schedules import DOCUMENT
from tests.backends.cuda.machine_code import disassembled
from treadle.backends.cuda.compiler import Cubin
from treadle.backends.cuda.machine_code import Sass


def assert_as_by_hand(form: Form) -> tuple[Sass, Cubin]:
    """Compiles a kernel and holds a step of its main loop against the one by hand; gives its instructions and cubin."""
    cubin = form.cubin()
    (sass,) = disassembled(cubin).values()
    step, by_hand = form.step(sass, cubin), form.by_hand
    (resources,) = cubin.resources.values()
    assert not cubin.warnings and not step.spills and not resources.stack_bytes
    assert step.products == by_hand.products and step.registers <= by_hand.registers
    assert step.others <= MOST_OTHERS * by_hand.others
    assert f"| {' | '.join(form.row(step))} |\n" in (ROOT / DOCUMENT).read_text()
    return sass, cubin
