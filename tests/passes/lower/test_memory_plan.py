"""memory-plan: random programs compute the same, share no live byte, and read back as a Program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import Builtin, IntegerAttr, ModuleOp, i64
from xdsl.parser import Parser

from tests.helpers.arena_overlaps import overlaps
from treadle.backends.program import BufferRef, read_program
from treadle.backends.reference.run_module import run_module
from treadle.dialects.graph import GRAPH
from treadle.dialects.host import HOST, BufferOp
from treadle.dialects.loop import LOOP, FuncOp
from treadle.errors import TreadleError
from treadle.passes.lower.memory_plan import MemoryPlanPass

CONTEXT = Context()
for dialect in (Builtin, arith.Arith, func.Func, memref.MemRef, scf.Scf, GRAPH, HOST, LOOP):
    CONTEXT.load_dialect(dialect)


def parse(text: str) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


def planned(text: str, **options: int) -> ModuleOp:
    module = parse(text)
    MemoryPlanPass(**options).apply(CONTEXT, module)
    module.verify()
    return parse(str(module))


def add(result: str, a: tuple[str, int], b: tuple[str, int], size: int, comment: str = "") -> str:
    """A kernel of `size` blocks that adds elements of two vectors, cyclically, as text."""
    (x, m), (y, n) = a, b
    said = f' comment "{comment}"' if comment else ""
    return f"""
  %{result} = loop.kernel @{result} ins(%A = %{x} : tensor<{m}xf32>, %B = %{y} : tensor<{n}xf32>)
      outs(%C : tensor<{size}xf32>) grid(%block in {size}) threads(%thread in 1){said} {{
    %m = arith.constant {m} : index
    %n = arith.constant {n} : index
    %i = arith.remui %block, %m : index
    %j = arith.remui %block, %n : index
    %v = memref.load %A[%i] : memref<{m}xf32>
    %w = memref.load %B[%j] : memref<{n}xf32>
    %s = arith.addf %v, %w : f32
    memref.store %s, %C[%block] : memref<{size}xf32>
  }}"""


def main(body: str, *results: tuple[str, int]) -> str:
    names = ", ".join(f"%{name}" for name, _ in results)
    types = ", ".join(f"tensor<{size}xf32>" for _, size in results)
    return f"""
func.func @main(%x : tensor<5xf32>) -> ({types}) {{
  %k = graph.constant #graph.inline<"1.0, -2.0, 0.5"> : tensor<3xf32>
  {body}
  func.return {names} : {types}
}}"""


def arena_buffers(module: ModuleOp) -> list[BufferOp]:
    return [op for op in module.walk() if isinstance(op, BufferOp) and op.kind.data == "arena"]


@dataclass
class Drawn:
    """A random program of additions over %x, %k and earlier results, in which every value may be returned."""

    text: str


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    values, body = [("x", 5), ("k", 3)], ""
    for n in range(draw(st.integers(0, 8))):
        size = draw(st.integers(1, 40))
        body += add(f"v{n}", draw(st.sampled_from(values)), draw(st.sampled_from(values)), size)
        values.append((f"v{n}", size))
    returned = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return Drawn(main(body, *returned))


@settings(max_examples=40)
@given(programs(), st.sampled_from([4, 64]))
def test_a_planned_program_computes_the_same_and_shares_no_live_byte(program: Drawn, alignment: int) -> None:
    x = np.arange(5, dtype=np.float32)
    module = planned(program.text, alignment=alignment)
    assert overlaps(module) == []
    arena_bytes = read_program(module).arena_bytes
    sizes = [4 * op.type.element_count() for op in arena_buffers(module)]
    starts = [op.position.value.data for op in arena_buffers(module) if op.position is not None]
    assert all(start + size <= arena_bytes for start, size in zip(starts, sizes, strict=True))
    assert arena_bytes <= sum(-(-size // alignment) * alignment for size in sizes)
    expected = run_module(parse(program.text), [x])
    for found, wanted in zip(run_module(module, [x]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_overlaps_finds_a_plan_that_is_wrong() -> None:
    x = ("x", 5)
    body = add("a", x, x, 5) + add("b", x, x, 5) + add("c", ("a", 5), ("b", 5), 5)
    module = planned(main(body, ("c", 5)))
    assert overlaps(module) == []
    arena = arena_buffers(module)
    for op in arena:
        op.position = IntegerAttr(0, i64)
    assert overlaps(module) == [tuple(arena)]


def test_a_program_reads_back() -> None:
    body = add("a", ("x", 5), ("k", 3), 5) + add("b", ("a", 5), ("k", 3), 5)
    program = read_program(planned(main(body, ("b", 5), ("k", 3))))
    assert [str(spec) for spec in program.inputs] == ["input0: float32[5]"]
    assert [str(spec) for spec in program.outputs] == ["output0: float32[5]", "output1: float32[3]"]
    assert program.arena_bytes == 64
    (constant,) = program.constants
    np.testing.assert_array_equal(constant.array(), np.array([1, -2, 0.5], np.float32))
    x, k, h = BufferRef("input", 0), BufferRef("constant", 0), BufferRef("arena", 0)
    y = BufferRef("output", 0)
    assert [(launch.kernel, launch.buffers) for launch in program.launches] == [
        ("a", (x, k, h)),
        ("a", (h, k, y)),
        ("copy_1", (k, BufferRef("output", 1))),
    ]


def test_functions_have_readable_unique_names_and_comments() -> None:
    x = ("x", 5)
    body = add("main", x, x, 5, "first") + add("b", x, x, 5, "second") + add("main_3", x, x, 7)
    other = body.replace("@main_3", "@main")
    module = planned(main(other, ("main", 5), ("b", 5), ("main_3", 7)))
    functions = [op for op in module.walk() if isinstance(op, FuncOp)]
    assert [f.sym_name.data for f in functions] == ["main_2", "main_3"]
    comments = [None if f.comment is None else f.comment.data for f in functions]
    assert comments == ["first (and 1 more of the same program)", None]


@pytest.mark.parametrize(
    ("shape", "element"),
    [((), "f32"), ((0, 3), "f32"), ((70, 3, 41), "i64"), ((2, 4096), "i8"), ((1, 5), "i1"), ((9000,), "f16")],
)
@pytest.mark.parametrize("threads", [1, 256])
def test_copies_of_every_shape_and_type(shape: tuple[int, ...], element: str, threads: int) -> None:
    tensor = f"tensor<{'x'.join(map(str, (*shape, element)))}>"
    module = planned(
        f"func.func @main(%x : {tensor}) -> {tensor} {{\n func.return %x : {tensor}\n}}", copy_threads=threads
    )
    dtype = read_program(module).inputs[0].dtype
    x = np.random.default_rng(3).integers(0, 2, shape).astype(dtype)
    (result,) = run_module(module, [x])
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            main('%y = graph.unary "neg" %x : (tensor<5xf32>) -> tensor<5xf32>', ("x", 5)),
            "graph.unary is left in @main; accepted: loop.kernel, loop.dispatch, graph.append, graph.constant, ",
        ),
        (
            "func.func @main(%x : tensor<?xf32>) -> tensor<?xf32> {\n func.return %x : tensor<?xf32>\n}",
            r"func.return has a symbolic dimension: tensor<\?xf32>; accepted: static extents",
        ),
        (
            "func.func @main(%x : index) {\n func.return\n}",
            "func.func has a value of type index; accepted: tensors",
        ),
        ("func.func @other() {\n func.return\n}", "no function @main; accepted: func.func @main"),
        (
            "func.func @main() {\n func.return\n}\nfunc.func @other() {\n func.return\n}",
            "func.func beside @main; accepted: a module that holds func.func @main only, and what",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(text: str, reason: str) -> None:
    with pytest.raises(TreadleError, match=reason):
        planned(text)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(TreadleError, match="impossible options alignment=0 copy-threads=1"):
        planned(main("", ("x", 5)), alignment=0)


def test_an_unplanned_module_is_no_program() -> None:
    with pytest.raises(TreadleError, match=r"@main has no arena_bytes; accepted: .* memory-plan"):
        read_program(parse(main("", ("x", 5))))
