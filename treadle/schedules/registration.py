"""Adding templates and rules of a program, or of a plug-in, to Treadle's."""

from __future__ import annotations

import inspect
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from types import FunctionType, TracebackType
from typing import Any, cast, get_args

from treadle.dialects.schedule import choice_text
from treadle.errors import TreadleError
from treadle.schedules.rules import Rule
from treadle.schedules.rules.tiling import OWN_RULES, OwnRule
from treadle.schedules.template import Knob, Template
from treadle.schedules.templates import TEMPLATES
from treadle.support.extensions import note_source
from treadle.target import TargetKind
from treadle.target.options import PRECISIONS

_KINDS: tuple[TargetKind, ...] = get_args(TargetKind)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Registration:
    """What `register_template` or `register_rule` added; `remove` takes it away, and so does the end of a `with`."""

    name: str
    registry: MutableMapping[str, Any]

    def remove(self) -> None:
        """Takes it away; nothing if that was done."""
        self.registry.pop(self.name, None)

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def register_template(template: Template | type[Template], before: str | None = None) -> Registration:
    """Adds a template to Treadle's: a search tries its schedules for every anchor that it fits.

    template: an instance, or a class, which is made one without arguments
    before:   name of the template in front of which it is tried: it is the default of an anchor that it fits, unless
        one before it is; without a name it is tried last

    The keys of caches and of tuned schedules contain a digest of its sources: the Python files of its module's package,
    or of its module's folder. Register before the first compilation. TreadleError for a name that is taken or no word,
    another kind of target than `cpu` and `cuda`, methods that are missing, no knobs, a value that `#schedule.use`
    cannot hold, and an unknown `before`.
    """
    made = _instance(template)
    name, where = made.name, f"template {made.name!r}"
    if name in TEMPLATES:
        raise TreadleError(f"there is a template {name!r}", "register_template", f"none of {', '.join(TEMPLATES)}")
    if made.kind not in _KINDS:
        raise TreadleError(f"kind is {made.kind!r}", where, _KINDS)
    if made.precision not in PRECISIONS:
        raise TreadleError(f"precision is {made.precision!r}", where, PRECISIONS)
    _check_knobs(made, where)
    if before is not None and before not in TEMPLATES:
        raise TreadleError(f"there is no template {before!r} to be tried after it", where, sorted(TEMPLATES))
    behind = list(TEMPLATES).index(before) if before is not None else len(TEMPLATES)
    ordered = list(TEMPLATES.items())
    TEMPLATES.clear()
    TEMPLATES.update([*ordered[:behind], (name, made), *ordered[behind:]])
    return Registration(name, TEMPLATES)


def register_rule(rule: Rule, kind: TargetKind = "cpu", *, last: bool = False) -> Registration:
    """Adds a rule to those that write the schedule programs of a kind of target, in searches and in the construction of
    schedules by prediction.

    rule: a function at the top of a module
    last: whether it goes on from drafts that Treadle's rules have written; else it is applied behind `templates`, and
        Treadle's rules go on from what it writes

    Caches know its sources as those of a template. TreadleError for another kind, a rule that is registered for this
    one, and what is no function of a module, such as a lambda.
    """
    if kind not in _KINDS:
        raise TreadleError(f"kind is {kind!r}", "register_rule", _KINDS)
    if not isinstance(rule, FunctionType) or "<" in rule.__qualname__:
        raise TreadleError(f"{rule!r} is no rule", "register_rule", "a function at the top of a module")
    name = f"{kind} {rule.__module__}.{rule.__qualname__}"
    if name in OWN_RULES:
        raise TreadleError(f"the rule {rule.__qualname__!r} is registered for {kind}", "register_rule", "another one")
    note_source(rule)
    OWN_RULES[name] = OwnRule(rule, kind, last)
    return Registration(name, OWN_RULES)


def _instance(template: object) -> Template:
    """The template, which has a name, a kind and knobs."""
    kind = template if isinstance(template, type) else type(template)
    where = f"template {kind.__name__}"
    if not issubclass(kind, Template):
        raise TreadleError(f"{kind.__name__} is no template", "register_template", "a subclass of Template")
    missing = [name for name in ("name", "kind", "knobs") if not hasattr(kind, name)]
    missing += sorted(kind.__abstractmethods__)
    if missing:
        raise TreadleError(f"it has no {' and no '.join(missing)}", where, "a template that defines them")
    if not isinstance(kind.name, str) or _WORD.fullmatch(kind.name) is None:  # pyright: ignore[reportUnnecessaryIsInstance]  # of untyped callers
        raise TreadleError(f"its name is {kind.name!r}", where, "letters, digits and underscores")
    if isinstance(template, Template):
        return template
    if inspect.signature(kind).parameters:
        raise TreadleError("its class takes arguments", where, "an instance of it")
    return kind()


def _check_knobs(template: Template, where: str) -> None:
    knobs: Any = template.knobs  # of untyped callers
    if not isinstance(knobs, tuple) or not all(isinstance(each, Knob) for each in cast("tuple[object]", knobs)):
        raise TreadleError(f"its knobs are {knobs!r}", where, "a tuple of Knob")
    names = [knob.name for knob in template.knobs]
    for knob in template.knobs:
        if names.count(knob.name) > 1 or _WORD.fullmatch(knob.name) is None:
            said = "there twice" if names.count(knob.name) > 1 else "no name of a knob"
            raise TreadleError(f"{knob.name!r} is {said}", where, "letters, digits and underscores, each name once")
        if not knob.values:
            raise TreadleError(f"knob {knob.name!r} has no values", where, "one or more")
        if knob.unless_given is not None and not knob.allows(knob.unless_given):
            raise TreadleError(f"knob {knob.name!r} is {knob.unless_given!r} unless given", where, "one of its values")
        for value in knob.values:
            if not _is_choice(value):
                message = f"knob {knob.name!r} has the value {value!r} of type {type(value).__name__}"
                raise TreadleError(message, where, f"int, bool, str, tuple of int, as in {choice_text((4, 8))}")


def _is_choice(value: object) -> bool:
    if isinstance(value, tuple):
        return all(type(each) is int for each in cast("tuple[object]", value))
    return type(value) in (int, bool, str)
