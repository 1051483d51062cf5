"""The template that schedules an anchor unless a search or a person chooses another one."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.schedules.template import Template, has_elements
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


def default_template(anchor: Operation, target: Target) -> Template | None:
    """The first template that fits the anchor and has a default for the target; None for tensors without elements, and
    if none does.

    A template of lower precision comes first where the anchor allows that (`precision = "tf32"`), and never elsewhere.
    """
    if not isinstance(anchor, ComputeOp | WholeOp) or not has_elements(anchor):
        return None
    for wanted in _precisions(anchor):
        for template in TEMPLATES.values():
            if not template.runs_on(target) or template.precision != wanted:
                continue
            if template.fits(anchor) and template.has_default(anchor, target):
                return template
    return None


def obstacles(anchor: Operation, target: Target) -> dict[str, str]:
    """Why an anchor does not get by default the templates that are tried before its own, by their names: of those that
    have something to say about it."""
    found: dict[str, str] = {}
    if not isinstance(anchor, ComputeOp | WholeOp) or not has_elements(anchor):
        return found
    chosen = default_template(anchor, target)
    for template in TEMPLATES.values():
        if template is chosen:
            break
        why = template.obstacle(anchor, target) if template.kind == target.kind else None
        if why is not None:
            found[template.name] = why
    return found


def is_allowed(template: Template, anchor: Operation, target: Target) -> bool:
    """Whether a template is for the target, and as exact as the anchor asks for."""
    return template.runs_on(target) and template.precision in _precisions(anchor)


def _precisions(anchor: Operation) -> tuple[str, ...]:
    allowed = anchor.properties.get("precision")
    return (allowed.data, "f32") if isinstance(allowed, StringAttr) else ("f32",)


__all__ = ["default_template", "is_allowed", "obstacles"]
