"""Every pass by name, imported when it is first asked for, so that tools start quickly."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from treadle.errors import TreadleError, TreadleWarning
from treadle.support.extensions import watch
from treadle.support.lazy import resolve_class
from treadle.target import TargetKind

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "graph": (
        "graph-inline-control",
        "graph-drop-empty",
        "graph-quantize-weights",
        "graph-quantized-products",
        "graph-fold-constants",
        "graph-simplify",
        "graph-recognize",
        "graph-mixed-precision",
        "graph-decompose-attention",
        "graph-decompose",
        "graph-channels-last",
        "graph-legalize-types",
        "graph-block-channels",
        "graph-conv-to-matmul",
        "graph-deduplicate",
        "graph-merge-matmuls",
        "graph-pack-tiles",
        "graph-multiply-bytes",
        "graph-pack-weights",
        "graph-define",
        "graph-merge-rows",
        "graph-inline",
        "graph-fuse",
        "graph-pack-dequantized",
        "graph-required-regions",
    ),
    "schedule": ("schedule-select", "schedule-instantiate"),
    "loop": (
        "loop-fuse-prologue",
        "loop-fuse-epilogue",
        "loop-skip-padding",
        "loop-clamp-reductions",
        "hopper-form-boxes",
        "loop-tail-tiles",
        "loop-dense-arguments",
        "loop-simplify-index",
        "loop-delinearize",
        "loop-hoist-invariants",
        "loop-flatten",
        "loop-lower-copies",
        "loop-resolve-swizzles",
        "loop-vectorize",
        "loop-transpose-loads",
        "loop-factor-sums",
        "loop-lookup-tables",
        "loop-vectorize-accesses",
        "loop-unroll",
        "loop-prove-bounds",
        "loop-prefetch",
        "loop-split-register-tiles",
    ),
    "lower": (
        "tile-lower",
        "task-lower",
        "memory-plan",
        "loop-lower-accesses",
        "loop-to-c",
        "loop-to-cuda",
        "loop-to-upstream",
    ),
}

FORMER_NAMES: Mapping[str, str] = {
    "graph-demand": "graph-required-regions",
    "graph-float-convolutions": "graph-legalize-types",
    "graph-widen-convolutions": "graph-legalize-types",
    "graph-widen-matmuls": "graph-legalize-types",
    "loop-end-sums": "loop-clamp-reductions",
    "loop-halve-tiles": "loop-split-register-tiles",
    "loop-shorten-tiles": "loop-tail-tiles",
    "loop-trim": "loop-skip-padding",
}
"""Names that `parse_passes` still takes, with a warning."""


@dataclasses.dataclass(frozen=True)
class AddedPass:
    """A pass from outside of the package, and its place among Treadle's.

    kind:    its class, whose `name` has to be its own and whose options have defaults
    after:   the pass behind whose last occurrence it runs, or the stage at whose end
    reason:  why there
    targets: the kinds of targets for which it runs
    """

    kind: type[ModulePass]
    after: str
    reason: str
    targets: tuple[TargetKind, ...] = ("cpu", "cuda")


ADDED_PASSES: dict[str, AddedPass] = {}
"""By name, those that `treadle.compiler.pipeline.register_pass` added."""
watch(__name__, ADDED_PASSES)

PassFactory = Callable[[], type[ModulePass]]


def pass_path(name: str, group: str) -> str:
    """Where a pass lives: `task-lower` of group `lower` is `treadle.passes.lower.task_lower:TaskLowerPass`."""
    words = name.split("-")
    return f"treadle.passes.{group}.{'_'.join(words)}:{''.join(map(str.capitalize, words))}Pass"


PASSES: Mapping[str, str] = {name: pass_path(name, group) for group, names in _GROUPS.items() for name in names}
"""Module and class of each pass, by its name."""


def pass_factories() -> dict[str, PassFactory]:
    """Treadle's passes by name, and those that were added; a factory imports its pass when it is called."""
    own = {name: partial(resolve_class, path, ModulePass) for name, path in PASSES.items()}
    return {**own, **{name: partial(_kind_of, added) for name, added in ADDED_PASSES.items()}}


def _kind_of(added: AddedPass) -> type[ModulePass]:
    return added.kind


def parse_passes(spec: str, available: Mapping[str, PassFactory] | None = None) -> tuple[ModulePass, ...]:
    """The passes that `spec` names, in xDSL's syntax: `task-lower,schedule-select{target=cpu}`.

    A former name warns of the present one. Raises TreadleError that names the unknown pass and the nearest known ones,
    or the option that does not fit.
    """
    factories = pass_factories() if available is None else available
    try:
        wanted = tuple(parse_pipeline(spec))
    except ArgSpecParseError as error:
        reason = " ".join(str(error).splitlines()[-1].replace("^", "").split())
        raise TreadleError(f"cannot read {spec!r}: {reason}", "passes", "names like a,b{option=value}") from error
    passes: list[ModulePass] = []
    for given in wanted:
        each = given
        if given.name not in factories and given.name in FORMER_NAMES:
            each = dataclasses.replace(given, name=FORMER_NAMES[given.name])
            warnings.warn(f"the pass '{given.name}' is called '{each.name}' now", TreadleWarning, stacklevel=2)
        if each.name not in factories:
            raise unknown("pass", each.name, factories)
        kind = factories[each.name]()
        try:
            passes.append(kind.from_spec(each))
        except ValueError as error:
            raise TreadleError(str(error), f"pass '{each.name}'", _options(kind)) from error
    return tuple(passes)


def unknown(what: str, name: str, known: Iterable[str]) -> TreadleError:
    """The error for a name that is not known; it offers the nearest ones, or all when they are few or none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3)
    shown = near if near and len(names) > len(near) + 8 else _own_first(names)
    return TreadleError(f"unknown {what} '{name}'", accepted=shown)


def _own_first(names: list[str]) -> list[str]:
    own = [name for name in names if name in PASSES]
    return own or names


def _options(kind: type[ModulePass]) -> str:
    names = [option.name for option in dataclasses.fields(kind)]
    return "the options " + ", ".join(names) if names else "no options"
