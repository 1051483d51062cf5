"""Outputs of a program without what lies beyond extents that depend on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from treadle.artifact.manifest import Tensor
from treadle.backends.program import Program
from treadle.shapes.dynamic import DynamicCalls

Array = NDArray[Any]


def within_extents(program: Program, outputs: Sequence[Array]) -> list[Array]:
    """What a `CompiledModel` gives of them; of a range all, whose calls say the symbols."""
    if not program.found or program.symbols:
        return list(outputs)
    pairs = zip(program.outputs, program.output_extents, strict=True)
    tensors = [Tensor(spec.name, spec.shape, str(spec.dtype), extents) for spec, extents in pairs]
    return DynamicCalls((), (), (), tensors, program.found).results(outputs, {})
