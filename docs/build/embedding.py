"""The generated parts of docs/embedding.md (example, output, errors, public names), new-backend.md and tiles.md."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import treadle
from docs.build.architecture import ROOT, Excerpts, rewrite
from docs.build.excerpts import block, shortened
from treadle import ir, onnx_backend, onnxruntime, plugins, scheduling
from treadle.errors import TreadleError
from treadle.tools.reporting import run_reporting

DOCUMENT, BACKEND, TILES = "docs/embedding.md", "docs/new-backend.md", "docs/tiles.md"
EXAMPLE = ROOT / "examples" / "embed_model.py"
TEMPLATE_EXAMPLE = ROOT / "examples" / "own_template.py"
BACKEND_EXAMPLE = ROOT / "examples" / "scalar_backend.py"
TILES_EXAMPLE = ROOT / "examples" / "own_tiles.py"

REJECTED = (
    "func.func @layer(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}",
    "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  func.return %x : tensor<?xf32>\n}",
    "func.func @main(%x: tensor<4xi3>) -> tensor<4xi3> {\n  func.return %x : tensor<4xi3>\n}",
    "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  %y = math.exp %x : tensor<4xf32>\n"
    "  func.return %y : tensor<4xf32>\n}",
)
"""Modules that the pipeline cannot take."""


def main() -> int:
    """Rewrites the document; prints whether it changed."""
    return run_reporting("render_embedding", lambda: rewrite(DOCUMENTS))


def _layer() -> str:
    """The example up to the function that builds the model, and how it is compiled."""
    source = EXAMPLE.read_text()
    begin, end = source.index("import numpy"), source.index("def decisions")
    return f"```python\n{source[begin:end]}model = treadle.compile(layer())\n```\n"


def _part(example: Path, first: str, behind: str) -> str:
    """A part of an example."""
    source = example.read_text()
    begin = source.index(first)
    return f"```python\n{source[begin : source.index(behind, begin)].rstrip()}\n```\n"


def _text(name: str) -> str:
    """An example that is IR."""
    return f"```mlir\n{(ROOT / 'examples' / name).read_text().rstrip()}\n```\n"


def _template() -> str:
    """The CPU's template of the example, and how many lines it has beside the GPU's."""
    source = TEMPLATE_EXAMPLE.read_text()
    marks = ("class Product(", "class ProductOnCpu(", "class ProductOnGpu(", "def layer(")
    base, cpu, gpu = (source[source.index(a) : source.index(b)] for a, b in pairwise(marks))
    lines = [sum(1 for line in part.splitlines() if line) for part in (base, cpu, gpu)]
    code = f'{base}{cpu.rstrip()}\n\n\nregister_template(ProductOnCpu, before="matmul_cpu")\n'
    said = f"These are {lines[0] + lines[1]} lines, and the template for GPUs has {lines[2]} more."
    return f"```python\n{code}```\n\n{said}\n"


def _decision() -> str:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    text = example["decisions"](example["layer"]())
    return f"```mlir\n{shortened(block(text, 'graph.fused'), 1, 1).rstrip()}\n```\n"


def _errors() -> str:
    return "```\n" + "".join(f"{_rejection(text)}\n" for text in REJECTED) + "```\n"


def _rejection(text: str) -> str:
    try:
        ir.check(ir.parse(text, "layer.mlir"))
    except TreadleError as error:
        return str(error)
    raise AssertionError(f"taken: {text}")


def _public() -> str:
    lines = ["| name | what |", "|---|---|"]
    for module in (treadle, ir, onnx_backend, onnxruntime, plugins, scheduling):
        names = [name for name in module.__all__ if not name.startswith("__")]
        lines += [f"| `{module.__name__}.{name}` | {_summary(module, name)} |" for name in sorted(names, key=str.lower)]
    return "\n".join(lines) + "\n"


_ALIASES = {
    "Anchor": "What a template schedules: a `graph.compute`, or an operator that is scheduled as a whole",
    "Choice": "A knob's value: `int`, `bool`, `str` or a tuple of `int`",
    "Choices": "Values of a template's knobs, by name",
    "Rule": "A function from a `Draft` to those that go on from it",
}
"""Types that have no docstring."""


def _summary(module: ModuleType, name: str) -> str:
    """The first sentence of what a public name says of itself."""
    if name in _ALIASES:
        return _ALIASES[name]
    value: Callable[..., object] | tuple[str, ...] = getattr(module, name)
    text = inspect.getdoc(value) if callable(value) else f"{', '.join(f'`{each}`' for each in value)}."
    assert text, f"{name} has no docstring"
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".").replace("|", "\\|")


EXCERPTS: Excerpts = {
    "embedded layer": _layer,
    "embedded decision": _decision,
    "own template": _template,
    "embedding errors": _errors,
    "public names": _public,
}

BACKEND_EXCERPTS: Excerpts = {
    "backend passes": partial(_part, BACKEND_EXAMPLE, "# The pass list", "\n\nclass ScalarC"),
    "backend printer": partial(_part, BACKEND_EXAMPLE, "class ScalarC", "\n\nclass ScalarModel"),
}

TILES_EXCERPTS: Excerpts = {
    "tile product": partial(_part, TILES_EXAMPLE, "class TileProduct", "\n\nclass TileAttention"),
    "tile attention": partial(_part, TILES_EXAMPLE, "class TileAttention", "\n\ndef gated"),
    "tile gated": partial(_part, TILES_EXAMPLE, "def gated", "\n\ndef _columns"),
    "tile product text": partial(_text, "tile_product.mlir"),
}

DOCUMENTS: Mapping[str, Excerpts] = {DOCUMENT: EXCERPTS, BACKEND: BACKEND_EXCERPTS, TILES: TILES_EXCERPTS}

if __name__ == "__main__":
    sys.exit(main())
