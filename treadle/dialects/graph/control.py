"""`graph.loop` and `graph.if`: functions that a call runs as often as its data say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, SymbolRefAttr, TensorType, i1, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
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

from treadle.dialects.location import NamesNodes, location_of
from treadle.dialects.syntax import Clause
from treadle.errors import TreadleError

COUNTER = TensorType(i64, [])
"""The type of a loop's counter and of its largest number of iterations."""
CONDITION = TensorType(i1, [])


@irdl_custom_directive
class Signature(CustomDirective):
    """The types of all operands, of which several are variadic, and of the results, as a function's."""

    tests: TypeDirective
    carried: TypeDirective
    read: TypeDirective
    outputs: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        type = parser.parse_attribute()
        if not isinstance(type, FunctionType):
            parser.raise_error(f"expected a function's type, got {type}")
        given = [len(operands or ()) for operands in state.operands]
        if sum(given) != len(type.inputs):
            parser.raise_error(f"{sum(given)} operands: expected {len(type.inputs)}")
        left = iter(type.inputs)
        for values, count in zip((self.tests, self.carried, self.read), given, strict=True):
            values.set(state, [next(left) for _ in range(count)])
        self.outputs.set(state, type.outputs.data)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        printer.print_string(" ")
        printer.print_operation_type(op)


@irdl_op_definition
class LoopOp(IRDLOperation, NamesNodes):
    """Calls a function again and again, each time with what it gave the time before.

    ```mlir
    %y = graph.loop @body while (%limit, %going) carries (%x) reads (%w)
        : (tensor<i64>, tensor<i1>, tensor<4xf32>, tensor<4x4xf32>) -> tensor<4xf32>
    %z, %rows = graph.loop @step times 9 carries (%x) reads () : (tensor<4xf32>) -> (tensor<4xf32>, tensor<9x2xf32>)
    %u, %part = graph.loop @step times 9 while (%limit) carries (%x) reads ()
        : (tensor<i64>, tensor<4xf32>) -> (tensor<4xf32>, tensor<9x2xf32>)
    ```
    The function takes the number of the iteration, the carried tensors, and those that are read, which stay the same.
    It gives, of a loop with a condition, whether to go on, then the carried tensors. Without `times`, iterations end
    after `%limit` of them, or once the condition is false; it may be so before the first. With `times`, there are so
    many iterations, or `%limit` where that is less, and what the function gives beside the carried tensors are rows of
    the last results; rows of iterations that do not run are arbitrary.
    Rejected: neither `while` nor `times`, a condition with `times`; no iterations by `times`; a limit that is no
    `tensor<i64>`, a condition that is no `tensor<i1>`; results of other types than the carried tensors; rows without
    `times`; a function that is not there, or whose type does not fit.
    """

    name = "graph.loop"
    body = prop_def(SymbolRefAttr)
    times = opt_prop_def(IntegerAttr.constr(i64))
    tests = var_operand_def(TensorType)
    carried = var_operand_def(TensorType)
    read = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())
    custom_directives = (Clause, Signature)
    assembly_format = (
        "$body custom<Clause>(`times`, $times) (`while` ` ` `(` $tests^ `)`)? `carries` ` ` `(` $carried `)` `reads` "
        "` ` `(` $read `)` attr-dict `:` custom<Signature>(type($tests), type($carried), type($read), type($outputs))"
    )

    def __init__(
        self,
        body: str,
        carried: Sequence[SSAValue],
        read: Sequence[SSAValue],
        *,
        tests: Sequence[SSAValue] = (),
        times: int | None = None,
        rows: Sequence[Attribute] = (),
    ):
        properties = {"body": SymbolRefAttr(body), "times": None if times is None else IntegerAttr(times, i64)}
        types = [*(value.type for value in carried), *rows]
        super().__init__(operands=[tests, carried, read], properties=properties, result_types=[types])

    @property
    def rows(self) -> Sequence[SSAValue]:
        """The results that have a row of each iteration."""
        return self.outputs[len(self.carried) :]

    @property
    def has_condition(self) -> bool:
        """Whether each iteration says whether there is a next one."""
        return self.times is None

    def verify_(self) -> None:
        if self.times is None and not self.tests:
            raise VerifyException("expected `while` or `times`")
        if self.times is not None and self.times.value.data < 1:
            raise VerifyException(f"`times {self.times.value.data}`: expected 1 or more")
        expected = [COUNTER, CONDITION] if self.times is None else [COUNTER]
        if self.tests and list(self.tests.types) != expected:
            raise VerifyException(f"tests of types {_listed(self.tests.types)}: expected {_listed(expected)}")
        carried = list(self.carried.types)
        if list(self.outputs.types)[: len(carried)] != carried:
            raise VerifyException(f"results {_listed(self.outputs.types)}: expected {_listed(carried)} first")
        rows = [_row(value.type, self.times) for value in self.rows]
        inputs = [COUNTER, *carried, *self.read.types]
        _check_function(self, self.body, inputs, [*([CONDITION] if self.has_condition else []), *carried, *rows])


@irdl_op_definition
class IfOp(IRDLOperation, NamesNodes):
    """Calls one of two functions of the same type, the first if the condition is true.

    ```mlir
    %y = graph.if %c @then @else (%x) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
    ```
    Rejected: a condition that is no `tensor<i1>`, a function that is not there, or whose type does not fit.
    """

    name = "graph.if"
    then = prop_def(SymbolRefAttr)
    otherwise = prop_def(SymbolRefAttr)
    condition = operand_def(TensorType)
    read = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$condition $then $otherwise ` ` `(` $read `)` attr-dict `:` functional-type(operands, results)"

    def __init__(
        self, condition: SSAValue, then: str, otherwise: str, read: Sequence[SSAValue], types: Sequence[Attribute]
    ):
        properties = {"then": SymbolRefAttr(then), "otherwise": SymbolRefAttr(otherwise)}
        super().__init__(operands=[condition, read], properties=properties, result_types=[types])

    def verify_(self) -> None:
        if self.condition.type != CONDITION:
            raise VerifyException(f"a condition of type {self.condition.type}: expected {CONDITION}")
        for branch in (self.then, self.otherwise):
            _check_function(self, branch, list(self.read.types), list(self.outputs.types))


ControlOp = LoopOp | IfOp


def called(op: ControlOp) -> list[FuncOp]:
    """The functions that an operation calls; VerifyException for one that is not there."""
    names = [op.body] if isinstance(op, LoopOp) else [op.then, op.otherwise]
    return [_function(op, name) for name in names]


def called_names(op: Operation) -> list[str]:
    """The names of the functions that an operation calls: none of most."""
    names = [op.body] if isinstance(op, LoopOp) else [op.then, op.otherwise] if isinstance(op, IfOp) else []
    return [name.string_value() for name in names]


def check_calls(main: FuncOp) -> None:
    """TreadleError for functions that call each other in a circle."""
    waiting: list[tuple[FuncOp, tuple[str, ...]]] = [(main, (main.sym_name.data,))]
    done = set[FuncOp]()
    while waiting:
        function, path = waiting.pop()
        if function in done:
            continue
        done.add(function)
        for op in (op for op in function.walk() if isinstance(op, LoopOp | IfOp)):
            for each in called(op):
                if each.sym_name.data in path:
                    message = f"@{each.sym_name.data} calls itself"
                    raise TreadleError(message, location_of(op) or f"@{path[-1]}", "functions that call others only")
                waiting.append((each, (*path, each.sym_name.data)))


def _function(op: Operation, symbol: SymbolRefAttr) -> FuncOp:
    module = op.get_toplevel_object()
    functions = module.body.block.ops if isinstance(module, ModuleOp) else ()
    for each in functions:
        if isinstance(each, FuncOp) and each.sym_name == symbol.root_reference:
            return each
    raise VerifyException(f"there is no function @{symbol.string_value()}")


def _check_function(
    op: Operation, symbol: SymbolRefAttr, inputs: Sequence[Attribute], outputs: Sequence[Attribute]
) -> None:
    """VerifyException if the function is missing or has another type; an operation in no module is not asked."""
    if not isinstance(op.get_toplevel_object(), ModuleOp):
        return
    type, expected = _function(op, symbol).function_type, FunctionType.from_lists(inputs, outputs)
    if type != expected:
        raise VerifyException(f"@{symbol.string_value()} has the type {type}: expected {expected}")


def _row(type: Attribute, times: IntegerAttr | None) -> Attribute:
    """The type of a row of a result; VerifyException if it has no row for each iteration."""
    assert isinstance(type, TensorType)
    if times is None:
        raise VerifyException(f"a result {type} beside what is carried: expected `times`, not `while`")
    if type.get_shape()[:1] != (times.value.data,):
        raise VerifyException(f"rows of type {type}: expected {times.value.data} of them")
    return TensorType(type.get_element_type(), type.get_shape()[1:])


def row_type(rows: SSAValue) -> TensorType[Attribute]:
    """The type of a row of a loop's result."""
    type = rows.type
    assert isinstance(type, TensorType)
    return TensorType(type.get_element_type(), type.get_shape()[1:])


def _listed(types: Iterable[Attribute]) -> str:
    return ", ".join(map(str, types)) or "nothing"


__all__ = ["CONDITION", "COUNTER", "ControlOp", "IfOp", "LoopOp", "called", "called_names", "check_calls", "row_type"]
