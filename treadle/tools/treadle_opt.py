"""`treadle-opt`: runs passes and stages on IR text or on an ONNX model, and prints the result."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.targets.mlir import MLIRTarget
from xdsl.utils.exceptions import UnregisteredConstructException
from xdsl.xdsl_opt_main import xDSLOptMain

from treadle.api import EMULATED
from treadle.compiler.pipeline import STAGE_NAMES, lower, record_stage, stages_between
from treadle.dialects.location import LocatedParser, NodePrinter, ir_text
from treadle.errors import TreadleError
from treadle.passes.instruments import Instrument, Timing, Trace, Verify, verify
from treadle.passes.registry import ADDED_PASSES, parse_passes, pass_factories
from treadle.plugins.loader import load_plugins
from treadle.support.lazy import lazy_module
from treadle.support.output import output_stream
from treadle.target import Target
from treadle.target.options import CONVOLUTIONS, PRECISIONS, WEIGHTS, CompileOptions, parse_convolution
from treadle.tools.arguments import parse_shapes, read_constants
from treadle.tools.process_state import xdsl_switches_restored
from treadle.tools.reporting import run_reporting

if TYPE_CHECKING:
    from treadle.frontends import onnx
else:  # IR text does not wait for the ONNX package
    onnx = lazy_module("treadle.frontends.onnx")


class TreadleOptMain(xDSLOptMain):
    """xDSL's driver with ONNX as an input format, stages as pipelines, and errors of one line."""

    version_format = "treadle-opt built from xdsl version {xdsl_version}"
    _output: IO[str]

    def __init__(self, args: Sequence[str] | None = None):
        super().__init__("Runs Treadle's and xDSL's passes on IR text or an ONNX model", args)

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """xDSL's options, and Treadle's."""
        super().register_all_arguments(arg_parser)
        arg_parser.prog = "treadle-opt"
        arg_parser.error = _refuse
        arg_parser.usage = "treadle-opt [options] [input_file]"  # generated, it would list every pass twice
        arg_parser.add_argument(
            "--list-passes", action=_ListPasses, nargs=0, help="print Treadle's passes, and plug-ins', and exit"
        )
        group = arg_parser.add_argument_group("stages")
        group.add_argument(
            "--pipeline",
            metavar="TARGET",
            help="run the stages of the compiler for TARGET (cpu, sm_80, 'sm_80{multiprocessors=56}', ...), before -p; "
            f"where --to, --from and the like ask for stages without it: {EMULATED} for -t cuda, else cpu",
        )
        group.add_argument("--to", metavar="STAGE", help=f"the last stage to run; one of {', '.join(STAGE_NAMES)}")
        group.add_argument("--from", dest="after", metavar="STAGE", help="what left an input that does not name it")
        group.add_argument("--precision", choices=PRECISIONS, default="f32", help="of products; default f32")
        group.add_argument(
            "--weights", choices=WEIGHTS, default="float", help="as products store theirs; default float"
        )
        group.add_argument("--convolution", choices=CONVOLUTIONS, help=f"of CPUs; default {CompileOptions.convolution}")
        group.add_argument(
            "--explain-fusion", action="store_true", help="say which neighbours share a kernel, and why not"
        )
        group.add_argument("--trace", metavar="DIR", help="write the numbered IR after every pass")
        group.add_argument(
            "--shape",
            action="append",
            default=[],
            metavar="x=1,3,48,320",
            help="the shape of an ONNX model's input; may be repeated",
        )
        group.add_argument(
            "--input", action="append", default=[], metavar="sr=16000",
            help="a value of an ONNX model's input that is the same in every call; may be repeated",
        )  # fmt: skip

    def register_all_frontends(self) -> None:
        """IR text, and ONNX."""
        self.available_frontends["mlir"] = self._parse_text
        self.available_frontends["onnx"] = self._import_onnx

    def register_all_targets(self) -> None:
        """xDSL's and Treadle's; IR text keeps which nodes of a model its operations compute."""
        super().register_all_targets()
        self.available_targets["mlir"] = lambda: NodeTarget

    def register_all_passes(self) -> None:
        """xDSL's, Treadle's, and those of plug-ins."""
        super().register_all_passes()
        load_plugins()
        self.available_passes.update({name: pass_factories()[name] for name in ADDED_PASSES})

    def setup_pipeline(self) -> None:
        """As xDSL's, with errors that name what would be accepted; checks the stages' options, too."""
        callback = _between_passes(self.args)
        passes = parse_passes(self.args.passes, self.available_passes)
        if self.args.explain_fusion:
            passes = tuple(replace(each, explain=True) if each.name == "graph-fuse" else each for each in passes)
        self.pipeline = PassPipeline(passes, callback)
        staged = self.args.to is not None or self.args.after is not None or self.args.trace is not None
        # They are options of the stages, unless passes are named that they apply to.
        asked = (
            staged
            or self.args.precision != "f32"
            or self.args.weights != "float"
            or self.args.convolution is not None
            or (self.args.explain_fusion and not passes)
        )
        if self.args.pipeline is None and asked:
            # CUDA text wants a GPU's passes: those of the target that the emulator plays.
            self.args.pipeline = EMULATED if self.args.target == "cuda" else "cpu"
        self._target = None if self.args.pipeline is None else Target.parse(self.args.pipeline)
        stages_between(self.args.after, self.args.to)

    def run(self) -> None:
        """Reads, runs, prints; an output file changes only when all went well."""
        with output_stream(self.args.output_file) as output:
            self._output = output
            super().run()

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        """The input as a whole, and its extension; TreadleError if it cannot be read."""
        if self.args.input_file is None:
            return BytesIO(sys.stdin.buffer.read()), "mlir"
        path = Path(self.args.input_file)
        extension = path.suffix.removeprefix(".")
        if not self.args.frontend and extension not in self.available_frontends:
            formats = (f".{name}" for name in self.available_frontends)
            raise TreadleError(f"unknown format '{path.suffix}'", path, formats)
        try:
            return BytesIO(path.read_bytes()), extension
        except OSError as error:
            accepted = "a file that exists and can be read"
            raise TreadleError(f"cannot read: {error.strerror}", path, accepted) from error

    def prepare_output(self) -> IO[str]:
        """stdout, or a text that xDSL may close when it is done."""
        return self._output if self._output is sys.stdout else _Text(self._output)

    def apply_passes(self, prog: ModuleOp) -> None:
        """The stages that were asked for, then the passes of -p."""
        if not self.args.disable_verify:
            verify(prog, "as it was read")
        if self._target is not None:
            timing = Timing()
            lower(
                self.ctx, prog, self._target,
                after=self.args.after, to=self.args.to, instruments=[timing, *self._instruments(prog)],
                options=CompileOptions(
                    self.args.precision, self.args.explain_fusion,
                    convolution=parse_convolution(self.args.convolution, self._target.kind), weights=self.args.weights,
                ),
            )  # fmt: skip
            record_stage(prog, self.args.to or STAGE_NAMES[-1])
            if self.args.time_passes:
                for name, seconds in timing.seconds:
                    print(f"Pass {name} took {seconds} seconds", file=sys.stderr)
        super().apply_passes(prog)

    def _instruments(self, module: ModuleOp) -> list[Instrument]:
        instruments: list[Instrument] = [] if self.args.disable_verify else [Verify()]
        if self.args.trace is not None:
            trace = Trace(Path(self.args.trace))
            trace.start(module)
            instruments.append(trace)
        return instruments

    def _parse_text(self, io: IO[bytes]) -> ModuleOp:
        name = self.get_input_name()
        try:
            text = io.read().decode()
        except UnicodeDecodeError as error:
            message = f"not text: {error.reason} at byte {error.start}"
            raise TreadleError(message, name, "IR as UTF-8 text") from error
        try:
            return LocatedParser(self.ctx, text, name).parse_module(not self.args.no_implicit_module)
        except UnregisteredConstructException as error:
            accepted = "--allow-unregistered-dialect, or a known dialect"
            raise TreadleError(str(error), name, accepted) from error

    def _import_onnx(self, io: IO[bytes]) -> ModuleOp:
        """The model of the input file; its path is needed to find external data."""
        if self.args.input_file is None:
            raise TreadleError("an ONNX model cannot come from stdin", "stdin", "a path to an .onnx file")
        return onnx.import_model(self.args.input_file, parse_shapes(self.args.shape), read_constants(self.args.input))


@dataclass(frozen=True)
class NodeTarget(MLIRTarget):
    """IR text as xDSL prints it, with the locations that name nodes."""

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Prints the module; with colours it is for reading alone, and as xDSL prints it."""
        if self.syntax_highlight:
            super().emit(ctx, module, output)
            return
        printer = NodePrinter(
            stream=output,
            print_generic_format=self.print_generic_format,
            print_properties_as_attributes=self.print_properties_as_attributes,
            print_debuginfo=self.print_debuginfo,
        )
        printer.print_op(module)
        printer.print_metadata(ctx.loaded_dialects)
        print(file=output)


class _Text(StringIO):
    """Passes its text on when it is closed."""

    def __init__(self, output: IO[str]):
        super().__init__()
        self._output = output

    def close(self) -> None:
        """Writes the text; a second call does nothing."""
        if not self.closed:
            self._output.write(self.getvalue())
        super().close()


def _between_passes(
    args: argparse.Namespace,
) -> Callable[[ModulePass | None, ModuleOp, ModulePass | None], None]:
    """What happens between the passes of -p: verification, and what the options ask to print."""
    start = time.perf_counter()

    def callback(before: ModulePass | None, module: ModuleOp, after: ModulePass | None) -> None:
        nonlocal start
        if before is not None and args.time_passes:
            print(f"Pass {before.name} took {time.perf_counter() - start} seconds")
        if before is not None and not args.disable_verify:
            verify(module, f"after pass '{before.name}'")
        if before is not None and after is not None and args.print_between_passes:
            print(f"IR after {before.name}:\n{ir_text(module)}\n")
        start = time.perf_counter()

    return callback


class _ListPasses(argparse.Action):
    """Prints each pass with its options, as `-p` takes them, and with the first sentence about it, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> NoReturn:
        load_plugins()
        for name, factory in sorted(pass_factories().items()):
            kind = factory()
            text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
            print(f"{name}{_pass_options(kind)}\n    {re.split(r'(?<=[.]) ', text)[0]}")
        parser.exit()


def _pass_options(kind: type[ModulePass]) -> str:
    """`{target=str database=""}`: the type of an option, or its default; nothing where there are none."""
    options = [f"{option.name}={_default(option)}" for option in dataclasses.fields(kind)]
    return "{" + " ".join(options) + "}" if options else ""


def _default(option: dataclasses.Field[object]) -> str:
    default = option.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'"{default}"'
    return str(default if isinstance(default, int | float) else option.type)


def _refuse(message: str) -> NoReturn:
    """One line instead of argparse's two."""
    raise TreadleError(message, "arguments", "what `treadle-opt --help` lists")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool on `argv` (default: the process's arguments); its exit status."""

    def action() -> int:
        with xdsl_switches_restored():
            TreadleOptMain(argv).run()
        return 0

    return run_reporting("treadle-opt", action)


if __name__ == "__main__":
    sys.exit(main())
