"""Groups that take one of several kernels: every call computes what the definition says, by each backend."""

from __future__ import annotations

from functools import cache

import pytest

from tests.helpers.arena_overlaps import overlaps
from tests.helpers.dispatched import THRESHOLDS, dispatch_everything
from tests.helpers.emulated_batch import CUDA
from tests.helpers.emulated_batch import print_program as print_cuda
from tests.helpers.extents import CASES, Extents
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from treadle.backends.reference.run_module import run_module
from treadle.errors import TreadleError
from treadle.ir import lower, parse, print_text

CHOICE = """
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>]} {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
    graph.yield %m : tensor<64x48xf32>
  } schedule #schedule.dispatch<#schedule.tree<TREE>, [
    #schedule.use<"matmul_cpu", {rows = 4, vectors = 3, chunk = 16, pack = false, passes = 1}>,
    #schedule.use<"matmul_cpu", {rows = 8, vectors = 3, chunk = 64, pack = false, passes = 1}>]>
    requires [#graph.required<d0 < 0>] : tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}"""


def twenty(case: Extents) -> list[dict[str, int]]:
    """Extents at the tree's borders and beside them, ones, bounds, and others."""
    borders = sorted({1, *THRESHOLDS, *(t + 1 for t in THRESHOLDS), 2, 3, 5, 11, 16, 17, 19, 23, 29, 37, 40, 64, 96})
    calls: dict[tuple[int, ...], dict[str, int]] = {}
    for n, border in enumerate([*borders, 10_000]):
        values = [min(border if k == 0 else borders[-1 - n % 7], bound) for k, bound in enumerate(case.bounds.values())]
        for each in (values, [min(border, bound) for bound in case.bounds.values()]):
            calls[tuple(each)] = dict(zip(case.bounds, each, strict=True))
    return list(calls.values())[-20:]


def at_borders(case: Extents) -> list[dict[str, int]]:
    """Extents on both sides of the tree's borders, some beside the largest, and bounds."""
    calls: dict[tuple[int, ...], dict[str, int]] = {}
    for n, border in enumerate([*sorted({1, *THRESHOLDS, *(t + 1 for t in THRESHOLDS)}), 10_000]):
        values = [min(border, bound) if k in (0, n % 3) else bound for k, bound in enumerate(case.bounds.values())]
        calls[tuple(values)] = dict(zip(case.bounds, values, strict=True))
    return list(calls.values())


@cache
def programs() -> dict[str, tuple[CompiledProgram, int]]:
    """Each case as C, and how many of its groups have several kernels."""
    modules = {name: case.module() for name, case in CASES.items()}
    groups = {name: dispatch_everything(module, "cpu") for name, module in modules.items()}
    printed = [print_program(name, module, after="schedule") for name, module in modules.items()]
    for program in printed:
        assert overlaps(modules[program.name]) == []
        assert program.host.text.count("} else {") >= groups[program.name]
    return {name: (program, groups[name]) for name, program in compile_programs(printed).items()}


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str):
    compiled, groups = programs()[name]
    assert groups > 0
    case = CASES[name]
    for extents in twenty(case):
        given, exact = case.arguments(extents)
        case.check(extents, compiled.run(given), exact)


@pytest.mark.parametrize("name", ["linear", "attention operator", "transposes", "half", "split k"])
def test_emulated_with_every_check(name: str):
    case, module = CASES[name], CASES[name].module()
    assert dispatch_everything(module, "sm_80") > 0
    emulated = CUDA.compiled([print_cuda(name, module, after="schedule")])[name]
    for extents in at_borders(case):
        given, exact = case.arguments(extents)
        case.check(extents, emulated.run(given), exact)


@pytest.mark.parametrize("stage", ["kernels", "plan", "loops"])
def test_every_stage_runs_one_kernel(stage: str):
    case, module = CASES["linear"], CASES["linear"].module()
    dispatch_everything(module, "cpu")
    lower(module, "cpu", after="schedule", to=stage)
    assert print_text(parse(print_text(module))) == print_text(module)
    for extents in ({"b": 1, "s": 1}, {"b": 2, "s": 7}, {"b": 3, "s": 14}):
        given, exact = case.arguments(extents, beyond=0)
        case.check(extents, run_module(module, given), exact)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("e0 <= 8 ? 0 : 2", "alternative 1 has no leaf: expected leaves 0 to 1"),
        ("e0 <= 8 ? 0 : (e0 <= 9 ? 1 : 2)", "alternative 2 is none: expected leaves 0 to 1"),
        ("e0 <= 8 ? 0 : (e0 <= 8 ? 0 : 1)", "no point reaches leaf 0: e0 is from 9 to 8"),
        ("n <= 8 ? 0 : 1", "'n' is no extent: expected e0, e1, and so on"),
        ("e1 <= 8 ? 0 : 1", "e1 is not given: there are 1 extents"),
    ],
)
def test_a_tree_that_is_wrong_is_refused(tree: str, message: str):
    with pytest.raises(TreadleError) as caught:
        lower(parse(CHOICE.replace("TREE", tree)), after="schedule")
    assert message in str(caught.value)


def test_the_host_program_has_a_branch():
    program = print_program("program", parse(CHOICE.replace("TREE", "e0 <= 8 ? 1 : 0")), after="schedule")
    assert "if (*(const int64_t *)(inputs[2]) <= 8) {" in program.host.text
