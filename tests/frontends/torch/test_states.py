"""States of PyTorch's models: buffers that they write, and inputs that are results of the call before."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import treadle  # noqa: E402
from tests.frontends.torch.ranged import compare  # noqa: E402


class Cached(nn.Module):
    """Attention to all rows so far, which lie in a buffer, as in the static cache of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 16, 8))
        self.register_buffer("length", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any) -> Any:
        keys, length = self.get_buffer("keys"), self.get_buffer("length")
        at = torch.arange(x.shape[1]) + length
        length.add_(x.shape[1])
        keys.index_copy_(1, at, self.k(x))
        return F.scaled_dot_product_attention(self.q(x), keys, keys, attn_mask=torch.arange(16) <= at[:, None])


class Averaged(nn.Module):
    """A mean of all inputs that fades, in a buffer that is computed anew."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3,), first))

    def forward(self, x: Any) -> Any:
        self.get_buffer("mean").mul_(0.5).add_(x)
        return self.get_buffer("mean") * 2


class Past(nn.Module):
    """Attention to a past that the caller has."""

    def forward(self, x: Any, past: Any) -> Any:
        keys = torch.cat([past, x], 1)
        return F.scaled_dot_product_attention(x, keys, keys), keys


def run(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x)


def test_a_cache_in_a_buffer_is_appended_to_in_place() -> None:
    torch.manual_seed(0)
    module = Cached().eval()
    model = treadle.compile(
        module, example_inputs=(torch.randn(1, 3, 8),), dynamic_shapes=({1: Dim("n", min=1, max=8)},)
    )
    assert model.states == ("keys", "length")
    assert [state.in_place for state in model.manifest.states] == [True, False]
    assert not module.get_buffer("keys").any(), "the module's own buffer stays"
    for rows in (5, 1, 3, 1):
        x = torch.randn(1, rows, 8)
        compare(model(x), run(module, x), 2e-6, str(rows))
    model.reset()
    module.get_buffer("keys").zero_()
    module.get_buffer("length").zero_()
    x = torch.randn(1, 2, 8)
    compare(model(x), run(module, x), 2e-6, "after a reset")


def test_a_buffer_that_is_computed_anew_has_two_sides() -> None:
    module = Averaged().eval()
    model = treadle.compile(torch.export.export(module, (torch.ones(3),)))
    for number in range(3):
        x = torch.randn(3)
        compare(model(x), module(x), 1e-6, str(number))


def test_inputs_that_are_results_of_the_call_before() -> None:
    shapes = ({1: Dim("n", min=1, max=8)}, {1: Dim("past", min=0, max=32)})
    examples = (torch.randn(1, 3, 8), torch.randn(1, 4, 8))
    model = treadle.compile(Past().eval(), example_inputs=examples, dynamic_shapes=shapes, states={"past": "output_1"})
    assert [state.in_place for state in model.manifest.states] == [True]
    keys = torch.zeros(1, 0, 8)
    for rows in (5, 1, 3, 1):
        x = torch.randn(1, rows, 8)
        y, keys = Past()(x, keys)
        compare(model(x), y, 2e-6, str(rows))
    assert model.lengths == {"past_1": 10}


def test_what_is_no_state_is_an_error() -> None:
    with pytest.raises(
        treadle.TreadleError, match=r"writes to 'mean', a buffer that has elements other than 0; .*zeros"
    ):
        treadle.compile(Averaged(1.0).eval(), example_inputs=(torch.ones(3),))
    examples = (torch.randn(1, 3, 8), torch.randn(1, 4, 8))
    with pytest.raises(treadle.TreadleError, match="there is no input 'before'; accepted: x, past"):
        treadle.compile(Past().eval(), example_inputs=examples, states={"before": "output_1"})
    with pytest.raises(treadle.TreadleError, match=r"input 'past': it is a tensor<1x4x8xf32>, and output 'output_1'"):
        treadle.compile(Past().eval(), example_inputs=examples, states={"past": "output_1"})

    class Written(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1)

    with pytest.raises(treadle.TreadleError, match=r"the model writes to 'x' \(user input mutation\)"):
        treadle.compile(Written().eval(), example_inputs=(torch.randn(3),))


class Holder:
    """Has a tensor that no module has."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Aliased(nn.Module):
    """A buffer that is written by way of another tensor, as a cache that holds tensors does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(3))
        self.holder = Holder(self.get_buffer("sums").view(3))

    def forward(self, x: Any) -> Any:
        self.holder.tensor.add_(x)
        return self.holder.tensor + self.get_buffer("sums")


def test_a_program_that_pytorch_does_not_decompose_is_an_error() -> None:
    with pytest.raises(treadle.TreadleError, match=r"run_decompositions of torch\.export: .*; accepted: .*strict=True"):
        treadle.compile(Aliased().eval(), example_inputs=(torch.ones(3),))
