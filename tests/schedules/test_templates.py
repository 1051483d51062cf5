"""Every template against the definition of its anchor, and what a template rejects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import StringAttr, TensorType, f32, i32
from xdsl.ir import Block, Operation, SSAValue

from tests.helpers.limits import assert_within, limits
from treadle.backends.reference.kernels import Kernel, evaluate_kernel
from treadle.dialects.graph import (
    AttentionOp,
    ComputeOp,
    ConvOp,
    MatmulOp,
    Operator,
    PackedConvOp,
    PackedMatmulOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WinogradConvOp,
    definition,
)
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.graph.dtypes import element_type, is_float_dtype, numpy_dtype
from treadle.dialects.schedule import Choice, choice_text
from treadle.errors import TreadleError
from treadle.passes.graph.layout.channels_last import last
from treadle.passes.graph.layout.layout import definition_in
from treadle.passes.graph.rewriting import shape_of
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Array = NDArray[Any]
Shape = tuple[int, ...]
Values = Callable[[SSAValue, int], Array]
CPU, GPU = Target.parse("cpu"), Target.parse("sm_80")


def tensor(*shape: int, dtype: str = "float32") -> SSAValue:
    """A value of a tensor type, which belongs to no program."""
    return Block(arg_types=[TensorType(element_type(np.dtype(dtype)), shape)]).args[0]


def values_of(tensor: SSAValue, seed: int) -> Array:
    """Numbers of a tensor's type that use all of its bits: floats of several magnitudes, integers of the whole range,
    whose sums and products wrap."""
    type = tensor.type
    assert isinstance(type, TensorType)
    dtype, shape = numpy_dtype(type.get_element_type()), type.get_shape()
    rng = np.random.default_rng([seed, *shape])
    if dtype == np.bool_:
        return rng.random(shape) < 0.9
    if dtype.kind == "i":
        info = np.iinfo(dtype.name)
        return rng.integers(info.min, info.max, shape, np.int64, endpoint=True).astype(dtype)
    return np.asarray(rng.standard_normal(shape) * np.exp2(rng.integers(-3, 3, shape))).astype(dtype)


def special_values_of(tensor: SSAValue, seed: int) -> Array:
    """The same, with a NaN, infinities and zeros among the floats."""
    values = values_of(tensor, seed).copy()
    rng = np.random.default_rng([seed, 7])
    if is_float_dtype(values.dtype):
        chosen = rng.random(values.shape) < 0.1
        values[chosen] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], int(chosen.sum()))
    return values


def defined(op: Operator) -> ComputeOp:
    """The operator's definition, the operator left as it is."""
    return definition(op)


def check(name: str, anchor: Anchor, choices: Mapping[str, Choice] | None = None, values: Values = values_of) -> None:
    """Builds the anchor's kernel and compares it with the definition, blocks and threads in both orders."""
    template = TEMPLATES[name]
    target = GPU if template.kind == "cuda" else CPU
    knobs = template.default(anchor, target) | dict(choices or {})
    assert template.fits(anchor)
    template.check(anchor, knobs, target, "here")
    kernel = template.build(anchor, knobs, target, "kernel")
    kernel.verify()
    operands = anchor.tensors() if isinstance(anchor, ComputeOp) else list(dict.fromkeys(anchor.operands))
    env = {operand: values(operand, n) for n, operand in enumerate(operands)}
    expected = limits(anchor, env)
    dtype = numpy_dtype(anchor.type.get_element_type())
    inputs, runner = [env[operand] for operand in kernel.inputs], Kernel(kernel)
    for reverse in (False, True):
        assert_within(runner.run(inputs, reverse=reverse), expected, dtype, f"{name} of {anchor.type}")


PRODUCTS: list[tuple[Shape, Shape]] = [
    ((1, 1), (1, 1)),
    ((1, 7), (7, 1)),
    ((1, 5), (5, 33)),
    ((2, 3), (3, 32)),
    ((7, 11), (11, 13)),
    ((8, 4), (4, 64)),
    ((9, 8), (8, 31)),
    ((13, 17), (17, 37)),
    ((16, 16), (16, 16)),
    ((33, 2), (2, 5)),
    ((37, 3), (3, 32)),
    ((3, 5, 7), (3, 7, 11)),
    ((2, 1, 3), (3, 5)),
    ((5, 3), (2, 3, 4)),
    ((2, 2, 9, 3), (2, 2, 3, 4)),
]
ODD = ((13, 9), (9, 37))


def product(shapes: tuple[Shape, Shape], dtype: str = "float32") -> MatmulOp:
    return MatmulOp(tensor(*shapes[0], dtype=dtype), tensor(*shapes[1], dtype=dtype))


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_simt", "generic_cuda"])
def test_products_of_any_size(name: str, shapes: tuple[Shape, Shape]):
    check(name, product(shapes))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_simt"])
def test_products_of_other_floats(name: str, dtype: str):
    anchor = product(((3, 1), (1, 5)), dtype)
    check(name, anchor)


@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_simt", "generic_cuda"])
def test_the_product_of_a_tensor_with_itself(name: str):
    x = tensor(5, 5)
    check(name, MatmulOp(x, x))


def test_a_product_of_integers_is_left_to_the_generic_template():
    anchor = product(((3, 4), (4, 5)), "int32")
    assert not TEMPLATES["matmul_cpu"].fits(anchor) and not TEMPLATES["matmul_simt"].fits(anchor)
    check("generic_cuda", anchor)
    check("generic_cpu", defined(anchor))


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(("rows", "chunk"), [(1, 1), (2, 6), (3, 9), (4, 8), (5, 5), (6, 12), (7, 21), (8, 1024)])
def test_knobs_of_matmul_cpu(rows: int, chunk: int, pack: bool):
    check("matmul_cpu", product(ODD), {"rows": rows, "chunk": chunk, "pack": pack})


@pytest.mark.parametrize(
    ("warps", "repeats", "thread", "block_k"),
    [
        ((1, 1), (1, 1), (2, 2), 8),
        ((1, 2), (1, 2), (2, 2), 16),
        ((2, 1), (2, 1), (4, 4), 8),
        ((2, 2), (2, 2), (2, 2), 16),
        ((4, 2), (2, 2), (4, 4), 8),
        ((2, 4), (2, 1), (4, 4), 16),
    ],
)
def test_knobs_of_matmul_simt(warps: Shape, repeats: Shape, thread: Shape, block_k: int):
    check("matmul_simt", product(ODD), {"warps": warps, "repeats": repeats, "thread": thread, "block_k": block_k})


@pytest.mark.parametrize("block_k", [8, 16])
@pytest.mark.parametrize(("a_order", "b_order"), [("k", "k"), ("m", "n"), ("m", "k")])
def test_orders_of_matmul_simt(a_order: str, b_order: str, block_k: int):
    check("matmul_simt", product(ODD), {"a_order": a_order, "b_order": b_order, "block_k": block_k})


@pytest.mark.parametrize(("a_vector", "b_vector"), [(1, 4), (2, 1), (4, 2)])
@pytest.mark.parametrize(("a_order", "b_order"), [("k", "n"), ("m", "k")])
def test_vectors_of_matmul_simt(a_order: str, b_order: str, a_vector: int, b_vector: int):
    knobs = {"a_order": a_order, "b_order": b_order, "a_vector": a_vector, "b_vector": b_vector}
    check("matmul_simt", product(ODD), knobs)
    check("matmul_simt", product(((16, 8), (8, 32))), knobs)


REDUCTIONS: list[tuple[str, Shape, tuple[int, ...], str]] = [
    ("add", (3, 32), (1,), "float32"),
    ("add", (1, 37), (1,), "float32"),
    ("max", (2, 3, 67), (2,), "float32"),
    ("min", (67,), (0,), "float32"),
    ("mul", (2, 33), (1,), "float32"),
    ("mean", (2, 5, 7), (1, 2), "float32"),
    ("mean", (1, 3, 8, 8), (2, 3), "float32"),
    ("add", (257,), (0,), "float32"),
    ("add", (5, 64), (1,), "int64"),
    ("max", (5, 64), (1,), "int32"),
    ("and", (7, 40), (1,), "bool"),
    ("or", (7, 41), (1,), "bool"),
    ("max", (2, 33), (1,), "float16"),
    ("min", (2, 128), (1,), "float64"),
    ("add", (1, 1, 131), (2,), "float32"),
]


def reduction(case: tuple[str, Shape, tuple[int, ...], str], keep: bool = False) -> ComputeOp:
    kind, shape, dims, dtype = case
    return defined(ReductionOp(kind, tensor(*shape, dtype=dtype), dims, keep))


@pytest.mark.parametrize("case", REDUCTIONS, ids=str)
@pytest.mark.parametrize("name", ["reduce_cpu", "reduce_cuda", "generic_cpu", "generic_cuda"])
def test_reductions(name: str, case: tuple[str, Shape, tuple[int, ...], str]):
    check(name, reduction(case))


@pytest.mark.parametrize("case", REDUCTIONS[::3], ids=str)
@pytest.mark.parametrize("name", ["reduce_cpu", "reduce_cuda"])
def test_reductions_of_special_values(name: str, case: tuple[str, Shape, tuple[int, ...], str]):
    check(name, reduction(case), values=special_values_of)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_simt", "generic_cuda"])
def test_products_of_special_values(name: str, dtype: str):
    check(name, product(((5, 9), (9, 7)), dtype), values=special_values_of)


@pytest.mark.parametrize("name", ["reduce_cpu", "reduce_cuda", "generic_cpu", "generic_cuda"])
def test_sums_of_half_precision_run_in_single(name: str):
    """Carried in f16, 2048 + 1 is 2048."""
    anchor = reduction(("add", (1, 3001), (1,), "float16"))
    template = TEMPLATES[name]
    target = GPU if template.kind == "cuda" else CPU
    kernel = template.build(anchor, template.default(anchor, target), target, "kernel")
    (total,) = evaluate_kernel(kernel, [np.ones((1, 3001), np.float16)])
    assert total == np.float16(3001)


@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_simt"])
def test_products_of_half_precision_run_in_single(name: str):
    """Carried in bf16, 256 + 1 is 256."""
    anchor, template = product(((1, 272), (272, 1)), "bfloat16"), TEMPLATES[name]
    target = GPU if template.kind == "cuda" else CPU
    kernel = template.build(anchor, template.default(anchor, target), target, "kernel")
    ones = [np.ones(shape, ml_dtypes.bfloat16) for shape in ((1, 272), (272, 1))]
    assert evaluate_kernel(kernel, ones) == 272


@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_knobs_of_reduce_cpu(lanes: int, rows: int):
    for extent in (17, 64, 71):
        check("reduce_cpu", reduction(("add", (5, extent), (1,), "float32")), {"lanes": lanes, "rows": rows})


@pytest.mark.parametrize("threads", [32, 64, 128, 256, 512])
def test_knobs_of_reduce_cuda(threads: int):
    check("reduce_cuda", reduction(("max", (2, 3, 45), (1, 2), "float32"), keep=True), {"threads": threads})


@pytest.mark.parametrize(("threads", "outputs"), [(32, 1), (32, 32), (64, 16), (128, 4)])
def test_outputs_of_reduce_cuda(threads: int, outputs: int):
    for shape, dims in (((37, 41), (1,)), ((41, 37), (0,)), ((33, 5, 16), (0,))):
        anchor = reduction(("add", shape, dims, "float32"))
        check("reduce_cuda", anchor, {"threads": threads, "outputs": outputs})


@pytest.mark.parametrize(
    "shapes", [((1, 64), (64, 37)), ((3, 70), (70, 1)), ((2, 2, 65), (2, 65, 3)), ((104, 26), (26, 1))], ids=str
)
def test_small_products_are_reductions(shapes: tuple[Shape, Shape]):
    check("reduce_cuda", product(shapes))


def comparison_of_sum() -> ComputeOp:
    """Whether the sum of exp(x[i, k]) + y[i], over k, exceeds z[i]: code before, in and after the fold."""
    x, y, z = tensor(3, 40), tensor(3), tensor(3)

    def element_of(b: DefinitionBuilder, index: Any) -> Scalar:
        shift = b.at(y, index)

        def term(inner: DefinitionBuilder, k: Any) -> Scalar:
            return inner.add(inner.math("exp", inner.at(x, [*index, *k])), shift)

        return b.binary("gt", b.reduce("add", [40], term), b.at(z, index))

    return compute_of(TensorType(element_type(np.dtype(np.bool_)), [3]), element_of)


@pytest.mark.parametrize("name", ["reduce_cpu", "reduce_cuda", "generic_cpu", "generic_cuda"])
def test_the_fold_has_another_type_than_the_result(name: str):
    check(name, comparison_of_sum())


POINTWISE: list[Operator] = [
    UnaryOp("exp", tensor(1)),
    UnaryOp("relu", tensor()),
    UnaryOp("neg", tensor(7, dtype="int32")),
    UnaryOp("sigmoid", tensor(3, 5, 7)),
    UnaryOp("tanh", tensor(129)),
    TransposeOp(tensor(5, 7), [1, 0]),
    TransposeOp(tensor(2, 3, 4), [0, 2, 1]),
    TransposeOp(tensor(1, 1, 3), [2, 0, 1]),
    PoolOp("max", tensor(1, 2, 5, 5), [3, 3], [2, 2], [1, 1, 1, 1], [1, 1]),
    PoolOp("avg", tensor(1, 2, 5, 6), [2, 2], [1, 1], [0, 0, 1, 1], [1, 1]),
    PoolOp("avg", tensor(1, 1, 7), [3], [2], [0, 1], [1], ceil=True, count_pad=True),
    ConvOp(tensor(1, 4, 5, 5), tensor(4, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 4),
    ConvOp(tensor(2, 2, 6), tensor(3, 2, 2), [2], [0, 0], [2], 1),
    ReductionOp("add", tensor(3, 7), [0], keep=False),
    ReductionOp("max", tensor(3, 5, 2), [1], keep=True),
]


@pytest.mark.parametrize("operator", POINTWISE, ids=lambda op: f"{op.name} {op.type}")
@pytest.mark.parametrize("name", ["generic_cpu", "generic_cuda"])
def test_generic_templates(name: str, operator: Operator):
    check(name, defined(operator))


@pytest.mark.parametrize("run", [1, 4, 16, 65536])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_knobs_of_generic_cpu(run: int, rows: int):
    check("generic_cpu", defined(POINTWISE[3]), {"run": run, "rows": rows})
    check("generic_cpu", defined(POINTWISE[6]), {"run": run, "rows": rows})


@pytest.mark.parametrize("threads", [32, 512])
@pytest.mark.parametrize("repeats", [1, 2, 8])
def test_knobs_of_generic_cuda(threads: int, repeats: int):
    check("generic_cuda", defined(POINTWISE[3]), {"threads": threads, "repeats": repeats})


@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.parametrize("repeats", [1, 4])
def test_vectors_of_generic_cuda(vector: int, repeats: int):
    for operator in (UnaryOp("exp", tensor(3, 52)), TransposeOp(tensor(4, 9), [1, 0])):
        check("generic_cuda", defined(operator), {"vector": vector, "repeats": repeats, "threads": 32})


def constant_tensor() -> ComputeOp:
    """A definition that reads nothing."""
    return compute_of(TensorType(f32, [3]), lambda b, _: b.constant(2.5, f32))


@pytest.mark.parametrize("name", ["generic_cpu", "generic_cuda"])
def test_a_definition_without_operands(name: str):
    check(name, constant_tensor())


def channels_last(pool: PoolOp) -> Anchor:
    layout = last(len(pool.shape))
    return definition_in(pool, layout, {pool.x: (tensor(*layout.shape(shape_of(pool.x))), layout)})


def rounded_product(m: int, n: int) -> MatmulOp:
    """Of f32 whose operands may be rounded to bf16."""
    found = product(((m, 70), (70, n)))
    found.precision = StringAttr("bf16")
    return found


@cache
def anchors_of_all_kinds() -> list[Anchor]:
    """Small and large ones, in each type that has a template of its own."""
    anchors: list[Anchor] = [product(shapes) for shapes in PRODUCTS]
    anchors += [product(((m, 64), (64, n))) for m in (1, 17, 64, 1000, 4096) for n in (1, 40, 1000, 8192)]
    anchors += [product(((m, 64), (64, n)), "float16") for m in (1, 17, 64, 1000, 4096) for n in (1, 40, 1000, 8192)]
    anchors += [reduction(("add", (rows, k), (1,), "float32")) for rows in (1, 4096) for k in (17, 300, 5000)]
    anchors += [defined(UnaryOp("exp", tensor(1, 64, n, n))) for n in (1, 7, 224)]
    anchors += [
        defined(SoftmaxOp(tensor(*shape), 1)) for shape in ((1, 5), (9, 1000), (2, 60000), (4096, 100), (2, 90, 49))
    ]
    anchors += [defined(PoolOp("max", tensor(1, 8, n, n), [3, 3], [1, 1], [1] * 4, [1, 1])) for n in (17, 224)]
    anchors += [channels_last(PoolOp("max", tensor(1, 32, n, n), [3, 3], [1, 1], [1] * 4, [1, 1])) for n in (5, 224)]
    anchors += [defined(TransposeOp(tensor(m, n), [1, 0])) for m in (8, 100, 1024) for n in (31, 256)]
    anchors += [
        AttentionOp(*(tensor(12, n, d, dtype=dtype) for _ in range(3)))
        for dtype in ("float32", "float16") for n in (1, 128, 2048) for d in (7, 64, 128)
    ]  # fmt: skip
    anchors += [
        WinogradConvOp(tensor(1, 8, n, n, 16), tensor((m + 2) ** 2, 128, 112), m, [1] * 4)
        for n in (1, 35, 224)
        for m in (2, 4)
    ]
    anchors += [
        MatmulOp(tensor(m, 70, dtype="uint8"), tensor(70, n, dtype="int8"), sums=i32)
        for m in (1, 17, 64, 1000, 4096)
        for n in (1, 40, 1000)
    ]
    anchors += [
        PackedMatmulOp(tensor(m, 70, dtype="int8"), tensor(-(-n // 32), 32, 32, 4, dtype="uint8"), n)
        for m in (1, 17, 64, 1000, 4096)
        for n in (1, 40, 1000)
    ]
    anchors += [rounded_product(m, n) for m in (1, 17, 64, 1000, 4096) for n in (1, 40, 1000)]
    anchors += [
        PackedConvOp(
            tensor(1, 2, n, n, 64, dtype="int8"),
            tensor(3, 32 * k * k, 32, 4, dtype="uint8"),
            (100, 90),
            [k, k],
            *([s, s], [k // 2] * 4, [1, 1]),
        )
        for n in (3, 35, 224)
        for k in (1, 3)
        for s in (1, 2)
    ]
    return anchors


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_defaults_are_in_the_space(template: Any):
    target = next(each for each in (CPU, GPU, Target.parse("sm_90a")) if template.runs_on(each))
    fitting = [anchor for anchor in anchors_of_all_kinds() if template.fits(anchor)]
    assert fitting
    for anchor in fitting:
        template.check(anchor, template.default(anchor, target), target, "here")


def rejection(name: str, anchor: Anchor, target: Target, **choices: Choice) -> str:
    """The message for the default choices with some of them replaced."""
    template = TEMPLATES[name]
    with pytest.raises(TreadleError) as caught:
        template.check(anchor, template.default(anchor, target) | choices, target, "group 'g'")
    return str(caught.value)


def test_a_template_of_another_target_is_rejected():
    message = rejection("matmul_cpu", product(ODD), GPU)
    assert message == "group 'g': template 'matmul_cpu' is for cpu targets, not sm_80"


def test_an_anchor_that_does_not_fit_is_rejected():
    short = reduction(("add", (3, 4), (1,), "float32"))
    message = rejection("reduce_cpu", short, CPU)
    assert message == "group 'g': template 'reduce_cpu' does not schedule graph.compute"


def test_an_unknown_knob_is_rejected():
    message = rejection("matmul_cpu", product(ODD), CPU, tile=8)
    assert (
        message == "group 'g': template 'matmul_cpu' has no knob 'tile'; accepted: chunk, pack, passes, rows, vectors"
    )


@pytest.mark.parametrize("value", [0, 15, True, "8", (8,)])
def test_a_value_outside_the_space_is_rejected(value: Choice):
    message = rejection("matmul_cpu", product(ODD), CPU, rows=value)
    assert f"knob 'rows' of template 'matmul_cpu' is {choice_text(value)}; accepted: 1 to 14" in message


def test_a_number_is_no_switch():
    assert "knob 'pack' of template 'matmul_cpu' is 1" in rejection("matmul_cpu", product(ODD), CPU, pack=1)


def test_a_missing_knob_is_rejected():
    with pytest.raises(TreadleError, match="template 'reduce_cpu' needs a value for rows"):
        TEMPLATES["reduce_cpu"].check(reduction(REDUCTIONS[0]), {"lanes": 16}, CPU, "here")


def test_a_chunk_that_tiles_overrun_is_rejected():
    message = rejection("matmul_cpu", product(ODD), CPU, rows=8, chunk=12)
    assert "group 'g': matmul_cpu: tiles of 8 rows overrun a chunk of 12 rows by 4" in message
    assert "accepted: a chunk that is a multiple of 8" in message


def test_too_much_shared_memory_is_rejected():
    message = rejection(
        "matmul_simt", product(ODD, "float64"), GPU, warps=(4, 2), repeats=(2, 2), thread=(4, 4), block_k=16
    )
    assert message.startswith("group 'g': matmul_simt with 128 x 128 tiles takes ")
    assert "bytes of shared memory" in message and "too many" in message
    assert "accepted: at most 49152 on sm_80" in message


def test_a_tile_that_the_threads_do_not_share_is_rejected():
    message = rejection("matmul_simt", product(ODD), GPU, warps=(2, 4), repeats=(1, 1), thread=(2, 2), block_k=8)
    assert "A's tile of 128 elements is not shared out evenly by 256 threads" in message


@pytest.mark.parametrize(
    ("anchor", "choices", "why"),
    [
        (product(((256, 64), (64, 320))), {}, "predicates of tiles that overhang by 64"),
        (product(((256, 64), (64, 256))), {"block_k": 16}, "the prefetch of tiles with block_k = 16"),
        (product(((256, 64), (64, 256))), {"a_vector": 2}, "addresses of vectors of 2 and 4"),
        (product(((256, 64), (64, 256))), {"a_order": "m", "b_order": "k"}, "two operands that are both transposed"),
        (product(((256, 64), (64, 256)), "float64"), {}, "their other halves"),
    ],
)
def test_blocks_for_which_registers_do_not_reach_are_rejected(
    anchor: Anchor, choices: dict[str, Choice], why: str
) -> None:
    tile: dict[str, Choice] = {
        "warps": (4, 2),
        "repeats": (2, 2),
        "thread": (4, 4),
        "block_k": 8,
        "min_blocks_per_sm": 2,
    }
    message = rejection("matmul_simt", anchor, GPU, **(tile | choices))
    assert "matmul_simt: 128 registers a thread, of 2 blocks of 256, are too few for 64 accumulators" in message
    assert f"and {why}; accepted: min_blocks_per_sm = 1" in message


def test_room_for_blocks_that_there_is_anyway_is_rejected():
    message = rejection("matmul_simt", product(ODD), GPU, min_blocks_per_sm=2)
    assert "matmul_simt with 4 accumulators a thread leaves room for 2 blocks anyway, 60 fewer than" in message
    assert "accepted: min_blocks_per_sm = 1" in message


def test_vectors_that_overrun_are_rejected():
    message = rejection("generic_cuda", defined(UnaryOp("exp", tensor(3, 5))), GPU, vector=4)
    assert "generic_cuda: vectors of 4 overrun a result of 15 elements by 1" in message
    message = rejection("transpose_cuda", defined(TransposeOp(tensor(33, 32), [1, 0])), GPU, write_vector=4)
    assert "transpose_cuda: vectors of 4 overrun 33 elements along the result by 3" in message


def test_a_kernel_says_what_it_computes():
    anchor: Operation = product(((3, 4), (4, 5)))
    assert isinstance(anchor, MatmulOp)
    kernel = TEMPLATES["matmul_cpu"].build(anchor, TEMPLATES["matmul_cpu"].default(anchor, CPU), CPU, "k")
    assert kernel.comment is not None and kernel.comment.data == "C[3, 5] = A[3, 4] * B[4, 5]"
    assert not [op for op in kernel.walk() if isinstance(op, arith.DivSIOp | arith.RemSIOp)]
