"""A decoder of random weights as OpenVINO's exporter of language models writes it; run by a Python that has it.

    python benchmarks/openvino_export.py FOLDER {f32,int8,int4} LAYERS HIDDEN HEADS GROUPS INTERMEDIATE VOCABULARY

It imports nothing of this project, so that the peer's Python needs only optimum-intel, nncf, transformers and torch.
Weights of 8 bits have a scale a column, as is the exporter's default, those of 4 bits one for 32.
"""

import sys

import transformers  # pyright: ignore[reportMissingImports]
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Writes the model, with a transformers model beside it."""
    folder, kind, *sizes = sys.argv[1:]
    layers, hidden, heads, groups, intermediate, vocabulary = map(int, sizes)
    config = transformers.Qwen2Config(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=groups,
        intermediate_size=intermediate, vocab_size=vocabulary, tie_word_embeddings=False, max_position_embeddings=4096,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).eval().save_pretrained(f"{folder}/transformers")
    chosen = {
        "f32": {"load_in_8bit": False},
        "int8": {"quantization_config": OVWeightQuantizationConfig(bits=8)},
        "int4": {"quantization_config": OVWeightQuantizationConfig(bits=4, group_size=32, sym=True, all_layers=True)},
    }[kind]
    model = OVModelForCausalLM.from_pretrained(f"{folder}/transformers", export=True, compile=False, **chosen)
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
