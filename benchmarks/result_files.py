"""Results as files that are committed: the circumstances, then one line a measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def write_results(what: str, circumstances: dict[str, object], rows: Sequence[dict[str, object]], folder: Path) -> Path:
    """Writes `FOLDER/WHAT-DATE.json`, one line a model, and returns its path; a run of the same day is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{what}-{str(circumstances['date'])[:10]}.json"
    head = json.dumps(circumstances, indent=1).removesuffix("\n}")
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text(f'{head},\n "results": [\n{body}\n ]\n}}\n')
    return path
