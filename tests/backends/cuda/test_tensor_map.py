"""Tensor maps: what they say to cuTensorMapEncodeTiled and to the emulator, and what neither takes."""

import struct
from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import bf16, f16, f32, i1

from treadle.backends.cuda.tensor_map import EncodedMap, TensorMap, check_address
from treadle.errors import TreadleError


def test_dimensions_turn_around_and_strides_become_bytes() -> None:
    map = TensorMap(bf16, (3, 100, 72), (7680, 72, 1), (1, 64, 32), swizzle=2)
    assert map.encoded() == EncodedMap(9, 3, (72, 100, 3), (144, 15360), (32, 64, 1), (1, 1, 1), 2)
    assert map.box_bytes == 64 * 32 * 2
    assert map.tensor_bytes == 2 * (2 * 7680 + 99 * 72 + 71 + 1)


@pytest.mark.parametrize(("swizzle", "in_cuda"), [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_cuda_numbers_swizzles_from_narrow_to_wide(swizzle: int, in_cuda: int) -> None:
    assert TensorMap(f16, (8, 8), (8, 1), (8, 8), swizzle).encoded().swizzle == in_cuda


def test_the_emulator_gets_128_bytes_that_begin_with_the_address() -> None:
    raw = TensorMap(f32, (10, 20), (32, 1), (4, 8)).emulated(0x7000)
    assert struct.unpack("<Q", raw[:8]) == (0x7000,)
    assert (raw[8], raw[9], raw[10]) == (4, 2, 0)
    assert struct.unpack("<5Q", raw[16:56]) == (20, 10, 0, 0, 0)
    assert struct.unpack("<4Q", raw[56:88]) == (128, 0, 0, 0)
    assert struct.unpack("<5I", raw[88:108]) == (8, 4, 0, 0, 0)
    assert len(raw) == 128


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TensorMap(i1, (8,), (1,), (16,)), "elements of type i1"),
        (lambda: TensorMap(f16, (), (), ()), "0 dimensions"),
        (lambda: TensorMap(f16, (8,) * 6, (1,) * 6, (8,) * 6), "6 dimensions"),
        (lambda: TensorMap(f16, (8, 8), (8, 1), (8,)), "2 strides and a box of 1 dimensions"),
        (lambda: TensorMap(f16, (8, 8), (8, 1), (8, 8), 4), "swizzle 4"),
        (lambda: TensorMap(f16, (0, 8), (8, 1), (8, 8)), "extent 0 of dimension 0"),
        (lambda: TensorMap(f16, (8, 8), (8, 2), (8, 8)), "the stride 2 of the innermost dimension"),
        (lambda: TensorMap(f16, (8, 8), (12, 1), (8, 8)), "the stride of dimension 0 of 24 bytes"),
        (lambda: TensorMap(f16, (8, 8), (1 << 40, 1), (8, 8)), "the stride of dimension 0"),
        (lambda: TensorMap(f16, (300, 8), (8, 1), (257, 8)), "extent 257 of the box in dimension 0"),
        (lambda: TensorMap(f16, (8, 8), (8, 1), (8, 4)), "a box with rows of 8 bytes"),
        (lambda: TensorMap(f16, (8, 128), (128, 1), (8, 128), 1), "a box with rows of 256 bytes"),
        (lambda: check_address(0x7008), "the address 0x7008"),
    ],
)
def test_what_has_no_map(make: Callable[[], object], says: str) -> None:
    with pytest.raises(TreadleError, match=says):
        make()
