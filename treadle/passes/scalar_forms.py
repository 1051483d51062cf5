"""Which operations on scalars and vectors the printers of each kind of target have, by element type.

A pair gives the types of the operands' elements and those of the results'. What is absent is rejected at the border of
a stage, where the operation still has its source location, and not by a printer or a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, VectorType, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.dtypes import (
    STORED_FLOATS,
    STORED_TYPES,
    f8e8m0fnu,
    i2,
    i4,
    ui2,
    ui4,
    ui8,
    ui16,
    ui32,
    ui64,
)
from treadle.dialects.scalar import FLOATS, SCALAR_FUNCTIONS, WHERE, TargetKind, is_arithmetic, is_unsigned
from treadle.schedules.work.rules import IN_MEMORY, NARROW

Types = tuple[Attribute, ...]
Form = tuple[Types, Types]
"""Element types of the operands, and of the results."""

_INTEGERS: Types = (i8, i16, i32, i64)
_UNSIGNED: Types = (ui8, ui16, ui32, ui64)
_ELEMENTS: Types = (*_INTEGERS, *_UNSIGNED)
_INDEX: Types = (IndexType(),)
_WHOLE: Types = (*_INDEX, *_INTEGERS)
_ALL: Types = (i1, *_WHOLE, *_UNSIGNED, *FLOATS, *STORED_TYPES)
_STORED_SIGNED: Types = (i2, i4)
_STORED_UNSIGNED: Types = (ui2, ui4)
_STORED_INTEGERS: Types = (*_STORED_SIGNED, *_STORED_UNSIGNED)
_ROUNDED_TO: Types = (*FLOATS, *(type for type in STORED_FLOATS if type != f8e8m0fnu))

_FLOAT_ARITHMETIC = ("addf", "subf", "mulf", "divf", "negf")
_INTEGER_ARITHMETIC = (
    "divsi", "remsi", "floordivsi", "ceildivsi", "minsi", "maxsi", "shli", "shrsi", "shrui",
)  # fmt: skip
_MODULAR_ARITHMETIC = ("addi", "subi", "muli")
"""What has one result modulo two to the power of its bits, whatever the sign."""


def _of(names: Sequence[str], types: Types) -> dict[str, Form]:
    return {name: (types, types) for name in names}


def _named(dialect: str, names: Sequence[str]) -> list[str]:
    return [f"{dialect}.{name}" for name in names]


def _functions(target: TargetKind) -> dict[str, Form]:
    return {row.operation.name: (row.types(target), row.types(target)) for row in SCALAR_FUNCTIONS}


_SCALARS: Mapping[str, Form] = {
    "arith.constant": ((), (i1, *_WHOLE, *FLOATS, *_STORED_SIGNED, *STORED_FLOATS)),
    "arith.select": (_ALL, _ALL),
    "arith.cmpf": (FLOATS, (i1,)),
    "arith.cmpi": ((i1, *_WHOLE, *_UNSIGNED), (i1,)),
    "scalar.constant": ((), (*_UNSIGNED, *_STORED_UNSIGNED)),
    **_of(_named("arith", _FLOAT_ARITHMETIC), FLOATS),
    **_of(_named("arith", _INTEGER_ARITHMETIC), _WHOLE),
    **_of(_named("arith", _MODULAR_ARITHMETIC), (*_WHOLE, *_UNSIGNED)),
    **_of(_named("arith", ("divui", "remui")), (*_INDEX, *_UNSIGNED)),
    **_of(_named("arith", ("minui", "maxui")), _UNSIGNED),
    **_of(_named("arith", ("andi", "ori", "xori")), (i1, *_WHOLE, *_UNSIGNED)),
    "arith.extf": ((*FLOATS, *STORED_FLOATS), FLOATS),
    "arith.truncf": (FLOATS, _ROUNDED_TO),
    "arith.sitofp": ((i1, *_INTEGERS), FLOATS),
    "arith.uitofp": ((i1, *_ELEMENTS), FLOATS),
    "arith.fptosi": (FLOATS, _INTEGERS),
    "arith.fptoui": (FLOATS, _UNSIGNED),
    "arith.extsi": ((i1, *_INTEGERS, *_STORED_SIGNED), _ELEMENTS),
    "arith.extui": ((i1, *_ELEMENTS, *_STORED_UNSIGNED), _ELEMENTS),
    "arith.trunci": (_ELEMENTS, (i1, *_ELEMENTS, *_STORED_INTEGERS)),
    "arith.index_cast": ((i1, *_WHOLE, *_UNSIGNED), _WHOLE),
    "arith.bitcast": ((f32, f64, *_ELEMENTS, *STORED_TYPES), (f32, f64, *_ELEMENTS, *STORED_TYPES)),
}

SCALAR_FORMS: Mapping[str, Mapping[str, Form]] = {
    "cpu": {**_SCALARS, **_functions("cpu")},
    "cuda": {**_SCALARS, **_functions("cuda")},
}
"""By kind of target and name of the operation."""

VECTOR_FORMS: Mapping[str, Mapping[str, Form]] = {
    "cpu": {
        "arith.constant": ((), (f32, i1)),
        "arith.select": ((i1, *IN_MEMORY), IN_MEMORY),
        **_of(_named("arith", _FLOAT_ARITHMETIC), (f32,)),
        **_of([row.operation.name for row in SCALAR_FUNCTIONS], (f32,)),
        **_of(_named("arith", ("andi", "ori", "xori")), (i1, i32)),
        **_of(_named("arith", (*_MODULAR_ARITHMETIC, "shrsi")), (i32,)),
        "arith.extf": (NARROW, (f32,)),
        "arith.truncf": ((f32,), NARROW),
    },
    "cuda": {
        "arith.constant": ((), (*FLOATS, i32)),
        **_of(_named("arith", ("addf", "subf", "mulf", "divf")), (f32, f64)),
    },
}
"""The same where a result is a vector."""


def missing_form(op: Operation, kind: str) -> tuple[str, str] | None:
    """For an operation on numbers without a form on a target: what is missing, and what there is instead; None if it
    has one."""
    if not is_arithmetic(op):
        return None
    vector = any(isinstance(result.type, VectorType) for result in op.results)
    forms, table = (VECTOR_FORMS, "VECTOR_FORMS") if vector else (SCALAR_FORMS, "SCALAR_FORMS")
    where = f"{table} of treadle/passes/scalar_forms.py"
    if not vector and op.dialect_name() != arith.Arith.name:
        where = WHERE
    if isinstance(op, arith.CmpiOp) and is_unsigned(op.lhs.type):
        predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        if predicate.startswith("s"):
            return f"arith.cmpi {predicate} of {op.lhs.type}", "eq, ne, ult, ule, ugt, uge"
    form = forms[kind].get(op.name)
    if form is None:
        return f"{op.name}{' of vectors' if vector else ''}", f"an operation of {where}"
    for values, types in zip((op.operands, op.results), form, strict=True):
        for value in values:
            if _element(value.type) not in types:
                accepted = ", ".join(map(str, types))
                return f"{op.name} with a {value.type}", f"{accepted} ({where})"
    return None


def _element(type: Attribute) -> Attribute:
    return type.element_type if isinstance(type, VectorType) else type


__all__ = ["SCALAR_FORMS", "VECTOR_FORMS", "Form", "missing_form"]
