"""`treadle gguf`: a decoder in a GGUF file becomes an ONNX model."""

from __future__ import annotations

import argparse
from pathlib import Path

from treadle.errors import TreadleError
from treadle.frontends.gguf import write_decoder
from treadle.tools.progress_bar import progress_bar


def gguf_command(args: argparse.Namespace) -> int:
    """Runs the command; its exit status. TreadleError for a file that is not read, and a folder that is no new one."""
    folder = Path(args.output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TreadleError("the folder is not empty", folder, "a new folder, or an empty one")
    with progress_bar() as progress:
        model = write_decoder(Path(args.file), folder, progress)
    print(f"{model}: {sum(each.stat().st_size for each in folder.iterdir()) / 1e6:.1f} MB")
    return 0
