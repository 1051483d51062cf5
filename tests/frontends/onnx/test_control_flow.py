"""Loops and branches that a call decides, as compiled C and by their definitions, beside ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.parser import parse_model

import treadle
from treadle import ir
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.reference.bound_module import bound_module
from treadle.errors import TreadleError
from treadle.frontends.onnx import ValueNeeded, import_model, needed_inputs

Array = NDArray[Any]
RNG = np.random.default_rng(13)


def _model(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


def _agrees(
    text: str, calls: Sequence[Mapping[str, Array]], *, stages: bool = False, operation: str | None = None
) -> None:
    """The compiled model gives what ONNX Runtime gives, within the limits that the definition has; so do the modules
    after each stage, of the first call."""
    proto = _model(text)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    module = import_model(proto.SerializeToString())
    if operation is not None:
        assert operation in {op.name for op in module.walk()}
    with treadle.compile(proto, threads=2) as compiled:
        for inputs in calls:
            _check(compiled(**inputs), session.run(None, dict(inputs)), bound_module(module, list(inputs.values())))
    for stage in ("import", "schedule", "kernels", "plan", "loops") if stages else ():
        lowered = import_model(proto.SerializeToString())
        ir.lower(lowered, to=stage)
        assert ir.print_text(ir.parse(ir.print_text(lowered))) == ir.print_text(lowered)
        first = list(calls[0].values())
        _check(ir.evaluate(lowered, first), session.run(None, dict(calls[0])), bound_module(module, first))


def _check(results: Any, expected: Any, limits: Any) -> None:
    for result, wanted, limit in zip(results, expected, limits, strict=True):
        array = np.asarray(wanted)
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        # Both results round: each may be off by the limit.
        assert np.all(np.abs(result.astype(np.float64) - array) <= 2 * limit.full_error)


def _floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


NEWTON = """
g (float[4] x, int64 m, bool go) => (float[4] y, int64 n) <float tol = {0.125}, int64 zero = {0}> {
  y, n = Loop (m, go, x, zero) <body = b (int64 i, bool c, float[4] s, int64 k)
      => (bool d, float[4] u, int64 k1) <float half = {0.5}, int64 one = {1}> {
    q = Div(x, s)
    z = Add(q, s)
    u = Mul(z, half)
    e = Sub(u, s)
    a = Abs(e)
    r = ReduceMax<keepdims=0>(a)
    d = Greater(r, tol)
    k1 = Add(k, one)
  }>
}"""


def test_newton_until_it_converges() -> None:
    """No iteration, one, a condition that is false at once, an odd and an even number, and the end by the condition."""
    x = np.array([2, 3, 100, 0.5], np.float32)
    limits = [(100, True), (0, True), (1, True), (2, True), (3, True), (5, False), (-1, True)]
    calls = [{"x": x, "m": np.array(m), "go": np.array(go)} for m, go in limits]
    _agrees(NEWTON, calls, stages=True, operation="graph.loop")


def test_power_iteration_with_weights() -> None:
    text = """
    g (float[48, 1] x, float[48, 48] a, int64[1] m) => (float[48, 1] y) {
      y = Loop (m, , x) <body = b (int64 i, bool c, float[48, 1] v) => (bool d, float[48, 1] u) {
        w = MatMul(a, v)
        n = ReduceL2<keepdims=1>(w)
        u = Div(w, n)
        d = Identity(c)
      }>
    }"""
    calls = [{"x": _floats(48, 1), "a": _floats(48, 48), "m": np.array([m])} for m in (0, 1, 2, 4)]
    _agrees(text, calls, operation="graph.loop")


@pytest.mark.parametrize("element", ["float", "double", "int64", "bool"])
@pytest.mark.parametrize("shape", ["", "[1]", "[3, 1]", "[0, 2]"])
def test_states_of_every_type(element: str, shape: str) -> None:
    """Two states that change places, one of which no iteration changes."""
    step = "Not(b)" if element == "bool" else "Neg(b)"
    text = f"""
    g ({element}{shape} x, {element}{shape} z, int64 m) => ({element}{shape} y, {element}{shape} w) {{
      y, w = Loop (m, , x, z) <body = t (int64 i, bool c, {element}{shape} a, {element}{shape} b)
          => (bool d, {element}{shape} p, {element}{shape} q) {{
        p = {step}
        q = Identity(a)
        d = Identity(c)
      }}>
    }}"""
    dtype = {"float": "f4", "double": "f8", "int64": "i8", "bool": "?"}[element]
    dims = json.loads(shape or "[]")
    x, z = (RNG.integers(0, 2, dims).astype(dtype) for _ in range(2))
    _agrees(text, [{"x": np.asarray(x), "z": np.asarray(z), "m": np.array(m)} for m in (0, 1, 4, 5)])


def test_rows_of_many_iterations() -> None:
    text = """
    g (float[5] x) => (float[5] y, float[70, 5] rows, float[70] sums) <int64 m = {70}> {
      y, rows, sums = Loop (m, , x) <body = b (int64 i, bool c, float[5] v)
          => (bool d, float[5] u, float[5] row, float s) {
        n = Cast<to=1>(i)
        u = Sin(v)
        row = Add(u, n)
        s = ReduceSum<keepdims=0>(u)
        d = Identity(c)
      }>
    }"""
    _agrees(text, [{"x": _floats(5)}], operation="graph.loop")


def test_a_scan_of_many_slices() -> None:
    """One input from its end and along another axis; the rows are slices along the last axis, from the last one on."""
    text = """
    g (float[6] s, float[30, 6] x, float[6, 30] z) => (float[6] y, float[6, 30] rows) {
      y, rows = Scan <num_scan_inputs=2, scan_input_directions=[1, 0], scan_input_axes=[0, 1], scan_output_axes=[1],
          scan_output_directions=[1], body = b (float[6] t, float[6] p, float[6] q) => (float[6] u, float[6] row) {
        d = Sub(p, q)
        e = Mul(t, d)
        u = Sin(e)
        row = Exp(u)
      }> (s, x, z)
    }"""
    _agrees(text, [{"s": _floats(6), "x": _floats(30, 6), "z": _floats(6, 30)}], operation="graph.loop")


NESTED = """
g (float[8, 1] x, float[8, 8] a, int64 m, bool k) => (float[8, 1] y, float[8, 1] z) <float zero = {0.0}> {
  y = Loop (m, , x) <body = outer (int64 i, bool c, float[8, 1] v) => (bool d, float[8, 1] u) {
    s = ReduceSum<keepdims=0>(v)
    pos = Greater(s, zero)
    o = If (pos) <then_branch = t () => (float[8, 1] p) { f = MatMul(a, v)  p = Tanh(f) },
                  else_branch = e () => (float[8, 1] p2) { f2 = MatMul(a, x)  p2 = Neg(f2) }>
    w = Loop (i, , o) <body = inner (int64 j, bool c2, float[8, 1] q) => (bool d2, float[8, 1] r) {
      h = MatMul(a, q)
      g0 = Add(h, v)
      r = Sin(g0)
      d2 = Identity(c2)
    }>
    u = Sub(w, x)
    d = Identity(c)
  }>
  z = If (k) <then_branch = t2 () => (float[8, 1] b) { b = MatMul(a, y) }, else_branch = e2 () => (float[8, 1] b2)
      { b2 = Identity(x) }>
}"""


def test_loops_and_branches_in_loops() -> None:
    given = {"x": _floats(8, 1), "a": _floats(8, 8) / 4}
    calls = [given | {"m": np.array(m), "k": np.array(k)} for m, k in ((3, True), (0, False), (1, True))]
    _agrees(NESTED, calls, stages=True, operation="graph.if")


def test_only_the_chosen_branch_runs() -> None:
    """C has the branches as such; branches that are elementwise become part of the kernels around them."""
    heavy = "{} () => (float[9, 9] {}) {{ {} = MatMul(x, x) }}"
    light = "{} () => (float[9, 9] {}) {{ {} = Neg(x) }}"
    for branch, found in ((heavy, True), (light, False)):
        text = f"""g (float[9, 9] x, bool k) => (float[9, 9] y) {{
          y = If (k) <then_branch = {branch.format("t", "p", "p")}, else_branch = e () => (float[9, 9] q)
            {{ q = Exp(x) }}>
        }}"""
        module = import_model(_model(text).SerializeToString())
        assert ("graph.if" in {op.name for op in module.walk()}) is found
        _agrees(text, [{"x": _floats(9, 9), "k": np.array(k)} for k in (True, False)])


REFUSED = {
    r"the body makes tensor<4xf32> of state 0, which is tensor<2xf32>; accepted: the same type": """
    g (float[2] x, int64 m) => (float[N] y) {
      y = Loop (m, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[4] u)
        { u = Concat<axis=0>(v, v)  d = Identity(c) }>
    }""",
    r"rows are asked of a loop whose number of iterations is known in a call only; accepted: a trip count": """
    g (float[2] x, int64 m) => (float[2] y, float[N, 2] rows) {
      y, rows = Loop (m, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u, float[2] r)
        { u = Neg(v)  r = Identity(u)  d = Identity(c) }>
    }""",
    r"the body's condition is tensor<2xi1>; accepted: one boolean": """
    g (float[2] x, int64 m) => (float[2] y) <float[2] z = {0, 0}> {
      y = Loop (m, , x) <body = b (int64 i, bool c, float[2] v) => (bool[2] d, float[2] u)
        { u = Neg(v)  d = Greater(u, z) }>
    }""",
    r"the body gives 0 tensors of a state of 1; accepted: one for each": """
    g (float[2] x, int64 m) => (float[2] y) {
      y = Loop (m, , x) <body = b (int64 i, bool c, float[2] v) => (bool d) { d = Identity(c) }>
    }""",
    r"the condition is tensor<2xi1>; accepted: one boolean": """
    g (float[2] x, bool[2] k) => (float[2] y) {
      y = If (k) <then_branch = t () => (float[2] p) { p = Neg(x) }, else_branch = e () => (float[2] q)
        { q = Exp(x) }>
    }""",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(TreadleError, match=f"node 'y' \\((Loop|If), opset 17\\).*{message}"):
        import_model(_model(REFUSED[message]).SerializeToString())


COUNTED = """g (float[15] x, int64 m, int64[1] k, bool c0) => (float[N, 1] rows) <int64[1] axis = {0}> {
  rows = Loop (m, c0) <body = b (int64 i, bool c) => (bool d, float[1] row) {
    begin = Unsqueeze(i, axis)
    end = Add(begin, k)
    row = Slice(x, begin, end)
    d = Identity(c)
  }>
}"""


def test_a_body_names_the_inputs_that_its_iterations_need() -> None:
    """Where the iteration's number has to be known, the trip count has to be; beside it, what the body captures."""
    proto = _model(COUNTED)
    values = {"x": _floats(15), "m": np.array(15), "k": np.array([1]), "c0": np.array(True)}
    with pytest.raises(
        ValueNeeded, match=r"node 'row' \(Slice, opset 17\): starts .* the model's input data"
    ) as failed:
        import_model(proto.SerializeToString())
    assert failed.value.inputs == {"m", "c0"}
    needed = needed_inputs(proto, values)
    assert needed == {"m", "c0", "k"}
    (rows,) = treadle.compile(proto, constants={name: values[name] for name in needed})(x=values["x"])
    np.testing.assert_array_equal(rows[:, 0], values["x"])


def test_a_value_that_no_input_decides_ends_the_search_for_needed_ones() -> None:
    """Of a loop whose condition is data, no input makes the number of an iteration known."""
    text = """g (float[4] x, float[4] k) => (float[4] y) <int64[1] axis = {0}, bool yes = {1}> {
      y = Loop (, yes, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
        begin = Unsqueeze(i, axis)
        first = Slice(k, begin, begin)
        w = Add(v, k)
        sum = ReduceSum<keepdims=0>(first)
        d = Greater(sum, sum)
      }>
    }"""
    proto = _model(text)
    with pytest.raises(ValueNeeded, match="node 'first'"):
        needed_inputs(proto, {"x": _floats(4), "k": _floats(4)})


def test_extents_that_depend_on_data_stay_out_of_loops() -> None:
    text = """g (float[4] x, int64 m) => (int64 y) <int64 zero = {0}> {
      y = Loop (m, , zero) <body = b (int64 i, bool c, int64 k) => (bool d, int64 n)  {
        p = NonZero(x)
        n = Size(p)
        d = Identity(c)
      }>
    }"""
    with pytest.raises(TreadleError, match="an extent in the body depends on data; accepted: extents in it that a cal"):
        import_model(_model(text).SerializeToString())


def test_a_gpu_has_branches_but_no_loops_that_end_by_data() -> None:
    module = import_model(_model(NEWTON).SerializeToString())
    with pytest.raises(TreadleError, match="a loop that ends by data has no form on a cuda target"):
        ir.lower(module, "sm_80")
    text = """g (float[9, 9] x, bool k) => (float[9, 9] y) {
      y = If (k) <then_branch = t () => (float[9, 9] p) { p = MatMul(x, x) }, else_branch = e () => (float[9, 9] q)
        { q = Exp(x) }>
    }"""
    module, imported = (import_model(_model(text).SerializeToString()) for _ in range(2))
    ir.lower(module, "sm_80", to="schedule")
    assert "graph.if" not in {op.name for op in module.walk()}
    x = _floats(9, 9)
    for k, expected in ((True, x @ x), (False, np.exp(x))):
        inputs = [x, np.array(k)]
        _check(ir.evaluate(module, inputs), [expected], bound_module(imported, inputs))


def test_a_gpu_has_loops_of_a_known_number_of_iterations() -> None:
    """As CUDA on the emulator, with all checks: a product, what follows it, and rows of every iteration."""
    proto = _model(
        """
    g (float[3, 8] s, float[17, 3, 8] x, float[8, 8] a) => (float[3, 8] y, float[17, 8] rows) {
      y, rows = Scan <num_scan_inputs=1, body = b (float[3, 8] t, float[3, 8] p) => (float[3, 8] u, float[8] row) {
        h = MatMul(t, a)
        g0 = Add(h, p)
        u = Tanh(g0)
        row = ReduceSum<keepdims=0>(u, axis)
      }> (s, x)
    }""".replace("{\n      y, rows", "<int64[1] axis = {0}> {\n      y, rows", 1)
    )
    module = import_model(proto.SerializeToString())
    assert "graph.loop" in {op.name for op in module.walk()}
    inputs = {"s": _floats(3, 8), "x": _floats(17, 3, 8), "a": _floats(8, 8) / 4}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, dict(inputs))
    with treadle.compile(proto, "sm_80", device="emulator", checks=tuple(CHECKS)) as compiled:
        _check(compiled(**inputs), expected, bound_module(module, list(inputs.values())))
