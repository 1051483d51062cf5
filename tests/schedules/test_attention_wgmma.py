"""Attention of warpgroups: emulated with all checks, and what the compiler makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from benchmarks.warpgroup_kernels import forms
from tests.backends.cuda.machine_code import disassembled
from tests.helpers.graphs import Graph
from tests.helpers.limits import assert_within, module_limits, with_rounded_weights
from tests.schedules.attention_cases import Array, Shape, Sizes, arrays, attention
from tests.schedules.warpgroup_steps import assert_as_by_hand
from treadle.backends.cuda.compiler import Cubin, compile_cubin, nvrtc_is_installed
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.machine_code import Instruction, Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, FusedOp, ReshapeOp, SliceOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.default_template import default_template
from treadle.schedules.search.predict import gpu_seconds
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.attention_wgmma import AttentionWgmma
from treadle.schedules.work.gpu_work import GpuWork
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

NAME = AttentionWgmma.name
TEMPLATE = TEMPLATES[NAME]
FEW = Target.parse("sm_90a{multiprocessors=3}")
HOPPER = Target.parse("sm_90a")
PLAIN, OVERLAPPED, IN_TURN = range(3)
needs_nvrtc = pytest.mark.skipif(not nvrtc_is_installed(), reason="needs treadle[nvrtc]")
Choices = dict[str, Choice]
Build = Callable[[Graph], SSAValue]


def scheduled(module: ModuleOp, choices: Choices, target: Target) -> ModuleOp:
    """A module lowered for a GPU, its attention scheduled by the template: its default with some choices replaced."""
    lower(treadle_context(), module, target, to="schedule")
    (group,) = [op for op in module.walk() if isinstance(op, FusedOp) and isinstance(anchor_of(op), AttentionOp)]
    anchor = anchor_of(group)
    assert isinstance(anchor, AttentionOp)
    chosen = TEMPLATE.default(anchor, target) | choices
    assert TEMPLATE.fits(anchor)
    TEMPLATE.check(anchor, chosen, target, "here")
    group.schedule = UseAttr.get(NAME, chosen)
    lower(treadle_context(), module, target, after="schedule")
    return module


def emulated(inputs: Sequence[Array], build: Build, keys: int, choices: Choices, values: int = 2) -> None:
    """Runs attention on few multiprocessors, so that a block has several tiles, with all checks.

    values: the number of the input that has them
    """
    graph = Graph(*inputs)
    module = graph.module(build(graph))
    (exact,) = module_limits(module, inputs)
    expected = with_rounded_weights(exact, inputs[values], keys)
    (result,), reports = EmulatedProgram(scheduled(module, choices, FEW)).run(inputs)
    assert reports and not [str(report) for report in reports if report.findings]
    assert_within(result, expected, inputs[0].dtype, choices)


def whole(**properties: Any) -> Build:
    """Attention of the first three inputs, masked by the fourth if there is one."""
    return lambda g: g.add(AttentionOp(*g.block.args, **properties))


@dataclass(frozen=True)
class Case:
    """An attention, and the choices of its schedule."""

    sizes: Sizes
    choices: Choices
    properties: dict[str, Any]
    dtype: str = "float16"
    mask: Shape | None = None


TWO: Choices = {"consumers": 2, "stages": 2}
CASES = {
    "groups, causal": Case(Sizes((2,), 4, 2, 333, 461, 64, 64), {}, {"causal": True}),
    "128, causal": Case(Sizes((), 2, 2, 461, 461, 128, 128), {}, {"causal": True, "scale": 0.088}, "bfloat16"),
    "128": Case(Sizes((), 3, 1, 300, 384, 128, 128), {}, {"scale": 0.088}),
    "first form": Case(Sizes((), 2, 1, 200, 300, 64, 64), {**TWO, "order": PLAIN}, {}),
    "first form, causal": Case(Sizes((2,), 2, 1, 200, 300, 64, 64), {"order": PLAIN}, {"causal": True}, "bfloat16"),
    "overlapped": Case(Sizes((1,), 2, 1, 200, 333, 128, 128), {"order": OVERLAPPED}, {"causal": True, "scale": 0.3}),
    "one consumer": Case(Sizes((3,), 1, 1, 64, 200, 64, 64), {"consumers": 1}, {}),
    "rows that see nothing": Case(Sizes((), 3, 3, 200, 40, 64, 64), {}, {"causal": True}),
    "rows that see nothing are 0": Case(Sizes((), 3, 3, 200, 40, 64, 64), TWO, {"causal": True, "guard": True}),
    "sizes that are no whole rows": Case(Sizes((), 1, 1, 130, 300, 80, 40), {}, {}, "bfloat16"),
    "large sizes": Case(Sizes((), 1, 1, 70, 200, 192, 160), {}, {"scale": 0.0625}),
    "long tiles": Case(Sizes((1,), 2, 1, 100, 300, 64, 64), {**TWO, "columns": 176}, {"scale": 0.6}),
    "a scale that turns the order": Case(Sizes((1,), 2, 1, 100, 200, 64, 64), {}, {"scale": -0.1}),
    "no heads": Case(Sizes((), 0, 0, 5, 7, 64, 64), {}, {}),
    "mask of keys": Case(Sizes((1,), 3, 3, 70, 170, 64, 64), {}, {"guard": True}, mask=(1, 1, 1, 170)),
    "mask of all": Case(Sizes((1,), 2, 2, 150, 150, 64, 72), {}, {"causal": True}, mask=(1, 2, 150, 150)),
    "mask of pairs": Case(Sizes((1,), 2, 2, 150, 140, 128, 128), {"order": OVERLAPPED}, {}, mask=(150, 140)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention(case: Case) -> None:
    shapes = [*case.sizes.shapes, *([] if case.mask is None else [case.mask])]
    properties = {"scale": 0.125} | case.properties
    emulated(arrays(shapes, case.dtype), whole(**properties), case.sizes.n, case.choices)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_scores(dtype: str) -> None:
    """Of which one weighs all: the largest of a row grows from tile to tile."""
    q, k, v = arrays(Sizes((), 2, 1, 130, 400, 64, 64).shapes, dtype)
    k = (k * np.linspace(40, 1, 400)[:, None]).astype(q.dtype)
    emulated([(q * 40).astype(q.dtype), k, v], whole(scale=0.125), 400, {})


def test_infinite_keys_make_nan_where_softmax_does() -> None:
    q, k, v = arrays(Sizes((), 1, 1, 70, 150, 64, 64).shapes, "float16")
    q[0, 3], k[0, 140, 0] = np.abs(q[0, 3]), np.inf
    graph = Graph(q, k, v)
    module = graph.module(whole(scale=0.125, causal=True)(graph))
    (result,), _ = EmulatedProgram(scheduled(module, {}, FEW)).run([q, k, v])
    # Rows from 60 on see the key; the score is inf or -inf by the sign of their first element.
    sees = np.arange(70) >= 60
    assert (np.isnan(result[0]).all(axis=-1) == (sees & (q[0, :, 0] > 0))).all()


LENGTHS = [(0, None, PLAIN), (1, None, IN_TURN), (128, None, OVERLAPPED), (200, None, IN_TURN), (331, None, PLAIN),
           (500, None, IN_TURN), (201, 60, IN_TURN), (201, -100, OVERLAPPED)]  # fmt: skip


@pytest.mark.parametrize(("length", "offset", "order"), LENGTHS)
def test_keys_of_which_data_say_how_many_exist(length: int, offset: int | None, order: int) -> None:
    """Behind a past of so many keys, too. Keys and values that do not exist are NaN and infinite."""
    inputs = arrays(Sizes((2,), 4, 2, 137, 331, 64, 64).shapes, "float16")
    inputs[1][..., length:, :], inputs[2][..., length:, :] = np.nan, np.inf
    numbers = [np.array(length), *([] if offset is None else [np.array(offset)])]

    def build(g: Graph) -> SSAValue:
        behind = None if offset is None else g[4]
        return g.add(AttentionOp(g[0], g[1], g[2], length=g[3], offset=behind, scale=0.125, causal=offset is not None))

    emulated([*inputs, *numbers], build, 331, {"order": order})


@pytest.mark.parametrize("order", [PLAIN, OVERLAPPED, IN_TURN])
def test_a_consumer_without_rows_that_would_see_more_tiles(order: int) -> None:
    """The one query sees 256 keys, the rows of the third consumer would see 384."""
    inputs = [*arrays(Sizes((), 2, 2, 1, 400, 64, 64).shapes, "float16"), np.array(255)]

    def build(g: Graph) -> SSAValue:
        return g.add(AttentionOp(g[0], g[1], g[2], offset=g[3], scale=0.125, causal=True))

    emulated(inputs, build, 400, {"order": order, "consumers": 3})


def test_heads_that_are_parts_of_projections() -> None:
    """The copies bring them as they lie, and the result is stored as the next product reads it."""
    (x,) = arrays([(2, 150, 3 * 2 * 64)], "float16")

    def build(g: Graph) -> SSAValue:
        def part(n: int) -> SSAValue:
            cut = g.add(SliceOp(g[0], [0, 0, n * 128], [2, 150, 128], [1, 1, 1]))
            return g.add(TransposeOp(g.add(ReshapeOp(cut, [2, 150, 2, 64])), [0, 2, 1, 3]))

        y = g.add(AttentionOp(part(0), part(1), part(2), scale=0.125, causal=True))
        return g.add(ReshapeOp(g.add(TransposeOp(y, [0, 2, 1, 3])), [2, 150, 128]))

    emulated([x], build, 150, {}, values=0)


def machine_code(
    shape: Shape, choices: Choices, dtype: str = "float16", mask: Shape | None = None, *, causal: bool = False
) -> tuple[Sass, Cubin]:
    """The instructions of attention's kernel for all multiprocessors, and its cubin."""
    shapes = [shape] * 3 + ([] if mask is None else [mask])
    graph = Graph(*(np.broadcast_to(arrays([(1,)], dtype)[0][0], each) for each in shapes))
    module = graph.module(whole(scale=shape[-1] ** -0.5, causal=causal)(graph))
    (unit,) = print_kernels(scheduled(module, choices, HOPPER))
    cubin = compile_cubin(unit, HOPPER)
    (sass,) = disassembled(cubin).values()
    return sass, cubin


def opcodes(instructions: Sequence[Instruction]) -> dict[str, int]:
    """How many instructions there are of each kind."""
    found: dict[str, int] = {}
    for each in instructions:
        kind = "MUFU.EX2" if each.opcode == "MUFU.EX2" else each.opcode.split(".")[0]
        found[kind] = found.get(kind, 0) + 1
    return found


EXPONENTIALS = {(128, 128, 2): 66, (64, 128, 3): 66, (128, 176, 2): 90, (64, 192, 2): 98}
"""Of the loops over tiles of keys of kernels by hand: heads of so many elements, columns, and consumers."""
REGISTERS = {2: 168, 3: 128}


@needs_nvrtc
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("loop", EXPONENTIALS, ids=str)
def test_machine_code(loop: tuple[int, int, int], causal: bool) -> None:
    size, columns, consumers = loop
    kind = "causal, " if causal else ""
    form = forms()[f"{NAME} {kind}heads of {size}, {columns} keys, {consumers} consumers"]
    sass, cubin = assert_as_by_hand(form)
    (resources,) = cubin.resources.values()
    assert resources.registers == REGISTERS[consumers]
    found = opcodes(sass.instructions)
    assert "HMMA" not in found and "LDGSTS" not in found and "UTMALDG" in found and found["USETMAXREG"] == 2
    products, exponentials = form.by_hand.products, EXPONENTIALS[loop]
    loops = [
        each for each in sass.loops() if opcodes(each).get("HGMMA") == products and opcodes(each)["WARPGROUP"] == 4
    ]
    assert len(loops) == 1 + causal, "over the tiles of keys that need a mask, and over the others"
    for each in loops:
        # The whole softmax stands between the waits for the scores and for the products of the values.
        first, second = (n for n, x in enumerate(each) if x.opcode == "WARPGROUP.DEPBAR.LE")
        assert opcodes(each[first:second])["MUFU.EX2"] == opcodes(each)["MUFU.EX2"] == exponentials
    # The products of the loops, of the first scores and of the last values.
    assert found["HGMMA"] == products * (1 + causal) + size // 16 + columns // 16


@needs_nvrtc
@pytest.mark.parametrize("kind", [(80, "bfloat16"), (192, "float16"), (64, "bfloat16")], ids=str)
def test_other_heads_do_not_spill(kind: tuple[int, str]) -> None:
    size, dtype = kind
    sass, cubin = machine_code((1, 16, 999, size), {}, dtype, (1, 16, 999, 999) if size == 64 else None)
    (resources,) = cubin.resources.values()
    assert not cubin.warnings and not resources.spills and sass.has("HGMMA")


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128, 192])
def test_every_choice_compiles_without_spills_and_warnings(size: int) -> None:
    sizes = Sizes((1,), 16, 16, 2048, 2048, size, size)
    for choices in TEMPLATE.legal(attention(sizes, "float16"), HOPPER):
        _, cubin = machine_code((1, 16, 2048, size), choices, causal=True)
        (resources,) = cubin.resources.values()
        assert not cubin.warnings and not resources.spills, choices


def of_heads(heads: int, m: int, size: int, *, causal: bool = False, mask: Shape | None = None) -> AttentionOp:
    return attention(Sizes((1,), heads, heads, m, m, size, size), "float16", mask, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "m", "size", "is_default"),
    [(16, 4096, 128, True), (64, 2048, 64, True), (16, 16384, 128, True), (16, 1000, 128, True), (12, 128, 64, False)],
)
def test_the_default_is_what_was_faster(heads: int, m: int, size: int, is_default: bool, causal: bool) -> None:
    """On an H100; `attention_mma` takes 3.2 us for the last, this kernel 5.8."""
    anchor = of_heads(heads, m, size, causal=causal)
    found = default_template(anchor, HOPPER)
    assert found is not None and found.name == (NAME if is_default else "attention_mma")
    if is_default:
        TEMPLATE.check(anchor, TEMPLATE.default(anchor, HOPPER), HOPPER, "default")


def test_the_tile_follows_from_the_waves() -> None:
    """3 x 96 tiles of 192 rows take three turns of 132 multiprocessors, 4 x 96 of 128 rows as many."""
    assert TEMPLATE.default(of_heads(64, 2048, 64), HOPPER)["consumers"] == 3
    assert TEMPLATE.default(of_heads(96, 512, 64), HOPPER)["consumers"] == 2


def test_masks_and_other_targets_are_left_to_others() -> None:
    masked, plain = of_heads(16, 4096, 128, mask=(1, 1, 1, 4096)), of_heads(16, 4096, 128)
    for anchor, target in ((masked, HOPPER), (plain, Target.parse("sm_90"))):
        found = default_template(anchor, target)
        assert found is not None and found.name == "attention_mma"


@pytest.mark.parametrize(
    "sizes", [Sizes((), 1, 1, 8, 8, 60, 64), Sizes((), 1, 1, 8, 8, 64, 44), Sizes((), 1, 1, 8, 8, 200, 64)]
)
def test_what_no_box_brings_is_refused(sizes: Sizes) -> None:
    assert not TEMPLATE.fits(attention(sizes, "float16"))
    assert TEMPLATE.fits(attention(Sizes((), 1, 1, 8, 8, 64, 64), "float16"))
    assert not TEMPLATE.fits(attention(Sizes((), 1, 1, 8, 8, 64, 64), "float32"))


def test_why_it_is_not_the_default() -> None:
    masked, few = of_heads(16, 4096, 128, mask=(1, 1, 1, 4096)), of_heads(12, 128, 64)
    assert TEMPLATE.obstacle(masked, HOPPER) == "with a mask it has not been measured"
    assert TEMPLATE.obstacle(few, HOPPER) == "attention_mma is predicted to end earlier"
    assert TEMPLATE.obstacle(of_heads(16, 4096, 256), HOPPER) == "heads of more than 192 elements"
    lines = TEMPLATE.obstacle(of_heads(16, 4096, 60), HOPPER)
    assert lines == "queries are computed by the group, or their lines begin at no multiples of 16 bytes"
    assert "sm_90 has no products of warpgroups" in (TEMPLATE.obstacle(few, Target.parse("sm_90")) or "")
    assert TEMPLATE.obstacle(few, Target.parse("sm_80")) is None


def test_limits() -> None:
    anchor = of_heads(16, 4096, 128)
    with pytest.raises(TreadleError, match="takes 192 registers a thread, 32 too many"):
        TEMPLATE.check(anchor, TEMPLATE.default(anchor, HOPPER) | {"consumers": 3}, HOPPER, "here")
    with pytest.raises(TreadleError, match="bytes of shared memory"):
        TEMPLATE.check(anchor, TEMPLATE.default(anchor, HOPPER) | {"columns": 176, "stages": 3}, HOPPER, "here")


def predicted(anchor: AttentionOp, template: str, **choices: Choice) -> tuple[GpuWork, float]:
    """The work of a kernel, and the seconds that are predicted for it."""
    use = UseAttr.get(template, TEMPLATES[template].default(anchor, HOPPER) | choices)
    work = work_of(Group(anchor), use, HOPPER)
    assert isinstance(work, GpuWork)
    return work, gpu_seconds(work, HOPPER)


def test_predictions() -> None:
    """Multiplications are counted, those of tiles that are skipped left out, and products that overlap are faster."""
    anchor, causal = of_heads(16, 4096, 128), of_heads(16, 4096, 128, causal=True)
    work, seconds = predicted(anchor, NAME)
    tiles = -(-16 * 32 // 132)
    assert work.tensor_flops == pytest.approx(tiles * 4 * 128 * 4096 * 128)
    assert seconds < predicted(anchor, NAME, order=PLAIN)[1] < predicted(anchor, "attention_mma")[1]
    assert 0.5 < predicted(causal, NAME)[0].tensor_flops / work.tensor_flops < 0.6
