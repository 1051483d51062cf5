"""The registry of converters, by the name of the ATen operator and its overload."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.extensions import note_added
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.torch.call import Call

Converter = Callable[[Call, GraphBuilder], Tensor | Sequence[Tensor]]

_REGISTRY: dict[str, Converter] = {}


def converts(*operators: str) -> Callable[[Converter], Converter]:
    """Registers a converter for operators such as `aten.add.Tensor`, without their namespace.

    A converter gives the results in order; trailing ones may be left out, and are then not supported.
    """

    def register(function: Converter) -> Converter:
        for name in operators:
            assert name not in _REGISTRY, f"{name} is registered twice"
            _REGISTRY[name] = function
            note_added(name, function)
        return function

    return register


def find_converter(target: object) -> Converter | None:
    """The converter of a node's target, None if there is none.

    Operators of the namespace `treadle` are those of ATen under another name, by which PyTorch does not decompose them.
    """
    namespace, _, name = str(target).partition(".")
    return _REGISTRY.get(name) if namespace in ("aten", "treadle") else None


def supported_operators() -> list[str]:
    """Names of the operators that have a converter."""
    return sorted(f"aten.{name}" for name in _REGISTRY)


__all__ = ["Converter", "converts", "find_converter", "supported_operators"]
