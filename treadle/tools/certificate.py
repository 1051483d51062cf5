"""A certificate of an artifact's dispatch: every point of its range is served by exactly one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.artifact import MODULE, Artifact
from treadle.backends.c_like.folding import written_buffers
from treadle.backends.program import read_program
from treadle.compile_request import read_module
from treadle.decision_tree import Box, boxes, kernel_for, tree_text
from treadle.dialects.cuda import KernelOp
from treadle.dialects.dispatch_tree import PredictedAttr
from treadle.dialects.host import BufferOp, DispatchOp, LaunchOp
from treadle.dynamic_shapes import ExtentExpression
from treadle.errors import TreadleError
from treadle.shapes import Dim

_INTEGERS = (-(1 << 63), (1 << 63) - 1)
"""The values of an extent, which is an i64."""


@dataclass(frozen=True)
class Served:
    """One leaf: the kernel, and the least and greatest value of each extent with which a call comes here."""

    kernel: str
    extents: tuple[tuple[int, int], ...]

    def serves(self, extents: Sequence[int]) -> bool:
        """Whether a call with these extents comes here."""
        return all(low <= extent <= high for extent, (low, high) in zip(extents, self.extents, strict=True))


@dataclass(frozen=True)
class Foreseen:
    """A call that was predicted, or measured by a search.

    kernel: the number of the one that it takes; seconds: of each kernel; best: of all micro-kernels that there were
    """

    extents: tuple[int, ...]
    weight: float
    kernel: int
    seconds: tuple[float, ...]
    best: float

    @property
    def loss(self) -> float:
        """The part of the best micro-kernel's time that the call takes longer."""
        return self.seconds[self.kernel] / self.best - 1


@dataclass(frozen=True)
class Losses:
    """What some calls lose, the worst and the mean by their weights."""

    points: int
    worst: float
    mean: float

    @classmethod
    def of(cls, points: Sequence[Foreseen]) -> Losses | None:
        """None without calls."""
        if not points:
            return None
        total = sum(point.weight for point in points)
        weights = [point.weight / total if total else 1 / len(points) for point in points]
        mean = sum(weight * point.loss for weight, point in zip(weights, points, strict=True))
        return cls(len(points), max(point.loss for point in points), mean)


@dataclass(frozen=True)
class Certificate:
    """One dispatch, proved. names: of the extents; kernels: by the numbers of the tree; points: calls that were
    predicted."""

    tree: str
    names: tuple[str, ...]
    kernels: tuple[str, ...]
    leaves: tuple[Served, ...]
    points: tuple[Foreseen, ...]

    def at(self, leaf: Served) -> list[Foreseen]:
        """The predicted calls that come to a leaf."""
        return [point for point in self.points if leaf.serves(point.extents)]


def certify(artifact: Artifact) -> list[Certificate]:
    """The certificate of each place where a call takes one of several kernels, in order.

    Proved, for all values of the extents, of which the range's are some: the leaves' boxes are disjoint and cover all
    values; each leaf names a kernel that the module has; the kernels of a dispatch write the same tensors; a CUDA
    program's launcher has the same trees. That each kernel computes what is demanded is not proved anew: every
    alternative is the whole group, of which `loop-trim` drops stores of elements that are not demanded, and no others.

    TreadleError that names the place where one of this does not hold, or where a file is missing or changed.
    """
    where = str(artifact.folder / MODULE)
    module = read_module(artifact.module_text(), where)
    manifest = artifact.manifest
    program = read_program(module)
    if (program.symbols, program.extents) != (manifest.symbols, manifest.extents):
        raise TreadleError("the module has another range than the manifest", where, "the range of the manifest")
    if manifest.kind == "cuda" and program.dispatches != manifest.dispatches:
        raise TreadleError("the launcher has other trees than the module", where, "the manifest's dispatches")
    ranges = [_range(text, manifest.symbols) for text in manifest.extents]
    kernels = _kernels(module)
    found: list[Certificate] = []
    for number, op in enumerate(op for op in module.walk() if isinstance(op, DispatchOp)):
        found.append(_certificate(op, kernels, manifest.extents, ranges, f"{where}, dispatch {number}"))
    return found


def kernels_of_every_call(artifact: Artifact) -> list[str]:
    """The kernels that no dispatch chooses, each once, in the order in which a call runs them."""
    module = read_module(artifact.module_text(), str(artifact.folder / MODULE))
    launches = [op for op in module.walk() if isinstance(op, LaunchOp) and not isinstance(op.parent_op(), DispatchOp)]
    return list(dict.fromkeys(launch.kernel.string_value() for launch in launches))


def _certificate(
    op: DispatchOp,
    kernels: dict[str, Block],
    names: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    where: str,
) -> Certificate:
    tree, count = op.tree.data, len(op.extents)
    check_partition([_sides(box, count) for _, box in boxes(tree)], count, where)
    launches = [each for each in op.launches.block.ops if isinstance(each, LaunchOp)]
    _check_kernels(launches, kernels, where)
    inside = dict(enumerate(ranges))
    leaves = [Served(launches[kernel].kernel.string_value(), _sides(box, count)) for kernel, box in boxes(tree, inside)]
    reached = tuple(leaf for leaf in leaves if all(low <= high for low, high in leaf.extents))
    symbols = tuple(launch.kernel.string_value() for launch in launches)
    return Certificate(tree_text(tree), tuple(names), symbols, reached, _foreseen(op))


def check_partition(leaves: Sequence[Sequence[tuple[int, int]]], extents: int, where: str) -> None:
    """TreadleError unless boxes are disjoint and cover all values of so many extents.

    Disjoint boxes cover a space just if their sizes add up to its size.
    """
    for (n, a), (m, b) in combinations(enumerate(leaves), 2):
        if all(max(x[0], y[0]) <= min(x[1], y[1]) for x, y in zip(a, b, strict=True)):
            raise TreadleError(f"leaves {n} and {m} both serve a point", where, "leaves that are disjoint")
    total = (_INTEGERS[1] - _INTEGERS[0] + 1) ** extents
    if sum(prod(high - low + 1 for low, high in leaf) for leaf in leaves) != total:
        raise TreadleError("no leaf serves some points", where, "leaves that cover the range")


def _sides(box: Box, extents: int) -> tuple[tuple[int, int], ...]:
    """The least and the greatest value of each extent in a box."""
    sides = [box.get(n, (None, None)) for n in range(extents)]
    low, high = _INTEGERS
    return tuple((low if a is None else a, high if b is None else b) for a, b in sides)


def _check_kernels(launches: Sequence[LaunchOp], kernels: dict[str, Block], where: str) -> None:
    """TreadleError unless all launches have a kernel, and write the same tensors."""
    written: list[set[SSAValue]] = []
    for launch in launches:
        symbol = launch.kernel.string_value()
        if symbol not in kernels:
            raise TreadleError(f"there is no kernel @{symbol}", where, sorted(f"@{name}" for name in kernels))
        block = kernels[symbol]
        stored = written_buffers(block)
        arguments = zip(block.args, launch.buffers, strict=False)
        written.append({buffer for argument, buffer in arguments if argument in stored and not _is_scratch(buffer)})
    if any(each != written[0] for each in written) or not written[0]:
        raise TreadleError("the kernels write different tensors", where, "alternatives of one group")


def _is_scratch(buffer: SSAValue) -> bool:
    """Whether only one launch knows a buffer of temporary memory."""
    op = buffer.owner
    return isinstance(op, BufferOp) and op.kind.data in ("arena", "zeroed") and len(list(buffer.uses)) == 1


def _kernels(module: ModuleOp) -> dict[str, Block]:
    """The body of each kernel, by its symbol."""
    found: dict[str, Block] = {}
    for op in module.ops:
        body = _body(op)
        if body is not None:
            name = op.properties["sym_name"]
            found[str(name).strip('"')] = body
    return found


def _body(op: Operation) -> Block | None:
    if isinstance(op, KernelOp) or (isinstance(op, func.FuncOp) and op.body.blocks and op.sym_name.data != "main"):
        return op.regions[0].block
    return None


def _range(text: str, symbols: Sequence[Dim]) -> tuple[int, int]:
    """The values of an extent at the corners of the range, between which those of a monotone expression lie."""
    expression = ExtentExpression(text, [dim.name for dim in symbols])
    corners = product(*((dim.least, dim.greatest) for dim in symbols))
    values = [expression.value(dict(zip([d.name for d in symbols], each, strict=True))) for each in corners]
    return min(values), max(values)


def _foreseen(op: DispatchOp) -> tuple[Foreseen, ...]:
    """The calls that the decision keeps predictions of."""
    predicted = op.predicted.data if isinstance(op.predicted, PredictedAttr) else ()
    return tuple(
        Foreseen(each.extents, each.weight, kernel_for(op.tree.data, each.extents), each.seconds[:-1], each.seconds[-1])
        for each in predicted
    )


__all__ = ["Certificate", "Foreseen", "Losses", "Served", "certify", "check_partition", "kernels_of_every_call"]
