"""A backend outside of the package: C without vectors and threads, from a pass list, a printer and an executor.

    python examples/scalar_backend.py

`docs/new-backend.md` explains it.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, memref, vector
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, VectorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle import ir
from treadle.backends.c.compiler import INCLUDE_DIRECTORIES
from treadle.backends.c.language import CLanguage
from treadle.backends.c_like import Names, StatementPrinter
from treadle.backends.program import BufferRef, Program, read_program
from treadle.compiler.pipeline import PASSES, Passes, Step, lower
from treadle.dialects.graph import MatmulOp, SoftmaxOp, UnaryOp
from treadle.errors import TreadleError
from treadle.target import Target

Array = NDArray[Any]

# The target: hardware as data. Templates choose tiles by it; a vector of 4 floats is the least that they know.
TARGET = Target.parse("sse2")

_FOLDS = {"add": arith.AddfOp, "maximumf": arith.MaximumfOp, "minimumf": arith.MinimumfOp}


@dataclass(frozen=True)
class FoldScalarsPass(ModulePass):
    """A pass of this backend: folds of vectors, which some templates write, become folds of their elements."""

    name = "scalar-fold-scalars"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for fold in [each for each in op.walk() if isinstance(each, vector.ReductionOp)]:
            load, combine = fold.vector.owner, _FOLDS[fold.kind.data.value]
            if not isinstance(load, vector.LoadOp) or len(load.indices) != 1 or fold.acc is not None:
                raise TreadleError("a fold of what is no load", "scalar C", "vector.reduction of vector.load")
            builder = Builder(InsertPoint.before(fold))
            first, total = load.indices[0], None
            for lane in range(load.result.type.get_shape()[0]):
                offset = builder.insert(arith.ConstantOp(IntegerAttr(lane, IndexType()))).result
                index = builder.insert(arith.AddiOp(first, offset)).result
                element: SSAValue = builder.insert(memref.LoadOp.get(load.base, [index])).res
                total = element if total is None else builder.insert(combine(total, element)).result
            Rewriter.replace_op(fold, [], [total])
            Rewriter.erase_op(load)


# The pass list: a CPU's, without what vectorises loops, prefetches, and splits register tiles.
SCALAR: Passes = {
    **PASSES["cpu"],
    "loops": tuple(step for step in PASSES["cpu"]["loops"] if not step.text.startswith("loop-vectorize")),
    "lower": (
        Step("loop-prove-bounds", "Every access is proved to lie within its buffer."),
        Step("loop-lower-accesses", "Predicates of accesses become branches."),
        Step("loop-to-c", "A kernel is a function of its buffers, of a worker, and of the number of workers."),
        Step(FoldScalarsPass(), "What is left of vectors; a pass of this backend stands in its list by itself."),
    ),
}


class ScalarC(CLanguage):
    """The printer: the package's C, in which nothing is a vector."""

    name = "scalar C"

    def vector_type(self, type: VectorType) -> str:
        raise TreadleError(f"a value of type {type}", "scalar C", "passes that leave loops of scalars")


def print_kernel(kernel: FuncOp) -> str:
    """A function `void NAME(void *const *args, long worker, long workers)`."""
    *buffers, worker, workers = kernel.body.block.args
    language = ScalarC()
    printer = StatementPrinter(language, Names(), kernel.body.block)
    printer.values.names |= {worker: "worker", workers: "workers"}
    for n, buffer in enumerate(buffers):
        assert isinstance(buffer.type, MemRefType)
        element = language.argument_type(buffer.type.element_type)
        printer.line(f"{element} *{printer.parameter(buffer, 'buffer')} = args[{n}];")
    head = f"void {kernel.sym_name.data}(void *const *args, long worker, long workers) {{"
    return "\n".join([head, *printer.print_body(), "}", ""])


class ScalarModel:
    """The executor: a shared library of kernels, launched one after the other on NumPy arrays."""

    def __init__(self, module: ModuleOp, folder: Path) -> None:
        """Lowers a module of graph operators, in place; TreadleError for what has no scalar form here."""
        lower(ir.context(), module, TARGET, passes=SCALAR)
        self._program: Program = read_program(module)
        if self._program.symbols:
            raise TreadleError("a range of shapes", "scalar C", "a model of static shapes")
        names = {launch.kernel for launch in self._program.launches}
        kernels = [op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data in names]
        source, library = folder / "kernels.c", folder / "kernels.so"
        source.write_text("\n".join(['#include "treadle.h"', "", *map(print_kernel, kernels)]))
        includes = [f"-I{each}" for each in INCLUDE_DIRECTORIES]
        command = [
            "cc",
            "-O2",
            "-fno-tree-vectorize",
            "-Wno-psabi",
            "-shared",
            "-fPIC",
            *includes,
            str(source),
            "-o",
            str(library),
        ]
        subprocess.run([*command, "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))
        self._constants = [np.ascontiguousarray(each.array()) for each in self._program.constants]

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """The outputs for inputs in order."""
        given = [np.ascontiguousarray(x, s.dtype) for x, s in zip(inputs, self._program.inputs, strict=True)]
        outputs = tuple(np.empty(spec.shape, spec.dtype) for spec in self._program.outputs)
        arena = np.empty(self._program.arena_bytes, np.uint8)
        arrays: dict[str, Sequence[Array]] = {"input": given, "output": outputs, "constant": self._constants}
        for launch in self._program.launches:
            addresses = [_address(each, arrays, arena) for each in launch.buffers]
            args = (ctypes.c_void_p * len(addresses))(*addresses)
            self._library[launch.kernel](args, ctypes.c_long(0), ctypes.c_long(1))  # the only worker of one
        return outputs


def _address(buffer: BufferRef, arrays: dict[str, Sequence[Array]], arena: Array) -> int:
    if buffer.kind == "arena":
        return arena.ctypes.data + buffer.index
    return arrays[buffer.kind][buffer.index].ctypes.data


def layer() -> ModuleOp:
    """softmax(relu(a @ b))."""
    entry = ir.Entry({"a": ir.tensor_type("float32", (8, 48)), "b": ir.tensor_type("float32", (48, 16))})
    product = entry.add(UnaryOp("relu", entry.add(MatmulOp(entry["a"], entry["b"]))))
    return entry.module({"y": entry.add(SoftmaxOp(product, 1))})


def main() -> None:
    """Runs a layer, and compares what it computes with its definition."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((8, 48), (48, 16)))
    (wanted,) = ir.evaluate(layer(), [a, b])
    with TemporaryDirectory() as folder:
        (y,) = ScalarModel(layer(), Path(folder))(a, b)
        print((Path(folder) / "kernels.c").read_text())
    print(f"largest difference from the definition: {np.abs(y - wanted).max():.1e}")


if __name__ == "__main__":
    main()
