"""The sweep of families: a whole run on one that compiles quickly, and of one whose heads begin at 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("diffusers")

import torch

from benchmarks.families import main, vary


def test_a_model_is_compared_with_eager_mode(tmp_path: Path) -> None:
    assert main(["ViT", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    (row,) = json.loads(path.read_text())["results"]
    assert row["model"] == "ViT" and row["error"] < 1e-5 and not row["problem"]


def test_matrices_of_one_number_become_random() -> None:
    module = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(module.weight)
    bias = module.bias.detach().clone()
    vary(module)
    assert module.weight.unique().numel() == 6 and torch.equal(module.bias, bias)
