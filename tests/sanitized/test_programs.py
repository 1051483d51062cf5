"""Programs in C that run models under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.backends.c.toolchains import COMMANDS
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, single_node_model, value
from tests.sanitized.sanitizers import ADDRESS, THREAD, Sanitizer, program_of, why_not
from treadle.backends.c.compiler import INCLUDE_DIRECTORIES
from treadle.tools.treadle_cli import main

CALLERS = r"""
#include "linear.h"
#include "relu.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
enum { CALLERS = 4, CALLS = 200 };
static relu *on_shared, *on_own;
static linear *product;
static float x[16], y[CALLERS][16], z[CALLERS][8];
static int failed_call;
static void *call(void *number) {
    long i = (long)number;
    const void *in[] = {x};
    void *first[] = {y[i]}, *second[] = {z[i]};
    int failed = 0;
    for (int n = 0; n < CALLS && !failed; n++)
        failed = relu_run(on_shared, in, first) || linear_run(product, in, second) || relu_run(on_own, in, first);
    return failed ? &failed_call : NULL;
}
int main(int argc, char **argv) {
    struct treadle_threads *shared;
    pthread_t callers[CALLERS];
    for (int i = 0; i < 16; i++) x[i] = (float)(i - 8) / 4;
    for (int round = 0; round < 3; round++) {
        if (argc != 2 || relu_threads_create(&shared, 3) || relu_create(&on_own, NULL, 2)) return 1;
        if (relu_create_on(&on_shared, NULL, shared) || linear_create_on(&product, argv[1], shared)) return 2;
        for (long i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, (void *)i);
        for (long i = 0; i < CALLERS; i++) {
            void *failed;
            if (pthread_join(callers[i], &failed) || failed) return 4;
        }
        relu_destroy(on_shared);
        linear_destroy(product);
        relu_threads_destroy(shared);
        relu_destroy(on_own);
    }
    for (int i = 1; i < CALLERS; i++)
        if (memcmp(y[0], y[i], sizeof *y) || memcmp(z[0], z[i], sizeof *z)) return 3;
    return fwrite(y, sizeof *y, 1, stdout) != 1 || fwrite(z, sizeof *z, 1, stdout) != 1;
}
"""
RACE = r"""
#include <pthread.h>
static int shared;
static void *add(void *unused) { shared++; return unused; }
int main(void) {
    pthread_t other;
    pthread_create(&other, NULL, add, NULL);
    shared++;
    pthread_join(other, NULL);
    return 0;
}
"""
BEYOND = r"""
#include "treadle.h"
#include <stdlib.h>
int main(int argc, char **argv) {
    float *p = calloc(7, sizeof *p);
    v8m on = treadle_lanes_v8m(0, 6 + argc); /* of eight */
    v8f x = ACCESS;
    (void)argv;
    free(p);
    return x[0] != 0;
}
"""
ACCESSES = {
    "load": "treadle_load_where_v8f(p, on, (v8f){0})",
    "store": "(treadle_store_where_v8f(p, (v8f){0}, on), (v8f){0})",
    "gather": "treadle_load_strided_where_v8f(p, 1, on, (v8f){0})",
}


def needs(sanitizer: Sanitizer) -> None:
    if (reason := why_not(sanitizer)) is not None:
        pytest.skip(reason)


def libraries(models: Sequence[Path], sanitizer: Sanitizer, patch: pytest.MonkeyPatch) -> list[str]:
    """The models as instrumented libraries, in folders of their names: what a compiler of programs is told of them."""
    patch.setenv("TREADLE_CC", COMMANDS["gcc"][0])
    patch.setenv("TREADLE_CFLAGS", " ".join(sanitizer.flags))
    folders = [path.with_suffix("") for path in models]
    for path, folder in zip(models, folders, strict=True):
        assert main(["compile", str(path), "--emit", "c-library", "-o", str(folder)]) == 0
    patch.delenv("TREADLE_CFLAGS")
    return [*(f"-I{folder}" for folder in folders), *(str(next(folder.glob("*.a"))) for folder in folders)]


ROWS, DEPTH, COLUMNS = 5, 19, 37


def classifier(path: Path) -> Path:
    """The softmax of a product, of sizes that no vector divides."""
    w = np.random.default_rng(2).standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Softmax", ["p"], ["y"])]
    tensors = [value("x", (ROWS, DEPTH))], [value("y", (ROWS, COLUMNS))]
    return save_model(path, nodes, *tensors, [numpy_helper.from_array(w, "w")])


def test_a_model_touches_no_memory_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(ADDRESS)
    path = classifier(tmp_path / "model.onnx")
    told = libraries([path], ADDRESS, monkeypatch)
    program = program_of([tmp_path / "model" / "run_model.c"], tmp_path / "run", ADDRESS, *told)
    x = np.random.default_rng(5).standard_normal((ROWS, DEPTH)).astype(np.float32)
    x.tofile(tmp_path / "x")
    command = [str(program), str(tmp_path / "model" / "model.weights"), "2", "x", "y"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(np.fromfile(tmp_path / "y", np.float32).reshape(ROWS, COLUMNS), expected, rtol=1e-5)


@pytest.mark.parametrize("access", ACCESSES)
def test_lanes_beyond_a_buffer_are_reported(access: str, tmp_path: Path) -> None:
    """Else the tests of models would show nothing of masked accesses."""
    needs(ADDRESS)
    (tmp_path / "beyond.c").write_text(BEYOND.replace("ACCESS", ACCESSES[access]))
    headers = [f"-I{folder}" for folder in INCLUDE_DIRECTORIES]
    # UndefinedBehaviorSanitizer knows the size of this buffer, as it does not know that of a kernel's argument.
    more = ("-std=gnu11", "-march=native", "-fno-sanitize=object-size", *headers)
    program = program_of([tmp_path / "beyond.c"], tmp_path / "beyond", ADDRESS, *more)
    inside = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (inside.returncode, inside.stderr) == (0, "")
    beyond = subprocess.run([str(program), "one more"], capture_output=True, text=True, check=False)
    assert beyond.returncode != 0 and "heap-buffer-overflow" in beyond.stderr


def test_threads_of_models_have_no_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads call three models of two libraries, two of which share their threads."""
    needs(THREAD)
    models = [single_node_model(tmp_path / "relu.onnx", "Relu"), linear_model(tmp_path / "linear.onnx")]
    told = libraries(models, THREAD, monkeypatch)
    (tmp_path / "callers.c").write_text(CALLERS)
    program = program_of([tmp_path / "callers.c"], tmp_path / "callers", THREAD, *told)
    weights = str(tmp_path / "linear" / "linear.weights")
    done = subprocess.run([str(program), weights], capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    x = ((np.arange(16, dtype=np.float32) - 8) / 4).reshape(2, 8)
    found = np.frombuffer(done.stdout, np.float32)
    np.testing.assert_array_equal(found[:16].reshape(2, 8), np.maximum(x, 0))
    np.testing.assert_allclose(found[16:].reshape(2, 4), np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)


def test_a_race_is_reported(tmp_path: Path) -> None:
    needs(THREAD)
    (tmp_path / "race.c").write_text(RACE)
    program = program_of([tmp_path / "race.c"], tmp_path / "race", THREAD)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "data race" in done.stderr
