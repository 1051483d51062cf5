"""lit's configuration: tests of the command-line tools, each started as a user starts it.

Tests of single passes run in-process under pytest (`tests/passes`), where a case costs milliseconds.
"""

import os
import sys
from pathlib import Path

import lit.formats

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent

# lit calls this file with `config` defined.
config.name = "treadle"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.excludes = ["inputs"]
config.test_source_root = str(REPOSITORY / "tests" / "filecheck")
config.test_exec_root = str(REPOSITORY / "build" / "lit")

# The tools of this environment, before any that the caller's PATH has.
config.environment["PATH"] = os.pathsep.join([str(TOOLS), config.environment.get("PATH", "")])
# The user's cache is left alone.
config.environment["TREADLE_CACHE_DIR"] = str(Path(config.test_exec_root) / "cache")
