"""Calls of models whose shapes change: what is bound, padded, cut out and refused."""

from dataclasses import replace

import numpy as np
import pytest

from treadle.artifact.manifest import KernelLaunch, Manifest, Tensor, manifest_text, parse_manifest
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Dispatch, parse_tree
from treadle.shapes.dim import Dim, parse_dim
from treadle.shapes.dynamic import DynamicCalls, ExtentExpression

BATCH, SEQ = Dim("n", 1, 4), Dim("s", 2, 8, 2)


def _manifest() -> Manifest:
    return Manifest(
        "cpu", "cpu",
        inputs=(
            Tensor("x", (4, 8, 3), "float32", ("n", "s", "3")),
            Tensor("y", (8,), "int64", ("s",)),
            Tensor("extent(n * s)", (), "int64"),
        ),
        outputs=(Tensor("a", (4, 8), "float32", ("n", "s")), Tensor("b", (32, 2), "float32", ("n<=4, s<=8", "2"))),
        constants=(), arena_bytes=0, symbols=(BATCH, SEQ), extents=("n * s",),
    )  # fmt: skip


def _calls() -> DynamicCalls:
    manifest = _manifest()
    return DynamicCalls(manifest.symbols, manifest.extents, manifest.inputs, manifest.outputs)


def _x(n: int, s: int) -> np.ndarray:
    return np.arange(n * s * 3, dtype=np.float32).reshape(n, s, 3)


def test_expressions() -> None:
    assert ExtentExpression("((w + 3) // 8) * -2 + n % 5", ["w", "n"]).value({"w": 13, "n": 7}) == -2
    for text in ("w +", "w / 2", "__import__('os')", "w ** 9", "w // 0", "w // n", "1.5", "m", "f(w)", "w" * 2000):
        with pytest.raises(ValueError):
            ExtentExpression(text, ["w", "n"])


def test_a_call_is_padded_and_cut() -> None:
    calls = _calls()
    x, y = _x(3, 4), np.arange(4)
    values = calls.bind([x, y])
    assert values == {"n": 3, "s": 4}
    padded, ids, extent = calls.arguments([x, y], values)
    assert padded.shape == (4, 8, 3) and ids.shape == (8,) and extent == 12 and extent.dtype == np.int64
    np.testing.assert_array_equal(padded[:3, :4], x)
    a, b = np.arange(32, dtype=np.float32).reshape(4, 8), np.arange(64, dtype=np.float32).reshape(32, 2)
    first, second = calls.results([a, b], values)
    np.testing.assert_array_equal(first, a[:3, :4])
    np.testing.assert_array_equal(second, b.reshape(4, 8, 2)[:3, :4].reshape(12, 2))
    assert first.flags.c_contiguous


def test_the_largest_shape_is_not_copied() -> None:
    calls = _calls()
    x, y = _x(4, 8), np.arange(8)
    given = calls.arguments([x, y], calls.bind([x, y]))
    assert given[0] is x and given[1] is y


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (_x(5, 4), np.arange(4), "input 'x': dimension 0 (n) is 5; accepted: n from 1 to 4"),
        (_x(1, 3), np.arange(3), "input 'x': dimension 1 (s) is 3; accepted: s from 2 to 8 in steps of 2"),
        (_x(1, 4), np.arange(6), "input 'y': dimension 0 (s) is 6, and 4 in input 'x'; accepted: one extent"),
        (_x(1, 4)[..., :2], np.arange(4), "input 'x': float32[1, 4, 2] given; accepted: x: float32[n from 1 to 4"),
        (_x(1, 4), np.arange(4, dtype=np.int32), "input 'y': int32[4] given"),
        (_x(1, 4)[0], np.arange(4), "input 'x': float32[4, 3] given"),
    ],
)
def test_a_call_outside_the_range_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(TreadleError) as caught:
        _calls().bind([x, y])
    assert str(caught.value).startswith(message)


def test_the_manifest_keeps_symbols() -> None:
    manifest = _manifest()
    assert parse_manifest(manifest_text(manifest).encode(), "here") == manifest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"n * s"', '"n * z"'),  # an unknown symbol
        ('"upper": 8', '"upper": 16'),  # an input larger than its buffer
        ('"multiple": 2', '"multiple": 0'),
        ('"n<=4, s<=8"', '"n<=4, s<=9"'),  # factors that do not make the bound
        ('"name": "s"', '"name": "n"'),
        ('"lower": 1', '"lower": 5'),
        ('"n",\n    "s",\n    "3"', '"4",\n    "s",\n    "3"'),  # no input has n
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(old: str, new: str) -> None:
    text = manifest_text(_manifest())
    assert old in text
    with pytest.raises(TreadleError, match="manifest"):
        parse_manifest(text.replace(old, new).encode(), "here")


@pytest.mark.parametrize("text", ["w:1", "1..8", "w:8..1", "w:-1..4", "w:1..4:8", "w-x:1..4", "w:1..99999999999"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TreadleError):
        parse_dim(text)


def test_ranges() -> None:
    dim = parse_dim("w:33..2050:32")
    assert (dim.least, dim.greatest, 64 in dim, 65 in dim, str(dim)) == (64, 2048, True, False, "w:33..2050:32")
    assert parse_dim("1..8", "n") == Dim("n", 1, 8)


def _dispatching() -> Manifest:
    """Two launches, of which a call runs one by its last input."""
    launch = KernelLaunch("k", "k.cubin", (1, 1, 1), (1, 1, 1), 0, (), ())
    return replace(_manifest(), launches=(launch, launch), dispatches=(Dispatch(0, 2, (2,), parse_tree(TREE)),))


TREE = "e0 <= 16 ? 0 : 1"


def test_the_manifest_keeps_dispatches() -> None:
    assert parse_manifest(manifest_text(_dispatching()).encode(), "here") == _dispatching()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (TREE, "e0 <= 16 ? 0 : 2", "a leaf takes launch 2 of 2"),
        (TREE, "e0 <= 16 ? 0", "is no decision tree: it ends too early"),
        (TREE, "e1 <= 16 ? 0 : 1", "the tree compares more than the 1 inputs that are given"),
        ('"count": 2', '"count": 3', "launches 0 to 2 are not its own"),
        ('"inputs": [\n    2\n', '"inputs": [\n    1\n', "inputs [1] are not all extents"),
    ],
)
def test_a_dispatch_with_a_hole_is_refused(old: str, new: str, message: str) -> None:
    text = manifest_text(_dispatching())
    assert old in text
    with pytest.raises(TreadleError) as caught:
        parse_manifest(text.replace(old, new).encode(), "here")
    assert message in str(caught.value)
