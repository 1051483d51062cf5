"""Random small graphs through graph-define, graph-inline and graph-fuse compute what they computed before."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.graph.support import check_same, groups, main_of
from treadle.dialects.graph import ComputeOp, Operator
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass

Shape = tuple[int, ...]


def tensor(shape: Shape) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def dense(values: list[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>"


@dataclass
class Writer:
    """Writes a function one operator at a time."""

    lines: list[str] = field(default_factory=list[str])
    values: list[tuple[str, Shape]] = field(default_factory=list[tuple[str, Shape]])

    def add(self, operator: str, operands: list[tuple[str, Shape]], shape: Shape, attributes: str = "") -> None:
        name = f"%v{len(self.values)}"
        names = ", ".join(value for value, _ in operands)
        types = ", ".join(tensor(s) for _, s in operands)
        self.lines.append(f"{name} = graph.{operator} {names} {attributes} : ({types}) -> {tensor(shape)}")
        self.values.append((name, shape))


@st.composite
def functions(draw: st.DrawFn) -> str:
    w = Writer()
    w.values = [("%a0", (4, 6)), ("%a1", (6, 4)), ("%a2", (4, 1))]
    w.lines = ['%half = graph.constant #graph.inline<"0.5"> : tensor<f32>']
    for _ in range(draw(st.integers(3, 10))):
        _grow(draw, w)
    last = w.values[-1]
    returned = [last, *draw(st.lists(st.sampled_from(w.values[3:]), max_size=2, unique=True))]
    results = ", ".join(tensor(s) for _, s in returned)
    body = "\n".join(w.lines)
    arguments = ", ".join(f"{n}: {tensor(s)}" for n, s in w.values[:3])
    return (
        f"func.func @main({arguments}) -> ({results}) {{\n"
        f"{body}\nfunc.return {', '.join(n for n, _ in returned)} : {results}\n}}"
    )


def _grow(draw: st.DrawFn, w: Writer) -> None:
    x = draw(st.sampled_from(w.values[-4:]))
    name, shape = x
    kind = draw(st.sampled_from(["unary", "binary", "transpose", "matmul", "max", "pad", "reshape", "reverse"]))
    partners = {
        "binary": [v for v in w.values if v[1] == shape or v[1] == (shape[0], 1)],
        "matmul": [v for v in w.values if v[1][0] == shape[1]],
    }.get(kind, [])
    if kind == "unary":
        w.add(f'unary "{draw(st.sampled_from(["relu", "sigmoid", "neg"]))}"', [x], shape)
    elif kind == "binary":
        w.add(f'binary "{draw(st.sampled_from(["add", "mul"]))}"', [x, draw(st.sampled_from(partners))], shape)
    elif kind == "matmul" and partners:
        other = draw(st.sampled_from(partners))
        w.add("matmul", [x, other], (shape[0], other[1][1]))
    elif kind == "max":
        attributes = f"{{dims = {dense([1])}, keep = 1 : i64}}"
        w.add('reduction "max"', [x], (shape[0], 1), attributes)
    elif kind == "pad" and max(shape) < 12:
        types = f"({tensor(shape)}, tensor<f32>) -> {tensor((shape[0] + 2, shape[1]))}"
        pads = f"{{pads = {dense([1, 0, 1, 0])}}}"
        w.lines.append(f'%v{len(w.values)} = graph.pad "constant" {name}, %half {pads} : {types}')
        w.values.append((f"%v{len(w.values)}", (shape[0] + 2, shape[1])))
    elif kind == "reshape" and shape[0] % 2 == 0:
        target = (shape[0] // 2, shape[1] * 2)
        w.add("reshape", [x], target, f"{{shape = {dense(list(target))}}}")
    elif kind == "reverse":
        starts, steps = [shape[0] - 1, 0], [-1, 1]
        w.add(
            "slice",
            [x],
            shape,
            f"{{starts = {dense(starts)}, sizes = {dense(list(shape))}, steps = {dense(steps)}}}",
        )
    else:
        w.add("transpose", [x], (shape[1], shape[0]), f"{{perm = {dense([1, 0])}}}")


@settings(max_examples=60)
@given(functions())
def test_random_graphs_keep_their_values(text: str):
    module = check_same(text, GraphDefinePass(), GraphInlinePass(), GraphFusePass())
    assert not [op for op in main_of(module).body.block.ops if isinstance(op, ComputeOp | Operator)]
    assert groups(module)
