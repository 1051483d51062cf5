"""File names for generated text: names from a model are untrusted."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 100


def file_names(names: Sequence[str]) -> list[str]:
    """A distinct stem of letters, digits, `_` and `-` for each name, in order; a clash gets a number."""
    taken: set[str] = set()
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST] or "unit"
        chosen, count = stem, 1
        while chosen.lower() in taken:  # some file systems ignore case
            count += 1
            chosen = f"{stem}_{count}"
        taken.add(chosen.lower())
        stems.append(chosen)
    return stems
