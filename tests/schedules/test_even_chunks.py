"""By default each core has as many tiles of a product, and whole chunks of its rows."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from tests.schedules.test_templates import product
from treadle.schedules.template import number
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


@pytest.mark.parametrize("cores", [2, 3, 4, 6])
@pytest.mark.parametrize("m", [784, 1225, 3136, 12544])
@pytest.mark.parametrize("n", [32, 96, 192])
def test_chunks_are_even(m: int, n: int, cores: int) -> None:
    target, anchor = replace(Target.parse("avx512"), cores=cores), product(((m, 256), (256, n)))
    default = TEMPLATES["matmul_cpu"].default(anchor, target)
    rows, chunk = number(default, "rows"), number(default, "chunk")
    chunks = ceil(m / chunk)
    if chunks == 1:
        assert n > m
        return
    assert chunks % cores == 0
    assert rows * ceil(ceil(m / rows) / chunks) * chunks <= 1.07 * rows * ceil(m / rows)
