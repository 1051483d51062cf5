"""Families of torchvision and transformers in small configurations, compiled by `treadle.compile(module)`.

    python -m benchmarks.torch_models

needs torch, torchvision and transformers. Weights are random. Of each model: the seconds that exporting and compiling
take, and the largest difference of its result from PyTorch in float64, as a part of the result's largest magnitude,
beside that of PyTorch itself in float32. What is refused is named. The rows go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle.errors import TreadleError

PIXELS, TOKENS, VOCABULARY = 64, 12, 99
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_GROUPED = {"num_key_value_heads": 2, "max_position_embeddings": 64}

VISION: Sequence[str] = (
    "resnet18", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1",
    "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5", "densenet121", "convnext_tiny", "swin_t",
)  # fmt: skip
"""Classifiers of torchvision, by the names of their builders."""
TEXT: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "BERT": ("BertConfig", "BertModel", _TINY),
    "RoBERTa": ("RobertaConfig", "RobertaModel", _TINY),
    "DistilBERT": ("DistilBertConfig", "DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "ALBERT": ("AlbertConfig", "AlbertModel", {**_TINY, "embedding_size": 16}),
    "ELECTRA": ("ElectraConfig", "ElectraModel", {**_TINY, "embedding_size": 16}),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_TINY, "max_position_embeddings": 64}),
    "OPT": ("OPTConfig", "OPTForCausalLM", {**_TINY, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "Llama": ("LlamaConfig", "LlamaForCausalLM", {**_TINY, **_GROUPED}),
    "Mistral": ("MistralConfig", "MistralForCausalLM", {**_TINY, **_GROUPED}),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**_TINY, **_GROUPED}),
    "T5 (encoder)": ("T5Config", "T5EncoderModel", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}),
}
"""By name, the configuration and the model of transformers, and what is smaller than by default."""


@dataclass(frozen=True)
class Result:
    """What became of a model; `refusal` is empty if it was compiled."""

    name: str
    seconds: float = 0.0
    difference: float = 0.0
    eager: float = 0.0
    refusal: str = ""

    def row(self) -> dict[str, object]:
        """For JSON."""
        return {
            "model": self.name, "seconds": round(self.seconds, 1), "difference": self.difference,
            "eager": self.eager, "refusal": self.refusal,
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles, prints and writes; 1 if a model is refused."""
    parser = argparse.ArgumentParser(description="Compile families of torchvision and transformers.")
    parser.add_argument("--models", nargs="+", choices=(*VISION, *TEXT), default=(*VISION, *TEXT), metavar="NAME")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    args = parser.parse_args(argv)
    circumstances, results = describe_run(), list[Result]()
    for name in args.models:
        results.append(_result(name))
        print(results[-1], flush=True)
    Console().print(table(results))
    path = write_results("torch_models", circumstances, [each.row() for each in results], args.output)
    print(f"written to {path}")
    return 1 if any(each.refusal for each in results) else 0


def table(results: Sequence[Result]) -> Table:
    """One line a model."""
    found = Table(title="compiled models, and PyTorch in float32, beside PyTorch in float64")
    for title in ("model", "seconds", "difference", "PyTorch's", "refused"):
        found.add_column(title, justify="left" if title in ("model", "refused") else "right")
    for each in results:
        numbers = (
            ("", "", "") if each.refusal else (f"{each.seconds:.1f}", f"{each.difference:.1e}", f"{each.eager:.1e}")
        )
        found.add_row(each.name, *numbers, each.refusal)
    return found


def _result(name: str) -> Result:
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    module, example = (_classifier if name in VISION else _language_model)(torch, name)
    with torch.no_grad():
        eager = module(example).numpy()
        wide = deepcopy(module).double()
        exact = wide(example.double() if example.is_floating_point() else example).numpy()
    start = time.perf_counter()
    try:
        with treadle.compile(module, example_inputs=(example,), cached=False) as model:
            seconds = time.perf_counter() - start
            (found,) = model(example)
    except TreadleError as error:
        return Result(name, refusal=str(error))
    largest = float(np.abs(exact).max())
    difference, own = (float(np.abs(each - exact).max()) / largest for each in (found, eager))
    return Result(name, seconds, difference, own)


def _classifier(torch: Any, name: str) -> tuple[Any, Any]:
    """A model of torchvision with the statistics of a random batch, as if it had been trained."""
    module = importlib.import_module("torchvision.models").get_model(name, weights=None)
    with torch.no_grad():
        module.train()(torch.randn(4, 3, PIXELS, PIXELS))
    return _Alone.of(torch, module.eval()), torch.randn(1, 3, PIXELS, PIXELS)


def _language_model(torch: Any, name: str) -> tuple[Any, Any]:
    transformers: Any = importlib.import_module("transformers")
    config, model, sizes = TEXT[name]
    given = getattr(transformers, config)(vocab_size=VOCABULARY, **sizes)
    module = getattr(transformers, model)(given).eval()
    options = {} if "T5" in name or "BERT" in name or name == "ELECTRA" else {"use_cache": False}
    return _Alone.of(torch, module, **options), torch.randint(3, VOCABULARY - 1, (2, TOKENS))


class _Alone:
    """Modules that return their first result alone."""

    @staticmethod
    def of(torch: Any, module: Any, **options: object) -> Any:
        """The module, called with these options."""

        def forward(self: Any, x: Any) -> Any:
            result = self.module(x, **options)
            return result if isinstance(result, torch.Tensor) else result[0]

        made: Callable[[], Any] = type("First", (torch.nn.Module,), {"forward": forward})
        first = made()
        first.module = module
        return first.eval()


if __name__ == "__main__":
    raise SystemExit(main())
