"""Multi-level tiling: the axes cut into levels by a word of S and R.

Source: MetaSchedule (NeurIPS 2022), figure 4 and appendix A.3, after Ansor's sketches (OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from xdsl.ir import SSAValue

from treadle.dialects.schedule.sampling import Size
from treadle.dialects.schedule.tiling import Role
from treadle.errors import TreadleError
from treadle.index.algebra import depends_on
from treadle.schedules.nest.legality import MOST_ACCUMULATORS
from treadle.schedules.nest.workload import Workload
from treadle.schedules.rules.draft import Draft
from treadle.schedules.rules.programs import Rule
from treadle.schedules.rules.sizes import sizes_of, thread_sizes, vector_sizes
from treadle.target import Target

_TILED_AXES = 3
"""Axes of a kind that are cut, the innermost ones longer than 1; others stay whole: a tile of three axes is what
convolutions have, and one more would multiply supports by ten."""
_OUTER, _DEPTH, _GPU_DEPTH = 64, 512, 32
"""The largest products of a CPU's serial tile, and of the iterations inside of the outermost reduction loop. Assumed,
not measured, as the next ones."""
_SLICES, _LEAST_SLICE, _USUAL_TILE = (2, 3, 4, 6, 8, 12, 16), 256, 64 * 64
"""Blocks that share an element; terms of a slice, at least, and elements of a block, by which it is judged whether that
is worth while: the first as in `matmul_mma`, the others assumed, not measured."""
_GPU_ACCUMULATORS, _MOST_THREADS = 128, 256
"""Of a thread, which has 255 registers; of a block, so that several are resident."""


@dataclass(frozen=True)
class _Place:
    """One letter of a word: the role of its levels, and the sample of their factors; the first S and R have none, they
    are what is left of the axes."""

    role: Role
    is_reduction: bool
    label: str = ""

    @property
    def accumulates(self) -> bool:
        """Whether its iterations are accumulated at once."""
        return not self.is_reduction and self.label.startswith(("virtual", "tile", "registers"))


@dataclass
class _Tiling:
    """A draft, and the levels of its axes by their places."""

    draft: Draft
    levels: dict[SSAValue, dict[_Place, SSAValue]] = field(default_factory=dict[SSAValue, dict[_Place, SSAValue]])


def tiled(word: str, *, reuse: bool = True) -> Rule:
    """Cuts every axis as a word of S and R says, and arranges the levels: one S is a level of all spatial axes, one R
    of all reduction axes. Without a reduction, the word's R are left out.

    The first S are blocks. For a GPU the last S in front of the first loop are threads, those in between are virtual
    threads, and an R behind the first S stands among the blocks, too, which then share elements (split-k): such a word
    gives an alternative, where the reduction is one long axis and there are fewer blocks than fill the GPU.
    Factors of one level are sampled together, under a bound of their product that the hardware gives.

    reuse: whether the rule is for definitions whose reads leave some axis out, so that a tile is read several times
        (matrix products, convolutions), or for the others (elementwise operators, pooling, reductions to more than
        one element)

    ```mlir
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    ```
    becomes, by `tiled("SRS")`,
    ```mlir
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    %registers_i, %registers_j = schedule.sample_tile "registers" 2 from ([1, 2, 4, 8], [16, 32]) product 1 to 512
    %i0, %i1 = schedule.split %i by (%registers_i)
    %j0, %j1 = schedule.split %j by (%registers_j)
    schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
    ```
    Rejected: another letter, a word that does not begin with S, and for a GPU with fewer than two S in front of the
    first loop.
    """
    if set(word) - {"S", "R"} or not word.startswith("S"):
        raise TreadleError(f"no tiling is called {word!r}", "tiled", "a word of S and R that begins with S")

    def rule(draft: Draft) -> Sequence[Draft]:
        if draft.is_complete or draft.workload is None or has_reuse(draft.workload) != reuse:
            return ()
        if draft.workload.kind is not None and prod(draft.workload.extents[: draft.workload.spatial]) == 1:
            return ()
        kinds = word if draft.workload.kind is not None else word.replace("R", "")
        places = _places(kinds, draft.target)
        if places[1:] and places[1].role == "block":
            return [draft, _tile(draft, places)] if _needs_slices(draft) else ()
        return [_tile(draft, places)]

    return rule


def has_reuse(workload: Workload) -> bool:
    """Whether some term does not depend on some spatial axis, and so serves several elements of the result.

    MetaSchedule's condition for multi-level tiling (`NeedsMultiLevelTiling` in its sources).
    """
    wide = [dim for dim in range(workload.spatial) if workload.extents[dim] > 1]
    terms = [read for read in workload.reads if read.is_term]
    return any(not any(depends_on(index, dim) for index in read.indices) for read in terms for dim in wide)


def _needs_slices(draft: Draft) -> bool:
    """Whether blocks of usual tiles leave multiprocessors idle, and the reduction is one axis that is worth cutting."""
    workload = draft.workload
    assert workload is not None
    blocks = prod(workload.extents[: workload.spatial]) / _USUAL_TILE
    long = [extent for extent in workload.extents[workload.spatial :] if extent > 1]
    return blocks < draft.target.multiprocessors and len(long) == 1 and long[0] >= 2 * _LEAST_SLICE


def _places(word: str, target: Target) -> list[_Place]:
    """The role of each letter."""
    slices = target.is_cuda and word.startswith("SR")
    first = word.find("R", 2 if slices else 0)
    before = len(word) if first < 0 else first
    if target.is_cuda and word[:before].count("S") < 2:
        accepted = "two for a GPU: blocks and threads"
        raise TreadleError(f"{word} has {word[:before].count('S')} S before the first loop", "tiled", accepted)
    places: list[_Place] = []
    for n, letter in enumerate(word):
        rest = word[n + 1 :]
        if n == 0 or (n == 1 and slices):
            places.append(_Place("block", letter == "R"))
        elif letter == "R":
            outermost = "R" not in word[:n]
            places.append(_Place("loop", True, "" if outermost else "steps" if n == first else "depth"))
        elif target.is_cuda and n == before - 1:
            places.append(_Place("thread", False, "threads"))
        elif "S" not in rest:
            places.append(_Place("repeat", False, "registers"))
        else:
            outside = "virtual" if target.is_cuda else "outer"
            places.append(_Place("repeat", False, outside if n < before else "tile"))
    return [_numbered(place, n, places) for n, place in enumerate(places)]


def _numbered(place: _Place, position: int, places: Sequence[_Place]) -> _Place:
    """With a label of its own: levels of one name are numbered, outermost first."""
    same = [n for n, each in enumerate(places) if place.label and each.label == place.label]
    return replace(place, label=f"{place.label} {same.index(position)}") if len(same) > 1 else place


def _tile(draft: Draft, places: Sequence[_Place]) -> Draft:
    """Samples, splits and arranges."""
    draft, axes = draft.axes()
    state = _Tiling(draft)
    for is_reduction in (False, True):
        own = [place for place in places if place.is_reduction == is_reduction]
        _cut(state, axes.of(is_reduction), own)
    groups: list[tuple[Role, list[SSAValue]]] = []
    for place in places:
        levels = [state.levels[axis][place] for axis in axes.of(place.is_reduction) if place in state.levels[axis]]
        if groups and groups[-1][0] == place.role == "block":
            groups[-1][1].extend(levels)
        else:
            groups.append((place.role, levels))
    return state.draft.arrange(groups)


def _cut(state: _Tiling, axes: Sequence[SSAValue], places: Sequence[_Place]) -> None:
    """Splits the axes of one kind into as many levels as there are places; short ones stay whole."""
    if not axes:
        return
    long = [axis for axis in axes if state.draft.extent(axis) > 1][-_TILED_AXES:]
    whole = next((place for place in places if not (place.is_reduction and place.role == "block")), places[0])
    state.levels |= {axis: {whole: axis} for axis in axes}
    if not long or len(places) < 2:
        return
    factors: dict[str, Sequence[Size]] = {}
    extents = [state.draft.extent(axis) for axis in long]
    left = extents
    for place in reversed(places[1:]):
        sizes = _sizes(place, extents, left, state.draft.target)
        state.draft, factors[place.label] = _sampled(state.draft, place, long, sizes, factors)
        left = [ceil(extent / each[len(each) // 2]) for extent, each in zip(left, sizes, strict=True)]
    for n, axis in enumerate(long):
        state.draft, levels = state.draft.split(axis, [factors[place.label][n] for place in places[1:]])
        state.levels[axis] = dict(zip(places, levels, strict=True))


def _sizes(place: _Place, extents: Sequence[int], left: Sequence[int], target: Target) -> list[list[int]]:
    """What each factor of a level may be; `left`: what the levels inside of it usually leave of the extents, so that
    few draws overhang by much."""
    if place.label == "steps":
        return [sorted({ceil(extent / count) for count in _SLICES}) for extent in left]
    most = 8 if place.accumulates else 16
    if place.is_reduction:
        most = _GPU_DEPTH if target.is_cuda else _DEPTH
    elif place.role == "thread":
        most = 64
    elif place.label == "registers" and not target.is_cuda:
        most = 16
    sizes = [sizes_of(extent, min(most, rest)) for extent, rest in zip(extents, left, strict=True)]
    if place.role == "thread":
        sizes[-1] = thread_sizes(left[-1], target)
    elif place.label == "registers" and not target.is_cuda:
        sizes[-1] = vector_sizes(extents[-1], target)
    return sizes


def _sampled(
    draft: Draft,
    place: _Place,
    axes: Sequence[SSAValue],
    sizes: Sequence[Sequence[int]],
    inner: Mapping[str, Sequence[Size]],
) -> tuple[Draft, Sequence[Size]]:
    """The factors of one level, given those of the levels inside of it; 1 where nothing else is worth trying."""
    target, bounds, step, beside = draft.target, (1, _OUTER), 1, list[SSAValue]()
    if all(each == [1] for each in sizes):
        return draft, [1] * len(sizes)
    if place.label == "steps":
        bounds = (1, max(sizes[-1]))
    elif place.is_reduction:
        bounds, beside = (1, _GPU_DEPTH if target.is_cuda else _DEPTH), _params(inner)
    elif place.role == "thread":
        bounds, step = (target.warp_size, _MOST_THREADS), target.warp_size
    elif place.label == "registers" and not target.is_cuda:
        bounds = (1, target.vector_registers * sizes[-1][0])
    elif place.accumulates:
        bounds = (1, _GPU_ACCUMULATORS if target.is_cuda else MOST_ACCUMULATORS)
        beside = _params({label: factors for label, factors in inner.items() if label != "threads"})
    return draft.sample_tile(place.label, len(axes), sizes, bounds, step=step, beside=beside, of=axes)


def _params(factors: Mapping[str, Sequence[Size]]) -> list[SSAValue]:
    return [factor for each in factors.values() for factor in each if not isinstance(factor, int)]


__all__ = ["has_reuse", "tiled"]
