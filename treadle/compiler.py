"""The whole pipeline: from an imported graph to code, as named stages in order.

Each stage is a list of ordinary passes, each with the reason for its place. At a stage's border a table
(`treadle/passes/legality.py`) says what may remain; what a stage left, saved as text, can be resumed there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from treadle.compile_options import CompileOptions
from treadle.errors import TreadleError
from treadle.passes.instruments import Instrument
from treadle.passes.legality import check_legal
from treadle.passes.registry import parse_passes, unknown
from treadle.passes.tensor_sizes import check_sizes
from treadle.target import Target, TargetKind


@dataclass(frozen=True)
class Step:
    """One pass of a stage; TARGET in `spec` stands for the target's text, PRECISION and EXPLAIN for options."""

    spec: str
    why: str
    only: TargetKind | None = None
    """The kind of target that needs it; None means every one."""


@dataclass(frozen=True)
class Stage:
    """Consecutive passes with one purpose."""

    name: str
    purpose: str
    steps: tuple[Step, ...]


STAGES: tuple[Stage, ...] = (
    Stage("import", "A model as graph operators; the frontend's work, no pass.", ()),
    Stage(
        "graph",
        "Fewer and simpler operators.",
        (
            Step("graph-drop-empty", "First: no other pass, and no template, has to think of extents of 0."),
            Step(
                "graph-fold-constants",
                "Exporters leave shape arithmetic that no later pass should meet.",
                only="cpu",
            ),
            Step("graph-fold-constants{keep-tied=true}", "The same; tied weights stay one copy.", only="cuda"),
            Step(
                "graph-simplify",
                "Batch norms and scales vanish into weights, which must be constants by now.",
            ),
            Step("graph-recognize", "Simplified forms are fewer to know; whole operators have templates of their own."),
            Step("graph-mixed-precision{precision=PRECISION}", "Asked for; whole operators know what is sensitive."),
            Step("graph-decompose-attention{target=TARGET}", "Where no template schedules it whole."),
            Step("graph-decompose", "What no template schedules whole becomes operators that one schedules."),
            Step("graph-channels-last", "After scales went into the filters: copies take 16 bytes.", only="cuda"),
            Step("graph-conv-to-matmul{pad=true}", "The same; a stored border spares predicates.", only="cpu"),
            Step(
                "graph-fold-constants",
                "The filters' transposes are of constants: done now, not at run time.",
                only="cpu",
            ),
            Step("graph-fold-constants{keep-tied=true}", "The same.", only="cuda"),
            Step("graph-simplify", "Reshapes and transposes around new matmuls meet older ones."),
            Step("graph-deduplicate", "Readers of one tensor are found by the tensor."),
            Step("graph-merge-matmuls", "Once convolutions are products, and before their weights are packed."),
            Step("graph-mixed-precision{precision=PRECISION}", "Marks the products that the last passes made."),
            Step("graph-widen-matmuls", "Vectors hold f32; other types are for memory.", only="cpu"),
            Step(
                "graph-pack-weights{target=TARGET}",
                "Panels of constant right operands stay in the first cache.",
                only="cpu",
            ),
        ),
    ),
    Stage(
        "define",
        "Every operator but matmul of floats and attention as its definition.",
        (
            Step("graph-define", "From here on fusion asks the definition, never the operator's name."),
            Step("graph-merge-rows", "Before definitions flow through the reshapes that keep rows apart."),
            Step("graph-inline", "Elementwise chains become one definition before groups are cut."),
        ),
    ),
    Stage(
        "fuse",
        "Groups of one anchor with its prologues and epilogues.",
        (
            Step(
                "graph-fuse{target=TARGET explain=EXPLAIN}",
                "Needs definitions: injective and bijective are computed from them.",
            ),
        ),
    ),
    Stage(
        "schedule",
        "A decision for every group, as an attribute.",
        (Step("schedule-select{target=TARGET}", "Last place where a decision can be edited as text."),),
    ),
    Stage(
        "kernels",
        "One kernel a group.",
        (
            Step(
                "schedule-instantiate{target=TARGET}",
                "Obeys the decisions: the anchor becomes a scheduled kernel.",
            ),
            Step("loop-fuse-prologue", "Loads become producers, while accesses are still tensor elements."),
            Step("loop-fuse-epilogue", "Stores become consumers; after it no definition is left."),
        ),
    ),
    Stage(
        "plan",
        "Kernels by themselves, and a program that launches them on planned memory.",
        (
            Step(
                "memory-plan", "Tensors become buffers once fusion is done; equal kernels are lowered once.", only="cpu"
            ),
            Step("memory-plan{alignment=256 copy-threads=256}", "The same, for whole blocks of threads.", only="cuda"),
        ),
    ),
    Stage(
        "loops",
        "Kernels as loops over flat buffers.",
        (
            Step("task-lower", "Mappings become loops before index arithmetic is simplified."),
            Step("loop-flatten", "Whole addresses: what a reshape divided, the strides multiply back."),
            Step("loop-delinearize", "Loops over several dimensions at once split where divisions by them remain."),
            Step("loop-lower-copies", "Prologues are fused: what is only moved can be seen to be.", only="cuda"),
            Step("loop-simplify-index", "Fusion left divisions, remainders and predicates whose ranges are known."),
            Step("loop-hoist-invariants", "Vectorisation needs predicates and clamps out of its loops."),
            Step("loop-vectorize{target=TARGET}", "Contiguity shows only in simplified addresses.", only="cpu"),
            Step("loop-vectorize-accesses", "The same; a thread moves up to 16 bytes at once.", only="cuda"),
            Step("loop-hoist-invariants", "Masks and broadcasts leave the loops.", only="cpu"),
            Step("loop-simplify-index", "Addresses of vectors are sums of the scalars'.", only="cuda"),
            Step("loop-unroll{target=TARGET}", "Marks short loops; after vectorisation, which shortens some."),
        ),
    ),
    Stage(
        "lower",
        "What the printer of the target accepts.",
        (
            Step("loop-prove-bounds", "At the border, so that text that is resumed there is proved, too."),
            Step("loop-resolve-swizzles", "After every pass that reads addresses.", only="cuda"),
            Step("loop-hoist-invariants", "Addresses of vectors and swizzles leave the loops.", only="cuda"),
            Step("loop-lower-accesses", "Predicates become branches after every pass that reads them."),
            Step("loop-to-c", "Blocks are dealt to workers.", only="cpu"),
            Step("loop-to-cuda", "Blocks, threads and memory spaces get their CUDA names.", only="cuda"),
        ),
    ),
)
"""Every stage, in order; printing text and compiling it follow (`treadle/artifact_writer.py`)."""

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)


@functools.cache
def passes_of(stage: Stage, target: Target, options: CompileOptions | None = None) -> tuple[ModulePass, ...]:
    """The passes of a stage for a target (with default options unless some are given), ready to run."""
    # A string, since the text of a target has braces. It is put in last: it may hold any word.
    words = (options or CompileOptions()).words() | {"TARGET": f'"{target}"'}
    specs = ",".join(step.spec for step in stage.steps if step.only in (None, target.kind))
    for word, meaning in words.items():
        specs = specs.replace(word, meaning)
    return parse_passes(specs)


def stages_between(after: str | None, to: str | None) -> tuple[Stage, ...]:
    """The stages that follow `after` (None: from the first) up to and including `to` (None: to the last).

    Raises TreadleError for a name that is no stage, and where `to` comes before `after`.
    """
    start = 0 if after is None else _position(after) + 1
    end = len(STAGES) if to is None else _position(to) + 1
    if end < start:
        raise TreadleError(f"stage '{to}' comes before '{after}'", "pipeline", STAGE_NAMES[start:])
    return STAGES[start:end]


def lower(
    context: Context,
    module: ModuleOp,
    target: Target,
    *,
    after: str | None = None,
    to: str | None = None,
    instruments: Sequence[Instrument] = (),
    options: CompileOptions | None = None,
) -> None:
    """Runs the stages after `after` up to `to` on `module`, in place, and checks every border.

    Raises TreadleError where a pass fails or leaves what may not remain, naming the pass and the operation.
    """
    if after is None:
        check_sizes(module)
    else:
        check_legal(module, after, target.kind)
    for stage in stages_between(after, to):
        for step in passes_of(stage, target, options):
            _run(context, module, stage, step, instruments)
        check_legal(module, stage.name, target.kind)


def _run(context: Context, module: ModuleOp, stage: Stage, step: ModulePass, instruments: Sequence[Instrument]) -> None:
    for instrument in instruments:
        instrument.before(stage.name, step, module)
    try:
        step.apply(context, module)
    except DiagnosticException as error:
        raise TreadleError(str(error).splitlines()[0], f"pass '{step.name}'") from error
    except TreadleError:
        raise
    except Exception as error:
        error.add_note(f"in pass '{step.name}' of stage '{stage.name}'")
        raise
    for instrument in instruments:
        instrument.after(stage.name, step, module)


def _position(name: str) -> int:
    if name not in STAGE_NAMES:
        raise unknown("stage", name, STAGE_NAMES)
    return STAGE_NAMES.index(name)
