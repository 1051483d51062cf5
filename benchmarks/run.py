"""`make bench`, `make gpu-bench` and `make gpu-first`: runs the measurements.

The arguments are those of `benchmarks/cpu_models.py`, after `--peers` those of `benchmarks/cpu_peers.py`, after
`--conv-bn-relu` those of `benchmarks/conv_bn_relu.py`, after `--memory` those of `benchmarks/memory.py`, after
`--quantized` those of `benchmarks/quantized.py`, after `--tuned` those of `benchmarks/tuned_models.py`, after
`--dynamic` those of `benchmarks/dynamic_lengths.py`, after `--dynamic-tuning` those of
`benchmarks/dynamic_tuning.py`, after `--language` those of `benchmarks/language.py`, after `--gpu` those of
`benchmarks/gpu.py`, after `--gpu-spaces` those of `benchmarks/gpu_spaces.py`, and after `--gpu-first` those of
`benchmarks/gpu_first.py`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {
    "--peers": "benchmarks.cpu_peers",
    "--tuned": "benchmarks.tuned_models",
    "--conv-bn-relu": "benchmarks.conv_bn_relu",
    "--dynamic": "benchmarks.dynamic_lengths",
    "--dynamic-tuning": "benchmarks.dynamic_tuning",
    "--memory": "benchmarks.memory",
    "--quantized": "benchmarks.quantized",
    "--language": "benchmarks.language",
    "--gpu": "benchmarks.gpu",
    "--gpu-spaces": "benchmarks.gpu_spaces",
    "--gpu-first": "benchmarks.gpu_first",
}

if __name__ == "__main__":
    # Run as a file, Python knows this folder but not the one above it, where the catalog of models lies.
    sys.path.insert(0, str(ROOT))
    chosen = OTHERS.get(" ".join(sys.argv[1:2]))
    module = importlib.import_module(chosen or "benchmarks.cpu_models")
    sys.exit(module.main(sys.argv[1 + (chosen is not None) :]))
