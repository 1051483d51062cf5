"""Which kernels a group of a range gets by default: for every operator as the cost model predicts its calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx.helper import make_node

from tests.helpers.ranged_model import Case, weights
from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.frontends.onnx import import_model
from treadle.ir import lower
from treadle.passes.schedule import ranged_schedule
from treadle.passes.schedule.instance import anchor_of, call_shape, instance_of
from treadle.passes.schedule.ranged_schedule import LEAST_GAIN, PointTimes, module_points
from treadle.passes.schedule.ranged_schedule import ranged_schedule as chosen
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.joint import throughput
from treadle.schedules.template import number
from treadle.target import Target

SMALL = "sm_80{multiprocessors=16}"
"""A GPU that short calls do not leave idle."""
_ATTENTION = [
    make_node("MatMul", ["q", "k"], ["s"]), make_node("Mul", ["s", "half"], ["t"]),
    make_node("Softmax", ["t"], ["p"], axis=-1), make_node("MatMul", ["p", "v"], ["y"]),
]  # fmt: skip
_DEPTHWISE = make_node("Conv", ["x", "k"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, group=64)
_CONVOLUTION = make_node("Conv", ["x", "k"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
_IMAGES, _SIZES = {"x": [1, 64, "h", "w"]}, ["h:1..128", "w:1..128"]
CASES: Mapping[str, Case] = {
    "attention": Case(
        _ATTENTION, {"q": [2, "s", 64], "k": [2, 64, "s"], "v": [2, "s", 64]}, ["s:1..256"],
        constants={"half": weights()},
    ),
    "convolution": Case([_CONVOLUTION], _IMAGES, _SIZES, constants={"k": weights(64, 64, 3, 3)}),
    "depthwise convolution": Case([_DEPTHWISE], _IMAGES, _SIZES, constants={"k": weights(64, 1, 3, 3)}),
    "transpose": Case([make_node("Transpose", ["x"], ["y"], perm=[1, 0])], {"x": ["n", 1024]}, ["n:1..2048"]),
    "sum": Case(
        [make_node("ReduceSum", ["x", "c"], ["y"], keepdims=0)], {"x": ["n", "s"]}, ["n:1..512", "s:1..8192"],
        constants={"c": np.array([1])},
    ),
    "softmax": Case([make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": ["n", "s"]}, ["n:1..512", "s:1..640"]),
    "pointwise": Case([make_node("Erf", ["x"], ["y"])], {"x": ["n", 256]}, ["n:1..512"]),
}  # fmt: skip


def group_of(name: str, target: str) -> FusedOp:
    """The last group of a model, before it is scheduled."""
    module = import_model(CASES[name].model().SerializeToString(), CASES[name].shapes)
    lower(module, target, to="fuse")
    return [op for op in module.walk() if isinstance(op, FusedOp)][-1]


def times_of(fused: FusedOp, target: Target) -> PointTimes:
    found = PointTimes.of(fused, module_points(fused), target)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "target"),
    [("attention", SMALL), ("convolution", "sm_80"), ("depthwise convolution", "sm_80"), ("transpose", "avx512"),
     ("transpose", "sm_80"), ("sum", "sm_80"), ("softmax", "sm_80"), ("pointwise", "avx512")],
)  # fmt: skip
def test_several_kernels_gain_a_tenth_over_any_single_one(name: str, target: str) -> None:
    fused, on = group_of(name, target), Target.parse(target)
    default = default_schedule(fused, on)
    found, points, times = chosen(fused, on, default), module_points(fused), times_of(fused, on)
    table = {use: times.of_use(use) for use in dict.fromkeys([default, *times.gaining(default, LEAST_GAIN)])}
    weights = [point.weight for point in points]
    best = max(throughput(table, weights, [use]) for use in table)
    if isinstance(found, UseAttr):
        assert throughput(table, weights, [found]) >= throughput(table, weights, [default])
        return
    kernels = [use for use in found.alternatives.data if isinstance(use, UseAttr)]
    assert len(kernels) > 1
    assert throughput(table, weights, kernels) > (1 + LEAST_GAIN) * best


def test_attention_is_dispatched() -> None:
    """Few queries take small blocks, many large ones."""
    fused, target = group_of("attention", SMALL), Target.parse(SMALL)
    found = chosen(fused, target, default_schedule(fused, target))
    assert isinstance(found, DispatchAttr)
    rows = [number(use.knobs(), "rows") for use in found.alternatives.data if isinstance(use, UseAttr)]
    assert rows == sorted(rows) and rows[0] < rows[-1]


def test_a_gain_below_the_threshold_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, target = group_of("attention", SMALL), Target.parse(SMALL)
    monkeypatch.setattr(ranged_schedule, "LEAST_GAIN", 10.0)
    assert isinstance(chosen(fused, target, default_schedule(fused, target)), UseAttr)


@pytest.mark.parametrize("name", CASES)
def test_an_instance_is_what_a_call_computes(name: str) -> None:
    """Its definition has the result's extents; a softmax keeps its columns, over which its kernels go."""
    fused = group_of(name, "sm_80")
    anchor, point = anchor_of(fused), module_points(fused)[0]
    required = ranged_schedule.required_within(fused, anchor.result)
    call = call_shape(anchor, required, point.extents, fused=False)
    instance = instance_of(anchor, call)
    assert tuple(instance.shape) == call.shape
    assert call.shape != tuple(anchor.shape)
    if name == "softmax":
        assert call.shape[-1] == anchor.shape[-1]
    instance.parent_op().verify()  # pyright: ignore[reportOptionalMemberAccess]


def test_a_call_too_small_for_a_template_takes_as_long_as_a_larger_one() -> None:
    """One window is no window to `window_cuda`, which computes it all the same."""
    fused, target = group_of("depthwise convolution", "sm_80"), Target.parse("sm_80")
    default = default_schedule(fused, target)
    assert default.template.data == "window_cuda"
    times = times_of(fused, target).of_use(default)
    assert max(times) < float("inf")


def test_equal_defaults_at_both_ends_cost_nothing() -> None:
    """Nothing is recorded for a group whose smallest and largest calls have one default."""
    fused, target = group_of("softmax", "sm_80"), Target.parse("sm_80")
    times = times_of(fused, target)
    assert times.defaults() == [default_schedule(fused, target)]
    assert times.gaining(default_schedule(fused, target), LEAST_GAIN) == []
