"""A module as compiled C, and as CUDA on the emulator: all its kernels in one text, so that a compiler runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from tests.helpers.program_batch import compile_programs, print_program
from treadle.backends.cuda.emulator.emulator import Emulator
from treadle.backends.cuda.emulator.launches import Argument, Launch, Launches, Output
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.program import read_program
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.target import Target

Array = NDArray[Any]


def run_as_c(module: ModuleOp, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a module of graph operators, lowered in place and compiled for this machine."""
    program = print_program("program", module)
    return compile_programs([program])[program.name].run(list(inputs))


def run_emulated(module: ModuleOp, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a module of graph operators, lowered in place for a GPU and run by the emulator unchecked."""
    lower(treadle_context(), module, Target.parse("sm_80"))
    program = read_program(module)
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
    emulator = Emulator("\n".join(unit.text for unit in print_kernels(module)), ())
    launches: list[Launch] = []
    for launch in program.launches:
        kernel = kernels[launch.kernel]
        types = [argument.type for argument in kernel.body.block.args]
        assert all(isinstance(type, MemRefType) for type in types)
        memory = [(numpy_dtype(t.element_type), prod(t.get_shape())) for t in types if isinstance(t, MemRefType)]
        arguments = tuple(Argument(ref, *what) for ref, what in zip(launch.buffers, memory, strict=True))
        shared = kernel.shared_bytes(dynamic=True)
        launches.append(Launch(emulator, launch.kernel, kernel.grid_shape, kernel.block_shape, arguments, shared))
    outputs = [Output(spec.shape, spec.dtype) for spec in program.outputs]
    constants = [np.asarray(constant.array()) for constant in program.constants]
    sizes = program.arena_bytes, program.zeroed_bytes
    results, _ = Launches(
        launches, outputs, constants, *sizes, in_part=bool(program.extents), dispatches=program.dispatches
    ).run(inputs)
    return results


Runner = Callable[[ModuleOp, Sequence[Array]], list[Array]]
RUNNERS: Mapping[str, Runner] = {"c": run_as_c, "emulator": run_emulated}
"""What runs a module, by name."""

TARGETS = (*RUNNERS, "evaluator")
"""Those, and the evaluator of definitions."""


def run_graph(target: str, graph: Graph, results: Sequence[SSAValue]) -> list[Array]:
    """What one of `TARGETS` gives for results of a graph."""
    return run_module(target, graph.module(*results), graph.inputs)


def run_module(target: str, module: ModuleOp, inputs: Sequence[Array]) -> list[Array]:
    """What one of `TARGETS` gives for a module, which may be lowered in place."""
    if target == "evaluator":
        return [np.asarray(each) for each in evaluate_module(module, inputs)]
    return RUNNERS[target](module, inputs)
