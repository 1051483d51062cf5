"""What the schedules of the templates' spaces compile to, and that docs/schedules.md says so."""

from __future__ import annotations

import re

import pytest

from benchmarks.schedule_cases import Compiled, cases, compiled, compiled_default
from benchmarks.warpgroup_kernels import forms
from docs.build.architecture import ROOT, render
from docs.build.schedules import DOCUMENT, EXCERPTS, default_row
from tests.helpers.bless import assert_golden
from treadle.errors import TreadleError
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

TARGETS = ("sm_80", "sm_90")
DEFAULTS = [
    pytest.param(name, target, marks=() if n % 4 == 2 * (target == "sm_90") else pytest.mark.slow)
    for n, name in enumerate(cases())
    for target in TARGETS
]
"""Every run compiles every other case, each for one of the targets in turn."""

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")


def test_the_cases_use_every_gpu_template() -> None:
    target = Target.parse("sm_80")
    used = {case.default(target).template.data for case in cases().values()}
    assert used == {name for name, template in TEMPLATES.items() if template.runs_on(target)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(cases()))
def test_spaces_are_small_and_hold_their_default(name: str, target: str) -> None:
    space, default = cases()[name].space(Target.parse(target)), cases()[name].default(Target.parse(target))
    assert 1 < len(space) < 200
    assert default.knobs() in space
    assert all(
        re.search("too (many|few|wide|narrow)|evenly|anyway|short of|overrun", str(error))
        for _, error in space.excluded()
    )


@pytest.mark.parametrize(("name", "target"), DEFAULTS)
def test_defaults_compile_without_spills_and_conflicts(name: str, target: str) -> None:
    result = compiled_default(name, target)
    assert (result.spills, result.conflicts) == (0, 0)
    assert result.occupancy > 0
    # Rows of 2039 elements begin within sectors; windows ask the cache for a sector several times.
    assert result.excess_sectors == 0 or "2039" in name
    template = cases()[name].default(Target.parse(target)).template.data
    assert result.excess_requests == result.excess_sectors or "window" in template
    assert f"| {' | '.join(default_row(name, target))} |\n" in (ROOT / DOCUMENT).read_text()


@pytest.mark.slow
def test_the_document_is_up_to_date() -> None:
    path = ROOT / DOCUMENT
    assert_golden(render(path.read_text(), DOCUMENT, EXCERPTS), path)


def test_what_the_document_says_of_knobs_and_spaces_is_up_to_date() -> None:
    """All but the tables of which the cases above, and those of kernels of warpgroups, are rows."""
    path = ROOT / DOCUMENT
    text = path.read_text()
    defaults, warpgroups = (
        re.findall(rf"<!-- generated: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)[0]
        for name in ("defaults", "warpgroups")
    )
    assert defaults.count("\n") == 2 + len(TARGETS) * len(cases())
    assert warpgroups.count("\n") == 2 + len(forms())
    compiled_rows = {"defaults": lambda: defaults, "warpgroups": lambda: warpgroups}
    assert_golden(render(text, DOCUMENT, {**EXCERPTS, **compiled_rows}), path)


def _result(registers: int, limit: int, spills: int) -> Compiled:
    return Compiled(1, 256, registers, limit, spills, 0, 0.5, "registers", 0, 0, 0)


@pytest.mark.parametrize(
    ("result", "lacks"),
    [
        (_result(128, 128, 0), False),
        (_result(128, 128, 8), True),
        (_result(126, 128, 8), True),
        (_result(255, 255, 4), True),
        (_result(48, 255, 24), False),
    ],
)
def test_spills_below_the_limit_are_the_compiler_s_choice(result: Compiled, lacks: bool) -> None:
    assert result.lacks_registers == lacks


def test_a_block_more_leaves_fewer_registers_a_thread() -> None:
    case = cases()["matmul 4096 x 4096 x 4096"]
    default = case.default(Target.parse("sm_80"))
    limits = [
        compiled(case.text(), default.template.data, default.knobs() | {"min_blocks_per_sm": n}, "sm_80").register_limit
        for n in (1, 2)
    ]
    assert limits == [255, 128]


def test_a_sample_of_a_space_compiles() -> None:
    case, target = cases()["matmul 2039 x 2039 x 2039"], Target.parse("sm_80")
    for choices in list(case.space(target))[5::180]:
        assert compiled(case.text(), "matmul_simt", choices, "sm_80").registers <= 255


def test_an_illegal_choice_is_rejected_before_it_is_built() -> None:
    case = cases()["matmul 4096 x 4096 x 4096"]
    choices = case.default(Target.parse("sm_80")).knobs() | {"block_k": 12}
    with pytest.raises(TreadleError, match="knob 'block_k' of template 'matmul_simt' is 12; accepted: 8, 16"):
        compiled(case.text(), "matmul_simt", choices, "sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(cases()))
def test_every_schedule_of_a_space_compiles(name: str, target: str) -> None:
    """And none has too few registers; what ptxas spills of its own accord, for one block more, the tables report."""
    case = cases()[name]
    text, template = case.text(), case.default(Target.parse(target)).template.data
    made = [(choices, compiled(text, template, choices, target)) for choices in case.space(Target.parse(target))]
    assert [choices for choices, result in made if result.lacks_registers or result.registers > 255] == []
