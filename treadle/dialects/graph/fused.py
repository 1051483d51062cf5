"""`graph.fused`: the operators of one kernel, and which of its operations read a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Data, Operation, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.location import NamesNodes
from treadle.dialects.schedule.attributes import DispatchAttr, UseAttr
from treadle.dialects.syntax import Clause, Kind
from treadle.index.emitter import expression_text
from treadle.index.expr import Expr, const, floordiv, mod, var

# Which elements of a tensor anybody needs, where extents are data.

_DIMENSION = re.compile(r"d(\d{1,3})")


def dimension(d: int) -> Expr:
    """The index along dimension d of a tensor of any shape: the variable `d0`, `d1`, and so on."""
    return var(f"d{d}", 0, None)


@dataclass(frozen=True)
class Constraint:
    """`index < extent number extent`, where `index` is an expression of a tensor's indices."""

    index: Expr
    extent: int

    def __str__(self) -> str:
        return self.text()

    def text(self, relation: str = "<") -> str:
        """The constraint with another sign or word for `<`."""
        return f"{expression_text(self.index)} {relation} {self.extent}"

    def at(self, indices: Sequence[Expr]) -> Expr:
        """The expression that is compared, of the element at `indices`."""
        replacement: dict[object, Expr] = {f"d{d}": index for d, index in enumerate(indices)}
        return self.index.substitute(replacement)


@irdl_attr_definition
class RequiredAttr(Data[tuple[Constraint, ...]]):
    """The elements of a tensor that anybody needs: those for which all of the constraints hold.

    ```mlir
    #graph.required<d0 floordiv 512 < 0, d0 mod 512 < 1>
    ```
    `d0` is the element's first index; the number after `<` is that of an extent, one of @main's last arguments, which
    its attribute `extents` names. Other elements may hold anything. Without constraints every element is needed.
    Expressions are sums of products, quotients and remainders by positive constants, as in MLIR's affine maps; equal
    ones have equal texts, and constraints are sorted. In the generic form `<` is the word `lt`: MLIR takes it for an
    opening bracket. Rejected: a variable that is no dimension, a negative extent.
    """

    name = "graph.required"

    @classmethod
    def of(cls, constraints: Iterable[Constraint]) -> RequiredAttr:
        return cls(_sorted(constraints))

    def verify(self) -> None:
        for constraint in self.data:
            if constraint.extent < 0:
                raise VerifyException(f"{constraint}: extents are numbered from 0")
            for v in constraint.index.vars():
                if not _DIMENSION.fullmatch(str(v)):
                    raise VerifyException(f"{constraint}: {v} is no dimension: expected d0, d1, and so on")
        if self.data != _sorted(self.data):
            raise VerifyException(f"the constraints {', '.join(map(str, self.data))} are not sorted")

    @property
    def rank(self) -> int:
        """The least rank of a tensor that it fits."""
        numbers = [int(str(v)[1:]) for constraint in self.data for v in constraint.index.vars()]
        return max(numbers, default=-1) + 1

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Constraint, ...]:
        found = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _constraint(parser))
        return _sorted(found)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            relation = "lt" if printer.print_generic_format else "<"
            printer.print_string(", ".join(each.text(relation) for each in self.data))


def _sorted(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    return tuple(sorted(dict.fromkeys(constraints), key=lambda each: (each.extent, str(each))))


def check_required(required_regions: Iterable[object], ranks: Sequence[int]) -> None:
    """VerifyException unless there is one `#graph.required` for each of some tensors, which fits its rank."""
    given = list(required_regions)
    if len(given) != len(ranks):
        raise VerifyException(f"{len(given)} required regions for {len(ranks)} tensors")
    for required, rank in zip(given, ranks, strict=True):
        if not isinstance(required, RequiredAttr):
            raise VerifyException(f"a required region is {required}: expected #graph.required<...>")
        if required.rank > rank:
            raise VerifyException(f"{required} constrains d{required.rank - 1} of a tensor of rank {rank}")


REQUIRED = Kind("[#graph.required<...>]", ArrayAttr)
"""What may be said of several tensors; `check_required` says more."""


def _constraint(parser: AttrParser) -> Constraint:
    index = _sum(parser)
    if parser.parse_optional_keyword("lt") is None:
        parser.parse_punctuation("<")
    return Constraint(index, parser.parse_integer(allow_boolean=False, allow_negative=False))


def _sum(parser: AttrParser) -> Expr:
    total = _product(parser)
    while True:
        if parser.parse_optional_punctuation("+") is not None:
            total = total + _product(parser)
        elif parser.parse_optional_punctuation("-") is not None:
            total = total - _product(parser)
        else:
            return total


def _product(parser: AttrParser) -> Expr:
    total = _factor(parser)
    while True:
        if parser.parse_optional_punctuation("*") is not None:
            total = total * _factor(parser)
        elif parser.parse_optional_keyword("floordiv") is not None:
            total = floordiv(total, _divisor(parser))
        elif parser.parse_optional_keyword("mod") is not None:
            total = mod(total, _divisor(parser))
        else:
            return total


def _divisor(parser: AttrParser) -> int:
    position = parser.pos
    divisor = parser.parse_integer(allow_boolean=False, allow_negative=False)
    if divisor < 1:
        parser.raise_error("divided by 0: a divisor is a positive integer", position)
    return divisor


def _factor(parser: AttrParser) -> Expr:
    if parser.parse_optional_punctuation("(") is not None:
        inner = _sum(parser)
        parser.parse_punctuation(")")
        return inner
    number = parser.parse_optional_integer(allow_boolean=False)
    if number is not None:
        return const(number)
    position = parser.pos
    word = parser.parse_identifier("a dimension, an integer or an expression in parentheses")
    match = _DIMENSION.fullmatch(word)
    if match is None:
        parser.raise_error(f"{word!r} is no dimension: expected d0, d1, and so on", position)
    return dimension(int(match[1]))


_SCHEDULE = Kind(
    "#schedule.use<...>, #schedule.dispatch<...> or a program's symbol", UseAttr, SymbolRefAttr, DispatchAttr
)


@irdl_op_definition
class FusedOp(IRDLOperation, NamesNodes):
    """A group of operators that becomes one kernel: an anchor with its prologues and epilogues.

    ```mlir
    %y = graph.fused "conv1_relu" {
      %m = graph.matmul %a, %b : ...
      %r = graph.compute (%i, %j) { ... } : tensor<64x64xf32>
      graph.yield %r : tensor<64x64xf32>
    } schedule #schedule.use<"matmul_cpu", {tile = [8, 32]}> : tensor<64x64xf32>
    ```

    The schedule may also be the symbol of a `schedule.program`: `schedule @tiled`, or, where extents are data, several
    decisions and a tree: `schedule #schedule.dispatch<...>`. Tensors from outside are captured.
    A group whose intermediate result others read, too, gives several tensors: `%m, %y = graph.fused ... { ...
    graph.yield %m, %r : ... } : tensor<64x64xf32>, tensor<64x64xf32>`. After the schedule, `required regions
    [#graph.required<d0 < 0>, #graph.required<>]` says which elements of each result anybody needs; without it, all.
    Rejected: result types that are not the yielded ones, a group without any, required regions that do not fit the
    results.
    """

    name = "graph.fused"
    label = prop_def(StringAttr)
    body = region_def("single_block")
    schedule = opt_prop_def(_SCHEDULE)
    required_regions = opt_prop_def(REQUIRED)
    outputs = var_result_def()
    traits = traits_def(RecursiveMemoryEffect())
    custom_directives = (Clause,)
    assembly_format = (
        "$label $body custom<Clause>(`schedule`, $schedule) custom<Clause>(`requires`, $required_regions) "
        "attr-dict-with-keyword `:` type($outputs)"
    )

    def __init__(self, label: str, body: Region, schedule: UseAttr | SymbolRefAttr | DispatchAttr | None = None):
        properties = {"label": StringAttr(label), "schedule": schedule}
        types = [value.type for value in yielded_values(body)]
        super().__init__(regions=[body], result_types=[types], properties=properties)

    def verify_(self) -> None:
        yields = [value.type for value in yielded_values(self.body)]
        if not yields:
            raise VerifyException("yields nothing: expected at least one tensor")
        if yields != list(self.outputs.types):
            raise VerifyException(f"yields {_listed(yields)}, result is {_listed(self.outputs.types)}")
        if self.required_regions is not None:
            check_required(self.required_regions, [t.get_num_dims() for t in yields if isinstance(t, TensorType)])


def _listed(types: Iterable[Attribute]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def enclosing_compute(op: Operation) -> Operation:
    """The outermost operation between `op` and the function that holds it: the tensor-level user of a read."""
    while (parent := op.parent_op()) is not None and not isinstance(parent, FusedOp) and parent.name != "func.func":
        op = parent
    return op
