"""Einsum: diagonals, sums, and products of two operands at a time, each a batched matrix product."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

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
