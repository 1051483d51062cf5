"""Operators of the graph dialect as text, for tests of what is read back and what is rejected."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, func, math
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser

from treadle.dialects.graph import GRAPH
from treadle.dialects.schedule import SCHEDULE

CONTEXT = Context()
for dialect in (Builtin, arith.Arith, func.Func, math.Math, GRAPH, SCHEDULE):
    CONTEXT.load_dialect(dialect)

ZEROS = "sha256:" + "0" * 64


CONTROL = """
func.func private @step(%n: tensor<i64>, %x: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>) {
  %c = graph.constant #graph.inline<"True"> : tensor<i1>
  func.return %c, %w : tensor<i1>, tensor<4xf32>
}
func.func private @row(%n: tensor<i64>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i64>) {
  func.return %x, %n : tensor<4xf32>, tensor<i64>
}
func.func private @then(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>, %m: tensor<i64>, %c: tensor<i1>) -> (tensor<4xf32>, tensor<3xi64>) {
  %y = graph.loop @step while (%m, %c) carries (%x) reads (%x)
      : (tensor<i64>, tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %z, %rows = graph.loop @row times 3 carries (%y) reads () : (tensor<4xf32>) -> (tensor<4xf32>, tensor<3xi64>)
  %v = graph.if %c @then @then (%z) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
  func.return %v, %rows : tensor<4xf32>, tensor<3xi64>
}"""
"""Every operation that calls functions."""


def ints(*values: int) -> str:
    """A list of integers."""
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def parse(text: str) -> ModuleOp:
    """The verified module that a text says."""
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


def with_arguments(text: str) -> str:
    """A function around `text`, in which `{name: type}` declares and names an argument."""
    types: dict[str, str] = {}
    body: list[str] = []
    for part in text.split("{%"):
        if not body:
            body.append(part)
            continue
        declaration, _, rest = part.partition("}")
        name, _, type = declaration.partition(": ")
        types[f"%{name}"] = type
        body.append(f"%{name}{rest}")
    arguments = ", ".join(f"{name}: {type}" for name, type in types.items())
    return f"func.func @main({arguments}) {{\n{''.join(body)}\nfunc.return\n}}"


def window(strides: str = ints(1, 1), pads: str = ints(0, 0, 0, 0), more: str = ", groups = 1 : i64") -> str:
    """What places a window."""
    return f"{{strides = {strides}, pads = {pads}, dilations = {ints(1, 1)}{more}}}"


def conv(x: str, w: str, y: str, attributes: str = window()) -> str:
    """A `graph.conv`."""
    return f"%y = graph.conv {{%x: {x}}}, {{%w: {w}}} {attributes} : ({x}, {w}) -> {y}"


def conv_transpose(x: str, w: str, y: str, output_padding: str = ints(0, 0), groups: int = 1, pads: str = "") -> str:
    """A `graph.conv_transpose`."""
    more = f", output_padding = {output_padding}, groups = {groups} : i64"
    attributes = window(ints(2, 2), pads or ints(0, 0, 0, 0), more)
    return f"%y = graph.conv_transpose {{%x: {x}}}, {{%w: {w}}} {attributes} : ({x}, {w}) -> {y}"


def pool(
    kind: str,
    x: str = "tensor<1x2x6x6xf32>",
    y: str = "tensor<1x2x3x3xf32>",
    kernel: str = ints(2, 2),
    strides: str = ints(2, 2),
    pads: str = ints(0, 0, 0, 0),
) -> str:
    """A `graph.pool`."""
    lists = f"kernel = {kernel}, strides = {strides}, pads = {pads}, dilations = {ints(1, 1)}"
    attributes = f"{{{lists}, ceil = 0 : i64, count_pad = 0 : i64}}"
    return f'%y = graph.pool "{kind}" {{%x: {x}}} {attributes} : ({x}) -> {y}'


def one(operator: str, x: str, y: str, attributes: str = "") -> str:
    """An operator of one operand; `operator` may end with its kind."""
    middle = f" {attributes}" if attributes else ""
    return f"%y = graph.{operator} {{%x: {x}}}{middle} : ({x}) -> {y}"


def two(operator: str, x: str, z: str, y: str, attributes: str = "") -> str:
    """An operator of two operands."""
    middle = f" {attributes}" if attributes else ""
    return f"%y = graph.{operator} {{%x: {x}}}, {{%z: {z}}}{middle} : ({x}, {z}) -> {y}"


def where(condition: str, a: str, b: str, y: str) -> str:
    """A `graph.where`."""
    return f"%y = graph.where {{%c: {condition}}}, {{%a: {a}}}, {{%b: {b}}} : ({condition}, {a}, {b}) -> {y}"


def layer_norm(x: str, scale: str, bias: str, dim: int) -> str:
    """A `graph.layer_norm`."""
    operands = f"{{%x: {x}}}, {{%s: {scale}}}, {{%b: {bias}}}"
    attributes = f"{{dim = {dim} : i64, epsilon = 1.000000e-05 : f64}}"
    return f"%y = graph.layer_norm {operands} {attributes} : ({x}, {scale}, {bias}) -> {x}"


def rms_norm(x: str, scale: str, dim: int) -> str:
    """A `graph.rms_norm`."""
    return two("rms_norm", x, scale, x, f"{{dim = {dim} : i64, epsilon = 1.000000e-05 : f64}}")


def append(past: str, new: str, y: str, dim: int = 0, begin: str = "tensor<i64>", count: str = "") -> str:
    """A `graph.append`."""
    operands = f"{{%x: {past}}}, {{%z: {new}}} at {{%b: {begin}}}" + (f" count {{%n: {count}}}" if count else "")
    return f"%y = graph.append {operands} {{dim = {dim} : i64}} : ({past}, {new}) -> {y}"


def attention(
    q: str, k: str, v: str, y: str, mask: str = "", length: str = "", offset: str = "", causal: int = 1
) -> str:
    """A `graph.attention`."""
    operands = f"{{%q: {q}}}, {{%k: {k}}}, {{%v: {v}}}" + (f" mask {{%m: {mask}}}" if mask else "")
    operands += f" length {{%n: {length}}}" if length else ""
    operands += f" offset {{%p: {offset}}}" if offset else ""
    types = ", ".join([q, k, v] + ([mask] if mask else []))
    attributes = f"{{scale = 1.250000e-01 : f64, causal = {causal} : i64, guard = 0 : i64}}"
    return f"%y = graph.attention {operands} {attributes} : ({types}) -> {y}"


def winograd_conv(x: str, u: str, y: str, outputs: int = 2, pads: str = "array<i64: 1, 1, 1, 1>") -> str:
    """A `graph.winograd_conv`."""
    properties = f"{{outputs = {outputs} : i64, pads = {pads}}}"
    return f"%y = graph.winograd_conv {{%x: {x}}}, {{%u: {u}}} {properties} : ({x}, {u}) -> {y}"


def packed_matmul(a: str, panels: str, y: str, columns: int) -> str:
    """A `graph.packed_matmul`."""
    return (
        f"%y = graph.packed_matmul {{%a: {a}}}, {{%p: {panels}}} {{columns = {columns} : i64}} : ({a}, {panels}) -> {y}"
    )


def packed_conv(
    x: str,
    panels: str,
    y: str,
    extents: tuple[int, int] = (40, 33),
    kernel: str = ints(3, 3),
    pads: str = ints(1, 1, 1, 1),
) -> str:
    """A `graph.packed_conv` of strides 2 and 1; `extents` are the channels of the image and of the result."""
    lists = f"kernel = {kernel}, strides = {ints(2, 1)}, pads = {pads}, dilations = {ints(1, 1)}"
    attributes = f"{{channels = {extents[0]} : i64, columns = {extents[1]} : i64, {lists}}}"
    return f"%y = graph.packed_conv {{%x: {x}}}, {{%p: {panels}}} {attributes} : ({x}, {panels}) -> {y}"


def batch_norm(x: str, parameter: str, last: str | None = None) -> str:
    """A `graph.batch_norm`."""
    names = [f"{{%p{n}: {parameter}}}" for n in range(3)] + [f"{{%last: {last or parameter}}}"]
    types = ", ".join([x, parameter, parameter, parameter, last or parameter])
    return f"%y = graph.batch_norm {{%x: {x}}}, {', '.join(names)} {{epsilon = 1.000000e-05 : f64}} : ({types}) -> {x}"


def slice_of(x: str, y: str, starts: str, sizes: str, steps: str) -> str:
    """A `graph.slice`."""
    return one("slice", x, y, f"{{starts = {starts}, sizes = {sizes}, steps = {steps}}}")


def mask(x: str, n: str = "tensor<i64>", dim: int = 0, fill: str = "0.000000e+00 : f32") -> str:
    """A `graph.mask`."""
    return f"%y = graph.mask {{%x: {x}}} below {{%n: {n}}} {{dim = {dim} : i64, fill = {fill}}} : ({x}, {n}) -> {x}"


def compute(body: str, type: str = "tensor<4x8xf32>", indices: str = "%i, %j") -> str:
    """A `graph.compute`."""
    return f"%y = graph.compute ({indices}) {{\n{body}\n}} : {type}"
