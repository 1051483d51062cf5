"""Rules that write schedule programs: levels of tiles, tensor cores, shared reductions, fused axes, marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp
from treadle.dialects.loop.tiles import PRODUCT_K
from treadle.dialects.schedule.sampling import Size
from treadle.dialects.schedule.tiling import Role
from treadle.errors import TreadleError
from treadle.index.algebra import stride_along
from treadle.schedules.access_analysis import collapsible_suffix
from treadle.schedules.nest.nest import MOST_ACCUMULATORS
from treadle.schedules.nest.workload import Workload
from treadle.schedules.register_tile import sum_registers
from treadle.schedules.rules.draft import Draft
from treadle.schedules.rules.programs import Rule, sizes_of, thread_sizes, vector_sizes
from treadle.schedules.rules.staging import staged
from treadle.schedules.rules.templates import templates
from treadle.schedules.tiles import PRODUCT_M, PRODUCT_N
from treadle.support.extensions import watch
from treadle.target import Target, TargetKind

# Reductions that several threads, or the lanes of vectors, share: where there are few elements to compute, and each is
# the sum of many.
#
# Source: MetaSchedule (NeurIPS 2022), figure 5's Cross-Thread-Reduction and Add-RFactor; the conditions are those of
# its sources (`NeedsRFactorOrCrossThreadReduction`).

_ROWS = 8
"""Elements that a block's threads, or one thread's vectors, compute at once. Assumed, not measured, as the next one."""
_MOST_REDUCING_THREADS = 512


def cross_thread(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and with the terms of an element spread over threads of a GPU, next to one another.

    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    ```
    becomes that, and
    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    %threads_i, %threads_j = schedule.sample_tile "threads" 2 from ([1, 2, 4], [32, 64]) product 32 to 512 step 32
    %i0, %i1 = schedule.split %i by (%threads_i)
    %j0, %j1 = schedule.split %j by (%threads_j)
    schedule.arrange block(%i0) thread(%i1) loop(%j0) thread(%j1)
    ```
    """
    if not draft.target.is_cuda or draft.is_complete or not _has_few_elements(draft.workload):
        return ()
    warp = draft.target.warp_size
    after, rows, others, terms = _rows_and_terms(draft)
    lanes = [1 << n for n in range(3, 10) if 1 << n <= max(warp, after.extent(terms))]
    sizes = (sizes_of(after.extent(rows), _ROWS), lanes)
    after, (t, k) = after.sample_tile("threads", 2, sizes, (warp, _MOST_REDUCING_THREADS), step=warp, of=(rows, terms))
    after, (i0, i1) = after.split(rows, [t])
    after, (k0, k1) = after.split(terms, [k])
    return [draft, after.arrange([("block", [*others, i0]), ("thread", [i1]), ("loop", [k0]), ("thread", [k1])])]


def vector_lanes(draft: Draft) -> Sequence[Draft]:
    """The draft as it is, and with the terms of an element spread over the lanes of a CPU's vectors (rfactor), where
    they lie one after another.

    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    ```
    becomes that, and
    ```mlir
    %i, %j = schedule.axes 1 spatial, 1 reduction
    %rows = schedule.sample "rows" from [1, 2, 3, 4, 6, 8]
    %lanes = schedule.sample "lanes" from [16, 32, 64]
    %i0, %i1 = schedule.split %i by (%rows)
    %j0, %j1 = schedule.split %j by (%lanes)
    schedule.arrange block(%i0) repeat(%i1) loop(%j0) loop(%j1)
    schedule.mark vector %j1
    ```
    """
    workload, lanes = draft.workload, draft.target.lanes
    if draft.target.is_cuda or draft.is_complete or workload is None or not _has_few_elements(workload):
        return ()
    last = len(workload.extents) - 1
    if not any(read.is_term and stride_along(read.indices[-1], last) == 1 for read in workload.reads if read.indices):
        return ()
    after, rows, others, terms = _rows_and_terms(draft)
    after, count = after.sample("rows", sizes_of(after.extent(rows), _ROWS))
    after, width = after.sample("lanes", [lanes, 2 * lanes, 4 * lanes])
    after, (i0, i1) = after.split(rows, [count])
    after, (k0, k1) = after.split(terms, [width])
    after = after.arrange([("block", [*others, i0]), ("repeat", [i1]), ("loop", [k0]), ("loop", [k1])])
    return [draft, after.mark("vector", k1)]


def _has_few_elements(workload: Workload | None) -> bool:
    """Whether elements have many terms: more than there are elements, where tiles are read several times; at least a
    warp's worth elsewhere."""
    if workload is None or workload.kind is None or not workload.spatial:
        return False
    elements, terms = prod(workload.extents[: workload.spatial]), prod(workload.extents[workload.spatial :])
    return terms >= (max(32, elements) if workload.has_reuse else 32)


def _rows_and_terms(draft: Draft) -> tuple[Draft, SSAValue, list[SSAValue], SSAValue]:
    """The longest of the last two spatial axes, the other spatial ones, and the reduction as one axis."""
    draft, axes = draft.axes()
    terms = axes.reduction[0]
    if len(axes.reduction) > 1:
        draft, terms = draft.fuse(*axes.reduction)
    rows = max(axes.spatial[-2:], key=draft.extent)
    return draft, rows, [axis for axis in axes.spatial if axis is not rows], terms


# Axes taken as one before they are tiled.


def fused(draft: Draft) -> Sequence[Draft]:
    """The last spatial axes as one, as many as every read walks with one stride: vectors and warps then run across
    rows, and a tile is not cut at their ends. Where tiles are read several times, the axes as they are, too.

    ```mlir
    %i, %j, %k = schedule.axes 3 spatial, 0 reduction
    ```
    becomes, where the reads are those of `relu`,
    ```mlir
    %i, %j, %k = schedule.axes 3 spatial, 0 reduction
    %ijk = schedule.fuse %i, %j, %k
    ```
    """
    if draft.is_complete or draft.workload is None or not isinstance(draft.anchor, ComputeOp):
        return ()
    as_it_is, axes = draft.axes()
    first = collapsible_suffix(draft.anchor)
    walked = [axis for axis in axes.spatial if as_it_is.dimensions(axis)[0] >= first]
    if len(walked) < 2:
        return ()
    one, _ = as_it_is.fuse(*walked)
    return [as_it_is, one] if draft.workload.has_reuse else [one]


# How loops are printed: the innermost level as vectors, a short one unrolled.
#
# Source: MetaSchedule (NeurIPS 2022), figure 5's Parallel-Vectorize-Unroll. Parallel loops are the levels in `block`.

_UNROLLED = (0, 16, 64, 512)
"""Iterations that are unrolled, at most: MetaSchedule's. Of one convolution in groups, the nine terms of a 3 x 3 window
unrolled took 0.86 instead of 1.60 ms (two cores beside other jobs). `MOST_UNROLLED_TERMS` bounds what compilers see: of
24 random tiles of three operators GCC 12 compiled those that are unrolled in at most 5.5 s (6272 terms; 8192: 3.5 s),
others in 0.2 to 9.2 s."""


def vectorised(draft: Draft) -> Sequence[Draft]:
    """Marks the innermost level of a CPU's nest, if it is spatial and in `repeat`.

    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
    ```
    becomes
    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
    schedule.mark vector %j1
    ```
    """
    if draft.target.is_cuda or not draft.groups:
        return ()
    role, levels = draft.groups[-1]
    return [draft.mark("vector", levels[-1])] if role == "repeat" else ()


def unrolled(draft: Draft) -> Sequence[Draft]:
    """The innermost loops over the reduction unrolled up to a number of iterations that is sampled; 0 for none.

    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
    ```
    becomes
    ```mlir
    schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
    %unroll = schedule.sample "unroll" from [0, 16, 64, 512]
    schedule.unroll %unroll
    ```
    """
    if not any(role == "loop" for role, _ in draft.groups):
        return ()
    draft, limit = draft.sample("unroll", _UNROLLED)
    return [draft.unroll(limit)]


# Multi-level tiling: the axes cut into levels by a word of S and R.
#
# Source: MetaSchedule (NeurIPS 2022), figure 4 and appendix A.3, after Ansor's sketches (OSDI 2020).

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
_COLUMNS = 2 * PRODUCT_N
"""Of a product on tensor cores: both operands of 16 x 16 are loaded by one instruction each."""
_WARPS, _PRODUCTS, _PRODUCTS_DEEP, _PRODUCTS_ALONG = 8, 16, 4, 4
"""On tensor cores: warps of a block; products whose sums a warp keeps, 8 a thread each; products along the terms
between two copies, rows of 128 bytes; factors along one axis. The tiles of `matmul_mma` are among them."""


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


_PRODUCT = _Place("mma", False, "product")
"""The innermost level of the axes that tensor cores multiply."""


@dataclass
class _Tiling:
    """A draft, and the levels of its axes by their places.

    units: axes whose innermost level tensor cores multiply, and its iterations; none without them
    """

    draft: Draft
    units: Mapping[SSAValue, int]
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
    _check_word(word, "tiled")

    def rule(draft: Draft) -> Sequence[Draft]:
        if draft.is_complete or draft.workload is None or draft.workload.has_reuse != reuse:
            return ()
        if draft.workload.kind is not None and prod(draft.workload.extents[: draft.workload.spatial]) == 1:
            return ()
        kinds = word if draft.workload.kind is not None else word.replace("R", "")
        places = _places(kinds, draft.target)
        if _has_slices(places):
            return [draft, _tile(draft, places)] if _needs_slices(draft) else ()
        return [_tile(draft, places)]

    return rule


def tensorized(word: str) -> Rule:
    """The draft as it is, and as `tiled(word)` with a product on tensor cores inside of the innermost level: 16 rows,
    16 columns and the terms of one instruction. Threads of the word are warps, and tiles are counted in products.

    It applies to sums of products of two reads that tensor cores multiply exactly: of f16 or bf16, and of f32 where
    `precision = "tf32"` allows it. Reads have to be staged in shared memory by a rule that follows. Rules of `tiled`
    come behind it: they leave no draft without levels.

    ```mlir
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    ```
    becomes that, and by `tensorized("SSRRS")`
    ```mlir
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    %registers_i, %registers_j = schedule.sample_tile "registers" 2 from ([1, 2, 4], [1, 2, 3, 4]) product 1 to 16
    %threads_i, %threads_j = schedule.sample_tile "threads" 2 from ([1, 2, 4], [1, 2, 4]) product 1 to 8
    %i0, %i1, %i2, %i3 = schedule.split %i by (%threads_i, %registers_i, 16)
    %j0, %j1, %j2, %j3 = schedule.split %j by (%threads_j, %registers_j, 16)
    %depth_k = schedule.sample_tile "depth" 1 from [1, 2, 4] product 1 to 4
    %k0, %k1, %k2 = schedule.split %k by (%depth_k, 16)
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
    ```
    Source: MetaSchedule (NeurIPS 2022), appendix A.3: Use-Tensor-Core in front of Multi-Level-Tiling.
    Rejected: what `tiled` rejects.
    """
    _check_word(word, "tensorized")

    def rule(draft: Draft) -> Sequence[Draft]:
        if draft.is_complete or draft.workload is None:
            return ()
        after, units = _products(draft)
        places = _places(word, draft.target) if units else []
        if not units or (_has_slices(places) and not _needs_slices(draft)):
            return ()
        return [draft, _tile(after, places, units)]

    return rule


def _check_word(word: str, rule: str) -> None:
    if set(word) - {"S", "R"} or not word.startswith("S"):
        raise TreadleError(f"no tiling is called {word!r}", rule, "a word of S and R that begins with S")


def _has_slices(places: Sequence[_Place]) -> bool:
    """Whether blocks share elements."""
    return len(places) > 1 and places[1].role == "block"


def _products(draft: Draft) -> tuple[Draft, dict[SSAValue, int]]:
    """The axes of the rows, columns and terms that tensor cores multiply at once, and how many: of several the
    innermost ones that are long enough. None where they do not multiply what is added up."""
    workload = draft.workload
    if workload is None or workload.factors is None or not draft.target.peak_f16_tensor:
        return draft, {}
    left, right = (workload.reads[n] for n in workload.factors)
    spatial, counts = range(workload.spatial), (PRODUCT_M, _COLUMNS, PRODUCT_K[left.element])
    candidates = (
        {dim for dim in left.dims - right.dims if dim in spatial},
        {dim for dim in right.dims - left.dims if dim in spatial},
        {dim for dim in left.dims & right.dims if dim not in spatial},
    )
    after, axes = draft.axes()
    whole = {after.dimensions(axis): axis for axis in (*axes.spatial, *axes.reduction)}
    units: dict[SSAValue, int] = {}
    for dims, count in zip(candidates, counts, strict=True):
        dim = max(dims, key=lambda dim: (min(workload.extents[dim], count), dim), default=-1)
        axis = whole.get(range(dim, dim + 1))
        if axis is None:
            return draft, {}
        units[axis] = count
    return after, units


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


def _tile(draft: Draft, places: Sequence[_Place], units: Mapping[SSAValue, int] | None = None) -> Draft:
    """Samples, splits and arranges."""
    draft, axes = draft.axes()
    state = _Tiling(draft, units or {})
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
    return state.draft.arrange([*groups, ("mma", [state.levels[axis][_PRODUCT] for axis in state.units])])


def _cut(state: _Tiling, axes: Sequence[SSAValue], places: Sequence[_Place]) -> None:
    """Splits the axes of one kind into as many levels as there are places; short ones stay whole."""
    if not axes:
        return
    others = [axis for axis in axes if axis not in state.units and state.draft.extent(axis) > 1]
    cut = {*state.units, *others[-(_TILED_AXES - sum(axis in state.units for axis in axes)) :]}
    long = [axis for axis in axes if axis in cut]
    whole = next((place for place in places if not (place.is_reduction and place.role == "block")), places[0])
    state.levels |= {axis: {whole: axis} for axis in axes}
    factors: dict[str, Sequence[Size]] = {}
    extents = [ceil(state.draft.extent(axis) / state.units.get(axis, 1)) for axis in long]
    left = extents
    for place in reversed(places[1:] if long else ()):
        sizes = _sizes(place, extents, left, state)
        state.draft, factors[place.label] = _sampled(state, place, long, sizes, factors)
        left = [ceil(extent / each[len(each) // 2]) for extent, each in zip(left, sizes, strict=True)]
    for n, axis in enumerate(long):
        inner = {place: factors[place.label][n] for place in places[1:]}
        if axis in state.units:
            inner[_PRODUCT] = state.units[axis]
        if inner:
            state.draft, levels = state.draft.split(axis, list(inner.values()))
            state.levels[axis] = dict(zip((places[0], *inner), levels, strict=True))


def _sizes(place: _Place, extents: Sequence[int], left: Sequence[int], state: _Tiling) -> list[list[int]]:
    """What each factor of a level may be; `left`: what the levels inside of it usually leave of the extents, so that
    few draws overhang by much."""
    target = state.draft.target
    if place.label == "steps":
        return [sorted({ceil(extent / count) for count in _SLICES}) for extent in left]
    if state.units:
        return [sizes_of(extent, min(_PRODUCTS_ALONG, rest)) for extent, rest in zip(extents, left, strict=True)]
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
    state: _Tiling,
    place: _Place,
    axes: Sequence[SSAValue],
    sizes: Sequence[Sequence[int]],
    inner: Mapping[str, Sequence[Size]],
) -> tuple[Draft, Sequence[Size]]:
    """The factors of one level, given those of the levels inside of it; 1 where nothing else is worth trying."""
    draft, target, bounds, step, beside = state.draft, state.draft.target, (1, _OUTER), 1, list[SSAValue]()
    terms, sums = _DEPTH, MOST_ACCUMULATORS
    if target.is_cuda:
        terms, sums = (_PRODUCTS_DEEP, _PRODUCTS) if state.units else (_GPU_DEPTH, _GPU_ACCUMULATORS)
    if all(each == [1] for each in sizes):
        return draft, [1] * len(sizes)
    if place.label == "steps":
        bounds = (1, max(sizes[-1]))
    elif place.is_reduction:
        bounds, beside = (1, terms), _params(inner)
    elif place.role == "thread" and state.units:
        bounds = (1, _WARPS)
    elif place.role == "thread":
        bounds, step = (target.warp_size, _MOST_THREADS), target.warp_size
    elif place.label == "registers" and not target.is_cuda:
        bounds = (1, sum_registers(target) * sizes[-1][0])
    elif place.accumulates:
        bounds = (1, sums)
        beside = _params({label: factors for label, factors in inner.items() if label != "threads"})
    return draft.sample_tile(place.label, len(axes), sizes, bounds, step=step, beside=beside, of=axes)


def _params(factors: Mapping[str, Sequence[Size]]) -> list[SSAValue]:
    return [factor for each in factors.values() for factor in each if not isinstance(factor, int)]


# The rules that a search uses unless it is given others.

CPU: tuple[Rule, ...] = (
    templates,
    fused,
    vector_lanes,
    tiled("SSRSRS"),
    tiled("SSRS", reuse=False),
    staged("register", alone=True),
    vectorised,
    unrolled,
)
"""For CPUs: the words are MetaSchedule's; a tile that is not read twice needs no level between two reduction loops."""
CUDA: tuple[Rule, ...] = (
    templates,
    fused,
    cross_thread,
    tensorized("SRSRRS"),
    tensorized("SSRRS"),
    tiled("SRSSRRSRS"),
    tiled("SSSRRSRS"),
    tiled("SSSR", reuse=False),
    staged("shared", ahead=True),
    unrolled,
)
"""For GPUs. Nests on tensor cores are among them since the best of 400 random ones is predicted to take 0.70 to 1.30
times as long as the best of all of `matmul_mma`, 0.93 in the median of eight products on sm_80
(`python -m benchmarks.composition`)."""


@dataclass(frozen=True)
class OwnRule:
    """A rule that a program has registered: see `treadle.scheduling.register_rule`."""

    rule: Rule
    kind: TargetKind
    last: bool


OWN_RULES: dict[str, OwnRule] = {}
"""Those of the program, by name."""
watch(__name__, OWN_RULES)


def default_rules(target: Target) -> tuple[Rule, ...]:
    """The rules for a target: Treadle's, and those that the program has registered behind `templates` or at the end."""
    first, *rest = CUDA if target.is_cuda else CPU
    own = [each for each in OWN_RULES.values() if each.kind == target.kind]
    begins, ends = ([each.rule for each in own if each.last is last] for last in (False, True))
    return first, *begins, *rest, *ends
