"""`make bench` and `make gpu-bench`: runs the measurements.

The arguments are those of `benchmarks/cpu_models.py`, or after `--gpu` those of `benchmarks/gpu.py`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    # Run as a file, Python knows this folder but not the one above it, where the catalog of models lies.
    sys.path.insert(0, str(ROOT))
    on_gpu = sys.argv[1:2] == ["--gpu"]
    module = importlib.import_module("benchmarks.gpu" if on_gpu else "benchmarks.cpu_models")
    sys.exit(module.main(sys.argv[1 + on_gpu :]))
