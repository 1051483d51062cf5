"""Drawn PyTorch modules through `torch.compile(backend="treadle")`, beside PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.fuzz.torch_modules import case_of_seed, check_case


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_module_shows_what_it_does_in_pytorch(seed: int) -> None:
    case = case_of_seed(seed)
    assert check_case(case) is None, case.described()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 60))
def test_more_drawn_modules(seed: int) -> None:
    case = case_of_seed(seed)
    assert check_case(case) is None, case.described()
