"""Loads installed plug-ins, once a process, before anything is compiled."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import TYPE_CHECKING

from treadle.environment import load_environment
from treadle.errors import TreadleError, TreadleWarning
from treadle.support.lazy import lazy_module

if TYPE_CHECKING:
    from treadle.plugins import kinds
else:  # nothing is imported where there are no plug-ins
    kinds = lazy_module("treadle.plugins.kinds")

_UNIVERSES = "xdsl.universe"
GROUPS = (
    "treadle.targets", _UNIVERSES, "treadle.converters", "treadle.passes", "treadle.templates", "treadle.rules",
)  # fmt: skip
"""The groups of entry points, in the order in which they are loaded; the universes are xDSL's way to name dialects."""
_HAVE_THEIRS = ("treadle", "xdsl")
"""Packages of universes whose dialects are there without being added."""

_lock = threading.RLock()
_loaded: set[tuple[str, str]] = set()
"""Groups, and what their entries name."""
_is_done = False


def load_plugins() -> None:
    """Adds what installed packages name in their entry points (docs/plugins.md), at the first call in a process.

    A plug-in that cannot be imported, or that Treadle does not accept, is skipped with a TreadleWarning that names it.
    TreadleError for two plug-ins of one name in a group. With TREADLE_PLUGINS=off nothing is loaded.
    """
    global _is_done
    if _is_done or not load_environment().plugins:
        return
    with _lock:
        if _is_done:
            return
        every = entry_points()
        found = {group: sorted(every.select(group=group), key=lambda entry: entry.name) for group in GROUPS}
        for group, entries in found.items():
            if group != _UNIVERSES:  # they are added by the names of their dialects
                _check_names(group, entries)
        found[_UNIVERSES] = [each for each in found[_UNIVERSES] if each.value.partition(".")[0] not in _HAVE_THEIRS]
        _is_done = True  # a plug-in that compiles while it is imported does so without those behind it
        for group, entries in found.items():
            for entry in entries:
                if (group, entry.value) not in _loaded:
                    _loaded.add((group, entry.value))
                    _load(group, entry)


def _check_names(group: str, entries: Sequence[EntryPoint]) -> None:
    for one, other in pairwise(entries):
        if one.name == other.name:
            message = f"there are two plug-ins '{one.name}': of {_origin(one)} and of {_origin(other)}"
            raise TreadleError(
                message, group, "one of each name: uninstall one of the packages, or TREADLE_PLUGINS=off"
            )


def _load(group: str, entry: EntryPoint) -> None:
    try:
        if group == _UNIVERSES:
            kinds.register_universe(entry.value)
        else:
            kinds.ADD[group](entry.load())
    except Exception as error:  # whatever its code raises
        reason = str(error) if isinstance(error, TreadleError) else f"{type(error).__name__}: {error}"
        words = f"the plug-in '{entry.name}' of {group}, from {_origin(entry)}, is skipped: {reason}"
        warnings.warn(words, TreadleWarning, stacklevel=4)


def _origin(entry: EntryPoint) -> str:
    """The package that has an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
