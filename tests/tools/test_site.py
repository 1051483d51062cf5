"""The documentation's links, on GitHub and as a site: each leads to a file and a heading. No page needs a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.build.links import ROOT, anchors, broken_links, links, pages, slug
from tests.helpers.environment import environment_with

CHROMIUM = shutil.which("chromium") or ""
NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_what_a_link_and_an_anchor_is() -> None:
    text = "# A `b`, c-d: e\n\n[x](y.md#z) `[no](link)` ![p](i/p.svg)\n\n```\n[no](z)\n# no\n```\n\n# E\n# E\n"
    assert [(link.path, link.anchor) for link in links(text)] == [("y.md", "z"), ("i/p.svg", "")]
    assert anchors(text) == {"a-b-c-d-e", "e", "e-1"}
    assert slug("[Hidet](papers.md) & more") == "hidet--more"


def test_what_a_broken_link_is() -> None:
    page = ROOT / "docs" / "not-there.md"
    written = {"[a](tuning.md#strategies)": 0, "[a](tuning.md#nowhere)": 1, "[a](nowhere.md)": 1, "[a](#own)": 1}
    for text, count in written.items():
        assert len(list(broken_links(page, text))) == count, text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning an error."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)} (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env=environment_with({"NO_MKDOCS_2_WARNING": "1"}), check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


class References(HTMLParser):
    """What a page of HTML refers to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in ("href", "src"):
            if name in given:
                (self.links if tag == "a" else self.loaded).append(given[name])


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    found = {path: References(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) > 100
    broken = [f"{path.relative_to(site)}: {link}" for path in found for link in _broken(path, found)]
    assert [each for each in broken if not each.startswith("404.html")] == []


def _broken(path: Path, found: Mapping[Path, References]) -> list[str]:
    return [link for link in found[path].links + found[path].loaded if not _leads_somewhere(path, link, found)]


def _leads_somewhere(path: Path, link: str, found: Mapping[Path, References]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in found or anchor in found[target].anchors or anchor.startswith("__")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert [each for each in References(text).loaded if urlsplit(each).netloc] == [], path
        assert 'class="mermaid"' not in text, "the theme would load a library for it"
    for path in site.rglob("*.css"):
        assert "url(http" not in path.read_text() and "@import" not in path.read_text(), path


@pytest.mark.slow
def test_public_names_are_in_the_reference(site: Path) -> None:
    for page, name in (("treadle", "compile"), ("treadle.plugins", "PassPlugin"), ("treadle.scheduling", "Template")):
        found = References((site / "reference" / f"{page}.html").read_text())
        assert any(anchor.rpartition(".")[2] == name for anchor in found.anchors), name


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="chromium, which opens the site, is not installed")
def test_the_site_is_searched_from_a_disk(site: Path) -> None:
    page = f"{(site / 'index.html').as_uri()}?q=certify"
    chromium = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    shown = subprocess.run([*chromium, page], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "matching documents" in shown and 'href="dynamic-shapes.html' in shown.replace(site.as_uri() + "/", "")
