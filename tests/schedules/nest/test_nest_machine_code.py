"""The machine code of a nest with the decisions of `matmul_simt` is the template's, but for addresses."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from benchmarks.nests import TILES
from benchmarks.schedule_cases import cases
from tests.backends.cuda.machine_code import disassembled
from tests.schedules.nest.test_nest import program
from treadle.backends.cuda.compiler import Cubin, compile_cubin
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.fetched_sectors import memory_transactions
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
GPU = Target.parse("sm_80")


def scheduled(body: str | None) -> ModuleOp:
    """The product of 4096 cubed after stage `loops`, as a nest or by default."""
    module: ModuleOp = cases()["matmul 4096 x 4096 x 4096"].module()
    lower(treadle_context(), module, GPU, after="fuse", to="schedule")
    if body is not None:
        (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
        module.body.block.add_op(program(body, "cuda"))
        fused.schedule = SymbolRefAttr("p")
    lower(treadle_context(), module, GPU, after="schedule", to="loops")
    return module


def compiled(module: ModuleOp) -> tuple[Cubin, Sass]:
    """The machine code of a module after stage `loops`."""
    lower(treadle_context(), module, GPU, after="loops")
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, GPU)
    return cubin, disassembled(cubin)[unit.name]


def test_a_nest_is_as_good_as_the_template() -> None:
    nest = scheduled(TILES)
    (kernel,) = [op for op in nest.walk() if isinstance(op, FuncOp)]
    accesses = memory_transactions(kernel)
    assert accesses and not any(access.conflicts or access.excess for access in accesses)
    (ours, code), (_, theirs) = compiled(nest), compiled(scheduled(None))
    (found,) = ours.resources.values()
    assert found.registers <= 128 and not code.uses_local_memory, "two blocks of 256 threads on a multiprocessor"
    for opcode in ("FFMA", "LDS", "LDS.128", "LDG", "LDG.128", "STS", "STS.128", "STG", "STG.128", "BAR"):
        assert code.count(opcode) == theirs.count(opcode) > 0, opcode
