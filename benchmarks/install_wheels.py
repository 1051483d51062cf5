"""Puts the wheels of a folder where a machine without a network finds them: python benchmarks/install_wheels.py FROM TO

Of several wheels of one package the one for this Python is taken; a package that has none for it is left out, with one
line. With TO in PYTHONPATH they come before what is installed. Needs pip and the standard library alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def packages(folder: Path) -> list[str]:
    """The packages whose wheels lie in a folder, by name."""
    return sorted({wheel.name.split("-")[0] for wheel in folder.glob("*.whl")})


def install(folder: Path, target: Path) -> int:
    """Installs what fits; 1 with one line where the folder holds no wheels."""
    names = packages(folder)
    if not names:
        print(f"{folder}: no wheels; accepted: a folder of .whl files", file=sys.stderr)
        return 1
    for name in names:
        options = ["--no-index", "--no-deps", "--no-compile", "--upgrade", "--find-links", str(folder)]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options]
        done = subprocess.run([*command, "--target", str(target), name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{name} is left out: no wheel in {folder} fits this Python")
    return 0


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1]), Path(sys.argv[2])))
