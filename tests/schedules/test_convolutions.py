"""Convolutions on GPUs: what they copy, what the compiler makes of it, and what they compute on the emulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.schedules.tensor_cores import GPU, Array, sample
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.emulator import CHECKS, LineCounters
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ConvOp, FusedOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.environment import Environment
from treadle.target import Target
from treadle.target.options import CompileOptions

TYPES = {"f16": "float16", "bf16": "bfloat16", "tf32": "float32", "f32": "float32"}
"""The element type of a layer by what it is multiplied in."""


@dataclass(frozen=True)
class Layer:
    """A convolution of an image `[N, spatial..., C]` to one in the same order, as it is between two others.

    spatial: rows and columns of the image; pads: above, left, below, right
    """

    channels: int
    out: int
    kernel: int
    spatial: tuple[int, int]
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: int = 1
    groups: int = 1
    batch: int = 1

    def module(self, precision: str) -> tuple[ModuleOp, Array]:
        """The layer as a function of its image, and an image."""
        image = sample((self.batch, *self.spatial, self.channels), TYPES[precision], 0)
        shape = (self.out, self.channels // self.groups, self.kernel, self.kernel)
        graph = Graph(image)
        x, weights = graph.add(TransposeOp(graph[0], [0, 3, 1, 2])), graph.constant(sample(shape, TYPES[precision], 1))
        y = graph.add(ConvOp(x, weights, [self.stride] * 2, self.pads, [self.dilation] * 2, self.groups))
        return graph.module(graph.add(TransposeOp(y, [0, 2, 3, 1]))), image


def lowered(
    layer: Layer, precision: str, target: Target = GPU, *, whole: bool = False
) -> tuple[ModuleOp, Array, Array]:
    """The layer's kernel, an image, and what it computes of it; with `whole`, the product is not split."""
    module, image = layer.module(precision)
    (expected,) = evaluate_module(module, [image])
    options = CompileOptions("tf32" if precision == "tf32" else "f32")
    lower(treadle_context(), module, target, to="schedule", options=options)
    if whole:
        _leave_whole(module)
    lower(treadle_context(), module, target, after="schedule", options=options)
    return module, image, expected


def _leave_whole(module: ModuleOp) -> None:
    """Keeps products from being split, so that their kernels load nothing but operands."""
    for group in [op for op in module.walk() if isinstance(op, FusedOp)]:
        assert isinstance(group.schedule, UseAttr)
        if "split_k" in group.schedule.knobs():
            group.schedule = UseAttr.get(group.schedule.template.data, group.schedule.knobs() | {"split_k": 1})


def machine_code(layer: Layer, precision: str, arch: str) -> Sass:
    """The instructions of the layer's kernel, which is not split and spills nothing."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    target = Target.parse(arch)
    (unit,) = print_kernels(lowered(layer, precision, target, whole=True)[0])
    cubin = compile_cubin(unit, target)
    (sass,) = disassembled(cubin).values()
    assert not any(each.spills for each in cubin.resources.values()) and not sass.uses_local_memory
    return sass


def counted(layer: Layer, precision: str, environment: Environment) -> LineCounters:
    """What the layer's kernel did on the emulator."""
    module, image, _ = lowered(layer, precision)
    _, (report,) = EmulatedProgram(module, (), counters=True, environment=environment).run([image])
    assert report.counters is not None
    return report.counters.total


DENSE = {
    "3 x 3": Layer(64, 64, 3, (56, 56)),
    "3 x 3, strided": Layer(128, 128, 3, (56, 56), stride=2),
    "1 x 1, strided": Layer(256, 512, 1, (56, 56), stride=2, pads=(0, 0, 0, 0)),
    "3 x 3 of few pixels": Layer(512, 512, 3, (7, 7)),
    "3 x 3 of few channels": Layer(16, 24, 3, (80, 96)),
    "groups": Layer(512, 512, 3, (14, 14), groups=32),
}


@pytest.mark.parametrize("precision", ["f16", "tf32"])
@pytest.mark.parametrize("name", list(DENSE))
def test_windows_are_copied_asynchronously_by_16_bytes(name: str, precision: str) -> None:
    sass = machine_code(DENSE[name], precision, "sm_80" if precision == "f16" else "sm_90")
    assert sass.has("HMMA") and not sass.has("LDG")
    assert sass.count("LDGSTS") == sass.count("LDGSTS.128") > 0
    assert sass.count("STG") == sass.count("STG.64" if precision == "tf32" else "STG.128") > 0


@pytest.mark.parametrize("name", list(DENSE))
def test_windows_are_loaded_in_vectors_on_cuda_cores(name: str) -> None:
    """By 16 bytes, or by 8 where a tile has no more for each thread."""
    sass = machine_code(DENSE[name], "f32", "sm_80")
    assert sass.count("LDG") == sass.count("LDG.128") + sass.count("LDG.64") and sass.count("LDG.128") > 0


@pytest.mark.parametrize("precision", ["f16", "tf32", "f32"])
@pytest.mark.parametrize(
    "layer",
    [
        Layer(64, 64, 3, (16, 24)),
        Layer(64, 128, 3, (17, 15), stride=2),
        Layer(32, 64, 1, (16, 16), stride=2, pads=(0, 0, 0, 0)),
        Layer(64, 64, 3, (12, 12), groups=4),
    ],
    ids=["3 x 3", "strided", "1 x 1", "groups"],
)
def test_windows_waste_no_sector_and_meet_in_no_bank(
    layer: Layer, precision: str, emulator_environment: Environment
) -> None:
    total = counted(layer, precision, emulator_environment)
    assert total.bank_conflicts == 0 and total.shared_requests > 0
    assert total.global_sectors == total.global_ideal > 0


@pytest.mark.parametrize("precision", ["f16", "f32"])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_waste_no_sector(stride: int, precision: str, emulator_environment: Environment) -> None:
    total = counted(Layer(64, 64, 3, (30, 28), stride=stride, groups=64), precision, emulator_environment)
    assert total.global_sectors == total.global_ideal > 0


@pytest.mark.parametrize(("precision", "wide"), [("f32", "128"), ("f16", "64")])
def test_depthwise_convolutions_load_neighbouring_channels(precision: str, wide: str) -> None:
    sass = machine_code(Layer(96, 96, 3, (56, 56), groups=96), precision, "sm_80")
    assert sass.count("LDG") == sass.count(f"LDG.{wide}") > 0 and sass.count("STG") == sass.count(f"STG.{wide}") > 0


SMALL = {
    "of 3 x 3 pixels": Layer(16, 24, 3, (13, 11)),
    "of two images": Layer(8, 17, 3, (9, 9), pads=(0, 0, 0, 0), batch=2),
    "with other borders": Layer(12, 20, 3, (9, 14), stride=2, pads=(0, 2, 1, 3)),
    "dilated": Layer(7, 9, 3, (13, 12), pads=(2, 2, 2, 2), dilation=2),
    "of primes": Layer(13, 31, 5, (17, 11), stride=3, pads=(2, 1, 0, 2)),
    "of three channels": Layer(3, 16, 7, (30, 32), stride=2, pads=(3, 3, 3, 3)),
    "of groups": Layer(24, 27, 3, (11, 13), groups=3, batch=2),
    "of narrow groups": Layer(48, 48, 3, (15, 13), groups=12),
    "of each channel": Layer(40, 40, 5, (13, 17), stride=2, pads=(2, 2, 2, 2), groups=40, batch=2),
    "that gives more channels": Layer(20, 40, 3, (9, 31), groups=20),
}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, precision) for name in SMALL for precision in ("f16", "f32")),
        ("of 3 x 3 pixels", "bf16"),
        ("of 3 x 3 pixels", "tf32"),
        ("of primes", "tf32"),
        ("of groups", "tf32"),
    ],
)
def test_convolutions(name: str, precision: str, emulator_environment: Environment) -> None:
    module, image, expected = lowered(SMALL[name], precision)
    program = EmulatedProgram(module, tuple(CHECKS), environment=emulator_environment)
    (actual,), reports = program.run([image])
    assert reports and not [str(report) for report in reports if report.findings]
    # Narrow results are rounded, tf32 operands too; sums of up to 588 terms in f32.
    allowed = {"f16": 2.0**-10, "bf16": 2.0**-7, "tf32": 2.0**-9, "f32": 588 * 2.0**-24}[precision]
    wide = expected.astype(np.float64)
    np.testing.assert_allclose(actual.astype(np.float64), wide, rtol=0, atol=allowed * float(np.abs(wide).max()))
