"""Products of bytes on a CPU's matrix unit, compiled, against the definition in integers."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from xdsl.dialects.builtin import ModuleOp

from tests.frontends.onnx.models import model, node
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
TARGETS = ("cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni}")
KINDS: dict[str, tuple[int, Any]] = {"i8": (TensorProto.INT8, np.int8), "ui8": (TensorProto.UINT8, np.uint8)}
ZEROS = ("none", "of the left one", "of both", "of each column")
CASES = list(product(KINDS, KINDS, ZEROS))
M, K, N = 21, 70, 37


def operands(left: str, right: str) -> tuple[Array, Array, Array, Array]:
    """Matrices, and zero points, over the whole range of their types."""
    rng = np.random.default_rng(3)
    kinds = [np.iinfo(KINDS[kind][1]) for kind in (left, right, left, right)]
    shapes = [(2, M, K), (K, N), (), (N,)]
    found = [rng.integers(k.min, k.max, s, k.dtype, endpoint=True) for k, s in zip(kinds, shapes, strict=True)]
    return found[0], found[1], found[2], found[3]


def imported(left: str, right: str, zeros: str) -> ModuleOp:
    _, b, za, zb = operands(left, right)
    constants = {"b": b}
    names = "a b"
    if zeros != "none":
        names += " za" + ("" if zeros == "of the left one" else " zb")
        constants |= {"za": za} if zeros == "of the left one" else {"za": za, "zb": zb if "column" in zeros else zb[0]}
    proto = model([node("MatMulInteger", names, "y")], {"a": [2, M, K]}, element=KINDS[left][0], weights=constants)
    return import_model(proto.SerializeToString())


@cache
def programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([printed(case, target) for case in CASES], target)


@cache
def printed(case: tuple[str, str, str], target: str) -> PrintedProgram:
    return print_program(" ".join(case), imported(*case), target, after="import")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_products_of_bytes(case: tuple[str, str, str], target: str) -> None:
    left, right, zeros = case
    a, b, za, zb = (each.astype(np.int32) for each in operands(left, right))
    zb = zb if "column" in zeros else zb[:1]
    wanted = {
        "none": lambda: a @ b,
        "of the left one": lambda: (a - za) @ b,
    }.get(zeros, lambda: (a - za) @ (b - zb))()
    (got,) = programs(target)[" ".join(case)].run([operands(left, right)[0]])
    np.testing.assert_array_equal(got, wanted)
    assert any("treadle_tiles_" in unit.text for unit in printed(case, target).kernels)
