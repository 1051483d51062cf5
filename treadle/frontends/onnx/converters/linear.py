"""Contractions: MatMul, Gemm, Conv, ConvTranspose, Col2Im."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import f64

from treadle.dialects.graph import ArgReductionOp, ConvOp, ConvTransposeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import matmul, plus_bias
from treadle.frontends.common.extent import Extent, Symbolic, bound_of
from treadle.frontends.common.window import Window, at_positions, half
from treadle.frontends.onnx.converters.reshape import read_window
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# Det: elimination with partial pivoting, each step written out.
#
# Source: Golub and Van Loan, "Matrix computations", 4th edition, algorithm 3.4.1.

LARGEST = 128
"""Rows: each is a dozen operators."""


@converts("Det", since=11)
def determinant(node: Node, g: GraphBuilder) -> Tensor:
    """`[..., n, n]` to `[...]`: the product of the pivots, with the sign of the permutation."""
    x = node.input()
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not 1 <= x.shape[-1] <= LARGEST:
        raise node.error(f"an input of shape {x.shape}", f"matrices of as many rows as columns, 1 to {LARGEST}")
    lead, n = x.shape[:-2], x.shape[-1]
    rest = g.reshape(g.widened(x), (prod(lead), n, n))
    result: Tensor | None = None
    for size in range(n, 0, -1):
        pivot, rest = _eliminated(g, rest, size)
        result = pivot if result is None else g.mul(result, pivot)
    assert result is not None
    return g.cast(g.reshape(result, lead), x.element)


def _eliminated(g: GraphBuilder, a: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The pivot `[B]` of matrices `[B, size, size]`, its sign changed if its row was not the first, and what is left of
    the other rows. Without a pivot, where the column is zeros, they do not count."""
    if size == 1:
        return g.reshape(a, a.shape[:1]), a
    batch = a.shape[0]
    column = g.unary("abs", g.reshape(g.narrow(a, 2, 0, 1), (batch, size)))
    row = g.emit(lambda v: ArgReductionOp("max", v[0], 1, True), column)
    places = g.constant(np.arange(size)[None])
    chosen = g.reshape(g.binary("eq", row, places), (batch, size, 1))
    first = g.narrow(a, 1, 0, 1)
    # One term of each sum is none of zeros.
    pivots = g.reduce("add", g.where(chosen, a, g.scalar(0, a)), [1], keep=True)
    others = g.narrow(g.where(chosen, first, a), 1, 1, size - 1)
    pivot = g.narrow(pivots, 2, 0, 1)
    divisor = g.where(g.binary("eq", pivot, 0), g.scalar(1, pivot), pivot)
    factors = g.div(g.narrow(others, 2, 0, 1), divisor)
    rest = g.sub(g.narrow(others, 2, 1, size - 1), g.mul(factors, g.narrow(pivots, 2, 1, size - 1)))
    value = g.reshape(pivot, (batch,))
    moved = g.binary("ne", g.reshape(row, (batch,)), 0)
    return g.where(moved, g.unary("neg", value), value), rest


# Einsum: diagonals, sums, and products of two operands at a time, each a batched matrix product.

Labels = tuple[str, ...]
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@converts("Einsum", since=12)
def einsum(node: Node, g: GraphBuilder) -> Tensor:
    """Operands are contracted from left to right; a label is summed once no later term has it."""
    equation = node.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    inputs, terms = node.all_inputs(), left.split(",")
    if len(terms) != len(inputs) or not all(map(_TERM.fullmatch, [*terms, right])):
        raise node.error(f"equation '{equation}' for {len(inputs)} operands", "a term of letters for each operand")
    labels = [_labels(node, term, x.rank) for term, x in zip(terms, inputs, strict=True)]
    output = _explicit(right, labels) if arrow else _implicit(labels)
    extents = _extents(node, labels, inputs)
    unknown = [label for label in output if label not in extents]
    if unknown or len(set(output)) < len(output):
        raise node.error(f"the result '{right}' of '{equation}'", "labels of the operands, each once")
    later = [set(output).union(*labels[n + 1 :]) for n in range(len(labels))]
    total, have = _prepared(g, inputs[0], labels[0], extents, later[0])
    for x, own, keep in zip(inputs[1:], labels[1:], later[1:], strict=True):
        operand, names = _prepared(g, x, own, extents, keep | set(have))
        total, have = _contracted(g, total, have, operand, names, keep)
    missing = [label for label in have if label not in output]
    total = g.reduce("add", total, [have.index(label) for label in missing], keep=False)
    have = tuple(label for label in have if label in output)
    return g.transpose(total, [have.index(label) for label in output])


def _labels(node: Node, term: str, rank: int) -> Labels:
    """A label for each dimension; those of an ellipsis are numbers, counted from the last one."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise node.error(f"term '{term}' for an operand of rank {rank}", "a label for each dimension")
    return (*before, *(str(n) for n in reversed(range(hidden))), *after)


def _explicit(right: str, labels: Sequence[Labels]) -> Labels:
    before, dots, after = right.partition("...")
    return (*before, *(_ellipsis(labels) if dots else ()), *after)


def _implicit(labels: Sequence[Labels]) -> Labels:
    """The ellipsis, and in alphabetical order the labels that appear once."""
    every = [label for term in labels for label in term]
    return (*_ellipsis(labels), *sorted(v for v in set(every) if v.isalpha() and every.count(v) == 1))


def _ellipsis(labels: Sequence[Labels]) -> list[str]:
    return sorted({v for term in labels for v in term if v.isdigit()}, key=int, reverse=True)


def _extents(node: Node, labels: Sequence[Labels], inputs: Sequence[Tensor]) -> dict[str, int]:
    """Of each label; operands of extent 1 are broadcast."""
    extents: dict[str, int] = {}
    for term, x in zip(labels, inputs, strict=True):
        for label, extent in zip(term, x.shape, strict=True):
            known = extents.setdefault(label, extent)
            if known == 1:
                extents[label] = extent
            elif extent not in (1, known):
                raise node.error(f"label '{label}' is {known} and {extent}", "one extent for each label")
    return extents


def _prepared(
    g: GraphBuilder, x: Tensor, labels: Labels, extents: dict[str, int], keep: set[str]
) -> tuple[Tensor, Labels]:
    """An operand with diagonals taken, broadcast, and summed over the labels that nothing else has."""
    while len(set(labels)) < len(labels):
        label = next(v for v in labels if labels.count(v) > 1)
        x, labels = _diagonal(g, x, labels, label)
    x = g.broadcast(x, [extents[label] for label in labels])
    alone = [d for d, label in enumerate(labels) if label not in keep]
    return g.reduce("add", x, alone, keep=False), tuple(label for label in labels if label in keep)


def _diagonal(g: GraphBuilder, x: Tensor, labels: Labels, label: str) -> tuple[Tensor, Labels]:
    """The first two dimensions of a label as one, which comes last."""
    first, second = (d for d, _ in zip([d for d, v in enumerate(labels) if v == label], range(2), strict=False))
    rest = [d for d in range(x.rank) if d not in (first, second)]
    extent = max(x.shape[first], x.shape[second])
    shape = [extent if d in (first, second) else e for d, e in enumerate(x.shape)]
    moved = g.transpose(g.broadcast(x, shape), [*rest, first, second])
    flat = g.reshape(moved, (*moved.shape[:-2], extent * extent))
    chosen = g.iota(extent, bound_of(extent) + 1)
    return g.gather(flat, chosen, len(rest), laid_out=True), (*(labels[d] for d in rest), label)


def _contracted(
    g: GraphBuilder, a: Tensor, a_labels: Labels, b: Tensor, b_labels: Labels, keep: set[str]
) -> tuple[Tensor, Labels]:
    """The product of two operands, summed over the labels that both have and nothing else."""
    batch = [v for v in a_labels if v in b_labels and v in keep]
    summed = [v for v in a_labels if v in b_labels and v not in keep]
    rows = [v for v in a_labels if v not in b_labels]
    columns = [v for v in b_labels if v not in a_labels]
    of_a, of_b = (dict(zip(n, x.shape, strict=True)) for n, x in ((a_labels, a), (b_labels, b)))
    left = g.transpose(a, [a_labels.index(v) for v in (*batch, *rows, *summed)])
    right = g.transpose(b, [b_labels.index(v) for v in (*batch, *summed, *columns)])
    lead = [of_a[v] for v in batch]
    m, n, k = prod(of_a[v] for v in rows), prod(of_b[v] for v in columns), prod(of_a[v] for v in summed)
    product = _product(g, g.reshape(left, (*lead, m, k)), g.reshape(right, (*lead, k, n)))
    labels = (*batch, *rows, *columns)
    return g.reshape(product, [(of_a | of_b)[v] for v in labels]), labels


def _product(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """Matrices; of one term each, an elementwise product."""
    return g.mul(a, b) if a.shape[-1] == 1 else g.matmul(a, b)


@converts("MatMul")
def matmul_node(node: Node, g: GraphBuilder) -> Tensor:
    """NumPy's matmul."""
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise node.error("an operand has rank 0", "rank 1 and more")
    return matmul(g, a, b)


@converts("Gemm", since=7)
def gemm(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B' + beta * C`."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise node.error(f"operands of rank {a.rank} and {b.rank}", "rank 2")
    a = g.transpose(a, (1, 0)) if node.flag("transA") else a
    b = g.transpose(b, (1, 0)) if node.flag("transB") else b
    alpha, beta = node.float("alpha", 1.0), node.float("beta", 1.0)
    product = _scaled(g, g.matmul(a, b), alpha)
    return product if c is None or beta == 0 else g.add(product, _scaled(g, c, beta))


def _scaled(g: GraphBuilder, x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    if x.is_float or factor.is_integer():
        return g.mul(x, factor)
    # An integer times a fraction is rounded towards zero, as a cast does it.
    wide = g.cast(x, f64)
    return g.cast(g.mul(wide, factor), x.element)


@converts("Conv")
def conv(node: Node, g: GraphBuilder) -> Tensor:
    """The bias is an addition of its own."""
    return plus_bias(g, convolution(node, g, node.input(0), node.input(1)), node.optional(2))


def convolution(node: Node, g: GraphBuilder, x: Tensor, w: Tensor) -> Tensor:
    """A convolution by the attributes of `Conv`, of operands that may be others than the node's."""
    x, window = read_window(node, x.shape, _kernel(node, x, w)).fitted(g, x, 0)
    groups = node.int("group", 1)
    return g.emit(lambda v: ConvOp(v[0], v[1], window.strides, window.pads, window.dilations, groups), x, w)


def _kernel(node: Node, x: Tensor, w: Tensor) -> Sequence[int]:
    if x.rank < 3 or w.rank != x.rank:
        raise node.error(f"an input of rank {x.rank} and weights of rank {w.rank}", "equal ranks from 3 upwards")
    kernel = node.ints("kernel_shape")
    if kernel is not None and tuple(kernel) != w.shape[2:]:
        raise node.error(f"kernel_shape {kernel} contradicts the weights' {list(w.shape[2:])}", str(list(w.shape[2:])))
    return w.shape[2:]


@converts("ConvTranspose")
def conv_transpose(node: Node, g: GraphBuilder) -> Tensor:
    """The output's extent follows from the pads, or the pads from `output_shape` or `auto_pad`."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    kernel = _kernel(node, x, w)
    window = read_window(node, x.shape, kernel, transposed=True)
    extra = node.ints_of_length("output_padding", x.rank - 2, 0)
    groups, pads, cut = node.int("group", 1), list(window.pads), dict[int, tuple[Symbolic, Symbolic]]()
    if (wanted := _wanted_extents(node, x, window)) is not None:
        pads, extra, cut = _transposed_pads(x, window, extra, wanted)
    y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], window.strides, pads, window.dilations, groups, extra), x, w)
    for d, (total, extent) in cut.items():
        y = at_positions(g, y, d + 2, half(g, total, not window.is_upper), extent, "constant", g.scalar(0, y))
    return plus_bias(g, y, bias)


def _wanted_extents(node: Node, x: Tensor, window: Window) -> list[Symbolic] | None:
    """The spatial extents that the node asks for; None if they follow from the pads."""
    wanted = node.ints("output_shape")
    if wanted is None:
        same = [extent * stride for extent, stride in zip(x.shape[2:], window.strides, strict=True)]
        return same if window.is_same else None
    if len(wanted) < window.rank:
        raise node.error(f"output_shape {wanted} of {window.rank} spatial dimensions", f"{window.rank} extents")
    return list(wanted[-window.rank :])


def _transposed_pads(
    x: Tensor, window: Window, extra: Sequence[int], wanted: Sequence[Symbolic]
) -> tuple[list[int], list[int], dict[int, tuple[Symbolic, Symbolic]]]:
    """Pads and output padding that give the extents that are asked for; and what is cut to them in each call, by
    spatial dimensions: how many elements there are more, and the extent."""
    rank = window.rank
    pads, grown = [0] * (2 * rank), list(extra)
    cut: dict[int, tuple[Symbolic, Symbolic]] = {}
    for d, extent in enumerate(wanted):
        over = (x.shape[d + 2] - 1) * window.strides[d] + extra[d] + window.reach(d) - extent
        if isinstance(over, Extent):
            cut[d] = over, extent
            continue
        total = max(over, 0)
        pads[d] = total // 2 if window.is_upper else total - total // 2
        pads[d + rank] = total - pads[d]
        grown[d] += total - over
    return pads, grown, cut


@converts("Col2Im", since=18)
def col2im(node: Node, g: GraphBuilder) -> Tensor:
    """The sum of blocks where they overlap: a transposed convolution of each channel with unit blocks."""
    x, image, block = node.input(0), node.known_ints(1, "the image's shape"), node.known_ints(2, "the block's shape")
    rank, size = len(block), prod(block)
    if x.rank != 3 or len(image) != rank or size < 1 or x.shape[1] % size:
        shapes = f"an input of shape {x.shape}, an image of {image}, blocks of {block}"
        raise node.error(shapes, "[N, C * block, L], and as many extents of the image as of the block")
    window = read_window(node, (1, 1, *image), block)
    grid = [
        (e + window.pads[d] + window.pads[d + rank] - window.dilations[d] * (k - 1) - 1) // window.strides[d] + 1
        for d, (e, k) in enumerate(zip(image, block, strict=True))
    ]
    if prod(grid) != x.shape[2]:
        raise node.error(f"{x.shape[2]} blocks", f"{prod(grid)}, as the image has places for")
    channels = x.shape[1] // size
    node.reserve((size, size), x.dtype)
    units = g.constant(np.eye(size, dtype=x.dtype).reshape(size, 1, *block))
    columns = g.reshape(x, (x.shape[0] * channels, size, *grid))
    extra = [
        e
        + window.pads[d]
        + window.pads[d + rank]
        - (grid[d] - 1) * window.strides[d]
        - window.dilations[d] * (k - 1)
        - 1
        for d, (e, k) in enumerate(zip(image, block, strict=True))
    ]
    lists = (window.strides, window.pads, window.dilations)
    y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], *lists, 1, extra), columns, units)
    return g.reshape(y, (x.shape[0], channels, *image))
