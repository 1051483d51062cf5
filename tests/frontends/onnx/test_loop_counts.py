"""Loops that a comparison of counters ends, as Keras writes its recurrent layers: how many iterations they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import treadle
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]

KERAS = """g (float[N, 3] x) => (float[3] y, float[M, 3] rows)
    <int32 zero = {0}, int64 first = {0}, float[3] none = {0, 0, 0}> {
  shape = Shape(x)
  length = Gather(shape, first)
  steps = Cast<to=6>(length)
  begins = Less(zero, steps)
  t, kept, y, rows = Loop (, begins, zero, steps, none) <body = b
      (int64 i, bool c, int32 t0, int32 kept0, float[3] h) => (bool d, int32 t1, int32 kept1, float[3] u, float[3] row)
      <int32 one = {1}> {
    t1 = Add(t0, one)
    kept1 = Identity(kept0)
    now = Gather(x, t0)
    total = Add(h, now)
    u = Tanh(total)
    row = Identity(u)
    left = Cast<to=1>(t1)
    right = Cast<to=1>(kept0)
    e = Less(left, right)
    d = And(e, c)
  }>
}"""


def _model(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


@pytest.mark.parametrize("steps", [1, 4, 40])
def test_rows_of_a_known_number_of_steps(steps: int) -> None:
    """Few are written out, many are a loop."""
    proto, x = _model(KERAS), np.random.default_rng(3).standard_normal((steps, 3)).astype(np.float32)
    module = import_model(proto.SerializeToString(), {"x": x.shape})
    assert ("graph.loop" in {op.name for op in module.walk()}) == (steps == 40)
    expected = map(np.asarray, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}))
    with treadle.compile(proto, shapes={"x": x.shape}) as model:
        for result, wanted in zip(model(x), expected, strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ["whole", "float", "backward"])
def test_rows_of_a_range_of_steps(kind: str) -> None:
    text = KERAS.replace("Less(zero, steps)", BEGINS[kind]).replace("steps = Cast<to=6>(length)", RANGED)
    proto = _model(text.replace("Gather(x, t0)", "Gather(reverse, t0)") if kind == "backward" else text)
    session, rng = onnxruntime.InferenceSession(proto.SerializeToString()), np.random.default_rng(4)
    with treadle.compile(proto, shapes={"N": treadle.Dim("N", 1, 9)}) as model:
        for steps in (9, 1, 5, 8):
            x = rng.standard_normal((steps, 3)).astype(np.float32)
            for result, wanted in zip(model(x), map(np.asarray, session.run(None, {"x": x})), strict=True):
                assert result.shape == wanted.shape
                np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6)


RANGED = """steps = Cast<to=6>(length)
  length1 = Identity(steps)
  floating = Cast<to=1>(steps)
  nothing = Cast<to=1>(zero)
  batch = Constant<value = int64[1] {3}>()
  lengths = Expand(length, batch)
  reverse = ReverseSequence<time_axis=0, batch_axis=1>(x, lengths)"""
BEGINS = {"whole": "Less(zero, length1)", "float": "Less(nothing, floating)", "backward": "Less(nothing, floating)"}

COUNTED = """g (float[2] x) => (float[2] y, int64[N] rows) <bool yes = {{1}}, int64 begin = {{{begin}}}> {{
  k, y, rows = Loop ({limit}, yes, begin, x) <body = b (int64 i, bool c, int64 k0, float[2] v)
      => (bool d, int64 k1, float[2] u, int64 row) <int64 end = {{{end}}}, int64 step = {{{step}}}> {{
    k1 = {update}
    u = Neg(v)
    row = Add(k0, i)
    d = {test}
  }}>
}}"""
COUNTS = {
    "steps of three": {"step": 3, "test": "LessOrEqual(k1, end)"},
    "downwards": {"begin": 300, "end": 0, "step": -2, "test": "Greater(k1, end)"},
    "the iteration's number": {"test": "GreaterOrEqual(end, i)", "update": "Identity(k0)"},
    "false at once": {"end": -5, "test": "Less(k1, end)"},
    "a trip count that is less": {"limit": "most", "test": "Less(k1, end)"},
}


@pytest.mark.parametrize("name", COUNTS)
def test_counters(name: str) -> None:
    values = {"begin": 0, "end": 200, "step": 1, "limit": "", "update": "Add(k0, step)"} | COUNTS[name]
    text = COUNTED.format(**values)
    proto = _model(text.replace("bool yes", "int64 most = {70}, bool yes") if values["limit"] else text)
    x = np.array([1, -2], np.float32)
    expected = map(np.asarray, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}))
    with treadle.compile(proto) as model:
        for result, wanted in zip(model(x), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("update", ["Mul(k0, step)", "Sub(k0, step)"])
def test_counters_that_are_not_known_to_end(update: str) -> None:
    """One that grows by other steps each time, and one that never comes to its end."""
    text = COUNTED.format(begin=1, end=200000, step=2, limit="", update=update, test="Less(k1, end)")
    with pytest.raises(TreadleError, match="rows are asked of a loop whose number of iterations is known in a call"):
        import_model(_model(text).SerializeToString())


DECODER = """g (float[1, 8] h0, float[8, 8] w) => (float[1, 8] h, int64[1, 24] tokens, int64 k)
    <int64 zero = {0}, int64[1] start = {0}, int64[1, 24] none = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, bool yes = {1}, int64 most = {1000}> {
  k, h, tokens, ended = Loop (most, yes, zero, h0, none, yes) <body = b
      (int64 i, bool c, int64 k0, float[1, 8] v, int64[1, 24] t0, bool e0)
      => (bool d, int64 k1, float[1, 8] u, int64[1, 24] t1, bool e1)
      <int64 one = {1}, int64 end = {24}, int64[1] ones = {1}, int64[1] last = {7}, int64[1] axis = {1}> {
    k1 = Add(k0, one)
    p = MatMul(v, w)
    u = Tanh(p)
    token = ArgMax<axis=1>(u)
    begin = Reshape(k0, ones)
    behind = Add(begin, ones)
    place = Slice(t0, begin, behind, axis)
    shape = Shape(place)
    spread = Expand(token, shape)
    row = Expand(begin, shape)
    t1 = ScatterElements<axis=1>(t0, row, spread)
    is_last = Equal(token, last)
    flag = Cast<to=6>(is_last)
    found = ReduceMax<keepdims=0>(flag)
    any = Cast<to=9>(found)
    e1 = If (any) <then_branch = q () => (bool r) { r = Constant<value = bool {1}>() },
                   else_branch = f () => (bool[1] s) { s = Constant<value = bool[1] {0}>() }>
    within = Less(k1, end)
    goes = Not(e1)
    d = And(within, goes)
  }>
}"""


@pytest.mark.parametrize("seed", range(4))
def test_a_decoder_that_writes_at_its_counter(seed: int) -> None:
    """It ends by data, or where its places do; a branch gives a scalar, the other one a list of one."""
    text = DECODER.replace("bool e0)", "bool[1] e0)").replace("bool e1)", "bool[1] e1)")
    text = text.replace("none, yes) <body", "none, listed) <body").replace(
        "bool yes =", "bool[1] listed = {1}, bool yes ="
    )
    proto = _model(text)
    rng = np.random.default_rng(seed)
    inputs = {"h0": rng.standard_normal((1, 8)), "w": rng.standard_normal((8, 8))}
    inputs = {name: x.astype(np.float32) for name, x in inputs.items()}
    expected = _decoded(**inputs)
    with treadle.compile(proto) as model:
        for result, wanted in zip(model(**inputs), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def _decoded(h0: Array, w: Array) -> tuple[Array, Array, int]:
    """The decoder in NumPy: ONNX Runtime refuses a branch of another rank."""
    tokens, v = np.zeros((1, 24), np.int64), h0
    for k in range(24):
        v = np.tanh(v @ w)
        tokens[0, k] = v.argmax()
        if tokens[0, k] == 7:
            return v, tokens, k + 1
    return v, tokens, 24


WHILE = """g (float[1, 8] h0) => (float[1, 8] h, int64[1, N] written)
    <int64 zero = {{0}}, int64 most = {{{most}}}, bool yes = {{1}}, int64[1] first = {{0}}, int64[1] ones = {{1}},
     int64[2] size = {{1, 48}}, int64 unset = {{-1}}> {{
  none = ConstantOfShape<value = int64[1] {{0}}>(size)
  w1, k, h, tokens, kept = Loop (most, yes, w, zero, h0, none, unset) <body = b
      (int64 i, bool c, float[8, 8] w0, int64 k0, float[1, 8] v, int64[1, 48] t0, int64[A, B] kept0)
      => (bool d, float[8, 8] w2, int64 k1, float[1, 8] u, int64[1, 48] t1, int64[C, D] kept1)
      <float fone = {{1}}, float fend = {{40}}, int64[1] one = {{1}}, int64 last = {{7}}, int64 nothing = {{0}}> {{
    p = MatMul(v, w0)
    u = Tanh(p)
    token = ArgMax<axis=1>(u)
    counted = Cast<to=1>(k0)
    next = Add(counted, fone)
    k1 = Cast<to=7>(next)
    begin = Reshape(k0, one)
    end = Reshape(k1, one)
    all = Shape(t0)
    length = Gather(all, one)
    behind = Min(length, end)
    place = Slice(t0, begin, behind, one)
    shape = Shape(place)
    spread = Expand(token, shape)
    row = Expand(begin, shape)
    t1 = ScatterElements<axis=1>(t0, row, spread)
    kept1 = Identity(t1)
    w2 = Identity(w0)
    goes = Less(next, fend)
    is_last = Equal(token, last)
    found = Cast<to=6>(is_last)
    any = ReduceMax<keepdims=0>(found)
    ends = Cast<to=9>(any)
    open = Not(ends)
    both = And(goes, open)
    flag = Cast<to=7>(both)
    same = Add(flag, nothing)
    d = Cast<to=9>(same)
  }}>
  behind_last = Reshape(k, ones)
  written = Slice(kept, first, behind_last, ones)
}}"""


@pytest.mark.parametrize("most", [30, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_a_while_loop_whose_counter_is_cast(most: int, seed: int) -> None:
    """Its counter goes through float32, one state is written only and begins as a scalar, weights are a state, and the
    result has as many elements as iterations ran."""
    rng = np.random.default_rng(seed)
    proto = _model(WHILE.format(most=most))
    proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w"))
    h0 = rng.standard_normal((1, 8)).astype(np.float32)
    expected = map(np.asarray, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"h0": h0}))
    with treadle.compile(proto) as model:
        for result, wanted in zip(model(h0=h0), expected, strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("values", [{"end": 300, "kind": 2}, {"begin": 16777116, "end": 16777217, "kind": 1}])
def test_a_type_that_does_not_have_all_counts(values: dict[str, int]) -> None:
    """300 in uint8 is 44, and 2^24 + 1 in float32 is 2^24."""
    update = "Add(k0, step) narrow = Cast<to={kind}>(k1) last = Cast<to={kind}>(end)".format(**values)
    given = {"begin": 0, "step": 1, "limit": "", "test": "Less(narrow, last)"} | values
    with pytest.raises(TreadleError, match="rows are asked of a loop whose number of iterations is known in a call"):
        import_model(_model(COUNTED.format(update=update, **given)).SerializeToString())


PEELED = """g (float[2] x) => (float[2, 1] y, float[40, 2, 1] rows) <int64 most = {40}, bool yes = {1}> {
  y, rows = Loop (most, yes, x) <body = b (int64 i, bool c, float[A, B] v)
      => (bool d, float[2, 1] u, float[2, 1] row) <int64[2] column = {2, 1}> {
    stands = Reshape(v, column)
    number = Cast<to=1>(i)
    sum = Add(stands, number)
    u = Sin(sum)
    row = Add(u, number)
    d = Identity(c)
  }>
}"""


def test_a_state_that_has_its_type_from_the_second_iteration_on() -> None:
    proto, x = _model(PEELED), np.array([0.5, -2], np.float32)
    module = import_model(proto.SerializeToString())
    assert "graph.loop" in {op.name for op in module.walk()}
    expected = map(np.asarray, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}))
    with treadle.compile(proto) as model:
        for result, wanted in zip(model(x), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_another_extent_in_each_iteration() -> None:
    text = COUNTED.format(begin=1, end=80, step=1, limit="most", update="Add(k0, step)", test="Less(k1, end)")
    text = text.replace("row = Add(k0, i)", "up = Reshape(k1, one) row = Slice(all, from, up)")
    text = text.replace("int64 end =", "int64[1] one = {1}, int64[1] from = {0}, int64[90] all, int64 end =")
    text = text.replace("int64[90] all", "int64[90] all = {" + ", ".join(map(str, range(90))) + "}")
    proto = _model(text.replace("bool yes", "int64 most = {70}, bool yes"))
    with pytest.raises(TreadleError, match=r"rows 0 of .*, by the iteration's number; accepted: rows of one shape"):
        import_model(proto.SerializeToString())
