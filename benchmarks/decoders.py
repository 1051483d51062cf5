"""Decoders of today, from configurations of transformers with random weights, generate the text that PyTorch does.

    python -m benchmarks.decoders llama qwen3 gemma3
    python -m benchmarks.decoders --hidden 1024 --steps 64

The Python that runs it needs torch, onnxscript and transformers, too. Each model is exported by `torch.onnx.export`
with its past as inputs and outputs, compiled for a range of new and of past tokens with its past as states, and fed a
prompt and then the tokens of PyTorch's greedy text, one by one: the table has the largest difference of the logits from
those of the model in eager mode, relative to the largest logit, the number of equal tokens, and the CPU seconds of
compiling. An encoder and its decoder are a model each; the decoder takes the keys and values that the encoder makes for
it. Beside these are the error and the equal tokens of the model without a past for texts of one length, by
`treadle.compile(module)`. The raw numbers go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers  # pyright: ignore[reportMissingImports]
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.encoder_decoders import KINDS, EncoderDecoder
from benchmarks.machine import describe_run, versions_of
from benchmarks.measure import cpu_seconds, relative_error
from benchmarks.result_files import RESULTS, write_results

_CONFIGURATIONS = {
    "llama": ("LlamaConfig", {}), "qwen2": ("Qwen2Config", {}), "qwen3": ("Qwen3Config", {"head_dim": 64}),
    "gemma2": ("Gemma2Config", {"head_dim": 64, "sliding_window": 16, "attn_implementation": "eager"}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 64, "sliding_window": 16}), "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "mistral": ("MistralConfig", {"sliding_window": 16}), "gpt2": ("GPT2Config", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {
        "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}),
    "gpt_oss": ("GptOssConfig", {
        "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    "olmo2": ("Olmo2Config", {"pad_token_id": 0}), "gpt_neox": ("GPTNeoXConfig", {}),
    "starcoder2": ("Starcoder2Config", {}), "granite": ("GraniteConfig", {}),
}  # fmt: skip
_SHAPES = {
    "sequence_length": treadle.Dim("sequence_length", 1, 16),
    "past_sequence_length": treadle.Dim("past_sequence_length", 0, 128),
    "total_sequence_length": "past_sequence_length + sequence_length",
}
PROMPT = [5, 17, 200, 3, 9, 44, 7, 8, 1, 2, 3]


@dataclass(frozen=True)
class Row:
    """What became of a model; `problem` says what failed, if anything did.

    error, equal, in_place: of the model with its past as states, which `torch.onnx` exports
    whole_error, whole_equal: of the one of whole texts, by `torch.export`
    """

    model: str
    error: float = float("nan")
    equal: int = 0
    in_place: int = 0
    whole_error: float = float("nan")
    whole_equal: int = 0
    compiled: float = float("nan")
    problem: str = ""


class Whole(torch.nn.Module):
    """The logits of a whole text, of an encoder's source, if the model has one."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, text: torch.Tensor, *source: torch.Tensor) -> Any:
        """`[1, tokens, vocabulary]`."""
        given = {"decoder_input_ids": text, self.model.main_input_name: source[0]} if source else {"input_ids": text}
        return self.model(**given, use_cache=False).logits


class WithPast(torch.nn.Module):
    """A decoder whose past are arguments and results."""

    def __init__(self, model: Any, layers: int):
        super().__init__()
        self._model, self._layers = model, layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *past: torch.Tensor) -> Any:
        pairs = [(past[2 * n], past[2 * n + 1]) for n in range(self._layers)]
        cache = transformers.cache_utils.DynamicCache(pairs)
        found = self._model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        kept = [each for layer in found.past_key_values.layers for each in (layer.keys, layer.values)]
        return (found.logits, *kept)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description="Decoders of transformers against PyTorch.")
    names = [*_CONFIGURATIONS, *KINDS]
    parser.add_argument("models", nargs="*", default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--hidden", type=positive, default=512)
    parser.add_argument("--layers", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=64)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    rows = [compared(name, args) for name in args.models]
    table = Table(title=f"Decoders of {args.layers} layers and a width of {args.hidden}, {args.steps} tokens")
    heads = ("model", "error of logits", "equal tokens", "states in place", "error by torch.export", "equal tokens",
             "compile, CPU s", "problem")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        past = f"{row.error:.1e}", str(row.equal), str(row.in_place)
        whole = f"{row.whole_error:.1e}", str(row.whole_equal)
        table.add_row(row.model, *past, *whole, f"{row.compiled:.1f}", row.problem)
    Console(width=150).print(table)
    settings = {**describe_run(), **versions_of(["torch", "transformers"]), "steps": args.steps}
    print(f"written to {write_results('decoders', settings, [asdict(row) for row in rows], args.output)}")


def compared(name: str, args: argparse.Namespace) -> Row:
    """One model; whatever is raised on the way becomes its problem."""
    row = Row(name)
    try:
        made = EncoderDecoder.of(name, args.hidden, args.layers) if name in KINDS else None
        model, source = (made.model, [made.source]) if made else (causal_model(name, args.hidden, args.layers), [])
        with torch.no_grad(), TemporaryDirectory() as folder:
            text, logits = _greedy(Whole(model), source, args.steps)
            row = _whole(row, Whole(model).eval(), source, logits, text)
            return _with_past(row, model, made, Path(folder) / "model.onnx", text, logits)
    except Exception as error:
        return replace(row, problem=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")


def _whole(row: Row, model: Whole, source: list[torch.Tensor], logits: Sequence[Any], text: list[int]) -> Row:
    """Greedy text of a program for texts of one length, whose rest is padding."""
    padded, error, equal = torch.zeros(1, len(text), dtype=torch.int64), 0.0, 0
    padded[0, : len(PROMPT)] = torch.tensor(PROMPT)
    with treadle.compile(model, example_inputs=(padded, *source), cached=False) as compiled:
        for n, wanted in enumerate(logits, len(PROMPT)):
            found = compiled(padded, *source)[0][0, n - 1]
            error = max(error, relative_error([found], [wanted]))
            equal += int(found.argmax() == text[n])
            padded[0, n] = int(found.argmax())
    return replace(row, whole_error=error, whole_equal=equal)


def _with_past(
    row: Row, model: Any, made: EncoderDecoder | None, path: Path, text: list[int], logits: Sequence[Any]
) -> Row:
    inputs = dict[str, Any]()
    if made:
        inputs = made.export(path)
    else:
        if model._can_set_experts_implementation():
            model.set_experts_implementation("batched_mm")  # the one that torch.onnx exports
        _export(WithPast(model, model.config.num_hidden_layers), model.config, path)
    start = cpu_seconds()
    with treadle.compile(path, shapes=_SHAPES, states="auto", cached=False) as compiled:
        seconds, chat, error = cpu_seconds() - start, treadle.Conversation(compiled, inputs), 0.0
        for n, wanted in enumerate(logits):
            error = max(error, relative_error([chat.read(text[: len(PROMPT) + n])], [wanted]))
        same = treadle.generate(compiled, PROMPT, most=len(logits), inputs=inputs)
        equal = sum(a == b for a, b in zip(same, text[len(PROMPT) :], strict=True))
        in_place = sum(state.in_place for state in compiled.manifest.states)
        return replace(row, error=error, equal=equal, in_place=in_place, compiled=seconds)


def causal_model(name: str, hidden: int, layers: int) -> Any:
    """A decoder with random weights, in eager mode; `layers` of a width of `hidden`, in heads of 64."""
    kind, more = _CONFIGURATIONS[name]
    sizes: dict[str, Any] = {
        "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64, "num_key_value_heads": max(1, hidden // 256),
        "vocab_size": 4096, "max_position_embeddings": 512,
    }  # fmt: skip
    if name == "gpt2":
        sizes = {"n_embd": hidden, "n_layer": layers, "n_head": hidden // 64, "vocab_size": 4096}
    if name == "gpt_neox":
        sizes.pop("num_key_value_heads")
    configuration = getattr(transformers, kind)(**{**sizes, **more})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(configuration).eval()


def _greedy(whole: Whole, source: list[torch.Tensor], steps: int) -> tuple[list[int], list[Any]]:
    """The text, and the logits behind each token from the prompt's last one on, each computed from the whole text."""
    text, logits = list(PROMPT), list[Any]()
    for _ in range(steps):
        row = whole(torch.tensor([text]), *source)[0, -1].numpy()
        logits.append(row)
        text.append(int(row.argmax()))
    return text, logits


def _export(model: WithPast, configuration: Any, path: Path) -> None:
    layers = configuration.num_hidden_layers
    heads = getattr(configuration, "num_key_value_heads", None) or configuration.num_attention_heads
    size = getattr(configuration, "head_dim", None) or configuration.hidden_size // configuration.num_attention_heads
    new, old = 5, 7
    past = [torch.randn(1, heads, old, size) for _ in range(2 * layers)]
    names = [f"{n}.{word}" for n in range(layers) for word in ("key", "value")]
    dynamic = {1: "sequence_length"}, {1: "total_sequence_length"}, tuple({2: "past_sequence_length"} for _ in past)
    arguments = (torch.zeros(1, new, dtype=torch.int64), torch.ones(1, new + old, dtype=torch.int64), *past)
    torch.onnx.export(
        model, arguments, str(path), dynamo=True, dynamic_shapes=dynamic, verbose=False,
        input_names=["input_ids", "attention_mask", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
