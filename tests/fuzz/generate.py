"""A model from a seed."""

from __future__ import annotations

from tests.fuzz.case import Case
from tests.fuzz.draw import Draw, Undrawable
from tests.fuzz.recipes import QUANTIZED, RECIPES

OPSETS = (11, 13, 17, 18, 18, 20, 21, 21, 22, 23, 24, 28)
ATTEMPTS = 60
MOSTLY = 0.6
"""How many nodes of a quantised model are operators on quantised numbers."""


def case_of_seed(seed: int, quantized: bool = False) -> Case:
    """A model of one to eight nodes that returns what nothing reads, and some of what is read; quantised ones have
    operators on quantised numbers."""
    draw = Draw(seed)
    draw.opset = draw.choice(OPSETS)
    wanted = draw.between(1, 8)
    operators = sorted(RECIPES)
    for _ in range(ATTEMPTS):
        if len(draw.nodes) >= wanted:
            break
        try:
            if quantized and draw.chance(MOSTLY):
                QUANTIZED[draw.choice(sorted(QUANTIZED))](draw)
            else:
                RECIPES[draw.choice(operators)](draw)
        except Undrawable:
            continue
    read = {name for node in draw.nodes for name in node.input}
    made = [name for node in draw.nodes for name in node.output]
    draw.inputs = {name: array for name, array in draw.inputs.items() if name in read}
    draw.constants = {name: array for name, array in draw.constants.items() if name in read}
    return draw.case([name for name in made if name not in read or draw.chance(0.15)])


__all__ = ["case_of_seed"]
