"""Appends lines to a database on a full disk: `python -m tests.tuning.full_disk FOLDER`.

Prints how many, and what was said.
"""

from __future__ import annotations

import sys
from pathlib import Path

from treadle.errors import TreadleError
from treadle.schedules.search.database import Room, append_lines


def main(folder: Path) -> None:
    """Until the disk is full: each line says its number."""
    appended = 0
    with Room(folder) as room:
        try:
            while True:
                append_lines(folder / "records.jsonl", f"{appended:0999}\n", room)
                appended += 1
        except TreadleError as error:
            lines = (folder / "records.jsonl").read_text().splitlines()
            print(appended, len(lines), lines == [f"{n:0999}" for n in range(len(lines))], error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
