"""Programs of a batch do not meet: neither by their names nor by what is wrong with one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers import program_batch
from tests.helpers.graphs import Graph, random
from tests.helpers.program_batch import C, ProgramBatch
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.printer import print_kernels
from treadle.dialects.graph import BinaryOp
from treadle.errors import TreadleError

X = random(3, 5)


def shifted(number: float) -> ModuleOp:
    """x + number, whose kernel is called the same whatever the number is."""
    graph = Graph(X)
    return graph.module(graph.add(BinaryOp("add", graph[0], graph.constant(np.float32(number)))))


def no_module() -> ModuleOp:
    raise TreadleError("there is no such module", "here")


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The list to which each library that is built adds the number of its units."""
    built: list[int] = []

    def build(units: Sequence[Unit], **options: Any):
        built.append(len(units))
        return build_library(units, **options)

    monkeypatch.setattr(program_batch, "build_library", build)
    return built


def test_kernels_of_one_name_and_other_values_share_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_compilations(monkeypatch)
    programs = ProgramBatch({str(n): partial(shifted, n) for n in (1, 2, 1)} | {"again": partial(shifted, 2)}, C)
    for name, number in (("2", 2), ("1", 1), ("again", 2)):
        (y,) = programs[name].run([X])
        np.testing.assert_array_equal(y, X + np.float32(number))
    assert built == [2]
    assert len({programs[name].library for name in ("1", "2", "again")}) == 1


def test_a_batch_is_compiled_when_one_of_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built = count_compilations(monkeypatch)
    programs = ProgramBatch({str(n): partial(shifted, n) for n in range(4)}, C, size=2)
    assert built == []
    assert programs["0"].library == programs["1"].library and built == [2]
    assert programs["2"].library != programs["1"].library and built == [2, 2]


def test_what_cannot_be_made_fails_alone() -> None:
    programs = ProgramBatch({"bad": no_module, "good": partial(shifted, 3)}, C)
    np.testing.assert_array_equal(programs["good"].run([X])[0], X + np.float32(3))
    for _ in range(2):
        with pytest.raises(TreadleError, match="there is no such module"):
            programs["bad"]


def test_what_the_compiler_rejects_fails_alone_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(module: ModuleOp) -> list[Unit]:
        units = print_kernels(module)
        return [Unit(unit.name, unit.text.replace("666.0f", "no_such_name")) for unit in units]

    monkeypatch.setattr(program_batch, "print_kernels", spoiled)
    programs = ProgramBatch({"good": partial(shifted, 3), "bad": partial(shifted, 666)}, C)
    np.testing.assert_array_equal(programs["good"].run([X])[0], X + np.float32(3))
    with pytest.raises(TreadleError, match=r"bad\..*\.c:\d+:.*no_such_name"):
        programs["bad"]
