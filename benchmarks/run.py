"""`make bench`: runs the measurements; the arguments are those of `benchmarks/cpu_models.py`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    # Run as a file, Python knows this folder but not the one above it, where the catalog of models lies.
    sys.path.insert(0, str(ROOT))
    sys.exit(importlib.import_module("benchmarks.cpu_models").main())
