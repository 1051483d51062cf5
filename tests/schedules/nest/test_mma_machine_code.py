"""The machine code of a nest on tensor cores is that of `matmul_mma` with the same tiles, but for how C is stored."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.schedules.nest.random_nests import scheduled_module
from tests.schedules.nest.test_nest import program
from tests.schedules.tensor_cores import scheduled
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
GPU = Target.parse("sm_80")
TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3 = schedule.split %i by (2, 4, 16)
%j0, %j1, %j2, %j3 = schedule.split %j by (2, 4, 16)
%k0, %k1, %k2 = schedule.split %k by (2, 16)
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
schedule.stage 0 at %k0 in "shared" vector 8 buffers 3 async
schedule.stage 1 at %k0 in "shared" vector 8 buffers 3 async
schedule.mark unroll %k1
"""


def product() -> ModuleOp:
    graph = Graph(*[np.broadcast_to(np.zeros((), np.float16), (2048, 2048))] * 2)
    return graph.module(graph.add(MatmulOp(graph[0], graph[1])))


def compiled(module: ModuleOp) -> tuple[Sass, Resources]:
    """The machine code of a module after the last stage."""
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, GPU)
    (sass,), (resources,) = disassembled(cubin).values(), cubin.resources.values()
    return sass, resources


def test_a_nest_is_as_good_as_the_template_with_one_set_of_fragments() -> None:
    nest = scheduled_module(product(), GPU, lambda _: program(TILES, "cuda"))
    lower(treadle_context(), nest, GPU, after="schedule")
    tile = {"block": (128, 128), "warps": (2, 2), "block_k": 32}
    choices = tile | {"stages": 3, "group": 1, "fragments": 1, "split_k": 1}
    (code, resources), (theirs, _) = compiled(nest), compiled(scheduled(product(), "matmul_mma", choices, GPU))
    assert not resources.spills and not code.uses_local_memory
    for opcode in ("HMMA", "LDSM", "LDGSTS", "LDGSTS.128"):
        assert code.count(opcode) == theirs.count(opcode) > 0, opcode
    assert not code.has("LDG")
