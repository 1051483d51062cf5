"""`treadle explore`: the stages of a compile in a browser, with decisions that can be edited; or as a folder."""

from __future__ import annotations

import argparse
import webbrowser
from contextlib import closing
from pathlib import Path

from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.runtime.inputs import read_inputs
from treadle.support.publishing import check_replaceable, publish
from treadle.tools.arguments import shapes_of_call
from treadle.tools.explore_export import is_export, write_export
from treadle.tools.explore_page import INDEX
from treadle.tools.explore_server import Server
from treadle.tools.explore_session import Session, Settings
from treadle.tools.progress_bar import progress_bar
from treadle.tools.report_command import request_of

_MOST_PORT = 65535
_LEAST_SECONDS = 0.1


def explore_command(args: argparse.Namespace) -> int:
    """Compiles the model, then serves the page until Ctrl-C, or writes it where `--export` says."""
    if not 0 <= args.port <= _MOST_PORT:
        raise TreadleError(f"{args.port} is no port", "--port", f"0 to {_MOST_PORT}; 0 takes one that is free")
    if args.seconds < _LEAST_SECONDS:
        raise TreadleError(f"{args.seconds:g} seconds", "--seconds", f"at least {_LEAST_SECONDS:g}")
    if args.threads is not None and args.threads < 1:
        raise TreadleError(f"{args.threads} is not a number of threads", "--threads", "1 upwards")
    path = Path(args.model)
    if path.is_dir():
        accepted = "the model itself, or IR up to stage 'schedule'"
        raise TreadleError("a compiled folder has no stages to explore", path, accepted)
    if args.export is not None:
        check_replaceable(Path(args.export), is_export)
    given = read_inputs(args.input)
    threads = load_environment().num_threads if args.threads is None else args.threads
    settings = Settings(args.seconds, threads, args.seed, not args.no_check)
    request = request_of(path, shapes_of_call(args.shape, given.shapes), given, args)
    with closing(Session(request, given, settings)) as session:
        return _serve(session, args) if args.export is None else _export(session, args.export)


def _serve(session: Session, args: argparse.Namespace) -> int:
    with Server(session, args.port) as server:  # no minutes for a port that is in use
        note = session.progress
        with progress_bar() as progress:
            session.progress = progress
            session.begin()
        session.progress = note
        print(f"{server.address}\nCtrl-C ends it", flush=True)
        if args.open:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
    return 0


def _export(session: Session, name: str) -> int:
    with progress_bar() as progress:
        session.progress = progress
        session.begin()
        session.measure()
        publish(Path(name), lambda folder: write_export(session, folder), replace=is_export)
    size = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
    print(f"{Path(name) / INDEX}: {len(session.current.recorder.passes)} passes, {size / 1e6:.1f} MB")
    return 0


__all__ = ["explore_command"]
