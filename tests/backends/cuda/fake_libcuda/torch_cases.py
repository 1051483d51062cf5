"""Graphs of PyTorch's compiler whose tensors are on a GPU. PyTorch has none here: graphs are traced with fake tensors
of CUDA, and calls get tensors of `framework`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.backends.cuda.fake_libcuda.device_cases import framework
from tests.backends.cuda.fake_libcuda.framework import ByDLPack, Framework, calls, consumed, forget_calls, waits
from tests.backends.cuda.fake_libcuda.model_cases import compiling
from treadle.torch_backend.devices import OnGpu
from treadle.torch_backend.partition import CompiledPart, partitioned

INDEX = 1


class TorchTensor(ByDLPack):
    """A tensor with what the backend asks of PyTorch's."""

    def detach(self) -> TorchTensor:
        return self

    def resolve_neg(self) -> TorchTensor:
        return self

    def contiguous(self) -> TorchTensor:
        return self

    def to(self, dtype: torch.dtype) -> TorchTensor:
        assert dtype == torch.float32
        return self


def traced(function: Callable[..., object], *shapes: tuple[int, ...], device: str) -> fx.GraphModule:
    """The graph of a function of tensors on a device."""
    # PyTorch looks for devices with its own runtime, which asks more than the fake driver knows, and warns.
    with warnings.catch_warnings(action="ignore"), FakeTensorMode():
        return make_fx(function)(*(torch.empty(shape, device=device) for shape in shapes))


@contextmanager
def pytorch_on(library: Framework) -> Generator[None]:
    """PyTorch's questions about CUDA, answered for a device of the fake driver."""

    def from_dlpack(array: Any) -> torch.Tensor:
        found, device = consumed(array, library.stream, max_version=(1, 0))
        assert device == (2, INDEX)
        return torch.from_numpy(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda index: {INDEX: (8, 0)}[index])
        patch.setattr(torch.cuda, "device", lambda index: nullcontext(index))
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=library.stream))
        patch.setattr(torch, "from_dlpack", from_dlpack)
        yield


def a_graph_on_a_gpu_runs_there() -> None:
    """The target is that of the tensors' device; results are PyTorch's, with its strides, and nothing is waited for."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, (y + 1).t()

    x, w = (
        np.random.default_rng(n).uniform(-1, 1, shape).astype(np.float32) for n, shape in enumerate(((6, 8), (8, 10)))
    )
    with framework(INDEX) as library, compiling(), pytorch_on(library):
        graph = partitioned(traced(function, x.shape, w.shape, device=f"cuda:{INDEX}"), {})
        (part,) = [each for each in graph.children() if isinstance(each, CompiledPart)]
        assert part._place == OnGpu(INDEX) and part._model.target == "sm_80"
        given = [cast("torch.Tensor", library.tensor(each, TorchTensor)) for each in (x, w)]
        graph(*given)
        forget_calls()
        results = graph(*given)
        assert waits() == 0 and calls("HtoD", "DtoH", "cuGraphLaunch", "cuLaunchKernel") == [0, 0, 1, 0]
        library.synchronize()
        for result, expected in zip(results, function(torch.from_numpy(x), torch.from_numpy(w)), strict=True):
            assert result.stride() == expected.stride()
            np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
        part._model.close()


CASES = (a_graph_on_a_gpu_runs_there,)
