"""Normalisations."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draw import Draw, Recipes

_EPSILONS = (None, 1e-5, 1e-3, 0.5)


def _batch(d: Draw) -> None:
    name = d.tensor(d.types("BatchNormalization"), ranks=(2, 3, 4))
    x = d.array(name)
    scale, bias, mean = (d.of(x.dtype, (x.shape[1],)) for _ in range(3))
    variance = d.constant(d.rng.uniform(0.1, 4, x.shape[1]).astype(x.dtype))
    d.node("BatchNormalization", [name, scale, bias, mean, variance], epsilon=d.choice(_EPSILONS))


def _layer(d: Draw) -> None:
    name = d.tensor(d.types("LayerNormalization"), ranks=(1, 2, 3, 4))
    x = d.array(name)
    axis = d.between(-x.ndim, x.ndim - 1)
    rows = x.shape[axis:]
    bias = [d.of(x.dtype, rows)] if d.chance(0.6) else []
    outputs = d.choice((1, 1, 1, 3)) if x.dtype != np.float64 else 1
    scale, epsilon = d.of(x.dtype, rows), d.choice(_EPSILONS)
    d.node_of(outputs, "LayerNormalization", [name, scale, *bias], axis=axis, epsilon=epsilon)


def _rms(d: Draw) -> None:
    name = d.tensor(d.types("RMSNormalization"), ranks=(1, 2, 3, 4))
    x = d.array(name)
    axis = d.between(-x.ndim, x.ndim - 1)
    d.node("RMSNormalization", [name, d.of(x.dtype, x.shape[axis:])], axis=axis, epsilon=d.choice(_EPSILONS))


def _instance(d: Draw) -> None:
    name = d.tensor(d.types("InstanceNormalization"), ranks=(3, 4))
    x = d.array(name)
    scale, bias = (d.of(x.dtype, (x.shape[1],)) for _ in range(2))
    d.node("InstanceNormalization", [name, scale, bias], epsilon=d.choice(_EPSILONS))


def _group(d: Draw) -> None:
    name = d.tensor(d.types("GroupNormalization"), ranks=(3, 4), least=1)
    x = d.array(name)
    groups = d.choice([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    scale, bias = (d.of(x.dtype, (x.shape[1],)) for _ in range(2))
    d.node("GroupNormalization", [name, scale, bias], num_groups=groups, epsilon=d.choice(_EPSILONS))


def _mean_variance(d: Draw) -> None:
    name = d.tensor(d.types("MeanVarianceNormalization"), ranks=(2, 3, 4), least=1)
    rank = d.array(name).ndim
    d.node("MeanVarianceNormalization", [name], axes=sorted(d.random.sample(range(rank), d.between(1, rank))))


def _lp(d: Draw) -> None:
    name = d.tensor(d.types("LpNormalization"), ranks=(1, 2, 3, 4))
    d.node("LpNormalization", [name], axis=d.between(-1, d.array(name).ndim - 1), p=d.choice((1, 2)))


def _local(d: Draw) -> None:
    name = d.tensor(d.types("LRN"), ranks=(4,), least=1)
    d.node(
        "LRN",
        [name],
        size=d.choice((1, 3, 5)),
        alpha=d.choice((None, 0.5)),
        beta=d.choice((None, 0.5)),
        bias=d.choice((None, 2.0)),
    )


NORMALIZE: Recipes = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "RMSNormalization": _rms,
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp,
    "LRN": _local,
}

__all__ = ["NORMALIZE"]
