"""Modules of PyTorch over ranges of shapes, against PyTorch in eager mode."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import treadle  # noqa: E402
from tests.frontends.torch.cases import CASES, Function  # noqa: E402
from tests.frontends.torch.ranged import Ranged, compare  # noqa: E402
from tests.frontends.torch.test_compile import GroupedQuery, made  # noqa: E402
from treadle.frontends.torch.ranges import Ranges  # noqa: E402

BY_NAME = {case.name: case for case in CASES}
ALL = (
    "add of both", "clamp", "full", "arange", "tril", "squeeze", "permute", "expand", "cat", "stack", "split",
    "split with sizes", "slice", "slice beyond", "select", "flip", "pad", "pad reflect of a line", "linear", "matmul",
    "softmax", "std", "norm", "sum", "mean of one", "cumsum", "max with positions", "unbind", "masked_fill", "one_hot",
)  # fmt: skip
"""Cases all of whose extents are left open."""


@pytest.mark.parametrize("name", ALL)
def test_a_case_with_all_extents_open(name: str) -> None:
    case = BY_NAME[name]
    Ranged(Function(case.function), case.inputs, most=8).check(4)


@pytest.mark.parametrize(
    "name", ["add of both", "sum", "softmax", "cat", "cumsum", "linear", "flip", "stack", "permute"]
)
def test_a_case_of_a_first_extent_from_zero(name: str) -> None:
    case = BY_NAME[name]
    Ranged(Function(case.function), case.inputs, 8, 0, [[0]] * len(case.inputs)).check(9)


def _convolved(x: Any) -> Any:
    y = F.max_pool2d(F.conv2d(x, torch.ones(3, 2, 3, 3), stride=2, padding=1), 2)
    return F.interpolate(y, scale_factor=2, mode="nearest"), F.adaptive_avg_pool2d(y, 1)


SOME: dict[str, tuple[Any, list[Any], list[list[int]]]] = {
    "attention to keys of another extent": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        [torch.randn(1, 2, 4, 8), torch.randn(1, 2, 5, 8)], [[2], [2]],
    ),
    "attention with a mask": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(q.shape[2], k.shape[2]).tril(1) > 0),
        [torch.randn(2, 2, 4, 8), torch.randn(2, 2, 5, 8)], [[0, 2], [0, 2]],
    ),
    "a past and what is new": (
        lambda past, x: (torch.cat([past, x], 1), torch.cat([past, x], 1).mean(1)),
        [torch.randn(2, 5, 3), torch.randn(2, 4, 3)], [[0, 1], [0, 1]],
    ),
    "pictures": (_convolved, [torch.randn(2, 2, 12, 16)], [[0, 2, 3]]),
    "positions from the end": (
        lambda x: (x[:, -1], x[:, -3:], x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :], x[:, 1:-1]),
        [torch.randn(3, 8)], [[0, 1]],
    ),
    "positions that change": (
        lambda x, y: torch.arange(y.shape[0], y.shape[0] + x.shape[0]) * 2 + x, [torch.arange(6), torch.randn(4)],
        [[0], [0]],
    ),
    "numbers of extents": (
        lambda x: (x / x.shape[0], x + x.shape[1] * 2, torch.full((x.shape[0],), x.shape[1]), x.var(0)),
        [torch.randn(5, 4)], [[0, 1]],
    ),
    "elements at indices": (
        lambda x, i: (x[i], x[:, i], x[i, i], x.index_put((i,), x[i] * 2), x.gather(0, i[:, None].expand(-1, 4))),
        [torch.randn(5, 5, 4)[:, :, 0].repeat(1, 1), torch.tensor([0, 1, 0, 1])], [[], [0]],
    ),
    "merged and split again": (
        lambda x: (x.flatten(0, 1) @ torch.ones(6, 4)).view(x.shape[0], x.shape[1], 4).transpose(1, 2),
        [torch.randn(3, 5, 6)], [[0, 1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_a_function_with_some_extents_open(name: str) -> None:
    function, inputs, dims = SOME[name]
    Ranged(Function(function), inputs, 16 if name == "pictures" else 9, 8 if name == "pictures" else 3, dims).check(9)


def test_a_module_compiled_for_a_range() -> None:
    """A module, and its export, of calls from the least to the largest shape; what is outside is an error."""
    rows, length = Dim("rows", min=1, max=3), Dim("length", min=1, max=32)
    module, shapes = made(GroupedQuery), ({0: rows, 1: length},)
    model = treadle.compile(module, example_inputs=(torch.randn(2, 7, 32),), dynamic_shapes=shapes)
    with torch.no_grad():
        for call in ((3, 32), (1, 1), (2, 7), (3, 1), (1, 31)):
            x = torch.randn(*call, 32)
            compare(model(x), module(x), 2e-5, str(call))
    with pytest.raises(treadle.TreadleError, match=r"input 'x': dimension 1 \(x_1\) is 33; accepted: x_1 from 1 to 32"):
        model(torch.randn(1, 33, 32))


def test_dimensions_that_follow_from_others() -> None:
    """A multiple, of which the symbol is no extent of its own, and a sum."""
    n = Dim("n", min=1, max=5)
    pairs = torch.export.export(
        Function(lambda x: x.view(-1, 2).sum(1)), (torch.randn(6),), dynamic_shapes=(({0: 2 * n},),)
    )
    model = treadle.compile(pairs)
    for extent in (4, 10):
        x = torch.randn(extent)
        compare(model(x), x.view(-1, 2).sum(1), 1e-6, str(extent))
    with pytest.raises(treadle.TreadleError, match=r"is 5; accepted: inputs_0_0 from 4 to 10 in steps of 2"):
        model(torch.randn(5))
    total = torch.export.export(
        Function(lambda a, b: a.sum() + b[1:] * a),
        (torch.randn(3), torch.randn(4)),
        dynamic_shapes=(({0: n}, {0: n + 1}),),
    )
    model = treadle.compile(total)
    a, b = torch.randn(5), torch.randn(6)
    compare(model(a, b), a.sum() + b[1:] * a, 1e-6, "a sum")
    with pytest.raises(treadle.TreadleError, match=r"dimension 0 is 5; accepted: inputs_0_0 \+ 1, which is 6"):
        model(a, b[:5])


REFUSED: dict[str, tuple[Any, tuple[Any, ...], Any, str]] = {
    "no end": (nn.Linear(3, 2), (torch.randn(4, 3),), ({0: Dim("rows", min=2)},),
               r"dimension 0 of input 'input': the extent s\d+ has no upper bound; accepted: one, such as .*max=512"),
    "resized by a part": (
        Function(lambda x: F.interpolate(x, scale_factor=1.5)), (torch.randn(1, 2, 8),),
        (({2: Dim("n", min=4, max=9)},),),
        r"upsample_nearest1d.* is no function of extents; accepted: sums"),
    "sorted": (Function(lambda x: x.sort()[0]), (torch.randn(5),), (({0: Dim("n", min=2, max=9)},),),
               r"aten\.sort.*where a number is needed; accepted: a static extent"),
}  # fmt: skip


def _symbols() -> tuple[Any, Any]:
    """Two symbols of PyTorch, and what makes tensors of them."""
    examples = torch.empty(3, 4)
    program = torch.export.export(
        Function(lambda x: x + 1), (examples,), dynamic_shapes=(({0: Dim.AUTO, 1: Dim.AUTO},),)
    )
    (x,) = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    return x.shape, x.new_empty


def test_extents_that_do_not_say_their_symbols() -> None:
    (a, b), tensor = _symbols()
    names = [str(each.node.expr) for each in (a, b)]
    bounds = dict.fromkeys(names, (1, 8))
    with pytest.raises(treadle.TreadleError, match=r"dimension 0 of input 'x': the extent .* says none of"):
        Ranges.of({"x": tensor(a + b)}, bounds)
    with pytest.raises(treadle.TreadleError, match=r"does not say .*; accepted: s[0-9]+ itself, or a multiple"):
        Ranges.of({"x": tensor(a * a)}, bounds)
    ranges = Ranges.of({"x": tensor(a + 3)}, bounds)
    assert [str(dim) for dim in ranges.dims.dims.values()] == ["x_0:4..11"]
    with pytest.raises(treadle.TreadleError, match="which depends on data or is no extent of an input"):
        ranges.extent(b, "here")
    with pytest.raises(treadle.TreadleError, match=r"here: the number .* changes from call to call; accepted: whole"):
        ranges.extent(torch.sym_float(a), "here")


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_range_is_refused_by_name(name: str) -> None:
    module, inputs, shapes, message = REFUSED[name]
    with pytest.raises(treadle.TreadleError, match=message):
        treadle.compile(module.eval(), example_inputs=inputs, dynamic_shapes=shapes)


def test_ranges_are_those_of_a_module() -> None:
    program = torch.export.export(nn.Linear(3, 2), (torch.randn(4, 3),))
    with pytest.raises(treadle.TreadleError, match="dynamic shapes are given for an exported program"):
        treadle.compile(program, dynamic_shapes=({0: Dim.AUTO},))
    with pytest.raises(treadle.TreadleError, match="dynamic shapes for a str"):
        treadle.compile("m.onnx", dynamic_shapes=({0: Dim.AUTO},))
