"""For which device a graph of PyTorch's compiler is compiled; `fake_libcuda/torch_cases.py` runs such graphs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from treadle.errors import TreadleError
from treadle.torch_backend import devices
from treadle.torch_backend.devices import OnGpu, OnHost, place_of
from treadle.torch_backend.partition import CompiledPart, partitioned


def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.relu(x) + 1, torch.relu(y) + 1


def traced(*places: str) -> fx.GraphModule:
    """A graph of two tensors there."""
    with FakeTensorMode():
        return make_fx(mixed)(*(torch.empty(3, 4, device=place) for place in places))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """With what the compiler was called, module aside."""
    found: list[tuple[object, ...]] = []

    def compile_model(module: object, target: Any = "cpu", device: int | None = None) -> object:
        found.append((str(getattr(target, "name", target)), device))
        return SimpleNamespace()

    monkeypatch.setattr(devices, "compile_model", compile_model)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(7, 5), (8, 6), (9, 0), (3, 0)][index])
    return found


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (("cpu", "cpu"), ("cpu", None)),
        (("cuda:0", "cuda:0"), ("sm_75", 0)),
        (("cuda:1", "cuda:1"), ("sm_86", 1)),
        (("cuda:2", "cpu"), ("sm_90a", 2)),
        (("cpu", "cuda:2"), ("sm_90a", 2)),
        (("cuda:1", "cuda:2"), ("sm_86", 1)),
    ],
)
def test_the_target_is_that_of_the_tensors_device(
    places: Sequence[str], expected: tuple[object, ...], compiled: list[tuple[object, ...]]
) -> None:
    graph = partitioned(traced(*places), {})
    assert compiled == [expected]
    parts = [each for each in graph.children() if isinstance(each, CompiledPart)]
    assert [len(each._part.taken) for each in parts] == [2 if len(set(places)) == 1 else 1]
    left = [str(node.target) for node in graph.graph.nodes if node.op == "call_function" and "aten" in str(node.target)]
    assert left == ([] if len(set(places)) == 1 else ["aten.relu.default", "aten.add.Tensor"])


def test_a_device_without_a_target_is_told(compiled: list[tuple[object, ...]]) -> None:
    with pytest.raises(TreadleError, match=r"no target for a GPU of compute capability 3\.0"):
        partitioned(traced("cuda:3", "cuda:3"), {})
    assert not compiled


def test_results_of_a_part_without_tensors_are_moved_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = np.arange(3, dtype=np.float32)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext(index))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, place: (tensor, place))
    called: dict[str, object] = {}

    def model(*arrays: object, stream: int) -> tuple[Any, ...]:
        called.update(arrays=arrays, stream=stream)
        return (made,)

    ((tensor, place),) = cast("Any", OnGpu(1).call(cast("Any", model), (), ("extent",)))
    assert called == {"arrays": ("extent",), "stream": 5}
    assert place == torch.device("cuda:1") and torch.equal(tensor, torch.arange(3.0))


def test_places_are_devices_of_pytorch() -> None:
    assert place_of(traced("cpu", "cpu").graph) == OnHost() and OnHost().device == torch.device("cpu")
    assert place_of(traced("cuda:1", "cpu").graph) == OnGpu(1) and OnGpu(1).device == torch.device("cuda:1")
