"""That `torch.compile(backend="treadle")` shows a caller what PyTorch does: aliases, strides, writes, gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.frontends.torch.contract import assert_same  # noqa: E402
from treadle.torch_backend import treadle as backend  # noqa: E402


def random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def overlapping() -> list[Any]:
    base = random(9)
    return [base[:6], base[3:]]


def written_view(x: Any) -> Any:
    y = x.t()
    y[0].mul_(2)
    return y + 1


def written_twice(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(2)
    return x + y


def written_result(x: Any) -> Any:
    y = x * 2
    z = y.view(-1)
    z[::2] = 5
    return z, y, y[0]


def untracked(x: Any) -> Any:
    x.data.mul_(3)
    return x.detach(), x + 1


def turned(x: Any) -> Any:
    x.t_()
    return x * 2


def resized_mask(x: Any) -> Any:
    x[x > 0] = 0
    return x.sum(), x


CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "a view of an input": (lambda x: x.view(-1), [random(2, 3)]),
    "an input": (lambda x: x, [random(2, 3)]),
    "an input and views of it": (lambda x: (x, x[1:], x.t(), x + 1), [random(2, 3)]),
    "views of a result": (lambda x: ((x + 1).t(), (x * 2).view(-1)[1:], (x - 1)[:, :1]), [random(2, 3)]),
    "results that alias each other": (lambda x: (lambda y: (y.t(), y, y[0], y.view(-1)))(x + 1), [random(2, 3)]),
    "parts of a result": (lambda x: (x + 1).chunk(2, 1), [random(2, 6)]),
    "parts of an input": (lambda x: x.unbind(0), [random(2, 6)]),
    "strides of a transpose": (lambda x: (x + 1).t() * 2, [random(2, 3)]),
    "a result as it lies in memory": (lambda x: torch.as_strided((x + 1).t(), (4,), (3,)), [random(5, 4)]),
    "an input as it lies in memory": (lambda x: torch.as_strided(x[1:], (2, 2), (1, 2), 1) * 2, [random(3, 4)]),
    "channels last": (lambda x: F.relu(x) + 1, [random(2, 3, 4, 5).to(memory_format=torch.channels_last)]),
    "an expanded input": (lambda x: (x * 2, x), [random(3, 1).expand(3, 4)]),
    "an expanded result": (lambda x: (x * 2).expand(3, 4), [random(3, 1)]),
    "a slice with steps": (lambda x: (x[:, ::2] + 1, x[:, ::2]), [random(3, 5)]),
    "a written input": (lambda x: (x.add_(1), x * 2), [random(2, 3)]),
    "an input written through a view": (written_view, [random(3, 3)]),
    "inputs that overlap, one of them written": (lambda x, y: (x.add_(1) * 1, y * 2), overlapping()),
    "inputs that overlap, both written": (written_twice, overlapping()),
    "the same input twice, written": (written_twice, [random(3)] * 2),
    "a result written through views": (written_result, [random(3, 4)]),
    "an input transposed in place": (turned, [random(2, 3)]),
    "an input's data": (untracked, [random(2, 3)]),
    "elements chosen by a mask": (resized_mask, [random(2, 3)]),
    "a constant": (lambda x: (torch.ones(3), torch.tensor([1, 2]), x.new_zeros(2)), [random(2)]),
    "copies": (lambda x: (x.clone(), x.clone(), (x + 1).clone(), x.contiguous()), [random(2, 3)]),
    "the same result twice": (lambda x: (lambda y: (y, y, y.clone(), y + 0))(x + 1), [random(2, 3)]),
    "conversions": (lambda x: (x.to(torch.float32), x.double(), x.int(), x.bool()), [random(2, 3)]),
    "no tensors": (lambda x: None, [random(2)]),
    "numbers and nothing": (lambda x: {"a": x.shape[0], "b": None, "c": [x + 1, 2.5]}, [random(2)]),
    "numbers as inputs": (lambda x, n, s: x * n + s, [random(2), 3, 0.5]),
    "no elements": (lambda x: (x + 1, x.sum(), x.t(), torch.cat([x, x])), [random(0, 3)]),
    "a scalar": (lambda x: (x + 1, x.view(1), x), [random()]),
    "extents of 1": (lambda x: (x.transpose(0, 1) + 1, (x + 1).squeeze()), [random(1, 3, 1)]),
    "complex numbers": (lambda x: (torch.fft.fft(x).conj(), (x + 1j).real, x * 2), [random(4)]),
    "an unsupported view": (lambda x: (torch.view_as_real(torch.fft.fft(x + 1)), x.diagonal(), (x + 1).diagonal()),
                            [random(3, 3)]),
    "values and positions": (lambda x: torch.sort(x * 2, 1), [random(3, 5)]),
    "an operator of which one result is converted": (lambda x: torch.native_layer_norm(x, [3], None, None, 1e-5),
                                                     [random(2, 3)]),
    "other element types": (lambda x: (x + x, x.bfloat16() + 1, x.half() * 2), [torch.arange(6).view(2, 3)]),
}  # fmt: skip
MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "gradients": torch.enable_grad}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)


@pytest.mark.parametrize("name", CASES)
def test_a_function_shows_what_it_does_in_pytorch(name: str) -> None:
    function, inputs = CASES[name]
    with torch.no_grad():
        assert_same(compiled(function), function, inputs, name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_functions_in_all_modes(name: str, mode: str, dynamic: bool | None) -> None:
    function, inputs = CASES[name]
    with MODES[mode]():
        assert_same(compiled(function, dynamic=dynamic), function, inputs, name)


class Normed(nn.Module):
    """A convolution, batch normalisation, dropout and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))).flatten(1))


def assert_same_gradients(model: nn.Module, fast: Callable[..., Any], inputs: list[Any]) -> None:
    results: list[Any] = []
    for call in (model, fast):
        model.zero_grad()
        torch.manual_seed(0)
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        y = call(*given)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in model.parameters()), *(x.grad for x in given)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_those_of_pytorch(training: bool) -> None:
    torch.manual_seed(0)
    model = Normed().train(training)
    assert_same_gradients(model, compiled(model), [random(2, 2, 4, 4).requires_grad_()])


def test_buffers_that_a_module_writes_are_written() -> None:
    torch.manual_seed(0)
    model, other = Normed().train(), Normed().train()
    other.load_state_dict(model.state_dict())
    model.drop.p = other.drop.p = 0.0
    fast = compiled(other)
    with torch.no_grad():
        for seed in range(3):
            torch.testing.assert_close(fast(random(2, 2, 4, 4, seed=seed)), model(random(2, 2, 4, 4, seed=seed)))
    torch.testing.assert_close(dict(other.named_buffers()), dict(model.named_buffers()))


def test_changes_of_parameters_are_seen() -> None:
    model = nn.Linear(4, 3).eval()
    fast, x = compiled(model), random(2, 4)
    changes: list[Callable[[], Any]] = [
        lambda: model.weight.data.mul_(2),
        lambda: model.weight.detach().numpy().__imul__(2),
        lambda: model.weight.mul_(2),
        lambda: setattr(model.bias, "data", random(3)),
        lambda: setattr(model, "weight", nn.Parameter(random(3, 4))),
        lambda: model.load_state_dict({"weight": random(3, 4, seed=1), "bias": random(3, seed=1)}),
    ]
    with torch.no_grad():
        for change in changes:
            torch.testing.assert_close(fast(x), model(x))
            change()
        torch.testing.assert_close(fast(x), model(x))


def test_frozen_parameters_are_constants_whose_counted_changes_are_seen() -> None:
    model = nn.Linear(4, 3).eval()
    fast, x = compiled(model, options={"freeze": True}), random(2, 4)
    with torch.no_grad():
        before = model(x)
        torch.testing.assert_close(fast(x), before)
        model.weight.data.mul_(2)
        torch.testing.assert_close(fast(x), before)
        model.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": {"froze": True}}, "options are .*froze.*; accepted: options="),
        ({"mode": "max-autotune"}, "mode is"),
    ],
)
def test_unknown_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=f"TreadleError: torch.compile: {message}"):
        compiled(lambda x: x + 1, **options)(random(2))


def test_what_aotautograd_refuses_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    """Overlapping inputs of dynamic shapes."""
    with torch.no_grad(), caplog.at_level(logging.WARNING, "treadle"):
        assert_same(compiled(written_twice, dynamic=True), written_twice, overlapping())
    assert "a graph runs in PyTorch: " in caplog.text


def test_attention_stays_whole(caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = (random(1, 4, 6, 8, seed=n) for n in range(3))
    with torch.no_grad(), caplog.at_level(logging.WARNING, "treadle"):
        assert_same(compiled(lambda *x: F.scaled_dot_product_attention(*x)), F.scaled_dot_product_attention, [q, k, v])
    assert not caplog.records


def test_what_pytorch_computes_may_have_another_type_than_its_graph_says() -> None:
    """Statistics of bfloat16: float32 in the graph."""
    x = random(2, 3, 4).bfloat16()
    actual = compiled(lambda x: F.instance_norm(x) * 2)(x)
    assert actual.dtype == torch.bfloat16
    ulp = 2.0**-6  # of numbers from 2 to 4: one rounding of each, and the statistics' own
    torch.testing.assert_close(actual.double(), F.instance_norm(x.double()) * 2, rtol=0, atol=2 * ulp)


def test_what_must_run_in_order_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Any) -> Any:
        return F.dropout(x * 2), torch.rand(3), F.dropout(x + 1)

    results: list[Any] = []
    with torch.no_grad(), caplog.at_level(logging.WARNING, "treadle"):
        for call in (function, compiled(function)):
            torch.manual_seed(0)
            results.append(call(random(8)))
    torch.testing.assert_close(results[1], results[0])
    assert "draw random numbers in turn" in caplog.text
