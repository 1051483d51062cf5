"""Passes by their names, former ones, too."""

import pytest

from treadle.errors import TreadleWarning
from treadle.passes.registry import FORMER_NAMES, PASSES, parse_passes


@pytest.mark.parametrize(("former", "now"), FORMER_NAMES.items())
def test_a_former_name_warns_of_the_present_one(former: str, now: str) -> None:
    assert former not in PASSES
    options = "{target=cpu}" if former == "loop-halve-tiles" else ""
    with pytest.warns(TreadleWarning, match=f"the pass '{former}' is called '{now}' now"):
        (found,) = parse_passes(former + options)
    assert found.name == now and type(found) is type(parse_passes(now + options)[0])
