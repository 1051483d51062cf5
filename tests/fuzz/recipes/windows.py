"""Pools, and other operators on images."""

from __future__ import annotations

from tests.fuzz.draw import Draw, Recipe, Recipes, Undrawable

_RESIZE_SINCE = 11
_DILATED_SINCE = 19
"""From which opset on AveragePool has dilations."""


def _image(d: Draw, operator: str) -> str:
    return d.tensor(d.types(operator), ranks=(3, 4, 4, 5), least=1)


def borders(d: Draw, pads: list[int]) -> dict[str, object]:
    """The attribute that pads an image: these numbers, or a rule."""
    rule = d.choice(("SAME_UPPER", "SAME_LOWER", "VALID")) if d.chance(0.15) else None
    return {"pads": pads} if rule is None else {"auto_pad": rule}


def _pool(operator: str) -> Recipe:
    def recipe(d: Draw) -> None:
        name = _image(d, operator)
        spatial = d.array(name).shape[2:]
        kernel = [d.between(1, min(3, e)) for e in spatial]
        pads = [d.between(0, k - 1) if d.chance(0.4) else 0 for _ in range(2) for k in kernel]
        strides = [d.between(1, 3) if d.chance(0.4) else 1 for _ in spatial]
        more = borders(d, pads)
        more["ceil_mode"] = d.choice((None, None, 1)) if "pads" in more else None
        # ONNX Runtime pads by a rule as if a dilated window were none.
        if "pads" in more and (operator == "MaxPool" or d.opset >= _DILATED_SINCE):
            is_wide = [d.chance(0.2) and e >= 2 * k - 1 for k, e in zip(kernel, spatial, strict=True)]
            more["dilations"] = [1 + wide for wide in is_wide] if any(is_wide) else None
        if operator == "AveragePool":
            more["count_include_pad"] = d.choice((None, 1))
        d.node(operator, [name], kernel_shape=kernel, strides=strides, **more)

    return recipe


def _global_pool(operator: str) -> Recipe:
    return lambda d: d.node(operator, [_image(d, operator)])


def _depth_to_space(d: Draw) -> None:
    block = d.choice((1, 2, 3))
    name = d.tensor(d.types("DepthToSpace"), (4,), lambda shape: shape[1] % (block * block) == 0, least=1)
    d.node("DepthToSpace", [name], blocksize=block, mode=d.choice(("DCR", "CRD")))


def _space_to_depth(d: Draw) -> None:
    block = d.choice((1, 2, 3))
    fits = lambda shape: shape[2] % block == 0 and shape[3] % block == 0  # noqa: E731
    d.node("SpaceToDepth", [d.tensor(d.types("SpaceToDepth"), (4,), fits, least=1)], blocksize=block)


def _resize(d: Draw) -> None:
    """What Treadle has: the nearest neighbour below, or by whole factors with half pixels."""
    if d.opset < _RESIZE_SINCE:
        raise Undrawable("older forms")
    name = d.tensor(d.types("Resize"), ranks=(2, 3, 4), least=1)
    shape = d.array(name).shape
    if d.chance(0.5):
        sizes = [e * d.choice((1, 2, 3)) for e in shape]
        modes = {
            "coordinate_transformation_mode": "half_pixel",
            "nearest_mode": d.choice(("round_prefer_floor", "round_prefer_ceil")),
        }
    else:
        sizes = [d.between(1, 2 * e) for e in shape]
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    d.node("Resize", [name, "", "", d.longs(sizes)], mode="nearest", **modes)


WINDOWS: Recipes = {
    **{operator: _pool(operator) for operator in ("MaxPool", "AveragePool")},
    **{operator: _global_pool(operator) for operator in ("GlobalAveragePool", "GlobalMaxPool")},
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Resize": _resize,
}

__all__ = ["WINDOWS", "borders"]
