"""What a module has to be before the first pass: one function `@main` of graph operators on tensors."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.control import called_names, check_calls
from treadle.dialects.graph.dtypes import ELEMENT_TYPES, TensorSizes, is_supported
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.passes.instruments import LEGAL, is_allowed, operators

ENTRY = "main"
_FORM = f"one func.func @{ENTRY} of graph operators on tensors, and functions that loops and branches call"


def check_entry(module: ModuleOp) -> None:
    """TreadleError naming the first thing that the pipeline cannot take, and where it stands.

    That is a module without `@main` or with something beside it; an operation of another dialect; an argument or a
    result that is no tensor, is of an element type that Treadle lacks, or (an argument) has a symbolic extent; names of
    inputs or outputs that are not one each.
    """
    main = _entry(module)
    for argument in main.body.block.args:
        where = f"argument %{argument.name_hint or argument.index} of @{ENTRY}"
        if any(extent < 0 for extent in _checked_tensor(argument.type, where).get_shape()):
            accepted = "static extents: a compiled model has fixed shapes"
            raise TreadleError(f"{argument.type} has a symbolic extent", where, accepted)
    for function in _functions(module):
        for op in function.body.block.ops:
            _check_operation(op)
    end = main.body.block.last_op
    if not isinstance(end, ReturnOp):
        raise TreadleError(f"@{ENTRY} does not return", location_of(main), "func.return at its end")
    _check_names(main, "input_names", len(main.body.block.args))
    _check_names(main, "output_names", len(end.operands))


def _entry(module: ModuleOp) -> FuncOp:
    found = list(module.body.block.ops)
    main = next((op for op in found if isinstance(op, FuncOp) and op.sym_name.data == ENTRY), None)
    if main is None:
        others = ", ".join(f"{op.name} @{op.sym_name.data}" if isinstance(op, FuncOp) else op.name for op in found)
        raise TreadleError(f"the module has no function @{ENTRY}, but {others or 'nothing'}", "module", _FORM)
    called = {name for op in module.walk() for name in called_names(op)}
    for op in found:
        if op is not main and not (isinstance(op, FuncOp) and op.sym_name.data in called):
            raise TreadleError(f"{op.name} beside @{ENTRY}", location_of(op), _FORM)
    for function in _functions(module):
        if len(function.body.blocks) != 1:
            message = f"@{function.sym_name.data} has {len(function.body.blocks)} blocks"
            raise TreadleError(message, location_of(function), "a body of one block")
    check_calls(main)
    return main


def _functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.body.block.ops if isinstance(op, FuncOp)]


def _check_operation(op: Operation) -> None:
    """An operator, and what is inside of its definition, if it has one."""
    own = operators()
    for inner in op.walk():
        if not is_allowed(inner, (*own, "func.return") if inner is op else (*own, *LEGAL["graph"])):
            raise TreadleError(f"'{inner.name}' is no operation of a model", location_of(inner), _FORM)
    for result in op.results:
        _checked_tensor(result.type, location_of(op) or f"@{ENTRY}")


def _checked_tensor(type: Attribute, where: str) -> TensorType[Attribute]:
    if not isinstance(type, TensorType):
        raise TreadleError(f"{type} is no tensor", where, "tensors")
    if not is_supported(type.get_element_type()):
        raise TreadleError(f"elements of type {type.get_element_type()}", where, ELEMENT_TYPES)
    return type


def _check_names(main: FuncOp, attribute: str, count: int) -> None:
    given = main.attributes.get(attribute)
    if given is None:
        return
    names = [each.data for each in given if isinstance(each, StringAttr)] if isinstance(given, ArrayAttr) else []
    if len(names) != count or len(set(names)) != count:
        raise TreadleError(f"{attribute} is {given}", f"@{ENTRY}", f"{count} different names")


# Limits on the sizes of a module's tensors, checked before any pass works on their elements.


def check_sizes(module: ModuleOp) -> None:
    """TreadleError naming the first tensor that is too large, or that makes all of them together too large."""
    sizes = TensorSizes()
    for op in module.walk():
        values = [*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)]
        for type in (value.type for value in values):
            if isinstance(type, TensorType) and is_supported(type.get_element_type()):
                _add(sizes, type, op)


def _add(sizes: TensorSizes, type: TensorType, op: Operation) -> None:
    try:
        sizes.add(type)
    except VerifyException as error:
        raise TreadleError(str(error), location_of(op)) from error
