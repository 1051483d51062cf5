"""`python -m tests.fingerprint`: whether what is printed for models that cover the compiler is what is recorded.

`fingerprints.txt` has a row for each model and a column for each target; a cell is three short hashes: of the decisions
of schedules, of the kernels' text, and of the host program. A change that only moves code leaves each as it is. What
differs is listed, and the exit status is 1; `--record` writes the file anew, which is reviewed like any expectation.
`--folder DIR` writes the texts themselves: those of two commits, compared by `diff -r`, explain a difference. NAME
chooses models by a part of their names, `--target` a column.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

from rich.progress import track

from tests.fingerprint.cases import TARGETS, all_cases
from tests.fingerprint.texts import KINDS, texts_of

RECORD = Path(__file__).parent / "fingerprints.txt"
ABSENT = "-"
"""The cell of a target that a model is not lowered for."""
_DIGITS = 10

Cell = tuple[str, str]
"""The names of a case and of a target."""
_CASES = all_cases()


def main(arguments: Sequence[str] | None = None, record: Path = RECORD) -> int:
    """The exit status; `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fingerprint", description="Hashes of printed text.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of models' names")
    parser.add_argument("--target", choices=TARGETS, action="append", help="a target; repeatable")
    parser.add_argument("--record", action="store_true", help="write what is printed now to fingerprints.txt")
    parser.add_argument("--folder", type=Path, help="where the texts themselves are written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    chosen = parser.parse_args(arguments)
    cells = [
        (case.name, target)
        for case in _CASES.values()
        for target in case.targets
        if target in (chosen.target or TARGETS) and any(part in case.name for part in chosen.names or [""])
    ]
    if not cells:
        parser.error(f"no model has {' or '.join(chosen.names)} in its name")
    found = dict(zip(cells, _fingerprints(cells, chosen.folder, chosen.jobs), strict=True))
    recorded = read_record(record.read_text()) if record.exists() else {}
    if chosen.record:
        whole = len(cells) == sum(len(case.targets) for case in _CASES.values())
        record.write_text(table(found if whole else {**recorded, **found}))
        return 0
    differing = [cell for cell in cells if found[cell] != recorded.get(cell)]
    for line in differences({cell: found[cell] for cell in differing}, recorded):
        print(line)
    print(f"{len(cells) - len(differing)} of {len(cells)} as recorded")
    return 1 if differing else 0


def _fingerprints(cells: Sequence[Cell], folder: Path | None, jobs: int) -> Iterator[str]:
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(partial(fingerprint, folder=folder), cells)
        yield from track(results, "lowering", len(cells), disable=not sys.stderr.isatty())


def fingerprint(cell: Cell, folder: Path | None = None) -> str:
    """The hashes of one cell of the table; its texts are written to `folder`."""
    name, target = cell
    texts = texts_of(_CASES[name], target)
    if folder is not None:
        own = folder / name.replace(" ", "-") / target
        own.mkdir(parents=True, exist_ok=True)
        for kind, text in texts.items():
            (own / f"{kind}.txt").write_text(text)
    return "/".join(sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts.values())


def table(found: Mapping[Cell, str]) -> str:
    """The recorded file: a row a model, `ABSENT` where a target has no cell."""
    names = dict.fromkeys(name for name, _ in found)
    rows = [["model", *TARGETS], *([name, *(found.get((name, t), ABSENT) for t in TARGETS)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def read_record(text: str) -> dict[Cell, str]:
    """What `table` wrote."""
    head, *rows = text.splitlines()
    targets = head.split()[1:]
    found: dict[Cell, str] = {}
    for row in rows:
        name, *hashes = row.rsplit(maxsplit=len(targets))
        found.update({(name.strip(), t): each for t, each in zip(targets, hashes, strict=True) if each != ABSENT})
    return found


def differences(found: Mapping[Cell, str], recorded: Mapping[Cell, str]) -> Iterator[str]:
    """A line for each cell that differs: which of its texts do."""
    for (name, target), hashes in found.items():
        before = recorded.get((name, target))
        if before is None:
            yield f"{name}, {target}: not recorded"
            continue
        pairs = zip(KINDS, hashes.split("/"), before.split("/"), strict=True)
        yield f"{name}, {target}: {', '.join(kind for kind, now, then in pairs if now != then)}"


if __name__ == "__main__":
    sys.exit(main())
