"""Operators of `com.microsoft` as compiled C, and some on the emulator, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType

import treadle
from tests.frontends.onnx.microsoft_cases import CASES, Case, microsoft
from tests.helpers.emulated_batch import CUDA
from tests.helpers.limits import assert_within, module_limits
from tests.helpers.program_batch import C, ProgramBatch
from treadle.dialects.graph import GatherOp
from treadle.dialects.graph.dtypes import ui8
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]


def _imported(case: Case) -> ModuleOp:
    return import_model(case.model().SerializeToString())


MAKERS = {name: partial(_imported, case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def compiled() -> Any:
    return ProgramBatch(MAKERS, C)


@pytest.fixture(scope="module")
def emulated() -> Any:
    return ProgramBatch({name: MAKERS[name] for name in EMULATED}, CUDA)


APPROXIMATED = ("quick gelu", "fused conv, Sigmoid", *(name for name in CASES if name.startswith("lstm")))
"""Of which ONNX Runtime's vector code has a sigmoid or a tanh that is off by more than its type's rounding."""
EMULATED = (
    "experts, few rows",
    "experts, 4 bits, blocks",
    "experts, gates, many rows",
    "groups, rotary",
    "groups, sinks",
    "heads, raw mask",
    "4 bits, zero points",
    "skip, sum",
    "add",
    "dynamic matmul",
)


@pytest.mark.parametrize("name", CASES)
def test_a_node_is_as_onnx_runtime_has_it(name: str, compiled: Any) -> None:
    _check(name, compiled[name].run(list(CASES[name].inputs.values())))


@pytest.mark.parametrize("name", EMULATED)
def test_a_node_on_the_emulator(name: str, emulated: Any) -> None:
    _check(name, emulated[name].run(list(CASES[name].inputs.values())))


def _check(name: str, results: Sequence[Array]) -> None:
    """Both are within the limits of the imported graph, whose definitions each result is computed from."""
    case = CASES[name]
    limited = module_limits(_imported(case), list(case.inputs.values()))
    for result, wanted, limit in zip(results, case.expected(), limited, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        assert_within(result, limit, wanted.dtype, "the result")
        if name in APPROXIMATED:
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
        else:
            assert_within(wanted, limit, wanted.dtype, "ONNX Runtime")


REFUSED = {
    "a length of a past": (
        microsoft("MultiHeadAttention", "x x x _ _ _ _ _ x", num_heads=2),
        r"input 8 \('past_sequence_length'\) of shape \(2, 3, 8\); accepted: one number",
    ),
    "a length of no past": (
        microsoft("MultiHeadAttention", "x x x _ _ _ _ _ p", num_heads=2), "of a past are missing; accepted: both, or",
    ),
    "beams": (
        microsoft("MultiHeadAttention", "x x x _ _ _ _ _ _ p", num_heads=2),
        r"input 9 \('cache_indirection'\) is given",
    ),
    "a shared past without a length": (
        microsoft("Attention", "x w", num_heads=2, past_present_share_buffer=1), "is 1; accepted: 1 with input 6",
    ),
    "no heads": (microsoft("MultiHeadAttention", "x x x"), "attribute 'num_heads' is 0"),
    "uneven heads": (microsoft("MultiHeadAttention", "x x x", num_heads=3), r"for 3 heads; accepted: rows of whole"),
    "heads without keys": (microsoft("MultiHeadAttention", "x", num_heads=2), "keys or values are missing"),
    "a mask of another shape": (
        microsoft("MultiHeadAttention", "x x x _ w", num_heads=2), r"a mask of shape \(8, 24\); accepted: \(2, 3\), ",
    ),
    "an output of scores": (
        microsoft("MultiHeadAttention", "x x x", "a b c y", num_heads=2), r"output 3 \('y'\) is used",
    ),
    "rotary attention": (microsoft("Attention", "x w", num_heads=2, do_rotary=1), "attribute 'do_rotary' is 1"),
    "sizes": (
        microsoft("Attention", "x w", num_heads=2, qkv_hidden_sizes=[8, 8, 6]), r"sizes \[8, 8, 6\] of a projection",
    ),
    "weights of attention": (microsoft("Attention", "x x", num_heads=2), "accepted: ranks 3 and 2"),
    "a cache": (
        microsoft("GroupQueryAttention", "x x x x x", num_heads=2, kv_num_heads=1), "a past of",
    ),
    "a bias of grouped scores": (
        microsoft("GroupQueryAttention", "x _ _ _ _ _ _ _ _ _ x", num_heads=2, kv_num_heads=1),
        r"input 10 \('attention_bias'\) of shape \(2, 3, 8\); accepted: \(2, 2, 3, 3\), the",
    ),
    "sinks": (
        microsoft("GroupQueryAttention", "x _ _ _ _ _ _ _ _ _ _ g", num_heads=2, kv_num_heads=1),
        r"input 11 \('head_sink'\) of shape \(8,\); accepted: 2",
    ),
    "weights of heads": (
        microsoft("GroupQueryAttention", "x _ _ _ _ _ _ _ _ _ _ _ _ _ g", num_heads=2, kv_num_heads=1),
        r"input 14 \('q_norm_weight'\) of shape \(8,\); accepted: 2",
    ),
    "uneven groups": (
        microsoft("GroupQueryAttention", "x", num_heads=2, kv_num_heads=2), "rows of 8 for 2 and twice 2 heads",
    ),
    "groups of matrices": (
        microsoft("GroupQueryAttention", "w", num_heads=2, kv_num_heads=1), "queries of rank 2; accepted: .batch, seq",
    ),
    "a mixer": (microsoft("MoE", "w r v _ m _", use_sparse_mixer=1), "attribute 'use_sparse_mixer' is 1; accepted: 0"),
    "more experts than there are": (microsoft("MoE", "w r v _ m _", k=2), "attribute 'k' is 2; accepted: 1 to 1"),
    "scores of experts": (microsoft("MoE", "w w v _ m _"), r"scores of shape \(8, 24\); accepted: .rows, 1"),
    "layers of experts": (microsoft("MoE", "w r v _ v _"), r"layers .*\(1, 8, 24\), None. of rows of 24; accepted: "),
    "gates of nothing": (
        microsoft("MoE", "w r v _ m _", activation_type="swiglu"), "activation swiglu with swiglu_fusion 0 and no t",
    ),
    "gates of relu": (microsoft("MoE", "w r v _ m _ v _"), "activation relu with swiglu_fusion 0 and a third layer"),
    "a late limit": (
        microsoft("MoE", "w r v _ m _", swiglu_limit_after_activation=1), "'swiglu_limit_after_activation' is 1",
    ),
    "an activation of experts": (
        microsoft("MoE", "w r v _ m _", activation_type="geglu"), "'activation_type' is 'geglu'; accepted: relu, gelu",
    ),
    "a matrix of experts": (microsoft("MoE", "w r w _ m _"), "weights of experts of rank 2; accepted: .experts, out"),
    "floats of 4 bits": (
        microsoft("QMoE", "w r u e _ u e", quant_type="nvfp4"), "attribute 'quant_type' is 'nvfp4'; accepted: int",
    ),
    "3 bits of experts": (
        microsoft("QMoE", "w r u e _ u e", expert_weight_bits=3), "of 3 bits, scales; accepted: uint8 of 2, 4 or 8",
    ),
    "scales of experts": (
        microsoft("QMoE", "w r u e _ u e", block_size=16), r"scales of shape \(1, 8\); accepted: \(1, 8, 4\), and",
    ),
    "blocks of experts": (
        microsoft("QMoE", "w r u e _ u e", block_size=8), "block_size 8 of rows of 64; accepted: a divisor that is a",
    ),
    "prepacked experts": (
        microsoft("QMoE", "w r u e _ u e", weights_prepacked=1), "'weights_prepacked' is 1; accepted: 0 or -1",
    ),
    "ragged batches": (microsoft("RotaryEmbedding", "x p w w", is_packed_batching=1), "'is_packed_batching' is 1"),
    "a scaled rotation": (microsoft("RotaryEmbedding", "x p w w", scale=2.0), "attribute 'scale' is 2.0"),
    "positions": (microsoft("RotaryEmbedding", "x w s s"), r"of shape \(8, 24\); accepted: \(1,\) or \(2, 3\)"),
    "caches": (microsoft("RotaryEmbedding", "x p s w"), "caches of shapes"),
    "a skip of another size": (microsoft("SkipLayerNormalization", "x w g"), "and a skip of shape"),
    "statistics": (microsoft("SkipLayerNormalization", "x x g", "a y"), r"output 1 \('y'\) is used"),
    "prepacked weights": (
        microsoft("MatMulNBits", "x b g", N=4, K=8, block_size=16, weight_prepacked=1), "'weight_prepacked' is not 0",
    ),
    "groups of weights": (
        microsoft("MatMulNBits", "x b g _ p", N=4, K=8, block_size=16), r"input 4 \('g_idx'\) is given",
    ),
    "a block of a table": (
        microsoft("GatherBlockQuantized", "v p w", block_size=24), "block_size 24; accepted: 4 bits .* power of 2",
    ),
    "axes of a table": (
        microsoft("GatherBlockQuantized", "u p w", block_size=16), "quantize_axis 1 .* of rank 3; accepted: two axes",
    ),
    "scales of a table": (
        microsoft("GatherBlockQuantized", "u p w", block_size=16, quantize_axis=2), r"accepted: 1, 8, 4",
    ),
    "zero points of a table": (
        microsoft("GatherBlockQuantized", "u p k b", block_size=16, quantize_axis=2),
        r"zero points tensor<3xui8>; accepted: ui8 of shape \[1, 8, 2\]",
    ),
    "a block": (microsoft("MatMulNBits", "x b g", N=4, K=8, block_size=24), "block_size 24, N 4, K 8"),
    "packed weights": (microsoft("MatMulNBits", "x b g", N=4, K=8, block_size=16), "tensor<3xui8>; accepted: uint8"),
    "an activation": (microsoft("FusedGemm", "w s", activation="Sine"), "attribute 'activation' is 'Sine'"),
    "a clip without limits": (
        microsoft("FusedGemm", "w s", activation="Clip", activation_alpha=1.0), "1 parameters of the activation Clip",
    ),
    "a softmax of opset 11": (microsoft("QLinearSoftmax", "b g _ g", opset=11), "attribute 'opset' is 11"),
    "a pool of matrices": (microsoft("QLinearGlobalAveragePool", "b q _ q"), "an input of rank 1; accepted: rank 3"),
    "half an operand": (microsoft("QLinearConcat", "g b b g", axis=0), "4 inputs; accepted: a scale and a zero point"),
    "weights of an lstm": (
        microsoft("DynamicQuantizeLSTM", "x v v _ _ _ _ _ q b q b"), r"accepted: \(1, 8, 32\) and \(1, 8, 32\)",
    ),
    "scales of an lstm": (
        microsoft("DynamicQuantizeLSTM", "x u u _ _ _ _ _ g b q b"), r"of shape \(8,\); accepted: \(1,\) or \(1, 32\)",
    ),
    "ids": (microsoft("EmbedLayerNormalization", "p _ w w _ g g"), "ids of rank 1"),
    "more words than positions": (
        microsoft("EmbedLayerNormalization", "i _ w o _ g g"), "a sequence of 5 and 2 positions",
    ),
    "an attribute": (microsoft("Gelu", "x", approximate=1), "attribute 'approximate' is not supported"),
    "an operator": (microsoft("BeamSearch", "x"), r"operator com.microsoft.BeamSearch is not supported"),
}  # fmt: skip
WEIGHTS: dict[str, Array] = {
    "w": np.ones((8, 24), np.float32), "s": np.ones((24, 4), np.float32), "g": np.ones(8, np.float32),
    "p": np.zeros(1, np.int64), "b": np.zeros(3, np.uint8), "i": np.zeros((1, 5), np.int64),
    "o": np.ones((2, 24), np.float32), "q": np.ones(1, np.float32), "u": np.zeros((1, 8, 32), np.uint8),
    "v": np.zeros((1, 8, 24), np.uint8), "k": np.ones((1, 8, 4), np.float32),
    "r": np.ones((8, 1), np.float32), "m": np.ones((1, 24, 8), np.float32), "e": np.ones((1, 8), np.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", ["gather, 4 bits of bytes", "gather, pairs of integers"])
def test_a_table_stays_as_small_as_in_the_file(name: str) -> None:
    """Two numbers a byte, until they are gathered."""
    gathered = [op.operands[0].type for op in _imported(CASES[name]).walk() if isinstance(op, GatherOp)]
    table = CASES[name].weights["d"]
    count = table.size if table.dtype == np.uint8 else table.size // 2
    assert [t.element_count() for t in gathered if isinstance(t, TensorType) and t.element_type == ui8] == [count]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("packed", ["queries, keys and values", "keys and values"])
def test_packed_heads(packed: str, bias: bool) -> None:
    """`[batch, sequence, heads, 3 or 2, size]`, which ONNX Runtime has no kernel for on CPUs, is as the same parts are
    one by one."""
    parts = dict(zip("qkv", np.random.default_rng(7).standard_normal((3, 2, 5, 4, 8)).astype(np.float32), strict=True))
    weights = {"b": np.linspace(-1, 1, 96, dtype=np.float32)} if bias else {}
    rows = {name: x.reshape(2, 5, 32) for name, x in parts.items()}
    whole = Case(microsoft("MultiHeadAttention", "q k v b" if bias else "q k v", num_heads=4), rows, weights)
    if packed == "keys and values":
        inputs = {"q": rows["q"], "k": np.stack([parts["k"], parts["v"]], 3)}
        names = "q k _ b" if bias else "q k"
    else:
        inputs, names = {"q": np.stack(list(parts.values()), 3)}, "q _ _ b" if bias else "q"
    case = Case(microsoft("MultiHeadAttention", names, num_heads=4), inputs, weights)
    with treadle.compile(case.model(), threads=2) as compiled:
        (y,) = compiled(**inputs)
    (limit,) = module_limits(_imported(whole), list(rows.values()))
    assert_within(y, limit, y.dtype, "the result")
    assert_within(whole.expected()[0], limit, y.dtype, "ONNX Runtime, of the parts")


def test_heads_that_are_normalised() -> None:
    """Of which ONNX Runtime has no kernel on CPUs: as queries and keys are that NumPy has normalised."""
    random = np.random.default_rng(5)
    widths = {"q": 32, "k": 16, "v": 16}
    rows = {name: random.standard_normal((2, 5, width)).astype(np.float32) for name, width in widths.items()}
    weights = {name: random.standard_normal(8).astype(np.float32) for name in ("qn", "kn")}
    lengths = {"l": np.full(2, 4, np.int32), "t": np.array(5, np.int32)}
    counts: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}
    names = "q k v _ _ l t _ _ _ _ _ _ _ qn kn"
    normal = microsoft("GroupQueryAttention", names, "y nk nv", qk_norm_epsilon=1e-3, **counts)
    with treadle.compile(Case(normal, rows | lengths, weights).model(), threads=2) as compiled:
        results = compiled(**rows, **lengths)
    by_numpy = dict(rows)
    for name in "qk":
        wide = rows[name].astype(np.float64).reshape(2, 5, -1, 8)
        wide = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-3) * weights[f"{name}n"]
        by_numpy[name] = wide.reshape(rows[name].shape).astype(np.float32)
    plain = Case(microsoft("GroupQueryAttention", "q k v _ _ l t", "y nk nv", **counts), by_numpy | lengths)
    for result, wanted in zip(results, plain.expected(), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_named(what: str) -> None:
    operator, message = REFUSED[what]
    used = {name: WEIGHTS[name] for name in operator.input if name in WEIGHTS}
    case = Case(operator, {"x": np.ones((2, 3, 8), np.float32)}, used)
    proto = case.model()
    del proto.graph.output[:-1]
    with pytest.raises(TreadleError, match=message):
        import_model(proto.SerializeToString())
