"""What entry points of plug-ins are, and how each is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from treadle.compiler.pipeline import register_pass
from treadle.dialects.registry import register_universe
from treadle.errors import TreadleError
from treadle.frontends.onnx.functions import is_converter
from treadle.passes.registry import ADDED_PASSES
from treadle.passes.registry import AddedPass as PassPlugin
from treadle.schedules.registration import register_rule, register_template
from treadle.schedules.rules import Rule
from treadle.schedules.rules.tiling import OWN_RULES
from treadle.schedules.template import Template
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target, TargetKind, register_target
from treadle.target.description import ADDED_TARGETS


@dataclass(frozen=True)
class TemplatePlugin:
    """A template, and the one in front of which it is tried; see `treadle.scheduling.register_template`."""

    template: Template | type[Template]
    before: str | None = None


@dataclass(frozen=True)
class RulePlugin:
    """A rule, for a kind of target; see `treadle.scheduling.register_rule`."""

    rule: Rule
    kind: TargetKind = "cpu"
    last: bool = False


def _add_pass(plugin: object) -> None:
    if not isinstance(plugin, PassPlugin):
        raise _mistaken(plugin, "a treadle.plugins.PassPlugin")
    if ADDED_PASSES.get(plugin.kind.name) != plugin:
        register_pass(plugin)


def _add_template(plugin: object) -> None:
    given = plugin if isinstance(plugin, TemplatePlugin) else TemplatePlugin(plugin)  # pyright: ignore[reportArgumentType]
    kind = given.template if isinstance(given.template, type) else type(given.template)
    if type(TEMPLATES.get(getattr(kind, "name", ""))) is not kind:
        register_template(given.template, given.before)


def _add_rule(plugin: object) -> None:
    given = plugin if isinstance(plugin, RulePlugin) else RulePlugin(plugin)  # pyright: ignore[reportArgumentType]
    if all(own.rule is not given.rule or own.kind != given.kind for own in OWN_RULES.values()):
        register_rule(given.rule, given.kind, last=given.last)


def _add_converter(plugin: object) -> None:
    if not is_converter(plugin):
        raise _mistaken(plugin, "a function under @treadle.plugins.converts")


def _add_target(plugin: object) -> None:
    if not isinstance(plugin, Target):
        raise _mistaken(plugin, "a treadle.Target")
    if ADDED_TARGETS.get(plugin.name) != plugin:
        register_target(plugin)


def _mistaken(plugin: object, accepted: str) -> TreadleError:
    return TreadleError(f"it is a {type(plugin).__name__}", accepted=accepted)


ADD: Mapping[str, Callable[[object], None]] = {
    "treadle.targets": _add_target,
    "treadle.converters": _add_converter,
    "treadle.passes": _add_pass,
    "treadle.templates": _add_template,
    "treadle.rules": _add_rule,
}
"""By the group of entry points. What is there already, as in a worker of a search, is not added again."""

__all__ = ["ADD", "PassPlugin", "RulePlugin", "TemplatePlugin", "register_universe"]
