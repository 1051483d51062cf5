"""Every template's kernels compile for GPUs in every type that the template claims, and spill nothing by default."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cuda.emulator.forced import forced, values_of
from tests.backends.cuda.emulator.template_cases import COVERED
from tests.helpers.graphs import Graph
from tests.helpers.sampling import in_turn
from tests.schedules.tensor_cores import scheduled
from treadle.backends.cuda.compiler import Cubin, Unit, compile_cubin
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import LayerNormOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

TARGET = Target.parse("sm_90")


def spilling(cubins: list[Cubin]) -> list[str]:
    return [name for cubin in cubins for name, used in cubin.resources.items() if used.spills]


@pytest.mark.parametrize("template", COVERED)
def test_every_type_compiles(template: str) -> None:
    """The largest of the cases in each type; other shapes run in the emulator."""
    chosen = []
    for dtype in COVERED[template].dtypes:
        fitting = [a for a in (case(dtype) for case in COVERED[template].cases) if TEMPLATES[template].fits(a)]
        chosen.append(max(fitting, key=lambda anchor: int(np.prod(anchor.shape))))
    anchors = [(anchor, values_of(anchor)) for anchor in chosen]
    module, _ = forced(template, anchors, TARGET)
    cubin = compile_cubin(Unit(template, "\n".join(unit.text for unit in print_kernels(module))), TARGET)
    assert len(cubin.resources) == len(chosen) and not spilling([cubin])


@pytest.mark.parametrize("columns", [20480, 65536])
def test_rows_too_long_to_be_cached_spill_nothing(columns: int) -> None:
    """Left to itself, the compiler keeps all columns of a thread in flight, of which 64 registers have no room."""
    graph = Graph(
        *(np.broadcast_to(np.zeros((), np.float32), each) for each in ((64, columns), (columns,), (columns,)))
    )
    module = graph.module(graph.add(LayerNormOp(graph[0], graph[1], graph[2], 1, 1e-5)))
    lower(treadle_context(), module, TARGET)
    (unit,) = print_kernels(module)
    assert "#pragma unroll 4" in unit.text and "#pragma unroll\n" in unit.text
    assert not spilling([compile_cubin(unit, TARGET)])


@pytest.mark.parametrize(
    ("extents", "arch"), in_turn([(2048, 2048, 256), (2039, 2039, 67), (128, 3072, 768)], ["sm_80", "sm_90"]), ids=str
)
def test_products_of_doubles_spill_nothing(extents: tuple[int, int, int], arch: str) -> None:
    """An accumulator takes two registers."""
    m, n, k = extents
    graph = Graph(*(np.broadcast_to(np.zeros(()), shape) for shape in ((m, k), (k, n))))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (unit,) = print_kernels(scheduled(module, "matmul_simt", {}, Target.parse(arch)))
    assert not spilling([compile_cubin(unit, Target.parse(arch))])
