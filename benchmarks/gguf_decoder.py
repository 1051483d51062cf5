"""Writes a decoder of random weights as a GGUF file, for llama.cpp: run by a Python that has the package gguf.

    python benchmarks/gguf_decoder.py FILE TYPE LAYERS HIDDEN HEADS GROUPS HEAD INTERMEDIATE VOCABULARY

TYPE is one of F32, BF16, Q8_0 and Q4_0. It imports nothing of this project.
"""

from __future__ import annotations

import sys

import gguf  # pyright: ignore[reportMissingImports]
import numpy as np


def main(path: str, kind: str, *sizes: str) -> None:
    """Writes the file."""
    layers, hidden, heads, groups, head, intermediate, vocabulary = map(int, sizes)
    random, quantised = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])

    def add(name: str, *shape: int) -> None:
        array = random.standard_normal(shape, np.float32) * np.float32(0.02)
        if len(shape) == 1:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, quantised), raw_dtype=quantised)

    kept = groups * head
    add("token_embd.weight", vocabulary, hidden)
    add("output.weight", vocabulary, hidden)
    add("output_norm.weight", hidden)
    for n in range(layers):
        add(f"blk.{n}.attn_norm.weight", hidden)
        for name, rows in (("q", heads * head), ("k", kept), ("v", kept)):
            add(f"blk.{n}.attn_{name}.weight", rows, hidden)
            add(f"blk.{n}.attn_{name}.bias", rows)
        add(f"blk.{n}.attn_output.weight", hidden, heads * head)
        add(f"blk.{n}.ffn_norm.weight", hidden)
        add(f"blk.{n}.ffn_gate.weight", intermediate, hidden)
        add(f"blk.{n}.ffn_up.weight", intermediate, hidden)
        add(f"blk.{n}.ffn_down.weight", hidden, intermediate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
