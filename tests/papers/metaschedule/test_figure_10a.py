"""MetaSchedule's figure 10a (NeurIPS 2022): a rule for tensor cores composes with those for tiles, and improves on
them."""

from __future__ import annotations

import pytest

from benchmarks.composition import CUDA_CORES, TENSOR_CORES, main, of_nests, of_templates, product
from treadle.schedules.nest.nest import Nest
from treadle.schedules.rules import programs, staged, tensorized, tiled, unrolled
from treadle.schedules.search.candidate import Task
from treadle.target import Target

DRAWS = 40
DENSE = "1024x1024x4096"


@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_the_rule_enlarges_the_space_by_tiles_on_tensor_cores(name: str) -> None:
    target = Target.parse(name)
    anchor, after = product(DENSE, target), (staged("shared", ahead=True), unrolled)
    without, composed = (
        {str(program).partition("\n")[2] for program in programs(anchor, target, [*rules, *after])}
        for rules in ([tiled("SSSRRSRS")], [tensorized("SSSRRSRS"), tiled("SSSRRSRS")])
    )
    added = {text for text in composed if "mma(%i5, %j5, %k3)" in text}
    assert without < composed and not added & without and len(added) == 2, "staged in two ways"
    for text in added:
        assert "repeat(%i1, %j1) thread(%i2, %j2)" in text
        assert text.count("schedule.sample_tile") >= 5 and text.count('in "shared"') == 2


@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_the_best_is_better_than_the_best_without(name: str) -> None:
    """Of as many draws from each space, by predicted time: at least twice, and not beyond the units' peak."""
    target = Target.parse(name)
    anchor = product(DENSE, target)
    plain, composed = (of_nests(anchor, target, rules, DRAWS) for rules in (CUDA_CORES, TENSOR_CORES))
    assert composed.candidate is not None and composed.legal > DRAWS / 2
    assert composed.seconds < plain.seconds / 2
    nest = Task(anchor, target, programs(anchor, target, TENSOR_CORES)).replay(composed.candidate)
    assert isinstance(nest, Nest) and nest.product is not None
    assert 2 * 1024 * 1024 * 4096 / target.peak_f16_tensor < composed.seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_tiles_that_the_template_does_not_have_are_of_use(name: str) -> None:
    """Against all candidates of `matmul_mma`."""
    target = Target.parse(name)
    anchor = product(DENSE, target)
    assert of_nests(anchor, target, TENSOR_CORES, 400).seconds < of_templates(anchor, target).seconds


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--draws", "4", "--products", "64x64x64"])
    head, line = capsys.readouterr().out.splitlines()
    assert "with mma" in head and line.startswith("64x64x64") and "@nest" in line
