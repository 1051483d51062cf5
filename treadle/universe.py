"""The universe that `xdsl-opt`, and any other xDSL tool, finds through the entry point `xdsl.universe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from xdsl.universe import Universe
from xdsl.utils.target import Target

from treadle.dialects.registry import dialect_factories
from treadle.lazy import resolve_class
from treadle.passes.registry import pass_factories

_TARGETS: Mapping[str, str] = {
    "c": "treadle.backends.c.text_target:CTarget",
    "cuda": "treadle.backends.cuda.text_target:CudaTarget",
}


def _target_factories() -> dict[str, Callable[[], type[Target]]]:
    return {name: partial(resolve_class, path, Target) for name, path in _TARGETS.items()}


TREADLE_UNIVERSE = Universe(
    all_dialects=dialect_factories(),
    all_passes=pass_factories(),
    all_targets=_target_factories(),
)
"""Treadle's dialects, passes and text targets, each imported at its first use."""
