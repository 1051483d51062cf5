"""lit's configuration: `lit tests` runs every `.mlir` test, `lit tests/filecheck` those of the command-line tools.

Each RUN line starts its tools as a user starts them. `make test` leaves all but `tests/filecheck` to pytest, which runs
them in-process (`tests/conftest.py`): there a case costs milliseconds.
"""

import os
import sys
from pathlib import Path

import lit.formats

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent

# lit calls this file with `config` defined.
config.name = "treadle"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.excludes = ["inputs"]
config.test_source_root = str(REPOSITORY / "tests")
config.test_exec_root = str(REPOSITORY / "build" / "lit")

# The tools of this environment, before any that the caller's PATH has, on the sources of this checkout.
config.environment["PATH"] = os.pathsep.join([str(TOOLS), config.environment.get("PATH", "")])
config.environment["PYTHONPATH"] = str(REPOSITORY)
# The user's cache is left alone.
config.environment["TREADLE_CACHE_DIR"] = str(Path(config.test_exec_root) / "cache")
