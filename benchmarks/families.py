"""Families of today, from configurations of transformers and diffusers, compiled by `treadle.compile(module)`.

    python -m benchmarks.families
    python -m benchmarks.families "SAM mask decoder" Mixtral --onnx

The Python that runs it needs torch, transformers, diffusers and onnxscript, too, and for YOLO11 ultralytics. Weights
are random, the widths small. Of each model: the largest difference of a result from PyTorch in eager mode, in float32,
as a part of the result's largest magnitude, the CPU seconds that exporting and compiling take, and what is refused. The
rows go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers  # pyright: ignore[reportMissingImports]
import torch
import transformers  # pyright: ignore[reportMissingImports]
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.decoders import causal_model
from benchmarks.machine import describe_run, versions_of
from benchmarks.measure import cpu_seconds, relative_error
from benchmarks.result_files import RESULTS, write_results

TOKENS, VOCABULARY, LAYERS = 32, 1000, 2
Model = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
"""A module, and the inputs of a call."""


@dataclass(frozen=True)
class Row:
    """What became of a model; `problem` says what failed, if anything did."""

    model: str
    error: float = float("nan")
    compiled: float = float("nan")
    problem: str = ""


class Named(torch.nn.Module):
    """A module that is called with named tensors and gives the named results alone.

    inputs:  names of the arguments
    results: names of the results
    options: what each call gives besides
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[str], results: Sequence[str], options: object):
        super().__init__()
        self.module, self.inputs, self.results, self.options = module, tuple(inputs), tuple(results), options

    def forward(self, *given: torch.Tensor) -> Any:
        found: Any = self.module(**dict(zip(self.inputs, given, strict=True)), **self.options)  # pyright: ignore
        return tuple(getattr(found, name) for name in self.results)


# What goes into models.


def words(*shape: int) -> torch.Tensor:
    """Numbers of tokens."""
    return torch.randint(3, VOCABULARY - 1, shape)


def picture(size: int) -> torch.Tensor:
    """One picture of noise, of three channels."""
    return torch.randn(1, 3, size, size)


def vary(module: torch.nn.Module) -> None:
    """Random elements for matrices whose own are all the same: heads that begin at 0 make ties of scores, of which each
    program may choose another, and what is behind a product with 0 does not show."""
    for each in module.parameters():
        if each.dim() > 1 and each.numel() and bool((each == each.flatten()[0]).all()):
            torch.nn.init.normal_(each, std=0.1)


# How models are made.

Inputs = Callable[[], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class FromConfiguration:
    """A model of a library's configuration.

    part: the submodule that is called, if it is not the whole
    """

    configuration: str
    model: str
    sizes: Mapping[str, Any]
    inputs: Inputs
    results: Sequence[str] = ("last_hidden_state",)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    part: str = ""

    def __call__(self) -> Model:
        configuration = getattr(transformers, self.configuration)(**self.sizes)
        module = getattr(transformers, self.model)(configuration).eval()
        return _named(module.get_submodule(self.part), self)


@dataclass(frozen=True)
class OfDiffusers:
    """A model of diffusers, which takes its sizes itself."""

    model: str
    sizes: Mapping[str, Any]
    inputs: Inputs
    results: Sequence[str] = ("sample",)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self) -> Model:
        return _named(getattr(diffusers, self.model)(**self.sizes).eval(), self)


@dataclass(frozen=True)
class Decoder:
    """A decoder of text, as `benchmarks.decoders` makes it, for a call without a past."""

    name: str

    def __call__(self) -> Model:
        model = causal_model(self.name, hidden=256, layers=LAYERS)
        return Named(model, ["input_ids"], ["logits"], {"use_cache": False}).eval(), (words(1, TOKENS),)


def _named(module: Any, made: FromConfiguration | OfDiffusers) -> Model:
    given = made.inputs()
    return Named(module, list(given), made.results, made.options).eval(), tuple(given.values())


def _vae_decoder() -> Model:
    """The half of an autoencoder that makes pictures."""
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
    made = diffusers.AutoencoderKL(block_out_channels=(32, 64, 64), norm_num_groups=16, **kinds).eval()

    class Decode(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = made

        def forward(self, x: torch.Tensor) -> Any:
            return self.module.decode(x).sample

    return Decode().eval(), (torch.randn(1, 4, 16, 16),)


def _yolo() -> Model:
    """The smallest of its family, which a package of its own has, with the statistics of a random batch."""
    made = importlib.import_module("ultralytics.nn.tasks").DetectionModel("yolo11n.yaml", verbose=False)
    for each in made.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.momentum = None  # the mean of all batches
    with torch.no_grad():
        made.train()(torch.randn(4, 3, 128, 128))

    class Boxes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = made.eval()

        def forward(self, x: torch.Tensor) -> Any:
            found = self.module(x)[0]
            return found[:, :4], found[:, 4:]  # boxes in pixels, and scores of classes

    return Boxes().eval(), (torch.randn(1, 3, 128, 128),)


_WIDTH = {"hidden_size": 192, "num_hidden_layers": LAYERS, "num_attention_heads": 3, "intermediate_size": 384}
_TEXT = {**_WIDTH, "vocab_size": VOCABULARY}
_PATCHES = {**_WIDTH, "image_size": 64, "patch_size": 16}
_STAGES = {"depths": [1, 1, 2, 1], "num_channels": 3}
_SPEECH = {
    "d_model": 192, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 384, "decoder_ffn_dim": 384, "vocab_size": VOCABULARY,
    "max_source_positions": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
_RESNET = {"embedding_size": 32, "hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1]}
_DETECTED = ("logits", "pred_boxes")


def _detector(queries: int) -> dict[str, Any]:
    return {
        "d_model": 128, "encoder_layers": 1, "decoder_layers": LAYERS, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "num_queries": queries,
    }  # fmt: skip


def _sam() -> dict[str, Any]:
    vision = {
        **_WIDTH, "image_size": 128, "output_channels": 64, "window_size": 3, "global_attn_indexes": [1],
        "mlp_dim": 384, "num_pos_feats": 32, "initializer_range": 0.02,
    }  # fmt: skip
    prompt = {"hidden_size": 64, "image_size": 128, "mask_input_channels": 16}
    mask = {"hidden_size": 64, "mlp_dim": 128, "num_attention_heads": 4, "iou_head_hidden_dim": 64}
    parts = {"vision_config": vision, "prompt_encoder_config": prompt, "mask_decoder_config": mask}
    return {**parts, "initializer_range": 0.1}


def _ids() -> Mapping[str, torch.Tensor]:
    return {"input_ids": words(2, TOKENS)}


def _pixels(size: int = 64) -> Inputs:
    return lambda: {"pixel_values": picture(size)}


_RECURRENT = {
    "hidden_size": 128, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "num_heads": 8, "head_dim": 32,
    "state_size": 16, "n_groups": 1, "chunk_size": 16,
}  # fmt: skip

TEXT: Mapping[str, Callable[[], Model]] = {
    "Llama": Decoder("llama"), "Qwen 3": Decoder("qwen3"), "Gemma 2": Decoder("gemma2"), "Gemma 3": Decoder("gemma3"),
    "Phi 3": Decoder("phi3"), "Mistral": Decoder("mistral"), "Mixtral": Decoder("mixtral"),
    "Qwen 3 MoE": Decoder("qwen3_moe"), "gpt-oss": Decoder("gpt_oss"),
    "Mamba 2": FromConfiguration("Mamba2Config", "Mamba2ForCausalLM", _RECURRENT, _ids, ["logits"],
                                 {"use_cache": False}),
    "T5": FromConfiguration(
        "T5Config", "T5ForConditionalGeneration",
        {"d_model": 192, "d_kv": 64, "num_heads": 3, "d_ff": 384, "num_layers": LAYERS, "vocab_size": VOCABULARY},
        lambda: {"input_ids": words(1, TOKENS), "decoder_input_ids": words(1, 16)}, ["logits"], {"use_cache": False}),
    "BERT": FromConfiguration("BertConfig", "BertModel", _TEXT, _ids),
    "ModernBERT": FromConfiguration("ModernBertConfig", "ModernBertModel", {
        **_TEXT, "num_hidden_layers": 3, "local_attention": 16, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, _ids),
    "DeBERTa v3": FromConfiguration("DebertaV2Config", "DebertaV2Model", {
        **_TEXT, "relative_attention": True, "position_buckets": 16, "pos_att_type": "p2c|c2p",
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False}, _ids),
    "MPNet": FromConfiguration("MPNetConfig", "MPNetModel", _TEXT, _ids),
}  # fmt: skip
SPEECH: Mapping[str, Callable[[], Model]] = {
    "Whisper encoder": FromConfiguration(
        "WhisperConfig", "WhisperModel", _SPEECH, lambda: {"input_features": torch.randn(1, 80, 200)}, part="encoder"),
    "Whisper decoder": FromConfiguration(
        "WhisperConfig", "WhisperModel", _SPEECH,
        lambda: {"input_ids": words(1, 16), "encoder_hidden_states": torch.randn(1, 100, 192)},
        options={"use_cache": False}, part="decoder"),
    "Wav2Vec 2": FromConfiguration("Wav2Vec2Config", "Wav2Vec2ForCTC", {
        **_TEXT, "conv_dim": (64,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
        lambda: {"input_values": torch.randn(1, 16000)}, ["logits"]),
}  # fmt: skip
VISION: Mapping[str, Callable[[], Model]] = {
    "ViT": FromConfiguration("ViTConfig", "ViTModel", _PATCHES, _pixels()),
    "DINOv2": FromConfiguration("Dinov2Config", "Dinov2Model", {**_PATCHES, "patch_size": 14, "image_size": 70},
                                _pixels(70)),
    "DINOv3": FromConfiguration("DINOv3ViTConfig", "DINOv3ViTModel", _PATCHES, _pixels()),
    "Swin v2": FromConfiguration("Swinv2Config", "Swinv2Model", {
        "embed_dim": 48, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 64, "patch_size": 4},
        _pixels()),
    "SegFormer": FromConfiguration("SegformerConfig", "SegformerForSemanticSegmentation", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 96], "decoder_hidden_size": 64,
        "initializer_range": 0.1}, _pixels(128),
        ["logits"]),
    "CLIP": FromConfiguration("CLIPConfig", "CLIPModel", {
        "text_config": {**_TEXT, "max_position_embeddings": TOKENS, "eos_token_id": VOCABULARY - 1},
        "vision_config": _PATCHES, "projection_dim": 64},
        lambda: {"input_ids": words(2, TOKENS), "pixel_values": picture(64)}, ["text_embeds", "image_embeds"]),
    "SigLIP vision": FromConfiguration("SiglipVisionConfig", "SiglipVisionModel", _PATCHES, _pixels(),
                                       ["last_hidden_state", "pooler_output"]),
    "ConvNeXt v2": FromConfiguration("ConvNextV2Config", "ConvNextV2Model", {
        **_STAGES, "hidden_sizes": [24, 48, 96, 192]}, _pixels()),
    "DETR": FromConfiguration("DetrConfig", "DetrForObjectDetection", {
        **_detector(20), "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
        "backbone_config": transformers.ResNetConfig(**_RESNET, out_features=["stage4"])}, _pixels(128), _DETECTED),
    "RT-DETR": FromConfiguration("RTDetrConfig", "RTDetrForObjectDetection", {
        **_detector(20), "encoder_hidden_dim": 64, "encoder_in_channels": [64, 96, 128],
        "decoder_in_channels": [64, 64, 64], "anchor_image_size": [128, 128], "num_denoising": 0,
        "initializer_range": 0.08,
        "backbone_config": transformers.RTDetrResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])},
        _pixels(128), _DETECTED),
    "YOLOS": FromConfiguration("YolosConfig", "YolosForObjectDetection", {
        **_PATCHES, "image_size": [64, 96], "num_detection_tokens": 20},
        lambda: {"pixel_values": torch.randn(1, 3, 64, 96)}, _DETECTED),
    "YOLO11": _yolo,
    "SAM vision encoder": FromConfiguration("SamConfig", "SamModel", _sam(), _pixels(128), part="vision_encoder"),
    "SAM mask decoder": FromConfiguration("SamConfig", "SamModel", _sam(), lambda: {
        "image_embeddings": torch.randn(1, 64, 8, 8), "input_points": 128 * torch.rand(1, 1, 2, 2)},
        ["pred_masks", "iou_scores"]),
    "Depth Anything": FromConfiguration("DepthAnythingConfig", "DepthAnythingForDepthEstimation", {
        "backbone_config": transformers.Dinov2Config(
            **{**_PATCHES, "num_hidden_layers": 4, "patch_size": 14, "image_size": 70},
            out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False),
        "reassemble_hidden_size": 192, "patch_size": 14, "neck_hidden_sizes": [24, 48, 96, 96],
        "fusion_hidden_size": 32, "initializer_range": 0.1}, _pixels(70), ["predicted_depth"]),
}  # fmt: skip
DIFFUSION: Mapping[str, Callable[[], Model]] = {
    "UNet2DCondition": OfDiffusers("UNet2DConditionModel", {
        "sample_size": 16, "block_out_channels": (32, 64), "cross_attention_dim": 64, "attention_head_dim": 4,
        "norm_num_groups": 16, "layers_per_block": 1, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}, lambda: {
            "sample": torch.randn(1, 4, 16, 16), "timestep": torch.tensor([17]),
            "encoder_hidden_states": torch.randn(1, 8, 64)}),
    "DiT": OfDiffusers("DiTTransformer2DModel", {
        "num_attention_heads": 4, "attention_head_dim": 48, "num_layers": LAYERS, "sample_size": 16,
        "in_channels": 4, "out_channels": 8, "num_embeds_ada_norm": 10, "norm_num_groups": 4}, lambda: {
            "hidden_states": torch.randn(1, 4, 16, 16), "timestep": torch.tensor([17]),
            "class_labels": torch.tensor([3])}),
    "FLUX": OfDiffusers("FluxTransformer2DModel", {
        "in_channels": 16, "num_layers": 1, "num_single_layers": 2, "attention_head_dim": 32,
        "num_attention_heads": 4, "joint_attention_dim": 64, "pooled_projection_dim": 32,
        "axes_dims_rope": (8, 12, 12)}, lambda: {
            "hidden_states": torch.randn(1, 64, 16), "encoder_hidden_states": torch.randn(1, 16, 64),
            "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]),
            "img_ids": torch.arange(192.0).reshape(64, 3) % 8, "txt_ids": torch.zeros(16, 3)}),
    "VAE decoder": _vae_decoder,
}  # fmt: skip
FAMILIES = {**TEXT, **SPEECH, **VISION, **DIFFUSION}
"""By name, what makes a model and the inputs of a call."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles, prints and writes; 1 if a model fails."""
    parser = argparse.ArgumentParser(description="Compile families of transformers and diffusers.")
    parser.add_argument("models", nargs="*", default=list(FAMILIES), metavar="NAME", help=", ".join(FAMILIES))
    parser.add_argument("--onnx", action="store_true", help="by way of torch.onnx.export instead of torch.export")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(FAMILIES):
        parser.error(f"no model '{min(unknown)}'; there are {', '.join(FAMILIES)}")
    warnings.simplefilter("ignore")
    rows = list[Row]()
    for name in args.models:
        rows.append(compiled(name, args.onnx))
        print(rows[-1], flush=True)
    Console(width=150).print(table(rows))
    settings = {**describe_run(), **versions_of(["torch", "transformers", "diffusers"])}
    kind = "families_onnx" if args.onnx else "families"
    print(f"written to {write_results(kind, settings, [asdict(row) for row in rows], args.output)}")
    return 1 if any(row.problem for row in rows) else 0


def table(rows: Sequence[Row]) -> Table:
    """One line a model."""
    found = Table(title="Compiled models beside PyTorch's eager mode, both in float32")
    for head in ("model", "error", "compile, CPU s", "problem"):
        found.add_column(head, justify="left" if head in ("model", "problem") else "right")
    for row in rows:
        numbers = ("", "") if row.problem else (f"{row.error:.1e}", f"{row.compiled:.1f}")
        found.add_row(row.model, *numbers, row.problem)
    return found


def compiled(name: str, onnx: bool = False) -> Row:
    """One model; whatever is raised on the way becomes its problem."""
    torch.manual_seed(0)
    try:
        module, inputs = FAMILIES[name]()
        vary(module)
        with torch.no_grad(), TemporaryDirectory() as folder:
            wanted, start = module(*inputs), cpu_seconds()
            with _compiled(module, inputs, Path(folder) / "model.onnx" if onnx else None) as model:
                seconds, found = cpu_seconds() - start, model(*(each.numpy() for each in inputs))
    except Exception as error:
        return Row(name, problem=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}")
    wanted = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    return Row(name, relative_error(found, [each.numpy() for each in wanted]), seconds)


def _compiled(module: Any, inputs: tuple[torch.Tensor, ...], path: Path | None) -> treadle.CompiledModel:
    """By way of a file of ONNX, if there is a path for it."""
    if path is None:
        return treadle.compile(module, example_inputs=inputs, cached=False)
    if getattr(module.module, "_can_set_experts_implementation", bool)():
        module.module.set_experts_implementation("batched_mm")  # the one that torch.onnx exports
    torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False)
    return treadle.compile(path, cached=False)


if __name__ == "__main__":
    raise SystemExit(main())
