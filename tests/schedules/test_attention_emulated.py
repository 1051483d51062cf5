"""Attention through the whole pipeline: one kernel with its neighbours, clean on the emulator, without spills."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from benchmarks.schedule_cases import Case, cases, compiled
from tests.helpers.emulated_batch import (
    EmulatedProgram,
    PrintedKernels,
    compile_programs,
    print_program,
    renamed,
)
from tests.helpers.graphs import Graph
from tests.helpers.limits import assert_within, module_limits, with_rounded_weights
from tests.helpers.sampling import in_turn
from tests.schedules.attention_cases import Sizes, arrays
from tests.schedules.test_matmul_mma_emulated import copied_asynchronously
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, BinaryOp, ReshapeOp, SliceOp, TransposeOp, WhereOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.target import Target

Build = Callable[[Graph], SSAValue]
GPU = Target.parse("sm_80")


def whole(**properties: Any) -> Build:
    """Attention of the first three inputs, masked by the fourth if there is one."""
    return lambda g: g.add(AttentionOp(*g.block.args, **properties))


def of_one_projection(heads: int, size: int) -> Build:
    """Queries, keys and values are parts of one matrix, heads lie side by side in them and in the result."""

    def build(g: Graph) -> SSAValue:
        tokens, width = g.inputs[0].shape[1], heads * size

        def part(n: int) -> SSAValue:
            cut = g.add(SliceOp(g[0], [0, 0, n * width], [1, tokens, width], [1, 1, 1]))
            return g.add(TransposeOp(g.add(ReshapeOp(cut, [1, tokens, heads, size])), [0, 2, 1, 3]))

        y = g.add(AttentionOp(part(0), part(1), part(2), *g.block.args[1:], scale=size**-0.5, causal=True))
        return g.add(ReshapeOp(g.add(TransposeOp(y, [0, 2, 1, 3])), [1, tokens, width]))

    return build


def hidden_where_negative(**properties: Any) -> Build:
    """Attention of the first three inputs, from which truth values that the fourth gives hide some keys."""

    def build(g: Graph) -> SSAValue:
        zero, hidden = (g.constant(np.array(value, g.inputs[3].dtype)) for value in (0, -np.inf))
        seen = g.add(BinaryOp("ge", g[3], zero))
        return g.add(AttentionOp(g[0], g[1], g[2], g.add(WhereOp(seen, zero, hidden)), **properties))

    return build


def of_existing_keys(**properties: Any) -> Build:
    """Attention of as many keys as the last input says."""
    return lambda g: g.add(AttentionOp(*g.block.args[:-1], length=g.block.args[-1], **properties))


@dataclass(frozen=True)
class Program:
    """One attention with its neighbours, and what it is fed."""

    sizes: Sizes
    build: Build
    dtype: str = "float32"
    mask: tuple[int, ...] | None = None
    joined: bool = False
    """Whether queries, keys and values come as one matrix."""
    length: int | None = None
    """How many keys exist, as an input."""
    kernels: int = 1
    """The mask has one of its own where it is computed, since many heads and rows of blocks read it."""

    @property
    def template(self) -> str:
        """Which one schedules it by default."""
        return "attention_cuda" if self.dtype == "float32" else "attention_mma"

    def graph(self) -> Graph:
        """The inputs, before the operators."""
        sizes = self.sizes
        operands = [(*sizes.batch, sizes.m, 3 * sizes.heads * sizes.d)] if self.joined else [*sizes.shapes]
        found = arrays([*operands, *([] if self.mask is None else [self.mask])], self.dtype)
        if self.length is None:
            return Graph(*found)
        found[1][..., self.length :, :], found[2][..., self.length :, :] = np.nan, np.inf
        return Graph(*found, np.array(self.length))


PROGRAMS = {
    "masked heads": Program(Sizes((1,), 3, 3, 70, 70, 64, 64), whole(scale=0.125, guard=True), mask=(1, 1, 1, 70)),
    "causal groups of primes": Program(Sizes((2,), 4, 2, 37, 131, 13, 17), whole(scale=0.3, causal=True)),
    "more queries than keys": Program(
        Sizes((), 2, 1, 90, 20, 5, 3), whole(scale=0.3, causal=True, guard=True), mask=(2, 90, 20)
    ),
    "truth values": Program(
        Sizes((1,), 2, 2, 20, 70, 16, 16), hidden_where_negative(scale=0.25, guard=True), mask=(1, 1, 20, 70), kernels=2
    ),
    "truth values in half precision": Program(
        Sizes((1,), 2, 2, 20, 70, 16, 16), hidden_where_negative(scale=0.25), "float16", mask=(1, 1, 20, 70), kernels=2
    ),
    "one query": Program(Sizes((), 5, 5, 1, 300, 40, 33), whole(scale=0.3)),
    "half precision": Program(
        Sizes((1,), 2, 2, 65, 65, 64, 40), whole(scale=0.125, causal=True), "float16", mask=(65, 65)
    ),
    "causal groups in bfloat16": Program(Sizes((2,), 4, 2, 37, 131, 13, 17), whole(scale=0.3, causal=True), "bfloat16"),
    "bfloat16": Program(Sizes((), 2, 2, 33, 40, 8, 8), whole(scale=0.3), "bfloat16"),
    "existing keys": Program(
        Sizes((2,), 4, 2, 37, 131, 13, 17), of_existing_keys(scale=0.3, causal=True), mask=(37, 131), length=101
    ),
    "existing keys in half precision": Program(
        Sizes((1,), 2, 1, 70, 128, 64, 40),
        of_existing_keys(scale=0.125, guard=True),
        "float16",
        (1, 1, 1, 128),
        length=80,
    ),
    "no key": Program(Sizes((1,), 1, 1, 9, 64, 8, 8), of_existing_keys(), "float16", length=0),
    "parts of one projection": Program(Sizes((1,), 3, 3, 50, 50, 16, 16), of_one_projection(3, 16), joined=True),
    "parts in half precision": Program(
        Sizes((1,), 2, 2, 33, 33, 24, 24), of_one_projection(2, 24), "float16", mask=(1, 1, 1, 33), joined=True
    ),
}


def lowered(name: str, target: Target = GPU) -> ModuleOp:
    """A program after stage `plan`."""
    program = PROGRAMS[name]
    graph = program.graph()
    module = graph.module(program.build(graph))
    lower(treadle_context(), module, target, to="schedule")
    assert f'#schedule.use<"{program.template}"' in str(module)
    lower(treadle_context(), module, target, after="schedule", to="plan")
    assert sum(isinstance(op, FuncOp) for op in module.walk()) == program.kernels
    return module


@cache
def printed(name: str) -> PrintedKernels:
    """A program as text."""
    return print_program(name, lowered(name), after="plan")


@cache
def programs() -> dict[str, EmulatedProgram]:
    """All programs in one text."""
    return compile_programs([printed(name) for name in PROGRAMS])


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_attention_is_one_kernel_right_and_clean(name: str) -> None:
    program = PROGRAMS[name]
    graph = program.graph()
    (expected,) = module_limits(graph.module(program.build(graph)), graph.inputs)
    (result,) = programs()[name].run(graph.inputs)
    if program.template == "attention_mma":
        expected = with_rounded_weights(expected, graph.inputs[0 if program.joined else 2], program.sizes.n)
    assert_within(result, expected, program.dtype, name)


def test_parts_of_one_projection_ride_the_asynchronous_copies() -> None:
    graph = PROGRAMS["parts in half precision"].graph()
    module = graph.module(PROGRAMS["parts in half precision"].build(graph))
    lower(treadle_context(), module, GPU)
    (unit,) = print_kernels(module)
    assert copied_asynchronously(unit.text) == {"lines", "keys", "values"}
    assert "treadle_cp_async_16(" in unit.text and not re.search(r"treadle_cp_async_[48]\(", unit.text)


def units_of(name: str, target: Target) -> Sequence[Unit]:
    """A program's kernels."""
    if target == GPU:
        return printed(name).units
    module = lowered(name, target)
    lower(treadle_context(), module, target, after="plan")
    return print_kernels(module)


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90", marks=pytest.mark.slow)])
def test_defaults_do_not_spill(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    gpu, units = Target.parse(target), list[Unit]()
    for unit in (unit for name in PROGRAMS for unit in units_of(name, gpu)):
        units.append(renamed(unit, f"k{len(units)}_{unit.name}"))
    resources = compile_cubin(Unit("kernels", "\n".join(unit.text for unit in units)), gpu).resources
    assert set(resources) == {unit.name for unit in units}
    assert [name for name, used in resources.items() if used.spills] == []


@pytest.mark.parametrize(
    ("case", "target"),
    in_turn([case for name, case in cases().items() if "attention" in name], ["sm_80", "sm_90"]),
    ids=lambda each: each.name if isinstance(each, Case) else each,
)
def test_aligned_heads_meet_in_no_bank_and_waste_no_sector(case: Case, target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    use = case.default(Target.parse(target))
    found = compiled(case.text(), use.template.data, use.knobs(), target)
    assert (found.spills, found.conflicts, found.excess_sectors) == (0, 0, 0)
