"""Decoders in GGUF files: logits beside the definition in float64 on the file's own weights, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime import InferenceSession

import treadle
from treadle.errors import TreadleError
from treadle.frontends.gguf import write_decoder
from treadle.tools.treadle_cli import main

Array = NDArray[Any]
TOKENS = [3, 17, 0, 40, 5, 6, 21]


@dataclass(frozen=True)
class Small:
    """A decoder of two layers, of one family and with one type of quantised matrices."""

    kind: str
    type: str
    tied: bool = False
    factors: bool = False
    hidden: int = 64
    heads: int = 4
    groups: int = 2
    head: int = 32
    inner: int = 96
    vocabulary: int = 48
    layers: int = 2

    def write(
        self,
        path: Path,
        change: Callable[[gguf.GGUFWriter], None] = lambda _: None,
        others: dict[str, Array | None] | None = None,
    ) -> dict[str, Array]:
        """The file; its weights as they are read again, in float64. Of `others`, tensors are written in place of the
        file's own, and None leaves one out."""
        writer, random = gguf.GGUFWriter(path, self.kind), np.random.default_rng(5)
        writer.add_block_count(self.layers)
        writer.add_context_length(64)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.groups)
        writer.add_key_length(self.head)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(500.0)
        change(writer)
        weights: dict[str, Array] = {}
        given = others or {}

        def add(name: str, *shape: int) -> None:
            if name in given:
                return
            array = random.standard_normal(shape).astype(np.float32) * np.float32(0.3)
            type = gguf.GGMLQuantizationType[self.type if len(shape) == 2 else "F32"]
            if len(shape) == 1:
                array = 1 + array
            data = gguf.quants.quantize(array, type)
            writer.add_tensor(name, data, raw_dtype=type)
            weights[name] = gguf.quants.dequantize(data, type).astype(np.float64)

        kept = self.groups * self.head
        add("token_embd.weight", self.vocabulary, self.hidden)
        add("output_norm.weight", self.hidden)
        if not self.tied:
            add("output.weight", self.vocabulary, self.hidden)
        if self.factors:
            add("rope_freqs.weight", self.head // 2)
        for n in range(self.layers):
            add(f"blk.{n}.attn_norm.weight", self.hidden)
            add(f"blk.{n}.ffn_norm.weight", self.hidden)
            for name, rows in (("q", self.heads * self.head), ("k", kept), ("v", kept)):
                add(f"blk.{n}.attn_{name}.weight", rows, self.hidden)
                if self.kind == "qwen2":
                    add(f"blk.{n}.attn_{name}.bias", rows)
                if self.kind == "qwen3" and name != "v":
                    add(f"blk.{n}.attn_{name}_norm.weight", self.head)
            add(f"blk.{n}.attn_output.weight", self.hidden, self.heads * self.head)
            add(f"blk.{n}.ffn_gate.weight", self.inner, self.hidden)
            add(f"blk.{n}.ffn_up.weight", self.inner, self.hidden)
            add(f"blk.{n}.ffn_down.weight", self.hidden, self.inner)
        for name, array in given.items():
            if array is not None:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return weights

    def logits(self, weights: dict[str, Array], tokens: list[int]) -> Array:
        """Of the last token, as llama.cpp defines these decoders."""
        x = weights["token_embd.weight"][tokens]
        for n in range(self.layers):
            part = {name.removeprefix(f"blk.{n}."): w for name, w in weights.items() if name.startswith(f"blk.{n}.")}
            x = x + self._attended(part, normed(x, part["attn_norm.weight"]), weights.get("rope_freqs.weight"))
            h = normed(x, part["ffn_norm.weight"])
            gate = h @ part["ffn_gate.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up.weight"].T)) @ part["ffn_down.weight"].T
        head = weights.get("output.weight", weights["token_embd.weight"])
        return normed(x[-1], weights["output_norm.weight"]) @ head.T

    def _attended(self, part: dict[str, Array], x: Array, factors: Array | None) -> Array:
        made: list[Array] = []
        for name, count in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            y = x @ part[f"attn_{name}.weight"].T + part.get(f"attn_{name}.bias", 0.0)
            y = y.reshape(len(x), count, self.head).transpose(1, 0, 2)
            if f"attn_{name}_norm.weight" in part:
                y = normed(y, part[f"attn_{name}_norm.weight"])
            made.append(y if name == "v" else self._turned(y, factors))
        q, k, v = made
        k, v = (np.repeat(each, self.heads // self.groups, axis=0) for each in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(self.head)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (shares / shares.sum(-1, keepdims=True)) @ v
        return attended.transpose(1, 0, 2).reshape(len(x), -1) @ part["attn_output.weight"].T

    def _turned(self, x: Array, factors: Array | None) -> Array:
        """Pairs of neighbours in files of llama, halves in others."""
        half = self.head // 2
        angles = (
            np.arange(x.shape[1])[:, None] * 500.0 ** (-np.arange(half) / half) / (1 if factors is None else factors)
        )
        pairs = (slice(0, None, 2), slice(1, None, 2)) if self.kind == "llama" else (slice(0, half), slice(half, None))
        a, b = (x[..., each] for each in pairs)
        turned = np.empty_like(x)
        turned[..., pairs[0]] = a * np.cos(angles) - b * np.sin(angles)
        turned[..., pairs[1]] = a * np.sin(angles) + b * np.cos(angles)
        return turned


def normed(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


CASES = [
    Small("llama", "Q4_0"), Small("llama", "F16", tied=True, factors=True), Small("qwen2", "Q8_0"),
    Small("qwen2", "Q4_0", tied=True), Small("qwen3", "Q4_0"), Small("qwen3", "BF16"), Small("llama", "Q5_1"),
]  # fmt: skip


def expected_logits(case: Small, path: Path) -> tuple[list[Array], float]:
    """Writes a file; the logits after each token from the fourth on, and how far float32 may be from them: sums of at
    most `inner` terms, four in a row in each layer."""
    weights = case.write(path)
    expected = [case.logits(weights, TOKENS[:end]) for end in range(4, len(TOKENS) + 1)]
    return expected, float(4 * case.layers * case.inner * np.finfo(np.float32).eps * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.type}")
def test_logits_are_those_of_the_files_weights(case: Small, tmp_path: Path) -> None:
    """ONNX Runtime on what is written."""
    expected, limit = expected_logits(case, tmp_path / "small.gguf")
    model = write_decoder(tmp_path / "small.gguf", tmp_path / "small")
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    empty = {
        each.name: np.zeros([1, case.groups, 0, case.head], np.float32)
        for each in session.get_inputs() if each.name.startswith("past")
    }  # fmt: skip
    ids = np.array([TOKENS], np.int64)
    (found, *_) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty})
    np.testing.assert_allclose(np.asarray(found)[0, 0], expected[-1], rtol=0, atol=limit)


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=lambda case: f"{case.kind} {case.type}")
def test_compiled_decoders(case: Small, tmp_path: Path) -> None:
    """A prompt, and then tokens one by one."""
    expected, limit = expected_logits(case, tmp_path / "small.gguf")
    model = write_decoder(tmp_path / "small.gguf", tmp_path / "small")
    n, past = treadle.Dim("sequence_length", 1, 8), treadle.Dim("past_sequence_length", 0, 16)
    shapes = {
        "sequence_length": n, "past_sequence_length": past,
        "total_sequence_length": "past_sequence_length + sequence_length",
    }  # fmt: skip
    with treadle.compile(model, shapes=shapes, states="auto", threads=1) as compiled:
        logits, read = list[Array](), 0
        for end in range(4, len(TOKENS) + 1):
            ids = np.array([TOKENS[read:end]], np.int64)
            logits.append(compiled(ids, np.ones((1, end), np.int64))[0][0, 0])
            read = end
    np.testing.assert_allclose(logits, expected, rtol=0, atol=limit)


def scaled(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)


def windowed(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(16)


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        ("gemma", {}, "the architecture 'gemma' is not supported; accepted: llama, qwen2, qwen3"),
        ("llama", {"blk.1.attn_k.weight": None}, "has no tensor 'blk.1.attn_k.weight'"),
        ("llama", {"token_embd.weight": None}, "has no tensor 'token_embd.weight'"),
        ("llama", {"blk.1.ffn_up.weight": np.zeros((96, 32), np.float32)}, r"the tensor has the shape \[96, 32\]"),
        ("llama", {"blk.0.ffn_gate_exps.weight": np.zeros((2, 4), np.float32)}, "such as 'blk.0.ffn_gate_exps.weight'"),
        ("qwen2", {"blk.0.attn_output.bias": np.zeros(64, np.float32)}, "such as 'blk.0.attn_output.bias'"),
    ],
)
def test_what_is_refused(kind: str, others: dict[str, Array | None], said: str, tmp_path: Path) -> None:
    Small(kind, "F32").write(tmp_path / "small.gguf", others=others)
    with pytest.raises(TreadleError, match=said):
        write_decoder(tmp_path / "small.gguf", tmp_path / "small")
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(
    ("change", "said"), [(scaled, "rotary embedding is scaled by 'yarn'"), (windowed, "a window of keys")]
)
def test_properties_that_are_refused(change: Callable[[gguf.GGUFWriter], None], said: str, tmp_path: Path) -> None:
    Small("llama", "F32").write(tmp_path / "small.gguf", change)
    with pytest.raises(TreadleError, match=said):
        write_decoder(tmp_path / "small.gguf", tmp_path / "small")


def test_cut_files_are_refused(tmp_path: Path) -> None:
    """Wherever a file ends, the error is one of Treadle's."""
    path = tmp_path / "small.gguf"
    Small("llama", "Q4_0", layers=1).write(path)
    data = path.read_bytes()
    for size in (0, 3, 4, 7, 20, 100, 700, 1500, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(TreadleError, match=r"damaged or truncated|does not begin with GGUF|has no "):
            write_decoder(path, tmp_path / "small")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = tmp_path / "small.gguf", tmp_path / "small"
    Small("llama", "Q4_0", layers=1).write(path)
    assert main(["gguf", str(path), "-o", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder / 'model.onnx'}: 0.")
    assert main(["gguf", str(path), "-o", str(folder)]) == 0, "an earlier result is replaced"
    (folder / "notes.txt").write_text("")
    assert main(["gguf", str(path), "-o", str(folder)]) == 2
    assert "the folder holds other files" in capsys.readouterr().err
    assert main(["gguf", str(tmp_path / "none.gguf"), "-o", str(tmp_path / "other")]) == 2
    assert "cannot read: No such file" in capsys.readouterr().err
    assert main(["run", str(path)]) == 2
    assert "what `treadle gguf` writes of it" in capsys.readouterr().err
