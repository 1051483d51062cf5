"""The body of a kernel as C statements: loops, choices, stores and the values that have names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from xdsl.dialects import arith, memref, scf, vector
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerType, MemRefType, NoneAttr, VectorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from treadle.backends.c_like.expressions import ExpressionPrinter
from treadle.backends.c_like.folding import Folding
from treadle.backends.c_like.language import COMMUTATIVE, COMPOUND, OPERATORS, Language, Precedence
from treadle.backends.c_like.names import IndexNames, Names
from treadle.backends.c_like.scalars import constant_integer
from treadle.dialects.effects import is_allocation, is_load
from treadle.dialects.loop import LaneMaskOp, StridedStoreOp

_COUNTERS = "ijklmn"
INDENT = "    "
Lines: TypeAlias = dict[Operation, list[int]]
"""Numbers of lines, from 0, by the operations that are written in them."""


class StatementPrinter:
    """Writes one kernel's body, line by line.

    language: what the text is written in
    names: gives the variables' names; the caller has claimed the parameters'
    body:     the kernel's block; parameters are named through `parameter`
    """

    def __init__(self, language: Language, names: Names, body: Block) -> None:
        self.language = language
        self.names = names
        self.lines: list[str] = []
        self.written_for: list[Operation | None] = []
        """For each line, the operation whose statement it is part of; None of a parameter."""
        self._statement_of: Operation | None = None
        self._body = body
        self._folding = Folding(body, named_choices=language.named_choices)
        self.values = ExpressionPrinter(language, self._folding)
        self._index_names = IndexNames(self.values.names)
        self._depth = 1
        self._loops = 0

    def parameter(self, value: SSAValue, fallback: str) -> str:
        """Names a parameter of the kernel; a buffer is a pointer to its first element."""
        name = self.names.claim(value.name_hint, fallback)
        self.values.names[value] = name
        if isinstance(value.type, MemRefType):
            self.values.declare_flat(value)
        return name

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append(f"{INDENT * self._depth}{text}")
        self.written_for.append(self._statement_of)

    def print_body(self) -> list[str]:
        """The lines of the whole body."""
        self._block(self._body)
        return self.lines

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op not in self._folding.dead and not op.has_trait(IsTerminator):
                self._statement(op)

    def lines_of(self, first: int = 0) -> Lines:
        """The numbers of the lines in which each operation of the body is written, once it is printed: those of its
        statement, or of the statements in whose expressions it stands. The first line of the body has number `first`.
        """
        found: Lines = {}
        for number, op in enumerate(self.written_for, first):
            if op is not None:
                found.setdefault(op, []).append(number)
        for op in self._body.walk():
            self._find_lines(op, found)
        return found

    def _find_lines(self, op: Operation, found: Lines) -> Sequence[int]:
        """What ends a block is written in the statement around the block."""
        if op in found or op in self._folding.dead:
            return found.get(op, ())
        around = op.parent_op()
        users: Iterable[Operation] = ()
        if op.has_trait(IsTerminator):
            users = () if around is None or op.parent_block() is self._body else (around,)
        elif len(op.results) == 1 and op.results[0] in self._folding.folded:
            users = (use.operation for use in op.results[0].uses)
        found[op] = sorted({number for user in users for number in self._find_lines(user, found)})
        return found[op]

    def _statement(self, op: Operation) -> None:
        if len(op.results) == 1 and (op.results[0] in self._folding.folded or op.results[0] in self.values.names):
            return  # an expression, or a parameter
        around, self._statement_of = self._statement_of, op
        self._write(op)
        self._statement_of = around

    def _write(self, op: Operation) -> None:
        if is_allocation(op):
            self._allocate(op)
        elif isinstance(op, scf.ForOp):
            self._for(op)
        elif isinstance(op, scf.IfOp) and not self._folding.is_ternary(op):
            self._if(op)
        elif isinstance(op, memref.StoreOp):
            target = self.values.element(op.memref, op.indices)
            self.line(self._assignment(target, op.value))
        elif isinstance(op, vector.StoreOp):
            self._store_vector(op)
        elif isinstance(op, vector.MaskedStoreOp):
            self._store_masked(op)
        elif isinstance(op, StridedStoreOp):
            self._store_strided(op)
        elif len(op.results) == 1:
            self._define(op)
        else:
            self._special(op)

    def _special(self, op: Operation) -> None:
        line = self.language.statement(op, self.values)
        if line is None:
            self.language.reject(op)
        self.line(line)

    def _define(self, op: Operation) -> None:
        result = op.results[0]
        text = self.values.computed(op).text
        if isinstance(result.type, MemRefType):  # another name of a buffer
            self.values.declare_flat(result)
            element = self.language.memory_type(result.type.get_element_type())
            self.line(f"const {element} *const {self._claim(result, 'buffer')} = {text};")
            return
        name = self._claim(result, "x" if result.name_hint else self._fallback(op))
        is_mask = isinstance(op, LaneMaskOp)
        type = self.language.mask_type(op.mask.type) if is_mask else self.language.type_name(result.type)
        self.line(f"const {type} {name} = {text};")

    def _claim(self, value: SSAValue, fallback: str) -> str:
        name = self.names.claim(value.name_hint, fallback)
        self.values.names[value] = name
        return name

    def _fallback(self, op: Operation) -> str:
        """A name for a value without one: the element of buffer A is `a`; else by type."""
        if is_load(op):
            buffer = self.values.names.get(op.operands[0], "")
            if buffer.lower() != buffer:
                return buffer.lower()
        type = op.results[0].type
        if isinstance(type, IndexType):
            return self._index_names.propose(op.results[0])
        if isinstance(type, VectorType):
            return "v"
        return "p" if type == IntegerType(1) else "x"

    def _allocate(self, op: Operation) -> None:
        buffer = op.results[0]
        type = cast(MemRefType, buffer.type)
        name = self._claim(buffer, "buffer")
        extents = "".join(f"[{extent}]" for extent in type.get_shape()) or "[1]"
        if not isinstance(type.layout, NoneAttr) or not type.get_shape():
            self.values.declare_flat(buffer)
            strides = cast(Sequence[int], type.get_strides() or ())
            last = sum((extent - 1) * stride for extent, stride in zip(type.get_shape(), strides, strict=True))
            extents = f"[{last + 1}]"
        for line in self.language.declare_array(name, type, extents, op):
            self.line(line)

    def _store_vector(self, op: vector.StoreOp) -> None:
        type = cast(VectorType, op.vector.type)
        address = f"&{self.values.element(op.base, op.indices)}"
        target = self.language.vector_lvalue(type, address)
        if target is not None:
            self.line(self._assignment(target, op.vector))
            return
        function = self.language.function("store", type)
        self.line(f"{function}({address}, {self.values.at(op.vector)});")

    def _store_masked(self, op: vector.MaskedStoreOp) -> None:
        first = isinstance(op.mask.owner, vector.CreateMaskOp)
        function = self.language.function("store_first" if first else "store_where", op.value_to_store.type)
        address = f"&{self.values.element(op.base, op.indices)}"
        lanes = self.values.first_lanes(op.mask) if first else self.values.mask(op.mask)
        self.line(f"{function}({address}, {self.values.at(op.value_to_store)}, {lanes});")

    def _store_strided(self, op: StridedStoreOp) -> None:
        name = "store_strided" if op.mask is None else "store_strided_where"
        operands = [f"&{self.values.element(op.buffer, op.indices)}", str(op.stride.value.data)]
        operands += [self.values.at(op.value), *([] if op.mask is None else [self.values.mask(op.mask)])]
        self.line(f"{self.language.function(name, op.value.type)}({', '.join(operands)});")

    def _assignment(self, target: str, value: SSAValue) -> str:
        compound = self._compound(target, value)
        return compound or f"{target} = {self.values.at(value)};"

    def _compound(self, target: str, value: SSAValue) -> str | None:
        """`a += b` where `value` is `a + b`, and the like."""
        op = value.owner
        if value in self.values.names or not isinstance(op, COMPOUND) or not self.language.has_operators(value.type):
            return None
        if isinstance(value.type, IntegerType):
            return None  # C would promote, and the sum could overflow
        sides = list(op.operands) if isinstance(op, COMMUTATIVE) else [op.operands[0]]
        for side in sides:
            other = op.operands[1] if side is op.operands[0] else op.operands[0]
            if self.values.text(side).text.replace("*(const ", "*(") == target:
                return f"{target} {OPERATORS[type(op)][0]}= {self.values.vector_operand(other, Precedence.TERNARY)};"
        return None

    def _if(self, op: scf.IfOp) -> None:
        for result in op.results:
            self.line(f"{self.language.type_name(result.type)} {self._claim(result, 'x')};")
        self._branches(op, "if")

    def _branches(self, op: scf.IfOp, word: str) -> None:
        """A branch, and its other side: a branch that stands there alone follows as `else if`."""
        self.line(f"{word} ({self.values.at(op.cond)}) {{")
        self._branch(op, op.true_region.block)
        if op.false_region.blocks and (op.results or not self._is_empty(op.false_region.block)):
            inner = None if op.results else self._only_branch(op.false_region.block)
            if inner is not None:
                self._branches(inner, "} else if")
                return
            self.line("} else {")
            self._branch(op, op.false_region.block)
        self.line("}")

    def _only_branch(self, block: Block) -> scf.IfOp | None:
        """The branch without results of which alone a block prints something, if its condition is an expression."""
        printed = [op for op in block.ops if self._prints(op)]
        match printed:
            case [scf.IfOp() as only] if not only.results and not self._folding.is_ternary(only):
                return only
            case _:
                return None

    def _prints(self, op: Operation) -> bool:
        is_folded = len(op.results) == 1 and op.results[0] in self._folding.folded
        return not (is_folded or op in self._folding.dead or op.has_trait(IsTerminator))

    def _is_empty(self, block: Block) -> bool:
        return all(op.has_trait(IsTerminator) or op in self._folding.dead for op in block.ops)

    def _branch(self, op: scf.IfOp, block: Block) -> None:
        self._open()
        self._block(block)
        if op.results:
            for result, value in zip(op.results, cast(scf.YieldOp, block.last_op).arguments, strict=True):
                self.line(self._assignment(self.values.names[result], value))
        self._close()

    def _open(self) -> None:
        self.names.open()
        self._depth += 1

    def _close(self) -> None:
        self._depth -= 1
        self.names.close()

    def _for(self, op: scf.ForOp) -> None:
        counter, *carried = op.body.block.args
        end = cast(scf.YieldOp, op.body.block.last_op)
        for position, argument in enumerate(carried):
            self._carry(op, position, argument)
        pragma = self.language.loop_pragma(op, _trips(op))
        if pragma is not None:
            self.line(pragma)
        lower, upper, step = (self.values.at(v, Precedence.SHIFT) for v in (op.lb, op.ub, op.step))
        self.names.open()
        name = self._claim(counter, _COUNTERS[self._loops % len(_COUNTERS)])
        type = self.language.type_name(counter.type)
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.line(f"for ({type} {name} = {lower}; {name} < {upper}; {advance}) {{")
        self._depth += 1
        self._loops += 1
        self._block(op.body.block)
        self._carry_on([self.values.names[argument] for argument in carried], end.arguments)
        self._loops -= 1
        self._close()
        self.line("}")

    def _carry(self, op: scf.ForOp, position: int, argument: SSAValue) -> None:
        """Names a value that the loop carries, and declares it with its first value."""
        result, first = op.results[position], op.iter_args[position]
        shared = self._shared_variable(op, position)
        if shared is None:
            hint = result.name_hint or argument.name_hint
            text = self.values.at(first)
            shared = self.names.claim(hint, "sum" if _is_zero(first) else "x")
            self.line(f"{self.language.type_name(argument.type)} {shared} = {text};")
        self.values.names[argument] = self.values.names[result] = shared

    def _shared_variable(self, op: scf.ForOp, position: int) -> str | None:
        """The enclosing loop's variable, if this loop continues it and yields it back."""
        first, outer = op.iter_args[position], op.parent_op()
        if not isinstance(outer, scf.ForOp) or first not in outer.body.block.args[1:]:
            return None
        end = cast(scf.YieldOp, outer.body.block.last_op)
        at = outer.body.block.args[1:].index(first)
        result_uses = list(op.results[position].uses)
        only_carried = len(result_uses) == 1 and result_uses[0].operation is end and result_uses[0].index == at
        return self.values.names[first] if only_carried and len(list(first.uses)) == 1 else None

    def _carry_on(self, targets: list[str], values: Sequence[SSAValue]) -> None:
        """Assigns the carried values as if simultaneously: values that an earlier assignment would overwrite are saved
        first."""
        texts = [self.values.at(value) for value in values]
        pending = [i for i, (target, text) in enumerate(zip(targets, texts, strict=True)) if target != text]
        saved: dict[int, str] = {}
        for count, i in enumerate(pending):
            for j in pending[count + 1 :]:
                if j not in saved and re.search(rf"\b{targets[i]}\b", texts[j]):
                    saved[j] = self.names.claim(f"next_{targets[j]}")
                    self.line(f"const {self.language.type_name(values[j].type)} {saved[j]} = {texts[j]};")
        for i in pending:
            self.line(f"{targets[i]} = {saved[i]};" if i in saved else self._assignment(targets[i], values[i]))


def _trips(op: scf.ForOp) -> int | None:
    """How often a loop of constant bounds runs."""
    lower, upper, step = (constant_integer(value) for value in (op.lb, op.ub, op.step))
    if lower is None or upper is None or not step:
        return None
    return max(0, -(-(upper - lower) // step))


def _is_zero(value: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, arith.ConstantOp) and isinstance(owner.value, FloatAttr) and owner.value.value.data == 0
