"""What a caller can observe of a function of tensors: values, strides, aliases, writes, gradients, structure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

Function = Callable[..., Any]


def observed(function: Function, inputs: Sequence[Any]) -> list[object]:
    """What a call of a function shows; afterwards each result that can be written is written, and all are read again.

    The inputs are copied first, as tensors that alias each other the same way.
    """
    given = copy.deepcopy(list(inputs))
    result = function(*given)
    leaves, structure = tree_flatten(result)
    tensors = [each for each in (*given, *leaves) if isinstance(each, torch.Tensor)]
    others = [each for each in leaves if not isinstance(each, torch.Tensor)]
    seen: list[object] = [str(structure), others, [_described(each) for each in tensors], _aliases(tensors)]
    seen.append([each.detach().clone() for each in tensors])
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and _writable(leaf):
            with torch.no_grad():
                leaf.logical_not_() if leaf.dtype == torch.bool else leaf.add_(3)
            seen.append([each.detach().clone() for each in tensors])
    return seen


def assert_same(compiled: Function, eager: Function, inputs: Sequence[Any], what: str = "") -> None:
    """That two functions show a caller the same; values may differ as PyTorch's own tests let them."""
    (*got, values), (*wanted, expected) = _parts(compiled, inputs), _parts(eager, inputs)
    for name, one, other in zip(("structure", "numbers", "tensors", "aliases"), got, wanted, strict=True):
        assert one == other, f"{what}: {name}\n{one}\n{other} in PyTorch"
    assert len(values) == len(expected)
    for step, (ours, theirs) in enumerate(zip(values, expected, strict=True)):
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(
                a, b, equal_nan=True, msg=lambda m, s=step, n=n: f"{what}: tensor {n}, write {s}: {m}"
            )


def _parts(function: Function, inputs: Sequence[Any]) -> list[Any]:
    seen = observed(function, inputs)
    return [*seen[:4], seen[4:]]


def _described(tensor: torch.Tensor) -> tuple[object, ...]:
    strides = tuple(s for s, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1 < tensor.numel())
    return (
        tuple(tensor.shape),
        strides,
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device.type,
        tensor.requires_grad,
        tensor.is_inference(),
    )


def _aliases(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """For each tensor, the first that is the same object, and the first of the same memory."""
    objects, memory = [id(each) for each in tensors], [each.untyped_storage().data_ptr() for each in tensors]
    empty = [not each.untyped_storage().nbytes() for each in tensors]
    return [(objects.index(objects[n]), -1 if empty[n] else memory.index(memory[n])) for n in range(len(tensors))]


def _writable(tensor: torch.Tensor) -> bool:
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return not tensor.numel() or all(stride or extent < 2 for extent, stride in strides)


__all__ = ["assert_same", "observed"]
