"""Products whose terms a cluster shares out: emulated with all checks, planted faults, and what the compiler makes."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType, i8, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from benchmarks.warpgroup_kernels import forms
from tests.backends.cuda.conformance.hopper_case import aligned
from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import Shape, assert_product, in_one_group, legal_choices, product, scheduled
from tests.schedules.test_matmul_wgmma import EPILOGUES, graph_of
from tests.schedules.warpgroup_steps import assert_as_by_hand
from treadle.backends.cuda.compiler import Cubin, compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator import Emulator, Report
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.machine_code import Sass
from treadle.backends.cuda.printer import print_kernel, print_kernels
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph import MatmulOp, TransposeOp
from treadle.dialects.schedule import Choice
from treadle.environment import Environment
from treadle.errors import TreadleError
from treadle.schedules.default_template import default_template, obstacles
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_cluster import MatmulCluster
from treadle.target import Target

NAME = MatmulCluster.name
HOPPER = Target.parse("sm_90a")
needs_nvrtc = pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")

OVERHANGING: list[tuple[tuple[Shape, Shape], tuple[int, int], int]] = [
    (((1, 8), (8, 8)), (64, 64), 1),
    (((1, 512), (512, 64)), (64, 64), 8),
    (((8, 136), (136, 72)), (64, 64), 2),
    (((63, 200), (200, 136)), (64, 64), 4),
    (((65, 128), (128, 72)), (128, 64), 2),
    (((130, 392), (392, 200)), (128, 64), 4),
    (((200, 520), (520, 136)), (128, 128), 8),
    (((100, 328), (328, 264)), (64, 128), 2),
    (((129, 712), (712, 72)), (64, 64), 8),
    (((3, 100, 200), (3, 200, 72)), (64, 64), 2),
    (((2, 2, 70, 264), (2, 2, 264, 136)), (64, 128), 4),
    (((3, 129, 264), (264, 72)), (128, 128), 1),
]
"""Shapes, the tile, and the blocks of a cluster."""


def emulated(
    shapes: tuple[Shape, Shape], dtype: str, transposed: tuple[bool, bool] = (False, False), **choices: Choice
) -> np.ndarray:
    """Runs a product with all checks, and gives its result."""
    graph, operands = graph_of(shapes, dtype, transposed)
    values = [
        graph.add(TransposeOp(graph[number], [1, 0])) if each else graph[number]
        for number, each in enumerate(transposed)
    ]
    module = scheduled(graph.module(graph.add(MatmulOp(*values))), NAME, choices, HOPPER)
    (result,), (report,) = EmulatedProgram(module).run(graph.inputs)
    assert not report.findings, str(report)
    assert_product(result, *operands)
    return result


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", range(len(OVERHANGING)), ids=lambda n: str(OVERHANGING[n]))
def test_tiles_that_overhang(number: int, dtype: str) -> None:
    shapes, block, split = OVERHANGING[number]
    emulated(shapes, dtype, block=block, split=split, stages=2 + number % 3)


@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("block", [(64, 64), (128, 128)], ids=str)
def test_operands_that_lie_the_other_way(block: tuple[int, int], transposed: tuple[bool, bool]) -> None:
    emulated(((136, 264), (264, 200)), "float16", transposed, block=block, split=4, stages=2)


def test_results_do_not_depend_on_the_order_in_which_sums_come() -> None:
    """Emulated copies and stores come in another order in each block and each cluster: equal rows give equal bits."""
    row, b = random(1, 768, seed=1).astype(np.float16), random(768, 64, seed=2).astype(np.float16)
    graph = Graph(np.repeat(row, 256, axis=0), b)
    choices: dict[str, Choice] = {"block": (64, 64), "split": 8, "stages": 2}
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), NAME, choices, HOPPER)
    (result,), (report,) = EmulatedProgram(module).run(graph.inputs)
    assert not report.findings and (result.view(np.uint16) == result[:1].view(np.uint16)).all()


def test_bytes() -> None:
    """Sums are exact; B lies along the terms, as constants do."""
    choose = np.random.default_rng(0)
    a, b = (choose.integers(-128, 127, shape, np.int8, endpoint=True) for shape in ((130, 528), (72, 528)))
    graph = Graph(a, b)
    module = graph.module(graph.add(MatmulOp(graph[0], graph.add(TransposeOp(graph[1], [1, 0])), sums=i32)))
    lowered = scheduled(module, NAME, {"block": (128, 64), "split": 4, "stages": 2}, HOPPER)
    (result,), (report,) = EmulatedProgram(lowered).run([a, b])
    assert not report.findings
    np.testing.assert_array_equal(result, a.astype(np.int32) @ b.astype(np.int32).T)


def more_terms(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Shapes of operands, and of what an epilogue reads, with enough terms for two blocks."""
    (m, k), (_, n) = (shape[-2:] for shape in shapes[:2])
    return ((m, 136), (136, n), *(shapes[2:])) if k == 64 else shapes


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, split: int) -> None:
    build, shapes, _ = EPILOGUES[name]
    shapes = more_terms(shapes)
    graph = Graph(*(random(*shape, seed=seed).astype(np.float16) for seed, shape in enumerate(shapes)))
    module, expected = in_one_group(graph, build)
    lowered = scheduled(module, NAME, {"block": (64, 64), "split": split, "stages": 2}, HOPPER)
    (result,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings
    # Both round the sum of up to 136 terms to 11 bits, and each of the operations behind it.
    scale = float(np.abs(expected.astype(np.float64)).max())
    limit = 1.0 if result.dtype == np.uint8 else 4 * 2.0**-11 * scale
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=0, atol=limit)


# Faults of a kernel, planted in its text.

SIZE = ((100, 264), (264, 72))


@pytest.fixture(scope="module")
def kernel() -> KernelOp:
    """That of a product by clusters of 4 blocks."""
    graph, _ = graph_of(SIZE, "float16")
    choices: dict[str, Choice] = {"block": (64, 64), "split": 4, "stages": 2}
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), NAME, choices, HOPPER)
    (found,) = (op for op in module.walk() if isinstance(op, KernelOp))
    return found


def launched(kernel: KernelOp, text: str, environment: Environment) -> Report:
    """What is found where the kernel has this text."""
    (m, k), (_, n) = SIZE
    arrays = [aligned(random(*shape, seed=1).astype(np.float16)) for shape in ((m, k), (k, n), (m, n))]
    buffers: list[SSAValue] = [*kernel.parameters]
    maps = [(each.map, arrays[buffers.index(each.buffer)]) for each in kernel.tensor_maps]
    emulator = Emulator(text, limit=60, workers=1, environment=environment)
    shared = kernel.shared_bytes(dynamic=True)
    return emulator.launch(kernel.sym_name.data, kernel.grid_shape, kernel.block_shape, [*arrays, *maps], shared)


GATHER = "treadle_mbarrier_wait_cluster(summed_at, 0);"
MEET, ARRIVE = "treadle_cluster_wait();", "treadle_cluster_arrive();"
LOAD = "treadle_tensor_load(shared_a_at"
FAULTS: dict[str, tuple[str, str, int, str]] = {
    "no barrier of the cluster": (MEET, "", 1, "a read and a write that no barrier orders"),
    "a wait that no arrival precedes": (ARRIVE, "", 0, "a wait without an arrival at the barrier of the cluster"),
    "an arrival by one warp": (
        ARRIVE,
        f"if (thread < 32) {ARRIVE}",
        0,
        "a barrier of the cluster that not all threads come to",
    ),
    "bytes of three blocks": ("expect(summed_at, 16384", "expect(summed_at, 12288", 0, "a copy to it"),
    "bytes of 16 columns more": ("expect(summed_at, 16384", "expect(summed_at, 16448", 0, "64 bytes missing"),
    "the other phase": (GATHER, GATHER.replace("0)", "1)"), 0, "while an asynchronous copy to it is under way"),
    "sums are read before they come": (GATHER, "", 0, "while an asynchronous copy to it is under way"),
    "sums are waited for in the block": (GATHER, GATHER.replace("_cluster", ""), 0, "a wait in the scope of the block"),
    "two blocks send to one slot": ("parts_block *", "parts_block / 2 *", 0, "copy to it is under way"),
    "sums go to a block behind the cluster": (
        "address(parts_at, ",
        "address(parts_at, 1 + ",
        0,
        "block 4 of a cluster",
    ),
    "sums and bytes go to two blocks": (
        "address(summed_at, ",
        "address(summed_at, 3 - ",
        0,
        "a store to block 0 of the cluster that completes at a barrier of block 3",
    ),
    "a block leaves before it has its sums": (
        ARRIVE,
        f"{ARRIVE} if (blockIdx.x % 4 == 3) {{ {MEET} return; }}",
        0,
        "block 3 of the cluster may have ended",
    ),
    "the barrier is not published": ("treadle_mbarrier_fence();", "", 0, "no treadle_mbarrier_fence has published"),
    "a block leaves out copies of A": (LOAD, f"if (block % 4 != 2) {LOAD}", 0, "8192 bytes missing"),
}
"""What is replaced in the text, by what, at which occurrence, and what the finding says."""


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str, kernel: KernelOp, emulator_environment: Environment) -> None:
    old, new, occurrence, says = FAULTS[name]
    text = print_kernel(kernel)
    parts = text.split(old)
    assert occurrence < len(parts) - 1, text
    report = launched(
        kernel, old.join(parts[: occurrence + 1]) + new + old.join(parts[occurrence + 1 :]), emulator_environment
    )
    assert any(says in finding.message for finding in report.findings), str(report)


def test_the_kernel_itself_has_none(kernel: KernelOp, emulator_environment: Environment) -> None:
    assert not launched(kernel, print_kernel(kernel), emulator_environment).findings


# Machine code.

MACHINE_CODE = [(128, 768, 768), (128, 768, 2304), (128, 768, 3072), (128, 3072, 768)]
"""M, K and N."""


def machine_code(shapes: tuple[Shape, Shape], **choices: Choice) -> tuple[Sass, Cubin]:
    """The instructions of a product's kernel, and its cubin."""
    graph = Graph(*(np.broadcast_to(np.zeros((), np.float16), shape) for shape in shapes))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (unit,) = print_kernels(scheduled(module, NAME, choices, HOPPER))
    cubin = compile_cubin(unit, HOPPER)
    (sass,) = disassembled(cubin).values()
    return sass, cubin


@needs_nvrtc
@pytest.mark.parametrize("size", MACHINE_CODE, ids=str)
def test_machine_code(size: tuple[int, int, int]) -> None:
    sass, _ = assert_as_by_hand(forms()[f"{NAME} {' x '.join(map(str, size))}"])
    assert_stores_to_other_blocks(sass)


@needs_nvrtc
def test_machine_code_of_steps_that_8_does_not_divide() -> None:
    sass, cubin = machine_code(((128, 2048 + 64), (2048 + 64, 768)))
    (resources,) = cubin.resources.values()
    assert not cubin.warnings and not resources.spills and not resources.stack_bytes
    assert resources.registers <= 98
    assert_stores_to_other_blocks(sass)


def assert_stores_to_other_blocks(sass: Sass) -> None:
    """As by hand: 4 products a step, a store for each 8 columns and row, and no fence of all memory."""
    products = [each for each in sass.instructions if each.opcode.startswith("HGMMA")]
    assert {each.opcode for each in products} == {"HGMMA.64x64x16.F32"}
    assert len(products) == 4 * sum("gsb0" in each.operands for each in products)
    assert sass.count("STAS.64") == 16 and not sass.has("MEMBAR") and sass.has("UTMALDG")
    assert not sass.has("HMMA") and not sass.has("LDGSTS") and not sass.has("USETMAXREG")


@needs_nvrtc
@pytest.mark.slow
def test_every_choice_compiles_without_spills_and_warnings() -> None:
    shapes = ((128, 1024), (1024, 768))
    for choices in legal_choices(TEMPLATES[NAME], product(shapes), HOPPER):
        _, cubin = machine_code(shapes, **choices)
        (resources,) = cubin.resources.values()
        assert not cubin.warnings and not resources.spills, choices


# The default.


@pytest.mark.parametrize(
    ("shapes", "block", "split"),
    [
        (((128, 768), (768, 2304)), (128, 64), 2),
        (((128, 768), (768, 768)), (64, 64), 4),
        (((128, 768), (768, 3072)), (128, 64), 2),
        (((128, 3072), (3072, 768)), (128, 64), 8),
    ],
)
def test_the_default_of_products_that_were_measured(
    shapes: tuple[Shape, Shape], block: tuple[int, int], split: int
) -> None:
    """At most 6% slower on an H100 than the fastest of the kernels by hand that were measured there."""
    anchor, template = product(shapes), TEMPLATES[NAME]
    chosen = template.default(anchor, HOPPER)
    assert template.has_default(anchor, HOPPER) and (chosen["block"], chosen["split"]) == (block, split)
    template.check(anchor, chosen, HOPPER, "default")
    assert default_template(anchor, HOPPER) is template


def test_other_products_are_left_to_others() -> None:
    for shapes, name in {
        ((4096, 4096), (4096, 4096)): "matmul_wgmma",
        ((197, 768), (768, 2304)): "matmul_mma",
        ((256, 256), (256, 256)): "matmul_mma",
    }.items():
        found = default_template(product(shapes), HOPPER)
        assert found is not None and found.name == name


def test_a_product_of_a_ranged_model_is_left_to_others() -> None:
    graph, _ = graph_of(((128, 768), (768, 768)), "float16")
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    (main,) = (op for op in module.ops if isinstance(op, FuncOp))
    (anchor,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    assert default_template(anchor, HOPPER) is TEMPLATES[NAME]
    main.attributes["extents"] = ArrayAttr([StringAttr("m")])
    assert not TEMPLATES[NAME].fits(anchor)
    assert obstacles(anchor, HOPPER)[NAME] == "a call may leave out blocks of a cluster"


def test_what_does_not_fit_is_refused() -> None:
    template, anchor = TEMPLATES[NAME], product(((64, 192), (192, 64)))
    with pytest.raises(TreadleError, match="4 blocks for 3 steps along K leaves 1 without any; accepted: at most 3"):
        template.check(anchor, {"block": (64, 64), "split": 4, "stages": 2}, HOPPER, "here")
    with pytest.raises(TreadleError, match="bytes of shared memory"):
        template.check(anchor, {"block": (128, 128), "split": 2, "stages": 8}, HOPPER, "here")
    rows, columns = (Block(arg_types=[TensorType(i8, [128, 4096])]).args[0] for _ in range(2))
    turned = TransposeOp(columns, [1, 0]).result
    assert not template.has_default(MatmulOp(rows, turned, sums=i32), HOPPER), "bytes were not measured"
    with pytest.raises(TreadleError, match="needs instructions that sm_90 does not have"):
        template.check(anchor, {}, Target.parse("sm_90"), "here")
    assert not template.fits(product(((64, 66), (66, 64)))), "rows of 132 bytes"
