"""`make docs`: brings the tables of docs/schedules.md up to date with the templates."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.schedule_cases import cases, compiled_default
from benchmarks.warpgroup_kernels import forms
from docs.build.architecture import Excerpts, rewrite
from treadle.backends.cuda.machine_code import disassemble
from treadle.schedules.template import Knob, values_text
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.tools.reporting import run_reporting

DOCUMENT = "docs/schedules.md"
TARGETS = ("sm_80", "sm_90")


def main() -> int:
    """Rewrites the document; prints whether it changed."""
    return run_reporting("render_schedules", lambda: rewrite({DOCUMENT: EXCERPTS}))


def _table(header: list[str], rows: Iterator[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _knobs() -> str:
    """Every template's knobs."""
    rows = (
        [f"`{template.name}`", f"`{knob.name}`", _values(knob), knob.meaning + _unless_given(knob)]
        for template in TEMPLATES.values()
        for knob in template.knobs
    )
    return _table(["template", "knob", "values", "meaning"], rows)


def _values(knob: Knob) -> str:
    """What may be chosen."""
    return values_text(knob.values, _value)


def _unless_given(knob: Knob) -> str:
    return "" if knob.unless_given is None else f"; {_value(knob.unless_given)} unless given, no search tries others"


def _value(value: object) -> str:
    return f"{value[0]} x {value[1]}" if isinstance(value, tuple) else str(value).lower()


def _spaces() -> str:
    """How many schedules there are for each anchor."""

    def rows() -> Iterator[list[str]]:
        for case in cases().values():
            spaces = [case.space(Target.parse(name)) for name in TARGETS]
            template = case.default(Target.parse(TARGETS[0])).template.data
            yield [case.name, f"`{template}`", str(spaces[0].combinations), *(str(len(space)) for space in spaces)]

    return _table(["anchor", "template", "combinations", *TARGETS], rows())


def _defaults() -> str:
    """What the default schedules compile to."""
    header = ["anchor", "target", "blocks x threads", "registers", "spilled", "shared", "occupancy"]
    rows = (default_row(case.name, name) for case in cases().values() for name in TARGETS)
    return _table([*header, "bank conflicts", "excess requests", "excess sectors"], rows)


def default_row(name: str, target: str) -> list[str]:
    """What a case's default schedule compiles to for a target, as the document says it."""
    made = compiled_default(name, target)
    return [
        name, target, f"{made.blocks} x {made.threads}", str(made.registers), str(made.spills),
        str(made.shared), f"{made.occupancy:.0%} ({made.limiter})", str(made.conflicts),
        str(made.excess_requests), str(made.excess_sectors),
    ]  # fmt: skip


def _warpgroups() -> str:
    """A step of the main loop of each kernel of warpgroups, and of the kernel by hand."""
    header = ["kernel", "template"]
    for what in ("HGMMA a step", "other instructions", "registers", "spilled"):
        header += [what, "by hand"]

    def rows() -> Iterator[list[str]]:
        for form in forms().values():
            cubin = form.cubin()
            (sass,) = disassemble(cubin.image).values()
            yield form.row(form.step(sass, cubin))

    return _table(header, rows())


EXCERPTS: Excerpts = {"knobs": _knobs, "spaces": _spaces, "defaults": _defaults, "warpgroups": _warpgroups}
"""What the document can ask for, by name."""

if __name__ == "__main__":
    sys.exit(main())
