"""`make docs`: brings the generated parts of the documentation, and its picture, up to date with the code.

A document is Markdown, written by hand, in which the parts between two comments are generated:

    <!-- generated: cpu kernels -->
    ...
    <!-- end -->

The name says which part of the excerpts below it is. All of them show one small model, `relu(x @ w + b)`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp

from docs.build.excerpts import block, cut_digests, enclosing, indices_in_place, shortened
from docs.build.peers import peers_table
from docs.build.pipeline_picture import BOTH, draw_pipeline, steps_of
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.cuda.printer import print_kernels as print_cuda_kernels
from treadle.compiler.pipeline import STAGE_NAMES, STAGES
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.errors import TreadleError
from treadle.passes.instruments import LEGAL, ir_text
from treadle.target import Target
from treadle.tools.reporting import run_reporting

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/architecture.md")
"""The documents with generated parts, relative to the root of the sources."""
PICTURES: Mapping[str, Callable[[], str]] = {"docs/images/pipeline.svg": draw_pipeline}
"""The pictures that are drawn from the code, likewise."""

GPU = "sm_80"
_BLOCK = re.compile(r"<!-- generated: (?P<name>[^\n]*?) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
_OPENING = re.compile(r"<!-- generated: ")


def main() -> int:
    """Rewrites the documents and pictures; prints which ones changed."""
    return run_reporting("render_architecture", lambda: rewrite({name: EXCERPTS for name in DOCUMENTS}) or redraw())


Excerpts = Mapping[str, Callable[[], str]]


def render(document: str, where: str = "document", excerpts: Excerpts | None = None) -> str:
    """`document` with its generated parts regenerated; TreadleError for a part that has no end or an unknown name.

    excerpts: what makes each part; by default the excerpts of this module
    """
    if len(_OPENING.findall(document)) != len(_BLOCK.findall(document)):
        raise TreadleError("a generated part has no end", where, "<!-- end --> after each <!-- generated: ... -->")
    return _BLOCK.sub(partial(_filled, where=where, excerpts=EXCERPTS if excerpts is None else excerpts), document)


def write_model(path: Path) -> Path:
    """Writes the model that the documents show: relu(x @ w + b), x of shape [128, 48], w of shape [48, 128]."""
    weights = (np.arange(48 * 128) % 7 - 3).reshape(48, 128).astype(np.float32)
    bias = (np.arange(128) % 3 - 1).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="shift"),
        helper.make_node("Relu", ["sum"], ["y"], name="clamp"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [128, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [128, 128])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def rewrite(documents: Mapping[str, Excerpts]) -> int:
    """Rewrites documents, each with its excerpts; prints which ones changed. TreadleError for one that is missing."""
    for name, excerpts in documents.items():
        path = ROOT / name
        if not path.is_file():
            raise TreadleError("the document is missing", path, "a checkout of the sources")
        before = path.read_text()
        after = render(before, name, excerpts)
        path.write_text(after)
        print(f"{name}: {'unchanged' if before == after else 'rewritten'}")
    return 0


def redraw() -> int:
    """Draws the pictures again; prints which ones changed."""
    for name, draw in PICTURES.items():
        path, text = ROOT / name, draw()
        print(f"{name}: {'unchanged' if path.is_file() and path.read_text() == text else 'rewritten'}")
        path.write_text(text)
    return 0


def _filled(match: re.Match[str], where: str, excerpts: Excerpts) -> str:
    name = match["name"]
    if name not in excerpts:
        raise TreadleError(f"unknown part '{name}'", where, excerpts)
    return f"<!-- generated: {name} -->\n{excerpts[name]()}<!-- end -->"


@cache
def _module(target: str, stage: str) -> ModuleOp:
    """The model after a stage."""
    with tempfile.TemporaryDirectory() as folder:
        return lowered_module(CompileRequest(write_model(Path(folder) / "small.onnx"), Target.parse(target)), stage)


def _ir(target: str, stage: str) -> str:
    """The IR after a stage without the enclosing module; digests cut, index constants where they are used."""
    lines = ir_text(_module(target, stage)).splitlines()[1:-1]
    text = "\n".join(line.removeprefix("  ") for line in lines)
    return indices_in_place(cut_digests(text))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def _whole(target: str, stage: str) -> str:
    return _fenced("mlir", _ir(target, stage))


def _part(target: str, stage: str, first: str, head: int = 40, tail: int = 1) -> str:
    """The block that the line with `first` opens: its first `head` lines, and the last `tail`."""
    return _fenced("mlir", shortened(block(_ir(target, stage), first), head, tail))


def _c_kernel() -> str:
    (unit,) = print_kernels(_module("cpu", "lower"))
    return _fenced("c", unit.text)


def _c_inner() -> str:
    (unit,) = print_kernels(_module("cpu", "lower"))
    return _fenced("c", enclosing(unit.text, "] += ", 3))


def _c_host() -> str:
    return _fenced("c", print_host(_module("cpu", "lower")).text)


def _cuda_text(head: int, tail: int) -> str:
    (unit,) = print_cuda_kernels(_module(GPU, "lower"))
    return _fenced("cpp", shortened(block(unit.text, "__global__"), head, tail))


def _cuda_loop(levels: int) -> str:
    """The loop `levels` loops around the accumulation."""
    (unit,) = print_cuda_kernels(_module(GPU, "lower"))
    return _fenced("cpp", enclosing(unit.text, "] += ", levels))


def _stage_table() -> str:
    rows = ["| stage | purpose | may remain after it |", "|---|---|---|"]
    for stage in STAGES:
        borders = [key for key in LEGAL if key.partition(" ")[0] == stage.name]
        legal = "; ".join(f"{key.partition(' ')[2] or 'all'}: {_names(key)}" for key in borders)
        rows.append(f"| `{stage.name}` | {stage.purpose} | {legal.removeprefix('all: ')} |")
    return "\n".join(rows) + "\n"


def _names(border: str) -> str:
    """The operations that may remain, without the module and the functions."""
    frame = ("builtin.module", "func.func", "func.return")
    return " ".join(f"`{name}`" for name in LEGAL[border] if name not in frame)


def _pass_table() -> str:
    rows = ["| stage | pass | target | why it stands here |", "|---|---|---|---|"]
    for stage in STAGES:
        for step, kinds in steps_of(stage.name):
            named = "both" if kinds == BOTH else "".join(kinds)
            rows.append(f"| {stage.name} | `{step.text}` | {named} | {step.why} |")
    return "\n".join(rows) + "\n"


EXCERPTS: Excerpts = {
    "stages": _stage_table,
    "passes": _pass_table,
    "peers": peers_table,
    **{f"cpu {stage}": partial(_whole, "cpu", stage) for stage in STAGE_NAMES},
    "cpu decision": partial(_part, "cpu", "schedule", "graph.fused", 1),
    "cuda decision": partial(_part, GPU, "schedule", "graph.fused", 1),
    "cpu group": partial(_part, "cpu", "fuse", "graph.fused"),
    "cpu kernel": partial(_part, "cpu", "kernels", "loop.kernel"),
    "cpu kernel inner": partial(_part, "cpu", "kernels", "scf.for %k"),
    "cpu program": partial(_part, "cpu", "plan", "func.func @main"),
    "cpu looped kernel": partial(_part, "cpu", "loops", "loop.func", 60),
    "cpu looped inner": partial(_part, "cpu", "loops", "scf.for %k"),
    "cpu lowered head": partial(_part, "cpu", "lower", "func.func", 14, 3),
    "cuda lowered head": partial(_part, GPU, "lower", "cuda.kernel", 20, 3),
    "c kernel": _c_kernel,
    "c inner": _c_inner,
    "c host": _c_host,
    "cuda text": partial(_cuda_text, 24, 12),
    "cuda step": partial(_cuda_loop, 4),
    "cuda inner": partial(_cuda_loop, 3),
}
"""What a document can ask for, by name."""

if __name__ == "__main__":
    sys.exit(main())
