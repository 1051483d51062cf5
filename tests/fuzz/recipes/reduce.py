"""Reductions, and positions of extrema."""

from __future__ import annotations

from tests.fuzz.draw import Draw, Recipe, Recipes

_FOLDS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceProd",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


def _axes(d: Draw, rank: int) -> list[int] | None:
    """Some axes, some counted from the end; None for all."""
    if rank == 0 or d.chance(0.2):
        return None
    axes = d.random.sample(range(rank), d.between(1, rank))
    return [axis - rank if d.chance(0.3) else axis for axis in axes]


def _fold(operator: str) -> Recipe:
    def recipe(d: Draw) -> None:
        name = d.tensor(d.types(operator))
        axes = _axes(d, d.array(name).ndim)
        keep = d.choice((None, 0, 1))
        if d.opset < (13 if operator == "ReduceSum" else 18):
            d.node(operator, [name], axes=axes, keepdims=keep)
            return
        noop = 1 if axes is None and d.chance(0.2) else None
        given = [] if axes is None else [d.longs(axes)]
        d.node(operator, [name, *given], keepdims=keep, noop_with_empty_axes=noop)

    return recipe


def _arg(operator: str) -> Recipe:
    def recipe(d: Draw) -> None:
        name = d.tensor(d.types(operator), ranks=(1, 2, 3, 4, 5), least=1)
        rank = d.array(name).ndim
        last = d.choice((None, 1)) if d.opset >= 12 else None
        axis = d.between(-rank, rank - 1)
        d.node(operator, [name], axis=axis, keepdims=d.choice((None, 0, 1)), select_last_index=last)

    return recipe


def _softmax(operator: str) -> Recipe:
    def recipe(d: Draw) -> None:
        name = d.tensor(d.types(operator), ranks=(1, 2, 3, 4, 5))
        rank = d.array(name).ndim
        d.node(operator, [name], axis=d.between(-rank, rank - 1) if d.chance(0.8) else None)

    return recipe


REDUCE: Recipes = {
    **{operator: _fold(operator) for operator in _FOLDS},
    **{operator: _arg(operator) for operator in ("ArgMax", "ArgMin")},
    **{operator: _softmax(operator) for operator in ("Softmax", "LogSoftmax")},
}

__all__ = ["REDUCE"]
