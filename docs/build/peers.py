"""The table of README.md that compares with other runtimes: numbers of benchmarks/results, losses among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
_SIDES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Row:
    """A comparison; speed: Treadle's divided by that of the fastest other one, above 1 where Treadle is faster."""

    what: str
    own: str
    peer: str
    speed: float


@dataclass(frozen=True)
class Group:
    """Rows of one file of results."""

    title: str
    file: str
    rows: Mapping[str, str]
    """What each row says, by the name that the file has for it."""
    read: Callable[[Mapping[str, Any], str, str], Row]


@cache
def _results(file: str) -> Mapping[str, Any]:
    return json.loads((RESULTS / file).read_text())


def _calls(results: Mapping[str, Any], name: str, what: str) -> Row:
    """A model's call: medians in milliseconds, and the median of the ratios of neighbouring rounds."""
    (found,) = (each for each in results["results"] if each["model"] == name)
    best: str = found["best_peer"]
    own, peer = (median(found["ms"][side]) for side in ("treadle", best))
    return Row(what, f"{own:.1f} ms", f"{peer:.1f} ms, {_SIDES[best]}", found["ratio_quartiles"][1])


def _quantised(results: Mapping[str, Any], name: str, what: str) -> Row:
    (found,) = (each for each in results["results"] if each["model"] == name)
    own, peer = (median(found["ms"][side]) for side in ("treadle", "onnxruntime"))
    return Row(what, f"{own:.1f} ms", f"{peer:.1f} ms, ONNX Runtime", peer / own)


def _tokens(results: Mapping[str, Any], name: str, what: str) -> Row:
    """A kind of weights, and `prompt` or `steps`: tokens a second with two threads."""
    kind, part = name.split()
    found = {e["side"]: median(e[part]) for e in results["results"] if (e["kind"], e["threads"]) == (kind, 2)}
    own = found.pop("Treadle")
    best = max(found, key=lambda side: found[side])
    return Row(what, f"{own:.0f} tokens/s", f"{found[best]:.0f} tokens/s, {best}", own / found[best])


def _gpu_models(results: Mapping[str, Any], name: str, what: str) -> Row:
    found = results["models"][name]
    peer = f"{found['torch_compile_us']:.0f} µs, torch.compile"
    return Row(what, f"{found['us']:.0f} µs", peer, found["of_torch_compile"])


def _gpu_kernels(results: Mapping[str, Any], name: str, what: str) -> Row:
    found = results["cases"][name]
    return Row(what, f"{found['us']:.1f} µs", f"{found['torch_us']:.1f} µs, PyTorch", found["of_torch"])


GROUPS = (
    Group(
        "float32, batch 1, two cores of a Xeon with AVX-512",
        "cpu_peers-2026-11-25.json",
        {
            "resnet50": "ResNet-50",
            "mobilenet_v2": "MobileNet v2",
            "bert_base": "BERT-base, 128 tokens",
            "gpt2": "GPT-2, 128 tokens",
        },
        _calls,
    ),
    Group(
        "the same, files that packages ship",
        "cpu_models-2026-11-25.json",
        {"ppocrv4_rec": "PP-OCRv4 recogniser", "minilm": "MiniLM", "light_resnet50": "ResNet-50 of the package onnx"},
        _calls,
    ),
    Group(
        "bfloat16, two cores of a Zen 4",
        "cpu_peers_bf16-2026-11-25-epyc-zen4.json",
        {"resnet50": "ResNet-50", "mobilenet_v2": "MobileNet v2", "bert_base": "BERT-base"},
        _calls,
    ),
    Group(
        "quantised to bytes, two cores of a Zen 4",
        "quantized-2026-11-26-epyc-zen4.json",
        {"minilm": "MiniLM", "resnet50": "ResNet-50"},
        _quantised,
    ),
    Group(
        "a model in the shape of Qwen2 0.5B, two cores of a Xeon with AMX",
        "language-2026-11-28-tiles-2.json",
        {
            "int4-bf16 prompt": "4 bits, computed in bfloat16: a prompt of 512 tokens",
            "int4-bf16 steps": "the same: each further token",
            "bf16 prompt": "bfloat16: a prompt",
            "bf16 steps": "the same: each further token",
        },
        _tokens,
    ),
    Group(
        "the same, weights of few bits computed in float32",
        "language-2026-11-28-openvino.json",
        {"int8 prompt": "8 bits: a prompt", "int8 steps": "the same: each further token"},
        _tokens,
    ),
    Group(
        "float16, batch 1, one graph a call on an NVIDIA H200",
        "gpu-models-h200-2026-11-27.json",
        {"bert_base": "BERT-base", "resnet50": "ResNet-50", "gpt2": "GPT-2"},
        _gpu_models,
    ),
    Group(
        "single kernels of float16 there, beside cuBLAS, cuDNN and PyTorch's own",
        "gpu-kernels-h200-2026-11-27.json",
        {
            "mm4096": "product of 4096 x 4096 x 4096",
            "conv56_b1": "3x3 convolution of 56 x 56",
            "attn128": "attention, heads of 128",
            "attn_decode": "attention of one query",
        },
        _gpu_kernels,
    ),
)


def peers_table() -> str:
    """The rows of all groups, each group under a line that names its file."""
    lines = ["| | Treadle | the fastest other | speed |", "|---|--:|--:|--:|"]
    for group in GROUPS:
        lines.append(f"| **{group.title}** (`{group.file}`) | | | |")
        rows = (group.read(_results(group.file), name, what) for name, what in group.rows.items())
        lines += [f"| {row.what} | {row.own} | {row.peer} | {_speed(row.speed)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _speed(ratio: float) -> str:
    return f"{ratio:.2f}"
