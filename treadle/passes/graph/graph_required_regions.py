"""graph-required-regions: which elements of each group's results anybody needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import isqrt
from typing import TypeAlias, cast

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    AppendOp,
    AtOp,
    ComputeOp,
    ConstantOp,
    FusedOp,
    ReduceOp,
    RequiredAttr,
    WholeOp,
    YieldOp,
)
from treadle.dialects.graph.extents import Extents, enclosing_function, extent_below, extents_of
from treadle.dialects.graph.fused import Constraint, check_required, dimension
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.index.bounds import facts_of
from treadle.index.expr import Expr, Var, const, is_inside, var
from treadle.index.reader import IndexReader, comparisons_in
from treadle.passes.graph.definition_analysis import defined, read_index, shape_of
from treadle.shapes.dynamic import ExtentExpression

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


# Facts about extents: conjunctions of `expression + constant < extent`.

Facts: TypeAlias = Mapping[tuple[Expr, int], int]
"""(an expression without its constant, the number of an extent) -> the constant, with which it is less than the extent.
The larger the constant, the more a fact says; none at all say nothing."""


def unknown_extent(number: int, count: int) -> TreadleError:
    """The error of a required region on an extent that @main, which has `count`, does not have."""
    accepted = f"extents from number 0 to {count - 1}" if count else "no required regions"
    return TreadleError(f"a required region names extent number {number}, and @main has {count}", accepted=accepted)


class ExtentArguments:
    """The arguments of @main that are extents, by their numbers."""

    def __init__(self, extents: Extents):
        self._tensors = {number: tensor for tensor, number in extents.items()}

    def __getitem__(self, number: int) -> SSAValue:
        """TreadleError for a number that there is not."""
        if number not in self._tensors:
            raise unknown_extent(number, len(self._tensors))
        return self._tensors[number]


def both(a: Facts, b: Facts) -> Facts:
    """What holds where all of a and all of b hold."""
    if not a or not b:
        return a or b
    return {key: max(facts[key] for facts in (a, b) if key in facts) for key in (*a, *b)}


def either(a: Facts, b: Facts) -> Facts:
    """What holds wherever a or b hold."""
    return {key: min(constant, b[key]) for key, constant in a.items() if key in b}


def fact(e: Expr, extent: int) -> tuple[tuple[Expr, int], int]:
    """`e < extent` as an entry of facts."""
    return (e - e.constant, extent), e.constant


def facts_from(required: object, indices: Sequence[Expr]) -> Facts:
    """What a required region on a tensor says where the element at `indices` is needed."""
    constraints = required.data if isinstance(required, RequiredAttr) else ()
    return dict(fact(constraint.at(indices), constraint.extent) for constraint in constraints)


def required_from(facts: Facts) -> RequiredAttr:
    """The attribute for facts about dimensions (`treadle.dialects.graph.fused.dimension`)."""
    return RequiredAttr.of(Constraint(e + constant, extent) for (e, extent), constant in facts.items())


class Numbering:
    """Extents of @main that differ by a constant have facts about the first of them alone, which can be compared."""

    def __init__(self, main: FuncOp | None):
        texts = None if main is None else main.attributes.get("extents")
        listed = (
            [each.data for each in texts.data if isinstance(each, StringAttr)] if isinstance(texts, ArrayAttr) else []
        )
        symbols = {word: var(word, 0, None) for text in listed for word in _NAME.findall(text)}
        found = [of_symbols(text, symbols) for text in listed]
        self._first: dict[int, tuple[int, int]] = {}
        for number, extent in enumerate(found):
            apart = ((n, (extent - other).as_int()) for n, other in enumerate(found[:number]))
            self._first[number] = next(((n, more) for n, more in apart if more is not None), (number, 0))

    def fact(self, e: Expr, extent: int) -> tuple[tuple[Expr, int], int]:
        """`e < extent` as an entry of facts."""
        first, more = self._first.get(extent, (extent, 0))
        return fact(e - more, first)

    def of_region(self, required: object, indices: Sequence[Expr]) -> Facts:
        """As `facts_from`."""
        return dict(self.fact(e + constant, extent) for (e, extent), constant in facts_from(required, indices).items())


def of_symbols(text: str, symbols: Mapping[str, Expr]) -> Expr:
    """An extent of @main, as its attribute says it, in index arithmetic."""
    value: object = ExtentExpression(text, list(symbols)).value(cast("Mapping[str, int]", symbols))
    return value if isinstance(value, Expr) else const(value)


# What facts about a read say of the tensor that is read.


def facts_of_source(facts: Facts, indices: Sequence[Expr], shape: Sequence[int]) -> Facts:
    """What holds of each element of a tensor that is read at `indices` where the facts hold, over its dimensions.

    A fact says of a source that `g < extent` if g is an expression of the source's indices that is never larger, at the
    indices that are read, than what the fact is about. Tried for g are the digits of each dimension, and of two
    dimensions that follow each other, where they have exactly the fact's value; then each dimension by itself.
    """
    transfer = _Transfer(indices, shape)
    found: dict[tuple[Expr, int], int] = {}
    for (e, extent), constant in facts.items():
        constraint = transfer.constraint(e + constant, extent)
        if constraint is not None:
            key, least = fact(constraint.index, constraint.extent)
            found[key] = max(least, found.get(key, least))
    return found


class _Transfer:
    """One read of a tensor: its indices, as expressions, and the digits that are taken of them."""

    def __init__(self, indices: Sequence[Expr], shape: Sequence[int]):
        self._indices, self._shape = indices, shape
        self._variables = [var(("index", d), 0, extent - 1) for d, extent in enumerate(shape)]
        self._read_by = {v for index in indices for v in index.vars()}

    def constraint(self, e: Expr, extent: int) -> Constraint | None:
        """What `e < extent` says of the source; None if it says nothing."""
        if not self._read_by.intersection(e.vars()):
            return None
        candidates = self._digits(e) if self._read_by.issuperset(e.vars()) else iter(())
        for digits in candidates:
            rest = (e - Constraint(digits, extent).at(self._indices)).as_int()
            if rest is not None:
                return self._telling(digits + rest, extent)
        return self._bounded(e, extent)

    def _digits(self, e: Expr) -> Iterator[Expr]:
        """Digits of the source's dimensions that may have the value of e: all quotients, then remainders of them by the
        number of values that e has."""
        lo, hi = e.range()
        count = None if lo is None or hi is None else hi - lo + 1
        whole = [(dimension(d), extent) for d, extent in enumerate(self._shape) if extent > 1]
        merged = [(a * n + b, m * n) for (a, m), (b, n) in pairwise(whole)]
        yield from (digits for digits, _ in whole)
        for digits, extent in (*whole, *merged):
            quotients = [(c, digits // c) for c in _divisors(extent) if c < extent]
            yield from (quotient for _, quotient in quotients)
            if count is not None:
                yield from (quotient % count for c, quotient in quotients if 1 < count < extent // c)

    def _bounded(self, e: Expr, extent: int) -> Constraint | None:
        """The closest of the constraints on a dimension by itself that e implies."""
        best: tuple[int, Constraint] | None = None
        for d, index in enumerate(self._indices):
            if not set(index.vars()).intersection(e.vars()):
                continue
            lo, hi = (e - index).range()
            if lo is None or hi is None:
                continue
            telling = self._telling(dimension(d) + lo, extent)
            if telling is not None and (best is None or hi - lo < best[0]):
                best = hi - lo, telling
        return None if best is None else best[1]

    def _telling(self, g: Expr, extent: int) -> Constraint | None:
        """The constraint `g < extent`, unless it holds of all elements whatever the extent, which is at least 1."""
        constraint = Constraint(g, extent)
        most = constraint.at(self._variables).range()[1]
        return constraint if most is None or most > 0 else None


@cache
def _divisors(n: int) -> list[int]:
    small = [c for c in range(1, isqrt(n) + 1) if n % c == 0]
    return sorted({*small, *(n // c for c in small)})


# Under which facts a value of a definition matters to the elements that are needed.


class Relevance:
    """The facts under which each value of a definition matters, from those under which an element is needed.

    A value that only one side of a select takes matters where that side is chosen; one that a read has instead, where
    the read does not happen. What a predicate or an unclamped index is computed from matters everywhere: an element
    that nobody needs may be computed, but must not read beyond a tensor.
    """

    def __init__(self, compute: ComputeOp, needed: Facts, extents: Extents, numbering: Numbering, reader: IndexReader):
        self._needed, self._extents, self._numbering, self._reader = needed, extents, numbering, reader
        self._known: dict[SSAValue, Facts] = {}
        self._block(compute.body.block)

    def of_read(self, at: AtOp) -> Facts:
        """The facts under which a read happens and matters."""
        facts = self._known[at.result]
        return facts if at.predicate is None else both(facts, self._given(at.predicate, True))

    def _block(self, block: Block) -> None:
        """Backwards: every use of a value is known before it."""
        for op in reversed(list(block.ops)):
            for result in op.results:
                self._known[result] = self._of_uses(result)
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)

    def _of_uses(self, value: SSAValue) -> Facts:
        found: Facts | None = None
        for use in value.uses:
            facts = self._of_use(use)
            found = facts if found is None else either(found, facts)
            if not found:
                break
        return found or {}

    def _of_use(self, use: Use) -> Facts:
        op = use.operation
        if isinstance(op, YieldOp):
            parent = op.parent_op()
            return self._known[parent.result] if isinstance(parent, ReduceOp) else self._needed
        if isinstance(op, arith.SelectOp) and use.index > 0:
            return both(self._known[op.result], self._given(op.cond, use.index == 1))
        return self._of_read(op, use.index) if isinstance(op, AtOp) else self._of_results(op)

    def _of_read(self, at: AtOp, operand: int) -> Facts:
        """Of an operand of a read: the value that it has instead, an index, or the predicate."""
        facts = self._known[at.result]
        if at.otherwise is not None and operand == len(at.operands) - 1:
            return both(facts, self._given(at.predicate, False))
        position = operand - 1
        if position >= len(at.indices):
            return {}
        assert isinstance(at.source.type, TensorType)
        inside = (0, at.source.type.get_shape()[position] - 1)
        if not is_inside(self._reader.read(at.indices[position]).range(), inside):
            return {}
        return both(facts, self._given(at.predicate, True))

    def _of_results(self, op: Operation) -> Facts:
        found: Facts | None = None
        for result in op.results:
            facts = self._known[result]
            found = facts if found is None else either(found, facts)
        return found or {}

    def _given(self, condition: SSAValue | None, holds: bool) -> Facts:
        """What a condition says of extents if it is true, or false."""
        found: Facts = {}
        if condition is None:
            return found
        for never_negative in facts_of(comparisons_in(self._reader, condition, holds)):
            for limit, extent in self._limits(never_negative):
                # limit - 1 - e >= 0 is e < limit, which is at most the extent.
                key, constant = self._numbering.fact(limit - 1 - never_negative, extent)
                found = both(found, {key: constant})
        return found

    def _limits(self, e: Expr) -> Iterator[tuple[Expr, int]]:
        """The terms of an expression that are no larger than an extent, with its number."""
        for monomial, k in e.terms:
            atom = monomial[0]
            if k != 1 or len(monomial) > 1 or not isinstance(atom, Var) or not isinstance(atom.key, SSAValue):
                continue
            extent = extent_below(atom.key, self._extents)
            if extent is not None:
                yield var(atom.key, *atom.range), extent


@dataclass(frozen=True)
class GraphRequiredRegionsPass(ModulePass):
    """Writes on every group which elements of its results are needed for those that @main's caller needs.

    ```mlir
    func.func @main(%x: tensor<8x512xf32>, %seq: tensor<i64>) -> tensor<4096xf32>
        attributes {extents = ["seq"], output_required = [#graph.required<d0 mod 512 < 0>], ...} {
      %h = graph.fused "exp" { ... } : tensor<8x512xf32>
      %y = graph.fused "reshape" { ... graph.at %h[%i / 512, %i % 512] ... } : tensor<4096xf32>
      func.return %y : tensor<4096xf32>
    }
    ```
    becomes
    ```mlir
      %h = graph.fused "exp" { ... } requires [#graph.required<d1 < 0>] : tensor<8x512xf32>
      %y = graph.fused "reshape" { ... } requires [#graph.required<d0 mod 512 < 0>] : tensor<4096xf32>
    ```
    Of a value that several read, what one of them needs is needed. What unclamped indices are computed from is needed
    everywhere. A module without extents stays as it is. Errors: an `output_required` that does not fit the results.
    """

    name = "graph-required-regions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            extents = extents_of(function)
            if extents:
                _RequiredRegions(extents, Numbering(function)).function(function)


def required_within(fused: FusedOp, value: SSAValue) -> RequiredAttr:
    """Which elements of a tensor inside of a group are needed for those that the group's required regions name."""
    main = enclosing_function(fused)
    found = _RequiredRegions({} if main is None else extents_of(main), Numbering(main))
    required_regions: Sequence[object] = (
        [None] * len(fused.outputs) if fused.required_regions is None else fused.required_regions.data
    )
    found.group(
        fused, [facts_from(each, _dimensions(r)) for each, r in zip(required_regions, fused.outputs, strict=True)]
    )
    return found.of(value)


class _RequiredRegions:
    """What the readers seen so far need of each value, on the way backwards through a function."""

    def __init__(self, extents: Extents, numbering: Numbering):
        self._extents, self._numbering = extents, numbering
        self._needed: dict[SSAValue, Facts] = {}

    def function(self, main: FuncOp) -> None:
        given = main.attributes.get("output_required")
        end = main.body.block.last_op
        assert isinstance(end, ReturnOp)
        required_regions: Sequence[object] = given.data if isinstance(given, ArrayAttr) else [None] * len(end.operands)
        if given is not None:
            _check(required_regions, end)
        for value, required in zip(end.operands, required_regions, strict=True):
            self._need(value, self._numbering.of_region(required, _dimensions(value)))
        self._block(main.body.block)

    def _need(self, value: SSAValue, facts: Facts) -> None:
        known = self._needed.get(value)
        self._needed[value] = facts if known is None else either(known, facts)

    def _block(self, block: Block) -> None:
        for op in reversed(list(block.ops)):
            if isinstance(op, FusedOp):
                self._fused(op)
            elif isinstance(op, AppendOp | ComputeOp | WholeOp):
                self._sources(op)
            elif not isinstance(op, ReturnOp | YieldOp):
                for operand in op.operands:
                    self._need(operand, {})

    def _fused(self, fused: FusedOp) -> None:
        needed = [self._needed.get(result, {}) for result in fused.outputs]
        if any(needed):
            fused.required_regions = ArrayAttr([required_from(facts) for facts in needed])
        self.group(fused, needed)

    def of(self, value: SSAValue) -> RequiredAttr:
        """What is needed of a value whose readers were all seen."""
        return required_from(self._needed.get(value, {}))

    def group(self, fused: FusedOp, needed: Sequence[Facts]) -> None:
        """What a group's members need where this is needed of its results."""
        end = fused.body.block.last_op
        assert isinstance(end, YieldOp)
        for value, facts in zip(end.values, needed, strict=True):
            self._need(value, facts)
        self._block(fused.body.block)

    def _sources(self, op: AppendOp | ComputeOp | WholeOp) -> None:
        """What an operation needs of the tensors that it reads, by its definition."""
        needed = self._needed.get(op.result, {})
        sources = list(dict.fromkeys(op.tensors() if isinstance(op, ComputeOp) else op.operands))
        computed = [x for source in sources if isinstance(c := source.owner, ComputeOp) for x in c.tensors()]
        if not needed and self._extents.keys().isdisjoint((*sources, *computed)):
            for source in sources:
                self._need(source, {})
            return
        with defined(op) as compute:
            self._reads(compute, needed)

    def _reads(self, compute: ComputeOp, needed: Facts) -> None:
        reader = IndexReader()
        facts = facts_from(required_from(needed), [read_index(reader, arg) for arg in compute.body.block.args])
        relevance = Relevance(compute, facts, self._extents, self._numbering, reader)
        for at in compute.reads():
            if _is_computed(at.source):
                indices = [read_index(reader, index) for index in at.indices]
                of_elements = facts_of_source(relevance.of_read(at), indices, shape_of(at.source))
                self._need(at.source, both(of_elements, self._limited(at)))

    def _limited(self, at: AtOp) -> Facts:
        """What holds of all elements that are read at indices which are no larger than an extent, such as the last."""
        limits = ((d, extent_below(index, self._extents)) for d, index in enumerate(at.indices))
        return dict(self._numbering.fact(dimension(d) - 1, number) for d, number in limits if number is not None)


def _is_computed(tensor: SSAValue) -> bool:
    """Whether a kernel computes a tensor: inputs and constants are there."""
    return not isinstance(tensor, BlockArgument) and not isinstance(tensor.owner, ConstantOp)


def _dimensions(tensor: SSAValue) -> list[Expr]:
    return [dimension(d) for d in range(len(shape_of(tensor)))]


def _check(required_regions: Sequence[object], end: Operation) -> None:
    try:
        check_required(required_regions, [len(shape_of(value)) for value in end.operands])
    except VerifyException as error:
        message = f"output_required: {error}"
        raise TreadleError(message, location_of(end) or "@main", "one #graph.required<...> for each result") from error
