"""What a compilation prints, as three texts: the schedules' decisions, the kernels, and the host program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tests.fingerprint.cases import Case
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.cuda.write_artifact import write_kernels
from treadle.backends.program import Program, read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph.fused import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.passes.instruments import Instrument
from treadle.support.progress import no_progress
from treadle.target import Target
from treadle.target.options import CompileOptions

KINDS = ("decisions", "kernels", "host")


def texts_of(case: Case, target_name: str) -> Mapping[str, str]:
    """The texts of a case for a target, by `KINDS`. What is refused has its error as the text of each."""
    target = Target.parse(target_name)
    decisions = _Decisions()
    try:
        with TemporaryDirectory() as folder:
            model = case.load(Path(folder))
            content = model if isinstance(model, Path) else model.SerializeToString()
            module = import_model(content, dict(case.shapes))
            options = CompileOptions(precision=case.precision)
            lower(treadle_context(), module, target, instruments=[decisions], options=options)
            printed = _cuda if target.is_cuda else _c
            kernels, host = printed(module, target, Path(folder))
    except TreadleError as error:
        return dict.fromkeys(KINDS, f"refused: {error}\n")
    return dict(zip(KINDS, ("".join(decisions.lines), kernels, host), strict=True))


@dataclass
class _Decisions(Instrument):
    """The schedule of every group, one a line, as the stage of schedules left them."""

    lines: list[str] = field(default_factory=list[str])

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        if stage == "schedule":
            self.lines = [f"{op.label.data}: {op.schedule}\n" for op in module.walk() if isinstance(op, FusedOp)]


def _c(module: ModuleOp, target: Target, folder: Path) -> tuple[str, str]:
    del target, folder
    kernels = "".join(f"// {unit.name}\n{unit.text}\n" for unit in print_kernels(module))
    return kernels, f"{print_host(module).text}\n{_described(read_program(module))}"


def _cuda(module: ModuleOp, target: Target, folder: Path) -> tuple[str, str]:
    program = read_program(module)
    launches = write_kernels(module, program, target, folder, no_progress, cubins=False)
    kernels = "".join(f"// {path.stem}\n{path.read_text()}\n" for path in sorted((folder / "kernels").glob("*.cu")))
    return kernels, f"{json.dumps([asdict(launch) for launch in launches], indent=1)}\n{_described(program)}"


def _described(program: Program) -> str:
    """The program's tensors, symbols, memory and dispatches. Not the values of constants: NumPy's sums of folded ones
    may differ between processors."""
    fields = [
        *(("input", each) for each in program.inputs),
        *(("output", each) for each in program.outputs),
        *(("constant", (each.type, each.sparse)) for each in program.constants),
        *(("dispatch", each) for each in program.dispatches),
        *(("symbol", str(each)) for each in program.symbols),
        ("bytes", (program.arena_bytes, program.zeroed_bytes)),
        ("extents", (program.extents, program.input_extents, program.output_extents, program.found)),
    ]
    return "".join(f"{name}: {_shown(value)}\n" for name, value in fields)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
