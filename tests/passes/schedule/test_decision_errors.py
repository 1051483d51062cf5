"""What the passes from decisions to fused kernels say when they cannot go on."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser

from treadle.dialects.graph import GRAPH
from treadle.dialects.loop import LOOP
from treadle.dialects.schedule import SCHEDULE
from treadle.errors import TreadleError
from treadle.passes.registry import parse_passes

PRODUCT = """%y = graph.fused "product" {
  %m = graph.matmul %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  graph.yield %m : tensor<8x8xf32>
} SCHEDULE : tensor<8x8xf32>"""
TWO_ANCHORS = """%y = graph.fused "twice" {
  %m = graph.matmul %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %n = graph.matmul %m, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  graph.yield %n : tensor<8x8xf32>
} : tensor<8x8xf32>"""
NOTHING = """%y = graph.fused "nothing" {
  graph.yield %x : tensor<8x8xf32>
} : tensor<8x8xf32>"""
KERNEL = """%k = loop.kernel @k ins(%A = SOURCE : tensor<8x8xf32>) outs(%C : tensor<8x8xf32>)
    grid(%b in 8) threads(%t in 8) {
  %v = loop.load %A[%b, %t] : memref<8x8xf32>
  loop.store %v, %C[%b, %t] : memref<8x8xf32>
}"""
REDUCING_PROLOGUE = f"""%y = graph.fused "sums" {{
  %s = graph.compute (%i, %j) {{
    %r = graph.reduce add (%l in 8) {{
      %a = graph.at %x[%i, %l] : tensor<8x8xf32>
      graph.yield %a : f32
    }}
    graph.yield %r : f32
  }} : tensor<8x8xf32>
  {KERNEL.replace("SOURCE", "%s")}
  graph.yield %k : tensor<8x8xf32>
}} : tensor<8x8xf32>"""
REPEATING_EPILOGUE = f"""%y = graph.fused "rows" {{
  {KERNEL.replace("SOURCE", "%x")}
  %r = graph.compute (%i, %j) {{
    %a = graph.at %k[%j, %j] : tensor<8x8xf32>
    graph.yield %a : f32
  }} : tensor<8x8xf32>
  graph.yield %r : tensor<8x8xf32>
}} : tensor<8x8xf32>"""
TWO_PLACES = f"""%y = graph.fused "rows" {{
  {KERNEL.replace("SOURCE", "%x")}
  %t = graph.compute (%i, %j) {{
    %a = graph.at %k[%j, %i] : tensor<8x8xf32>
    graph.yield %a : f32
  }} : tensor<8x8xf32>
  %r = graph.compute (%i, %j) {{
    %a = graph.at %k[%i, %j] : tensor<8x8xf32>
    %b = graph.at %t[%i, %j] : tensor<8x8xf32>
    %s = arith.addf %a, %b : f32
    graph.yield %s : f32
  }} : tensor<8x8xf32>
  graph.yield %r : tensor<8x8xf32>
}} : tensor<8x8xf32>"""
OTHER_SHAPE = f"""%y, %z = graph.fused "rows" {{
  {KERNEL.replace("SOURCE", "%x")}
  %r = graph.compute (%i) {{
    %zero = arith.constant 0 : index
    %a = graph.at %x[%zero, %zero] : tensor<8x8xf32>
    graph.yield %a : f32
  }} : tensor<64xf32>
  graph.yield %k, %r : tensor<8x8xf32>, tensor<64xf32>
}} : tensor<8x8xf32>, tensor<64xf32>"""
BARE_WRITE = REPEATING_EPILOGUE.replace(
    "loop.store %v, %C[%b, %t] : memref<8x8xf32>", "memref.store %v, %C[%b, %t] : memref<8x8xf32>"
)
INSTANTIATE = "schedule-instantiate{target=cpu}"


def decided(schedule: str) -> str:
    return PRODUCT.replace("SCHEDULE", f"schedule #schedule.use<{schedule}>")


def run(body: str, passes: str) -> ModuleOp:
    """Applies passes to a function of one tensor whose body computes %y."""
    return run_text(
        f"func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{\n{body}\nfunc.return %y : tensor<8x8xf32>\n}}",
        passes,
    )


def run_text(text: str, passes: str) -> ModuleOp:
    """Applies passes to a module."""
    context = Context()
    for dialect in (Builtin, arith.Arith, func.Func, memref.MemRef, GRAPH, LOOP, SCHEDULE):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    for each in parse_passes(passes):
        each.apply(context, module)
    return module


CASES = [
    (
        decided('"gemm"'),
        INSTANTIATE,
        "group 'product': unknown template 'gemm'; accepted: attention_cpu, attention_cuda, attention_decode_cpu",
    ),
    (
        decided('"generic_cpu", {run = 1, rows = 1}'),
        INSTANTIATE,
        "template 'generic_cpu' does not schedule graph.matmul",
    ),
    (decided('"matmul_simt"'), INSTANTIATE, "template 'matmul_simt' is for cuda targets, not cpu"),
    (decided('"matmul_cpu", {rows = 8, tile = 8}'), INSTANTIATE, "template 'matmul_cpu' has no knob 'tile'"),
    (
        decided('"matmul_cpu", {rows = 15}'),
        INSTANTIATE,
        "knob 'rows' of template 'matmul_cpu' is 15; accepted: 1 to 14",
    ),
    (decided('"matmul_cpu", {rows = 8}'), INSTANTIATE, "needs a value for vectors, chunk, pack, passes"),
    (
        decided('"matmul_cpu", {rows = 8, vectors = 2, chunk = 9, pack = true, passes = 1}'),
        INSTANTIATE,
        "group 'product': matmul_cpu: tiles of 8 rows overrun a chunk of 9 rows by 7",
    ),
    (PRODUCT.replace("SCHEDULE", ""), "schedule-select{target=tpu}", "unknown target 'tpu'"),
    (TWO_ANCHORS, "schedule-select", "group 'twice' has 2 anchors; accepted: one matmul or reduction"),
    (NOTHING, "schedule-select", "group 'nothing' gives no graph.compute, and has no matmul"),
    (REDUCING_PROLOGUE, "loop-fuse-prologue", "a prologue has no graph.reduce; accepted: an injective graph.compute"),
    (
        REPEATING_EPILOGUE,
        "loop-fuse-epilogue",
        "exactly one of its own; accepted: a graph.compute that is bijective in it",
    ),
    (TWO_PLACES, "loop-fuse-epilogue", "the user also reads elements of the group that are not available there"),
    (OTHER_SHAPE, "loop-fuse-epilogue", "the shapes [64] and [8, 8] differ"),
    (BARE_WRITE, "loop-fuse-epilogue", "memref.store uses the result of @k; accepted: loop.store"),
]


RANGED = """func.func @main(%x: tensor<192x128x64xf32>, %w: tensor<192x64x128xf32>, %n: tensor<i64>)
    -> tensor<192x128x128xf32> attributes {symbols = ["n:1..128"], extents = ["n"]} {
  %y = graph.fused "scores" {
    %m = graph.matmul %x, %w : (tensor<192x128x64xf32>, tensor<192x64x128xf32>) -> tensor<192x128x128xf32>
    graph.yield %m : tensor<192x128x128xf32>
  } requires [#graph.required<d1 < 1>] : tensor<192x128x128xf32>
  func.return %y : tensor<192x128x128xf32>
}"""


def test_required_regions_on_extents_that_do_not_exist() -> None:
    with pytest.raises(
        TreadleError,
        match="a required region names extent number 1, and @main has 1; accepted: extents from number 0 to 0",
    ):
        run_text(RANGED, "schedule-select")


@pytest.mark.parametrize(("body", "passes", "message"), CASES, ids=[message[:40] for _, _, message in CASES])
def test_rejected(body: str, passes: str, message: str):
    with pytest.raises(TreadleError) as caught:
        run(body, passes)
    assert message in str(caught.value)


def test_an_argument_that_is_not_read_by_loop_load_takes_no_prologue():
    body = f"""%y = graph.fused "copy" {{
  %s = graph.compute (%i, %j) {{
    %a = graph.at %x[%i, %j] : tensor<8x8xf32>
    graph.yield %a : f32
  }} : tensor<8x8xf32>
  {KERNEL.replace("SOURCE", "%s").replace("loop.load", "memref.load")}
  graph.yield %k : tensor<8x8xf32>
}} : tensor<8x8xf32>"""
    with pytest.raises(TreadleError, match=r"memref\.load uses the argument of @k that a prologue produces"):
        run(body, "loop-fuse-prologue")
