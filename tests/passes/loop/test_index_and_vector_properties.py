"""loop-simplify-index and loop-vectorize keep what random kernels compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.loop_hoist_invariants import LoopHoistInvariantsPass
from treadle.passes.loop.loop_simplify_index import LoopSimplifyIndexPass
from treadle.passes.loop.loop_vectorize import LoopVectorizePass

CONTEXT = treadle_context()
FROM = 0, 300
"""The inputs' values: whole numbers, so that no order of additions rounds."""


def run(module: ModuleOp) -> np.ndarray:
    """The result of the module's one kernel for inputs that are drawn by their shapes alone."""
    kernel = next(op for op in module.walk() if isinstance(op, FuncOp))
    shapes = [buffer.type.get_shape() for buffer in kernel.buffers][:-1]  # pyright: ignore[reportAttributeAccessIssue]
    inputs = [np.random.default_rng(n).integers(*FROM, s).astype(np.float32) for n, s in enumerate(shapes)]
    return evaluate_kernel(kernel, inputs)


def check_same(text: str) -> str:
    """Runs the passes on a kernel, one after another, and compares; the IR after the last."""
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    expected = run(module)
    for each in (LoopSimplifyIndexPass(), LoopHoistInvariantsPass(), LoopVectorizePass(), LoopHoistInvariantsPass()):
        each.apply(CONTEXT, module)
        module.verify()
        np.testing.assert_array_equal(run(module), expected, each.name)
    return str(module)


class Lines:
    """Lines of a kernel's body; each method gives the name of a value, which starts with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.text: list[str] = []

    def op(self, text: str) -> str:
        """A line that defines a value."""
        name = f"%{self.prefix}{len(self.text)}"
        self.text.append(f"{name} = {text}")
        return name

    def constant(self, value: int) -> str:
        """An index."""
        return self.op(f"arith.constant {value} : index")

    def index(self, kind: str, lhs: str, rhs: str | int) -> str:
        """One operation on indices."""
        rhs = self.constant(rhs) if isinstance(rhs, int) else rhs
        return self.op(f"arith.{kind} {lhs}, {rhs} : index")

    def affine(self, terms: dict[str, int], constant: int) -> str:
        """A sum of multiples of values."""
        total = self.constant(constant)
        for value, factor in terms.items():
            total = self.index("addi", total, self.index("muli", value, factor))
        return total

    def all(self, predicates: list[str]) -> str:
        """The conjunction."""
        total = predicates[0]
        for predicate in predicates[1:]:
            total = self.op(f"arith.andi {total}, {predicate} : i1")
        return total


def kernel(body: Lines, outer: Lines, trips: str, tail: str = "") -> str:
    """Zeroes the result, then runs `body` for %i from 0 up to `trips` in a marked loop."""
    zeroing = "scf.for %z = %c0 to %c256 step %c1 { loop.store %zero, %Y[%z] : memref<256xf32> }"
    return "\n".join([
        "loop.func @k(%A: memref<512xf32>, %S: memref<40xf32>, %Y: memref<256xf32>) grid(%b in 3) threads(%t in 1) {",
        "%c0 = arith.constant 0 : index", "%c1 = arith.constant 1 : index", "%c256 = arith.constant 256 : index",
        "%zero = arith.constant 0.0 : f32", "%half = arith.constant 150.0 : f32", zeroing, *outer.text,
        f"scf.for %i = %c0 to {trips} step %c1 {{", *body.text, tail, "} {loop.vector}", "}",
    ])  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """`i * slope + b * per_block + constant kind 0`."""

    kind: str
    slope: int
    per_block: int
    constant: int

    def write(self, lines: Lines) -> str:
        """The comparison's truth."""
        value = lines.affine({"%i": self.slope, "%b": self.per_block}, self.constant)
        return lines.op(f"arith.cmpi {self.kind}, {value}, {lines.constant(0)} : index")


compared = st.builds(
    Compared,
    st.sampled_from(["slt", "sle", "sgt", "sge"]),
    st.integers(-3, 3),
    st.integers(-9, 9),
    st.integers(-30, 30),
)
trip_counts = st.one_of(st.integers(0, 40), st.just(None))


def loop_end(outer: Lines, trips: int | None) -> str:
    """A constant, or a number that differs between blocks and may be below 0."""
    return outer.affine({"%b": 20}, -5) if trips is None else outer.constant(trips)


@settings(max_examples=40)
@given(
    trips=trip_counts,
    strides=st.tuples(st.integers(-3, 3), st.sampled_from([1, 2, 5])),
    read_if=st.lists(compared, max_size=3),
    store_if=st.lists(compared, max_size=2),
    otherwise=st.sampled_from(["%zero", "a load", "a sum"]),
    choose=st.sampled_from(["", "ogt", "ole", "une", "ult"]),
)
def test_vector_loops_compute_the_same(
    trips: int | None,
    strides: tuple[int, int],
    read_if: list[Compared],
    store_if: list[Compared],
    otherwise: str,
    choose: str,
) -> None:
    outer, body = Lines("o"), Lines("v")
    end = loop_end(outer, trips)
    x = body.op(f"loop.load %A[{body.affine({'%i': strides[0], '%b': 7}, 200)}] : memref<512xf32>")
    other = {"%zero": "%zero", "a load": x, "a sum": body.op(f"arith.addf {x}, {x} : f32")}[otherwise]
    where = f" where {body.all([c.write(body) for c in read_if])} else {other}" if read_if else ""
    y = body.op(f"loop.load %A[{body.affine({'%i': strides[1] - 2}, 130)}]{where} : memref<512xf32>")
    if choose:
        y = body.op(f"arith.select {body.op(f'arith.cmpf {choose}, {x}, %half : f32')}, {x}, {y} : f32")
    inside = f" where {body.all([c.write(body) for c in store_if])}" if store_if else ""
    address = body.affine({"%i": strides[1], "%b": 2}, 0)
    after = check_same(kernel(body, outer, end, f"loop.store {y}, %Y[{address}]{inside} : memref<256xf32>"))
    # One iteration has constant addresses, which all lanes would share.
    assert choose == "ult" or store_if or trips == 1 or "vector<16x" in after


@settings(max_examples=20)
@given(trips=trip_counts, slope=st.integers(-3, 3), shift=st.integers(-50, 50), kind=st.sampled_from(["s", "u"]))
def test_lanes_outside_a_buffer_are_not_read(trips: int | None, slope: int, shift: int, kind: str) -> None:
    outer, body = Lines("o"), Lines("v")
    end = loop_end(outer, trips)
    at = body.affine({"%i": slope, "%b": 4}, shift)
    predicates = [body.op(f"arith.cmpi {kind}lt, {at}, {body.constant(40)} : index")]
    if kind == "s":
        predicates.append(body.op(f"arith.cmpi sge, {at}, {body.constant(0)} : index"))
    x = body.op(f"loop.load %S[{at}] where {body.all(predicates)} else %half : memref<40xf32>")
    check_same(kernel(body, outer, end, f"loop.store {x}, %Y[%i] : memref<256xf32>"))


@settings(max_examples=15)
@given(trips=trip_counts, rows=st.integers(0, 5), across=st.booleans(), padded=st.booleans())
def test_loops_inside_carry_vectors(trips: int | None, rows: int, across: bool, padded: bool) -> None:
    """Sums of columns, or of a window that moves with the lane; elements before the first are left out."""
    outer, body = Lines("o"), Lines("v")
    end = loop_end(outer, trips)
    at = body.affine({"%i": 1, "%k": 1 if across else 50}, -3 if padded else 0)
    where = f" where {body.op(f'arith.cmpi sge, {at}, %c0 : index')} else %zero" if padded else ""
    x = body.op(f"loop.load %A[{at}]{where} : memref<512xf32>")
    sum = body.op(f"arith.addf %sum, {x} : f32")
    rows_name = outer.constant(rows)
    body.text.insert(0, f"%total = scf.for %k = %c0 to {rows_name} step %c1 iter_args(%sum = %zero) -> (f32) {{")
    tail = f"scf.yield {sum} : f32\n}}\nloop.store %total, %Y[%i] : memref<256xf32>"
    check_same(kernel(body, outer, end, tail))


Tree = tuple[str, int, int]
"""An operation, the number of an earlier value, and a constant (or for a sum the number of another value)."""
trees = st.lists(
    st.tuples(st.sampled_from(["divui", "remui", "muli", "addi", "addi"]), st.integers(0, 99), st.integers(1, 12)),
    min_size=3,
    max_size=12,
)


def write_tree(lines: Lines, tree: list[Tree]) -> list[str]:
    """Values computed from block, thread and loop variables, none negative and none large."""
    values = ["%i", "%b", "%t"]
    for kind, first, second in tree:
        left = values[first % len(values)]
        right: str | int = values[second % len(values)] if kind == "addi" else second
        value = lines.index(kind, left, right)
        values.append(lines.index("remui", value, 997) if kind == "muli" else value)
    return values


@settings(max_examples=60)
@given(tree=trees, bounds=st.lists(st.integers(-20, 60), min_size=3, max_size=3), kinds=st.integers(0, 6**3 - 1))
def test_index_arithmetic_computes_the_same(tree: list[Tree], bounds: list[int], kinds: int) -> None:
    """The last three values: an address, two sides of a predicate, and of a branch; the sum of all is stored."""
    outer, body = Lines("o"), Lines("v")
    *_, a, b, c = write_tree(body, tree)
    names = ("eq", "ne", "slt", "sle", "sgt", "sge")
    truths = [
        body.op(f"arith.cmpi {names[kinds // 6**n % 6]}, {body.index('subi', v, bound)}, {w} : index")
        for n, (v, w, bound) in enumerate(zip((a, b, c), (b, body.constant(9), a), bounds, strict=True))
    ]
    either = body.op(f"arith.ori {truths[0]}, {truths[1]} : i1")
    x = body.op(f"loop.load %A[{body.index('remui', a, 512)}] where {either} else %half : memref<512xf32>")
    branch = f"scf.if {truths[2]} -> (f32) {{ scf.yield {x} : f32 }} else {{ scf.yield %zero : f32 }}"
    number = body.op(f"arith.sitofp {body.op(f'arith.index_cast {b} : index to i64')} : i64 to f32")
    y = body.op(f"arith.addf {body.op(branch)}, {number} : f32")
    chosen = body.op(f"arith.select {truths[1]}, {b}, {c} : index")
    tail = f"loop.store {y}, %Y[{body.index('remui', chosen, 256)}] where {body.all(truths[:2])} : memref<256xf32>"
    check_same(kernel(body, outer, outer.constant(19), tail).replace(" {loop.vector}", ""))


@pytest.mark.parametrize("element", ["i1", "i64", "f64"])
def test_other_elements_are_left_alone(element: str) -> None:
    text = f"""loop.func @k(%A: memref<16x{element}>, %Y: memref<16x{element}>) grid(%b in 1) threads(%t in 1) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      scf.for %i = %c0 to %c16 step %c1 {{
        %x = loop.load %A[%i] : memref<16x{element}>
        loop.store %x, %Y[%i] : memref<16x{element}>
      }} {{loop.vector}}
    }}"""
    module = Parser(CONTEXT, text).parse_module()
    before = str(module)
    LoopVectorizePass().apply(CONTEXT, module)
    assert str(module) == before


def test_a_marked_loop_inside_a_marked_loop_goes_with_it() -> None:
    outer, body = Lines("o"), Lines("v")
    body.text = [
        "scf.for %k = %c0 to %c1 step %c1 {", "%x = loop.load %A[%i] : memref<512xf32>",
        "loop.store %x, %Y[%i] : memref<256xf32>", "} {loop.vector}",
    ]  # fmt: skip
    assert check_same(kernel(body, outer, "%c256")).count("vector.load") == 1
