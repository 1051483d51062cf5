"""A model that is built operator by operator, looked at after a stage, compiled and run: Treadle without ONNX.

    python examples/embed_model.py

`docs/embedding.md` explains it, and says what else of the package is public.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp

import treadle
from treadle import ir
from treadle.dialects.graph import BinaryOp, MatmulOp, UnaryOp

WEIGHTS = np.linspace(-1, 1, 48 * 16, dtype=np.float32).reshape(48, 16)


def layer() -> ModuleOp:
    """relu(x @ w + b)."""
    entry = ir.Entry({"x": ir.tensor_type("float32", (8, 48)), "b": ir.tensor_type("float32", (16,))})
    product = entry.add(MatmulOp(entry["x"], entry.constant(WEIGHTS)), node="layer/product")
    shifted = entry.add(BinaryOp("add", product, entry["b"]), node="layer/shift")
    return entry.module({"y": entry.add(UnaryOp("relu", shifted), node="layer/clamp")})


def decisions(module: ModuleOp) -> str:
    """The text after stage `schedule` for a GPU: one group for each kernel, with the decision how to schedule it."""
    copy = module.clone()
    ir.lower(copy, "sm_80", to="schedule")
    return ir.print_text(copy)


def main() -> None:
    """Compiles the layer, and compares what it computes with its definition."""
    module = layer()
    print(decisions(module))
    x, b = np.ones((8, 48), np.float32), np.ones(16, np.float32)
    with treadle.compile(module) as model:
        (y,) = model(x=x, b=b)
    (expected,) = ir.evaluate(module, [x, b])
    print(f"largest difference: {np.abs(y - expected).max():.1e}")


if __name__ == "__main__":
    main()
