"""Links and anchors of Markdown as GitHub reads it: what a relative link means, and which anchors a page has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")
"""The target of a link or a picture."""
_FENCED = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True)
class Link:
    """A relative link: `path` as it is written, which may be empty, and the anchor behind `#`, or none."""

    path: str
    anchor: str

    @staticmethod
    def of(target: str) -> Link | None:
        """None for one that leads to another site."""
        if _ELSEWHERE.match(target):
            return None
        path, _, anchor = target.partition("#")
        return Link(path, anchor)


def without_code(text: str) -> str:
    """The text without fenced blocks and without what stands between backticks, of which links are none."""
    return _CODE.sub("", _FENCED.sub("", text))


def links(text: str) -> Iterator[Link]:
    """The relative links of a page."""
    for match in LINK.finditer(without_code(text)):
        if (link := Link.of(match["target"])) is not None:
            yield link


def slug(heading: str) -> str:
    """The anchor of a heading: lower case, without marks, each blank a hyphen."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page; a heading that comes again has its number behind it."""
    counts: Counter[str] = Counter()
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        name = slug(heading)
        found.add(name if not counts[name] else f"{name}-{counts[name]}")
        counts[name] += 1
    return found


def pages() -> Sequence[Path]:
    """The repository's pages: those at its root, and the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def broken_links(page: Path, text: str | None = None) -> Iterator[str]:
    """Links of a page, or of a text in its place, that lead to no file, or to no heading of one."""
    text = page.read_text() if text is None else text
    for link in links(text):
        target = (page.parent / link.path).resolve() if link.path else page
        if link.path and not target.exists():
            yield f"{page.relative_to(ROOT)}: {link.path}: there is no such file"
            continue
        if (
            link.anchor
            and target.suffix == ".md"
            and link.anchor not in anchors(target.read_text() if link.path else text)
        ):
            yield f"{page.relative_to(ROOT)}: {link.path}#{link.anchor}: there is no such heading"
