"""What drawn models cover: operators; element types by ranks, extents and values of the tensors that are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.case import Case
from tests.fuzz.draw import RANKS
from tests.fuzz.shrink import all_values
from tests.fuzz.values import DTYPES

Array = NDArray[Any]

EXTENTS = ("0", "1", "prime", "power of 2", "other")
VALUES = ("NaN", "infinity", "-0", "subnormal", "end of type")
OF_INTEGERS = ("end of type",)
HEADINGS = (*(f"rank {rank}" for rank in sorted(set(RANKS))), *EXTENTS, *VALUES)


@dataclass
class Coverage:
    """Counts over models: of each operator, and for each element type of its tensors by rank, extents and values."""

    operators: Counter[str] = field(default_factory=Counter[str])
    tensors: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def add(self, case: Case) -> None:
        """Counts a model's operators and, for each tensor that an operator reads, what it is."""
        self.operators.update(case.operators)
        values = all_values(case) or {}
        for name in {name for node in case.nodes for name in node.input if name in values}:
            array = values[name]
            self.tensors.update((array.dtype.name, heading) for heading in _headings(array))

    def holes(self) -> list[str]:
        """Element types without a tensor of one of the ranks, extents or values that they have."""
        return [
            f"{dtype}: {heading}"
            for dtype in DTYPES
            for heading in HEADINGS
            if (heading not in VALUES or heading in _possible(dtype)) and not self.tensors[dtype.name, heading]
        ]

    def table(self) -> str:
        """The counts as text: a row for each element type, then the operators, the rarest first."""
        widths = [max(len(heading), 6) for heading in HEADINGS]
        lines = ["tensors that operators read:", _row("", HEADINGS, widths)]
        for dtype in DTYPES:
            cells = [str(self.tensors[dtype.name, heading] or "-") for heading in HEADINGS]
            lines.append(_row(dtype.name, cells, widths))
        rarest = ", ".join(f"{name} {count}" for name, count in reversed(self.operators.most_common()[-10:]))
        total = sum(self.operators.values())
        return "\n".join([*lines, f"{len(self.operators)} operators, {total} nodes; the rarest: {rarest}"])


def _row(name: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"{name:8} " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _possible(dtype: np.dtype[Any]) -> Sequence[str]:
    return VALUES if dtype.kind == "f" else OF_INTEGERS if dtype.kind in "iu" else ()


def _headings(array: Array) -> set[str]:
    values = _float_values(array) if array.dtype.kind == "f" else _integer_values(array)
    return {f"rank {array.ndim}", *map(_extent, array.shape), *(name for name, found in values.items() if found)}


def _extent(extent: int) -> str:
    if extent < 2:
        return str(extent)
    if all(extent % factor for factor in range(2, isqrt(extent) + 1)):
        return "prime"
    return "power of 2" if extent & (extent - 1) == 0 else "other"


def _float_values(array: Array) -> Mapping[str, bool]:
    info = np.finfo(array.dtype)
    magnitude = np.abs(array[np.isfinite(array)])
    return {
        "NaN": bool(np.isnan(array).any()),
        "infinity": bool(np.isinf(array).any()),
        "-0": bool((np.signbit(array) & (array == 0)).any()),
        "subnormal": bool(((magnitude > 0) & (magnitude < info.smallest_normal)).any()),
        "end of type": bool((magnitude == info.max).any()),
    }


def _integer_values(array: Array) -> Mapping[str, bool]:
    if array.dtype.kind == "b":
        return {}
    info = np.iinfo(array.dtype)
    return {"end of type": bool(((array == info.min) | (array == info.max)).any())}


__all__ = ["HEADINGS", "Coverage"]
