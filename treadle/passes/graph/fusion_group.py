"""A group of operators that becomes one kernel, and the plan that collects all groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp, WholeOp
from treadle.dialects.location import describe_nodes
from treadle.passes.graph.definition_analysis import (
    defined,
    is_injective,
    is_too_large,
    read_points,
    shape_of,
    size,
    tensors_read,
    users_of,
)
from treadle.passes.graph.epilogue_index import Alignment, aligned
from treadle.passes.graph.inline_compute import operator_names
from treadle.schedules.default_template import default_template
from treadle.target import Target


def is_anchor(op: Operation) -> bool:
    """Whether an operator asks for a template: a matrix product, attention, or a definition with a reduction."""
    return isinstance(op, WholeOp) or (isinstance(op, ComputeOp) and not is_injective(op))


def tensors_of(op: Operation) -> Iterable[SSAValue]:
    """The tensors that an operator reads."""
    return tensors_read(op) if isinstance(op, ComputeOp) else op.operands


def describe(op: Operation) -> str:
    """An operator in a message: its name in the IR if it has one, what it computes, and the model's node."""
    hint = next((f"%{r.name_hint} " for r in op.results if r.name_hint), "")
    nodes = describe_nodes(op.location)
    node = f" of {nodes}" if nodes else ""
    return f"{hint}({' '.join(operator_names(op)) or op.name}{node})"


@dataclass(frozen=True)
class Decision:
    """Whether a producer was fused with a consumer, and why (not)."""

    producer: Operation
    consumer: Operation
    fused: bool
    reason: str

    def __str__(self) -> str:
        verb = "fused" if self.fused else "not fused"
        return f"{describe(self.producer)} -> {describe(self.consumer)}: {verb}, {self.reason}"


@dataclass(frozen=True)
class Evaluations:
    """How often an element is computed on average: by the definition of its readers, and in their scheduled kernel."""

    defined: Fraction = Fraction(1)
    scheduled: Fraction = Fraction(1)


@dataclass(eq=False)
class Group:
    """The operators of one kernel: `chain` is the anchor and its epilogues, in program order."""

    chain: list[Operation]
    target: Target
    prologues: list[ComputeOp] = field(default_factory=list[ComputeOp])
    evaluations: dict[Operation, Evaluations] = field(default_factory=dict[Operation, Evaluations])
    """How often each prologue computes one of its elements."""
    size: int = 0
    """Of all members' definitions; see `definition_analysis.py`."""
    _alignments: dict[SSAValue, Alignment] = field(default_factory=dict[SSAValue, Alignment])

    @property
    def anchor(self) -> Operation:
        """The operator that a template schedules."""
        return self.chain[0]

    @property
    def tail(self) -> Operation:
        """The last member."""
        return self.chain[-1]

    def members(self) -> list[Operation]:
        """All members."""
        return [*self.prologues, *self.chain]

    def results(self) -> list[SSAValue]:
        """The tensors that leave the group, in program order."""
        inside = set(self.chain)
        return [op.results[0] for op in self.chain if not inside.issuperset(users_of(op.results[0]))]

    def alignments(self) -> dict[SSAValue, Alignment]:
        """Which element of the anchor's result each element of the chain belongs to."""
        found = self._alignments
        found.setdefault(self.anchor.results[0], Alignment.of(self.anchor.results[0]))
        for op in self.chain[len(found) :]:
            assert isinstance(op, ComputeOp)
            alignment = aligned(op, found)
            assert isinstance(alignment, Alignment), alignment
            found[op.result] = alignment
        return found

    def reads(self, operand: SSAValue) -> Evaluations:
        """How often the group reads an element of `operand` on average."""
        by_definition = scheduled = Fraction(0)
        volume = prod(shape_of(operand)) or 1
        for member in self.members():
            if operand not in tensors_of(member):
                continue
            with defined(member) as compute:
                times = Fraction(read_points(compute, operand), volume)
            own = self.evaluations.get(member, Evaluations())
            by_definition += own.defined * times
            scheduled += own.scheduled * (self._scheduled(operand, times) if member is self.anchor else times)
        return Evaluations(by_definition, scheduled)

    def _scheduled(self, operand: SSAValue, times: Fraction) -> Fraction:
        """How often the anchor's kernel reads an element of its operand, of which its definition makes `times`
        reads."""
        template = default_template(self.anchor, self.target)
        fewer = None if template is None else template.evaluations(self.anchor, operand, self.target)
        return times if fewer is None else min(times, fewer)

    def only_moves_for(self, operand: SSAValue) -> bool:
        """Whether what gives `operand` may only move data, since the anchor copies it asynchronously."""
        # Of floats of 8 bits, only the template that copies so has tensor cores; what computes would exclude it.
        is_of_small_floats = isinstance(self.anchor, MatmulOp) and self.anchor.is_of_small_floats
        template = default_template(self.anchor, self.target)
        if not is_of_small_floats and (template is None or not template.copies_ahead):
            return False
        feeding: set[SSAValue] = set(tensors_of(self.anchor))
        for prologue in reversed(self.prologues):
            if prologue.result in feeding:
                feeding.update(tensors_read(prologue))
        return operand in feeding


@dataclass
class Plan:
    """The groups, and why pairs were not fused."""

    target: Target
    _groups: dict[Group, None] = field(default_factory=dict[Group, None])
    _homes: dict[Operation, dict[Group, None]] = field(default_factory=dict[Operation, dict[Group, None]])
    _sizes: dict[Operation, int] = field(default_factory=dict[Operation, int])
    _obstacles: dict[tuple[Operation, Operation], list[str]] = field(
        default_factory=dict[tuple[Operation, Operation], list[str]]
    )
    _beside: list[tuple[Operation, Operation]] = field(default_factory=list[tuple[Operation, Operation]])

    @property
    def groups(self) -> list[Group]:
        """In the order in which they were opened."""
        return list(self._groups)

    def homes(self, op: Operation) -> Collection[Group]:
        """The groups that an operator is a member of: several where it is repeated."""
        return self._homes.get(op, {}).keys()

    def chain_home(self, op: Operation) -> Group | None:
        """The group that computes an operator as its anchor or as an epilogue; None where there is none."""
        home = next(iter(self._homes.get(op, ())), None)
        return home if home is not None and op not in home.evaluations else None

    def open(self, anchor: Operation) -> Group:
        """A new group of this anchor."""
        group = Group([anchor], self.target, size=self.size(anchor))
        self._groups[group] = None
        self._homes[anchor] = {group: None}
        return group

    def append(self, group: Group, epilogue: ComputeOp) -> None:
        """Takes an epilogue into a group."""
        group.chain.append(epilogue)
        group.size += self.size(epilogue)
        self._homes[epilogue] = {group: None}

    def drop_tail(self, group: Group) -> None:
        """Frees a group's last epilogue, which only widens floats: what it reads is stored, and readers widen it."""
        widening = group.chain.pop()
        group.size -= self.size(widening)
        del self._homes[widening]
        self.refuse(group.tail, widening, "it only widens floats, which its readers do")

    def prepend(self, group: Group, prologue: ComputeOp) -> None:
        """Takes a prologue into a group."""
        group.evaluations[prologue] = group.reads(prologue.result)
        group.prologues.insert(0, prologue)
        group.size += self.size_inlined(prologue)
        self._homes.setdefault(prologue, {})[group] = None

    def join(self, group: Group, other: Group) -> None:
        """Takes all of `other`, whose anchor becomes an epilogue, into `group`."""
        del self._groups[other]
        known = set(group.prologues)
        new = [prologue for prologue in other.prologues if prologue not in known]
        group.prologues += new
        group.evaluations |= {op: times for op, times in other.evaluations.items() if op not in known}
        group.chain += other.chain
        group.size += sum(map(self.size, other.chain)) + sum(map(self.size_inlined, new))
        for op in other.members():
            del self._homes[op][other]
            self._homes[op][group] = None

    def fuse_horizontally(self, group: Group, other: Group) -> None:
        """As `join`, for groups of which neither reads a result of the other, and both read the same tensors."""
        self._beside.append((group.anchor, other.anchor))
        self.join(group, other)

    def size(self, op: Operation) -> int:
        """Of an operator's definition; 0 of one that is scheduled whole."""
        if op not in self._sizes:
            self._sizes[op] = size(op) if isinstance(op, ComputeOp) else 0
        return self._sizes[op]

    def size_inlined(self, prologue: ComputeOp) -> int:
        """What a prologue adds to its reader: all but the store, and the read that it replaces."""
        return max(0, self.size(prologue) - 2)

    def size_obstacle(self, group: Group, added: int) -> str:
        """Why a kernel would be too large if its size grew by `added`; empty if it would not."""
        total = group.size + added
        if added == 0 or not is_too_large(total):
            return ""
        return f"the kernel would be too large, with {total} operations an element"

    def refuse(self, producer: Operation, consumer: Operation, reason: str) -> None:
        """Records why a pair cannot be fused in one of several ways."""
        reasons = self._obstacles.setdefault((producer, consumer), [])
        if reason not in reasons:
            reasons.append(reason)

    def decisions(self, nodes: Sequence[Operation]) -> list[Decision]:
        """The decision on every producer and each of its consumers, in program order."""
        pairs = [(op, user) for op in nodes for user in users_of(op.results[0])]
        beside = [
            Decision(op, other, True, "side by side, as they read the same elements") for op, other in self._beside
        ]
        return [self._decision(op, user) for op, user in pairs] + beside

    def _decision(self, op: Operation, user: Operation) -> Decision:
        homes, users_homes = self.homes(op), self._homes.get(user, {})
        shared = [group for group in homes if group in users_homes]
        if shared and user in shared[0].chain and op in shared[0].chain:
            stored = op.results[0] in shared[0].results()
            return Decision(op, user, True, "as an epilogue" + (" of what is stored, too" if stored else ""))
        if shared and len(shared) == len(users_homes):
            return Decision(op, user, True, "as a prologue")
        reasons = [*self._role_of(user), *self._obstacles.get((op, user), [])]
        return Decision(op, user, False, "; ".join(dict.fromkeys(reasons)) or "no rule takes it")

    def _role_of(self, user: Operation) -> list[str]:
        """Why an operator that is no anchor cannot have what it reads as a prologue."""
        if isinstance(user, ReturnOp):
            return ["the result leaves the function"]
        home = next(iter(self.homes(user)), None)
        if home is None:
            return ["the user is no operator that is fused"]
        if user is home.anchor:
            return []
        kind = "an epilogue" if user in home.chain else "a prologue"
        return [f"the user is {kind} of {describe(home.anchor)}"]


__all__ = ["Decision", "Evaluations", "Group", "Plan", "describe", "is_anchor", "tensors_of"]
