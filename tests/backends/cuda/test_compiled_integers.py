"""NVRTC's machine code for integers, whose overflow CUDA C++ leaves undefined."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.graphs import Graph
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.machine_code import disassemble
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp
from treadle.dialects.registry import treadle_context
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

TARGET = Target.parse("sm_80")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_what_may_overflow_is_computed(dtype: type[np.signedinteger]) -> None:
    """Of signed numbers the compiler takes `x + 1 > x` for true, and does not read x."""
    graph = Graph(np.zeros(64, dtype))
    one = graph.constant(np.ones((), dtype))
    module = graph.module(graph.add(BinaryOp("gt", graph.add(BinaryOp("add", graph[0], one)), graph[0])))
    lower(treadle_context(), module, TARGET)
    (unit,) = print_kernels(module)
    (code,) = disassemble(compile_cubin(unit, TARGET).image).values()
    assert any(instruction.opcode.startswith("LDG") for instruction in code.instructions)
