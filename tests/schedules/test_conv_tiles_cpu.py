"""Convolutions on a CPU core's matrix unit, compiled, against float64; on processors without a unit by plain C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.parser import Parser

from tests.helpers.graphs import name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, PackedConvOp
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.packed_tiles import panels_of
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.conv_tiles_cpu import estimated_cycles
from treadle.target import Target

Array = NDArray[Any]
TARGETS = ("cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni_bf16}")
Pair = tuple[int, int]
PROLOGUE = """%t = graph.compute "neg" (%a, %b, %c, %d, %e) {{
      %v = graph.at %x[%a, %b, %c, %d, %e] : {image}
      %w = arith.negf %v : bf16
      graph.yield %w : bf16
    }} : {image}"""


@dataclass(frozen=True)
class Case:
    """A convolution, and its choices: the default ones where there are none."""

    image: tuple[int, int, int, int]
    columns: int = 32
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    choices: tuple[int, int, int] | None = None
    elements: Pair | tuple[str, str] = ("bf16", "bf16")
    is_computed: bool = False

    @property
    def lanes(self) -> int:
        return 32 if self.elements[0] == "bf16" else 64


CASES = {
    "pixels as they are": Case((2, 64, 7, 7), 40),
    "pixels in groups that the image does not fill": Case((1, 32, 7, 7), choices=(32, 1, 1)),
    "pixels in groups of half a tile": Case((1, 64, 7, 9), 96, choices=(16, 3, 2)),
    "few pixels": Case((2, 32, 3, 3)),
    "pixels of part of a block": Case((1, 40, 6, 6), 33),
    "pixels that the kernel computes": Case((1, 64, 5, 8), is_computed=True),
    "windows": Case((2, 64, 9, 7), 40, (3, 3), pads=(1, 1, 1, 1)),
    "windows in groups of rows": Case((1, 32, 9, 7), 64, (3, 3), pads=(1, 1, 1, 1), choices=(2, 2, 1)),
    "windows of computed pixels": Case((1, 48, 6, 7), 32, (3, 3), pads=(1, 1, 1, 1), is_computed=True),
    "without zeros": Case((1, 32, 9, 8), 32, (3, 2), choices=(3, 1, 1)),
    "zeros on one side": Case((1, 32, 6, 6), 32, (3, 3), pads=(0, 2, 1, 0)),
    "zeros beyond the window": Case((1, 32, 4, 4), 32, (1, 1), pads=(2, 3, 1, 2)),
    "rows": Case((1, 32, 7, 17), 32, (1, 7), pads=(0, 3, 0, 3)),
    "columns": Case((1, 32, 17, 7), 32, (7, 1), pads=(3, 0, 3, 0)),
    "strides": Case((1, 64, 11, 13), 32, (3, 3), (2, 2), (1, 1, 1, 1), choices=(2, 2, 1)),
    "strides without zeros": Case((1, 32, 9, 9), 32, (3, 3), (2, 2)),
    "strides of pixels": Case((1, 32, 9, 8), 32, (1, 1), (2, 2)),
    "strides that differ": Case((1, 32, 11, 12), 32, (3, 5), (3, 1), (2, 2, 0, 1)),
    "dilations": Case((1, 32, 9, 10), 32, (3, 3), (2, 1), (2, 3, 2, 3), (2, 3)),
    "bytes": Case((1, 64, 7, 6), 40, (3, 3), (2, 1), (1, 1, 1, 1), elements=("ui8", "i8")),
    "bytes of part of a block": Case((1, 72, 5, 5), 32, (3, 3), pads=(1, 1, 1, 1), elements=("i8", "ui8")),
}
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "i8": np.int8, "ui8": np.uint8}


@cache
def programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([print_case(name, target) for name in CASES], target)


def operands(case: Case) -> tuple[Array, Array]:
    """An image `[N, C, H, W]`, and filters."""
    shapes = case.image, (case.columns, case.image[1], *case.kernel)
    if case.elements[0] == "bf16":
        x, w = (random(*shape, seed=seed).astype(ml_dtypes.bfloat16) for seed, shape in enumerate(shapes))
        return x, w
    rng, ends = np.random.default_rng(0), [np.iinfo(DTYPES[str(element)]) for element in case.elements]
    x, w = (rng.integers(e.min, e.max, s, e.dtype, endpoint=True) for e, s in zip(ends, shapes, strict=True))
    return x, w


def in_blocks(x: Array, lanes: int) -> Array:
    """`[N, blocks, H, W, lanes]`, where what nothing may read is not finite."""
    n, c, *pixels = x.shape
    blocks = -(-c // lanes)
    whole = np.full((n, blocks * lanes, *pixels), 127 if x.dtype.kind in "iu" else np.nan, x.dtype)
    whole[:, :c] = x
    return np.ascontiguousarray(np.moveaxis(whole.reshape(n, blocks, lanes, *pixels), 2, -1))


def filters(w: Array, lanes: int) -> Array:
    """`[blocks * KH * KW * lanes, OC]` in panels."""
    oc, c, *kernel = w.shape
    whole = np.zeros((oc, -(-c // lanes) * lanes, *kernel), w.dtype)
    whole[:, :c] = w
    return panels_of(whole.reshape(oc, -1, lanes, *kernel).transpose(1, 3, 4, 2, 0).reshape(-1, oc))


def convolved(x: Array, w: Array, case: Case) -> Array:
    """By windows, in float64."""
    top, left, bottom, right = case.pads
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    spans = [(k - 1) * d + 1 for k, d in zip(case.kernel, case.dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(2, 3))
    windows = windows[:, :, :: case.strides[0], :: case.strides[1], :: case.dilations[0], :: case.dilations[1]]
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))


def text(case: Case) -> str:
    x, w = operands(case)
    image, panels = in_blocks(x, case.lanes).shape, filters(w, case.lanes).shape
    sums = "f32" if case.elements[0] == "bf16" else "i32"
    result = (image[0], panels[0], *convolved(x, w, case).shape[2:], 32)
    elements = (*case.elements, sums)
    types = [
        f"tensor<{'x'.join(map(str, each))}x{element}>"
        for each, element in zip((image, panels, result), elements, strict=True)
    ]
    lists = [
        f"array<i64: {', '.join(map(str, each))}>" for each in (case.kernel, case.strides, case.pads, case.dilations)
    ]
    properties = ", ".join(
        [f"channels = {case.image[1]} : i64", f"columns = {case.columns} : i64"]
        + [f"{name} = {value}" for name, value in zip(("kernel", "strides", "pads", "dilations"), lists, strict=True)]
    )
    schedule = ""
    if case.choices:
        chosen = ", ".join(f"{k} = {v}" for k, v in zip(("group", "groups", "panels"), case.choices, strict=True))
        schedule = f'schedule #schedule.use<"conv_tiles_cpu", {{{chosen}}}>'
    return f"""
func.func @main(%x: {types[0]}, %p: {types[1]}) -> {types[2]} {{
  %y = graph.fused "tiles" {{
    {PROLOGUE.format(image=types[0]) if case.is_computed else ""}
    %v = graph.packed_conv {"%t" if case.is_computed else "%x"}, %p {{{properties}}}
        : ({types[0]}, {types[1]}) -> {types[2]}
    graph.yield %v : {types[2]}
  }} {schedule} : {types[2]}
  func.return %y : {types[2]}
}}
"""


@cache
def print_case(name: str, target: str) -> PrintedProgram:
    module = Parser(treadle_context(), text(CASES[name])).parse_module()
    name_arguments(module, 2, 1)
    return print_program(name, module, target, after="fuse")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, target: str) -> None:
    case = CASES[name]
    x, w = operands(case)
    (got,) = programs(target)[name].run([in_blocks(x, case.lanes), filters(w, case.lanes)])
    check(case, got)


@pytest.mark.parametrize("name", CASES)
def test_convolutions_in_the_interpreter(name: str) -> None:
    """Which refuses to read what was never stored, and beyond a buffer."""
    case = CASES[name]
    x, w = operands(case)
    module = Parser(treadle_context(), text(case)).parse_module()
    name_arguments(module, 2, 1)
    lower(treadle_context(), module, Target.parse(TARGETS[0]), after="fuse", to="kernels")
    (got,) = run_module(module, [in_blocks(x, case.lanes), filters(w, case.lanes)])
    check(case, got)


def check(case: Case, got: Array) -> None:
    x, w = operands(case)
    n, panels, height, width, lanes = got.shape
    got = np.moveaxis(got, -1, 2).reshape(n, panels * lanes, height, width)
    wanted = convolved(x, w, case)
    assert not got[:, case.columns :].any()
    if case.elements[0] != "bf16":
        np.testing.assert_array_equal(got[:, : case.columns], wanted)
        return
    # A rounding for each of the terms, of the sum of the magnitudes.
    limit = w[0].size * 2.0**-24 * convolved(abs(x), abs(w), case)
    wanted = -wanted if case.is_computed else wanted
    assert (abs(got[:, : case.columns] - wanted) <= limit).all()


def anchor(case: Case) -> PackedConvOp:
    module = Parser(treadle_context(), text(replace(case, choices=None))).parse_module()
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    assert str(default_schedule(fused, Target.parse(TARGETS[0])).template.data) == "conv_tiles_cpu"
    found = anchor_of(fused)
    assert isinstance(found, PackedConvOp)
    return found


def test_only_images_that_are_stored_whole_are_read_by_tiles() -> None:
    copied = {name: any(" image[" in unit.text for unit in print_case(name, TARGETS[0]).kernels) for name in CASES}
    assert {name for name, copies in copied.items() if not copies} == {
        "pixels as they are",
        "pixels in groups that the image does not fill",
        "pixels in groups of half a tile",
    }


def test_blocks_are_even_and_no_larger_than_the_convolution() -> None:
    template, target = TEMPLATES["conv_tiles_cpu"], Target.parse(TARGETS[0])
    case = anchor(CASES["windows"])
    assert template.canonical(case, {"group": 2, "groups": 4, "panels": 1}, target)["groups"] == 3
    assert template.canonical(case, {"group": 99, "groups": 99, "panels": 99}, target) == {
        "group": 9,
        "groups": 1,
        "panels": 2,
    }
    for name in ("pixels as they are", "few pixels", "windows"):
        each = anchor(CASES[name])
        candidates = list(template.candidates(each, target))
        assert len(candidates) == len({tuple(sorted(found.items())) for found in candidates}) > 0
        assert all(template.canonical(each, found, target) == found for found in candidates)


def test_estimates_ask_for_equal_work_of_all_cores() -> None:
    target = Target.parse("cpu{matrix_unit=amx cores=2}")
    conv = anchor(Case((1, 64, 28, 28), 32, (3, 3), pads=(1, 1, 1, 1)))
    two, one = ({"group": 2, "groups": groups, "panels": 1} for groups in (7, 14))
    assert estimated_cycles(conv, two, target) < estimated_cycles(conv, one, target)
