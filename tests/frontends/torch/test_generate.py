"""`generate` of transformers with a compiled `forward`: tokens of a conversation, and how often is compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._dynamo.utils import counters  # noqa: E402

import treadle  # noqa: E402
from treadle.torch_backend import treadle as backend  # noqa: E402

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 256}
MODELS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "Qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)),
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)
    ),
}
TURNS = (5, 9, 2)
"""Tokens of each prompt."""


def conversation(model: Any, forward: Any) -> Any:
    """The tokens of all turns, each continued by 16; the cache is carried."""
    model.forward = forward
    generator = torch.Generator().manual_seed(1)
    tokens, cache = torch.zeros((1, 0), dtype=torch.long), None
    for length in TURNS:
        prompt = torch.randint(0, 97, (1, length), generator=generator)
        tokens = torch.cat([tokens, prompt], 1)
        given = {} if cache is None else {"past_key_values": cache}
        result = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=16, do_sample=False,
            return_dict_in_generate=True, eos_token_id=None, pad_token_id=0, **given,
        )  # fmt: skip
        tokens, cache = result.sequences, result.past_key_values
    return tokens


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_compiles_prompts_and_tokens_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first prompt has no cache, and the first token one that PyTorch takes for static: both come once."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    forward = model.forward
    wanted = conversation(model, forward)
    fast = torch.compile(forward, backend=backend, options={"patience": 1})
    with caplog.at_level(logging.INFO, "treadle.torch_backend"):
        assert torch.equal(conversation(model, fast), wanted)
    messages = [record.getMessage() for record in caplog.records if record.name == "treadle.torch_backend"]
    assert len(messages) == 2 and all(each.startswith("compiled a graph for") for each in messages), messages
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_static_cache_is_changed_in_place() -> None:
    """A decoder that transformers wraps for export: its cache is buffers, which are states."""
    integrations = pytest.importorskip("transformers.integrations.executorch")
    torch.manual_seed(0)
    reference, model = (MODELS["Llama"]().eval() for _ in range(2))
    model.load_state_dict(reference.state_dict())
    sizes = {"batch_size": 1, "max_cache_len": 32}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=32, cache_config=sizes
    )
    wrapped = integrations.TorchExportableModuleWithStaticCache(model, **sizes, device="cpu")
    n = torch.export.Dim("n", min=1, max=16)
    given = {"input_ids": torch.tensor([[1, 2, 3]]), "cache_position": torch.arange(3)}
    shapes = {"input_ids": {1: n}, "cache_position": {0: n}}
    compiled = treadle.compile(torch.export.export(wrapped, (), given, dynamic_shapes=shapes, strict=True))
    in_place = [compiled.manifest.inputs[each.argument].name for each in compiled.manifest.states if each.in_place]
    assert in_place == ["key_cache_0", "value_cache_0", "key_cache_1", "value_cache_1"]
    tokens, begin = torch.randint(0, 97, (1, 9)), 0
    for count in (4, 1, 3, 1):
        end = begin + count
        (got,) = compiled(tokens[:, begin:end], torch.arange(begin, end))
        with torch.no_grad():
            wanted = reference(tokens[:, :end]).logits[:, begin:]
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-5)
        begin = end
