"""That an artifact of `torch.compile(backend="treadle")` serves the extents that PyTorch left open."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.frontends.torch.cases import Function  # noqa: E402
from treadle.torch_backend import treadle as backend  # noqa: E402


class Mixed(nn.Module):
    """Rows that attend to each other, and numbers of PyTorch's compiler beside the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = F.scaled_dot_product_attention(self.inner(x), x, x)
        return self.last(y).transpose(0, 1), x.shape[0] * 2, y[-1:] + x.shape[0]


def made() -> Any:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Mixed().eval()


def compiled(records: Sequence[logging.LogRecord]) -> list[str]:
    return [each.getMessage() for each in records if each.getMessage().startswith("compiled a graph")]


def test_a_loop_of_lengths_compiles_once(caplog: pytest.LogCaptureFixture) -> None:
    module = made()
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for rows in range(2, 40, 3):
            x = torch.randn(rows, 8)
            mine, wanted = fast(x), module(x)
            torch.testing.assert_close(mine, wanted)
            assert [each.stride() for each in mine[::2]] == [each.stride() for each in wanted[::2]]
    (message,) = compiled(caplog.records)
    assert "2..1024" in message


def test_a_call_beyond_the_bound_makes_an_artifact_of_twice_as_much(caplog: pytest.LogCaptureFixture) -> None:
    module = made()
    fast = torch.compile(module, backend=backend, dynamic=True, options={"largest": 8, "freeze": True})
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for rows in (3, 8, 9, 16, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), module(x))
    assert [message.split()[4].rstrip(",") for message in compiled(caplog.records)] == ["s77:2..8", "s77:2..16"]


def test_a_marked_dimension_has_its_own_bound(caplog: pytest.LogCaptureFixture) -> None:
    module = made()
    fast = torch.compile(module, backend=backend)
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for rows in (4, 12):
            x = torch.randn(rows, 8)
            torch._dynamo.mark_dynamic(x, 0, min=3, max=12)
            torch.testing.assert_close(fast(x), module(x))
    (message,) = compiled(caplog.records)
    assert "3..12" in message


def test_alike_extents_are_one_while_they_are_equal(caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch has a symbol for each of the caches of a decoder; here they differ at last."""
    torch._dynamo.reset()
    module = Function(lambda a, b: (a.sum(0) + b.sum(0), a.shape[0] + b.shape[0]))
    fast = torch.compile(module, backend=backend)
    calls = [(4, 4), (5, 5), (7, 7), (3, 9), (4, 8)]
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for sizes in calls:
            given = [torch.randn(size, 3) for size in sizes]
            torch.testing.assert_close(fast(*given), module(*given))
    assert len(compiled(caplog.records)) == 2


def test_bounds_are_as_small_as_memory_asks(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    module = Function(lambda x: x[:, None, :] * x[None, :, :])
    fast = torch.compile(module, backend=backend, dynamic=True)
    x = torch.randn(4, 3000)
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        torch.testing.assert_close(fast(x), module(x))
    (message,) = compiled(caplog.records)
    assert "2..256" in message and "..4096" in message


def test_what_has_no_range_is_compiled_for_each_shape(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    module = Function(lambda x: x.sort(0)[0] + 1)
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "treadle.torch_backend"):
        for rows in (4, 6):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(fast(x), module(x))
    (record,) = caplog.records
    assert "each shape of a graph is compiled anew: node 'sort'" in record.getMessage()


def test_an_operator_without_a_converter_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    module = Function(lambda x: torch.fft.fft(x * 2).real.relu() + x.shape[0])
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for rows in (4, 6):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), module(x))
    assert any("run in PyTorch: aten._fft_r2c.default" in each.getMessage() for each in caplog.records)
    assert len(compiled(caplog.records)) == 1


def test_patience_leaves_first_calls_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    module = made()
    fast = torch.compile(module, backend=backend, dynamic=True, options={"patience": 2})
    with torch.no_grad(), caplog.at_level(logging.INFO, "treadle.torch_backend"):
        for rows, artifacts in ((3, 0), (4, 0), (5, 1), (6, 1)):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), module(x))
            assert len(compiled(caplog.records)) == artifacts


@pytest.mark.parametrize("options", [{"largest": 0}, {"largest": "8"}, {"patience": -1}, {"most": 3}])
def test_options_that_there_are_not(options: dict[str, Any]) -> None:
    error = torch._dynamo.exc.BackendCompilerFailed
    with pytest.raises(error, match=r"options are .*; accepted: options=\{.*\"largest\": 2048"):
        torch.compile(made(), backend=backend, options=options)(torch.randn(3, 8))
