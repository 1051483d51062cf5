"""`make papers`: the summary of docs/papers.md, and whether the code, tests and commands that it names exist."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.build.architecture import ROOT, Excerpts, rewrite
from treadle.errors import TreadleError
from treadle.tools.reporting import run_reporting

DOCUMENT = "docs/papers.md"
VERDICTS = ("yes", "in part", "no")
_PAPER = re.compile(r"^## (\w+)$")
_CODE = re.compile(r"`([^`]+)`")
_CELLS = 6


@dataclass(frozen=True)
class Item:
    """A row: what a paper has, whether it is here, and where. `names` are paths, tests and commands."""

    paper: str
    number: int
    verdict: str
    code: str
    test: str
    remark: str

    @property
    def where(self) -> str:
        """The row, for messages."""
        return f"{DOCUMENT}: {self.paper}, item {self.number}"

    @property
    def names(self) -> list[str]:
        """What stands between backquotes and is a path or a command."""
        found = _CODE.findall(" ".join((self.code, self.test, self.remark)))
        return [name for name in found if "/" in name.split(" ")[0] or name.startswith("python -m ")]


def main() -> int:
    """Checks the rows, and rewrites the summary; prints whether it changed."""
    return run_reporting("papers", lambda: check() or rewrite({DOCUMENT: EXCERPTS}))


def items() -> list[Item]:
    """The rows of the document. TreadleError for one that has other cells, or is out of order."""
    return list(_items((ROOT / DOCUMENT).read_text()))


def check() -> int:
    """TreadleError for the first row that has neither a place nor a reason, or names what does not exist; 0 if none."""
    for item in items():
        if item.verdict not in VERDICTS:
            raise TreadleError(f"the verdict is {item.verdict!r}", item.where, VERDICTS)
        if item.verdict == "yes" and not (item.code and item.test):
            raise TreadleError("it has no code, or no test or command", item.where, "both, since it is here")
        if item.verdict != "yes" and not item.remark:
            raise TreadleError("there is no reason", item.where, "why it is not here, and what it would take")
        for name in item.names:
            _check(name, item)
    return 0


def summary() -> str:
    """How many items of each paper are here."""
    lines = ["| paper | items | here | in part | not here |", "|---|---:|---:|---:|---:|"]
    found: dict[str, Counter[str]] = {}
    for item in items():
        found.setdefault(item.paper, Counter())[item.verdict] += 1
    for paper, verdicts in found.items():
        counts = " | ".join(str(verdicts[verdict]) for verdict in VERDICTS)
        lines.append(f"| {paper} | {verdicts.total()} | {counts} |")
    return "\n".join(lines) + "\n"


def _items(text: str) -> Iterator[Item]:
    paper, last = "", 0
    for line in text.splitlines():
        heading = _PAPER.match(line)
        if heading is not None:
            paper, last = heading[1], 0
        elif paper and line.startswith("| ") and not line.startswith("| #"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != _CELLS or cells[0] != str(last + 1):
                raise TreadleError(f"cannot read {line[:60]!r}", f"{DOCUMENT}: {paper}", f"item {last + 1} of 6 cells")
            last += 1
            yield Item(paper, last, cells[2], cells[3], cells[4], cells[5])


def _check(name: str, item: Item) -> None:
    """TreadleError unless a path, a test or a command exists."""
    if name.startswith("python -m "):
        _, _, module, *arguments = name.split(" ")
        paths = [module.replace(".", "/") + ".py", *(each for each in arguments if "/" in each)]
        test = ""
    else:
        path, _, test = name.partition("::")
        paths = [path]
    for path in paths:
        if not (ROOT / path).exists():
            raise TreadleError(f"there is no {path}", item.where, "a path in the checkout")
    if test and not re.search(rf"^def {test}\b", Path(ROOT / paths[0]).read_text(), re.MULTILINE):
        raise TreadleError(f"{paths[0]} has no test {test}", item.where, "a function of that file")


EXCERPTS: Excerpts = {"summary": summary}


if __name__ == "__main__":
    sys.exit(main())
