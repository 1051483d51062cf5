"""Where the tensors of a graph are: what is compiled for that device, and how a part takes and gives tensors there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import fx
from xdsl.dialects.builtin import ModuleOp

from treadle.api import compile as compile_model
from treadle.backends.cuda.device_array import DeviceArray
from treadle.frontends.torch.call import array_of, tensor_of
from treadle.model import CompiledModel
from treadle.target import Target

Array = NDArray[Any]


class Place(Protocol):
    """A device on which compiled parts of a graph run."""

    @property
    def device(self) -> torch.device:
        """Whose tensors a part takes and gives."""
        ...

    def compile(self, module: ModuleOp) -> CompiledModel:
        """The model of a part."""
        ...

    def call(self, model: CompiledModel, tensors: Sequence[torch.Tensor], rest: Sequence[Any]) -> list[torch.Tensor]:
        """The model's outputs for its first inputs, in order, and the rest of them, which are arrays of the host."""
        ...


@dataclass(frozen=True)
class OnHost:
    """The processor of this machine; tensors and arrays share their memory."""

    device = torch.device("cpu")

    def compile(self, module: ModuleOp) -> CompiledModel:
        """See `Place`."""
        return compile_model(module)

    def call(self, model: CompiledModel, tensors: Sequence[torch.Tensor], rest: Sequence[Any]) -> list[torch.Tensor]:
        """See `Place`."""
        return [tensor_of(array) for array in model(*(array_of(x, f"input {n}") for n, x in enumerate(tensors)), *rest)]


@dataclass(frozen=True)
class OnGpu:
    """A GPU; tensors stay there, and a call is queued on PyTorch's current stream of it."""

    index: int

    @property
    def device(self) -> torch.device:
        """See `Place`."""
        return torch.device("cuda", self.index)

    def compile(self, module: ModuleOp) -> CompiledModel:
        """As `Place`, for the compute capability of the device; TreadleError if there is no target for it."""
        capability = torch.cuda.get_device_capability(self.index)
        return compile_model(module, Target.for_capability(*capability), device=self.index)

    def call(self, model: CompiledModel, tensors: Sequence[torch.Tensor], rest: Sequence[Any]) -> list[torch.Tensor]:
        """As `Place`. PyTorch lends tensors of its current device alone; kernels take them contiguous."""
        with torch.cuda.device(self.index):
            stream = torch.cuda.current_stream().cuda_stream
            given = [x.detach().resolve_neg().contiguous() for x in tensors]
            return [self._tensor(result) for result in model(*given, *rest, stream=stream)]

    def _tensor(self, result: Array | DeviceArray) -> torch.Tensor:
        """A result of a model; one whose inputs are all on the host, or that has none, gives arrays there."""
        return torch.from_dlpack(result) if isinstance(result, DeviceArray) else tensor_of(result).to(self.device)


def place_of(graph: fx.Graph) -> Place:
    """Where a graph is compiled for: the first GPU that a tensor of it is on, else the host. Operators with tensors
    elsewhere run in PyTorch."""
    values = [node.meta.get("val") for node in graph.nodes]
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    gpu = next((device for device in devices if device.type == "cuda"), None)
    return OnHost() if gpu is None else OnGpu(gpu.index)


__all__ = ["OnGpu", "OnHost", "Place", "place_of"]
