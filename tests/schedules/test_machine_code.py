"""The machine code of default schedules: wide accesses, no local memory, mostly multiplications in the inner loop."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from benchmarks.schedule_cases import cases
from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.helpers.sampling import in_turn
from tests.schedules.tensor_cores import DTYPES, scheduled
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.target import TARGETS as ALL_TARGETS
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
TARGETS = ("sm_80", "sm_90")


def machine_code(case: str, target: str) -> Sass:
    """The code of a case's one kernel under its default schedule."""
    module: ModuleOp = cases()[case].module()
    lower(treadle_context(), module, Target.parse(target), after="fuse")
    (unit,) = print_kernels(module)
    return disassembled(compile_cubin(unit, Target.parse(target)))[unit.name]


@pytest.mark.parametrize(
    ("case", "target"),
    in_turn(
        ["matmul 4096 x 4096 x 4096", "matmul of transposes, 1024 x 1024 x 1024", "layer 128 x 768 x 3072"], TARGETS
    ),
)
def test_products_move_vectors(case: str, target: str) -> None:
    code = machine_code(case, target)
    assert code.has("LDS.128") and code.has("STS.128") and code.has_vector_loads and code.has_vector_stores
    assert not code.uses_local_memory
    assert code.count("STG") == code.count("STG.128")
    # A's tile of 32 x 8 elements makes two for each of 128 threads.
    assert code.count("LDG") == code.count("LDG.128") + code.count("LDG.64")


@pytest.mark.parametrize(
    ("case", "target"), in_turn(["channels last, 8 x 64 x 56 x 56", "pointwise 8 x 1024 x 768"], TARGETS)
)
def test_movement_is_in_vectors(case: str, target: str) -> None:
    code = machine_code(case, target)
    assert code.count("LDG") == code.count("LDG.128") > 0
    assert code.count("STG") == code.count("STG.128") > 0


@pytest.mark.parametrize(
    ("case", "target"),
    in_turn(["matmul 64 x 4096 x 64", "f16 matmul 64 x 4096 x 64", "tf32 layer 128 x 3072 x 768"], TARGETS),
)
def test_partial_sums_are_moved_in_vectors_and_never_from_a_stale_cache(case: str, target: str) -> None:
    code = machine_code(case, target)
    assert code.has("ATOMG.INC") and code.has("MEMBAR")
    arrival = next(n for n, each in enumerate(code.instructions) if each.opcode.startswith("ATOMG"))
    before, behind = code.instructions[:arrival], code.instructions[arrival:]
    stored = [each.opcode for each in before if each.opcode.startswith("STG")]
    assert stored and all(opcode.startswith("STG.E.128") for opcode in stored)
    loaded = [each.opcode for each in behind if each.opcode.startswith("LDG.E.128")]
    # What the launch itself wrote is not read through the cache of constant data.
    assert loaded and not any("CONSTANT" in opcode for opcode in loaded)
    assert not code.uses_local_memory


@pytest.mark.parametrize("target", TARGETS)
def test_the_inner_loop_of_a_product_multiplies(target: str) -> None:
    """Between two barriers stands one pass of the loop: 8 x 64 multiplications, and what feeds them."""
    instructions = machine_code("matmul 4096 x 4096 x 4096", target).instructions
    first, second = [n for n, each in enumerate(instructions) if each.opcode.startswith("BAR")][:2]
    body = [each.opcode for each in instructions[first + 1 : second]]
    products = sum(opcode.startswith("FFMA") for opcode in body)
    assert products == 8 * 64
    assert products / len(body) > 0.85


PRIME = 2039
GPUS = [name for name, target in ALL_TARGETS.items() if target.copies_asynchronously]
PRODUCTS = {"matmul_simt": "float32", "matmul_mma": "float16", "matmul_tf32": "float32"}


@pytest.mark.parametrize(("target", "template"), in_turn(GPUS, list(PRODUCTS), step=3))
def test_a_prime_size_compiles_everywhere(target: str, template: str) -> None:
    """M = N = K = 2039, on which spaces of divisors fail. Source: Hidet (ASPLOS 2023), section 3.3."""
    graph = Graph(*(np.broadcast_to(np.zeros((), DTYPES[PRODUCTS[template]]), (PRIME, PRIME)) for _ in range(2)))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (unit,) = print_kernels(scheduled(module, template, {}, Target.parse(target)))
    (resources,) = compile_cubin(unit, Target.parse(target)).resources.values()
    assert resources.registers > 0 and not resources.spills
