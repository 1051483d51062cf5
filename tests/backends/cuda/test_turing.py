"""Turing (sm_75), which lacks what Ampere brought: asynchronous copies, the tensor cores' larger shapes, conversions to
bf16, maxima of NaN. What is lacking is refused by name, and everything else goes without."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import SSAValue

import treadle
from tests.backends.cuda.conformance.cases import CASES, kernels_of
from tests.schedules.nest.test_box import MATMUL, TILES
from tests.schedules.nest.test_nest import program
from tests.schedules.rules.scheduled import anchor
from treadle import ir
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.dialects.graph import AttentionOp, ConvOp, MatmulOp, SoftmaxOp, UnaryOp
from treadle.errors import TreadleError
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.rules import default_rules, programs
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

T4 = Target.parse("sm_75")
Build = Callable[[ir.Entry], SSAValue]
OPERATORS: dict[str, tuple[dict[str, tuple[int, ...]], Build, set[str]]] = {
    "product": (
        {"a": (100, 70), "b": (70, 90)},
        lambda e: e.add(UnaryOp("relu", e.add(MatmulOp(e["a"], e["b"])))),
        {"matmul_simt"},
    ),
    "convolution": (
        {"x": (1, 16, 20, 20), "w": (24, 16, 3, 3)},
        lambda e: e.add(ConvOp(e["x"], e["w"], [1, 1], [1] * 4, [1, 1], 1)),
        {"matmul_simt"},
    ),
    "softmax": ({"x": (40, 300)}, lambda e: e.add(SoftmaxOp(e["x"], 1)), {"row_cuda"}),
    "attention": (
        {name: (4, 100, 64) for name in "qkv"},
        lambda e: e.add(AttentionOp(e["q"], e["k"], e["v"], causal=True)),
        {"attention_cuda"},
    ),
}


def module_of(shapes: dict[str, tuple[int, ...]], build: Build, dtype: str) -> ModuleOp:
    entry = ir.Entry({name: ir.tensor_type(dtype, shape) for name, shape in shapes.items()})
    return entry.module({"y": build(entry)})


def templates_of(module: ModuleOp, target: str = "sm_75") -> set[str]:
    scheduled = module.clone()
    ir.lower(scheduled, target, to="schedule")
    return set(re.findall('#schedule.use<"([a-z0-9_]*)"', ir.print_text(scheduled)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_their_definition(name: str, dtype: str) -> None:
    shapes, build, templates = OPERATORS[name]
    module = module_of(shapes, build, dtype)
    assert templates_of(module) == templates
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape).astype(np.dtype(dtype)) for shape in shapes.values()]
    with treadle.compile(module, T4, device="emulator") as model:
        (y,) = model(*inputs)
    (expected,) = ir.evaluate(module, inputs)
    eps = float(ml_dtypes.finfo(np.dtype(dtype)).eps)
    np.testing.assert_allclose(y.astype(np.float64), expected.astype(np.float64), rtol=4 * eps, atol=max(4 * eps, 1e-4))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kernels_are_compiled(dtype: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    for shapes, build, _ in OPERATORS.values():
        with treadle.compile(module_of(shapes, build, dtype), T4) as model:
            assert list(model.folder.rglob("*.cubin"))


def test_functions_of_the_header_are_compiled() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    lacking = re.compile("cp_async|mma|tf32")
    functions = [name for name in CASES if not lacking.search(name)]
    assert {"treadle_max", "treadle_min", "treadle_float_to_bfloat16"} < set(functions)
    assert compile_cubin(Unit("conformance", kernels_of(functions)), T4).arch == "sm_75"


def test_products_of_bytes_and_tf32_go_without_tensor_cores() -> None:
    shapes = {"a": (64, 64), "b": (64, 64)}
    assert templates_of(module_of(shapes, lambda e: e.add(MatmulOp(e["a"], e["b"], sums=i32)), "int8")) == {
        "reduce_cuda"
    }
    product = module_of(shapes, lambda e: e.add(MatmulOp(e["a"], e["b"])), "float32")
    with treadle.compile(product, T4, device="emulator", precision="tf32") as model:
        (kernel,) = (path.read_text() for path in model.folder.rglob("*.cu") if "matmul" in path.name)
    assert "mma" not in kernel and not T4.multiplies_bytes


def test_a_template_for_tensor_cores_is_refused() -> None:
    module = module_of({"a": (640, 640), "b": (640, 640)}, lambda e: e.add(MatmulOp(e["a"], e["b"])), "float16")
    assert templates_of(module, "sm_80") == {"matmul_mma"} and templates_of(module) == {"matmul_simt"}
    ir.lower(module, "sm_80", to="schedule")
    text = ir.print_text(module).replace("sm_80", "sm_75")
    with pytest.raises(
        TreadleError, match="'matmul_mma' needs instructions that sm_75 does not have; accepted: sm_80 and later"
    ):
        treadle.compile(ir.parse(text), T4, after="schedule")
    found = {name for name, template in TEMPLATES.items() if template.kind == "cuda" and not template.runs_on(T4)}
    of_products = {"matmul_mma", "matmul_int8", "matmul_tf32", "matmul_rows_mma", "matmul_wgmma", "matmul_cluster"}
    assert found == of_products | {"attention_decode_mma", "attention_mma", "attention_wgmma"}


def test_kernels_of_a_later_gpu_are_refused() -> None:
    module = module_of({"a": (640, 640), "b": (640, 640)}, lambda e: e.add(MatmulOp(e["a"], e["b"])), "float16")
    ir.lower(module, "sm_80", to="loops")
    with pytest.raises(TreadleError, match=r"'cuda\.cp_async' is no instruction of sm_75; accepted: sm_80 and later"):
        ir.lower(module, "sm_75", after="loops")


def test_rules_write_no_asynchronous_copies() -> None:
    product = anchor("GMM", T4)
    texts = {
        name: "".join(map(str, programs(product, Target.parse(name), default_rules(Target.parse(name)))))
        for name in ("sm_75", "sm_80")
    }
    assert "async" in texts["sm_80"] and "async" not in texts["sm_75"] and "schedule.stage" in texts["sm_75"]


def test_asynchronous_copies_are_refused() -> None:
    staged = program(TILES + 'schedule.stage 0 at %k0 in "shared" buffers 3 async', "cuda")
    assert nest_of(staged, {}, MATMUL, Target.parse("sm_80")).stages
    with pytest.raises(TreadleError, match="sm_75 has no asynchronous copies; accepted: stages that are not async"):
        nest_of(staged, {}, MATMUL, T4)
