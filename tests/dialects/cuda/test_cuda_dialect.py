"""The cuda dialect: syntax, effects, and every diagnostic."""

from io import StringIO

import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, Builtin, MemRefType, ModuleOp, StridedLayoutAttr, f16, f32
from xdsl.dialects.memref import MemRef
from xdsl.dialects.test import Test
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryEffectKind, get_effects, is_side_effect_free, is_speculatable
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import dce
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.cuda import CUDA, KernelOp, Space, SpaceAttr, buffer_bytes

EVERY_OP = """\
builtin.module {
  cuda.kernel @tile(%a: memref<128x768xf32>, %n: index, %counters: memref<4xi32>) grid = [4, 2, 1] block = [128, 1, 1] \
attributes {origin = "matmul_3"} {
    %t = cuda.thread_id x : index
    %b = cuda.block_id y : index
    %tile = cuda.alloc : memref<16x128xf32, #cuda.space<shared>>
    %big = cuda.alloc dynamic : memref<128x40xf16, #cuda.space<shared>>
    %sums = cuda.alloc : memref<8x8xf32, #cuda.space<local>>
    %one = arith.constant 1 : index
    %inside = arith.cmpi ult, %t, %n : index
    cuda.cp_async %a[%b, %t], %tile[%one, %t] bytes 16 where %inside : memref<128x768xf32>, \
memref<16x128xf32, #cuda.space<shared>>
    cuda.cp_async %a[%b, %t], %tile[%one, %t] bytes 4 : memref<128x768xf32>, \
memref<16x128xf32, #cuda.space<shared>>
    cuda.cp_async_commit
    cuda.cp_async_wait 1
    cuda.barrier
    %last = cuda.arrive %counters[%one] of 4 : memref<4xi32>
    %v = memref.load %a[%b, %t] : memref<128x768xf32>
    %w = cuda.shuffle xor %v, %one : f32
    %x = cuda.ldmatrix %big[%t, %one] : memref<128x40xf16, #cuda.space<shared>> -> vector<4x2xf16>
    %y = cuda.ldmatrix transpose %big[%t, %one] : memref<128x40xf16, #cuda.space<shared>> \
-> vector<2x2xf16>
    %c = "test.op"() : () -> vector<2x2xf32>
    %d = cuda.mma m16n8k16 %x, %y, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
    %e = cuda.ldmatrix %tile[%t, %one] : memref<16x128xf32, #cuda.space<shared>> -> vector<4x1xf32>
    %f = cuda.round_tf32 %e : vector<4x1xf32>
    %g = cuda.ldmatrix %big[%t, %one] : memref<128x40xf16, #cuda.space<shared>> -> vector<2x2x2xf16>
    %bytes = cuda.alloc : memref<16x64xui8, #cuda.space<shared>>
    %h = cuda.ldmatrix %bytes[%t, %one] : memref<16x64xui8, #cuda.space<shared>> -> vector<4x4xui8>
    %k, %l = "test.op"() : () -> (vector<2x4xi8>, vector<2x2xi32>)
    %m = cuda.mma m16n8k32 %h, %k, %l : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>
    cuda.return
  }
}"""


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Arith, Builtin, MemRef, Test, CUDA):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def in_kernel(body: str, arguments: str = "", grid: str = "[1, 1, 1]", block: str = "[32, 1, 1]") -> ModuleOp:
    return parse(
        f"cuda.kernel @k({arguments}) grid = {grid} block = {block} {{\n"
        f'%i, %v = "test.op"() : () -> (index, f32)\n{body}\ncuda.return\n}}'
    )


def rejection(module: ModuleOp) -> str:
    with pytest.raises(VerifyException) as caught:
        module.verify()
    return str(caught.value)


def test_every_op_prints_as_it_was_written() -> None:
    module = parse(EVERY_OP)
    module.verify()
    assert str(module) == EVERY_OP


def test_every_op_survives_the_generic_syntax() -> None:
    generic = StringIO()
    Printer(generic, print_generic_format=True).print_op(parse(EVERY_OP))
    assert '"cuda.barrier"()' in generic.getvalue()
    assert str(parse(generic.getvalue())) == EVERY_OP


def test_kernel_knows_its_shape_and_shared_memory() -> None:
    kernel = parse(EVERY_OP).body.block.first_op
    assert isinstance(kernel, KernelOp)
    assert (kernel.grid_shape, kernel.block_shape, kernel.threads) == ((4, 2, 1), (128, 1, 1), 128)
    assert kernel.shared_bytes(dynamic=False) == 16 * 128 * 4 + 16 * 64
    assert kernel.shared_bytes(dynamic=True) == 128 * 40 * 2


def test_padding_between_rows_counts_as_size() -> None:
    padded = MemRefType(f16, [4, 8], StridedLayoutAttr([12, 1]), SpaceAttr(Space.SHARED))
    assert buffer_bytes(padded) == (3 * 12 + 8) * 2
    assert buffer_bytes(MemRefType(f32, [DYNAMIC_INDEX, 8])) is None


def test_nothing_moves_across_barriers_and_asynchronous_copies() -> None:
    ops = {op.name: op for op in parse(EVERY_OP).walk()}
    for name in ("barrier", "arrive", "cp_async", "cp_async_commit", "cp_async_wait"):
        effects = get_effects(ops[f"cuda.{name}"])
        assert effects is not None
        assert {effect.kind for effect in effects} == {MemoryEffectKind.READ, MemoryEffectKind.WRITE}


def test_warp_ops_have_no_effect_but_stay_where_they_are() -> None:
    ops = {op.name: op for op in parse(EVERY_OP).walk()}
    for name in ("shuffle", "mma"):
        assert is_side_effect_free(ops[f"cuda.{name}"])
        assert not is_speculatable(ops[f"cuda.{name}"])
    assert is_speculatable(ops["cuda.thread_id"])


def test_dead_code_elimination_keeps_barriers_and_erases_unused_ids() -> None:
    module = in_kernel("%t = cuda.thread_id x : index\ncuda.barrier\ncuda.cp_async_commit")
    dce(module)
    assert [op.name for op in module.walk() if op.name.startswith("cuda.")] == [
        "cuda.kernel",
        "cuda.barrier",
        "cuda.cp_async_commit",
        "cuda.return",
    ]


def test_equal_ids_merge_and_equal_buffers_do_not() -> None:
    buffer = "cuda.alloc : memref<4xf32, #cuda.space<local>>"
    module = in_kernel(
        f"%s = cuda.thread_id x : index\n%t = cuda.thread_id x : index\n%p = {buffer}\n%q = {buffer}\n"
        '"test.op"(%s, %t, %p, %q) : (index, index, memref<4xf32, #cuda.space<local>>, '
        "memref<4xf32, #cuda.space<local>>) -> ()"
    )
    CommonSubexpressionElimination().apply(Context(), module)
    names = [op.name for op in module.walk()]
    assert (names.count("cuda.thread_id"), names.count("cuda.alloc")) == (1, 2)


@pytest.mark.parametrize(
    ("grid", "block", "reason"),
    [
        ("[1, 1, 1]", "[1024, 2, 1]", "block of 2048 threads is 1024 over the limit of 1024"),
        ("[1, 1, 1]", "[1, 1, 65]", "block extent 65 along z is not within 1 and 64"),
        ("[1, 1, 1]", "[0, 1, 1]", "block extent 0 along x"),
        ("[1, 65536, 1]", "[1, 1, 1]", "grid extent 65536 along y is not within 1 and 65535"),
        ("[1, 1]", "[1, 1, 1]", "grid has 2 dimensions, expected 3"),
    ],
)
def test_kernel_rejects_shapes_over_the_limits(grid: str, block: str, reason: str) -> None:
    assert reason in rejection(in_kernel("", grid=grid, block=block))


def test_kernel_rejects_a_name_that_is_no_identifier() -> None:
    module = parse('cuda.kernel @"a b"() grid = [1, 1, 1] block = [1, 1, 1] { cuda.return }')
    assert "'a b' is not a C identifier" in rejection(module)


def test_kernel_rejects_a_body_without_return() -> None:
    module = parse('cuda.kernel @k() grid = [1, 1, 1] block = [1, 1, 1] { "test.termop"() : () -> () }')
    assert "must end with cuda.return" in rejection(module)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("memref<4xf32, #cuda.space<shared>>", "is not in global memory"),
        ("tensor<4xf32>", "is neither memref nor scalar"),
    ],
)
def test_kernel_rejects_arguments_that_no_launch_can_pass(argument: str, reason: str) -> None:
    assert reason in rejection(in_kernel("", arguments=f"%a: {argument}"))


@pytest.mark.parametrize(
    ("alloc", "reason"),
    [
        ("cuda.alloc : memref<12289xf32, #cuda.space<shared>>", "are 16 over the limit of 49152"),
        ("cuda.alloc dynamic : memref<58113xf32, #cuda.space<shared>>", "are 16 over the limit of 232448"),
        ("cuda.alloc : memref<4xf32>", "neither #cuda.space<shared> nor #cuda.space<local>"),
        ("cuda.alloc : memref<?xf32, #cuda.space<local>>", "has no static size"),
        ("cuda.alloc : memref<4xi7, #cuda.space<local>>", "has no static size"),
        ("cuda.alloc dynamic : memref<4xf32, #cuda.space<local>>", "only shared memory can be dynamic"),
    ],
)
def test_alloc_rejects(alloc: str, reason: str) -> None:
    assert reason in rejection(in_kernel(f"%m = {alloc}"))


def test_shared_buffers_stand_at_the_top_of_a_kernel() -> None:
    nested = (
        '"test.op"() ({\n%m = cuda.alloc : memref<4xf32, #cuda.space<shared>>\n'
        '"test.termop"() : () -> ()\n}) : () -> ()'
    )
    assert "not in a nested region" in rejection(in_kernel(nested))


SHARED = "memref<16x128xf32, #cuda.space<shared>>"


@pytest.mark.parametrize(
    ("source", "destination", "num_bytes", "reason"),
    [
        ("memref<8x64xf32>", SHARED, 12, "cannot copy 12 bytes, only one of (4, 8, 16)"),
        (SHARED, SHARED, 16, "is not in global memory"),
        ("memref<8x64xf32>", "memref<8x64xf32>", 16, "is not #cuda.space<shared>"),
        ("memref<8x64xf16>", SHARED, 16, "cannot copy f16 to f32"),
        ("memref<8x64xi64>", "memref<8x64xi64, #cuda.space<shared>>", 4, "no whole number of i64"),
        ("memref<8xf32>", SHARED, 16, "needs 1 indices, got 2"),
        ("memref<8x66xf32>", SHARED, 16, "source: 'memref<8x66xf32>' has a stride of 264 bytes"),
        ("memref<8x64xf32, strided<[1, 64]>>", SHARED, 4, "neighbouring elements"),
    ],
)
def test_cp_async_rejects(source: str, destination: str, num_bytes: int, reason: str) -> None:
    module = in_kernel(
        f'%s, %d = "test.op"() : () -> ({source}, {destination})\n'
        f"cuda.cp_async %s[%i, %i], %d[%i, %i] bytes {num_bytes} : {source}, {destination}"
    )
    assert reason in rejection(module)


def test_cp_async_accepts_an_unaligned_stride_that_is_never_taken() -> None:
    in_kernel(
        f'%s, %d = "test.op"() : () -> (memref<1x66xf32>, {SHARED})\n'
        f"cuda.cp_async %s[%i, %i], %d[%i, %i] bytes 16 : memref<1x66xf32>, {SHARED}"
    ).verify()


def test_cp_async_wait_rejects_a_negative_number() -> None:
    assert "cannot leave -1 groups under way" in rejection(in_kernel("cuda.cp_async_wait -1"))


@pytest.mark.parametrize(
    ("counters", "indices", "blocks", "reason"),
    [
        ("memref<4xf32>", "%i", 2, "counters in 'memref<4xf32>', expected i32 in global memory"),
        ("memref<4xi32, #cuda.space<shared>>", "%i", 2, "expected i32 in global memory"),
        ("memref<4xi32>", "%i, %i", 2, "'memref<4xi32>' needs 1 indices, got 2"),
        ("memref<4xi32>", "%i", 0, "the last of 0 blocks, expected at least one"),
    ],
)
def test_arrive_rejects(counters: str, indices: str, blocks: int, reason: str) -> None:
    body = f'%n = "test.op"() : () -> {counters}\n%l = cuda.arrive %n[{indices}] of {blocks} : {counters}'
    assert reason in rejection(in_kernel(body))


def test_shuffle_rejects_a_lane_outside_of_the_warp() -> None:
    body = "%n = arith.constant 32 : index\n%w = cuda.shuffle down %v, %n : f32"
    assert "lane 32 is not within 0 and 31" in rejection(in_kernel(body))


def test_shuffle_rejects_other_types() -> None:
    body = '%h = "test.op"() : () -> f16\n%w = cuda.shuffle down %h, %i : f16'
    assert "cannot shuffle f16, only f32, f64 and i32" in rejection(in_kernel(body))


@pytest.mark.parametrize(
    ("source", "fragment", "reason"),
    [
        ("memref<16x64xf16>", "vector<4x2xf16>", "is not #cuda.space<shared>"),
        (SHARED.replace("f32", "i32"), "vector<4x2xi32>", "elements of type i32 are none of f16, bf16, f32, i8, ui8"),
        (SHARED.replace("f32", "i8"), "vector<4x2xi8>", "is none of vector<1x4xi8>"),
        (SHARED.replace("f32", "ui8"), "vector<4x4xi8>", "is none of vector<1x4xui8>"),
        ("memref<16x72xi8, #cuda.space<shared>>", "vector<4x4xi8>", "72 bytes, not a multiple of 16"),
        (SHARED, "vector<4x2xf32>", "is none of vector<1x1xf32>"),
        ("memref<16x64xf16, #cuda.space<shared>>", "vector<3x2xf16>", "is none of vector<1x2xf16>"),
        ("memref<16x64xf16, #cuda.space<shared>>", "vector<4x2xbf16>", "is none of vector<1x2xf16>"),
        ("memref<16x68xf16, #cuda.space<shared>>", "vector<4x2xf16>", "136 bytes, not a multiple of 16"),
        ("memref<64xf16, #cuda.space<shared>>", "vector<4x2xf16>", "needs 1 indices, got 2"),
    ],
)
def test_ldmatrix_rejects(source: str, fragment: str, reason: str) -> None:
    module = in_kernel(f'%s = "test.op"() : () -> {source}\n%f = cuda.ldmatrix %s[%i, %i] : {source} -> {fragment}')
    assert reason in rejection(module)


@pytest.mark.parametrize(("element", "fragment"), [("f32", "vector<4x1xf32>"), ("ui8", "vector<4x4xui8>")])
def test_only_matrices_of_16_bits_are_transposed(element: str, fragment: str) -> None:
    shared = SHARED.replace("f32", element)
    module = in_kernel(
        f'%s = "test.op"() : () -> {shared}\n%f = cuda.ldmatrix transpose %s[%i, %i] : {shared} -> {fragment}'
    )
    assert f"matrices of {element} cannot be transposed, only those of 16 bits" in rejection(module)


def test_round_tf32_rejects_other_types() -> None:
    with pytest.raises(VerifyException, match="Expected attribute f32 but got f16"):
        in_kernel('%h = "test.op"() : () -> vector<4x2xf16>\n%r = cuda.round_tf32 %h : vector<4x2xf16>')


def mma(shape: str, a: str, b: str, c: str) -> ModuleOp:
    return in_kernel(
        f'%a, %b, %c = "test.op"() : () -> ({a}, {b}, {c})\n%d = cuda.mma {shape} %a, %b, %c : {a}, {b}, {c}'
    )


@pytest.mark.parametrize(
    ("shape", "a", "b"),
    [
        ("m16n8k16", "vector<4x2xf16>", "vector<2x2xf16>"),
        ("m16n8k16", "vector<4x2xbf16>", "vector<2x2xbf16>"),
        ("m16n8k8", "vector<4x1xf32>", "vector<2x1xf32>"),
    ],
)
def test_mma_accepts_what_the_tensor_cores_offer(shape: str, a: str, b: str) -> None:
    mma(shape, a, b, "vector<2x2xf32>").verify()


@pytest.mark.parametrize("a", ["i8", "ui8"])
@pytest.mark.parametrize("b", ["i8", "ui8"])
def test_mma_multiplies_bytes_of_both_signs(a: str, b: str) -> None:
    mma("m16n8k32", f"vector<4x4x{a}>", f"vector<2x4x{b}>", "vector<2x2xi32>").verify()


@pytest.mark.parametrize(
    ("shape", "a", "b", "c"),
    [
        ("m16n8k16", "vector<4x2xf16>", "vector<2x2xbf16>", "vector<2x2xf32>"),
        ("m16n8k16", "vector<4x1xf32>", "vector<2x1xf32>", "vector<2x2xf32>"),
        ("m16n8k8", "vector<4x2xf16>", "vector<2x2xf16>", "vector<2x2xf32>"),
        ("m16n8k16", "vector<4x2xf16>", "vector<2x2xf16>", "vector<2x2xf16>"),
        ("m16n8k32", "vector<4x4xi8>", "vector<2x4xi8>", "vector<2x2xf32>"),
        ("m16n8k32", "vector<4x2xi8>", "vector<2x2xi8>", "vector<2x2xi32>"),
        ("m16n8k32", "vector<4x4xi8>", "vector<2x4xi16>", "vector<2x2xi32>"),
        ("m16n8k16", "vector<4x4xi8>", "vector<2x4xi8>", "vector<2x2xi32>"),
    ],
)
def test_mma_rejects_other_fragments(shape: str, a: str, b: str, c: str) -> None:
    assert f"{shape} of ({a}, {b}, {c}), expected (" in rejection(mma(shape, a, b, c))
