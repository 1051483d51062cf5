"""From a decoder in a GGUF file to an ONNX model, with its quantised weights as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor, make_tensor_value_info
from onnx.numpy_helper import from_array

from treadle.errors import TreadleError
from treadle.frontends.gguf.reader import Array, GgufFile, Packed
from treadle.support.progress import Progress, no_progress
from treadle.support.publishing import publish

MODEL, DATA = "model.onnx", "model.data"


@dataclass(frozen=True)
class _Family:
    """What differs between decoders of one form.

    interleaved:  whether rotary embedding turns neighbours (the file's rows are in that order), or halves
    biases:       whether queries, keys and values have biases
    normed_heads: whether each head of queries and keys is normalised
    """

    interleaved: bool = False
    biases: bool = False
    normed_heads: bool = False


FAMILIES = {
    "llama": _Family(interleaved=True),
    "qwen2": _Family(biases=True),
    "qwen3": _Family(normed_heads=True),
}
"""By `general.architecture`."""


def write_decoder(path: Path, folder: Path, progress: Progress = no_progress) -> Path:
    """Writes the decoder of a GGUF file into a folder, as `model.onnx` and `model.data`; the path of the former. An
    earlier result is replaced.

    The model takes `input_ids` and `attention_mask` and, as `past_key_values.N.key`, keys and values; it gives `logits`
    of the last token and `present.N.key`. Products with weights of Q4_0 and Q8_0 are MatMulNBits of the same numbers,
    attention is GroupQueryAttention of com.microsoft; what is of other types becomes float32.

    TreadleError: as `GgufFile` and `publish`, another architecture, and what is not supported of one.
    """

    def write(made: Path) -> None:
        model = _Writer.of(GgufFile(path)).model(progress)
        progress("writing the model", 0.9)
        onnx.save_model(model, str(made / MODEL), save_as_external_data=True, location=DATA, size_threshold=1024)

    publish(folder, write, replace=lambda old: {each.name for each in old.iterdir()} <= {MODEL, DATA})
    return folder / MODEL


@dataclass
class _Writer:
    """The nodes and the weights so far."""

    file: GgufFile
    kind: str
    family: _Family
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    weights: dict[str, TensorProto] = field(default_factory=dict[str, TensorProto])

    @staticmethod
    def of(file: GgufFile) -> _Writer:
        """TreadleError for what is no decoder of a known family."""
        kind = str(file.property("general.architecture"))
        if kind not in FAMILIES:
            raise TreadleError(f"the architecture '{kind}' is not supported", file.path, ", ".join(FAMILIES))
        scaling = str(file.property(f"{kind}.rope.scaling.type", "none"))
        if scaling != "none":
            message = f"rotary embedding is scaled by '{scaling}'"
            raise TreadleError(message, file.path, "a model without, or with a tensor rope_freqs.weight")
        if int(file.property(f"{kind}.attention.sliding_window", 0)):
            raise TreadleError("attention sees a window of keys alone", file.path, "a model without a sliding window")
        return _Writer(file, kind, FAMILIES[kind])

    # Sizes

    def _number(self, key: str, default: int | None = None) -> int:
        found = int(self.file.property(f"{self.kind}.{key}", default))
        if found < 1:
            raise TreadleError(f"'{self.kind}.{key}' is {found}", self.file.path, "1 upwards")
        return found

    @property
    def hidden(self) -> int:
        return self._number("embedding_length")

    @property
    def heads(self) -> int:
        return self._number("attention.head_count")

    @property
    def groups(self) -> int:
        return self._number("attention.head_count_kv", self.heads)

    @property
    def head(self) -> int:
        return self._number("attention.key_length", self.hidden // self.heads)

    @property
    def epsilon(self) -> float:
        return float(self.file.property(f"{self.kind}.attention.layer_norm_rms_epsilon"))

    # The model

    def model(self, progress: Progress) -> ModelProto:
        """The model, with its weights."""
        layers, ints = self._number("block_count"), TensorProto.INT64
        vocabulary = self.file.rows("token_embd.weight")
        table = self._matrix("token_embd.weight", vocabulary, self.hidden)
        kept = [f"{n}.{word}" for n in range(layers) for word in ("key", "value")]
        past = [1, self.groups, "past_sequence_length", self.head]
        grown = [1, self.groups, "total_sequence_length", self.head]
        inputs = [
            make_tensor_value_info("input_ids", ints, [1, "sequence_length"]),
            make_tensor_value_info("attention_mask", ints, [1, "total_sequence_length"]),
            *(make_tensor_value_info(f"past_key_values.{name}", TensorProto.FLOAT, past) for name in kept),
        ]
        outputs = [
            make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, vocabulary]),
            *(make_tensor_value_info(f"present.{name}", TensorProto.FLOAT, grown) for name in kept),
        ]
        self._lengths()
        self._turns()
        x = self._embedded(table)
        for n in range(layers):
            progress(f"layer {n + 1} of {layers}", 0.8 * n / layers)
            x = self._node("Add", [x, self._attended(n, self._normed(x, f"blk.{n}.attn_norm.weight"))])
            x = self._node("Add", [x, self._fed_forward(n, self._normed(x, f"blk.{n}.ffn_norm.weight"))])
        last = self._node("Gather", [x, self._constant("last", np.array([-1]))], axis=1)
        normed = self._normed(last, "output_norm.weight")
        tied = "output.weight" not in self.file.names()
        head = table if tied else self._matrix("output.weight", vocabulary, self.hidden)
        self._product("output.weight", normed, head, "logits")
        if unread := self.file.unread():
            message = f"the file has tensors that a decoder of '{self.kind}' has no place for, such as '{unread[0]}'"
            raise TreadleError(message, self.file.path, "dense layers, in the form of that architecture")
        graph = make_graph(
            self.nodes, f"{self.kind} of {self.file.path.stem}", inputs, outputs, [*self.weights.values()]
        )
        domains = [make_opsetid("", 21), make_opsetid("com.microsoft", 1)]
        return make_model(graph, opset_imports=domains, ir_version=10)

    def _lengths(self) -> None:
        mask = "attention_mask"
        total = self._node("ReduceSum", [mask, self._constant("axis", np.array([1]))], keepdims=0)
        less = self._node("Sub", [total, self._constant("one", np.array([1]))])
        self._node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
        whole = self._node("Gather", [self._node("Shape", [mask]), self._constant("second", np.array(1))], axis=0)
        self._node("Cast", [whole], "total_seqlen", to=TensorProto.INT32)

    def _turns(self) -> None:
        """The tables of rotary embedding, of as many positions as the model was trained for."""
        turned = self._number("rope.dimension_count", self.head)
        base = float(self.file.property(f"{self.kind}.rope.freq_base", 10000.0))
        frequencies = base ** -(np.arange(0, turned, 2) / turned)
        if "rope_freqs.weight" in self.file.names():
            factors = self.file.tensor("rope_freqs.weight", (turned // 2,))
            assert not isinstance(factors, Packed)
            frequencies = frequencies / factors
        angles = np.arange(self._number("context_length"))[:, None] * frequencies
        self._constant("cos", np.cos(angles).astype(np.float32))
        self._constant("sin", np.sin(angles).astype(np.float32))

    def _embedded(self, table: Array | Packed) -> str:
        """Rows of the table, of which only those that are read are made floats."""
        if isinstance(table, Packed) and table.bits == 4:
            # With a sign: the type has no numbers but those.
            packed = (table.numbers ^ np.uint8(0x88)).reshape(len(table.numbers), -1)
            shape = [len(packed), 2 * packed.shape[1]]
            self.weights["embedding"] = make_tensor("embedding", TensorProto.INT4, shape, packed.tobytes(), raw=True)
            operands = ["embedding", "input_ids", self._constant("embedding.scales", table.scales)]
            return self._node(
                "GatherBlockQuantized", operands, domain="com.microsoft", block_size=32, gather_axis=0, quantize_axis=1
            )
        if isinstance(table, Packed):
            numbers = self._node("Gather", [self._constant("embedding", table.numbers), "input_ids"])
            signed = self._node(
                "Sub", [self._node("Cast", [numbers], to=TensorProto.FLOAT), self._constant("middle", np.float32(128))]
            )
            scales = self._constant("embedding.scales", table.scales[..., None])
            rows = self._node("Mul", [signed, self._node("Gather", [scales, "input_ids"])])
            return self._node("Reshape", [rows, self._constant("columns", np.array([0, 0, -1]))])
        return self._node("Gather", [self._constant("embedding", table), "input_ids"])

    def _normed(self, x: str, name: str, size: int | None = None) -> str:
        operands = [x, self._constant(name, self._vector(name, self.hidden if size is None else size))]
        return self._node("SimplifiedLayerNormalization", operands, axis=-1, epsilon=self.epsilon)

    def _attended(self, n: int, x: str) -> str:
        widths = {"q": self.heads * self.head, "k": self.groups * self.head, "v": self.groups * self.head}
        matrices = {each: self._matrix(f"blk.{n}.attn_{each}.weight", w, self.hidden) for each, w in widths.items()}
        biases = {each: self._bias(f"blk.{n}.attn_{each}.bias", w) for each, w in widths.items()}
        operands = self._queries_keys_values(n, x, matrices, biases)
        past = [f"past_key_values.{n}.key", f"past_key_values.{n}.value"]
        attended = self._node(
            "GroupQueryAttention", [*operands, *past, "seqlens_k", "total_seqlen", "cos", "sin"], f"attended.{n}",
            [f"present.{n}.key", f"present.{n}.value"], domain="com.microsoft", num_heads=self.heads,
            kv_num_heads=self.groups, do_rotary=1, rotary_interleaved=int(self.family.interleaved),
        )  # fmt: skip
        name = f"blk.{n}.attn_output.weight"
        return self._product(name, attended, self._matrix(name, self.hidden, widths["q"]))

    def _queries_keys_values(
        self, n: int, x: str, matrices: dict[str, Array | Packed], biases: dict[str, Array | None]
    ) -> list[str]:
        """The first three operands of attention. Matrices of one form are one product."""
        forms = {each.bits if isinstance(each, Packed) else None for each in matrices.values()}
        if len(forms) == 1 and not self.family.normed_heads:
            name, added = f"blk.{n}.attn_qkv", [each for each in biases.values() if each is not None]
            product = self._product(name, x, _joined(list(matrices.values())))
            if len(added) == len(matrices):
                product = self._node("Add", [product, self._constant(f"{name}.bias", np.concatenate(added))])
            if len(added) in (0, len(matrices)):
                return [product, "", ""]
        found: list[str] = []
        for each, matrix in matrices.items():
            name = f"blk.{n}.attn_{each}"
            product, bias = self._product(f"{name}.weight", x, matrix), biases[each]
            if bias is not None:
                product = self._node("Add", [product, self._constant(f"{name}.bias", bias)])
            if self.family.normed_heads and each != "v":
                product = self._normed_heads(product, f"{name}_norm.weight")
            found.append(product)
        return found

    def _normed_heads(self, x: str, name: str) -> str:
        apart = self._node("Reshape", [x, self._constant("heads", np.array([0, 0, -1, self.head]))])
        normed = self._normed(apart, name, self.head)
        return self._node("Reshape", [normed, self._constant("columns", np.array([0, 0, -1]))])

    def _fed_forward(self, n: int, x: str) -> str:
        inner = self._number("feed_forward_length")

        def product(which: str, operand: str, columns: int, terms: int) -> str:
            name = f"blk.{n}.ffn_{which}.weight"
            return self._product(name, operand, self._matrix(name, columns, terms))

        gate, up = (product(which, x, inner, self.hidden) for which in ("gate", "up"))
        silu = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        return product("down", self._node("Mul", [silu, up]), self.hidden, inner)

    # Weights and nodes

    def _matrix(self, name: str, columns: int, terms: int) -> Array | Packed:
        return self.file.tensor(name, (columns, terms))

    def _vector(self, name: str, size: int) -> Array:
        found = self.file.tensor(name, (size,))
        assert not isinstance(found, Packed)
        return found

    def _bias(self, name: str, size: int) -> Array | None:
        return self._vector(name, size) if name in self.file.names() or self.family.biases else None

    def _product(self, name: str, x: str, matrix: Array | Packed, result: str = "") -> str:
        """`x` times the transpose of a matrix `[N, K]`."""
        if not isinstance(matrix, Packed):
            return self._node("MatMul", [x, self._constant(name, np.ascontiguousarray(matrix.T))], result)
        columns, blocks, _ = matrix.numbers.shape
        operands = [
            x,
            self._constant(name, matrix.numbers),
            self._constant(f"{name}.scales", matrix.scales.reshape(-1)),
        ]
        return self._node(
            "MatMulNBits", operands, result, domain="com.microsoft", K=32 * blocks, N=columns, bits=matrix.bits,
            block_size=32,
        )  # fmt: skip

    def _constant(self, name: str, array: Array | np.float32) -> str:
        self.weights[name] = from_array(np.array(array, order="C"), name)
        return name

    def _node(
        self, kind: str, inputs: Sequence[str], result: str = "", others: Sequence[str] = (), **attributes: Any
    ) -> str:
        result = result or f"{kind}.{len(self.nodes)}"
        self.nodes.append(make_node(kind, list(inputs), [result, *others], name=result, **attributes))
        return result


def _joined(matrices: Sequence[Array | Packed]) -> Array | Packed:
    first, *others = matrices
    if isinstance(first, Packed):
        return first.joined([each for each in others if isinstance(each, Packed)])
    return np.concatenate([each for each in matrices if not isinstance(each, Packed)])


__all__ = ["FAMILIES", "write_decoder"]
