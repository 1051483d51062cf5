"""T5 and Whisper for `benchmarks.decoders`: an encoder that gives the keys and values that a decoder attends to in each
step, and the decoder with its own past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers  # pyright: ignore[reportMissingImports]

import treadle

KINDS = ("t5", "whisper")
_WORDS, _FRAMES, _CHANNELS = 24, 100, 80


class _Encoder(torch.nn.Module):
    """Keys and values of each layer of the decoder, of what the encoder makes of a text or of sound."""

    def __init__(self, model: Any):
        super().__init__()
        self._encoder = model.get_encoder()
        decoder: Any = model.get_decoder()
        if isinstance(model, transformers.T5ForConditionalGeneration):
            layers = [block.layer[1].EncDecAttention for block in decoder.block]
            pairs = [(each.k, each.v) for each in layers]
        else:
            pairs = [(each.encoder_attn.k_proj, each.encoder_attn.v_proj) for each in decoder.layers]
        self._pairs = torch.nn.ModuleList([torch.nn.ModuleList(pair) for pair in pairs])
        self._heads = model.config.num_attention_heads

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self._encoder(x)[0]
        flat = [linear(hidden) for pair in self._pairs for linear in pair]  # pyright: ignore
        return tuple(each.view(*each.shape[:2], self._heads, -1).transpose(1, 2) for each in flat)


class _Decoder(torch.nn.Module):
    """The decoder, whose past are arguments and results, and what it attends to of the encoder arguments."""

    def __init__(self, model: Any, layers: int, frames: int):
        super().__init__()
        self._model, self._layers, self._frames = model, layers, frames

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *kept: torch.Tensor) -> Any:
        n, kinds = 2 * self._layers, transformers.cache_utils
        pairs = [(kept[k], kept[k + 1]) for k in range(0, 2 * n, 2)]
        past, other = (kinds.DynamicCache(each) for each in (pairs[: self._layers], pairs[self._layers :]))
        hidden = torch.zeros(1, self._frames, self._model.config.d_model)  # nothing reads it but for its shape
        found = self._model(
            encoder_outputs=(hidden,), decoder_input_ids=input_ids, decoder_attention_mask=attention_mask,
            past_key_values=kinds.EncoderDecoderCache(past, other), use_cache=True,
        )  # fmt: skip
        layers = found.past_key_values.self_attention_cache.layers
        return (found.logits, *(each for layer in layers for each in (layer.keys, layer.values)))


@dataclass(frozen=True)
class EncoderDecoder:
    """A model with random weights in eager mode, and what it is about: numbers of tokens, or sound.

    layers: those of the encoder, and of the decoder
    """

    model: Any
    source: torch.Tensor
    layers: int

    @classmethod
    def of(cls, name: str, hidden: int, layers: int) -> EncoderDecoder:
        """`layers` of a width of `hidden`, in heads of 64."""
        heads = hidden // 64
        torch.manual_seed(0)
        if name == "t5":
            configuration = transformers.T5Config(
                d_model=hidden, d_ff=2 * hidden, num_layers=layers, num_heads=heads, vocab_size=4096
            )
            model = transformers.T5ForConditionalGeneration(configuration)
            return cls(model.eval(), torch.randint(2, 4095, (1, _WORDS)), layers)
        configuration = transformers.WhisperConfig(
            d_model=hidden, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=2 * hidden, decoder_ffn_dim=2 * hidden, vocab_size=4096,
            max_source_positions=_FRAMES, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
        model = transformers.WhisperForConditionalGeneration(configuration)
        return cls(model.eval(), torch.randn(1, _CHANNELS, 2 * _FRAMES), layers)

    def export(self, path: Path) -> Mapping[str, Any]:
        """Writes the decoder; what it takes of the encoder in each call, which Treadle computes."""
        encoder, beside = _Encoder(self.model).eval(), path.with_name("encoder.onnx")
        names = [f"encoder.{n}.{word}" for n in range(self.layers) for word in ("key", "value")]
        torch.onnx.export(
            encoder, (self.source,), str(beside), dynamo=True, verbose=False, input_names=["x"], output_names=names
        )
        with treadle.compile(beside, cached=False) as compiled:
            found = dict(zip(names, compiled(self.source.numpy()), strict=True))
        shape = next(iter(found.values())).shape
        decoder, new, old = _Decoder(self.model, self.layers, shape[2]).eval(), 5, 7
        past = [torch.randn(1, shape[1], old, shape[3]) for _ in names]
        kept = (*past, *(torch.from_numpy(each) for each in found.values()))
        own = [name.replace("encoder.", "") for name in names]
        arguments = (torch.zeros(1, new, dtype=torch.int64), torch.ones(1, new + old, dtype=torch.int64), *kept)
        dynamic = tuple({2: "past_sequence_length"} if n < len(past) else None for n in range(len(kept)))
        torch.onnx.export(
            decoder, arguments, str(path), dynamo=True, verbose=False,
            dynamic_shapes=({1: "sequence_length"}, {1: "total_sequence_length"}, dynamic),
            input_names=["input_ids", "attention_mask", *(f"past_key_values.{name}" for name in own), *names],
            output_names=["logits", *(f"present.{name}" for name in own)],
        )  # fmt: skip
        return found
