"""Templates and text in tiles: products, attention and a fused operator against NumPy, with every knob."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import numpy as np
import pytest
from xdsl.ir import SSAValue

import treadle
from docs.build.architecture import ROOT
from examples.own_tiles import TensorCores, TileAttention, TileGated, TileProduct, gated, main, models
from tests.helpers.limits import assert_within, limits_of_template
from tests.schedules.row_cases import tensor
from tests.schedules.test_templates import values_of
from treadle.backends.reference.kernels import Kernel
from treadle.dialects.graph import AttentionOp, ComputeOp, MatmulOp
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.scheduling import register_template
from treadle.target import Target

GPU = Target.parse("sm_80")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with ExitStack() as stack:
        for template in (TileProduct, TileAttention, TileGated):
            stack.enter_context(register_template(template))
        yield


def halves(*shapes: tuple[int, ...]) -> list[SSAValue]:
    return [tensor(*shape, dtype="float16") for shape in shapes]


def attention(m: int, n: int, size: int, width: int, *batch: int) -> AttentionOp:
    return AttentionOp(*halves((*batch, m, size), (*batch, n, size), (*batch, n, width)), scale=size**-0.5)


CASES: Mapping[type[TensorCores], list[Callable[[], Anchor]]] = {
    TileProduct: [
        lambda: MatmulOp(*halves((1, 1), (1, 1))),
        lambda: MatmulOp(*halves((64, 32), (32, 64))),
        lambda: MatmulOp(*halves((130, 40), (40, 72))),
    ],
    TileAttention: [
        lambda: attention(1, 1, 8, 8),
        lambda: attention(70, 90, 48, 40, 2),
        lambda: attention(64, 64, 64, 64),
    ],
    TileGated: [
        lambda: gated(*halves((1, 8), (8, 1), (8, 1))),
        lambda: gated(*halves((130, 40), (40, 72), (40, 72))),
    ],
}


@pytest.mark.parametrize(
    ("template", "case"), [(template, n) for template, cases in CASES.items() for n in range(len(cases))]
)
def test_kernels_compute_their_definitions(template: type[TensorCores], case: int) -> None:
    """Every combination of knobs, threads in both orders."""
    anchor, made = CASES[template][case](), TEMPLATES[template.name]
    assert made.fits(anchor)
    operands = anchor.tensors() if isinstance(anchor, ComputeOp) else list(anchor.operands)
    env = {operand: values_of(operand, n) for n, operand in enumerate(operands)}
    accepted = limits_of_template("attention_mma" if template is TileAttention else made.name, anchor, env, "f32")
    for choices in made.space(anchor, GPU):
        kernel = made.build(anchor, choices, GPU, "kernel")
        kernel.verify()
        for reverse in (False, True):
            actual = Kernel(kernel).run([env[operand] for operand in kernel.inputs], reverse=reverse)
            assert_within(actual, accepted, np.float16, f"{made.name} {choices}")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for registration in (TileProduct, TileAttention, TileGated):
        TEMPLATES.pop(registration.name)
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split('"')[1] for line in lines[::2]] == list(models())
    assert all(float(line.split()[-1]) < 1e-3 for line in lines[1::2])


@pytest.mark.parametrize(("text", "model"), [("tile_product", 0), ("tile_attention", 1), ("tile_gated", 2)])
def test_text_computes_the_same(text: str, model: int) -> None:
    """In the emulator. What is stored is rounded once, to 2^-11 of it; sums of some hundred terms in f32, and weights
    rounded to 2^-11 of themselves, are as far off at most."""
    _, inputs, expected = list(models().values())[model]
    with treadle.compile(ROOT / "examples" / f"{text}.mlir", "sm_80", device="emulator") as compiled:
        (y,) = compiled(**inputs)
    assert np.abs(y.astype(np.float64) - expected).max() <= 2**-10 * np.abs(expected).max()


def test_short_kernels() -> None:
    """A product on tensor cores in under 60 lines, attention in under 200."""
    source = (ROOT / "examples" / "own_tiles.py").read_text()
    parts = {name: source.split(f"class {name}(")[1].split("\n\n\n")[0] for name in ("TileProduct", "TileAttention")}
    assert len(parts["TileProduct"].splitlines()) < 60
    assert len(parts["TileAttention"].splitlines()) < 200
