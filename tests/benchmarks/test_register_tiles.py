"""Register tiles: of each group the quickest turn counts."""

from __future__ import annotations

from benchmarks.register_tiles import Product, quickest


def product(group: str, default: float, variant: float) -> Product:
    return Product("m", group, (7, 64, 64), 1, "@matmul_cpu", default, {"rows=5": variant})


def test_a_turn_with_half_the_processor_does_not_count() -> None:
    turns = [
        [product("a", 100.0, 110.0), product("b", 400.0, 420.0)],
        [product("a", 200.0, 100.0), product("b", 201.0, 210.0)],
    ]
    assert quickest(turns) == [turns[0][0], turns[1][1]]
