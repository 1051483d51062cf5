"""graph-required-regions: what nobody needs may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute

from tests.helpers.extents import CASES, Extents, draws
from treadle.backends.reference.run_module import arguments, find_function
from treadle.dialects.graph import FusedOp, RequiredAttr
from treadle.dialects.graph.evaluate import evaluate_results
from treadle.dialects.loop import KernelOp
from treadle.errors import TreadleError
from treadle.ir import lower, parse, run_passes
from treadle.passes.schedule.instance import group_program

Array = NDArray[Any]


def evaluate_spoiled(module: ModuleOp, inputs: Sequence[Array], extents: Sequence[int]) -> list[Array]:
    """The results of @main, where each group's elements that nobody needs are overwritten by NaN or a huge number."""
    block = find_function(module, "main").body.block
    env = arguments(block, inputs)
    for op in block.ops:
        if isinstance(op, ReturnOp):
            return [env[v] for v in op.operands]
        results = list(evaluate_results(op, env))
        if isinstance(op, FusedOp) and isinstance(op.required_regions, ArrayAttr):
            results = [spoil(*pair, extents) for pair in zip(results, op.required_regions, strict=True)]
        env.update(zip(op.results, results, strict=True))
    raise AssertionError("no return")


def spoil(array: Array, required: Attribute, extents: Sequence[int]) -> Array:
    """The array with other numbers wherever it is not needed."""
    assert isinstance(required, RequiredAttr)
    needed = np.ones(array.shape, bool)
    for where in np.ndindex(array.shape):
        values = {f"d{d}": position for d, position in enumerate(where)}
        needed[where] = all(each.index.evaluate(values) < extents[each.extent] for each in required.data)
    beyond = np.nan if array.dtype.kind == "f" else 123456789
    return np.where(needed, array, np.array(beyond, array.dtype))


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_what_nobody_needs_may_hold_anything(name: str, target: str):
    case = CASES[name]
    module = case.module()
    lower(module, target, to="fuse")
    for extents in draws(case):
        given, exact = case.arguments(extents)
        case.check(extents, evaluate_spoiled(module, given, list(extents.values())), exact)


def required_regions(case: Extents, target: str = "cpu") -> Mapping[str, list[str]]:
    """What is required of each group's results, by the group's label."""
    module = case.module()
    lower(module, target, to="fuse")
    found = [op for op in module.walk() if isinstance(op, FusedOp)]
    return {
        op.label.data: [str(each)[len("#graph.required") :] for each in op.required_regions or [RequiredAttr.of([])]]
        for op in found
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", {"matmul_add_gelu": ["<d0 < 0, d1 < 1>"]}),
        ("transposes", {"reshape_transpose": ["<d0 < 0, d2 < 1>"], "reshape_transpose_2": ["<d2 < 0, d1 < 1>"]}),
        ("merged", {"matmul_relu": ["<d0 floordiv 40 < 0, d0 mod 40 < 1>"], "matmul": ["<d0 < 0, d1 < 1>"]}),
        # Two outputs of a group, one of which the next group reads under a mask.
        (
            "two outputs",
            {"matmul_exp": ["<d0 < 0, d1 < 1>", "<d0 < 0, d1 < 1>"], "mask_reduction_add": ["<d0 < 1>"]},
        ),
        # An element at d2 of the padded tensor is read for elements from d2 - 2 on.
        ("windows", {"mask_exp_pad": ["<d2 - 2 < 0>"], "im2col_matmul": ["<d2 < 0>"]}),
        # Heads are a part of a merged dimension, and no extent. The weights of masked keys are needed, since they are
        # 0, but not the scores.
        (
            "attention",
            {
                "matmul": ["<d0 < 0, d1 < 1>"],
                "matmul_2": ["<d0 floordiv 2 < 0, d1 < 1, d2 < 1>"],
                "mask_softmax": ["<d0 floordiv 2 < 0, d1 < 1>"],
                "mask_matmul": ["<d0 < 0, d1 < 1>"],
                "matmul_3": ["<d0 < 0, d1 < 1>"],
            },
        ),
        # Keys and values are read below the length, which is an extent; queries are not.
        (
            "attention operator",
            {"matmul": ["<d0 < 0, d2 < 1>"], "attention": ["<d0 < 0, d1 < 1>"], "matmul_2": ["<d0 < 0, d1 < 1>"]},
        ),
    ],
)
def test_what_is_needed(name: str, expected: Mapping[str, list[str]]):
    assert required_regions(CASES[name]) == expected


def test_required_regions_reach_the_kernels_and_change_no_key_of_the_database():
    module = CASES["two outputs"].module()
    lower(module, to="fuse")
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    assert " requires " not in group_program(fused).text()
    lower(module, after="fuse", to="schedule")
    for name in ("schedule-instantiate", "loop-fuse-prologue", "loop-fuse-epilogue"):
        run_passes(module, name)
    found = {op.sym_name.data: str(op.required_regions) for op in module.walk() if isinstance(op, KernelOp)}
    both = "#graph.required<d0 < 0, d1 < 1>"
    assert found == {"matmul_exp": f"[{both}, {both}]", "mask_reduction_add": "[#graph.required<d0 < 1>]"}


@pytest.mark.parametrize(
    ("required_region", "message"),
    [
        ("[]", r"output_required: 0 required regions for 1 tensors"),
        ("[#graph.required<d1 < 0>]", r"output_required: #graph.required<d1 < 0> constrains d1 of a tensor of rank 1"),
        ("[3 : i64]", r"output_required: a required region is 3 : i64: expected #graph.required<...>"),
    ],
)
def test_required_regions_that_do_not_fit_the_results(required_region: str, message: str):
    module = parse(
        "func.func @main(%x: tensor<4xf32>, %n: tensor<i64>) -> tensor<4xf32>"
        f' attributes {{extents = ["n"], output_required = {required_region}}} {{ func.return %x : tensor<4xf32> }}'
    )
    with pytest.raises(TreadleError, match=message):
        run_passes(module, "graph-required-regions")
