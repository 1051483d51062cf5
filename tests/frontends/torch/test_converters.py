"""Every converter as compiled C, against PyTorch in float64, within the limits of the imported graph."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

torch = pytest.importorskip("torch")

from tests.frontends.torch.cases import CASES, Case, Function  # noqa: E402
from tests.helpers.limits import assert_within, module_limits  # noqa: E402
from tests.helpers.program_batch import C, CompiledProgram, PrintedProgram, ProgramBatch  # noqa: E402
from treadle.errors import TreadleError  # noqa: E402
from treadle.frontends.torch import exported, import_exported, supported_operators  # noqa: E402
from treadle.frontends.torch.importer import decomposed, export  # noqa: E402

BY_NAME = {case.name: case for case in CASES}


@cache
def program_of(name: str) -> Any:
    case = BY_NAME[name]
    return exported(Function(case.function).eval(), case.inputs)


def module_of(name: str) -> ModuleOp:
    return import_exported(program_of(name))


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> ProgramBatch[PrintedProgram, CompiledProgram]:
    chosen = {item.name for item in request.session.items}
    names = [case.name for case in CASES if f"test_compiled_case[{case.name}]" in chosen]
    return ProgramBatch({name: partial(module_of, name) for name in names}, C)


def expected(case: Case) -> list[Any]:
    """What PyTorch computes in float64, rounded to the type that it gives of the inputs as they are."""
    with torch.no_grad():
        results = case.function(*(x.clone() for x in case.inputs))
        exact = case.function(*(x.double() if x.is_floating_point() else x.clone() for x in case.inputs))
    listed, wide = ([r] if isinstance(r, torch.Tensor) else list(r) for r in (results, exact))
    return [(w if r.is_floating_point() else r).to(r.dtype).numpy() for r, w in zip(listed, wide, strict=True)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_compiled_case(case: Case, compiled: ProgramBatch[PrintedProgram, CompiledProgram]) -> None:
    module = module_of(case.name)
    inputs = [x.numpy() for x in case.inputs]
    actual = compiled[case.name].run(inputs)
    for result, wanted, limit in zip(actual, expected(case), module_limits(module, inputs), strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        if result.dtype.kind == "f":
            assert_within(result, limit, wanted.dtype, case.name)
            assert_within(wanted, limit, wanted.dtype, f"what PyTorch computes of {case.name}")
        else:
            np.testing.assert_array_equal(result, wanted)


def test_every_converter_has_a_case() -> None:
    reached = {str(node.target) for name in BY_NAME for node in program_of(name).graph.nodes}
    assert set(supported_operators()) <= reached


def test_what_writes_to_its_operands_has_no_converter() -> None:
    """A program of converted operators is not decomposed, by which writes would become results."""
    for name in supported_operators():
        library, operator, overload = name.split(".")
        schema = getattr(getattr(getattr(torch.ops, library), operator), overload)._schema
        assert not schema.is_mutable, name


def test_a_program_of_converted_operators_is_not_traced_again() -> None:
    once = export(Function(lambda x: torch.relu(x) + 1).eval(), (torch.randn(2, 3),))
    assert decomposed(once) is once
    writing = export(Function(lambda x: (x + 1).mul_(2)).eval(), (torch.randn(2, 3),))
    assert {str(node.target) for node in decomposed(writing).graph.nodes} >= {"aten.add.Tensor", "aten.mul.Tensor"}


REFUSED = [
    Case("bins from 0.0 to 0.0 of f32; accepted: floats, and min below max", lambda x: torch.histc(x, 3),
         (torch.rand(4),)),
    Case("an input of shape .*; accepted: no extent of 0", lambda x, g: torch.nn.functional.grid_sample(x, g),
         (torch.rand(1, 2, 3, 3), torch.rand(1, 0, 2, 2))),
    Case("scale_a of .*; accepted: float32 of shape .. or .16, 1.: not of blocks",
         lambda x, w, s, t: torch.ops.aten._scaled_mm(
             x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).T, s, t, out_dtype=torch.bfloat16),
         (torch.rand(16, 256), torch.rand(128, 256), torch.rand(16, 2), torch.rand(2, 1))),
    Case("operands of shapes .*; accepted: .rows, inputs. and .experts, inputs, outputs.",
         lambda x, w: torch.ops.aten._grouped_mm(x.bfloat16(), w.bfloat16()),
         (torch.rand(2, 4, 8), torch.rand(2, 8, 8))),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name[:10]) for case in REFUSED])
def test_what_a_converter_refuses(case: Case) -> None:
    with pytest.raises(TreadleError, match=case.name):
        import_exported(exported(Function(case.function).eval(), case.inputs))
