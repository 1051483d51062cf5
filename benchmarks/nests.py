"""Nests written by hand against templates: what the builder of nests has to reach.

`python -m benchmarks.nests` times both on this machine's processor, alternately, and prints what the machine code of
both takes on a GPU. Nothing is tuned: a program has the decisions of a template, or the first that were tried where
none fits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region
from xdsl.parser import Parser

from benchmarks.paper_operators import OPERATORS
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.machine_code import disassemble
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.loop import FuncOp as LoopFuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.schedules.search.candidate import Candidate
from treadle.target import Target
from treadle.target.host import host_target
from treadle.tuning.candidates import built, printed
from treadle.tuning.measure import Comparison, LocalMeasurer
from treadle.tuning.tasks import GroupTask, tasks_of

PRODUCT = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (7, 8)
%j0, %j1 = schedule.split %j by (32)
schedule.arrange block(%i0, %j0) repeat(%i1) loop(%k) repeat(%i2, %j1)
schedule.mark vector %j1
schedule.stage 1 at %i0 in "register"
"""
"""The decisions of matmul_cpu for 784 x 512 x 128: 8 rows, chunks of 56, the panel packed."""

GROUPED = """%n, %o, %h, %w, %c, %y, %x = schedule.axes 4 spatial, 3 reduction
%o0, %o1 = schedule.split %o by (16)
%h0, %h1 = schedule.split %h by (7)
%w0, %w1 = schedule.split %w by (14)
schedule.arrange block(%n, %o0, %h0) repeat(%h1, %w0) loop(%c, %y, %x) repeat(%w1, %o1)
schedule.mark vector %o1
schedule.stage 0 at %n in "register"
schedule.stage 1 at %n in "register"
"""
"""16 output channels in a vector, 14 columns in registers; the padded image and the filters of a block are copied."""

TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3 = schedule.split %i by (2, 16, 4)
%j0, %j1, %j2, %j3 = schedule.split %j by (2, 16, 4)
%k0, %k1 = schedule.split %k by (8)
schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3)
    min_blocks_per_sm 2
schedule.stage 0 at %k0 in "shared" vector 4 buffers 2
schedule.stage 1 at %k0 in "shared" vector 4 buffers 2
schedule.stage 0 at %k1 in "register"
schedule.stage 1 at %k1 in "register"
schedule.mark unroll %k1
"""
"""The decisions of matmul_simt for 4096 cubed, but for how lanes lie over a warp's tile."""


@dataclass(frozen=True)
class Gate:
    """A definition, a nest for it, another candidate (None: the default), and how much faster the nest has to be."""

    title: str
    module: Callable[[], ModuleOp]
    program: str
    other: Candidate | None
    least: float


def product(m: int, k: int, n: int) -> ModuleOp:
    """@main of two matrices."""
    types = TensorType(f32, [m, k]), TensorType(f32, [k, n])
    block = Block(arg_types=types)
    op = MatmulOp(*block.args)
    block.add_ops([op, ReturnOp(op.result)])
    return ModuleOp([FuncOp("main", (types, [op.result.type]), Region(block))])


GATES = (
    Gate(
        "product 784 x 512 x 128", lambda: product(784, 512, 128), PRODUCT,
        Candidate("matmul_cpu", {"rows": 8, "vectors": 2, "chunk": 56, "pack": True, "passes": 1}), 0.95,
    ),
    Gate("grouped convolution of MetaSchedule's table", OPERATORS["GRP"].module, GROUPED, None, 8.0),
)  # fmt: skip


def nest(body: str, target: Target) -> ProgramOp:
    """The program @nest of these instructions."""
    text = f'schedule.program @nest for "{target.kind}" {{\n{body}}}'
    (op,) = Parser(treadle_context(), text).parse_module().body.block.ops
    assert isinstance(op, ProgramOp)
    op.detach()
    return op


def task_of(module: ModuleOp, body: str, target: Target) -> GroupTask:
    """The one group of a module, which may be scheduled by default or by a nest."""
    lower(treadle_context(), module, target, to="fuse")
    (task,) = tasks_of(module, target, lambda _, __: [nest(body, target)])
    return task


def seconds_of(task: GroupTask, other: Candidate | None, target: Target, measurer: LocalMeasurer) -> list[float]:
    """The medians of another schedule and of the nest. ValueError for one that is wrong or fails."""
    programs = {op.sym_name.data: str(op) for op in task.search.programs}
    both = [other or task.default, Candidate("nest", {})]
    builds = [built(printed(task.text, programs, each, str(target)), str(target)) for each in both]
    failed = [each.error for each in builds if each.error is not None]
    if failed:
        raise ValueError(failed[0])
    comparison = Comparison(
        task.text, tuple(each.library for each in builds), max(each.arena_bytes for each in builds),
        task.inputs, task.outputs, task.constants, target.cores, 5.0,
    )  # fmt: skip
    timings = measurer.measure(comparison)
    wrong = [each.error for each in timings if each.error is not None]
    if wrong:
        raise ValueError(wrong[0])
    return [each.seconds or 0.0 for each in timings]


def machine_code(body: str | None, target: Target) -> str:
    """What the product of 4096 cubed takes on a GPU as a nest, or by its template."""
    module = product(4096, 4096, 4096)
    lower(treadle_context(), module, target, to="schedule")
    if body is not None:
        (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
        module.body.block.add_op(nest(body, target))
        fused.schedule = SymbolRefAttr("nest")
    lower(treadle_context(), module, target, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, LoopFuncOp)]
    accesses = memory_transactions(kernel)
    lower(treadle_context(), module, target, after="loops")
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, target)
    found, code = cubin.resources[unit.name], disassemble(cubin.image)[unit.name]
    counts = ", ".join(f"{code.count(each)} {each}" for each in ("FFMA", "LDS.128", "LDG.128", "STS", "STG.128", "BAR"))
    return (
        f"{found.registers} registers, {found.spill_store_bytes} bytes spilled, {found.shared_bytes} shared, "
        f"{sum(each.conflicts for each in accesses)} bank conflicts, {sum(each.excess for each in accesses)} excess "
        f"sectors; {counts}"
    )


def main() -> int:
    """Prints the comparisons; 1 if a gate is missed."""
    gpu = Target.parse("sm_80")
    for name, body in (("matmul_simt", None), ("nest", TILES)):
        print(f"product 4096 x 4096 x 4096 on {gpu.name}, {name}: {machine_code(body, gpu)}")
    target, measurer, missed = host_target(), LocalMeasurer(), 0
    try:
        for gate in GATES:
            task = task_of(gate.module(), gate.program, target)
            theirs, ours = seconds_of(task, gate.other, target, measurer)
            missed += theirs / ours < gate.least
            times = f"{gate.other or task.default} {theirs * 1e6:.1f} us, nest {ours * 1e6:.1f} us"
            print(f"{gate.title}: {times}, {theirs / ours:.2f} times as fast; wanted {gate.least}")
    finally:
        measurer.close()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
