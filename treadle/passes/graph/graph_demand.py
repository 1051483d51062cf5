"""graph-demand: which elements of each group's results anybody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import ComputeOp, ConstantOp, FusedOp, WholeOp, YieldOp
from treadle.dialects.graph.fused import DemandedAttr, check_demands, dimension
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader
from treadle.passes.graph.definition_analysis import defined, read_index, shape_of
from treadle.passes.graph.demand.facts import (
    Extents,
    Facts,
    demanded_from,
    either,
    enclosing_function,
    extents_of,
    facts_from,
)
from treadle.passes.graph.demand.relevance import Relevance
from treadle.passes.graph.demand.transfer import facts_of_source


@dataclass(frozen=True)
class GraphDemandPass(ModulePass):
    """Writes on every group which elements of its results are needed for those that @main's caller needs.

    ```mlir
    func.func @main(%x: tensor<8x512xf32>, %seq: tensor<i64>) -> tensor<4096xf32>
        attributes {extents = ["seq"], output_demand = [#graph.demanded<d0 mod 512 < 0>], ...} {
      %h = graph.fused "exp" { ... } : tensor<8x512xf32>
      %y = graph.fused "reshape" { ... graph.at %h[%i / 512, %i % 512] ... } : tensor<4096xf32>
      func.return %y : tensor<4096xf32>
    }
    ```
    becomes
    ```mlir
      %h = graph.fused "exp" { ... } demands [#graph.demanded<d1 < 0>] : tensor<8x512xf32>
      %y = graph.fused "reshape" { ... } demands [#graph.demanded<d0 mod 512 < 0>] : tensor<4096xf32>
    ```
    Of a value that several read, what one of them needs is needed. What unclamped indices are computed from is needed
    everywhere. A module without extents stays as it is. Errors: an `output_demand` that does not fit the results.
    """

    name = "graph-demand"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            extents = extents_of(function)
            if extents:
                _Demands(extents).function(function)


def demand_within(fused: FusedOp, value: SSAValue) -> DemandedAttr:
    """Which elements of a tensor inside of a group are needed for those that the group's demands name."""
    main = enclosing_function(fused)
    found = _Demands({} if main is None else extents_of(main))
    demands: Sequence[object] = [None] * len(fused.outputs) if fused.demands is None else fused.demands.data
    found.group(fused, [facts_from(each, _dimensions(r)) for each, r in zip(demands, fused.outputs, strict=True)])
    return found.of(value)


class _Demands:
    """What the readers seen so far need of each value, on the way backwards through a function."""

    def __init__(self, extents: Extents):
        self._extents = extents
        self._needed: dict[SSAValue, Facts] = {}

    def function(self, main: FuncOp) -> None:
        given = main.attributes.get("output_demand")
        end = main.body.block.last_op
        assert isinstance(end, ReturnOp)
        demands: Sequence[object] = given.data if isinstance(given, ArrayAttr) else [None] * len(end.operands)
        if given is not None:
            _check(demands, end)
        for value, demanded in zip(end.operands, demands, strict=True):
            self._need(value, facts_from(demanded, _dimensions(value)))
        self._block(main.body.block)

    def _need(self, value: SSAValue, facts: Facts) -> None:
        known = self._needed.get(value)
        self._needed[value] = facts if known is None else either(known, facts)

    def _block(self, block: Block) -> None:
        for op in reversed(list(block.ops)):
            if isinstance(op, FusedOp):
                self._fused(op)
            elif isinstance(op, ComputeOp | WholeOp):
                self._sources(op)
            elif not isinstance(op, ReturnOp | YieldOp):
                for operand in op.operands:
                    self._need(operand, {})

    def _fused(self, fused: FusedOp) -> None:
        needed = [self._needed.get(result, {}) for result in fused.outputs]
        if any(needed):
            fused.demands = ArrayAttr([demanded_from(facts) for facts in needed])
        self.group(fused, needed)

    def of(self, value: SSAValue) -> DemandedAttr:
        """What is needed of a value whose readers were all seen."""
        return demanded_from(self._needed.get(value, {}))

    def group(self, fused: FusedOp, needed: Sequence[Facts]) -> None:
        """What a group's members need where this is needed of its results."""
        end = fused.body.block.last_op
        assert isinstance(end, YieldOp)
        for value, facts in zip(end.values, needed, strict=True):
            self._need(value, facts)
        self._block(fused.body.block)

    def _sources(self, op: ComputeOp | WholeOp) -> None:
        """What an operation needs of the tensors that it reads, by its definition."""
        needed = self._needed.get(op.result, {})
        sources = list(dict.fromkeys(op.tensors() if isinstance(op, ComputeOp) else op.operands))
        if not needed and self._extents.keys().isdisjoint(sources):
            for source in sources:
                self._need(source, {})
            return
        with defined(op) as compute:
            self._reads(compute, needed)

    def _reads(self, compute: ComputeOp, needed: Facts) -> None:
        reader = IndexReader()
        facts = facts_from(demanded_from(needed), [read_index(reader, arg) for arg in compute.body.block.args])
        relevance = Relevance(compute, facts, self._extents, reader)
        for at in compute.reads():
            if _is_computed(at.source):
                indices = [read_index(reader, index) for index in at.indices]
                self._need(at.source, facts_of_source(relevance.of_read(at), indices, shape_of(at.source)))


def _is_computed(tensor: SSAValue) -> bool:
    """Whether a kernel computes a tensor: inputs and constants are there."""
    return not isinstance(tensor, BlockArgument) and not isinstance(tensor.owner, ConstantOp)


def _dimensions(tensor: SSAValue) -> list[Expr]:
    return [dimension(d) for d in range(len(shape_of(tensor)))]


def _check(demands: Sequence[object], end: Operation) -> None:
    try:
        check_demands(demands, [len(shape_of(value)) for value in end.operands])
    except VerifyException as error:
        message = f"output_demand: {error}"
        raise TreadleError(message, location_of(end) or "@main", "one #graph.demanded<...> for each result") from error


__all__ = ["GraphDemandPass", "demand_within"]
