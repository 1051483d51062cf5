"""Schedule decisions drawn at random: a legal point of each group's space, of any of its programs, in place of the
default."""

from __future__ import annotations

from random import Random

from xdsl.dialects.builtin import ModuleOp

from tests.helpers.emulated_batch import CUDA, TARGET, EmulatedProgram, PrintedKernels
from tests.helpers.emulated_batch import print_program as print_kernels
from tests.helpers.program_batch import Backend, C, CompiledProgram, PrintedProgram, print_program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.programs import taken
from treadle.target import Target
from treadle.tuning.tasks import default_programs

TRIES = 40
"""Decisions that are drawn for a group: of some spaces few are within the limits of a small tensor."""


def draw_schedules(module: ModuleOp, target: Target, seed: str) -> int:
    """Lowers a module to stage `schedule`, in place, with drawn decisions; how many groups have one.

    A group keeps its default where none of the decisions is legal. Raises what the passes raise.
    """
    lower(treadle_context(), module, target, to="schedule")
    random = Random(seed)
    return sum(_draw(module, fused, target, random) for fused in list(module.walk()) if isinstance(fused, FusedOp))


def _draw(module: ModuleOp, fused: FusedOp, target: Target, random: Random) -> bool:
    task = Task(anchor := anchor_of(fused), target, tuple(default_programs(anchor, target)))
    for _ in range(TRIES if task.programs else 0):
        program = random.choice(task.programs)
        decisions = task.samplers[program.sym_name.data].draw(random)
        if decisions is None:
            continue
        try:
            replayed = task.replay(Candidate(program.sym_name.data, decisions))
        except TreadleError:
            continue
        is_use = isinstance(replayed, UseAttr)
        fused.schedule = replayed if is_use else add_program(module, taken(program, decisions))
        return True
    return False


def _printed(name: str, module: ModuleOp) -> PrintedProgram:
    draw_schedules(module, Target.parse("cpu"), name)
    return print_program(name, module, after="schedule")


def _printed_kernels(name: str, module: ModuleOp) -> PrintedKernels:
    draw_schedules(module, Target.parse(TARGET), name)
    return print_kernels(name, module, after="schedule")


DRAWN_C: Backend[PrintedProgram, CompiledProgram] = Backend(_printed, C.compiled)
DRAWN_CUDA: Backend[PrintedKernels, EmulatedProgram] = Backend(_printed_kernels, CUDA.compiled)
"""Programs as those of `C` and `CUDA`, with decisions that follow from their names."""

__all__ = ["DRAWN_C", "DRAWN_CUDA", "draw_schedules"]
