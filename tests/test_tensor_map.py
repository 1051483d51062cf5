"""Tensor maps: what they say to the driver and to the emulator, and what neither takes."""

import struct
from collections.abc import Callable

import pytest

from treadle.errors import TreadleError
from treadle.target.tensor_map import EncodedMap, PixelBox, TensorMap


def test_dimensions_turn_around() -> None:
    map = TensorMap("bf16", (3, 100, 72), (15360, 144), (1, 64, 32), swizzle=64)
    assert map.encoded() == EncodedMap(9, 3, (72, 100, 3), (144, 15360), (32, 64, 1), (1, 1, 1), 2)
    assert map.box_bytes == 64 * 32 * 2
    assert map.span == 2 * (2 * 7680 + 99 * 72 + 71 + 1)


@pytest.mark.parametrize(("swizzle", "in_cuda"), [(0, 0), (128, 3), (64, 2), (32, 1)])
def test_cuda_numbers_swizzles_from_narrow_to_wide(swizzle: int, in_cuda: int) -> None:
    assert TensorMap("f16", (8, 8), (16,), (8, 8), swizzle).encoded().swizzle == in_cuda


def test_the_emulator_gets_128_bytes_that_begin_with_the_address() -> None:
    raw = TensorMap("f32", (10, 20), (128,), (4, 8), 64).emulated(0x7000)
    assert struct.unpack("<Q", raw[:8]) == (0x7000,)
    assert (raw[8], raw[9], raw[10]) == (4, 2, 2)
    assert struct.unpack("<5Q", raw[16:56]) == (20, 10, 0, 0, 0)
    assert struct.unpack("<4Q", raw[56:88]) == (128, 0, 0, 0)
    assert struct.unpack("<5I", raw[88:108]) == (8, 4, 0, 0, 0)
    assert len(raw) == 128


# A convolution of 3 x 5 with strides 2 and 1, padding 1 and 2.
WALK = PixelBox((-1, -2), (-1, -2), (2, 1))
IMAGES = ((4, 28, 56, 64), (200704, 7168, 128))


def test_pixels_turn_around() -> None:
    map = TensorMap("f16", *IMAGES, (128, 64), 128, WALK)
    encoded = EncodedMap(
        6, 4, (64, 56, 28, 4), (128, 7168, 200704), (64, 128), (1, 1, 2, 1), 3, lower=(-2, -1), upper=(-2, -1)
    )
    assert map.encoded() == encoded
    assert map.box_bytes == 128 * 128
    assert WALK.counts((28, 56)) == (14, 56)
    assert PixelBox.of((14, 56), (2, 1), (-1, -2), (28, 56)) == PixelBox((-1, -2), (-2, -2), (2, 1))


def test_the_emulator_gets_corners_and_steps() -> None:
    raw = TensorMap("f16", *IMAGES, (128, 64), 128, WALK).emulated(0x7000)
    assert struct.unpack("<5I", raw[88:108]) == (64, 128, 0, 0, 0)
    assert struct.unpack("<3h3h3B", raw[108:123]) == (-2, -1, 0, -2, -1, 0, 1, 2, 0)
    assert len(raw) == 128


def _pixels(lower: tuple[int, ...] = (-1, -1), upper: tuple[int, ...] = (-1, -1), steps: tuple[int, ...] = (1, 1)):
    return TensorMap("f16", *IMAGES, (128, 64), 128, PixelBox(lower, upper, steps))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TensorMap("i1", (8,), (), (16,)), "elements of i1"),
        (lambda: TensorMap("f16", (), (), ()), "0 dimensions"),
        (lambda: TensorMap("f16", (8,) * 6, (16,) * 5, (8,) * 6), "6 dimensions"),
        (lambda: TensorMap("f16", (8, 8), (16,), (8,)), "2 extents, 1 strides and a box of 1"),
        (lambda: TensorMap("f16", (8, 8), (), (8, 8)), "2 extents, 0 strides and a box of 2"),
        (lambda: TensorMap("f16", (8, 8), (16,), (8, 8), 96), "a swizzle of 96 bytes"),
        (lambda: TensorMap("f16", (0, 8), (16,), (8, 8)), "an extent of 0"),
        (lambda: TensorMap("f16", (8, 8), (24,), (8, 8)), "a stride of 24 bytes"),
        (lambda: TensorMap("f16", (8, 8), (1 << 40,), (8, 8)), "a stride of 1099511627776 bytes"),
        (lambda: TensorMap("f16", (300, 8), (16,), (257, 8)), "a box of 257 elements along a dimension"),
        (lambda: TensorMap("f16", (8, 8), (16,), (8, 4)), "rows of a box of 8 bytes"),
        (lambda: TensorMap("f16", (8, 128), (256,), (8, 128), 128), "rows of 256 bytes swizzled by 128"),
        (lambda: TensorMap("f16", *IMAGES, (1, 2, 8, 64), 128, WALK), "4 extents, 3 strides and a box of 4"),
        (lambda: TensorMap("f16", *IMAGES, (1025, 64), 128, WALK), "a box of 1025 elements along a dimension"),
        (lambda: TensorMap("f16", (8, 8), (16,), (8, 8), 0, PixelBox((), (), ())), "images of 0 dimensions"),
        (lambda: _pixels(lower=(-1,)), "1 and 2 corners and 2 steps"),
        (lambda: _pixels(lower=(-129, 0)), "a corner of -129; accepted: -128 to 127 for images of 2 dimensions"),
        (lambda: _pixels(upper=(128, 0)), "a corner of 128"),
        (lambda: _pixels(steps=(9, 1)), "a step of 9; accepted: 1 to 8"),
        (lambda: _pixels(lower=(27, 0)), "corners with no pixel between them"),
        (lambda: TensorMap("f16", (8, 8), (16,), (8, 8)).emulated(0x7008), "the address 0x7008"),
    ],
)
def test_what_has_no_map(make: Callable[[], object], says: str) -> None:
    with pytest.raises(TreadleError, match=says):
        make()
