"""`python -m tests.sanitized`: tests of compiled C with every library instrumented by a sanitizer.

AddressSanitizer and UndefinedBehaviorSanitizer: each operator of ONNX, each template of CPUs, kernels of ranges, loops
and branches, and 200 drawn models. ThreadSanitizer: the thread pool, and calls of models from several threads, but not
in forked children, where it does not work. Reports are printed, and make the exit status 1. Arguments are pytest's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.helpers.environment import environment_with
from tests.sanitized.sanitizers import ADDRESS, THREAD, Sanitizer, why_not

ROOT = Path(__file__).parents[2]
EVERY_RUN, SLOW = "not gpu and not slow", "not gpu and slow"
RUNS: Sequence[tuple[Sanitizer, str, Sequence[str]]] = (
    (
        ADDRESS,
        EVERY_RUN,
        (
            "tests/backends/c/test_cpu_targets.py",
            "tests/backends/c/test_integer_sums.py",
            "tests/backends/c/test_thread_pool.py",
            "tests/backends/test_integers.py",
            "tests/backends/test_small_floats.py",
            "tests/backends/test_stored_types.py",
            "tests/backends/test_timeline.py",
            "tests/frontends/onnx/test_data_extents.py",
            "tests/frontends/onnx/test_microsoft.py",
            "tests/frontends/onnx/test_node_conformance_compiled.py",
            "tests/frontends/onnx/test_recurrent_loops.py",
            "tests/fuzz/test_required_models.py",
            "tests/fuzz/test_ranged_models.py",
            "tests/passes/graph/test_pack_tiles.py",
            "tests/passes/graph/test_quantized_products.py",
            "tests/passes/loop",
            "tests/passes/schedule/test_dispatch.py",
            "tests/schedules/nest/test_nest_kernels.py",
            "tests/schedules/test_attention_cpu.py",
            "tests/schedules/test_attention_decode_cpu.py",
            "tests/schedules/test_attention_lengths.py",
            "tests/schedules/test_conv_tiles_cpu.py",
            "tests/schedules/test_matmul_cpu.py",
            "tests/schedules/test_matmul_tiles_cpu.py",
            "tests/schedules/test_panel_widths.py",
            "tests/schedules/test_winograd.py",
        ),
    ),
    (ADDRESS, SLOW, ("tests/sanitized/test_drawn_models.py",)),
    (
        THREAD,
        EVERY_RUN,
        (
            *("tests/backends/c/test_thread_pool.py", "tests/backends/test_timeline.py"),
            *("tests/test_run_async.py", "tests/test_shared_model.py"),
            "tests/schedules/test_attention_decode_cpu.py::test_parts_on_several_threads",
            *("-k", "not forked and not late_for_the_last_run and not emulator"),
        ),
    ),
)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if all tests passed and no sanitizer reported anything."""
    status = 0
    for sanitizer, marked, paths in RUNS:
        reason = why_not(sanitizer)
        if reason is not None:
            print(f"{' '.join(sanitizer.runtimes)}: {reason}", file=sys.stderr)
            return 1
        status |= _run(sanitizer, marked, [*paths, *arguments])
    return status


def _run(sanitizer: Sanitizer, marked: str, arguments: Sequence[str]) -> int:
    with TemporaryDirectory(prefix="treadle-sanitized-") as folder:
        environment = environment_with(sanitizer.preloaded(Path(folder)))
        command = [sys.executable, "-m", "pytest", "-q", "-m", marked, "-o", "faulthandler_timeout=0", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        reports = sorted(Path(folder).iterdir())
        for report in reports:
            print(report.read_text(errors="replace"), file=sys.stderr)
    return int(done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED) or bool(reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
