"""What `make site` does to pages on their way into the site: a hook of MkDocs (mkdocs.yml).

The pages are written for GitHub. Those at the root of the repository (`README.md` and its like) become pages of the
site; a link to a file that is no page, such as an example, leads to a page that shows it; a link to a folder to a page
that lists it. Pages of the reference are made from the modules' docstrings. The modules are read, not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import relpath
from typing import Any, Protocol

from docs.build.links import LINK, ROOT, Link, links, pages

ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside of docs/, and where the site has them."""
MODULES = (
    "treadle", "treadle.onnxruntime", "treadle.scheduling", "treadle.plugins", "treadle.ir", "treadle.onnx_backend",
    "treadle.errors", "treadle.environment",
)  # fmt: skip
"""The public modules, in the order in which the reference shows them."""
_LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".h": "c", ".json": "json", ".yaml": "yaml", ".sh": "bash"}
_COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE)
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_FENCE = re.compile(r"^( *```).*?^\1$", re.MULTILINE | re.DOTALL)


# What is used here of MkDocs, which `make lint` does without.


class Config(Protocol):
    """The settings of mkdocs.yml."""

    nav: list[Any] | None


class File(Protocol):
    """A file of the site: its path there, of the page's source."""

    src_uri: str


class Files(Protocol):
    """All files of the site."""

    def append(self, file: File) -> None: ...


class Page(Protocol):
    """A page of the site."""

    @property
    def file(self) -> File: ...


def on_config(config: Config) -> Config:
    """Adds the decisions, of which there are many, and the reference, to the menu."""
    records = [PurePosixPath("adr") / path.name for path in _records()]
    nav: list[Any] = config.nav or []
    nav += [{"Reference": [{name: f"reference/{name}.md"} for name in MODULES]}]
    nav += [{"Decisions": ["adr/index.md", *map(str, records)]}]
    config.nav = nav
    return config


def on_files(files: Files, config: Config) -> Files:
    """Adds the pages that are not in docs/."""
    made = {place: (ROOT / name).read_text() for name, place in ROOT_PAGES.items()}
    made |= {f"reference/{name}.md": f"# {name}\n\n::: {name}\n" for name in MODULES}
    made["adr/index.md"] = _list_of_records()
    made |= {str(_page_of(path)): _shown(path) for path in _linked()}
    kind: Any = import_module("mkdocs.structure.files").File
    for place, text in made.items():
        files.append(kind.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Config, files: Files) -> str:
    """A page as the site's Markdown has it: links between its own pages, and lists that are indented by four."""
    place = PurePosixPath(page.file.src_uri)
    source = _source_of(place)
    text = _comments_left_out(markdown)
    if source is None:
        return text
    return _outside_of_code(_indented_by_four(text), lambda part: _relinked(part, source, place))


def _relinked(text: str, source: Path, place: PurePosixPath) -> str:
    """Relative links as the site has them."""

    def changed(match: re.Match[str]) -> str:
        link = Link.of(match["target"])
        if link is None or not link.path:
            return match[0]
        target = _page_of((source.parent / link.path).resolve())
        return f"]({relpath(target, place.parent)}{'#' + link.anchor if link.anchor else ''})"

    return LINK.sub(changed, text)


def _source_of(place: PurePosixPath) -> Path | None:
    """The file of the repository that a page of the site is; None for one that is made."""
    for name, own in ROOT_PAGES.items():
        if str(place) == own:
            return ROOT / name
    source = ROOT / "docs" / place
    return source if source.is_file() else None


def _page_of(path: Path) -> PurePosixPath:
    """Where the site has a file or a folder of the repository."""
    name = path.relative_to(ROOT)
    if str(name) in ROOT_PAGES:
        return PurePosixPath(ROOT_PAGES[str(name)])
    if name == Path("docs/adr"):
        return PurePosixPath("adr/index.md")
    if name.parts[0] == "docs" and path.is_file() and "build" not in name.parts:
        return PurePosixPath(name.relative_to("docs"))
    return PurePosixPath("source") / f"{name}.md"


@cache
def _linked() -> Sequence[Path]:
    """Files and folders that pages link to and the site would not have, each once."""
    found = {
        (page.parent / link.path).resolve(): None
        for page in pages()
        for link in links(page.read_text())
        if link.path and _page_of((page.parent / link.path).resolve()).parts[0] == "source"
    }
    return list(found)


def _shown(path: Path) -> str:
    """A file as a page, or all files of a folder."""
    name = path.relative_to(ROOT)
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if _is_text(each)]
    parts = [f"# {name}\n"]
    for each in files:
        fence = "````"
        title = [] if each == path else [f"## {each.relative_to(path)}\n"]
        parts += [*title, f"{fence}{_LANGUAGES.get(each.suffix, 'text')}\n{each.read_text().rstrip()}\n{fence}\n"]
    return "\n".join(parts)


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix in (*_LANGUAGES, ".md", ".mlir", ".txt") and "__pycache__" not in path.parts


def _records() -> Sequence[Path]:
    """The decisions, without the template."""
    return sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))[1:]


def _list_of_records() -> str:
    rows = (f"- [{path.read_text().partition(chr(10))[0].removeprefix('# ')}]({path.name})" for path in _records())
    return "# Decisions\n\nOne page each: what was decided, and what else was considered.\n\n" + "\n".join(rows) + "\n"


def _comments_left_out(text: str) -> str:
    """Without the marks of generated parts; a table behind one begins a block of its own."""
    return _outside_of_code(text, lambda part: _COMMENT.sub("", part))


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text with everything changed but its fenced blocks."""
    parts: list[str] = []
    end = 0
    for match in _FENCE.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def _indented_by_four(text: str) -> str:
    """What belongs to the items of a list is indented by the width of the mark on GitHub, and by four here."""
    return "\n".join(_indented(text.split("\n")))


def _indented(lines: Sequence[str]) -> Iterator[str]:
    width = 0
    fenced = blank = False
    for line in lines:
        inside = width and (line.startswith(" " * width) or not line.strip())
        mark = _ITEM.match(line)
        if not fenced and mark is not None:
            width = mark.end()
        elif not fenced and not inside and (blank or line.startswith(("#", "```"))):
            width = 0
        moved = " " * 4 + line[width:] if width and mark is None and line.startswith(" " * width) else line
        fenced ^= line.lstrip().startswith("```")
        blank = not line.strip()
        yield moved
