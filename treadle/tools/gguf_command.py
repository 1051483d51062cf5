"""`treadle gguf`: a decoder in a GGUF file becomes an ONNX model."""

from __future__ import annotations

import argparse
from pathlib import Path

from treadle.frontends.gguf import write_decoder
from treadle.tools.progress_bar import progress_bar


def gguf_command(args: argparse.Namespace) -> int:
    """Runs the command; its exit status. TreadleError for a file that is not read, or a folder of other files."""
    with progress_bar() as progress:
        model = write_decoder(Path(args.file), Path(args.output), progress)
    print(f"{model}: {sum(each.stat().st_size for each in model.parent.iterdir()) / 1e6:.1f} MB")
    return 0
