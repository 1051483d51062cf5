"""The operations of the task dialect, and the attribute that carries a task mapping."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, UnitAttr, UnknownLoc
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, BlockArgument, Data, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    Pure,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
)
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.syntax import Body, Indices, Kind
from treadle.dialects.task.mapping import Mapping, parse_mapping, prove_cover
from treadle.errors import TreadleError
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges

# The attribute that carries a task mapping in the IR.


@irdl_attr_definition
class MapAttr(Data[Mapping]):
    """A task mapping; `data` is the value, with its own algebra.

    ```mlir
    #task.map<repeat(4, 1) * spatial(16, 8)>
    #task.map<spatial(8, 32, order = (1, 0)) * replicate(2)>
    #task.map<custom(8, 8, workers = 8, steps = 8, map = (s, (w + s) mod 8))>
    ```
    Rejected while parsing, at the mapping: unknown parts, sizes below 1, parts of different rank.
    """

    name = "task.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mapping:
        with parser.in_angle_brackets():
            start = parser.pos
            while _skip_token(parser):
                pass
            end = parser.pos
        text = parser.lexer.input.slice(start, end) or ""
        try:
            return parse_mapping(text)
        except TreadleError as error:
            parser.raise_error(str(error), start, end)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.data))


def _skip_token(parser: AttrParser) -> bool:
    """Moves over one word of a mapping; False at anything else."""
    if parser.parse_optional_identifier() is not None or parser.parse_optional_integer() is not None:
        return True
    return any(parser.parse_optional_punctuation(p) is not None for p in ("(", ")", ",", "*", "=", "+", "-"))


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Ends the body of a `task.for`; hidden in its syntax.

    ```mlir
    task.for (%i) in #task.map<repeat(4)> {
      "task.yield"() : () -> ()
    }
    ```
    Rejected: operands, a parent other than `task.for`.
    """

    name = "task.yield"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(ForOp), Pure()))


@irdl_op_definition
class ForOp(IRDLOperation, HasIndexRanges):
    """Runs the body once for each task that the mapping gives to this worker, in the mapping's order.

    The operand is the worker's number, which must lie in [0, workers); it may be left out where there is one
    worker.  The body sees the task's coordinates.  `unroll` asks that the loops this becomes be unrolled.

    ```mlir
    task.for (%i, %k) in #task.map<repeat(4, 1) * spatial(16, 8)>(%tid) {
      %v = memref.load %A[%i, %k] : memref<64x8xf32>
      memref.store %v, %S[%i, %k] : memref<64x8xf32>
    }
    task.for (%i) in #task.map<repeat(4)> unroll {
    }
    ```
    Rejected: a mapping that misses a task or does one twice (the first such task is named); a number of
    coordinates other than the mapping's rank; a missing worker where there are several.
    """

    name = "task.for"

    mapping = prop_def(Kind("#task.map<...>", MapAttr))
    unroll = opt_prop_def(UnitAttr)
    worker = opt_operand_def(IndexType)
    body = region_def("single_block")

    traits = traits_def(SingleBlockImplicitTerminator(YieldOp), RecursiveMemoryEffect())

    custom_directives = (Body, Indices)
    assembly_format = (
        "custom<Indices>(ref($body)) `in` qualified($mapping) (`(` $worker^ `)`)? (`unroll` $unroll^)? "
        "custom<Body>($body) attr-dict"
    )

    def __init__(
        self,
        mapping: Mapping | MapAttr,
        worker: SSAValue | Operation | None = None,
        body: Region | None = None,
        *,
        unroll: bool = False,
    ) -> None:
        """Without a body, makes a block whose arguments are the task's coordinates, to be filled."""
        attribute = MapAttr.get(mapping)
        if body is None:
            body = Region(Block(arg_types=[IndexType()] * attribute.data.rank))
        super().__init__(
            operands=[worker],
            properties={"mapping": attribute, "unroll": UnitAttr() if unroll else None},
            regions=[body],
        )

    def index_range(self, value: SSAValue) -> Range | None:
        return (0, self.mapping.data.shape[value.index] - 1) if isinstance(value, BlockArgument) else None

    def verify_(self) -> None:
        problem = _problem(self.mapping.data, self.body.block.arg_types, self.worker is not None)
        if problem is not None:
            where = "" if isinstance(self.location, UnknownLoc) else f" at {self.location}"
            raise VerifyException(f"task.for{where}: {problem}")


def _problem(mapping: Mapping, coordinates: Sequence[Attribute], has_worker: bool) -> str | None:
    """What is wrong with a `task.for` over `mapping`, or None."""
    if mapping.rank == 0:
        return f"{mapping} has no tasks; accepted: a mapping with a shape"
    if len(coordinates) != mapping.rank:
        return (
            f"{len(coordinates)} coordinates for {mapping}, whose tasks have {mapping.rank}; "
            f"accepted: {mapping.rank} coordinates"
        )
    if any(not isinstance(t, IndexType) for t in coordinates):
        return f"coordinates of types {', '.join(map(str, coordinates))}; accepted: index"
    if not has_worker and mapping.workers > 1:
        return f"no worker for {mapping}; accepted: an index in [0, {mapping.workers}) as operand"
    failure = prove_cover(mapping)
    return None if failure is None else f"{mapping} is no exact cover: {failure}"
