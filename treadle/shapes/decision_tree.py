"""Decision trees over integers: which of several alternatives a point takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Kernel = TypeVar("Kernel", bound=Hashable)

_WORD = re.compile(r"e\d+|-?\d+|<=|[()?:]")


@dataclass(frozen=True)
class Leaf(Generic[Kernel]):
    """All points that come here take one alternative."""

    kernel: Kernel


@dataclass(frozen=True)
class Split(Generic[Kernel]):
    """Points whose coordinate number `symbol` has at most this value go left, the others right."""

    symbol: int
    at_most: int
    left: Leaf[Kernel] | Split[Kernel]
    right: Leaf[Kernel] | Split[Kernel]


Tree = Leaf[Kernel] | Split[Kernel]

Box = Mapping[int, tuple[int | None, int | None]]
"""(number of a coordinate) -> its least and greatest value, None where it has no such one; others have any."""


def kernel_for(tree: Tree[Kernel], point: Sequence[int]) -> Kernel:
    """The alternative of a point."""
    while isinstance(tree, Split):
        tree = tree.left if point[tree.symbol] <= tree.at_most else tree.right
    return tree.kernel


def leaves(tree: Tree[Kernel]) -> int:
    """How many leaves it has."""
    return 1 if isinstance(tree, Leaf) else leaves(tree.left) + leaves(tree.right)


def boxes(tree: Tree[Kernel], around: Box | None = None) -> Iterator[tuple[Kernel, Box]]:
    """Each leaf's alternative, and the points that come to it, from left to right."""
    box = dict(around or {})
    if isinstance(tree, Leaf):
        yield tree.kernel, box
        return
    least, greatest = box.get(tree.symbol, (None, None))
    below = tree.at_most if greatest is None else min(greatest, tree.at_most)
    above = tree.at_most + 1 if least is None else max(least, tree.at_most + 1)
    yield from boxes(tree.left, {**box, tree.symbol: (least, below)})
    yield from boxes(tree.right, {**box, tree.symbol: (above, greatest)})


def symbols_of(tree: Tree[Kernel]) -> set[int]:
    """The numbers of the coordinates that are compared."""
    return set() if isinstance(tree, Leaf) else {tree.symbol} | symbols_of(tree.left) | symbols_of(tree.right)


def tree_text(tree: Tree[int], relation: str = "<=") -> str:
    """`e0 <= 16 ? 0 : (e1 <= 4 ? 1 : 2)`: what the coordinates are compared with, and numbers of alternatives.

    relation: what is written for `<=`
    """
    if isinstance(tree, Leaf):
        return str(tree.kernel)
    texts = [tree_text(each, relation) for each in (tree.left, tree.right)]
    left, right = (
        text if isinstance(each, Leaf) else f"({text})"
        for each, text in zip((tree.left, tree.right), texts, strict=True)
    )
    return f"e{tree.symbol} {relation} {tree.at_most} ? {left} : {right}"


def parse_tree(text: str) -> Tree[int]:
    """The tree that `tree_text` wrote; ValueError for anything else."""
    words = _WORD.findall(text)
    if "".join(words) != text.replace(" ", ""):
        raise ValueError("it has other words than a tree")
    tree = _parsed(words)
    if words:
        raise ValueError(f"{words[0]!r} follows the tree")
    return tree


def _parsed(words: list[str]) -> Tree[int]:
    """The tree that words begin with, which are dropped."""

    def taken(pattern: str) -> str:
        if not words or not re.fullmatch(pattern, words[0]):
            raise ValueError(f"{words[0]!r} where {pattern} is expected" if words else "it ends too early")
        return words.pop(0)

    if words[:1] == ["("]:
        taken(r"\(")
        inner = _parsed(words)
        taken(r"\)")
        return inner
    if words and words[0].isdigit():
        return Leaf(int(taken(r"\d{1,3}")))
    symbol = int(taken(r"e\d{1,3}")[1:])
    taken("<=")
    at_most = int(taken(r"-?\d{1,18}"))
    taken(r"\?")
    left = _parsed(words)
    taken(":")
    return Split(symbol, at_most, left, _parsed(words))


@dataclass(frozen=True)
class Dispatch:
    """Consecutive launches of which a call runs one.

    first, count: the launches; inputs: the numbers of the inputs that hold the extents that the tree compares; tree:
    gives which launch, numbered from the first
    """

    first: int
    count: int
    inputs: tuple[int, ...]
    tree: Tree[int]


def chosen_launches(count: int, dispatches: Sequence[Dispatch], extents: Callable[[int], int]) -> list[int]:
    """The numbers of the launches, of `count`, that a call runs; `extents` gives the value of an input."""
    left_out: set[int] = set()
    for each in dispatches:
        chosen = each.first + kernel_for(each.tree, [extents(number) for number in each.inputs])
        left_out |= set(range(each.first, each.first + each.count)) - {chosen}
    return [number for number in range(count) if number not in left_out]
