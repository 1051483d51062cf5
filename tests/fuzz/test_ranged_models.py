"""Drawn models with ranges: what the importer takes is right in every call, as compiled C and on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.fuzz.case import Array
from tests.fuzz.check_ranges import RangeChecker
from tests.fuzz.draw import Draw
from tests.fuzz.generate import case_of_seed
from tests.fuzz.ranges import Place, RangedCase
from treadle.errors import TreadleError

EMULATED = 5


def _drawn(seed: int) -> RangedCase | None:
    return RangedCase.draw(case_of_seed(seed), seed)


RANGED = {str(seed): case for seed in range(32) if (case := _drawn(seed)) is not None}


@pytest.fixture(scope="module")
def checker() -> RangeChecker:
    return RangeChecker(RANGED, {name for name in RANGED if int(name) % EMULATED == 0})


@pytest.mark.parametrize("seed", RANGED)
def test_drawn_ranges(seed: str, checker: RangeChecker) -> None:
    report = checker.check(seed)
    assert not report.findings, "\n".join([*map(str, report.findings), RANGED[seed].case.text()])


def test_the_importer_takes_half_of_the_ranges() -> None:
    """Else the tests above would show little."""
    taken = 0
    for case in RANGED.values():
        try:
            case.module()
            taken += 1
        except TreadleError:
            continue
    assert taken >= len(RANGED) / 2


@dataclass(frozen=True)
class Ranged:
    """One operator whose first input has a symbol, `n` in its dimension `dim`."""

    operator: str
    x: Array
    dim: int
    others: Sequence[Array] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    leave_out: int = 0
    """Inputs between the first and the others that are left out."""
    are_data: bool = False
    """Whether the other inputs are none that are known."""

    def case(self) -> RangedCase:
        draw = Draw(0)
        draw.opset = 21
        others = map(draw.input if self.are_data else draw.constant, self.others)
        names = [draw.input(self.x), *[""] * self.leave_out, *others]
        draw.node_of(self.outputs, self.operator, names, **self.attributes)
        place: Place = ("x0", self.dim)
        return RangedCase(draw.case([f"t0_{n}" for n in range(self.outputs)]), {place: "n"}, 0)


def _floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


TAKEN = {
    "a result without elements": Ranged("Relu", _floats(3, 0, 5), 0),
    "a mask that is all true": Ranged("Dropout", _floats(7, 3), 0, outputs=2),
    "infinities of no sign": Ranged("IsInf", _floats(7, 3), 1, attributes={"detect_negative": 0, "detect_positive": 0}),
    "a diagonal": Ranged("EyeLike", _floats(7, 5), 0, attributes={"k": 1}),
    "the nearest by a whole factor": Ranged(
        "Resize", _floats(1, 2, 7), 2, [np.array([1, 1, 3], np.float32)], leave_out=1,
        attributes={"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "indices that are data, out of some ranges": Ranged(
        "Gather", _floats(7, 3), 0, [np.array([-9, -7, -1, 0, 6, 9])], are_data=True
    ),
    "indices out of some ranges": Ranged("GatherND", _floats(7, 3), 0, [np.array([[-7, 1], [6, -2], [2, 0]])]),
}  # fmt: skip
REFUSED = {
    "a rank that depends on the call": (Ranged("Squeeze", _floats(7, 1, 3), 0), "depends on the extents"),
    "parameters of so many channels": (
        Ranged("BatchNormalization", _floats(2, 5), 1, [_floats(5)] * 3 + [_floats(5) ** 2]),
        "normalises static channels only",
    ),
    "more indices than elements": (
        Ranged("GatherElements", _floats(4, 11), 0, [np.ones((2, 7), np.int64)], {"axis": 1}),
        "depends on the extents",
    ),
    "a size that is a number": (
        Ranged(
            "Resize", _floats(1, 7), 1, [np.array([1, 7])], leave_out=2,
            attributes={"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        "7 divided by n <= 7 is no whole number for every extent",
    ),
    "interpolation": (
        Ranged("Resize", _floats(1, 7), 1, [np.array([1, 2], np.float32)], {"mode": "linear"}, leave_out=1),
        "mode linear",
    ),
    "a reflection in fewer elements": (
        Ranged("Pad", _floats(7), 0, [np.array([2, 0])], attributes={"mode": "reflect"}),
        "too few to repeat in some call",
    ),
    "a window that does not fit": (
        Ranged("MaxPool", _floats(1, 2, 7), 2, attributes={"kernel_shape": [3], "pads": [1, 0]}),
        "a window of 3 elements on 1 elements with padding of 1 and 0",
    ),
}  # fmt: skip


def test_kernels_may_read_what_others_left_out_of_an_output() -> None:
    """The rows beyond `n` are computed in part, returned, and reduced by a kernel that computes all rows."""
    draw = Draw(0)
    draw.opset = 17
    draw.node("Asin", [draw.input(np.tanh(_floats(4, 5, 9)))])
    draw.node("GlobalAveragePool", ["t0_0"])
    case = RangedCase(draw.case(["t0_0", "t1_0"]), {("x0", 0): "n"}, 0)
    report = RangeChecker({"case": case}, ["case"]).check("case")
    assert not report.findings and "ranges" not in report.skipped


@pytest.fixture(scope="module")
def taken() -> RangeChecker:
    return RangeChecker({name: case.case() for name, case in TAKEN.items()}, TAKEN)


@pytest.mark.parametrize("name", TAKEN)
def test_what_depends_on_a_range_and_is_taken(name: str, taken: RangeChecker) -> None:
    report = taken.check(name)
    assert not report.findings and "ranges" not in report.skipped


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_for_some_calls_only_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(TreadleError, match=message):
        case.case().module()


_MERGED: dict[str, tuple[list[int], list[Array], dict[str, Any]]] = {
    "EyeLike": ([-1, 3], [], {}),
    "ArgMax": ([-1, 3], [], {"axis": 0}),
    "Concat": ([-1, 3], [_floats(2, 3)], {"axis": 0}),
    "Gather": ([-1, 3], [np.array([1])], {"axis": 0}),
    "GatherElements": ([-1, 3], [np.array([[1, 1, 1]])], {"axis": 0}),
    "GatherND": ([-1, 3], [np.array([[1]])], {}),
    "MaxPool": ([1, 3, -1], [], {"kernel_shape": [1]}),
    "ConvTranspose": ([1, 3, -1], [_floats(3, 2, 2)], {}),
}


@pytest.mark.parametrize("operator", _MERGED)
def test_positions_in_dimensions_that_were_merged_are_refused(operator: str) -> None:
    """The elements of `[2, n, 3]` lie in the rows of the largest `n`, and so in a merged dimension."""
    shape, others, attributes = _MERGED[operator]
    draw = Draw(0)
    draw.opset = 21
    x = draw.input(_floats(2, 5, 3))
    if shape[-1] == -1:
        draw.node("Transpose", [x], perm=[2, 0, 1])
        x = "t0_0"
    draw.node("Reshape", [x, draw.longs(shape)])
    names = [draw.nodes[-1].output[0], *map(draw.constant, others)]
    draw.node(operator, names[::-1] if operator == "Concat" else names, **attributes)
    case = RangedCase(draw.case([draw.nodes[-1].output[0]]), {("x0", 1): "n"}, 0)
    with pytest.raises(TreadleError, match="merged"):
        case.module()


def test_a_result_that_is_wrong_in_one_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator than the definition has."""

    def static(self: RangedCase) -> ModelProto:
        model = self.case.model()
        model.graph.node[0].op_type = "Neg"
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return model

    monkeypatch.setattr(RangedCase, "model", static)
    report = RangeChecker({"case": Ranged("Abs", _floats(7, 3), 0).case()}).check("case")
    assert [finding.runner for finding in report.findings][:2] == ["C with n = 7", "C with n = 1"]
