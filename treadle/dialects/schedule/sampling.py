"""Instructions that leave a decision open: one value of several, or factors with a bounded product."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from operator import mul
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, IntegerType, StringAttr, f64, i64
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule.attributes import Choice, choice_attribute, choice_text, choice_value
from treadle.dialects.syntax import COUNT, Clause
from treadle.errors import TreadleError

# What the instructions of a schedule program work on: axes of an iteration space, and sampled parameters.


@irdl_attr_definition
class AxisType(ParametrizedAttribute, TypeAttribute):
    """A dimension of the anchor, or one level of it: `!schedule.axis`."""

    name = "schedule.axis"


@irdl_attr_definition
class ParamType(ParametrizedAttribute, TypeAttribute):
    """A value that a search decides: `!schedule.param`."""

    name = "schedule.param"


AXIS = AxisType()
PARAM = ParamType()


# Lists of numbers of which some are sampled: `(%t, 4, %r)`, kept as operands and an array with -1 for each of them.

SAMPLED = -1
MOST_RESULTS = 64
"""Of one operation, given by a number: two for each dimension that a tensor may have."""
Size: TypeAlias = int | SSAValue
"""A number, or the parameter that holds it."""


def sizes_attribute(sizes: Sequence[Size]) -> DenseArrayBase[IntegerType]:
    """The array of the numbers."""
    numbers = [size if isinstance(size, int) else SAMPLED for size in sizes]
    return DenseArrayBase.from_list(i64, numbers)


def sampled(sizes: Sequence[Size]) -> list[SSAValue]:
    """The parameters, in order."""
    return [size for size in sizes if not isinstance(size, int)]


def joined(numbers: DenseArrayBase[IntegerType], parameters: Sequence[SSAValue]) -> list[Size]:
    """The list, from what an operation keeps of it."""
    left = iter(parameters)
    return [next(left) if number == SAMPLED else number for number in numbers.iter_values()]


def values_of(sizes: Sequence[Size], decisions: Mapping[SSAValue, int]) -> list[int]:
    """The numbers, given what the parameters were decided to be. KeyError for one that was not."""
    return [size if isinstance(size, int) else decisions[size] for size in sizes]


def parse_size(parser: Parser) -> Size:
    """`4` or `%t`."""
    unresolved = parser.parse_optional_unresolved_operand()
    if unresolved is not None:
        return parser.resolve_operand(unresolved, PARAM)
    return parser.parse_integer(allow_negative=False)


def parse_count(parser: Parser) -> int:
    """The number of some results, at most `MOST_RESULTS`."""
    start = parser.pos
    count = parser.parse_integer(allow_negative=False)
    if count > MOST_RESULTS:
        parser.raise_error(f"{count} results, at most {MOST_RESULTS} are accepted", start, parser.pos)
    return count


def print_size(printer: Printer, size: Size) -> None:
    """`4` or `%t`."""
    if isinstance(size, int):
        printer.print_string(str(size))
    else:
        printer.print_ssa_value(size)


# The values that a sample of factors may take, as a finite, ordered set.

Factors: TypeAlias = tuple[int, ...]


MOST_LISTS = 2**16
"""Lists of factors that are enumerated of one sample. The most that a sample of Treadle's own rules has is 131
(`tests/schedules/rules`); four divisors of 720 with a product up to 720 are 13,881."""


@lru_cache(maxsize=4096)
def factor_support(sizes: tuple[Factors, ...], least: int, most: int, step: int, beside: int) -> tuple[Factors, ...]:
    """Every list of factors, the last one changing fastest.

    sizes:  what each factor may be, ascending
    The product, times `beside`, is from `least` to `most` and a multiple of `step`. A search asks for the same supports
    again and again, hence the cache. TreadleError where more than `MOST_LISTS` lists are within `most`.
    """
    # What the factors behind each level, and what stands beside, multiply at least.
    behind = list(accumulate((choices[0] for choices in reversed(sizes)), mul, initial=beside))[-2::-1]
    found: list[tuple[Factors, int]] = [((), 1)]
    for choices, rest in zip(sizes, behind, strict=True):
        counts = [bisect_right(choices, most, key=(product * rest).__mul__) for _, product in found]
        _check_number(sum(counts))
        found = [
            ((*head, size), product * size)
            for (head, product), count in zip(found, counts, strict=True)
            for size in choices[:count]
        ]
    products = ((factors, product * beside) for factors, product in found)
    return tuple(factors for factors, product in products if product >= least and product % step == 0)


def _check_number(lists: int) -> None:
    if lists > MOST_LISTS:
        raise TreadleError(
            f"{lists} lists of factors or more are within the bound, {lists - MOST_LISTS} too many",
            accepted=f"at most {MOST_LISTS}: fewer factors, fewer sizes or a lower bound",
        )


@irdl_op_definition
class SampleOp(IRDLOperation):
    """One of some values: numbers, switches, words, or lists of numbers.

    ```mlir
    %w = schedule.sample "vector" from [1, 2, 4] taken 4
    %p = schedule.sample "pack" from [true, false] weights [0.75, 0.25]
    ```
    `taken` is the decision; without it the program is open. Weights say how likely each value is drawn; without them
    all are alike. Rejected: no values, values of several kinds or twice, `taken` not among them, weights of another
    length, or none above 0.
    """

    name = "schedule.sample"
    label = prop_def(StringAttr)
    values = prop_def(ArrayAttr)
    weights = opt_prop_def(ArrayAttr)
    taken = opt_prop_def(Attribute)
    param = result_def(ParamType)
    traits = traits_def(Pure())

    def __init__(
        self, label: str, values: Sequence[Choice], weights: Sequence[float] = (), taken: Choice | None = None
    ):
        properties = {
            "label": StringAttr(label),
            "values": ArrayAttr([choice_attribute(value) for value in values]),
            "weights": ArrayAttr([FloatAttr(float(weight), f64) for weight in weights]) if weights else None,
            "taken": None if taken is None else choice_attribute(taken),
        }
        super().__init__(properties=properties, result_types=[PARAM])

    @property
    def support(self) -> tuple[Choice, ...]:
        """The values, in order."""
        return tuple(choice_value(value) for value in self.values)

    @property
    def likely(self) -> tuple[float, ...]:
        """The weights, in order; empty where all values are alike."""
        return tuple(weight.value.data for weight in self.weights or () if isinstance(weight, FloatAttr))

    @property
    def decision(self) -> Choice | None:
        """The value that was taken."""
        return None if self.taken is None else choice_value(self.taken)

    def verify_(self) -> None:
        where = f"sample {self.label.data!r}"
        try:
            support, decision = self.support, self.decision
        except ValueError as error:
            raise VerifyException(f"{where}: {error}") from error
        kinds = {type(value).__name__ for value in support}
        if len(kinds) != 1:
            raise VerifyException(f"{where} has values of {len(kinds)} kinds: expected one")
        if len(set(support)) != len(support):
            raise VerifyException(f"{where} has a value twice")
        if self.taken is not None and self.taken not in self.values.data:
            assert decision is not None
            listed = ", ".join(map(choice_text, support))
            raise VerifyException(f"{where} takes {choice_text(decision)}: expected one of {listed}")
        weights = self.likely
        if self.weights is not None and (len(weights) != len(support) or min(weights) < 0 or not sum(weights) > 0):
            raise VerifyException(f"{where} needs {len(support)} weights from 0 upwards, not all 0")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.label.data)
        printer.print_string(f" from [{', '.join(map(choice_text, self.support))}]")
        if self.weights is not None:
            printer.print_string(" weights [")
            weights = (weight.value.data for weight in self.weights if isinstance(weight, FloatAttr))
            printer.print_string(", ".join(map(repr, weights)) + "]")
        if self.decision is not None:
            printer.print_string(f" taken {choice_text(self.decision)}")

    @classmethod
    def parse(cls, parser: Parser) -> SampleOp:
        label = parser.parse_str_literal()
        parser.parse_keyword("from")
        values = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_choice(parser))
        weights: list[float] = []
        if parser.parse_optional_keyword("weights"):
            weights = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: float(parser.parse_number()))
        taken = parse_choice(parser) if parser.parse_optional_keyword("taken") else None
        return cls(label, values, weights, taken)


@irdl_custom_directive
class FactorLists(CustomDirective):
    """How many factors there are, and what all or each of them may be: `2 from [1, 2]`, `2 from ([1, 2], [16, 32])`."""

    params: TypeDirective
    sizes: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        def parse_list() -> DenseArrayBase[IntegerType]:
            sizes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            return DenseArrayBase.from_list(i64, sizes)

        self.params.set(state, [PARAM] * parse_count(parser))
        parser.parse_keyword("from")
        lists = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parse_list)
        self.sizes.set(state, ArrayAttr([parse_list()] if lists is None else lists))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(op, SampleTileOp)
        state.print_whitespace(printer)
        lists = ", ".join(map(str, op.lists))
        printer.print_string(f"{len(op.params)} from {lists if len(op.lists) == 1 else f'({lists})'}")


@irdl_op_definition
class SampleTileOp(IRDLOperation):
    """Some factors, each of a list, whose product lies between bounds: tiles that the hardware limits.

    ```mlir
    %ti, %tj = schedule.sample_tile "threads" 2 from [1, 2, 4, 8, 16, 32] product 64 to 512 step 32 taken [8, 16]
    %ri, %rj = schedule.sample_tile "registers" 2 from [1, 2, 3] divisors of %i beside (%vi) product 4 to 128
    %xi, %xj = schedule.sample_tile "tile" 2 from ([1, 2, 3], [16, 32]) product 16 to 64
    ```
    The list is the same for all factors, or one for each. The product counts what stands `beside`, too, and is a
    multiple of `step`. `divisors of` adds those of an axis's extent to each list. The factors are those of several axes
    at one level, or of one axis at several levels (MetaSchedule's Sample-Tile). Rejected: bounds that no product lies
    in, factors below 1, an empty list, a number of lists that is not that of the factors, `taken` out of the support,
    more lists of factors than can be enumerated.
    """

    name = "schedule.sample_tile"
    label = prop_def(StringAttr)
    sizes = prop_def(ArrayAttr[DenseArrayBase[IntegerType]])
    least = prop_def(COUNT)
    most = prop_def(COUNT)
    step = prop_def(COUNT, default_value=IntegerAttr(1, i64))
    taken = opt_prop_def(DenseArrayBase.constr(i64))
    axis = opt_operand_def(AxisType)
    beside = var_operand_def(ParamType)
    params = var_result_def(ParamType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    custom_directives = (Clause, FactorLists)
    assembly_format = (
        "$label custom<FactorLists>(type($params), $sizes) (`divisors` `of` $axis^)? (`beside` ` ` `(` $beside^ `)`)? "
        "`product` $least `to` $most (`step` $step^)? custom<Clause>(`taken`, $taken) attr-dict"
    )

    def __init__(
        self,
        label: str,
        count: int,
        sizes: Sequence[int] | Sequence[Sequence[int]],
        bounds: tuple[int, int],
        *,
        step: int = 1,
        divisors_of: SSAValue | None = None,
        beside: Sequence[SSAValue] = (),
        taken: Sequence[int] | None = None,
    ):
        lists = [[size] if isinstance(size, int) else list(size) for size in sizes]
        if all(isinstance(size, int) for size in sizes):
            lists = [[size for each in lists for size in each]]
        properties = {
            "label": StringAttr(label),
            "sizes": ArrayAttr([DenseArrayBase.from_list(i64, each) for each in lists]),
            "least": IntegerAttr(bounds[0], i64),
            "most": IntegerAttr(bounds[1], i64),
            "step": None if step == 1 else IntegerAttr(step, i64),
            "taken": None if taken is None else DenseArrayBase.from_list(i64, list(taken)),
        }
        super().__init__(operands=[divisors_of, beside], properties=properties, result_types=[[PARAM] * count])

    @property
    def decision(self) -> tuple[int, ...] | None:
        """The factors that were taken."""
        return None if self.taken is None else tuple(self.taken.iter_values())

    @property
    def lists(self) -> list[list[int]]:
        """The list of all factors, or one for each."""
        return [list(each.iter_values()) for each in self.sizes]

    def support(self, extent: int = 1, beside: int = 1) -> tuple[Factors, ...]:
        """Every list of factors, the last one changing fastest; `extent` of the axis whose divisors are added, and
        `beside`, the product of what stands beside. TreadleError where they are too many to be enumerated."""
        least, most, step = (number.value.data for number in (self.least, self.most, self.step))
        added = _divisors(extent) if self.axis is not None else ()
        sizes = [tuple(sorted({*each, *added})) for each in self.lists]
        each_factor = tuple(sizes * len(self.params) if len(sizes) == 1 else sizes)
        try:
            return factor_support(each_factor, least, most, step, beside)
        except TreadleError as error:
            raise TreadleError(error.message, f"sample {self.label.data!r}", error.accepted) from error

    def verify_(self) -> None:
        where, step = f"sample {self.label.data!r}", self.step.value.data
        lists = self.lists
        if not self.params or step < 1 or any(size < 1 for each in lists for size in each):
            raise VerifyException(f"{where} has no factor, or a size or step below 1")
        if len(lists) not in (1, len(self.params)):
            raise VerifyException(f"{where} has {len(lists)} lists: expected one, or {len(self.params)}")
        if self.axis is None and not all(lists):
            raise VerifyException(f"{where} has an empty list of sizes")
        if self.least.value.data > self.most.value.data:
            bounds = f"{self.least.value.data} to {self.most.value.data}"
            raise VerifyException(f"{where}: no product lies from {bounds}")
        if self.decision is not None and len(self.decision) != len(self.params):
            raise VerifyException(f"{where} takes {len(self.decision)} factors of {len(self.params)}")
        if self.axis is not None or self.beside:
            return  # what they stand for is known when the program is replayed
        try:
            support = self.support()
        except TreadleError as error:
            raise VerifyException(str(error)) from error
        if not support:
            raise VerifyException(f"{where} has no factors whose product is within its bounds")
        if self.decision is not None and self.decision not in support:
            raise VerifyException(f"{where} takes {choice_text(self.decision)}, which is out of its support")


def parse_choice(parser: Parser) -> Choice:
    """A number, a switch, a word, or a list of numbers."""
    attribute = parser.parse_attribute()
    try:
        return choice_value(attribute)
    except ValueError as error:
        parser.raise_error(str(error))


def _divisors(extent: int) -> list[int]:
    """Both of each pair whose product is the extent."""
    return [d for low in range(1, isqrt(extent) + 1) if extent % low == 0 for d in (low, extent // low)]
