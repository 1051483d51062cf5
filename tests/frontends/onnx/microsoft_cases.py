"""Nodes of the domain `com.microsoft`, with inputs, each of which ONNX Runtime computes on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from treadle.frontends.onnx.converters.microsoft import DOMAIN

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A node; operands that are `weights` are constants, the others inputs."""

    node: NodeProto
    inputs: dict[str, Array]
    weights: dict[str, Array] = field(default_factory=dict[str, Array])

    def model(self) -> ModelProto:
        """The node as a model, whose outputs carry no types."""
        entries = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in self.inputs.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.node.output if name]
        weights = [numpy_helper.from_array(x, name) for name, x in self.weights.items()]
        graph = helper.make_graph([self.node], "g", entries, outputs, weights)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def expected(self) -> list[Array]:
        """What ONNX Runtime computes, each operator as it stands, with one thread: several have a range each when they
        quantise a batch."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options)
        return [np.asarray(y) for y in session.run(None, self.inputs)]


def microsoft(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """A node whose operands are words; `_` leaves one out."""
    words = [["" if w == "_" else w for w in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *words, name="n", domain=DOMAIN, **attributes)


def _rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def _floats(*shape: int, seed: int = 3) -> Array:
    return _rng(seed).standard_normal(shape).astype(np.float32)


def _bytes(*shape: int, seed: int = 3) -> Array:
    return _rng(seed).integers(0, 256, shape).astype(np.uint8)


def _signed_weights(bytes: Array) -> Array:
    """Weights from -64 to 63: of larger ones ONNX Runtime's sums of two products saturate where there is no VNNI."""
    return ((bytes >> 1).astype(np.int16) - 64).astype(np.int8)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def _activations() -> dict[str, Case]:
    x, b = _floats(3, 5, 8), _floats(8, seed=4)
    image, weights, bias = _floats(1, 3, 6, 7), _floats(4, 3, 3, 3, seed=4), _floats(4, seed=5)
    conv = {"x": image}, {"w": weights, "b": bias}
    cases = {
        "gelu": Case(microsoft("Gelu", "x"), {"x": x}),
        "bias gelu": Case(microsoft("BiasGelu", "x b"), {"x": x}, {"b": b}),
        "fast gelu": Case(microsoft("FastGelu", "x"), {"x": x}),
        "fast gelu of a sum": Case(microsoft("FastGelu", "x b"), {"x": x}, {"b": b}),
        "quick gelu": Case(microsoft("QuickGelu", "x", alpha=1.5), {"x": x}),
        "fused conv, added": Case(
            microsoft("FusedConv", "x w b z", activation="Relu", pads=[1] * 4),
            {"x": image, "z": _floats(1, 4, 6, 7, seed=6)},
            conv[1],
        ),
    }
    for kind, parameters in {
        "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.1], "Clip": [-0.5, 0.75], "HardSigmoid": [0.3, 0.4],
    }.items():  # fmt: skip
        attributes: dict[str, Any] = {"activation": kind}
        attributes |= {"activation_params": parameters} if parameters else {}
        cases[f"fused conv, {kind}"] = Case(microsoft("FusedConv", "x w b", **attributes), *conv)
    a, m, c = _floats(5, 6), _floats(7, 6, seed=4), _floats(7, seed=5)
    activations: dict[str, dict[str, Any]] = {"Relu": {}, "LeakyRelu": {"activation_alpha": 0.2}, "Tanh": {}}
    for kind, given in activations.items():
        gemm = microsoft("FusedGemm", "a m c", transB=1, alpha=0.5, activation=kind, **given)
        cases[f"fused gemm, {kind}"] = Case(gemm, {"a": a}, {"m": m, "c": c})
    return cases


def _products() -> dict[str, Case]:
    a, b = _floats(2, 3, 4, 5), _floats(2, 3, 5, 6, seed=4)
    turned = {
        "transA": (a.swapaxes(2, 3), b),
        "transB": (a, b.swapaxes(2, 3)),
        "transBatchA": (np.moveaxis(a, 2, 0), b),
        "transBatchB": (a, np.moveaxis(b, 2, 0)),
    }
    cases = {
        f"fused matmul, {name}": Case(
            microsoft("FusedMatMul", "a b", alpha=0.25, **dict[str, Any]({name: 1})),
            {"a": np.ascontiguousarray(x), "b": np.ascontiguousarray(y)},
        )
        for name, (x, y) in turned.items()
    }
    both = np.ascontiguousarray(np.moveaxis(a.swapaxes(2, 3), 2, 0))
    cases["fused matmul, both"] = Case(microsoft("FusedMatMul", "a b", transA=1, transBatchA=1), {"a": both, "b": b})
    return cases | {f"{bits} bits, {name}": case for bits in (4, 8, 2) for name, case in _blocks(bits).items()}


def _blocks(bits: int) -> dict[str, Case]:
    columns, rows, block = 10, 40, 16
    blocks = -(-rows // block)
    attributes: dict[str, Any] = {"bits": bits, "block_size": block, "N": columns, "K": rows}
    weights = {
        "b": _bytes(columns, blocks, block * bits // 8),
        "s": _rng(4).uniform(0.01, 0.1, (columns, blocks)).astype(np.float32),
    }
    zeros = {"z": _bytes(columns, -(-blocks * bits // 8), seed=5)}
    x = _floats(2, 3, rows)
    return {
        "default": Case(microsoft("MatMulNBits", "x b s", **attributes), {"x": x}, weights),
        "zero points": Case(microsoft("MatMulNBits", "x b s z", **attributes), {"x": x}, weights | zeros),
        "given": Case(microsoft("MatMulNBits", "x b s z", **attributes), {"x": x} | weights | zeros),
        "bias": Case(
            microsoft("MatMulNBits", "x b s _ _ c", **attributes), {"x": x}, weights | {"c": _floats(columns, seed=6)}
        ),
    }


def _gathers() -> dict[str, Case]:
    """Tables of bytes and of integers of 4 bits, with scales along each axis."""
    rng, indices = _rng(7), {"i": np.array([[1, 0, -2], [2, 2, 3]])}
    op = "GatherBlockQuantized"

    def scales(*shape: int) -> dict[str, Array]:
        return {"s": rng.uniform(0.1, 1, shape).astype(np.float32)}

    def numbers(name: str, *shape: int) -> dict[str, Array]:
        return {name: rng.integers(-8, 8, shape).astype(ml_dtypes.int4)}

    def unsigned(name: str, *shape: int) -> dict[str, Array]:
        return {name: rng.integers(0, 16, shape).astype(ml_dtypes.uint4)}

    return {
        "gather, 4 bits of bytes": Case(
            microsoft(op, "d i s", block_size=32), indices, {"d": _bytes(4, 36)} | scales(4, 3)
        ),
        "gather, zero points of bytes": Case(
            microsoft(op, "d i s z", block_size=32), indices, {"d": _bytes(4, 36), "z": _bytes(4, 2)} | scales(4, 3)
        ),
        "gather, bytes": Case(
            microsoft(op, "d i s z", block_size=16, bits=8, quantize_axis=2),
            indices,
            {"d": _bytes(4, 3, 40), "z": _bytes(4, 3, 3)} | scales(4, 3, 3),
        ),
        "gather, integers": Case(
            microsoft(op, "d i s", block_size=16, quantize_axis=1), indices, numbers("d", 4, 20, 3) | scales(4, 2, 3)
        ),
        "gather, pairs of integers": Case(
            microsoft(op, "d i s z", block_size=16, quantize_axis=1),
            indices,
            numbers("d", 4, 20, 6) | numbers("z", 4, 2, 6) | scales(4, 2, 6),
        ),
        "gather, pairs of natural numbers": Case(
            microsoft(op, "d i s z", block_size=16, gather_axis=1, quantize_axis=2),
            indices,
            unsigned("d", 3, 4, 34) | unsigned("z", 3, 4, 3) | scales(3, 4, 3),
        ),
        "gather, scales in front": Case(
            microsoft(op, "d i s z", block_size=16, gather_axis=1, quantize_axis=0),
            indices,
            numbers("d", 40, 5) | numbers("z", 3, 5) | scales(3, 5),
        ),
    }


def _experts() -> dict[str, Case]:
    """Of few rows, whose experts are gathered, and of many."""
    experts, size, inner = 6, 32, 16
    both = {
        "a": 0.3 * _floats(experts, inner, size), "b": _floats(experts, inner, seed=4),
        "c": 0.3 * _floats(experts, size, inner, seed=5), "d": _floats(experts, size, seed=6),
    }  # fmt: skip
    gated = both | {"a": 0.3 * _floats(experts, 2 * inner, size), "b": _floats(experts, 2 * inner, seed=4)}
    few = {"x": _floats(2, size, seed=7), "r": _floats(2, experts, seed=8)}
    many = {"x": _floats(2, 5, size, seed=7), "r": _floats(10, experts, seed=8)}
    names, moe = "x r a b c d", "MoE"
    limits: dict[str, Any] = {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.5}
    return {
        "experts, few rows": Case(microsoft(moe, names, k=2, activation_type="silu"), few, both),
        "experts, many rows": Case(microsoft(moe, names, k=2, activation_type="silu"), many, both),
        "experts, one": Case(microsoft(moe, "x r a _ c _"), few, both),
        "experts, normal shares": Case(
            microsoft(moe, names, k=3, activation_type="gelu", normalize_routing_weights=1), many, both
        ),
        "experts, gates": Case(
            microsoft(moe, names, k=2, activation_type="swiglu", swiglu_fusion=1, **limits), few, gated
        ),
        "experts, gates, many rows": Case(
            microsoft(moe, names, k=2, activation_type="swiglu", swiglu_fusion=1), many, gated
        ),
    } | _quantized_experts()


def _quantized_experts() -> dict[str, Case]:
    """With blocks only of 4 bits: of others ONNX Runtime quantises the rows, too."""
    experts, size, inner = 6, 32, 16
    few = {"x": _floats(2, size, seed=7), "r": _floats(2, experts, seed=8)}
    many = {"x": _floats(2, 5, size, seed=7), "r": _floats(10, experts, seed=8)}

    def case(bits: int, block: int, zeros: bool, inputs: dict[str, Array], **attributes: Any) -> Case:
        rng, weights = _rng(bits + block), dict[str, Array]()
        first = 2 * inner if "swiglu_fusion" in attributes else inner
        for n, (outputs, width) in enumerate(((first, size), (size, inner))):
            blocks = (width // block,) if block else ()
            each = (experts, outputs, *blocks)
            weights["ad"[n]] = _bytes(experts, outputs, width * bits // 8, seed=n)
            weights["be"[n]] = rng.uniform(0.5, 2, each).astype(np.float32) / (1 << bits)
            weights["cf"[n]] = _floats(experts, outputs, seed=n)
            if zeros:
                weights["uv"[n]] = _bytes(*each[:-1], -(-each[-1] * bits // 8), seed=n)
        names = "x r a b c d e f _ _ _" + (" u v" if zeros else "")
        attributes |= {"block_size": block} if block else {}
        return Case(microsoft("QMoE", names, k=2, expert_weight_bits=bits, **attributes), inputs, weights)

    return {
        "experts, 4 bits": case(4, 0, False, few),
        "experts, 4 bits, many rows": case(4, 0, True, many, activation_type="silu"),
        "experts, 4 bits, blocks": case(4, 16, True, few, activation_type="swiglu", swiglu_fusion=1),
        "experts, 8 bits": case(8, 0, True, few, activation_type="gelu"),
        "experts, 2 bits": case(2, 16, False, many),
    }


def _norms() -> dict[str, Case]:
    x, skip, gamma, beta, bias = (
        _floats(*shape, seed=n) for n, shape in enumerate([(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)])
    )
    constants = {"g": gamma, "b": beta, "c": bias}
    ids, segments = _rng().integers(0, 11, (2, 5)).astype(np.int32), _rng().integers(0, 2, (2, 5)).astype(np.int32)
    tables = {"w": _floats(11, 8), "p": _floats(9, 8, seed=4), "t": _floats(2, 8, seed=5), "g": gamma, "b": beta}
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    places = _rng(9).integers(0, 9, (2, 5)).astype(np.int32)
    skips, simple = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
    embed = "EmbedLayerNormalization"
    return {
        "skip": Case(microsoft(skips, "x s g b"), {"x": x, "s": skip}, constants),
        "skip, sum": Case(microsoft(skips, "x s g b c", "y _ _ z", epsilon=1e-5), {"x": x, "s": skip}, constants),
        "skip, one row": Case(microsoft(skips, "x s g"), {"x": x, "s": skip[0]}, constants),
        "skip, simplified": Case(microsoft(simple, "x s g c", "y _ _ z"), {"x": x, "s": skip}, constants),
        "embed": Case(microsoft(embed, "i k w p t g b m", "y n"), {"i": ids, "k": segments, "m": mask}, tables),
        "embed, positions": Case(
            microsoft(embed, "i _ w p _ g b _ q", "y n z", epsilon=1e-6), {"i": ids, "q": places}, tables
        ),
    }


def _attentions() -> dict[str, Case]:
    batch, length, heads, size = 2, 6, 4, 8
    hidden = heads * size
    q, k, v = (_floats(batch, length, hidden, seed=n) for n in range(3))
    bias = _floats(3 * hidden, seed=4)
    ends = np.array([4, 6], np.int32)
    raw = (np.arange(length) < ends[:, None]).astype(np.int32)
    cube = _rng(5).integers(0, 2, (batch, length, length)).astype(np.int32)
    scores = _floats(1, heads, length, length, seed=6)
    past = {"pk": _floats(batch, heads, 3, size, seed=7), "pv": _floats(batch, heads, 3, size, seed=8)}
    given = {"q": q, "k": k, "v": v}
    x, w = _floats(batch, length, 12), 0.3 * _floats(12, 3 * hidden, seed=9)
    own = ({"x": x}, {"w": w, "b": bias})
    multi = "MultiHeadAttention"
    by_heads = {
        "q": q,
        "k": np.ascontiguousarray(k.reshape(batch, length, heads, size).swapaxes(1, 2)),
        "v": np.ascontiguousarray(v.reshape(batch, length, heads, size).swapaxes(1, 2)),
    }
    return {
        "heads": Case(microsoft(multi, "q k v", num_heads=heads), given),
        "heads, bias": Case(microsoft(multi, "q k v b", num_heads=heads, scale=0.2), given, {"b": bias}),
        "heads, raw mask": Case(microsoft(multi, "q k v _ m", num_heads=heads), given | {"m": raw}),
        "heads, mask of rows": Case(microsoft(multi, "q k v _ m", num_heads=heads), given | {"m": cube}),
        "heads, scores": Case(microsoft(multi, "q k v _ m a", num_heads=heads), given | {"m": raw, "a": scores}),
        "heads, causal": Case(microsoft(multi, "q k v", num_heads=heads, unidirectional=1), given),
        "heads, split": Case(microsoft(multi, "q k v", num_heads=heads), by_heads),
        "heads, past": Case(
            microsoft(multi, "q k v _ _ _ pk pv", "y nk nv", num_heads=heads, unidirectional=1), given | past
        ),
        "attention": Case(microsoft("Attention", "x w b", num_heads=heads), *own),
        "attention, raw mask": Case(
            microsoft("Attention", "x w b m", num_heads=heads, mask_filter_value=-50.0), own[0] | {"m": raw}, own[1]
        ),
        "attention, ends": Case(microsoft("Attention", "x w b m", num_heads=heads), own[0] | {"m": ends}, own[1]),
        "attention, ends and starts": Case(
            microsoft("Attention", "x w b m", num_heads=heads),
            own[0] | {"m": np.array([6, 5, 2, 0], np.int32)},
            own[1],
        ),
        "attention, past": Case(
            microsoft("Attention", "x w b _ p", "y z", num_heads=heads, unidirectional=1),
            own[0] | {"p": _floats(2, batch, heads, 3, size, seed=7)},
            own[1],
        ),
        "attention, sizes": Case(microsoft("Attention", "x w b", num_heads=heads, qkv_hidden_sizes=[24, 24, 48]), *own),
    } | _grouped(batch, length, heads, 2 * size)


def _grouped(batch: int, length: int, heads: int, size: int) -> dict[str, Case]:
    groups, grouped, rotary = 2, "GroupQueryAttention", "RotaryEmbedding"
    angles = _rng(4).uniform(0, 6, (length + 4, size // 2))
    caches = {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)}
    given = {
        "q": _floats(batch, length, heads * size),
        "k": _floats(batch, length, groups * size, seed=4),
        "v": _floats(batch, length, groups * size, seed=5),
    }
    packed = {"x": np.concatenate(list(given.values()), 2)}
    lengths = {"l": np.full(batch, length - 1, np.int32), "t": np.array(length, np.int32)}
    counts: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    places = {"p": _rng(6).integers(0, length + 4, (batch, length)).astype(np.int64)}
    x, first = {"x": _floats(batch, heads, length, size)}, {"p": np.array([2], np.int64)}
    short = {name: np.ascontiguousarray(cache[:, : size // 4]) for name, cache in caches.items()}
    return {
        "groups": Case(microsoft(grouped, "q k v _ _ l t", "y nk nv", **counts), given | lengths),
        "groups, packed": Case(microsoft(grouped, "x _ _ _ _ l t", "y nk nv", **counts), packed | lengths),
        "groups, rotary": Case(
            microsoft(grouped, "q k v _ _ l t c s", "y nk nv", do_rotary=1, **counts), given | lengths, caches
        ),
        "groups, rotary, interleaved": Case(
            microsoft(grouped, "x _ _ _ _ l t c s", "y nk nv", do_rotary=1, rotary_interleaved=1, **counts),
            packed | lengths, caches,
        ),
        "groups, window": Case(
            microsoft(grouped, "q k v _ _ l t", "y nk nv", local_window_size=3, scale=0.3, **counts), given | lengths
        ),
        "groups, soft cap": Case(
            microsoft(grouped, "q k v _ _ l t", "y nk nv", softcap=2.0, **counts), given | lengths
        ),
        "groups, bias": Case(
            microsoft(grouped, "q k v _ _ l t _ _ _ e", "y nk nv", softcap=2.0, **counts),
            given | lengths | {"e": _floats(1, heads, length, length, seed=6)},
        ),
        "groups, smooth": Case(
            microsoft(grouped, "x _ _ _ _ l t", "y nk nv", smooth_softmax=1, softcap=3.0, **counts), packed | lengths
        ),
        "groups, sinks": Case(
            microsoft(grouped, "q k v _ _ l t _ _ _ _ h", "y nk nv", **counts),
            given | lengths, {"h": _floats(heads, seed=6)},
        ),
        "rotary": Case(microsoft(rotary, "x p c s"), x | places, caches),
        "rotary, first": Case(microsoft(rotary, "x p c s", interleaved=1), x | first, caches),
        "rotary, part": Case(
            microsoft(rotary, "q p c s", num_heads=heads, rotary_embedding_dim=size // 2),
            {"q": given["q"]} | places, short,
        ),
    }  # fmt: skip


def _quantized() -> dict[str, Case]:
    a, b = _bytes(2, 3, 8), _bytes(2, 3, 8, seed=4)
    signed, image = b.view(np.int8), _bytes(1, 3, 6, 8)
    quantum = {"sa": _scale(0.05), "za": np.array(120, np.uint8), "sb": _scale(0.03), "zb": np.array(131, np.uint8)}
    result = {"sc": _scale(0.07), "zc": np.array(99, np.uint8)}
    of_signed = {"za": np.array(-3, np.int8), "zb": np.array(5, np.int8), "zc": np.array(7, np.int8)}
    matrix, columns = _bytes(8, 5, seed=5), _rng(6).uniform(0.01, 0.1, 5).astype(np.float32)
    zeros, bias = _bytes(5, seed=6), _floats(5, seed=7)
    one: dict[str, Array] = {"a": a}
    windows: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 1]}
    known = quantum | result
    cases = {
        "dynamic matmul": Case(
            microsoft("DynamicQuantizeMatMul", "x m sm zm c"), {"x": _floats(2, 3, 8)},
            {"m": matrix, "sm": columns, "zm": zeros, "c": bias},
        ),
        "integer matmul": Case(
            microsoft("MatMulIntegerToFloat", "a m sa sm za zm c"), one,
            known | {"m": _signed_weights(matrix), "sm": columns, "zm": zeros.view(np.int8), "c": bias},
        ),
        "sigmoid": Case(microsoft("QLinearSigmoid", "a sa za sc zc"), one, known | {"sc": _scale(1 / 256)}),
        "leaky relu": Case(microsoft("QLinearLeakyRelu", "a sa za sc zc", alpha=0.2), one, known),
        "softmax": Case(microsoft("QLinearSoftmax", "a sa za sc zc", opset=13), one, known | {"sc": _scale(1 / 256)}),
        "concat": Case(
            microsoft("QLinearConcat", "sc zc a sa za b sb zb", axis=1), {"a": a, "b": b}, known
        ),
        "global pool": Case(microsoft("QLinearGlobalAveragePool", "x sa za sc zc"), {"x": image}, known),
        "global pool, channels last": Case(
            microsoft("QLinearGlobalAveragePool", "x sa za sc zc", channels_last=1), {"x": image}, known
        ),
        "average pool": Case(microsoft("QLinearAveragePool", "x sa za sc zc", **windows), {"x": image}, known),
        "max pool, channels last": Case(microsoft("NhwcMaxPool", "x", **windows), {"x": image}),
        "quantize": Case(microsoft("QuantizeLinear", "x sa za"), {"x": 4 * _floats(2, 3, 8)}, quantum),
        "dequantize": Case(microsoft("DequantizeLinear", "a sa za"), one, quantum),
        "dequantize, axis": Case(
            microsoft("DequantizeLinear", "a s z", axis=2), one,
            {"s": _rng(8).uniform(0.01, 0.1, 8).astype(np.float32), "z": _bytes(8, seed=9)},
        ),
        "attention, quantised": Case(
            microsoft("QAttention", "a m c sa sb _ za zb", num_heads=2), one,
            known | {"m": _bytes(8, 24, seed=5), "c": _floats(24, seed=7)},
        ),
        "gemm": Case(
            microsoft("QGemm", "a sa za m sb zb _ sc zc"), {"a": a[0]}, known | {"m": matrix},
        ),
    }  # fmt: skip
    cases |= _recurrent()
    for kind in ("Add", "Mul"):
        operator = microsoft(f"QLinear{kind}", "a sa za b sb zb sc zc")
        cases[kind.lower()] = Case(operator, {"a": a, "b": b}, known)
        cases[f"{kind.lower()}, signed"] = Case(operator, {"a": a.view(np.int8), "b": signed[0]}, known | of_signed)
    return cases


def _recurrent() -> dict[str, Case]:
    """Few steps are written out, more are a loop."""
    names = "x w r b l h c p sw zw sr zr"

    def case(steps: int, batch: int, columns: bool, signed: bool, left_out: str, **attributes: Any) -> Case:
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        each = (directions, 4 * 6) if columns else (directions,)
        zeros = {name: np.full(each, 123, np.uint8) for name in ("zw", "zr")}  # ONNX Runtime takes no others
        weights: dict[str, Array] = {
            "w": _bytes(directions, 5, 24, seed=3), "r": _bytes(directions, 6, 24, seed=4),
            "b": _floats(directions, 48), "p": _floats(directions, 18, seed=5),
            "sw": _rng(6).uniform(0.002, 0.01, each).astype(np.float32),
            "sr": _rng(7).uniform(0.002, 0.01, each).astype(np.float32),
        }  # fmt: skip
        if signed:
            weights |= {name: _signed_weights(weights[name]) for name in "wr"}
            zeros = {name: np.zeros(each, np.int8) for name in zeros}
        inputs = {
            "x": _floats(steps, batch, 5, seed=8), "l": steps - np.arange(batch, dtype=np.int32),
            "h": _floats(directions, batch, 6, seed=9), "c": _floats(directions, batch, 6, seed=10),
        }  # fmt: skip
        text = " ".join("_" if name in left_out.split() else name for name in names.split())
        node = microsoft("DynamicQuantizeLSTM", text, "y yh yc", hidden_size=6, **attributes)
        given = {name: array for name, array in inputs.items() if name in text.split()}
        return Case(node, given, {name: x for name, x in (weights | zeros).items() if name in text.split()})

    return {
        "lstm": case(3, 1, False, True, "b l h c p"),
        "lstm, columns": case(9, 1, True, True, "l p"),
        "lstm, both directions": case(7, 2, False, False, "l h c", direction="bidirectional"),
        "lstm, lengths": case(6, 2, False, True, "p"),
        "lstm, backward": case(
            4, 2, True, False, "l", direction="reverse", activations=["Sigmoid", "Softsign", "Tanh"]
        ),
    }


CASES = _activations() | _products() | _gathers() | _experts() | _norms() | _attentions() | _quantized()
