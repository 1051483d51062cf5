"""How large the package is: numbers that only a reviewed change of this file raises (docs/adr/0067)."""

from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "treadle"
MOST_FILES = 501
"""With room for what recipes of CONTRIBUTING.md add."""
MOST_LINES = 600
"""Of one file."""
MOST_AT_THE_TOP = 10


def lengths() -> dict[Path, int]:
    return {path.relative_to(PACKAGE): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}


def test_files() -> None:
    found = lengths()
    assert len(found) <= MOST_FILES
    assert {path: lines for path, lines in found.items() if lines > MOST_LINES} == {}


def test_modules_at_the_top() -> None:
    assert len([path for path in lengths() if path.parent == Path()]) <= MOST_AT_THE_TOP


ASK_FOR_CUDA = {
    "api.py",
    "backends/c/static_library.py",
    "backends/cuda/compiler.py",
    "compiler/artifact_writer.py",
    "passes/graph/fusion_cost.py",
    "passes/graph/graph_multiply_bytes.py",
    "passes/graph/graph_quantized_products.py",
    "passes/loop/loop_unroll.py",
    "schedules/nest/kernel.py",
    "schedules/nest/nest.py",
    "schedules/occupancy.py",
    "schedules/rules/tiling.py",
    "schedules/search/walk.py",
    "schedules/work/recorder.py",
    "target/description.py",
    "tools/bisect_search.py",
    "tools/tune_command.py",
    "tuning/measure.py",
    "tuning/model.py",
    "tuning/workers.py",
}
"""Modules that ask what kind of target they have; elsewhere, data of the target or its list of passes says it."""


def test_which_modules_ask_for_the_kind_of_target() -> None:
    asking = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "is_cuda" in path.read_text()}
    assert asking <= ASK_FOR_CUDA
