"""`python benchmarks/spaces.py`: how large the schedule spaces are, and how long all of one takes to compile.

The arguments are those of `benchmarks/space_sizes.py`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, Python knows this folder but not the one above it.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(importlib.import_module("benchmarks.space_sizes").main())
