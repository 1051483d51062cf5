"""The benchmark of attention over a cache: all sides compute the same, and what its arguments mean."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.decode_attention import Size, measured


def test_all_sides_give_the_same() -> None:
    (row,) = measured(Size(4, 2, 2, 8), [19], {"vectors=1": {"vectors": 1}}, threads=2, rounds=1)
    assert list(row.us) == ["decode", "vectors=1", "attention_cpu", "operators", "ONNX Runtime"]
    assert row.error < 1e-5 and row.gigabytes("decode") > 0


def test_sizes() -> None:
    assert str(Size.parse("14/2x1x64")) == "14/2x1x64"
    for text in ("14x1x64", "14/2x1", "14/0x1x64"):
        with pytest.raises(argparse.ArgumentTypeError):
            Size.parse(text)
