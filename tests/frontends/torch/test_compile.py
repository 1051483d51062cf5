"""`treadle.compile` of modules, and `torch.compile(backend="treadle")`, against PyTorch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import treadle  # noqa: E402
from tests.frontends.torch.cases import Function  # noqa: E402
from tests.helpers.limits import assert_within, module_limits  # noqa: E402
from treadle.dialects.location import nodes_of  # noqa: E402
from treadle.frontends.torch import exported, import_exported  # noqa: E402
from treadle.tools import compile_command  # noqa: E402
from treadle.tools.treadle_cli import main  # noqa: E402
from treadle.torch_backend import treadle as backend  # noqa: E402


class Residual(nn.Module):
    """A block of ResNet-18 with a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.short, self.head = nn.Conv2d(3, 8, 1, 2), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = self.other(self.second(F.relu(self.norm(self.first(x)))))
        return self.head(F.adaptive_avg_pool2d(F.relu(y + self.short(x)), 1).flatten(1))


class GroupedQuery(nn.Module):
    """A block of Llama: rotary embedding, grouped-query attention, a gated unit."""

    def __init__(self, heads: int = 4, groups: int = 2, width: int = 8) -> None:
        super().__init__()
        size = heads * width
        self.heads, self.groups, self.width = heads, groups, width
        self.norm, self.last = nn.RMSNorm(size, 1e-6), nn.RMSNorm(size, 1e-6)
        self.q, self.kv = nn.Linear(size, size, False), nn.Linear(size, 2 * groups * width, False)
        self.o, self.gate = nn.Linear(size, size, False), nn.Linear(size, 48, False)
        self.up, self.down = nn.Linear(size, 48, False), nn.Linear(48, size, False)
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, width, 2) / width), persistent=False)

    def rotated(self, x: Any) -> Any:
        """By angles that grow with the position."""
        angles = torch.arange(x.shape[-2])[:, None] * self.get_buffer("rates")
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def forward(self, x: Any) -> Any:
        n, length, size = x.shape
        y = self.norm(x)
        q = self.q(y).view(n, length, self.heads, self.width).transpose(1, 2)
        k, v = self.kv(y).view(n, length, 2, self.groups, self.width).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(n, length, size))
        y = self.last(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Tagger(nn.Module):
    """Tokens, an LSTM in both directions, a label for each."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(10, 4)
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.lstm(self.table(tokens))[0])


class SmallUNet(nn.Module):
    """One level down and up, with its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.norm, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 4), nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        a = F.gelu(self.norm(self.down(x)))
        b = self.up(F.silu(self.inner(F.max_pool2d(a, 2))))
        return self.out(torch.cat([a, b], 1))


class Encoder(nn.Module):
    """An encoder layer as BERT's, with a mask of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, "gelu", batch_first=True)
        self.table = nn.Embedding(13, 16)

    def forward(self, tokens: Any) -> Any:
        return self.layer(self.table(tokens), src_key_padding_mask=tokens == 0)


class Broken(nn.Module):
    """A branch on data, at which PyTorch's compiler breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.first(x))
        return self.second(y + 1 if y.sum() > 0 else y)


TOKENS = torch.tensor([[1, 5, 3, 9, 0], [4, 2, 8, 0, 0]])
MODELS: dict[str, tuple[type[Any], Any]] = {
    "residual": (Residual, torch.randn(2, 3, 9, 9)),
    "grouped-query": (GroupedQuery, torch.randn(2, 7, 32)),
    "tagger": (Tagger, TOKENS),
    "u-net": (SmallUNet, torch.randn(1, 2, 8, 8)),
    "encoder": (Encoder, TOKENS),
}


def made(kind: type[Any]) -> Any:
    torch.manual_seed(0)
    return kind().eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_module_computes_what_it_does_in_pytorch(name: str) -> None:
    kind, x = MODELS[name]
    model = made(kind)
    program = exported(model, (x,))
    (limit,) = module_limits(import_exported(program), [x.numpy()])
    (y,) = treadle.compile(program)(x)
    with torch.no_grad():
        wanted = model.double()(x.double() if x.is_floating_point() else x).float().numpy()
    assert_within(y, limit, np.float32, name)
    assert_within(wanted, limit, np.float32, f"what PyTorch computes of {name}")


def test_locations_and_weights_have_the_names_of_the_model() -> None:
    program = exported(made(Tagger), (TOKENS,))
    module = import_exported(program)
    named = [node for op in module.walk() for node in nodes_of(op.location)]
    assert any(node.kind == "aten.embedding.default" and "test_compile.py:" in node.name for node in named)
    model = treadle.compile(made(Tagger), example_inputs=(TOKENS,))
    assert [x.name for x in model.inputs] == ["tokens"] and [y.name for y in model.outputs] == ["output"]
    np.testing.assert_array_equal(model(TOKENS)[0], treadle.compile(program)(TOKENS)[0], "a module as its export")


def test_all_nodes_that_cannot_be_converted_are_named() -> None:
    model = Function(lambda x: torch.linalg.det(torch.fft.fft(x).real)).eval()
    with pytest.raises(treadle.TreadleError, match=r"nodes are not supported: .*_fft_r2c.* at .*_linalg_det") as error:
        treadle.compile(model, example_inputs=(torch.randn(4, 4),))
    assert "supported_operators" in str(error.value)


def test_a_module_in_training_mode_is_an_error() -> None:
    with pytest.raises(treadle.TreadleError, match=r"is in training mode; accepted: model\.eval\(\)"):
        treadle.compile(Broken(), example_inputs=(torch.randn(2, 6),))


def test_example_inputs_are_those_of_a_module() -> None:
    with pytest.raises(treadle.TreadleError, match="a Broken without example inputs"):
        treadle.compile(made(Broken))
    with pytest.raises(treadle.TreadleError, match="example inputs for a str"):
        treadle.compile("m.onnx", example_inputs=(torch.randn(2, 6),))


def test_files_of_pytorch_are_named(tmp_path: Path) -> None:
    program, checkpoint = tmp_path / "model.pt2", tmp_path / "model.pt"
    torch.export.save(torch.export.export(nn.Linear(3, 2).eval(), (torch.randn(2, 3),)), program)
    torch.save(nn.Linear(3, 2).state_dict(), checkpoint)
    with pytest.raises(treadle.TreadleError, match=r"an exported PyTorch program; accepted: .*torch\.export\.load"):
        treadle.compile(program)
    (tmp_path / "model.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(treadle.TreadleError, match="a zip archive; accepted: a complete"):
        treadle.compile(tmp_path / "model.zip")
    with pytest.raises(treadle.TreadleError, match="a PyTorch checkpoint or TorchScript; accepted: a complete"):
        treadle.compile(checkpoint)


def test_a_file_that_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, x, rows = nn.Linear(3, 2).eval(), torch.randn(3, 3), torch.export.Dim("rows", min=1, max=4)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "model.pt2")
    arguments = ["compile", str(tmp_path / "model.pt2"), "--trust-pickle"]
    assert main([*arguments, "-o", str(tmp_path / "folder")]) == 0
    with treadle.load(tmp_path / "folder") as model, torch.no_grad():
        np.testing.assert_allclose(model(x)[0], module(x).numpy(), rtol=1e-6, atol=1e-6)
    capsys.readouterr()
    assert main([*arguments, "-o", "-", "--to", "graph"]) == 0
    assert 'symbols = ["input_0:1..4"]' in capsys.readouterr().out
    (tmp_path / "other.pt2").write_bytes(b"PK\x03\x04 and no more")
    assert main(["compile", str(tmp_path / "other.pt2"), "--trust-pickle", "-o", str(tmp_path / "none")]) == 2
    assert "torch.export.load: " in capsys.readouterr().err


def test_loading_a_program_needs_pytorch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compile_command, "find_spec", lambda name: None)
    assert main(["compile", "model.pt2", "--trust-pickle", "-o", "none"]) == 2
    assert "PyTorch is not installed; accepted: pip install treadle[torch]" in capsys.readouterr().err


def reset() -> None:
    torch._dynamo.reset()


def test_a_graph_break_and_other_shapes_and_weights() -> None:
    reset()
    model = made(Broken)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 5):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), model(x))
        model.second.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))


def test_what_cannot_be_converted_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    reset()
    model = Function(lambda x: torch.relu(torch.fft.fft(x * 2).real + 1)).eval()
    x = torch.randn(3, 8)
    with caplog.at_level(logging.WARNING, "treadle"):
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    (record,) = caplog.records
    assert "these operators run in PyTorch: aten._fft_r2c.default" in record.getMessage()
