"""`treadle`: compiles, runs and checks ONNX models, draws task mappings, and empties its cache."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.support.commands import Parser
from treadle.support.lazy import lazy_module
from treadle.support.version import __version__
from treadle.target import TARGETS
from treadle.target.options import CONSTRUCTIONS, CONVOLUTIONS, DEVICES, PRECISIONS, WEIGHTS, CompileOptions
from treadle.tools.reporting import run_reporting

if TYPE_CHECKING:
    from treadle.plugins import loader
    from treadle.tools import (
        bench_command,
        bisect_command,
        cache_command,
        certify_command,
        chat_command,
        check_command,
        compile_command,
        explore_command,
        gguf_command,
        map_command,
        report_command,
        run_command,
        sanitize_command,
        schedules_command,
        tune_command,
    )
else:  # --help and --version wait for none of them
    loader = lazy_module("treadle.plugins.loader")
    bench_command = lazy_module("treadle.tools.bench_command")
    bisect_command = lazy_module("treadle.tools.bisect_command")
    cache_command = lazy_module("treadle.tools.cache_command")
    certify_command = lazy_module("treadle.tools.certify_command")
    chat_command = lazy_module("treadle.tools.chat_command")
    check_command = lazy_module("treadle.tools.check_command")
    compile_command = lazy_module("treadle.tools.compile_command")
    explore_command = lazy_module("treadle.tools.explore_command")
    gguf_command = lazy_module("treadle.tools.gguf_command")
    map_command = lazy_module("treadle.tools.map_command")
    report_command = lazy_module("treadle.tools.report_command")
    run_command = lazy_module("treadle.tools.run_command")
    sanitize_command = lazy_module("treadle.tools.sanitize_command")
    schedules_command = lazy_module("treadle.tools.schedules_command")
    tune_command = lazy_module("treadle.tools.tune_command")

_SHAPE_HELP = "the shape of an input that the model leaves dynamic; or batch=1, a dimension by its name; repeatable"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool on `argv` (default: the process's arguments).

    The exit status: 0; 1 if a model is not supported, differs from the reference or has findings; 2 if an input or a
    setting cannot be accepted, with one line on stderr; 130 after Ctrl-C.
    """
    return run_reporting("treadle", lambda: _dispatch(argv))


def _dispatch(argv: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        _parser().print_help()
        return 0
    return _run(_parser().parse_args(arguments))


_COMPILING = ("compile", "run", "bench", "report", "explore", "certify", "schedules", "tune", "check", "bisect")
"""Commands that plug-ins take part in."""


def _run(args: argparse.Namespace) -> int:
    if args.command in _COMPILING:
        loader.load_plugins()
    match args.command:
        case "compile":
            return compile_command.compile_command(args)
        case "run":
            return run_command.run_command(args)
        case "bench":
            return bench_command.bench_command(args)
        case "report":
            return report_command.report_command(args)
        case "explore":
            return explore_command.explore_command(args)
        case "schedules":
            return schedules_command.schedules_command(args)
        case "tune":
            return tune_command.tune_command(args)
        case "check":
            return check_command.check_command(args)
        case "certify":
            return certify_command.certify_command(args)
        case "chat":
            return chat_command.chat_command(args)
        case "gguf":
            return gguf_command.gguf_command(args)
        case "bisect":
            return bisect_command.bisect_command(args)
        case "map":
            return map_command.map_command(args)
        case "sanitize":
            return sanitize_command.sanitize_command(args)
        case _:
            return cache_command.cache_command(args)


def _parser() -> Parser:
    parser = Parser(prog="treadle", description="A deep-learning compiler: ONNX models to C and CUDA C++.")
    parser.add_argument("--version", action="version", version=f"treadle {__version__}")
    names = (
        "compile | run | chat | gguf | bench | report | explore | tune | schedules | check | certify | bisect | map | "
        "cache"
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar=names)
    _add_compile(commands.add_parser("compile", help="write a model as C or CUDA text, compiled"))
    _add_run(commands.add_parser("run", help="compile a model and run it"))
    _add_chat(commands.add_parser("chat", help="have a compiled decoder continue what is typed"))
    _add_gguf(commands.add_parser("gguf", help="write the decoder of a GGUF file as an ONNX model"))
    _add_bench(commands.add_parser("bench", help="time a model, its kernels, and other runtimes beside it"))
    _add_report(commands.add_parser("report", help="write a model's launches, times, memory and texts as a page"))
    _add_explore(commands.add_parser("explore", help="show a compile's stages in a browser, and edit its decisions"))
    _add_tune(commands.add_parser("tune", help="search schedules for a model on this machine"))
    _add_schedules(commands.add_parser("schedules", help="say what may be chosen for a model's kernels"))
    _add_check(commands.add_parser("check", help="say which nodes of a model are supported"))
    _add_certify(commands.add_parser("certify", help="prove that each call of a range has one kernel"))
    _add_bisect(commands.add_parser("bisect", help="name the pass that changes what a model computes"))
    _add_sanitize(
        commands.add_parser(
            "sanitize",
            help="run the kernels of a CUDA file on the CPU, and find races, bounds, reads before writes, divergence",
        )
    )
    _add_map(commands.add_parser("map", help="draw task mappings: who does which task, and when"))
    _add_cache(commands.add_parser("cache", help="say what the cache holds"))
    return parser


def _add_compile(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, or an .mlir file that `--to` wrote")
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="the model is a .pt2 file of torch.export.save, and is loaded, which may run code that is in it",
    )
    _add_states(parser)
    _add_target(parser)
    _add_settings(parser)
    _add_from(parser)
    _add_database(parser)
    parser.add_argument("--to", metavar="STAGE", help="write the IR after STAGE instead of code")
    parser.add_argument(
        "--emit",
        choices=("artifact", "c-library", "onnx", "mlir"),
        help="what to write: a folder that treadle loads (default), a static library with a header for C programs, an "
        "ONNX model of one custom operator with the library that ONNX Runtime registers for it, or the IR after the "
        "stage of --to (default: the last) in MLIR's generic form, which mlir-opt reads",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="c-library, onnx: what the library's names begin with; default: the model's"
    )
    parser.add_argument("--trace", metavar="DIR", help="write the numbered IR after every pass")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write; - prints IR")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, an .mlir file, or a folder that `treadle compile` wrote", runs=True)
    _add_states(parser)
    _add_target(parser)
    _add_settings(parser)
    _add_from(parser)
    _add_database(parser)
    parser.add_argument(
        "--check", action="store_true", help="compare the outputs, and ONNX Runtime's, with the model's definition"
    )
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="then time N more calls: median, quartiles")
    parser.add_argument("--save", metavar="DIR", help="write each output as a .npy file, named after it")
    parser.add_argument(
        "--timeline", metavar="FILE", help="write what each thread did when, as a Chrome trace that Perfetto opens"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="run a GPU target's kernels on the CPU; --target cuda then means sm_80"
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="emulator: look for races, bounds, reads before writes, divergence"
    )
    parser.add_argument(
        "--profile", action="store_true", help="emulator: count sectors, conflicts, bytes, operations of each line"
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="emulator: what a kernel may take (default 60, and 600 with --sanitize or --profile)",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="compile a folder's kernels anew from its text; load no compiled code of it",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the cpu target")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for random inputs (default 0)")


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `treadle compile --states` wrote")
    parser.add_argument("--tokenizer", metavar="FILE", required=True, help="its tokenizer.json")
    parser.add_argument("--prompt", metavar="TEXT", help="one text to continue; without, each line of stdin is a turn")
    parser.add_argument("--begin", metavar="TEXT", default="", help="what stands before the first turn")
    parser.add_argument(
        "--turn", metavar="TEXT", default="{}", help="a turn as the model knows it, {} in place of what is typed"
    )
    parser.add_argument(
        "--stop", metavar="TOKEN", action="append", default=[], help="a token that ends an answer; repeatable"
    )
    parser.add_argument("--most", type=int, metavar="N", default=256, help="tokens of an answer (default %(default)s)")
    parser.add_argument(
        "--lookup",
        type=int,
        default=0,
        metavar="N",
        help="speculative decoding: draft tokens a step, from the text so far",
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default: the most probable token")
    parser.add_argument("--top-k", type=int, default=0, metavar="N", help="draw from the N most probable tokens")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from those that reach P together")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: repeat less")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default 0)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call")


def _add_gguf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a GGUF file of an architecture that is supported")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")


def _add_compiled_call(parser: argparse.ArgumentParser) -> None:
    """What a model is compiled for, and its inputs."""
    _add_target(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="of products, convolutions and attention; default f32")
    _add_weights(parser)
    _add_convolution(parser)
    _add_database(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for random inputs (default 0)")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, an .mlir file, or a folder that `treadle compile` wrote", runs=True)
    _add_states(parser)
    _add_compiled_call(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call, of the peers' too")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="of the measurement (default %(default)g)"
    )
    parser.add_argument(
        "--streams", type=int, metavar="N", help="calls a second of N instances that share weights, a caller each"
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        metavar="NAME",
        help="runtimes to measure beside it: onnxruntime, openvino, or none; default: those that are installed",
    )
    parser.add_argument("--against", metavar="DIR", help="a folder that `treadle compile` wrote, measured beside it")
    parser.add_argument("--kernels", type=int, default=20, metavar="N", help="the longest N kernels (default 20)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers; - prints them")


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, an .mlir file, or a folder that `treadle compile` wrote", runs=True)
    _add_states(parser)
    _add_compiled_call(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call")
    parser.add_argument(
        "--seconds", type=float, default=3.0, metavar="N", help="of the measurement (default %(default)g)"
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare outputs with the model's definition")
    parser.add_argument("-o", "--output", metavar="FILE.html", required=True, help="the page; - prints it")


def _add_explore(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, or an .mlir file of a stage up to 'schedule'", runs=True)
    _add_states(parser)
    _add_compiled_call(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="N", help="of the timing after an edit (default %(default)g)"
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare outputs with the model's definition")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="of the page; 0, the default: one that is free"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--export", metavar="DIR", help="write the page as a folder that needs no server instead")


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file", nargs="?")
    parser.add_argument("--operators", action="store_true", help="list the supported operators instead")
    parser.add_argument("--nodes", action="store_true", help="list every node, not every kind of operator")
    parser.add_argument("--memory", action="store_true", help="compile it, and print the memory that a call takes")
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="say which kernel each group gets on the target, and why not a better one",
    )
    _add_target(parser)
    _add_settings(parser)


def _add_certify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", help="a folder that `treadle compile` wrote")
    parser.add_argument(
        "--report",
        metavar="FILE.html",
        help="write a page with tables, and pictures of what was predicted; - prints it",
    )


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file, or an .mlir file of graph operators", runs=True)
    _add_compiled_call(parser)
    parser.add_argument(
        "--operations",
        type=int,
        metavar="N",
        help="interpret the kernels of a model of at most N operations after every pass (default 2**22); those of "
        "others only once they are reduced",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="bisected", help="where the reduced model goes (default %(default)s)"
    )


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file; without one, --report is of all that the database holds", nargs="?")
    _add_target(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="of products, convolutions and attention; default f32")
    parser.add_argument(
        "--database", metavar="DIR", required=True, help="the folder of tuned schedules; made if there is none"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="of the whole search (default 900), or of a ranking (default 60)"
    )
    parser.add_argument("--trials", type=int, metavar="N", help="time at most so many candidates")
    parser.add_argument(
        "--groups", action="append", metavar="WORD", help="only groups whose names contain it; repeatable"
    )
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="SYMBOL=FILE.json",
        help='of a range, how often its values occur: {"37": 120, "128": 44}; without, they are spread; repeatable',
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default 0)")
    parser.add_argument(
        "--strategy",
        default="evolution",
        metavar="NAME",
        help="%(default)s (default), evolution-annealed, exhaustive, greedy, random, walk or walk-paper",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an interrupted search, as without it; fail if there is none"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="search nothing: time anew the entries that other versions of treadle measured, and drop slower ones",
    )
    parser.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="build and time on the workers of a Dask scheduler, for their kind of machine",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="count, reject and rank candidates; build and time nothing"
    )
    parser.add_argument(
        "--explain", metavar="WORD", help="say why candidates of these groups are rejected, or ranked as they are"
    )
    parser.add_argument("--report", metavar="FILE.html", help="write what was tried and chosen as a page; - prints it")


def _add_schedules(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, "an .onnx file")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only groups whose names contain one of these words")
    _add_target(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="of products, convolutions and attention; default f32")
    parser.add_argument("--limits", action="store_true", help="count which limits reject how many combinations")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove everything that is not in use")


def _add_sanitize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help='CUDA C++ with extern "C" __global__ functions')
    parser.add_argument(
        "--launch", metavar="TEXT", action="append", required=True,
        help="'kernel<<<GRID, BLOCK>>>(f32[1024]:in, y=f32[1024], 2.0)'; repeatable, in order",
    )  # fmt: skip
    parser.add_argument("--checks", metavar="A,B", help="of races, bounds, init, divergence (default: all)")
    parser.add_argument(
        "--profile", action="store_true", help="count sectors, conflicts, bytes, operations of each line"
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="what a launch may take (default 60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of arrays that are :in (default 0)")
    parser.add_argument("--save", metavar="DIR", help="write each array as a .npy file afterwards, named after it")


def _add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mapping",
        metavar="MAPPING|FILE.mlir",
        help="a mapping such as 'spatial(4, 2) * repeat(2, 2)', or IR whose every task.for is drawn",
    )
    parser.add_argument("-o", "--output", metavar="FILE.svg", help="write a picture instead of text; - prints it")
    parser.add_argument(
        "--limit",
        type=int,
        default=32,
        metavar="N",
        help="draw at most N rows, N columns and N slices of a grid (default 32)",
    )


def _add_model(parser: argparse.ArgumentParser, what: str, nargs: str | None = None, *, runs: bool = False) -> None:
    parser.add_argument("model", metavar="MODEL", help=what, nargs=nargs)
    parser.add_argument("--shape", action="append", default=[], metavar="x=1,3,48,320", help=_SHAPE_HELP)
    values = "; or NAME=FILE.npy, its values in the call, which are random ones by default" if runs else ""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="sr=16000",
        help=f"an input's value in every call, which is a constant of the compiled model{values}; repeatable",
    )


def _add_states(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--states",
        action="append",
        default=[],
        metavar="past=present",
        help="an input that is an output of the call before, and is kept by the model; repeatable; auto: those that "
        "exporters name alike",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(TARGETS)
    # No default here: `run` has to know whether a target was asked for.
    parser.add_argument(
        "--target",
        metavar="NAME",
        help=f"{names}, with other values as sm_80{{multiprocessors=56}}, or cuda (this machine's GPU); default cpu",
    )


def _add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database", metavar="DIR", help="take schedules that `treadle tune` found, where it has some")
    parser.add_argument(
        "--construct", choices=CONSTRUCTIONS,
        help=f"schedules of other kernels: their template's, or what a search predicts to be fastest, without timing; "
        f"default {CompileOptions.construct}",
    )  # fmt: skip


def _add_from(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="after", metavar="STAGE", help="of an .mlir file: the stage that wrote it; without, none has run"
    )


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights", choices=WEIGHTS,
        help="store the constant matrices of products in 4 or 8 bits and a scale for 32 of them, or in bf16; "
        f"default {CompileOptions.weights}, as the model has them",
    )  # fmt: skip


def _add_convolution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--convolution", choices=CONVOLUTIONS,
        help=f"3x3 filters on CPUs: by Winograd's F(2x2), or up to F(4x4), where that is estimated to be faster; "
        f"default {CompileOptions.convolution}",
    )  # fmt: skip


def _add_settings(parser: argparse.ArgumentParser) -> None:
    # No default here, either.
    parser.add_argument("--precision", choices=PRECISIONS, help="of products, convolutions and attention; default f32")
    _add_weights(parser)
    _add_convolution(parser)
    parser.add_argument(
        "--explain-fusion", action="store_true", help="say which neighbours share a kernel, and why not (on stderr)"
    )


if __name__ == "__main__":
    sys.exit(main())
