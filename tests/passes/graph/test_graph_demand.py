"""graph-demand: what nobody needs may hold anything."""

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
from treadle.dialects.graph import DemandedAttr, FusedOp
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
        if isinstance(op, FusedOp) and isinstance(op.demands, ArrayAttr):
            results = [spoil(*pair, extents) for pair in zip(results, op.demands, strict=True)]
        env.update(zip(op.results, results, strict=True))
    raise AssertionError("no return")


def spoil(array: Array, demanded: Attribute, extents: Sequence[int]) -> Array:
    """The array with other numbers wherever it is not needed."""
    assert isinstance(demanded, DemandedAttr)
    needed = np.ones(array.shape, bool)
    for where in np.ndindex(array.shape):
        values = {f"d{d}": position for d, position in enumerate(where)}
        needed[where] = all(each.index.evaluate(values) < extents[each.extent] for each in demanded.data)
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


def demands(case: Extents, target: str = "cpu") -> Mapping[str, list[str]]:
    """What is demanded of each group's results, by the group's label."""
    module = case.module()
    lower(module, target, to="fuse")
    found = [op for op in module.walk() if isinstance(op, FusedOp)]
    return {
        op.label.data: [str(each)[len("#graph.demanded") :] for each in op.demands or [DemandedAttr.of([])]]
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
    assert demands(CASES[name]) == expected


def test_demands_reach_the_kernels_and_change_no_key_of_the_database():
    module = CASES["two outputs"].module()
    lower(module, to="fuse")
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    assert "demands" not in group_program(fused).text()
    lower(module, after="fuse", to="schedule")
    for name in ("schedule-instantiate", "loop-fuse-prologue", "loop-fuse-epilogue"):
        run_passes(module, name)
    found = {op.sym_name.data: str(op.demands) for op in module.walk() if isinstance(op, KernelOp)}
    both = "#graph.demanded<d0 < 0, d1 < 1>"
    assert found == {"matmul_exp": f"[{both}, {both}]", "mask_reduction_add": "[#graph.demanded<d0 < 1>]"}


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ("[]", r"output_demand: 0 demands for 1 tensors"),
        ("[#graph.demanded<d1 < 0>]", r"output_demand: #graph.demanded<d1 < 0> constrains d1 of a tensor of rank 1"),
        ("[3 : i64]", r"output_demand: a demand is 3 : i64: expected #graph.demanded<...>"),
    ],
)
def test_demands_that_do_not_fit_the_results(demand: str, message: str):
    module = parse(
        "func.func @main(%x: tensor<4xf32>, %n: tensor<i64>) -> tensor<4xf32>"
        f' attributes {{extents = ["n"], output_demand = {demand}}} {{ func.return %x : tensor<4xf32> }}'
    )
    with pytest.raises(TreadleError, match=message):
        run_passes(module, "graph-demand")
