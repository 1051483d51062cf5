"""Where the rows of a convolution's tiles lie: pixels of an image, or of a block's copy of some of its rows.

The copy has zeros around the image, so that a window is read by taps at fixed distances. Rows of the copy follow one
another, and all pixels that an output's row begins at are one run of positions, `flat` of which there are from one row
to the next one: tiles take up to 32 positions of several rows, and what lies between two rows is computed in vain. The
zeros behind a row are those in front of the next one. Rows are sorted by their remainder by the stride, so that taps of
one remainder find their rows side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from treadle.dialects.graph import PackedConvOp
from treadle.dialects.loop import TileRows
from treadle.matrix_units import MatrixUnit

TILE_ROWS = 32
"""Of a product; the last one has as few as its unit allows."""


@dataclass(frozen=True)
class ConvRows:
    """The rows of a convolution's result, and the pixels under them. A pixel-wise convolution has one row a pixel.

    image, result: rows and columns of them
    before: zeros in front of rows and columns
    unit: what multiplies the tiles
    """

    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    dilations: tuple[int, int]
    is_pixelwise: bool
    unit: MatrixUnit

    @staticmethod
    def of(anchor: PackedConvOp, unit: MatrixUnit) -> ConvRows:
        lists = [anchor.list_of(name) for name in ("kernel", "strides", "pads", "dilations")]
        kernel, strides, pads, dilations = ((each[0], each[1]) for each in lists)
        height, width = anchor.image[2:4]
        result = anchor.shape[2], anchor.shape[3]
        if kernel == strides == (1, 1) and not any(anchor.list_of("pads")):
            pixels = (height * width, 1)
            return ConvRows(pixels, pixels, kernel, strides, (0, 0), (1, 1), True, unit)
        return ConvRows((height, width), result, kernel, strides, pads, dilations, False, unit)

    @property
    def _span(self) -> int:
        """Pixels from the first to the last one under a row of the result."""
        return (self.result[1] - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1

    @property
    def pitch(self) -> int:
        """Pixels of a row of the copy."""
        before = self.before[1]
        needed = max(before + self.image[1], self._span - before)
        return ceil(needed / self.strides[1]) * self.strides[1]

    @property
    def flat(self) -> int:
        """Positions from a row of the result to the next one."""
        return self.pitch // self.strides[1]

    def read_rows(self, rows: int) -> int:
        """The image's rows under so many rows of the result."""
        return (rows - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1

    def sorted_rows(self, rows: int) -> int:
        """Rows of the copy of each remainder; those that no window reads hold the zeros behind the row before."""
        return ceil(self.read_rows(rows) / self.strides[0])

    def positions(self, group: int) -> int:
        """Of so many rows of the result, in whole tiles and a smaller one."""
        return self.unit.covering((group - 1) * self.flat + self.result[1])

    def taps(self, rows: int) -> list[int]:
        """The pixels of the copy under so many rows from a window's first one, row by row of the window."""
        taps: list[int] = []
        for row in range(self.kernel[0]):
            step, remainder = divmod(row * self.dilations[0], self.strides[0])
            first = (remainder * self.sorted_rows(rows) + step) * self.pitch
            taps += [first + column * self.dilations[1] for column in range(self.kernel[1])]
        return taps

    def row_of(self, read: int, rows: int) -> int:
        """Where the copy has the row that is the `read`-th of those under so many rows of the result."""
        step, remainder = divmod(read, self.strides[0])
        return remainder * self.sorted_rows(rows) + step

    def pixels(self, rows: int, group: int) -> tuple[int, int]:
        """The pixels of the copy under so many rows in groups: those of its rows, and all that tiles read."""
        last = ((rows - group) * self.flat + self.positions(group) - 1) * self.strides[1] + max(self.taps(rows))
        own = self.strides[0] * self.sorted_rows(rows) * self.pitch
        return own, max(own, last + 1)

    def tile_rows(self, taps: list[int], lanes: int, apart: int) -> TileRows:
        """A tile's rows, of taps of pixels; blocks of channels are so many pixels apart."""
        return TileRows(self.strides[1] * lanes, tuple(tap * lanes for tap in taps), apart * lanes)


__all__ = ["TILE_ROWS", "ConvRows"]
