"""A rule of one's own beside Treadle's, and a search over what they write, for one operator.

    python examples/own_rule.py [--trials 64] [--seconds 120]

The operator is a convolution in many groups, whose channels fill no vector: there is no template for it but the generic
one.
`docs/schedule-programs.md` explains rules, and shows what this printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from xdsl.dialects.builtin import ModuleOp

import treadle
from treadle import ir
from treadle.dialects.graph import ConvOp
from treadle.scheduling import Draft, Rule, staged, tiled, vectorised
from treadle.tuning.tuner import Group


def whole_windows(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and for a convolution of images a tile of channels by pixels, with windows unrolled."""
    if draft.is_complete or draft.workload is None or len(draft.workload.extents) != 7:
        return ()
    after, ((n, o, y, x), (c, h, w)) = draft.axes()
    after, (channels, pixels) = after.sample_tile("tile", 2, ([1, 2, 4, 8, 16], [16, 32, 64]), (16, 512), of=(o, x))
    after, (o0, o1) = after.split(o, [channels])
    after, (x0, x1) = after.split(x, [pixels])
    after = after.arrange([("block", [n, o0, y]), ("repeat", [x0]), ("loop", [c, h, w]), ("repeat", [o1, x1])])
    return [draft, after.mark("unroll", h).mark("unroll", w)]


RULES: tuple[Rule, ...] = (whole_windows, tiled("SSRSRS"), staged("register", alone=True), vectorised)
"""The rule's tiles go on through those that stage reads and mark vectors, beside Treadle's tiles."""


def convolution(channels: int = 128, groups: int = 32, size: int = 56) -> ModuleOp:
    """3 x 3 with stride 2, of half as many channels, in some groups."""
    inputs = channels // 2
    x = ir.tensor_type("float32", (1, inputs, size, size))
    w = ir.tensor_type("float32", (channels, inputs // groups, 3, 3))
    entry = ir.Entry({"x": x, "w": w})
    return entry.module({"y": entry.add(ConvOp(entry["x"], entry["w"], [2, 2], [1] * 4, [1, 1], groups))})


def search(module: ModuleOp, rules: Sequence[Rule] | None, trials: int, seconds: float) -> Group:
    """The state of a search over a module of one kernel, with some rules (default: Treadle's)."""
    with TemporaryDirectory() as folder:
        model = Path(folder) / "convolution.mlir"
        model.write_text(ir.print_text(module))
        (group,) = treadle.tune(model, Path(folder) / "tuned", rules=rules, trials=trials, seconds=seconds)
    return group


def main(argv: Sequence[str] | None = None, module: ModuleOp | None = None) -> int:
    """Searches with Treadle's rules and with the own one, and prints what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args(argv)
    for title, rules in (("Treadle's rules", None), ("with whole_windows", RULES)):
        group = search(convolution() if module is None else module, rules, args.trials, args.seconds)
        assert group.default_seconds is not None and group.best_seconds is not None
        times = f"default {group.default_seconds * 1e6:6.0f} us, best {group.best_seconds * 1e6:6.0f} us"
        print(f"{title}: {times}, {group.trials} trials, {group.best}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
