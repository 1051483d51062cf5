"""A rule: convolutions of images in tiles of channels by pixels, with their windows unrolled."""

from collections.abc import Sequence

from treadle.scheduling import Draft


def whole_windows(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and for a convolution of images with the tile."""
    if draft.is_complete or draft.workload is None or len(draft.workload.extents) != 7:
        return ()
    after, ((n, o, y, x), (c, h, w)) = draft.axes()
    after, (channels, pixels) = after.sample_tile("tile", 2, ([1, 2, 4, 8, 16], [16, 32, 64]), (16, 512), of=(o, x))
    after, (o0, o1) = after.split(o, [channels])
    after, (x0, x1) = after.split(x, [pixels])
    after = after.arrange([("block", [n, o0, y]), ("repeat", [x0]), ("loop", [c, h, w]), ("repeat", [o1, x1])])
    return [draft, after.mark("unroll", h).mark("unroll", w)]
