"""MLIR's tools and LLVM compile what `loop-to-upstream` writes: the same values as the definition, kernel by kernel."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from tests.helpers.limits import assert_within, module_limits
from tests.helpers.onnx_models import linear_model, save_model, value
from tests.tools.test_exchange_with_mlir import convolutions
from treadle import ir
from treadle.dialects.graph.attributes import BlobAttr, InlineAttr
from treadle.dialects.graph.constant import default_store
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.host import BufferOp, LaunchOp
from treadle.frontends.onnx import import_model
from treadle.passes.entry import ENTRY

MLIR_OPT, MLIR_TRANSLATE = shutil.which("mlir-opt-22"), shutil.which("mlir-translate-22")
"""The version whose LLVM is that of ziglang's clang, which reads its text."""
TO_LLVM = [
    "--convert-vector-to-scf", "--convert-scf-to-cf", "--expand-strided-metadata", "--convert-math-to-llvm",
    "--convert-vector-to-llvm", "--convert-arith-to-llvm", "--convert-index-to-llvm", "--finalize-memref-to-llvm",
    "--convert-func-to-llvm=use-bare-ptr-memref-call-conv=1", "--convert-cf-to-llvm", "--convert-ub-to-llvm",
    "--reconcile-unrealized-casts",
]  # fmt: skip
"""The passes of docs/embedding.md: buffers are pointers, as in the C text."""


def library(module: ModuleOp, folder: Path) -> ctypes.CDLL:
    """The kernels of a module of stage `lower`, compiled by MLIR's passes and LLVM."""
    assert MLIR_OPT is not None and MLIR_TRANSLATE is not None
    kernels = module.clone()
    ir.run_passes(kernels, "loop-to-upstream")
    text, lowered, llvm, shared = (folder / name for name in ("k.mlir", "llvm.mlir", "k.ll", "k.so"))
    text.write_text(ir.print_text(kernels, generic=True))
    compiler = [sys.executable, "-m", "ziglang", "cc", "-O2", "-march=native", "-Wno-override-module"]
    for command in (
        [MLIR_OPT, str(text), *TO_LLVM, "-o", str(lowered)],
        [MLIR_TRANSLATE, "--mlir-to-llvmir", str(lowered), "-o", str(llvm)],
        [*compiler, "-shared", "-fPIC", str(llvm), "-o", str(shared), "-lm"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(shared))


def run(module: ModuleOp, kernels: ctypes.CDLL, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the host program of a module gives, its kernels being those of a library; one thread."""
    (main,) = [f for f in module.body.block.ops if isinstance(f, FuncOp) and f.sym_name.data == ENTRY]
    arena = np.zeros(main.attributes["arena_bytes"].value.data + 64, np.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    buffers: dict[SSAValue, NDArray[Any]] = {}
    outputs: dict[int, NDArray[Any]] = {}
    for op in main.body.block.ops:
        if isinstance(op, BufferOp):
            buffers[op.buffer] = buffer(op, inputs, arena, outputs)
        elif isinstance(op, LaunchOp):
            pointers = [ctypes.c_void_p(buffers[each].ctypes.data) for each in op.buffers]
            kernel = getattr(kernels, op.kernel.root_reference.data)
            kernel(*pointers, ctypes.c_int64(0), ctypes.c_int64(1))
    return [outputs[n] for n in sorted(outputs)]


def buffer(
    op: BufferOp, inputs: Sequence[NDArray[Any]], arena: NDArray[np.uint8], outputs: dict[int, NDArray[Any]]
) -> NDArray[Any]:
    """The memory of a buffer of the host program, flat."""
    type = op.buffer.type
    assert isinstance(type, MemRefType)
    (elements,), dtype = type.get_shape(), numpy_dtype(type.get_element_type())
    position = 0 if op.position is None else op.position.value.data
    match op.kind.data:
        case "input":
            return np.ascontiguousarray(inputs[position]).reshape(-1)
        case "output":
            return outputs.setdefault(position, np.full(elements, -77, dtype))
        case "arena":
            return arena[position : position + elements * dtype.itemsize].view(dtype)
        case _:
            pass
    assert op.value is not None
    if isinstance(op.value, BlobAttr):
        return np.ascontiguousarray(default_store().get(op.value, type)).reshape(-1)  # pyright: ignore[reportArgumentType]
    assert isinstance(op.value, InlineAttr)
    return np.ascontiguousarray(op.value.array(type)).reshape(-1)  # pyright: ignore[reportArgumentType]


def squeezenet(path: Path) -> Path:
    """A model of the package onnx, whose weights are all the same."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"


def moved(path: Path) -> Path:
    """Lanes that lie apart: a transposition, and every third column; comparisons and selections of lanes."""
    bounds = [numpy_helper.from_array(np.array([n]), name) for name, n in zip("abcd", (0, 64, 1, 3), strict=True)]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("LeakyRelu", ["t"], ["y"], alpha=0.1),
        helper.make_node("Slice", ["x", "a", "b", "c", "d"], ["s"]),
        helper.make_node("Exp", ["s"], ["z"]),
    ]
    return save_model(path, nodes, [value("x", (40, 64))], [value("y", (64, 40)), value("z", (40, 22))], bounds)


MODELS: dict[str, Callable[[Path], Path]] = {
    "convolutions": convolutions, "a product": linear_model, "moved": moved, "SqueezeNet": squeezenet,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(
    MLIR_OPT is None or MLIR_TRANSLATE is None, reason="mlir-opt-22 is not on PATH: apt-get install mlir-22-tools"
)
@pytest.mark.parametrize("name", MODELS)
def test_llvm_computes_what_the_definition_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    module = import_model(MODELS[name](tmp_path / "m.onnx"), {}, {})
    (main,) = [f for f in module.body.block.ops if isinstance(f, FuncOp)]
    random = np.random.default_rng(0)
    shapes = [each.type.get_shape() for each in main.body.block.args]  # pyright: ignore[reportAttributeAccessIssue]
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    expected = module_limits(module, inputs)
    ir.lower(module, "avx2")
    found = run(module, library(module, tmp_path), inputs)
    for one, other in zip(found, expected, strict=True):
        assert_within(one.reshape(other.value.shape), other, np.float32, name)
