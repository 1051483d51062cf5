"""Ranges of shapes that models of the catalog are compiled for, and calls within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.models.shortened import STARTS
from treadle import Dim

Extent = Dim | int


@dataclass(frozen=True)
class Ranges:
    """A model's inputs with ranges, and some calls that every run makes, by the values of the symbols."""

    shapes: Mapping[str, Sequence[Extent]]
    calls: Sequence[Mapping[str, int]]

    @property
    def dims(self) -> list[Dim]:
        extents = [extent for shape in self.shapes.values() for extent in shape]
        return list(dict.fromkeys(extent for extent in extents if isinstance(extent, Dim)))

    def of_call(self, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(values[e.name] if isinstance(e, Dim) else e for e in shape)
            for name, shape in self.shapes.items()
        }


_TEXT = (Dim("batch", 1, 3), Dim("tokens", 1, 24))
RANGES: Mapping[str, Ranges] = {
    "minilm": Ranges(
        {"input_ids": _TEXT, "attention_mask": _TEXT},
        [{"batch": b, "tokens": t} for b, t in ((1, 1), (3, 24), (2, 13))],
    ),
    "mtcnn_pnet": Ranges(
        {"input_1": (Dim("n", 1, 2), Dim("h", 12, 60), Dim("w", 12, 80), 3)},
        [{"n": 1, "h": 12, "w": 12}, {"n": 2, "h": 60, "w": 80}, {"n": 1, "h": 43, "w": 61}],
    ),
    "ppocrv4_rec": Ranges({"x": (1, 3, 48, Dim("w", 32, 96))}, [{"w": 33}, {"w": 96}]),
    "ppocrv4_det": Ranges({"x": (1, 3, Dim("h", 32, 96, 32), Dim("w", 32, 128, 32))}, [{"h": 96, "w": 32}]),
}
"""Of whole models."""
QUICK: Mapping[str, Ranges] = {
    **RANGES,
    "ppocrv4_rec": Ranges({STARTS["ppocrv4_rec"]: (1, 480, 6, Dim("w", 8, 24))}, [{"w": 9}, {"w": 24}]),
}
"""Of the same models, with fewer layers where `shortened.py` has some to leave out."""
