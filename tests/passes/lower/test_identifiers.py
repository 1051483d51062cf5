"""Kernels' symbols as names in C: all different, found in linear time."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Region

from treadle.dialects.loop import FuncOp
from treadle.passes.lower import identifiers
from treadle.passes.lower.identifiers import rename_kernels


def renamed(*symbols: str) -> list[str]:
    bodies = (Region(Block(arg_types=[IndexType(), IndexType()])) for _ in symbols)
    module = ModuleOp([FuncOp(name, 1, 1, body, outputs=0) for name, body in zip(symbols, bodies, strict=True)])
    rename_kernels(module)
    return [op.sym_name.data for op in module.ops if isinstance(op, FuncOp)]


def test_names_that_become_equal_get_numbers() -> None:
    assert renamed("a b", "a-b", "a_b_2", "exp", "switch") == ["a_b", "a_b_2", "a_b_2_2", "exp_kernel", "switch_"]


def test_many_names_that_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symbols that are cut to the same 60 letters: each is looked at once."""
    calls: list[str] = []
    original = identifiers.kernel_identifier
    monkeypatch.setattr(identifiers, "kernel_identifier", lambda symbol: calls.append(symbol) or original(symbol))
    names = renamed(*(f"{'layer' * 14}_{n}" for n in range(500)))
    assert len(set(names)) == len(calls) == 500
