"""The five models that Hidet was measured on, built by PyTorch with random weights and exported to ONNX.

Source: Hidet (ASPLOS 2023), section 6.1: ResNet-50, Inception V3, MobileNet V2, BERT-base and GPT-2, with batches of
one and 128 tokens. They need torch, torchvision, transformers and onnxscript, which are imported when a model is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_TOKENS = 128


@dataclass(frozen=True)
class PaperModel:
    """A model whose weights are the same whenever it is built.

    build: the module, as its library initialises it; input: the name of the only one
    """

    build: Callable[[], Any]
    input: str
    example: Array

    @property
    def inputs(self) -> Mapping[str, Array]:
        """By name."""
        return {self.input: self.example}

    def of_batch(self, batch: int) -> PaperModel:
        """The same model with that many rows of input: the example, and the example turned along its last dimension."""
        return replace(self, example=np.concatenate([np.roll(self.example, row, -1) for row in range(batch)]))

    def module(self) -> Any:
        """In evaluation mode, on the CPU. ImportError where a library is missing.

        Batch normalisation gets the statistics of two random batches, as if it had been trained: without them it does
        nothing, magnitudes shrink or grow from layer to layer, and the picture no longer shows in what comes out.
        """
        torch: Any = importlib.import_module("torch")
        torch.manual_seed(0)
        model = self.build()
        if self.example.dtype == np.float32:
            norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
            for norm in norms:
                norm.momentum = None  # the mean of all batches
            with torch.no_grad():
                model.train()
                for _ in range(2):
                    model(torch.randn(4, *self.example.shape[1:]))
        return model.eval()

    def write(self, path: Path, dynamic: bool = False) -> Path:
        """Exports the model, `dynamic` with any batch and any length; ImportError where a library is missing."""
        torch: Any = importlib.import_module("torch")
        with torch.no_grad():
            example = torch.from_numpy(self.example)
            options: dict[str, Any] = {"input_names": [self.input], "dynamo": True}
            if dynamic:
                # An extent of 1 would be taken for a number.
                example = torch.cat([example, example])
                any_extent = torch.export.Dim.DYNAMIC
                options["dynamic_shapes"] = (dict.fromkeys(range(2), any_extent),)
            torch.onnx.export(self.module(), (example,), str(path), **options)
        return path


def _pictures(size: int) -> Array:
    return np.random.default_rng(size).standard_normal((1, 3, size, size), np.float32)


def _tokens(vocabulary: int) -> Array:
    return np.random.default_rng(vocabulary).integers(0, vocabulary, (1, _TOKENS), np.int64)


def _resnet50() -> Any:
    return importlib.import_module("torchvision.models").resnet50()


def _inception_v3() -> Any:
    return importlib.import_module("torchvision.models").inception_v3(aux_logits=False, init_weights=False)


def _mobilenet_v2() -> Any:
    return importlib.import_module("torchvision.models").mobilenet_v2()


def _bert() -> Any:
    library = importlib.import_module("transformers")
    return library.BertModel(library.BertConfig(), add_pooling_layer=False)


def _gpt2() -> Any:
    library = importlib.import_module("transformers")
    return library.GPT2LMHeadModel(library.GPT2Config(use_cache=False))


PAPER_MODELS: Mapping[str, PaperModel] = {
    "resnet50": PaperModel(_resnet50, "x", _pictures(224)),
    "inception_v3": PaperModel(_inception_v3, "x", _pictures(299)),
    "mobilenet_v2": PaperModel(_mobilenet_v2, "x", _pictures(224)),
    "bert_base": PaperModel(_bert, "input_ids", _tokens(30522)),
    "gpt2": PaperModel(_gpt2, "input_ids", _tokens(50257)),
}
"""By name."""
