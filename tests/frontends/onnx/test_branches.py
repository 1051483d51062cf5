"""Branches that a call decides: inside each other, and what errors in them say."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

from treadle import ir
from treadle.errors import TreadleError
from treadle.frontends.onnx import ValueNeeded, import_model

RNG = np.random.default_rng(19)


def _model(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


def _nested(depth: int, inner: str) -> str:
    """A graph of so many branches inside each other; the innermost one gives `inner`."""
    text = f"p{depth} = {inner}"
    for n in reversed(range(depth)):
        text = f"""c{n} = Greater(s, t)
        p{n} = If (c{n}) <then_branch = a () => (float[4] p{n + 1}) {{ {text} }},
                          else_branch = b () => (float[4] q{n}) {{ q{n} = Mul(x, x) }}>"""
    return f"g (float[4] x, float s, float t) => (float[4] p0) {{ {text} }}"


def test_branches_inside_each_other_are_converted_once() -> None:
    """The operators of the module are as many as the nodes, or a few for each: they do not double at each level."""
    proto = _model(_nested(24, "Softmax<axis=0>(x)"))
    module = import_model(proto.SerializeToString())
    assert sum(1 for _ in module.walk()) < 24 * 12
    x = RNG.standard_normal(4).astype(np.float32)
    for s in (0, 1):
        (result,) = ir.evaluate(module, [x, np.array(s, np.float32), np.array(0.5, np.float32)])
        np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum() if s else x * x, rtol=1e-6)


def test_errors_inside_of_many_branches_are_short() -> None:
    with pytest.raises(TreadleError) as failed:
        import_model(_model(_nested(24, "Softmax<axis=5>(x)")).SerializeToString())
    where = (
        r"node 'p0' (If, opset 17): node 'p1' (If, opset 17): 21 nodes inside each other: node 'p23' (If, opset 17):"
    )
    assert str(failed.value).startswith(f"{where} node 'p24' (Softmax, opset 17): axis 5 of a tensor of rank 1")


def test_branches_nested_deeper_than_protobuf_reads() -> None:
    """Written by hand: the messages of a graph inside of a node's attribute, one around the other."""

    def field(number: int, content: bytes) -> bytes:
        length, size = len(content), bytearray()
        while length > 127:
            size.append(length & 127 | 128)
            length >>= 7
        return bytes([number << 3 | 2, *size, length]) + content

    graph = field(2, b"inner")
    for _ in range(40):
        attribute = field(1, b"then_branch") + field(6, graph) + bytes([20 << 3 & 127 | 128, 1, 5])
        graph = field(1, field(4, b"If") + field(5, attribute))
    with pytest.raises(TreadleError, match="graphs are nested deeper than protobuf reads them; accepted: up to 32 g"):
        import_model(bytes([8, 8]) + field(7, graph))


@pytest.mark.parametrize(
    ("branch", "message"),
    [
        (
            "q = Concat<axis=0>(x, x)",
            r"an unknown condition give tensor<4xf32> and tensor<8xf32>; accepted: equal types, or a known condition",
        ),
        ("q = Softmax<axis=5>(x)", r"axis 5 of a tensor of rank 1; accepted: -1 to 0"),
    ],
)
def test_an_error_of_a_branch_names_the_input_that_would_decide(branch: str, message: str) -> None:
    text = f"""g (float[4] x, int64 k) => (float[N] y) <int64 one = {{1}}> {{
      c = Equal(k, one)
      y = If (c) <then_branch = t () => (float[N] p) {{ p = Neg(x) }},
                  else_branch = e () => (float[N] q) {{ {branch} }}>
    }}"""
    with pytest.raises(ValueNeeded, match=rf"{message}, or a constant for input 'k' \(--input k=VALUE\)") as failed:
        import_model(_model(text).SerializeToString())
    assert failed.value.inputs == {"k"}
    module = import_model(_model(text).SerializeToString(), constants={"k": 1})
    np.testing.assert_array_equal(ir.evaluate(module, [np.ones(4, np.float32)])[0], -np.ones(4))
