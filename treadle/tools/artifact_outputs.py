"""What a compiled model in a folder computes: by itself, so that a child process imports nothing that compiles."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from treadle.model import load

Array = NDArray[Any]


def outputs_of_artifact(folder: str, emulated: bool, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The outputs for `inputs`, in order; `emulated`: of code for a GPU on the emulator."""
    with load(folder, device="emulator" if emulated else None) as model:
        return model(*inputs)


__all__ = ["outputs_of_artifact"]
