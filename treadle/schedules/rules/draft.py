"""A schedule program that is being written, as a value: each instruction gives a new draft."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule import (
    ArrangeOp,
    AxesOp,
    Choice,
    FuseOp,
    MarkOp,
    ProgramOp,
    SampleOp,
    SampleTileOp,
    SplitOp,
    StageOp,
    SwizzleOp,
    TemplateOp,
    UnrollOp,
)
from treadle.dialects.schedule.program import Level, levels_of
from treadle.dialects.schedule.sampling import Size
from treadle.dialects.schedule.staging import Mark, Memory
from treadle.dialects.schedule.tiling import Role
from treadle.errors import TreadleError
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload
from treadle.schedules.template import Anchor
from treadle.target import Target

Groups = Sequence[tuple[Role, Sequence[SSAValue]]]
_NAMES = "ijklmnuvwxyz"
_WHERE = "a draft of a schedule program"


class Axes(NamedTuple):
    """Whole axes, neither split nor fused yet, outermost first."""

    spatial: tuple[SSAValue, ...]
    reduction: tuple[SSAValue, ...]

    def of(self, is_reduction: bool) -> tuple[SSAValue, ...]:
        """Those of one kind."""
        return self.reduction if is_reduction else self.spatial


@dataclass(frozen=True)
class Draft:
    """Instructions so far, for one anchor on one target.

    A method appends one instruction, applies it, and returns the new draft, with the handles that the instruction
    gives, if any; the old draft stays what it was, so that a rule can go on from it in several ways. A sample takes a
    value of its support at once, by `seed` and its name, so that a rule may look at it: the values are a trace of one
    execution (MetaSchedule, section 4, figure 6), and a program keeps the instructions only.

    workload: what the definition asks of a schedule; None where it has several reductions, and so no nest

    Every method raises TreadleError for an instruction that is rejected, once the levels are arranged for a nest that
    is; what exceeds a limit may be legal with another seed.
    """

    anchor: Anchor
    target: Target
    workload: Workload | None
    seed: str = "0"
    instructions: tuple[Operation, ...] = ()

    # what is known

    @property
    def is_complete(self) -> bool:
        """Whether the levels are arranged, or a template schedules all."""
        return any(isinstance(op, ArrangeOp | TemplateOp) for op in self.instructions)

    @property
    def is_finished(self) -> bool:
        """Whether it is complete, and what tensor cores multiply is staged."""
        return self.is_complete and (self.nest is None or not self.nest.unstaged)

    @property
    def groups(self) -> list[tuple[Role, list[SSAValue]]]:
        """Each role with its levels, outermost first; empty before `arrange`."""
        arranged = [op.groups for op in self.instructions if isinstance(op, ArrangeOp)]
        return arranged[0] if arranged else []

    @cached_property
    def nest(self) -> Nest | None:
        """The nest with the values taken; None before `arrange`, and of a template."""
        if self.workload is None or not self.groups:
            return None
        return nest_of(self.program("draft"), self.decisions, self.workload, self.target, is_complete=False)

    @property
    def decisions(self) -> dict[str, Choice]:
        """The values that the samples have taken, by their names."""
        samples = [op for op in self.instructions if isinstance(op, SampleOp | SampleTileOp)]
        return {op.label.data: op.decision for op in samples if op.decision is not None}

    def extent(self, axis: SSAValue) -> int:
        """Positions along a whole axis."""
        assert self.workload is not None
        level = self._levels[axis]
        return prod(self.workload.extents[level.first : level.last + 1])

    def dimensions(self, axis: SSAValue) -> range:
        """The numbers of the dimensions that an axis, or a level of one, stands for."""
        level = self._levels[axis]
        return range(level.first, level.last + 1)

    def value(self, param: SSAValue) -> Choice:
        """What a parameter's sample has taken."""
        op = param.owner
        if isinstance(op, SampleOp) and op.decision is not None:
            return op.decision
        if isinstance(op, SampleTileOp) and op.decision is not None:
            return op.decision[op.params.index(param)]
        raise TreadleError("a value was asked for that no sample took", _WHERE, "a parameter of this draft")

    def __str__(self) -> str:
        """The instructions, with the values taken."""
        if not self.instructions:
            return ""
        lines = str(ProgramOp("draft", self.target.kind, self._copies(with_decisions=True))).splitlines()
        return "\n".join(line.removeprefix("  ") for line in lines[1:-1])

    # instructions

    def axes(self) -> tuple[Draft, Axes]:
        """The anchor's axes that are still whole; the first call appends `schedule.axes`."""
        if self.workload is None:
            message = f"{self.anchor.name} has several reductions, and so no axes"
            raise TreadleError(message, _WHERE, "schedule.template")
        draft = self
        if not self.instructions:
            op = AxesOp(self.workload.spatial, len(self.workload.extents) - self.workload.spatial)
            for n, axis in enumerate(op.axes):
                axis.name_hint = _NAMES[n] if len(op.axes) <= len(_NAMES) else f"{_NAMES[0]}_{n}"
            draft = self._with(op)
        levels, used = levels_of(draft.instructions)
        whole = [value for value, level in levels.items() if value not in used and level.count == 1]
        ordered = sorted(whole, key=lambda value: levels[value].first)
        spatial = tuple(value for value in ordered if not levels[value].is_reduction)
        return draft, Axes(spatial, tuple(value for value in ordered if levels[value].is_reduction))

    def sample(self, name: str, values: Sequence[Choice], weights: Sequence[float] = ()) -> tuple[Draft, SSAValue]:
        """One of some values."""
        _check_unused(name, self.instructions)
        drawn = self._random(name).choices(values, weights or None)[0] if values else None
        op = SampleOp(name, values, weights, drawn)
        op.param.name_hint = _word(name)
        return self._with(op), op.param

    def sample_tile(
        self,
        name: str,
        count: int,
        sizes: Sequence[int] | Sequence[Sequence[int]],
        product: tuple[int, int],
        *,
        step: int = 1,
        divisors_of: SSAValue | None = None,
        beside: Sequence[SSAValue] = (),
        of: Sequence[SSAValue] = (),
    ) -> tuple[Draft, tuple[SSAValue, ...]]:
        """`count` factors, whose product, times what stands `beside`, is within the bounds and a multiple of `step`.

        of: the axes that they cut, one each, by which they are called
        """
        _check_unused(name, self.instructions)
        op = SampleTileOp(name, count, sizes, product, step=step, divisors_of=divisors_of, beside=beside)
        _verify(op)
        extent = 1 if divisors_of is None else self.extent(divisors_of)
        support = op.support(extent, prod(number(self.value(param)) for param in beside))
        if not support:
            bounds = f"{product[0]} to {product[1]}"
            raise TreadleError(f"sample {name!r}: no product lies from {bounds}", _WHERE, "a support that is not empty")
        taken = self._random(name).choice(support)
        op = SampleTileOp(name, count, sizes, product, step=step, divisors_of=divisors_of, beside=beside, taken=taken)
        for param, axis in zip(op.params, of, strict=False):
            param.name_hint = f"{_word(name)}_{axis.name_hint}"
        return self._with(op), tuple(op.params)

    def split(self, axis: SSAValue, factors: Sequence[Size]) -> tuple[Draft, tuple[SSAValue, ...]]:
        """An axis as levels, the outermost first."""
        op = SplitOp(axis, factors)
        for n, level in enumerate(op.levels):
            level.name_hint = f"{axis.name_hint}{n}"
        return self._with(op), tuple(op.levels)

    def fuse(self, *axes: SSAValue) -> tuple[Draft, SSAValue]:
        """Neighbouring whole axes of one kind as one."""
        op = FuseOp(axes)
        op.axis.name_hint = "".join(axis.name_hint or "" for axis in axes)
        return self._with(op), op.axis

    def arrange(self, groups: Groups, min_blocks_per_sm: int | None = None) -> Draft:
        """The whole nest, outermost first; groups without levels are left out."""
        return self._with(ArrangeOp([group for group in groups if group[1]], min_blocks_per_sm))

    def stage(
        self,
        read: int,
        levels: SSAValue | Sequence[SSAValue],
        memory: Memory,
        vector: Size = 1,
        buffers: Size = 1,
        *,
        place: Size = 1,
        is_async: bool = False,
    ) -> Draft:
        """A read, by its number, goes through faster memory, filled once an iteration of a level: of several, the one
        that `place` says, from 1, or of none, by 0."""
        return self._with(StageOp(read, levels, memory, vector, buffers, place=place, is_async=is_async))

    def mark(self, mark: Mark, level: SSAValue) -> Draft:
        """How a level's loop is printed."""
        return self._with(MarkOp(mark, level))

    def unroll(self, limit: Size) -> Draft:
        """The innermost loops over the reduction are unrolled that have no more iterations together."""
        return self._with(UnrollOp(limit))

    def swizzle(self, rows: SSAValue, columns: SSAValue, group: Size) -> Draft:
        """Blocks go down some rows before they go right, in two levels that are neighbours in `block`."""
        return self._with(SwizzleOp(rows, columns, group))

    def template(self, name: str, knobs: Sequence[tuple[str, Choice | SSAValue]]) -> Draft:
        """A template schedules the anchor. Whether it allows the values taken is found out when the program is
        replayed: of some templates' combinations, few are legal."""
        return self._with(TemplateOp(name, knobs))

    # what comes of it

    def program(self, name: str, *, with_decisions: bool = False) -> ProgramOp:
        """The instructions as a program, whose samples are open unless the values taken are kept."""
        program = ProgramOp(name, self.target.kind, self._copies(with_decisions))
        try:
            program.verify_()  # each instruction was verified when it was appended
        except VerifyException as error:
            raise TreadleError(str(error), _WHERE) from error
        return program

    def again(self, seed: str) -> Draft:
        """The same instructions; samples to come take other values."""
        return replace(self, seed=seed)

    def _copies(self, with_decisions: bool) -> list[Operation]:
        values: dict[SSAValue, SSAValue] = {}
        copies = [op.clone(values) for op in self.instructions]
        for op in copies:
            if isinstance(op, SampleOp | SampleTileOp) and not with_decisions:
                op.taken = None
        return copies

    @cached_property
    def _levels(self) -> dict[SSAValue, Level]:
        return levels_of(self.instructions)[0]

    def _with(self, op: Operation) -> Draft:
        if self.is_complete and isinstance(op, AxesOp | SplitOp | FuseOp | ArrangeOp | TemplateOp):
            accepted = "schedule.stage, schedule.mark, schedule.unroll, schedule.swizzle"
            raise TreadleError(f"{op.name} after the levels are arranged", _WHERE, accepted)
        _verify(op)
        draft = replace(self, instructions=(*self.instructions, op))
        try:
            levels_of(draft.instructions)
        except VerifyException as error:
            raise TreadleError(str(error), _WHERE) from error
        if draft.groups:
            assert draft.nest is not None
        return draft

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")


def number(value: Choice) -> int:
    """A sampled value that is a number; TreadleError for another."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TreadleError(f"{value!r} is no number", _WHERE, "a sample of numbers")
    return value


def _verify(op: Operation) -> None:
    try:
        op.verify()
    except VerifyException as error:
        raise TreadleError(str(error), _WHERE) from error


def _check_unused(name: str, instructions: Sequence[Operation]) -> None:
    if any(isinstance(op, SampleOp | SampleTileOp) and op.label.data == name for op in instructions):
        raise TreadleError(f"two samples are called {name!r}", _WHERE, "a name for each sample")


def _word(name: str) -> str:
    """A name as a part of an SSA name."""
    return "".join(c for c in name if c.isalnum() or c == "_")


__all__ = ["Axes", "Draft", "Groups", "number"]
