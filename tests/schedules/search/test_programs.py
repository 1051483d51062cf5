"""Template spaces as programs: enumerating them gives exactly the schedules of the space, in its order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.schedule_cases import cases, group_of
from tests.schedules.search.anchors import ANCHORS, anchor
from treadle.dialects.schedule import Choice, ProgramOp, SampleOp, TemplateOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.search.programs import decisions_of, replay, template_program
from treadle.schedules.search.sampler import Sampler
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

GPU = Target.parse("sm_80")
CPU = Target.parse("cpu")
QUICK = (
    "layer 128 x 768 x 3072",
    "f16 layer 128 x 768 x 3072",
    "tf32 layer 128 x 3072 x 768",
    "softmax of 1536 rows of 128",
    "sum of columns of 1024 x 1024",
    "channels last, 8 x 64 x 56 x 56",
    "max pooling 8 x 64 x 112 x 112",
    "f16 masked attention of 12 heads, 128 x 64",
)


def legal(program: ProgramOp, decisions: Mapping[str, Choice], of: Anchor, target: Target) -> UseAttr | None:
    try:
        found = replay(program, decisions, of, target)
    except TreadleError:
        return None
    assert isinstance(found, UseAttr)
    return found


def same(template_name: str, of: Anchor, target: Target) -> None:
    template = TEMPLATES[template_name]
    program = template_program(template, of, target)
    program.verify()
    space = list(template.space(of, target))
    replayed = [legal(program, decisions, of, target) for decisions in Sampler(program).enumerate()]
    assert [use.knobs() for use in replayed if use is not None] == space
    assert space


@pytest.mark.parametrize("name", QUICK)
def test_gpu_spaces(name: str) -> None:
    case = cases()[name]
    same(case.default(GPU).template.data, anchor_of(group_of(case.module())), GPU)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cases() if name not in QUICK])
def test_other_gpu_spaces(name: str) -> None:
    case = cases()[name]
    same(case.default(GPU).template.data, anchor_of(group_of(case.module())), GPU)


@pytest.mark.parametrize("name", list(ANCHORS))
def test_cpu_spaces(name: str) -> None:
    of = anchor(name)
    fitting = [t for t in TEMPLATES.values() if t.kind == "cpu" and t.fits(of) and t.name != "matmul_cpu"]
    for template in fitting:
        same(template.name, of, CPU)


def small() -> tuple[ProgramOp, Anchor]:
    """A program of two open knobs, for softmax."""
    rows = SampleOp("rows", [1, 2, 4], taken=2)
    lanes = SampleOp("lanes", [16, 32])
    knobs = [("across", "columns"), ("lanes", lanes.param), ("rows", rows.param), ("cache_row", True)]
    return ProgramOp("p", "cpu", [rows, lanes, TemplateOp("row_cpu", knobs)]), anchor("softmax")


def test_decisions_that_are_taken_are_read() -> None:
    program, _ = small()
    program.verify()
    assert decisions_of(program) == {"rows": 2}


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ({"rows": 2}, "sample 'lanes' is open"),
        ({"rows": 3, "lanes": 16}, "sample 'rows' takes 3; accepted: 1, 2, 4"),
        ({"rows": True, "lanes": 16}, "sample 'rows' takes True"),
    ],
)
def test_what_cannot_be_replayed(decisions: Mapping[str, Choice], says: str) -> None:
    program, of = small()
    with pytest.raises(TreadleError) as caught:
        replay(program, decisions, of, CPU)
    assert says in str(caught.value)
    assert "schedule program @p" in str(caught.value)


def test_what_the_template_rejects_is_named() -> None:
    program, _ = small()
    with pytest.raises(TreadleError, match=r"schedule program @p: template 'row_cpu' does not schedule"):
        replay(program, {"rows": 2, "lanes": 16}, anchor("relu"), CPU)
    with pytest.raises(TreadleError, match="template 'row_cpu' is for cpu targets, not sm_80"):
        replay(program, {"rows": 2, "lanes": 16}, anchor("softmax"), GPU)
    unknown = ProgramOp("p", "cpu", [TemplateOp("gone", [])])
    with pytest.raises(TreadleError, match="unknown template 'gone'"):
        replay(unknown, {}, anchor("relu"), CPU)
