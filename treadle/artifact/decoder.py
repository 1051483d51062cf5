"""The tensors of a decoder's call, by the names that exporters give them."""

from __future__ import annotations

from treadle.artifact.manifest import Manifest
from treadle.shapes.states import given_of, made_of

TOKENS = "input_ids"
MASK = "attention_mask"
POSITIONS = ("position_ids", "cache_position")
LOGITS = "logits"
MADE = (TOKENS, MASK, *POSITIONS)
"""What a loop of generation makes for each call."""


def is_decoder(manifest: Manifest) -> bool:
    """Whether a program keeps states, takes tokens `[1, n]` and else only what is made for them, and gives logits
    `[1, n or 1, vocabulary]`."""
    inputs = given_of(manifest.inputs, manifest.states)
    given = {tensor.name: tensor.shape for tensor in inputs[: len(inputs) - len(manifest.extents)]}
    made = {tensor.name: tensor.shape for tensor in made_of(manifest.outputs, manifest.states)}
    if not manifest.states or not set(given) <= set(MADE):
        return False
    tokens = given.get(TOKENS, ())
    return len(tokens) == 2 and tokens[0] == 1 and len(made.get(LOGITS, ())) == 3


__all__ = ["LOGITS", "MADE", "MASK", "POSITIONS", "TOKENS", "is_decoder"]
