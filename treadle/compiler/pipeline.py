"""The whole pipeline: from an imported graph to code, as named stages in order.

A target has a list of ordinary passes for each stage, each with the reason for its position. At a stage's border a
table (`treadle/passes/instruments.py`) says what may remain; what a stage left, saved as text, can be resumed there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from treadle.errors import TOO_DEEP, TreadleError
from treadle.passes.entry import check_sizes
from treadle.passes.instruments import Instrument, check_instructions, check_legal
from treadle.passes.registry import ADDED_PASSES, AddedPass, parse_passes, unknown
from treadle.passes.registry import PASSES as PASS_NAMES
from treadle.target import Target, TargetKind
from treadle.target.options import CompileOptions


@dataclass(frozen=True)
class Step:
    """One pass of a stage: by its name, where TARGET stands for the target's text and other words in capitals for
    options, or one that is no part of the package, by itself."""

    spec: str | ModulePass
    why: str

    @property
    def text(self) -> str:
        """The pass and its options."""
        return self.spec if isinstance(self.spec, str) else str(self.spec.spec())

    @property
    def name(self) -> str:
        """The pass."""
        return self.spec.partition("{")[0] if isinstance(self.spec, str) else self.spec.name


@dataclass(frozen=True)
class Stage:
    """Consecutive passes with one purpose; which they are is a matter of the target (`PASSES`)."""

    name: str
    purpose: str


STAGES: tuple[Stage, ...] = (
    Stage("import", "The model as graph operators, as the frontend writes it."),
    Stage("graph", "Fewer and simpler operators."),
    Stage("define", "Every operator but matmul of floats, attention and Winograd's convolution as its definition."),
    Stage("fuse", "Groups of one anchor with its prologues and epilogues."),
    Stage("schedule", "A decision for every group, as an attribute."),
    Stage("kernels", "One kernel a group."),
    Stage("plan", "Kernels by themselves, and a program that launches them on planned memory."),
    Stage("loops", "Kernels as loops over flat buffers."),
    Stage("lower", "What the target's printer accepts."),
)
"""Every stage, in order; printing text and compiling it follow (`treadle/compiler/artifact_writer.py`)."""

Passes = Mapping[str, tuple[Step, ...]]
"""The passes of each stage, by its name."""
_Steps = tuple[Step, ...]

_CLEANUP: _Steps = (
    Step("graph-drop-empty", "First on a CPU: no other pass, and no template, has to think of extents of 0."),
    Step(
        "graph-quantize-weights{weights=WEIGHTS}", "The model's own matrices, so that a check can do the same to them."
    ),
    Step(
        "graph-quantized-products{target=TARGET precision=PRECISION}",
        "Before constants are folded, which would dequantise weights.",
    ),
)
_OPERATORS: _Steps = (
    Step("graph-simplify", "Batch norms and scales vanish into weights, which must be constants by now."),
    Step("graph-recognize", "Of simplified graphs, fewer patterns have to be matched; whole operators have templates."),
    Step("graph-mixed-precision{precision=PRECISION}", "On whole operators, which say where precision matters."),
    Step("graph-decompose-attention{target=TARGET}", "Where no template schedules attention whole."),
    Step("graph-decompose", "Operators without a template become operators that have one."),
)
_MATMULS: _Steps = (
    Step("graph-simplify", "Reshapes and transposes around new matmuls meet older ones."),
    Step("graph-deduplicate", "The next pass finds products of one operand by that operand."),
    Step("graph-merge-matmuls", "Once convolutions are products, and before their weights are packed."),
)
_DEFINE: _Steps = (
    Step("graph-define", "Fusion depends on definitions, not on names of operators."),
    Step("graph-merge-rows", "Before graph-inline moves definitions through reshapes, which hides their rows."),
    Step("graph-inline", "Elementwise chains become one definition before groups are formed."),
)
_FUSE: _Steps = (
    Step(
        "graph-fuse{target=TARGET explain=EXPLAIN}",
        "Needs definitions, of which it computes whether they are injective or bijective.",
    ),
    Step("graph-required-regions", "What is stored is known now; where extents are data, not all of it is needed."),
)
_SCHEDULE: _Steps = (
    Step(
        "schedule-select{target=TARGET database=DATABASE construct=CONSTRUCT}",
        "The last stage whose text a decision can be edited in.",
    ),
)
_KERNELS: _Steps = (
    Step("schedule-instantiate{target=TARGET}", "Each decision's template builds the kernel of the anchor."),
    Step("loop-fuse-prologue", "Loads are replaced by producers while indices are still those of tensors."),
    Step("loop-fuse-epilogue", "Stores are replaced by consumers; no definition is left afterwards."),
    Step("loop-skip-padding", "Every store is there, at the indices of the tensors that are required in part."),
    Step("loop-clamp-reductions", "Masks are predicates of loads now; loops have no copies yet."),
)
_FLATTEN: _Steps = (
    Step("task-lower", "Mappings become loops before index arithmetic is simplified."),
    Step("loop-flatten", "Linear addresses: strides multiply back what reshapes divided."),
    Step("loop-delinearize", "Loops over several dimensions at once are split by the divisions that remain."),
)
_INDICES: _Steps = (
    Step("loop-simplify-index", "Fusion left divisions, remainders and predicates that ranges decide."),
    Step("loop-hoist-invariants", "Vectorisation needs predicates and clamps outside of its loops."),
)
_UNROLL = Step("loop-unroll{target=TARGET}", "After vectorisation, which shortens loops.")
_PROVE = Step("loop-prove-bounds", "First in the stage, so that IR that is resumed here is proved, too.")
_BRANCHES = Step("loop-lower-accesses", "After every pass that reads predicates, which become branches.")

_CPU: Passes = {
    "import": (),
    "graph": (
        *_CLEANUP,
        Step("graph-fold-constants", "Exporters leave shape arithmetic that no later pass should meet."),
        *_OPERATORS,
        Step(
            "graph-legalize-types{target=TARGET operators=conv,pool}",
            "Windows that will be no products, before their images get blocks of vectors of floats.",
        ),
        Step(
            "graph-block-channels{target=TARGET convolution=CONVOLUTION}",
            "After scales went into the filters; later passes see products, and definitions.",
        ),
        Step("graph-conv-to-matmul{pad=true}", "What is left; a stored border of zeros needs no predicates."),
        Step("graph-fold-constants", "The last pass transposes filters, which are constants."),
        *_MATMULS,
        Step(
            "graph-pack-tiles{target=TARGET}",
            "Products by constants, where the core has a unit for tiles of narrow types.",
        ),
        Step(
            "graph-legalize-types{target=TARGET operators=matmul}",
            "What the unit does not multiply; the CPU's templates sum in f32 only.",
        ),
        Step(
            "graph-pack-weights{target=TARGET}",
            "Last, when every product exists; packed panels are read as consecutive vectors.",
        ),
    ),
    "define": _DEFINE,
    "fuse": (
        _FUSE[0],
        Step(
            "graph-pack-dequantized{target=TARGET weights=WEIGHTS}",
            "The definition of a group's matrix is whole: it is known what it is dequantised from, by which columns.",
        ),
        *_FUSE[1:],
    ),
    "schedule": _SCHEDULE,
    "kernels": (
        *_KERNELS,
        Step(
            "loop-tail-tiles{target=TARGET}",
            "What is left needs clamped bounds of loops; remainders get tiles of their own.",
        ),
        Step(
            "loop-dense-arguments{target=TARGET}",
            "It is known where loops end, which proves most accesses; @main still has its extents.",
        ),
    ),
    "plan": (Step("memory-plan", "Tensors become buffers once fusion is done; equal kernels are lowered once."),),
    "loops": (
        *_FLATTEN,
        *_INDICES,
        Step("loop-vectorize{target=TARGET}", "Contiguity is found in simplified addresses."),
        Step("loop-transpose-loads", "Lanes that lie apart are known; what stays the same in a tile leaves its loops."),
        Step("loop-hoist-invariants", "Masks and broadcasts leave the loops."),
        Step("loop-factor-sums{target=TARGET}", "What does not change in a loop is before it by now, or in its tile."),
        Step("loop-lookup-tables{target=TARGET}", "Of vectors, whose constants are outside of the loops by now."),
        _UNROLL,
    ),
    "lower": (
        _PROVE,
        Step("loop-prefetch", "Addresses of prefetches are exempt from the proof of bounds before it."),
        Step("loop-split-register-tiles{target=TARGET}", "After the last user of counted loads, which it duplicates."),
        _BRANCHES,
        Step("loop-to-c", "Blocks are distributed among the pool's threads."),
    ),
}
_CUDA: Passes = {
    "import": (),
    "graph": (
        Step("graph-inline-control", "First: later passes would work on functions that are dropped here."),
        *_CLEANUP,
        Step("graph-fold-constants{keep-tied=true}", "As on the CPU, but tied weights stay one copy."),
        *_OPERATORS,
        Step(
            "graph-legalize-types{target=TARGET operators=conv}",
            "Before images are transposed; products of f16 and bf16 stay, which tensor cores multiply.",
        ),
        Step(
            "graph-channels-last",
            "After scales went into the filters, so that 16-byte copies take consecutive channels.",
        ),
        Step("graph-fold-constants{keep-tied=true}", "The last pass transposes filters, which are constants."),
        *_MATMULS,
        Step("graph-mixed-precision{precision=PRECISION}", "Marks the products that the last passes made."),
        Step(
            "graph-multiply-bytes{target=TARGET}",
            "As graph-pack-tiles, for tensor cores; nothing behind it looks at constants.",
        ),
    ),
    "define": _DEFINE,
    "fuse": (
        *_FUSE,
        Step(
            "graph-pack-dequantized{target=TARGET by-columns=true}",
            "It is known which rows calls need; constants move where a kernel that multiplies dequantises them.",
        ),
    ),
    "schedule": _SCHEDULE,
    "kernels": (
        *_KERNELS,
        Step("hopper-form-boxes", "After fusion of prologues, while indices are those of tensors."),
    ),
    "plan": (
        Step("tile-lower", "Of kernels that come as text; templates write what tiles are made of."),
        Step(
            "memory-plan{alignment=256 copy-threads=256}",
            "As on the CPU, with buffers aligned for a GPU and copies of 256 threads.",
        ),
    ),
    "loops": (
        *_FLATTEN,
        Step("loop-lower-copies", "After fusion of prologues, it is known which copies only move data."),
        *_INDICES,
        Step("loop-vectorize-accesses", "Contiguity is found in simplified addresses; up to 16 bytes an access."),
        Step("loop-simplify-index", "Vectorisation writes new addresses, of vectors."),
        _UNROLL,
    ),
    "lower": (
        _PROVE,
        Step("loop-resolve-swizzles", "After every pass that analyses addresses."),
        Step("loop-hoist-invariants", "Addresses of vectors and swizzles leave the loops."),
        _BRANCHES,
        Step("loop-to-cuda", "Blocks, threads and memory spaces get their CUDA names."),
    ),
}
PASSES: Mapping[TargetKind, Passes] = {"cpu": _CPU, "cuda": _CUDA}
"""The passes of each kind of target, by stage."""


STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)
RECORD = "treadle.stage"
"""The attribute of a written module that names the stage that left it."""


def register_pass(added: AddedPass) -> None:
    """Adds a pass to the pipeline of the kinds of targets that it is for and that have the pass before it.

    The keys of caches contain a digest of its sources. TreadleError for a name that is taken, what is no pass, options
    without defaults, no reason, and a place that no pass and no stage is.
    """
    kind = cast("object", added.kind)  # of untyped callers
    if not (isinstance(kind, type) and issubclass(kind, ModulePass)):
        raise TreadleError(f"{kind!r} is no pass", "register_pass", "a subclass of xdsl.passes.ModulePass")
    name, where = kind.name, f"pass '{kind.name}'"
    if name in PASS_NAMES or name in ADDED_PASSES:
        raise TreadleError(f"there is a pass '{name}'", "register_pass", "another name")
    needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    if needed:
        raise TreadleError(f"its options {', '.join(needed)} have no defaults", where, "a default for each option")
    if not added.reason:
        raise TreadleError("it has no reason for its place", where, "a sentence, such as those of Treadle's passes")
    places = [*STAGE_NAMES, *PASS_NAMES, *ADDED_PASSES]
    if added.after not in places:
        raise TreadleError(f"'{added.after}' is no pass and no stage to run after", where, places)
    ADDED_PASSES[name] = added


def _with_added(kind: TargetKind) -> Passes:
    """The passes of a kind of target, and those that were added in their places: where several have one, in order."""
    if not ADDED_PASSES:
        return PASSES[kind]
    found = {stage: list(steps) for stage, steps in PASSES[kind].items()}
    behind: dict[str, int] = {}
    for added in ADDED_PASSES.values():
        places = [(s, n) for s, steps in found.items() for n, step in enumerate(steps) if step.name == added.after]
        if added.after in found:
            places = [(added.after, len(found[added.after]) - 1)]
        if kind not in added.targets or not places:
            continue
        stage, position = places[-1]
        offset = 0 if added.after in found else behind.get(added.after, 0)
        found[stage].insert(position + 1 + offset, Step(added.kind(), added.reason))
        behind[added.after] = offset + 1
    return {stage: tuple(steps) for stage, steps in found.items()}


def passes_of(
    stage: Stage, target: Target, options: CompileOptions | None = None, passes: Passes | None = None
) -> tuple[ModulePass, ...]:
    """The passes of a stage for a target (with default options unless some are given), ready to run; `passes`: instead
    of those of the target's kind."""
    return _ready((_with_added(target.kind) if passes is None else passes)[stage.name], target, options)


@functools.cache
def _ready(steps: _Steps, target: Target, options: CompileOptions | None) -> tuple[ModulePass, ...]:
    # A string, since the text of a target has braces. It is put in last: it may hold any word.
    words = (options or CompileOptions()).words() | {"TARGET": f'"{target}"'}
    found: list[ModulePass] = []
    for step in steps:
        if isinstance(step.spec, ModulePass):
            found.append(step.spec)
            continue
        spec = step.spec
        for word, meaning in words.items():
            spec = spec.replace(word, meaning)
        found += parse_passes(spec)
    return tuple(found)


def stages_between(after: str | None, to: str | None) -> tuple[Stage, ...]:
    """The stages that follow `after` (None: from the first) up to and including `to` (None: to the last).

    Raises TreadleError for a name that is no stage, and where `to` comes before `after`.
    """
    start = 0 if after is None else _position(after) + 1
    end = len(STAGES) if to is None else _position(to) + 1
    if end < start:
        raise TreadleError(f"stage '{to}' comes before '{after}'", "pipeline", STAGE_NAMES[start:])
    return STAGES[start:end]


def stage_of(module: ModuleOp, after: str | None = None) -> str | None:
    """The stage that left a module: what its attribute `treadle.stage` says, else `after`.

    TreadleError where either names no stage, and where they name different ones.
    """
    recorded = module.attributes.get(RECORD)
    if after is not None:
        _position(after)
    if recorded is None:
        return after
    name = recorded.data if isinstance(recorded, StringAttr) else str(recorded)
    _position(name)
    if after not in (None, name):
        raise TreadleError(f"stage '{name}' left the module, not '{after}'", "pipeline", f"'{name}', or no stage")
    return name


def record_stage(module: ModuleOp, stage: str) -> None:
    """Notes in a module that is to be written which stage left it, so that it can be resumed without saying so."""
    module.attributes[RECORD] = StringAttr(stage)


def lower(
    context: Context,
    module: ModuleOp,
    target: Target,
    *,
    after: str | None = None,
    to: str | None = None,
    instruments: Sequence[Instrument] = (),
    options: CompileOptions | None = None,
    passes: Passes | None = None,
) -> None:
    """Runs the stages after `after` (default: the one that the module was written after) up to `to` on `module`, in
    place, and checks every border. `passes`: of a backend that has a list of its own (docs/new-backend.md).

    Raises TreadleError where a pass fails or leaves what may not remain, naming the pass and the operation.
    """
    after = stage_of(module, after)
    if after is None:
        check_sizes(module)
    else:
        check_legal(module, after, target.kind)
    module.attributes.pop(RECORD, None)
    for stage in stages_between(after, to):
        for step in passes_of(stage, target, options, passes):
            _run(context, module, stage, step, instruments)
        check_legal(module, stage.name, target.kind)
        check_instructions(module, target)


def _run(context: Context, module: ModuleOp, stage: Stage, step: ModulePass, instruments: Sequence[Instrument]) -> None:
    for instrument in instruments:
        instrument.before(stage.name, step, module)
    try:
        step.apply(context, module)
    except DiagnosticException as error:
        raise TreadleError(str(error).splitlines()[0], f"pass '{step.name}'") from error
    except TreadleError:
        raise
    except RecursionError as error:
        raise TreadleError("the IR nests too deeply", f"pass '{step.name}'", TOO_DEEP) from error
    except Exception as error:
        error.add_note(f"in pass '{step.name}' of stage '{stage.name}'")
        raise
    for instrument in instruments:
        instrument.after(stage.name, step, module)


def _position(name: str) -> int:
    if name not in STAGE_NAMES:
        raise unknown("stage", name, STAGE_NAMES)
    return STAGE_NAMES.index(name)
