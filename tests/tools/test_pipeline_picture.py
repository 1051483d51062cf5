"""The picture of stages and dialects: all of the pipeline is in it, and nothing covers anything else."""

from __future__ import annotations

from itertools import combinations
from xml.etree.ElementTree import Element, fromstring

import pytest

from docs.build.architecture import DOCUMENTS, EXCERPTS, PICTURES, ROOT
from docs.build.pipeline_picture import BOTH, Chip, chips_of, draw_pipeline, kinds_with, steps_of
from tests.helpers.bless import assert_golden
from treadle.compiler.pipeline import PASSES, STAGES, Step
from treadle.dialects.registry import UPSTREAM, dialect_factories
from treadle.target import KINDS, TargetKind

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def picture() -> Element:
    return fromstring(draw_pipeline())


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    assert_golden(PICTURES[name](), ROOT / name)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_shown_by_a_document(name: str) -> None:
    shown = name.removeprefix("docs/")
    assert any(f"]({shown})" in (ROOT / document).read_text() for document in DOCUMENTS)


def test_every_stage_pass_and_dialect_is_named(picture: Element) -> None:
    texts = {text.text for text in picture.iter(f"{SVG}text")}
    assert {stage.name for stage in STAGES} <= texts
    everything = [step for passes in PASSES.values() for steps in passes.values() for step in steps]
    assert {step.text.partition("{")[0] for step in everything} <= texts
    assert {*dialect_factories(), *UPSTREAM} - {"builtin"} <= texts


def test_one_pass_with_two_sets_of_options_is_one_chip() -> None:
    cpu, cuda = frozenset[TargetKind](("cpu",)), frozenset[TargetKind](("cuda",))
    steps = [(Step("a", ""), cpu), (Step("a{x=1}", ""), cuda), (Step("b", ""), cuda), (Step("a", ""), cpu)]
    assert chips_of(steps) == [Chip("a", BOTH), Chip("b", cuda), Chip("a", cpu)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_both_is_that_of_each(kind: TargetKind) -> None:
    for stage in STAGES:
        assert tuple(step for step, kinds in steps_of(stage.name) if kind in kinds) == PASSES[kind][stage.name]


def test_dialects_remain_where_the_borders_allow_them() -> None:
    assert kinds_with("graph", "kernels") == BOTH and not kinds_with("graph", "plan")
    assert kinds_with("loop", "lower") == {"cpu"} and kinds_with("cuda", "lower") == {"cuda"}


def test_decisions_are_in_the_text_of_the_stages_that_the_picture_marks() -> None:
    for stage in STAGES:
        assert ("#schedule." in EXCERPTS[f"cpu {stage.name}"]()) == bool(kinds_with("schedule", stage.name)), stage.name


def test_shapes_lie_inside_and_do_not_overlap(picture: Element) -> None:
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    for kind in ("box", "chip", "bar"):
        shapes = [_edges(each) for each in picture.iter(f"{SVG}rect") if each.attrib["class"].startswith(kind)]
        assert len(shapes) > len(STAGES)
        assert all(0 < left < right < width and 0 < top < bottom < height for left, right, top, bottom in shapes)
        for one, other in combinations(shapes, 2):
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, (one, other)


def test_dark_readers_have_every_colour(picture: Element) -> None:
    style = next(picture.iter(f"{SVG}style")).text
    assert style is not None
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    coloured = [rule.partition("{")[0] for rule in dark.strip("{}").split("}") if rule]
    assert len(coloured) > 10 and all(f"{selector}{{" in light for selector in coloured)
    assert "#ffffff" in light and "#ffffff" not in dark


def _edges(rectangle: Element) -> tuple[float, float, float, float]:
    """Left, right, top, bottom."""
    x, y, width, height = (float(rectangle.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, x + width, y, y + height
