"""What embedders use: models built by hand, text, stages and passes, and what is rejected before any pass."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import treadle
from treadle import ir
from treadle.dialects.graph import BinaryOp, UnaryOp
from treadle.errors import TreadleError

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
BY = np.random.default_rng(1).standard_normal(6).astype(np.float32)


def scaled() -> ModuleOp:
    """|x * BY|."""
    entry = ir.Entry({"x 1": ir.tensor_type(X.dtype, X.shape)})
    return entry.module({"y": entry.add(UnaryOp("abs", entry.add(BinaryOp("mul", entry["x 1"], entry.constant(BY)))))})


def main_of(body: str, result: str = "tensor<4xf32>", attributes: str = "") -> str:
    head = f"func.func @main(%x: tensor<4xf32>) -> {result}"
    return f"{head} {attributes} {{\n  {body}\n}}"


def test_a_model_built_by_hand_is_compiled() -> None:
    model = treadle.compile(scaled())
    assert [tensor.name for tensor in (*model.inputs, *model.outputs)] == ["x 1", "y"]
    np.testing.assert_array_equal(model(X)[0], np.abs(X * BY))
    np.testing.assert_array_equal(ir.evaluate(scaled(), [X])[0], np.abs(X * BY))


def test_text_is_read_and_edited_and_resumed() -> None:
    module = scaled()
    ir.lower(module, "avx2", to="schedule")
    text = ir.print_text(module)
    assert ir.print_text(ir.parse(text)) == text
    edited = ir.parse(text.replace("run = 32", "run = 4").replace("run = 16", "run = 4"))
    ir.lower(edited, "avx2", after="schedule", to="loops")
    np.testing.assert_array_equal(ir.evaluate(edited, [X])[0], np.abs(X * BY))


def test_passes_run_by_name() -> None:
    module = scaled()
    ir.run_passes(module, "graph-define,graph-inline,graph-fuse{target=cpu}")
    assert ir.print_text(module).count("graph.fused") == 1
    with pytest.raises(TreadleError, match="unknown pass 'graph-fus'"):
        ir.run_passes(module, "graph-fus")
    with pytest.raises(TreadleError, match="the module has no function @main"):
        ir.run_passes(ModuleOp([]), "memory-plan")


def test_what_does_not_parse_says_where() -> None:
    with pytest.raises(TreadleError, match=r"layer\.mlir:2:3: .*unregistered.*foo|layer\.mlir:2:3: .*foo") as caught:
        ir.parse(main_of("foo.bar"), "layer.mlir")
    assert caught.value.accepted is not None
    with pytest.raises(TreadleError, match=r"no input 'z'; accepted: x"):
        _ = ir.Entry({"x": ir.tensor_type("float32", (4,))})["z"]


REJECTED = {
    "func.func @other() { func.return }": r"module: .* no function @main, but func\.func @other; accepted: one",
    "builtin.module {}": r"module: the module has no function @main, but nothing",
    main_of("func.return %x : tensor<4xf32>") + "\nfunc.func @f() { func.return }": r"m:4:1: func\.func beside @main",
    main_of("%y = math.exp %x : tensor<4xf32>\n  func.return %y : tensor<4xf32>"): r"m:2:3: 'math\.exp' is no",
    main_of("%y = arith.constant 1 : i32\n  func.return %x : tensor<4xf32>"): r"m:2:3: 'arith\.constant' is no",
    main_of("func.return %x : tensor<4xf32>").replace("4xf32", "?xf32"): r"%x of @main: tensor<\?xf32> has a symbolic",
    main_of("func.return %x : tensor<4xf32>").replace("4xf32", "4xi3"): r"elements of type i3; accepted: bf16, f16",
    "func.func @main(%x: f32) -> f32 { func.return %x : f32 }": r"argument %x of @main: f32 is no tensor",
    main_of("func.return %x : tensor<4xf32>", attributes='attributes {input_names = ["a", "b"]}'): (
        r'@main: input_names is \["a", "b"\]; accepted: 1 different names'
    ),
    main_of("func.return %x, %x : tensor<4xf32>, tensor<4xf32>", "(tensor<4xf32>, tensor<4xf32>)").replace(
        "  {", '  attributes {output_names = ["a", "a"]} {'
    ): r'output_names is \["a", "a"\]; accepted: 2 different names',
}


@pytest.mark.parametrize("text", [text for text, message in REJECTED.items() if message])
def test_what_the_pipeline_cannot_take_is_said_before_any_pass(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ir.parse(text, "m")

    def no_pass(*_: object, **__: object) -> None:
        raise AssertionError("a pass ran")

    monkeypatch.setattr("treadle.compiler.request.lower", no_pass)
    for attempt in (lambda: ir.check(module), lambda: treadle.compile(module), lambda: ir.lower(module)):
        with pytest.raises(TreadleError, match=REJECTED[text]):
            attempt()
