"""How much memory a compiled model takes, by its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.artifact.manifest import Manifest, Tensor
from treadle.shapes.states import given_of, made_of


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes while a call runs, beside the caller's inputs and the code.

    weights: its constants, equal ones once
    scratch: what temporaries share
    inputs:  copies of inputs: on a GPU all of them; on a CPU those that kernels read in their largest shape
    outputs: of a call; those that kernels write in their largest shape once more as they are returned
    states:  what is kept between calls; one that is not changed in place twice

    On a CPU an input that is not contiguous is copied, too, and each thread has a stack, whose local arrays stay below
    4 MiB.
    """

    weights: int
    scratch: int
    inputs: int
    outputs: int
    states: int = 0

    @property
    def peak(self) -> int:
        """All together."""
        return self.weights + self.scratch + self.inputs + self.outputs + self.states

    def __str__(self) -> str:
        words = "weights", "scratch", "inputs", "outputs", "states"
        parts = [(word, getattr(self, word)) for word in words]
        told = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in parts if size)
        return f"{self.peak / 1e6:.1f} MB{f' ({told})' if told else ''}"


def memory_of(manifest: Manifest) -> Memory:
    """The memory of a call with the largest shapes."""
    inputs, outputs = given_of(manifest.inputs, manifest.states), made_of(manifest.outputs, manifest.states)
    changing = [tensor for tensor in inputs if tensor.extents and not tensor.dense]
    cut = [tensor for tensor in outputs if tensor.extents and not tensor.dense]
    return Memory(
        weights=_bytes({tensor.name: tensor for tensor in manifest.constants}.values()),
        scratch=manifest.arena_bytes + manifest.zeroed_bytes,
        inputs=_bytes(changing) + (_bytes(inputs) if manifest.kind == "cuda" else 0),
        outputs=_bytes(outputs) + _bytes(cut),
        states=sum(
            manifest.inputs[state.argument].num_bytes * (1 if state.in_place else 2) for state in manifest.states
        ),
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


__all__ = ["Memory", "memory_of"]
