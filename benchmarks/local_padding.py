"""What checks of borders in the innermost loop cost, against local padding and loop partitioning.

    python -m benchmarks.local_padding
    python -m benchmarks.local_padding --target sm_80 --seconds 2 --output /tmp

DietCode (MLSys 2022), section 4.1 and figure 6: a micro-kernel that overhangs a shape checks each term's indices (a),
or pads its local workspace when it is filled (d), or the loops are partitioned into tiles inside of the shape and
others (c). Here all three are nests of the same tiles: with `checks_borders`, with stages, and with neither. On this
machine's processor they are compiled as C and timed in turn. For a GPU their machine code is counted, instructions of
the kernel for each multiplication, since their loops run equally often; and what the cost model predicts, which counts
no comparisons. The raw numbers go to `benchmarks/results/`, with the load of the machine before the run ended.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.dialects.builtin import SymbolRefAttr

from benchmarks.machine import describe_run
from benchmarks.nests import nest, product, task_of
from benchmarks.result_files import RESULTS, write_results
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.machine_code import disassemble
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.predict import predicted_seconds
from treadle.schedules.search.programs import replay
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target
from treadle.target.host import host_target
from treadle.tuning.candidates import built, printed
from treadle.tuning.measure import Comparison, LocalMeasurer
from treadle.tuning.tasks import GroupTask

SIZES = ((49, 768, 2300), (100, 100, 100), (125, 64, 125), (250, 768, 770))
"""Rows, terms and columns of products, none of which a tile divides but the terms of some."""
CHECKED, PARTITIONED, PADDED = "checks", "partitioned", "local padding"

_CPU = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (6)
%j0, %j1, %j2 = schedule.split %j by (2, {lanes})
schedule.arrange block(%j0) repeat(%i0) loop(%k) repeat(%i1, %j1, %j2){checks}
schedule.mark vector %j2
"""
_CPU_STAGES = 'schedule.stage 1 at %j0 in "register"\n'
"""A panel of B for all rows; A, of which a lane reads no neighbours, is clamped to its last row."""
_GPU = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (8, 4)
%j0, %j1, %j2 = schedule.split %j by (16, 4)
%k0, %k1 = schedule.split %k by (8)
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2){checks}
schedule.mark unroll %k1
schedule.stage 0 at %k0 in "shared" vector 4 buffers 2
schedule.stage 1 at %k0 in "shared" vector 4 buffers 2
"""


@dataclass(frozen=True)
class Measured:
    """seconds: measured on a CPU, predicted for a GPU; instructions: of a GPU's kernel for each multiplication."""

    seconds: float
    instructions: float | None = None


def programs(target: Target) -> dict[str, str]:
    """The nests that are compared, by what they do about borders."""
    checks = " checks_borders"
    if target.is_cuda:
        return {CHECKED: _GPU.format(checks=checks), PADDED: _GPU.format(checks="")}
    plain = _CPU.format(lanes=target.lanes, checks="")
    checked = _CPU.format(lanes=target.lanes, checks=checks)
    return {CHECKED: checked, PARTITIONED: plain, PADDED: plain + _CPU_STAGES}


def timed(size: tuple[int, int, int], target: Target, seconds: float, turns: int = 1) -> dict[str, Measured]:
    """Medians of the compiled nests, in turn, of the quickest turn. ValueError for one that is wrong or fails."""
    found = {name: task_of(product(*size), body, target) for name, body in programs(target).items()}
    task = next(iter(found.values()))
    builds = [built(printed(each.text, _texts(each), Candidate("nest", {}), str(target)), str(target))
              for each in found.values()]  # fmt: skip
    failed = [each.error for each in builds if each.error is not None]
    if failed:
        raise ValueError(failed[0])
    comparison = Comparison(
        task.text, tuple(each.library for each in builds), max(each.arena_bytes for each in builds),
        task.inputs, task.outputs, task.constants, target.cores, seconds / turns,
    )  # fmt: skip
    measurer = LocalMeasurer()
    try:
        each_turn = [measurer.measure(comparison) for _ in range(turns)]
    finally:
        measurer.close()
    wrong = [each.error for timings in each_turn for each in timings if each.error is not None]
    if wrong:
        raise ValueError(wrong[0])
    quickest = (min(timings[n].seconds or 0.0 for timings in each_turn) for n in range(len(found)))
    return {name: Measured(least) for name, least in zip(found, quickest, strict=True)}


def _texts(task: GroupTask) -> dict[str, str]:
    return {op.sym_name.data: str(op) for op in task.search.programs}


def counted(size: tuple[int, int, int], target: Target) -> dict[str, Measured]:
    """Predicted times of the nests' kernels on a GPU, and their machine code."""
    return {name: _counted(size, body, target) for name, body in programs(target).items()}


def _counted(size: tuple[int, int, int], body: str, target: Target) -> Measured:
    module, program = product(*size), nest(body, target)
    lower(treadle_context(), module, target, to="schedule")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    anchor = anchor_of(fused)
    work = work_of(Group(anchor), replay(program, {}, anchor, target), target)
    module.body.block.insert_op_before(program, next(iter(module.body.block.ops)))
    fused.schedule = SymbolRefAttr(program.sym_name)
    lower(treadle_context(), module, target, after="schedule")
    (unit,) = print_kernels(module)
    (sass,) = disassemble(compile_cubin(unit, target).image).values()
    multiplications = sum(each.opcode.startswith("FFMA") for each in sass.instructions)
    return Measured(predicted_seconds(work, target), len(sass.instructions) / multiplications)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.local_padding", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", default="", help="a GPU, whose kernels are counted; default: this machine")
    parser.add_argument("--seconds", type=float, default=3.0, help="to time each size in")
    parser.add_argument("--turns", type=int, default=8, help="parts of this time, of which the quickest counts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args(argv)
    target = Target.parse(args.target) if args.target else host_target()
    rows: list[dict[str, object]] = []
    for size in SIZES:
        found = counted(size, target) if target.is_cuda else timed(size, target, args.seconds, args.turns)
        for name, each in found.items():
            row: dict[str, object] = {"size": size, "borders": name, "seconds": each.seconds}
            rows.append(row if each.instructions is None else {**row, "instructions": round(each.instructions, 2)})
        print(" x ".join(map(str, size)) + ": " + ", ".join(_ratio(name, found) for name in found))
    what = f"local_padding-{target.name}" if target.is_cuda else "local_padding"
    circumstances = {**describe_run(), "target": str(target), "load": round(os.getloadavg()[0], 2)}
    print(write_results(what, circumstances, rows, args.output))
    return 0


def _ratio(name: str, found: dict[str, Measured]) -> str:
    each, padded = found[name], found[PADDED]
    text = f"{name} {each.seconds * 1e6:.1f} us ({each.seconds / padded.seconds:.2f})"
    return text if each.instructions is None else f"{text}, {each.instructions:.2f} instructions a multiplication"


if __name__ == "__main__":
    sys.exit(main())
