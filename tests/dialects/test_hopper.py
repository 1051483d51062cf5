"""Tests of the hopper dialect: text, and what its verifiers reject."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.registry import treadle_context

SHARED, REGISTER = "#loop.space<shared>", "#loop.space<register>"
BARRIERS = f"memref<4x!hopper.mbarrier, {SHARED}>"
A, B = f"memref<4x128x64xf16, {SHARED}>", f"memref<4x4x64x64xf16, {SHARED}>"
ACC = f"memref<1x16x2xvector<2x2xf32>, {REGISTER}>"
PARTS = f"memref<4x32x72xf32, {SHARED}>"
MAP = "%map = hopper.tensor_map %A extents [100, 64] strides [128] box [64, 64] swizzle 128 : memref<100x64xf16>"

WALK = (
    "%map = hopper.tensor_map %images extents [2, 5, 6, 64] strides [3840, 768, 128] box [64, 64] "
    "pixels [-1, -1] to [-2, -1] by [2, 1] swizzle 128 : memref<2x5x6x64xf16>"
)

ARGUMENTS = {
    "%A": "memref<100x64xf16>",
    "%images": "memref<2x5x6x64xf16>",
    "%a": A,
    "%b": B,
    "%acc": ACC,
    "%full": BARRIERS,
    "%i": "index",
    "%p": "i1",
    "%bytes": f"memref<4x128x128xi8, {SHARED}>",
    "%e4m3": f"memref<4x128x128xf8E4M3FN, {SHARED}>",
    "%e5m2": f"memref<4x256x128xf8E5M2, {SHARED}>",
    "%words": f"memref<2x64x64x32xf32, {SHARED}>",
    "%narrow": f"memref<128x24xf16, {SHARED}>",
    "%far": "memref<128x64xf16>",
    "%small": f"memref<8x64xf16, {SHARED}>",
    "%isums": f"memref<16x2xvector<2x2xi32>, {REGISTER}>",
    "%words_k": f"memref<256x32xf32, {SHARED}>",
    "%rows": "vector<4x2xf16>",
    "%rows_bf16": "vector<4x2xbf16>",
    "%short": "vector<2x2xf16>",
    "%x": "f32",
    "%parts": PARTS,
    "%pair": "vector<2xf32>",
    "%quad": "vector<4xf32>",
    "%numbers": "vector<2xi32>",
}


def parsed(body: str) -> str:
    """The text of a function with this body, verified, printed, and read again."""
    arguments = ", ".join(f"{name}: {type}" for name, type in ARGUMENTS.items())
    text = f"func.func @f({arguments}) {{\n{body}\nfunc.return\n}}"
    module = Parser(treadle_context(), text).parse_module()
    module.verify()
    printed = str(module)
    again = Parser(treadle_context(), printed).parse_module()
    again.verify()
    assert str(again) == printed
    return printed


@pytest.mark.parametrize(
    "line",
    [
        "%u = hopper.uniform %i in 3",
        f"hopper.mbarrier_init %full[%i], 8 : {BARRIERS}",
        "hopper.mbarrier_fence",
        f"hopper.mbarrier_arrive %full[%i] : {BARRIERS}",
        f"hopper.mbarrier_arrive %full[%i] expect 49152 : {BARRIERS}",
        f"hopper.mbarrier_wait %full[%i], %i : {BARRIERS}",
        f"hopper.mbarrier_wait cluster %full[%i], %i : {BARRIERS}",
        "hopper.cluster_arrive",
        "hopper.cluster_wait",
        f"hopper.store_async %pair to %parts[%i, %i, %i] at %full[%i] of %i : vector<2xf32>, {PARTS}, {BARRIERS}",
        "hopper.named_barrier %i, 128",
        "hopper.named_barrier arrive %i, 256",
        "hopper.warp_barrier",
        "hopper.registers increase 232",
        "hopper.registers decrease 40",
        "hopper.bulk_commit",
        "hopper.bulk_wait 0",
        "hopper.bulk_wait read 1",
        "hopper.fence_async",
        "hopper.wgmma_fence",
        "hopper.wgmma_commit",
        "hopper.wgmma_wait 1",
        f"hopper.wgmma %a[%i, %i, %i], %b[%i, %i, %i, %i] across, %acc[%i] keep %p : {A}, {B}, {ACC}",
        f"hopper.wgmma %a[%i, %i, %i], %a[%i, %i, %i], %acc[%i] : {A}, {A}, {ACC}",
        f"hopper.wgmma %e4m3[%i, %i, %i], %e5m2[%i, %i, %i], %acc[%i] : memref<4x128x128xf8E4M3FN, {SHARED}>, "
        f"memref<4x256x128xf8E5M2, {SHARED}>, {ACC}",
        f"hopper.wgmma_registers %rows, %b[%i, %i, %i, %i] across, %acc[%i] keep %p : vector<4x2xf16>, {B}, {ACC}",
        f"hopper.wgmma_registers %rows, %a[%i, %i, %i], %acc[%i] : vector<4x2xf16>, {A}, {ACC}",
        f"hopper.wgmma_sums %acc[%i] : {ACC}",
        "hopper.before_wait %x : f32",
    ],
)
def test_text(line: str) -> None:
    assert line in parsed(line)


def test_copies() -> None:
    load = f"hopper.tensor_load %map[%i, %i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}"
    store = f"hopper.tensor_store %a[%i, %i, %i] to %map[%i, %i] : {A}"
    text = parsed(f"{MAP}\n{load}\n{store}")
    assert all(line in text for line in (MAP, load, store))


def test_copies_of_pixels() -> None:
    load = f"hopper.tensor_load %map[%i, %i, %i, %i] offset [%i, %i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}"
    assert all(line in parsed(f"{WALK}\n{load}") for line in (WALK, load))


PART = "hopper.bulk_copy to %a[%i, %i, %i] at %full[%i] from [{}] of [{}] {{"
REGION = f"""
^bb0(%r: index, %c: index):
  %v = loop.load %A[%r, %c] : memref<100x64xf16>
  hopper.yield %v : f16
}} : {A}, {BARRIERS}"""


def test_copies_of_parts() -> None:
    line = PART.format("%i, %i", "100, 64")
    assert line in parsed(line + REGION)


REJECTED = {
    PART.format("%i", "100") + REGION: "a part from 1 indices of 1 extents",
    PART.format("%i, %i", "100") + REGION: "a part from 2 indices of 1 extents",
    PART.format("%i, %i", "100, 0") + REGION: r"a part of [100, 0], expected extents of 1 or more",
    WALK.replace("by [2, 1] ", ""): "2 and 2 corners and 0 steps",
    WALK.replace("by [2, 1]", "by [2, 9]"): "a step of 9; accepted: 1 to 8",
    f"{WALK}\nhopper.tensor_load %map[%i, %i, %i, %i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}": (
        "a map of pixels with 0 offsets"
    ),
    f"{WALK}\nhopper.tensor_load %map[%i, %i, %i, %i] offset [%i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}": (
        "a map of pixels with 1 offsets"
    ),
    f"{MAP}\nhopper.tensor_load %map[%i, %i] offset [%i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}": (
        "a map of a box with 1 offsets"
    ),
    f"{WALK}\nhopper.tensor_store %a[%i, %i, %i] to %map[%i, %i, %i, %i] : {A}": "a map of pixels with 0 offsets",
    f"hopper.mbarrier_init %full[%i], 0 : {BARRIERS}": "0 arrivals, expected 1 to 1048575",
    f"hopper.mbarrier_init %small[%i], 1 : {ARGUMENTS['%small']}": "needs 2 indices, got 1",
    f"hopper.mbarrier_arrive %full[%i] expect 1048576 : {BARRIERS}": "1048576 bytes, expected 1 to 1048575",
    "hopper.named_barrier %i, 100": "100 threads, expected a multiple of 32 up to 1024",
    "hopper.registers increase 236": "236 registers, expected a multiple of 8 from 24 to 240",
    "hopper.registers 40": "expected either increase or decrease",
    "%u = hopper.uniform %i in 0": "less than 0, expected at least 1",
    "hopper.bulk_wait -1": "cannot leave -1 groups under way",
    "hopper.wgmma_wait -1": "cannot leave -1 groups under way",
    "%m = hopper.tensor_map %A extents [100, 64] strides [120] box [64, 64] swizzle 128 : memref<100x64xf16>": (
        "a stride of 120 bytes; accepted: multiples of 16 below 2^40"
    ),
    "%m = hopper.tensor_map %A extents [200, 64] strides [128] box [64, 64] swizzle 128 : memref<100x64xf16>": (
        "a map of 25600 bytes of 'memref<100x64xf16>', which has 12800"
    ),
    f"%m = hopper.tensor_map %small extents [8, 64] strides [128] box [8, 64] swizzle 128 : {ARGUMENTS['%small']}": (
        "is not in global memory"
    ),
    f"{MAP}\nhopper.tensor_load %map[%i] to %a[%i, %i, %i] at %full[%i] : {A}, {BARRIERS}": (
        "a map of 2 dimensions with 1 coordinates"
    ),
    f"{MAP}\nhopper.tensor_load %map[%i, %i] to %small[%i, %i] at %full[%i] : {ARGUMENTS['%small']}, {BARRIERS}": (
        "a box [64, 64] does not fit into"
    ),
    f"{MAP}\nhopper.tensor_load %map[%i, %i] to %far[%i, %i] at %full[%i] : {ARGUMENTS['%far']}, {BARRIERS}": (
        "is not in shared memory"
    ),
    f"{MAP}\nhopper.tensor_load %map[%i, %i] to %bytes[%i, %i, %i] at %full[%i] : {ARGUMENTS['%bytes']}, {BARRIERS}": (
        "a copy between elements of f16 and"
    ),
    f"hopper.wgmma %narrow[%i, %i], %a[%i, %i, %i], %acc[%i] : {ARGUMENTS['%narrow']}, {A}, {ACC}": (
        "expected rows of 32, 64 or 128 bytes"
    ),
    f"hopper.wgmma %a[%i, %i, %i], %far[%i, %i], %acc[%i] : {A}, {ARGUMENTS['%far']}, {ACC}": "is not in shared memory",
    f"hopper.wgmma %a[%i, %i, %i], %bytes[%i, %i, %i], %acc[%i] : {A}, {ARGUMENTS['%bytes']}, {ACC}": (
        "a product of f16 and i8"
    ),
    f"hopper.wgmma %e4m3[%i, %i, %i], %bytes[%i, %i, %i], %acc[%i] : {ARGUMENTS['%e4m3']}, {ARGUMENTS['%bytes']}, "
    f"{ACC}": ("a product of f8E4M3FN and i8, expected f16, bf16, f32, floats of 8 bits or bytes of both"),
    f"hopper.wgmma %a[%i, %i, %i], %a[%i, %i, %i], %isums[] : {A}, {A}, {ARGUMENTS['%isums']}": (
        "expected vector<2x2xf32> in registers"
    ),
    f"hopper.wgmma %words_k[%i, %i], %words[%i, %i, %i, %i] across, %acc[%i] : {ARGUMENTS['%words_k']}, "
    f"{ARGUMENTS['%words']}, {ACC}": "B of f32 must lie along the terms",
    f"hopper.wgmma %a[%i, %i, %i], %a[%i, %i, %i], %acc[%i, %i] : {A}, {A}, {ACC}": "needs 1 indices, got 2",
    f"hopper.wgmma_registers %short, %a[%i, %i, %i], %acc[%i] : vector<2x2xf16>, {A}, {ACC}": (
        "A is vector<2x2xf16>, expected vector<4x2xf16> or vector<4x2xbf16>"
    ),
    f"hopper.wgmma_registers %rows_bf16, %a[%i, %i, %i], %acc[%i] : vector<4x2xbf16>, {A}, {ACC}": (
        "a product of bf16 and f16"
    ),
    f"hopper.wgmma_registers %rows, %far[%i, %i], %acc[%i] : vector<4x2xf16>, {ARGUMENTS['%far']}, {ACC}": (
        "is not in shared memory"
    ),
    f"hopper.wgmma_registers %rows, %narrow[%i, %i], %acc[%i] : vector<4x2xf16>, {ARGUMENTS['%narrow']}, {ACC}": (
        "expected rows of 32, 64 or 128 bytes"
    ),
    f"hopper.wgmma_registers %rows, %a[%i, %i, %i], %isums[] : vector<4x2xf16>, {A}, {ARGUMENTS['%isums']}": (
        "expected vector<2x2xf32> in registers"
    ),
    f"hopper.store_async %quad to %parts[%i, %i, %i] at %full[%i] of %i : vector<4xf32>, {PARTS}, {BARRIERS}": (
        "a store of vector<4xf32>, expected vector<2xf32> or vector<2xi32>"
    ),
    f"hopper.store_async %numbers to %parts[%i, %i, %i] at %full[%i] of %i : vector<2xi32>, {PARTS}, {BARRIERS}": (
        "a store of vector<2xi32> to"
    ),
    f"hopper.store_async %pair to %parts[%i, %i] at %full[%i] of %i : vector<2xf32>, {PARTS}, {BARRIERS}": (
        "needs 3 indices, got 2"
    ),
    f"hopper.store_async %pair to %far[%i, %i] at %full[%i] of %i : vector<2xf32>, {ARGUMENTS['%far']}, {BARRIERS}": (
        "is not in shared memory"
    ),
    f"hopper.store_async %pair to %parts[%i, %i, %i] at %parts[%i] of %i : vector<2xf32>, {PARTS}, {PARTS}": (
        "needs 3 indices, got 1"
    ),
    f"hopper.wgmma_sums %a[%i] : {A}": "expected vector<2x2xf32> in registers",
    f"hopper.wgmma_sums %acc[] : {ACC}": "needs 1 indices, got 0",
}


OF_CLUSTERS = [
    "hopper.cluster_arrive",
    "hopper.cluster_wait",
    "%p = cuda.alloc : memref<4x2xf32, #cuda.space<shared>>\n%b = cuda.alloc : memref<1x!hopper.mbarrier, "
    "#cuda.space<shared>>\n%i = arith.constant 0 : index\n%v = arith.constant dense<0.0> : vector<2xf32>\n"
    "hopper.store_async %v to %p[%i, %i] at %b[%i] of %i : vector<2xf32>, memref<4x2xf32, #cuda.space<shared>>, "
    "memref<1x!hopper.mbarrier, #cuda.space<shared>>",
]
KERNEL = "cuda.kernel @k() grid = [4, 1, 1] block = [128, 1, 1]{attributes} {{\n{body}\ncuda.return\n}}"


@pytest.mark.parametrize("body", OF_CLUSTERS, ids=["arrive", "wait", "store"])
def test_operations_of_clusters_in_kernels(body: str) -> None:
    def module(attributes: str) -> None:
        text = KERNEL.format(attributes=attributes, body=body)
        Parser(treadle_context(), text).parse_module().verify()

    module(" attributes {cluster = 4}")
    with pytest.raises(VerifyException, match="in a kernel without clusters: expected a number of blocks"):
        module("")
    with pytest.raises(VerifyException, match="clusters of 3 blocks do not divide a grid of 4"):
        module(" attributes {cluster = 3}")


@pytest.mark.parametrize(("body", "message"), REJECTED.items())
def test_rejections(body: str, message: str) -> None:
    with pytest.raises(VerifyException) as error:
        parsed(body)
    assert message in str(error.value)
