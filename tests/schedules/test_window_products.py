"""Convolutions as products of warpgroups: emulated with all checks, against sums in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array
from xdsl.dialects.builtin import TensorType, f16
from xdsl.ir import SSAValue

import treadle
from benchmarks.warpgroup_kernels import forms
from docs.build.architecture import ROOT
from tests.backends.cuda.conformance.hopper_case import aligned
from tests.helpers.graphs import Graph, random
from tests.helpers.onnx_models import save_model, value
from tests.helpers.random_weights import with_random_weights
from tests.models.catalog import require_model
from tests.schedules.tensor_cores import DTYPES, Array, in_one_group, scheduled
from tests.schedules.warpgroup_steps import assert_as_by_hand
from treadle.backends.cuda.compiler import compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator import CHECKS, Emulator, Report
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernel, print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph import BinaryOp, ConvOp, FusedOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.frontends.onnx import import_model
from treadle.schedules.boxes import windows_of
from treadle.schedules.default_template import default_template, obstacles
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.target.options import CompileOptions

HOPPER = Target.parse("sm_90a")
FEW = Target.parse("sm_90a{multiprocessors=3}")
"""So that a block has several tiles."""
needs_nvrtc = pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")


@dataclass(frozen=True)
class Convolution:
    """Of images of some shape, [N, spatial..., C]."""

    image: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def square(
        image: Sequence[int], channels: int, kernel: int = 3, stride: int = 1, pad: int = 1, dilation: int = 1
    ) -> Convolution:
        """The same along each spatial dimension."""
        each = [(value,) * (len(image) - 2) for value in (kernel, stride, pad, dilation)]
        return Convolution(tuple(image), channels, each[0], each[1], each[2] * 2, each[3])

    def graph(self, dtype: str) -> tuple[Graph, Array, Array]:
        """With the image, channels last, as input; the image and the filters, [OC, C, kernel...]."""
        x = random(*self.image, seed=1).astype(DTYPES[dtype])
        w = random(self.channels, self.image[-1], *self.kernel, seed=2).astype(DTYPES[dtype])
        return Graph(x), x, w

    def expected(self, x: Array, w: Array) -> Array:
        """The sum over the window's positions of shifted images, times filters."""
        rank = len(self.kernel)
        padding = [(0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True), (0, 0)]
        padded = np.pad(x.astype(np.float64), padding)
        total: Array | float = 0.0
        for tap in combinations(*map(range, self.kernel)):
            each = zip(tap, self.dilations, self.strides, self.kernel, padded.shape[1:-1], strict=True)
            cut = [
                slice(t * dilation, extent - (k - 1 - t) * dilation, stride) for t, dilation, stride, k, extent in each
            ]
            total = total + padded[(slice(None), *cut)] @ w[(..., *tap)].astype(np.float64).T
        return np.asarray(total)


square = Convolution.square
CASES: dict[str, tuple[Convolution, tuple[int, int]]] = {
    "3 x 3": (square((2, 9, 7, 64), 64), (64, 128)),
    "one pixel": (square((1, 1, 1, 8), 8), (64, 128)),
    "images of one pixel": (square((3, 1, 1, 64), 72), (64, 128)),
    "stride 2, 96 channels": (square((2, 10, 11, 96), 136, stride=2), (64, 128)),
    "5 x 5, 40 channels": (square((1, 13, 9, 40), 72, 5, pad=2), (128, 128)),
    "dilation 2": (square((2, 12, 12, 64), 64, pad=2, dilation=2), (128, 128)),
    "1 x 1, stride 2": (square((2, 9, 9, 128), 200, 1, stride=2, pad=0), (64, 256)),
    "other strides, uneven padding": (
        Convolution((4, 7, 7, 24), 72, (3, 3), (2, 1), (0, 1, 2, 1), (1, 1)),
        (128, 192),
    ),
    "7 x 7, stride 2, 16 channels": (square((1, 20, 33, 16), 40, 7, stride=2, pad=3), (128, 128)),
    "rows of pixels as wide as a tile": (square((1, 6, 64, 64), 64), (64, 128)),
    "whole tiles": (square((2, 8, 16, 128), 128), (256, 128)),
    "no padding": (square((2, 6, 5, 104), 8, pad=0), (64, 128)),
    "1 x 3": (Convolution((1, 3, 70, 64), 64, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1)), (128, 128)),
    "columns of pixels": (square((2, 40, 1, 64), 64), (64, 128)),
    "strides beyond windows": (square((2, 11, 9, 64), 64, 2, stride=3, pad=0), (64, 128)),
    "one dimension": (square((3, 50, 72), 64, 5, stride=2, pad=2), (64, 128)),
    "three dimensions": (square((2, 4, 5, 6, 64), 64, 2, pad=1), (128, 128)),
}
"""And the tile."""


def of_channels_last(case: Convolution, graph: Graph, w: Array) -> SSAValue:
    """The convolution of the graph's first input, channels last again."""
    rank = len(case.kernel)
    first = graph.add(TransposeOp(graph[0], [0, rank + 1, *range(1, rank + 1)]))
    result = graph.add(ConvOp(first, graph.constant(w), case.strides, case.pads, case.dilations, 1))
    return graph.add(TransposeOp(result, [0, *range(2, rank + 2), 1]))


def emulated(case: Convolution, template: str, dtype: str, target: Target = HOPPER, **choices: Choice) -> None:
    """Runs a convolution with all checks, and compares it."""
    graph, x, w = case.graph(dtype)
    lowered = scheduled(graph.module(of_channels_last(case, graph, w)), template, choices, target)
    (found,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings, str(report)
    exact, magnitude = case.expected(x, w), case.expected(abs(x), abs(w))
    allowed = x.shape[-1] * np.prod(case.kernel) * 2.0**-24 * magnitude
    allowed += float(ml_dtypes.finfo(found.dtype).eps) / 2 * (abs(exact) + allowed)
    assert found.shape == exact.shape
    assert (abs(found.astype(np.float64) - exact) <= allowed).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float16") for name in CASES), *((name, "bfloat16") for name in [*CASES][::4])]
)
def test_tiles_that_overhang(name: str, dtype: str) -> None:
    case, block = CASES[name]
    emulated(case, "matmul_wgmma", dtype, FEW, block=block, stages=2 + len(name) % 3, group=1)


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES).__getitem__)
def test_clusters(number: int) -> None:
    case, _ = [*CASES.values()][number]
    steps = int(np.prod(case.kernel)) * -(-case.image[-1] // 64)
    split = max(split for split in ((2, 4, 8)[: 1 + number % 3]) if split <= steps)
    emulated(case, "matmul_cluster", "float16", block=((64, 64), (128, 64))[number % 2], stages=2, split=split)


def test_weights_that_are_not_finite_stay_in_their_place() -> None:
    """Behind the channels of a position are zeros of both operands: the next position's weights are not multiplied."""
    case = Convolution((1, 1, 3, 40), 64, (1, 2), (1, 1), (0, 0, 0, 0), (1, 1))
    _, x, w = case.graph("float16")
    x[:, :, 2] = 0
    w[:, :, :, 1] = np.inf
    graph = Graph(np.abs(x))
    lowered = scheduled(graph.module(of_channels_last(case, graph, w)), "matmul_wgmma", {"block": (64, 128)}, HOPPER)
    (found,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    # The second window's last pixel is 0, which infinity makes no number; the first position's steps add nothing.
    assert not report.findings and np.isposinf(found[0, 0, 0]).all() and np.isnan(found[0, 0, 1]).all()
    w[:, :, :, 1] = 1
    w[:, 0, :, 1] = -np.inf
    graph = Graph(np.abs(x))
    lowered = scheduled(graph.module(of_channels_last(case, graph, w)), "matmul_wgmma", {"block": (64, 128)}, HOPPER)
    (found,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings and np.isneginf(found[0, 0, 0]).all()


@pytest.mark.parametrize("template", ["matmul_wgmma", "matmul_cluster"])
def test_bias_residual_and_relu(template: str) -> None:
    case = square((2, 9, 7, 64), 72)
    _, x, w = case.graph("float16")
    bias, residual = random(72, seed=3).astype(np.float16), random(2, 9, 7, 72, seed=4).astype(np.float16)
    graph = Graph(x, residual)
    biased = graph.add(BinaryOp("add", of_channels_last(case, graph, w), graph.constant(bias)))
    module = graph.module(graph.add(UnaryOp("relu", graph.add(BinaryOp("add", biased, graph[1])))))
    lowered = scheduled(module, template, {"stages": 2}, HOPPER)
    (found,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings, str(report)
    exact = np.maximum(case.expected(x, w) + bias.astype(np.float64) + residual.astype(np.float64), 0)
    # The sum of 576 terms, and two more, are rounded to 11 bits.
    magnitude = case.expected(abs(x), abs(w)) + abs(bias.astype(np.float64)) + abs(residual.astype(np.float64))
    allowed = 576 * 2.0**-24 * magnitude + 3 * 2.0**-11 * (np.abs(case.expected(x, w)) + 8)
    assert (abs(found.astype(np.float64) - exact) <= allowed).all()


def test_bytes(tmp_path: Path) -> None:
    """Sums are exact; a step has 128 channels of a position, and the last one 16."""
    choose = np.random.default_rng(0)
    w = choose.integers(-127, 127, (72, 144, 3, 3), np.int8)
    x = choose.integers(0, 255, (2, 13, 11, 144), np.uint8)
    nodes = [
        make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        make_node("ConvInteger", ["first", "w"], ["y"], pads=[1] * 4, strides=[2, 2]),
        make_node("Transpose", ["y"], ["last"], perm=[0, 2, 3, 1]),
    ]
    ends = [value("x", x.shape, TensorProto.UINT8)], [value("last", (2, 7, 6, 72), TensorProto.INT32)]
    module = import_model(save_model(tmp_path / "m.onnx", nodes, *ends, [from_array(w, "w")]))
    lowered = scheduled(module, "matmul_wgmma", {"block": (64, 128), "stages": 3}, HOPPER)
    (found,), (report,) = EmulatedProgram(lowered).run([x])
    assert not report.findings
    case = square(x.shape, 72, stride=2)
    np.testing.assert_array_equal(found.astype(np.float64), case.expected(x, w))


def test_a_range_of_images(tmp_path: Path) -> None:
    """The map is that of the most images; what a call has less is left out of its result."""
    case = square((5, 14, 14, 64), 128, stride=2)
    _, x, w = case.graph("float16")
    nodes = [
        make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        make_node("Conv", ["first", "w"], ["y"], pads=[1] * 4, strides=[2, 2]),
        make_node("Transpose", ["y"], ["last"], perm=[0, 2, 3, 1]),
    ]
    inputs = [value("x", ("n", 14, 14, 64), TensorProto.FLOAT16)]
    outputs = [value("last", ("n", 7, 7, 128), TensorProto.FLOAT16)]
    path = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, [from_array(w, "w")])
    few = "sm_90a{multiprocessors=3}"
    model = treadle.compile(path, few, device="emulator", checks=tuple(CHECKS), shapes={"n": treadle.Dim("n", 1, 5)})
    (launch,) = model.manifest.launches
    assert [each.map.extents for each in launch.maps if each.map.pixels is not None] == [(5, 14, 14, 64)]
    exact = case.expected(x, w)
    for images in (5, 1, 3):
        (found,) = model(x[:images])
        assert not [str(report) for report in model.reports if report.findings]
        # Sums of 576 terms in f32, rounded to 11 bits.
        np.testing.assert_allclose(found, exact[:images], rtol=2**-10, atol=2**-6)


# Faults of a kernel, planted in its text.

FAULTY = square((2, 9, 8, 96), 72, stride=2)
LOAD = "0, step2_x64, -1, -1, 0, step1, step0);"
COPY = "treadle_tensor_load_pixels(shared_a_at + step2 * 8192, map_X2, full_at + step2 * 8, step2_x64, -1, -1, 0, "
FAULTS: dict[str, tuple[str, str, str]] = {
    "a row of pixels too early": (
        COPY,
        COPY.replace("-1, -1", "-1, -3"),
        "a copy that begins at pixel -3 along dimension 1",
    ),
    "no padding": (COPY, COPY.replace("-1, -1", "0, 0"), "a copy that begins at pixel 0 along dimension 2"),
    "the walk ends before": (COPY, COPY.replace("-1, -1", "7, -1"), "a copy that begins at pixel 7 along dimension 2"),
    "positions from the left of the window": ("0, step1, step0)", "0, step1 - 1, step0)", "an offset of -1 pixels"),
    "channels between 16 bytes": (COPY, COPY.replace("step2_x64", "step2_x64 + 4"), "innermost coordinate 4"),
    "a box of the map": (
        f"_pixels{COPY.partition('pixels')[2]}step1, step0",
        COPY.partition("pixels")[2].rstrip(", "),
        "a copy of a box by",
    ),
    "pixels of another map": (COPY, COPY.replace("map_X2", "map_B"), "a copy of 4 dimensions by a map of 3"),
    "bytes of the pixels that are inside": ("24576", "20480", "4096 bytes"),
    "bytes of the channels that there are": ("24576", "22528", "2048 bytes"),
    "pixels to another stage": (COPY, COPY.replace("step2 * 8192", "(1 - step2) * 8192"), "no barrier orders"),
    "pixels complete at another stage": (COPY, COPY.replace("full_at + step2 * 8", "full_at"), "bytes"),
    "pixels of one position are not copied": (COPY, f"if (step0 + step1 < 4) {COPY}", "8192 bytes missing"),
}
"""What is replaced in the text, by what, and what the finding says."""
WRONG: dict[str, tuple[str, str]] = {
    "rows and columns of the window are exchanged": ("0, step1, step0)", "0, step0, step1)"),
    "the next image": ("-1, -1, 0, step1", "-1, -1, 1, step1"),
    "the next pixel": (COPY, COPY.replace("-1, -1", "1, -1")),
    "weights of another position": ("step2_x64, step1_offset)", "step2_x64, 8 - step1_offset)"),
    "the same channels again": (COPY, COPY.replace("step2_x64", "0")),
}
"""What all threads agree on, of pixels that are there: another convolution."""


@pytest.fixture(scope="module")
def kernel() -> KernelOp:
    graph, _, w = FAULTY.graph("float16")
    choices: dict[str, Choice] = {"block": (64, 128), "stages": 2, "group": 1}
    module = scheduled(graph.module(of_channels_last(FAULTY, graph, w)), "matmul_wgmma", choices, HOPPER)
    (found,) = (op for op in module.walk() if isinstance(op, KernelOp))
    return found


def launched(kernel: KernelOp, old: str, new: str, environment: Environment) -> tuple[Report, bool]:
    """What is found where a text replaces another one, and whether the result is right all the same."""
    _, x, w = FAULTY.graph("float16")
    exact = FAULTY.expected(x, w)
    text = print_kernel(kernel)
    assert old in text, text
    filters = w.transpose(2, 3, 1, 0).reshape(864, 72)
    given = {"X2": aligned(x), "B": aligned(filters), "C": aligned(np.zeros(exact.shape, np.float16))}
    arrays = [given[parameter.name_hint or ""] for parameter in kernel.parameters]
    buffers: list[SSAValue] = [*kernel.parameters]
    maps = [(each.map, arrays[buffers.index(each.buffer)]) for each in kernel.tensor_maps]
    emulator = Emulator(text.replace(old, new), limit=60, workers=1, environment=environment)
    shared = kernel.shared_bytes(dynamic=True)
    report = emulator.launch(kernel.sym_name.data, kernel.grid_shape, kernel.block_shape, [*arrays, *maps], shared)
    return report, bool((abs(given["C"].astype(np.float64) - exact) <= 0.1).all())


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str, kernel: KernelOp, emulator_environment: Environment) -> None:
    old, new, says = FAULTS[name]
    report, _ = launched(kernel, old, new, emulator_environment)
    assert any(says in finding.message for finding in report.findings), str(report)


@pytest.mark.parametrize("name", WRONG)
def test_other_faults_change_the_result(name: str, kernel: KernelOp, emulator_environment: Environment) -> None:
    _, is_right = launched(kernel, *WRONG[name], emulator_environment)
    assert not is_right


def test_the_kernel_itself_has_none(kernel: KernelOp, emulator_environment: Environment) -> None:
    report, is_right = launched(kernel, "24576", "24576", emulator_environment)
    assert not report.findings and is_right


def test_the_document_says_how_many_are_found() -> None:
    said = (
        f"Of {len(FAULTS) + len(WRONG)} mutants of a convolution's kernel (`tests/schedules/test_window_products.py`) "
    )
    said += f"{len(FAULTS)} are findings; the other {len(WRONG)} "
    assert said in " ".join((ROOT / "docs" / "emulator.md").read_text().split())


# Machine code.


@needs_nvrtc
@pytest.mark.parametrize("name", [name for name, form in forms().items() if form.case.after is None])
def test_machine_code(name: str) -> None:
    sass, _ = assert_as_by_hand(forms()[name])
    assert sass.has("UTMALDG.4D.IM2COL") and not sass.has("LDGSTS") and not sass.has("HMMA")


@needs_nvrtc
@pytest.mark.parametrize(("template", "count"), [("matmul_wgmma", 6), ("matmul_cluster", 4)])
def test_no_tile_spills(template: str, count: int) -> None:
    case = square((8, 28, 28, 96), 200, stride=2)
    (blocks,) = (knob.values for knob in TEMPLATES[template].knobs if knob.name == "block")
    assert len(blocks) == count
    for block in blocks:
        graph, _, w = case.graph("float16")
        module = graph.module(of_channels_last(case, graph, w))
        (unit,) = print_kernels(scheduled(module, template, {"block": block, "stages": 3}, HOPPER))
        cubin = compile_cubin(unit, HOPPER)
        (resources,) = cubin.resources.values()
        assert not cubin.warnings and not resources.spills and not resources.stack_bytes, block


# The default.


def anchor_of(case: Convolution, dtype: str = "float16") -> MatmulOp:
    """The product that a convolution becomes, in its group."""
    image = np.broadcast_to(np.zeros((), DTYPES[dtype]), case.image)
    graph = Graph(image)
    w = np.zeros((case.channels, case.image[-1], *case.kernel), DTYPES[dtype])
    module = graph.module(of_channels_last(case, graph, w))
    lower(treadle_context(), module, HOPPER, to="fuse")
    (anchor,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    return anchor


RESNET: dict[str, tuple[int, int, int, int, int, int]] = {
    "3 x 3 of 56": (56, 64, 64, 3, 1, 1),
    "3 x 3 to 28": (56, 128, 128, 3, 2, 1),
    "3 x 3 of 28": (28, 128, 128, 3, 1, 1),
    "3 x 3 to 14": (28, 256, 256, 3, 2, 1),
    "3 x 3 of 14": (14, 256, 256, 3, 1, 1),
    "3 x 3 to 7": (14, 512, 512, 3, 2, 1),
    "3 x 3 of 7": (7, 512, 512, 3, 1, 1),
    "1 x 1 to 28": (56, 256, 512, 1, 2, 0),
    "1 x 1 to 14": (28, 512, 1024, 1, 2, 0),
    "1 x 1 to 7": (14, 1024, 2048, 1, 2, 0),
}
"""Convolutions of ResNet-50 that read windows: pixels of a row, channels in and out, kernel, stride, padding."""
CHOSEN: dict[int, Sequence[str]] = {
    1: ["matmul_mma", *["matmul_cluster"] * 6, "matmul_mma", "matmul_mma", "matmul_cluster"],
    8: [*["matmul_wgmma"] * 3, *["matmul_mma"] * 4, *["matmul_wgmma"] * 3],
    32: ["matmul_wgmma"] * 10,
}
"""By the batch, which template is predicted to be the fastest."""


@pytest.mark.parametrize("batch", CHOSEN)
def test_defaults_of_resnet(batch: int) -> None:
    found: list[str] = []
    for pixels, channels, columns, kernel, stride, pad in RESNET.values():
        anchor = anchor_of(square((batch, pixels, pixels, channels), columns, kernel, stride, pad))
        template = default_template(anchor, HOPPER)
        assert template is not None
        template.check(anchor, template.default(anchor, HOPPER), HOPPER, "default")
        found.append(template.name)
    assert found == CHOSEN[batch]


REFUSED: dict[str, tuple[Convolution, str]] = {
    "4 channels": (square((1, 32, 32, 4), 64), "A is windows over images: a pixel has 8 bytes"),
    "far windows": (square((1, 300, 300, 64), 64, 2, pad=0, dilation=256), "its windows reach further than copies"),
    "large steps": (square((1, 250, 250, 64), 64, 8, stride=9, pad=0), "copies of pixels do not take a step of 9"),
    "wide padding": (square((1, 64, 64, 64), 64, pad=130), "copies of pixels do not take a corner of -130"),
    "4 spatial dimensions": (square((1, 4, 4, 4, 4, 64), 64), "its windows reach further than copies"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_windows_that_copies_do_not_bring(name: str) -> None:
    case, says = REFUSED[name]
    found = obstacles(anchor_of(case), HOPPER)["matmul_wgmma"]
    assert says in found


def test_narrow_results_say_that_tiles_are_wider() -> None:
    """1 x 1 filters of 64 channels fill half of the narrowest tile: tiles are many, and no reason."""
    anchor = anchor_of(square((32, 56, 56, 256), 64, 1, pad=0))
    found = obstacles(anchor, HOPPER)["matmul_wgmma"]
    assert found == "too much of its tiles of 128 x 128 would lie outside of the result"


def test_padding_by_another_number_is_no_window_of_zeros() -> None:
    """Copies write 0: what another number pads is left to products of warps."""

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        y, x = b.delinearize(index[0], [8, 8])
        dy, dx, channel = b.delinearize(index[1], [3, 3, 64])
        row, column = b.add(y, dy), b.add(x, dx)
        inside = b.binary("and", b.binary("lt", row, 8), b.binary("lt", column, 8))
        return b.at(graph[0], [b.constant(0), row, column, channel], inside, b.constant(1.0, f16))

    graph = Graph(np.zeros((1, 8, 8, 64), np.float16), np.zeros((576, 64), np.float16))
    windows = graph.add(compute_of(TensorType(f16, [64, 576]), element, "im2col"))
    module, _ = in_one_group(graph, lambda g: g.add(MatmulOp(windows, g[1])), HOPPER)
    (anchor,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    assert windows_of(anchor, anchor.a) is None and not TEMPLATES["matmul_wgmma"].fits(anchor)


@pytest.mark.parametrize(
    ("batch", "name", "said"), [(1, "matmul_cluster", "42 of the 53 are"), (32, "matmul_wgmma", "47 are")]
)
def test_all_convolutions_of_resnet(batch: int, name: str, said: str, tmp_path: Path) -> None:
    """All but the first one, which reads 4 channels, and those that products of warps are predicted to end earlier."""
    path = with_random_weights(require_model("light_resnet50").path(), tmp_path / "m.onnx")
    model = onnx.load(path)
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.shape.dim[0].dim_value = batch
    for weights in model.graph.initializer:
        shape = to_array(weights)
        if shape.dtype == np.int64 and shape.shape == (2,):  # of the mean over pixels
            weights.CopyFrom(from_array(np.array([batch, shape[1]]), weights.name))
    del model.graph.value_info[:]
    onnx.save(model, path)
    module = import_model(path)
    lower(treadle_context(), module, HOPPER, to="schedule", options=CompileOptions(precision="f16"))
    decisions = (op.schedule for op in module.walk() if isinstance(op, FusedOp))
    chosen = Counter(each.template.data for each in decisions if isinstance(each, UseAttr))
    assert f"{chosen[name]} " in said and chosen["matmul_mma"] == 53 - chosen[name]
    document = " ".join((ROOT / "docs" / "kernels-of-models.md").read_text().split())
    assert f"{said} `{name}` for" in document
