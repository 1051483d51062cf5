"""Decoders of random weights and real widths, as ONNX Runtime GenAI's model builder writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

Array = NDArray[Any]
_EPSILON = 1e-6
_BLOCK = 32


@dataclass(frozen=True)
class Decoder:
    """A decoder in the shape of Qwen2 0.5B, unless told otherwise.

    bits: of weights of products: 4 and 8 by `MatMulNBits`, 32 by `MatMul`
    positions: rows of the tables of rotary embeddings
    every_row: whether the logits of all tokens of a call are given, not of the last one alone
    """

    layers: int = 24
    hidden: int = 896
    heads: int = 14
    groups: int = 2
    head: int = 64
    intermediate: int = 4864
    vocabulary: int = 151936
    bits: int = 32
    positions: int = 4096
    every_row: bool = False

    def write(self, folder: Path) -> Path:
        """The model in a folder, which is made, with its weights in a file beside it; what is there is taken."""
        path = (
            folder
            / f"decoder-{self.layers}x{self.hidden}-{self.vocabulary}-{self.bits}bits{'-rows' * self.every_row}"
            / "model.onnx"
        )
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save_model(
                self.model(), str(path), save_as_external_data=True, location="model.data", size_threshold=1024
            )
            (path.parent / "genai_config.json").write_text(json.dumps(self.genai_config, indent=1))
        return path

    @property
    def genai_config(self) -> dict[str, Any]:
        """What ONNX Runtime GenAI reads beside the model."""
        names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
        decoder = {
            "filename": "model.onnx", "head_size": self.head, "hidden_size": self.hidden,
            "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **names},
            "outputs": {
                "logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"
            },
            "num_attention_heads": self.heads, "num_hidden_layers": self.layers, "num_key_value_heads": self.groups,
            "session_options": {"provider_options": []},
        }  # fmt: skip
        model = {
            "type": "qwen2", "vocab_size": self.vocabulary, "context_length": self.positions, "bos_token_id": 0,
            "eos_token_id": self.vocabulary - 1, "pad_token_id": 0, "decoder": decoder,
        }  # fmt: skip
        search = {"do_sample": False, "max_length": self.positions, "past_present_share_buffer": True}
        return {"model": model, "search": search}

    def model(self) -> ModelProto:
        """The model, with its weights."""
        return _Writer(self).model()

    @property
    def products(self) -> Sequence[tuple[int, int]]:
        """The matrices of a token's products, each terms x columns."""
        kept = self.groups * self.head
        layer = [
            (self.hidden, self.heads * self.head + 2 * kept), (self.heads * self.head, self.hidden),
            (self.hidden, self.intermediate), (self.hidden, self.intermediate), (self.intermediate, self.hidden),
        ]  # fmt: skip
        return [*layer * self.layers, (self.hidden, self.vocabulary)]

    @property
    def weights(self) -> int:
        """How many numbers a token multiplies."""
        return sum(terms * columns for terms, columns in self.products)


@dataclass
class _Writer:
    """The nodes so far."""

    of: Decoder
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: list[TensorProto] = field(default_factory=list[TensorProto])
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def model(self) -> ModelProto:
        of, ints = self.of, TensorProto.INT64
        past = [1, of.groups, "past_sequence_length", of.head]
        inputs = [
            make_tensor_value_info("input_ids", ints, [1, "sequence_length"]),
            make_tensor_value_info("attention_mask", ints, [1, "total_sequence_length"]),
        ]
        kept = [f"{n}.{word}" for n in range(of.layers) for word in ("key", "value")]
        inputs += [make_tensor_value_info(f"past_key_values.{name}", TensorProto.FLOAT, past) for name in kept]
        logits = [1, "sequence_length" if of.every_row else 1, of.vocabulary]
        outputs = [make_tensor_value_info("logits", TensorProto.FLOAT, logits)]
        grown = [1, of.groups, "total_sequence_length", of.head]
        outputs += [make_tensor_value_info(f"present.{name}", TensorProto.FLOAT, grown) for name in kept]
        self._lengths()
        self._caches()
        table = self._weight("embedding", (of.vocabulary, of.hidden))
        x = self._node("Gather", [table, "input_ids"])
        residual = x
        normed = self._node("SimplifiedLayerNormalization", [x, self._ones("norm")], axis=-1, epsilon=_EPSILON)
        for n in range(of.layers):
            after = self._attention(n, normed)
            normed, residual = self._skip(after, residual, f"norm.{n}.attention")
            after = self._mlp(n, normed)
            normed, residual = self._skip(after, residual, f"norm.{n}.mlp")
        if not of.every_row:
            normed = self._node("Gather", [normed, self._constant("last", np.array([-1]))], axis=1)
        self._product("lm_head", normed, of.hidden, of.vocabulary, "logits")
        graph = make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        domains = [make_opsetid("", 20), make_opsetid("com.microsoft", 1)]
        return make_model(graph, opset_imports=domains, ir_version=9)

    def _lengths(self) -> None:
        mask = "attention_mask"
        total = self._node("ReduceSum", [mask, self._constant("one", np.array([1]))], keepdims=0)
        less = self._node("Sub", [total, self._constant("unit", np.array([1]))])
        self._node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
        whole = self._node("Gather", [self._node("Shape", [mask]), self._constant("second", np.array(1))], axis=0)
        self._node("Cast", [whole], "total_seqlen", to=TensorProto.INT32)

    def _caches(self) -> None:
        half = self.of.head // 2
        angles = np.arange(self.of.positions)[:, None] * 1e6 ** -(np.arange(half) / half)
        self._constant("cos", np.cos(angles).astype(np.float32))
        self._constant("sin", np.sin(angles).astype(np.float32))

    def _attention(self, n: int, x: str) -> str:
        of = self.of
        width = (of.heads + 2 * of.groups) * of.head
        qkv = self._product(f"qkv.{n}", x, of.hidden, width)
        bias = self._weight(f"qkv.{n}.bias", (width,))
        qkv = self._node("Add", [qkv, bias])
        past = [f"past_key_values.{n}.key", f"past_key_values.{n}.value"]
        self.nodes.append(
            make_node(
                "GroupQueryAttention", [qkv, "", "", *past, "seqlens_k", "total_seqlen", "cos", "sin"],
                [f"attended.{n}", f"present.{n}.key", f"present.{n}.value"], domain="com.microsoft",
                num_heads=of.heads, kv_num_heads=of.groups, do_rotary=1,
            )
        )  # fmt: skip
        return self._product(f"o.{n}", f"attended.{n}", of.heads * of.head, of.hidden)

    def _mlp(self, n: int, x: str) -> str:
        of = self.of
        gate = self._product(f"gate.{n}", x, of.hidden, of.intermediate)
        up = self._product(f"up.{n}", x, of.hidden, of.intermediate)
        silu = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        return self._product(f"down.{n}", self._node("Mul", [silu, up]), of.intermediate, of.hidden)

    def _skip(self, x: str, residual: str, name: str) -> tuple[str, str]:
        outputs = [f"{name}.normed", "", "", f"{name}.sum"]
        inputs = [residual, x, self._ones(name)]
        self.nodes.append(
            make_node("SkipSimplifiedLayerNormalization", inputs, outputs, domain="com.microsoft", epsilon=_EPSILON)
        )
        return outputs[0], outputs[3]

    def _product(self, name: str, x: str, terms: int, columns: int, result: str = "") -> str:
        if self.of.bits == 32:
            return self._node("MatMul", [x, self._weight(name, (terms, columns))], result)
        blocks, packed = terms // _BLOCK, _BLOCK * self.of.bits // 8
        numbers = self.random.integers(0, 256, (columns, blocks, packed), np.uint8)
        scales = self.random.uniform(0.5, 1.5, (columns, blocks)) * 0.06 / (1 << self.of.bits)
        operands = [x, self._constant(name, numbers), self._constant(f"{name}.scales", scales.astype(np.float32))]
        return self._node(
            "MatMulNBits", operands, result, domain="com.microsoft", K=terms, N=columns, bits=self.of.bits,
            block_size=_BLOCK, accuracy_level=4,
        )  # fmt: skip

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        return self._constant(name, self.random.standard_normal(shape, np.float32) * np.float32(0.02))

    def _ones(self, name: str) -> str:
        return self._constant(f"{name}.scale", np.ones(self.of.hidden, np.float32))

    def _constant(self, name: str, array: Array) -> str:
        self.weights.append(from_array(array, name))
        return name

    def _node(self, kind: str, inputs: Sequence[str], result: str = "", **attributes: Any) -> str:
        result = result or f"{kind}.{len(self.nodes)}"
        self.nodes.append(make_node(kind, list(inputs), [result], **attributes))
        return result


__all__ = ["Decoder"]
