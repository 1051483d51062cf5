"""The page of `treadle explore`, and the documents that it asks for."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from xdsl.dialects.builtin import ModuleOp

from treadle.bench.interleave import busy_text
from treadle.compiler.pipeline import STAGES
from treadle.dialects.graph import FusedOp
from treadle.dialects.location import nodes_of
from treadle.passes.schedule.instance import group_program
from treadle.support.version import __version__
from treadle.tools import charts
from treadle.tools.explore_record import Documents, Json, code_document, indexed, packed
from treadle.tools.explore_session import Session, Version, groups_of, ratio_of
from treadle.tuning.in_model import ModelTimes, Ratio

_HERE = Path(__file__)
SCRIPTS = tuple(_HERE.with_name(f"{name}.js") for name in ("explore_text", "explore_packed", "explore"))
_STYLE = _HERE.with_name("explore.css")
DATA = "data"
INDEX = "index.html"
_NAME = re.compile(r"(state|version|code|text|values|numbers|diff|options)(?:-(\d+))?(?:-(\d+))?")


def page(title: str, *, live: bool) -> str:
    """The page without any document; `live`: of a server, which edits."""
    root, body = charts.page(f"{title}: explore")
    head = root.find("head")
    assert head is not None
    SubElement(head, "style").text = _STYLE.read_text()
    body.set("data-live", "yes" if live else "no")
    header = SubElement(body, "header")
    SubElement(header, "h1").text = title
    SubElement(header, "p", {"id": "facts", "class": "faint"})
    tabs = SubElement(header, "nav", {"aria-label": "views"})
    for name in ("passes", "decisions", "code"):
        SubElement(tabs, "button", {"type": "button", "data-tab": name}).text = name
    SubElement(header, "p", {"id": "status", "role": "status", "hidden": ""})
    main = SubElement(body, "main")
    _add_view(main, "passes")
    SubElement(main, "section", {"id": "decisions", "hidden": "", "aria-label": "decisions"})
    _add_view(main, "code", hidden=True)
    SubElement(main, "aside", {"id": "value", "hidden": "", "aria-label": "value", "aria-live": "polite"})
    SubElement(SubElement(body, "noscript"), "p").text = "This page needs JavaScript."
    for script in SCRIPTS:
        SubElement(body, "script", {"src": script.name}).text = " "
    return charts.page_text(root)


def _add_view(main: Element, name: str, *, hidden: bool = False) -> None:
    """A list at the left, and what was chosen of it at the right."""
    section = SubElement(main, "section", {"id": name, "aria-label": name, "class": "split"})
    if hidden:
        section.set("hidden", "")
    SubElement(section, "div", {"class": "list"})
    SubElement(section, "div", {"class": "view"})


# Documents.


def document(session: Session, name: str) -> bytes:
    """A document, packed, which is made if it is not there yet; KeyError if there is none of the name.

    state: what versions there are; version-N: its passes and groups; code-N: its kernels; text-N and values-N: IR or C,
    and what stands in it; diff-A-B: of two texts; numbers-N: what the tensors of a text hold; options-N: what may be
    chosen for a group. TreadleError where making it fails.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise KeyError(name)
    kind, documents = found[1], session.documents
    numbers = [int(each) for each in found.groups()[1:] if each is not None]
    if kind == "state" and not numbers:
        return packed(state_document(session))
    if kind == "options" and len(numbers) == 1:
        return packed(session.options(*numbers))
    if name not in documents.content:
        _make(session, kind, numbers, documents)
    return documents.content[name]


def _make(session: Session, kind: str, numbers: list[int], documents: Documents) -> None:
    known = all(f"text-{number}" in documents.content for number in numbers)
    if kind == "diff" and len(numbers) == 2 and known:
        documents.difference(*numbers)
    elif kind == "numbers" and len(numbers) == 1 and f"values-{numbers[0]}" in documents.content:
        documents.put(f"numbers-{numbers[0]}", session.evaluator.numbers(*numbers))
    elif kind in ("version", "code"):
        for version in session.versions:
            if [version.number] == numbers:
                documents.put(f"version-{version.number}", version_document(session, version))
                documents.put(f"code-{version.number}", code_document(version.code))


def state_document(session: Session) -> Json:
    """The versions, each with what was measured and compared; the last one is the current one."""
    # What was timed has edited groups. Without them the module, which takes long to read, is not needed.
    groups = groups_of(session.module()) if any(each.timed for each in session.versions) else []
    model = session.model
    facts = [f"target {session.target.name}", session.request.options.precision, f"treadle {__version__}"]
    if model.symbols:
        facts.append(f"range {', '.join(map(str, model.symbols))}")
    return {"facts": facts, "versions": [_version(each, groups) for each in session.versions]}


def _version(version: Version, groups: list[FusedOp]) -> Json:
    timed = version.timed
    ratio = ratio_of(version, groups)
    return {
        "number": version.number,
        "change": version.change,
        "groups": list(version.groups),
        "timed": None if timed is None else _told(timed),
        "ratio": None if timed is None else _spread(timed.whole),
        "groupRatio": None if ratio is None else _spread(ratio),
        "note": version.note,
        "verdicts": [{"where": each.where, "text": each.text, "agrees": each.agrees} for each in version.verdicts],
    }


def _told(timed: ModelTimes) -> str:
    """The medians of calls, and what they are worth."""
    before, after = (f"{statistics.median(side) * 1e3:.4g}" for side in timed.calls)
    noise = f"two runs of the version before differ by up to {timed.noise - 1:.1%}"
    return "; ".join(filter(None, [f"{before} ms became {after} ms a call", noise, busy_text(timed.waited)]))


def _spread(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} times as fast, {ratio.least:.3f} to {ratio.most:.3f}"


def version_document(session: Session, version: Version) -> Json:
    """The passes of a version as they ran, by stage, and its groups with their decisions."""
    recorder = version.recorder
    return {
        "number": version.number,
        "first": recorder.first,
        "scheduled": version.scheduled,
        "last": recorder.passes[-1].after if recorder.passes else recorder.first,
        "compiling": f"{version.seconds:.2f} s to print and compile",
        "stages": {stage.name: stage.purpose for stage in STAGES},
        "passes": [
            {
                "stage": each.stage, "name": each.name, "options": each.options, "about": each.about,
                "ms": round(each.seconds * 1e3, 2), "before": each.before, "after": each.after,
                "added": each.added, "removed": each.removed,
            }
            for each in recorder.passes
        ],
        "groups": _groups(session.module(version)),
    }  # fmt: skip


def _groups(module: ModuleOp) -> list[Json]:
    """What was decided for each group, where it stands in the text, and how many groups are equal to it."""
    begun, groups = indexed(module).begun, groups_of(module)
    digests = [group_program(fused).digest() for fused in groups]
    equal = Counter(digests)
    return [
        {
            "label": fused.label.data, "schedule": str(fused.schedule), "line": begun[fused],
            "nodes": [[node.name, node.kind] for node in nodes_of(fused.location)],
            "type": ", ".join(str(value.type) for value in fused.results), "equal": equal[digest],
        }
        for fused, digest in zip(groups, digests, strict=True)
    ]  # fmt: skip


__all__ = ["DATA", "INDEX", "SCRIPTS", "document", "page"]
