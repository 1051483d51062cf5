"""`make docs`: what each rule does to a draft, for docs/schedule-programs.md."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.schedule_cases import Case, group_of
from docs.build.architecture import ROOT, Excerpts, rewrite
from treadle.dialects.graph import MatmulOp, ReductionOp, UnaryOp
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Draft, Rule
from treadle.schedules.rules.staging import located, staged
from treadle.schedules.rules.templates import templates, tensor_cores
from treadle.schedules.rules.tiling import (
    cross_thread,
    fused,
    tensorized,
    tiled,
    unrolled,
    vector_lanes,
    vectorised,
)
from treadle.target import Target
from treadle.tools.reporting import run_reporting

DOCUMENT = "docs/schedule-programs.md"
EXAMPLE = ROOT / "examples" / "own_rule.py"


@dataclass(frozen=True)
class Shown:
    """A rule on one operator.

    rule, text: and how it is written; of: whose docstring says what it does
    first: the rules that made the draft that it is shown
    """

    text: str
    rule: Rule
    of: Callable[..., object]
    case: Case
    target: str = "cpu"
    first: Sequence[Rule] = ()


def _product(m: int, n: int, k: int, dtype: str = "float32") -> Case:
    return Case(f"product {m} x {n} x {k}", ((m, k), (k, n)), lambda t: [MatmulOp(t[0], t[1])], dtype)


def _sums(rows: int, columns: int) -> Case:
    return Case("sums", ((rows, columns),), lambda t: [ReductionOp("add", t[0], [1], keep=False)])


_RELU = Case("relu 32 x 28 x 28", ((32, 28, 28),), lambda t: [UnaryOp("relu", t[0])])
_DENSE = _product(128, 768, 512)


def _arranged(draft: Draft) -> Sequence[Draft]:
    """A tile of a product on either kind of target, for what comes after tiling."""
    draft, ((i, j), (k,)) = draft.axes()
    draft, (i0, i1) = draft.split(i, [8])
    draft, (j0, j1) = draft.split(j, [32])
    draft, (k0, k1) = draft.split(k, [8])
    if not draft.target.is_cuda:
        return [draft.arrange([("block", [i0, j0]), ("loop", [k0]), ("loop", [k1]), ("repeat", [i1, j1])])]
    return [draft.arrange([("block", [i0, j0]), ("thread", [i1, j1]), ("loop", [k0]), ("loop", [k1])])]


SHOWN = (
    Shown("templates", templates, templates, _sums(4096, 768), "sm_80"),
    Shown("tensor_cores", tensor_cores, tensor_cores, _product(1024, 4096, 1024, "float16"), "sm_80"),
    Shown("fused", fused, fused, _RELU),
    Shown('tensorized("SSRRS")', tensorized("SSRRS"), tensorized, _product(1024, 4096, 1024, "float16"), "sm_80"),
    Shown('tiled("SSRSRS")', tiled("SSRSRS"), tiled, _DENSE),
    Shown('tiled("SSSRRSRS")', tiled("SSSRRSRS"), tiled, _DENSE, "sm_80"),
    Shown('tiled("SRSSRRS")', tiled("SRSSRRS"), tiled, _product(64, 64, 8192), "sm_80"),
    Shown("vector_lanes", vector_lanes, vector_lanes, _sums(64, 768)),
    Shown("cross_thread", cross_thread, cross_thread, _sums(64, 768), "sm_80"),
    Shown('staged("register", alone=True)', staged("register", alone=True), staged, _DENSE, "cpu", [_arranged]),
    Shown('staged("shared", ahead=True)', staged("shared", ahead=True), staged, _DENSE, "sm_80", [_arranged]),
    Shown('located("shared")', located("shared"), located, _DENSE, "sm_80", [_arranged]),
    Shown("vectorised", vectorised, vectorised, _DENSE, "cpu", [_arranged]),
    Shown("unrolled", unrolled, unrolled, _DENSE, "cpu", [_arranged]),
)
"""The rules in the order in which they are composed; `located` is for programs of one's own."""


def main() -> int:
    """Rewrites the document; prints whether it changed."""
    return run_reporting("render_rules", lambda: rewrite({DOCUMENT: EXCERPTS}))


def _rules() -> str:
    return "\n" + "\n".join(map(_section, SHOWN))


def _section(shown: Shown) -> str:
    """What a rule says of itself, and the instructions that it appends."""
    target = Target.parse(shown.target)
    anchor = anchor_of(group_of(shown.case.module()))
    before = Draft(anchor, target, workload_of(anchor))
    for rule in shown.first:
        (before,) = rule(before)
    had = str(before).splitlines()
    lines = [f"### `{shown.text}`", "", _summary(shown.of), "", f"{shown.case.name} on `{shown.target}`:", ""]
    lines += ["```mlir", *had, "```", "", "goes on with", ""] if had else []
    for after in shown.rule(before):
        added = str(after).splitlines()[len(had) :]
        lines += ["```mlir", *(added or ["// nothing: the draft as it is"]), "```", ""]
    return "\n".join(lines)


def _summary(of: Callable[..., object]) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())


def _own_rule() -> str:
    """The example's rule and how it is composed."""
    source = EXAMPLE.read_text()
    begin, end = source.index("def whole_windows"), source.index("def ", source.index("RULES:"))
    return f"```python\n{source[begin:end].rstrip()}\n```\n"


EXCERPTS: Excerpts = {"rules": _rules, "own rule": _own_rule}

if __name__ == "__main__":
    sys.exit(main())
