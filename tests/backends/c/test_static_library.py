"""`--emit c-library`: programs in C run a model without Python, and every failure is a return code."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import treadle
from benchmarks.language_models import Decoder
from tests.backends.c.toolchains import COMMANDS
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, single_node_model, value
from tests.helpers.waiting import HANGS
from treadle.artifact.artifact import Artifact
from treadle.artifact.decoder import is_decoder
from treadle.backends.c.static_library import _need, bound_library
from treadle.target.host import CPUINFO, FEATURES, features_of, host_target, needs_of, processor_words
from treadle.tools.treadle_cli import main

SYSTEM = ("linux-vdso", "libc.so", "libm.so", "libpthread.so", "ld-linux")
X = np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)
OK, BAD_ARGUMENT, MISALIGNED, CANNOT_OPEN, WRONG_SIZE, WRONG_DIGEST = range(6)
NO_THREADS, WRONG_PROCESSOR, BAD_EXTENT = 7, 8, 9


def classifier(path: Path) -> str:
    """softmax of a convolution and a product; and the class."""
    generator = np.random.default_rng(2)
    weights = {"k": (8, 3, 3, 3), "w": (8, 5), "b": (5,)}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["l"]),
        helper.make_node("Softmax", ["l"], ["scores"]),
        helper.make_node("ArgMax", ["l"], ["class"], axis=1),
    ]
    arrays = [numpy_helper.from_array(generator.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    outputs = [value("scores", (1, 5)), value("class", (1, 1), TensorProto.INT64)]
    return str(save_model(path, nodes, [value("x", X.shape)], outputs, arrays))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return classifier(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def built(model: str) -> Path:
    folder = Path(model).parent / "built"
    assert main(["compile", model, "--emit", "c-library", "--name", "model", "-o", str(folder)]) == 0
    return folder


C11 = ("-std=c11", "-D_GNU_SOURCE")


def compiled(
    sources: Sequence[Path], target: Path, *more: str, compiler: str = "gcc", standard: Sequence[str] = C11
) -> Path:
    flags = ("-Wall", "-Wextra", "-Werror", *standard)
    done = subprocess.run(
        [*COMMANDS[compiler], *flags, *map(str, sources), *more, "-lm", "-lpthread", "-o", str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def as_bytes(arrays: Sequence[NDArray[Any]]) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


@pytest.mark.parametrize("compiler", sorted(COMMANDS))
def test_the_example_gives_what_a_call_in_python_gives(model: str, built: Path, tmp_path: Path, compiler: str) -> None:
    archive = str(built / "libmodel.a")
    program = compiled([built / "run_model.c"], tmp_path / "run_model", f"-I{built}", archive, compiler=compiler)
    X.tofile(tmp_path / "x")
    for threads in ("1", "2"):
        command = [str(program), str(built / "model.weights"), threads, "x", "scores", "class"]
        subprocess.run(command, env={}, cwd=tmp_path, check=True)
        found = [(tmp_path / name).read_bytes() for name in ("scores", "class")]
        assert found == as_bytes(treadle.compile(model)(X))
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    assert all(any(name in line for name in SYSTEM) for line in listed.splitlines()), listed


@pytest.mark.parametrize("standard", ["-std=c99", "-std=c17"])
def test_the_example_is_plain_c_for_a_model_of_any_name(tmp_path: Path, standard: str) -> None:
    make_both(tmp_path)
    for name in ("relu", "linear"):
        folder = tmp_path / name
        sources, archive = [folder / f"run_{name}.c"], str(folder / f"lib{name}.a")
        program = compiled(sources, tmp_path / "run", archive, standard=(standard, "-pedantic"))
        x = ((np.arange(16, dtype=np.float32) - 8) / 4).reshape(2, 8)
        x.tofile(tmp_path / "x")
        subprocess.run([str(program), str(folder / f"{name}.weights"), "1", "x", "y"], cwd=tmp_path, check=True)
        expected = np.maximum(x @ WEIGHTS if name == "linear" else x, 0)
        np.testing.assert_allclose(
            np.fromfile(tmp_path / "y", np.float32).reshape(2, -1), expected, rtol=1e-5, atol=1e-6
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root folder")
def test_the_example_in_a_folder_with_nothing_else(model: str, built: Path, tmp_path: Path) -> None:
    compiled([built / "run_model.c"], tmp_path / "run_model", f"-I{built}", str(built / "libmodel.a"), "-static")
    shutil.copy(built / "model.weights", tmp_path)
    X.tofile(tmp_path / "x")
    command = ["chroot", str(tmp_path), "/run_model", "/model.weights", "2", "/x", "/scores", "/class"]
    subprocess.run(command, env={}, check=True, executable=shutil.which("chroot"))
    assert [(tmp_path / name).read_bytes() for name in ("scores", "class")] == as_bytes(treadle.compile(model)(X))


@pytest.mark.parametrize(
    ("size", "weights", "message"),
    [
        (-4, "model.weights", "input x needs 5760 bytes of float32"),
        (4, "model.weights", "input x needs 5760 bytes of float32"),
        (0, "missing", "the file of weights cannot be opened"),
    ],
)
def test_the_example_says_what_is_wrong(built: Path, tmp_path: Path, size: int, weights: str, message: str) -> None:
    program = compiled([built / "run_model.c"], tmp_path / "run_model", f"-I{built}", str(built / "libmodel.a"))
    (tmp_path / "x").write_bytes(bytes(X.nbytes + size))
    command = [str(program), str(built / weights), "1", "x", "scores", "class"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def library(built: Path) -> ctypes.CDLL:
    """The static library as a shared one, to call its functions from here."""
    whole = f"-Wl,--whole-archive,{built / 'libmodel.a'},--no-whole-archive"
    loaded = ctypes.CDLL(str(compiled([], built.parent / "libmodel.so", "-shared", whole)))
    loaded.model_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_long]
    loaded.model_run.argtypes = [ctypes.c_void_p] * 3
    loaded.model_destroy.argtypes = [ctypes.c_void_p]
    loaded.model_message.restype = ctypes.c_char_p
    return loaded


def create(library: ctypes.CDLL, weights: Path | None, threads: int = 1) -> tuple[int, int | None]:
    made = ctypes.c_void_p(1)
    path = None if weights is None else os.fsencode(weights)
    return library.model_create(ctypes.byref(made), path, threads), made.value


def test_weights_that_are_not_the_library_s(library: ctypes.CDLL, built: Path, tmp_path: Path) -> None:
    whole = (built / "model.weights").read_bytes()
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "long").write_bytes(whole + b"\0")
    (tmp_path / "damaged").write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    expected = {
        "missing": (CANNOT_OPEN, "cannot be opened"), "short": (WRONG_SIZE, "another size"),
        "long": (WRONG_SIZE, "another size"), "damaged": (WRONG_DIGEST, "its sha256 differs"),
        ".": (WRONG_SIZE, "another size"),
    }  # fmt: skip
    for name, (code, message) in expected.items():
        assert create(library, tmp_path / name) == (code, None)
        assert message in library.model_message(code).decode()


def test_bad_arguments(library: ctypes.CDLL, built: Path) -> None:
    weights = built / "model.weights"
    assert create(library, None) == create(library, weights, 0) == create(library, weights, -3) == (BAD_ARGUMENT, None)
    assert library.model_create(None, os.fsencode(weights), 1) == BAD_ARGUMENT
    assert create(library, weights, 1 << 40) == (NO_THREADS, None)
    assert library.model_message(OK) == b"no error" and library.model_message(99) == b"an unknown code"
    library.model_destroy(None)


def test_buffers(model: str, library: ctypes.CDLL, built: Path) -> None:
    code, made = create(library, built / "model.weights", 2)
    assert code == OK
    scores, label = np.zeros((1, 5), np.float32), np.zeros((1, 1), np.int64)
    pointers = ctypes.c_void_p * 2

    def run(x: int | None, first: int | None) -> int:
        return library.model_run(made, pointers(x), pointers(first, label.ctypes.data))

    assert run(X.ctypes.data, scores.ctypes.data) == OK
    assert as_bytes([scores, label]) == as_bytes(treadle.compile(model)(X))
    assert run(None, scores.ctypes.data) == run(X.ctypes.data, None) == BAD_ARGUMENT
    assert run(X.ctypes.data + 2, scores.ctypes.data) == run(X.ctypes.data, scores.ctypes.data + 1) == MISALIGNED
    assert library.model_run(None, pointers(), pointers()) == library.model_run(made, None, pointers()) == BAD_ARGUMENT
    library.model_destroy(made)


def test_calls_from_several_threads_take_turns(model: str, library: ctypes.CDLL, built: Path) -> None:
    _, made = create(library, built / "model.weights", 2)
    pointers = ctypes.c_void_p * 2

    def call(factor: int) -> list[bytes]:
        x = X * factor
        outputs = np.zeros((1, 5), np.float32), np.zeros((1, 1), np.int64)
        for _ in range(20):
            assert library.model_run(made, pointers(x.ctypes.data), pointers(*(y.ctypes.data for y in outputs))) == OK
        return as_bytes(outputs)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(call, range(1, 9)))
    library.model_destroy(made)
    compiled_model = treadle.compile(model)
    assert found == [as_bytes(compiled_model(X * factor)) for factor in range(1, 9)]


def test_the_tables_say_what_the_model_s_tensors_are(built: Path, tmp_path: Path) -> None:
    program = tmp_path / "tables.c"
    program.write_text(
        """
        #include "model.h"
        #include <stdio.h>
        int main(void) {
            const model_tensor *x = &model_inputs[model_INPUT_x], *y = &model_outputs[model_OUTPUT_class];
            printf("%s %s %zu %zu %zu %zu\\n", x->name, x->dtype, x->rank, x->shape[2], x->bytes, x->alignment);
            printf("%s %s %zu %zu %zu %zu\\n", y->name, y->dtype, y->rank, y->shape[1], y->bytes, y->alignment);
        }
        """
    )
    compiled([program], tmp_path / "tables", f"-I{built}", str(built / "libmodel.a"))
    printed = subprocess.run([str(tmp_path / "tables")], capture_output=True, text=True, check=True).stdout
    assert printed == "x float32 4 24 5760 4\nclass int64 2 1 8 8\n"


def make_both(folder: Path) -> None:
    """Libraries of relu, without weights, and of a product with some, in folders of their names."""
    for path in (single_node_model(folder / "relu.onnx", "Relu"), linear_model(folder / "linear.onnx")):
        assert main(["compile", str(path), "--emit", "c-library", "-o", str(folder / path.stem)]) == 0


def run_both(source: Path) -> bytes:
    """What a program of both libraries, which is given the weights' file, writes."""
    folders, program = [source.parent / name for name in ("relu", "linear")], source.with_suffix("")
    archives = [str(folder / f"lib{folder.name}.a") for folder in folders]
    compiled([source], program, *(f"-I{folder}" for folder in folders), *archives)
    weights = str(source.parent / "linear" / "linear.weights")
    done = subprocess.run([str(program), weights], capture_output=True, check=False, timeout=HANGS)
    assert done.returncode == 0
    return done.stdout


def expected_of_both(folder: Path) -> bytes:
    """Both models' outputs of 16 numbers around zero."""
    x = ((np.arange(16, dtype=np.float32) - 8) / 4).reshape(2, 8)
    return b"".join(as_bytes([treadle.compile(folder / f"{name}.onnx")(x)[0] for name in ("relu", "linear")]))


def test_two_libraries_in_one_program(tmp_path: Path) -> None:
    """One of them has no weights, and a kernel that is called like the other's."""
    make_both(tmp_path)
    assert sorted(os.listdir(tmp_path / "relu")) == ["librelu.a", "relu.h", "run_relu.c"]
    program = tmp_path / "both.c"
    program.write_text(
        """
        #include "linear.h"
        #include "relu.h"
        #include <stdio.h>
        int main(int argc, char **argv) {
            float x[16], y[16], z[8];
            for (int i = 0; i < 16; i++) x[i] = (float)(i - 8) / 4;
            const void *in[] = {x};
            void *first[] = {y}, *second[] = {z};
            relu *one;
            linear *two;
            if (argc != 2 || relu_create(&one, NULL, 2) || linear_create(&two, argv[1], 2)) return 1;
            if (relu_run(one, in, first) || linear_run(two, in, second)) return 2;
            relu_destroy(one);
            linear_destroy(two);
            return fwrite(y, sizeof y, 1, stdout) != 1 || fwrite(z, sizeof z, 1, stdout) != 1;
        }
        """
    )
    assert run_both(program) == expected_of_both(tmp_path)


def test_models_of_two_libraries_share_threads(tmp_path: Path) -> None:
    """The library whose threads they are is not the first one to end; others of another layout are refused."""
    make_both(tmp_path)
    program = tmp_path / "shared.c"
    program.write_text(
        """
        #include "linear.h"
        #include "relu.h"
        #include <dirent.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <unistd.h>
        static relu *one;
        static linear *two;
        static float x[16], y[16], z[8];
        static const void *in[] = {x};
        static void *first[] = {y}, *second[] = {z};
        static int threads(void) {
            int found = -2; /* . and .. */
            DIR *folder = opendir("/proc/self/task");
            while (readdir(folder)) found++;
            closedir(folder);
            return found;
        }
        static int one_is_left(void) { /* a thread that was joined may be listed a little longer */
            for (int i = 0; i < 30000 && threads() != 1; i++) usleep(10000);
            return threads() == 1;
        }
        static void *call(void *failed) {
            for (int i = 0; i < 500; i++) *(int *)failed |= relu_run(one, in, first);
            return NULL;
        }
        int main(int argc, char **argv) {
            int failed = 0;
            pthread_t other;
            struct treadle_threads *shared, *none;
            for (int i = 0; i < 16; i++) x[i] = (float)(i - 8) / 4;
            if (argc != 2 || relu_threads_create(&shared, 3) || threads() != 3) return 1;
            if (relu_create_on(&one, NULL, shared) || linear_create_on(&two, argv[1], shared)) return 2;
            pthread_create(&other, NULL, call, &failed);
            for (int i = 0; i < 500; i++) failed |= linear_run(two, in, second);
            pthread_join(other, NULL);
            if (failed || threads() != 3) return 3;
            relu_destroy(one);
            if (threads() != 3 || linear_run(two, in, second)) return 4;
            linear_destroy(two);
            if (linear_create_on(&two, argv[1], NULL) != linear_BAD_ARGUMENT || two) return 5;
            ++*(long *)shared; /* the layout */
            if (linear_create_on(&two, argv[1], shared) != linear_NO_THREADS || two) return 6;
            linear_threads_destroy(shared);
            if (!one_is_left()) return 7;
            if (relu_threads_create(&none, 0) != relu_BAD_ARGUMENT || none) return 8;
            if (relu_threads_create(NULL, 1) != relu_BAD_ARGUMENT) return 9;
            relu_threads_destroy(NULL);
            return fwrite(y, sizeof y, 1, stdout) != 1 || fwrite(z, sizeof z, 1, stdout) != 1;
        }
        """
    )
    assert run_both(program) == expected_of_both(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000])
def test_sha256(tmp_path: Path, size: int) -> None:
    folder = Path(treadle.__file__).parent / "backends" / "c" / "library"
    (tmp_path / "digest.c").write_text(
        '#include "sha256.h"\nvoid digest(const void *p, size_t n, void *d) { treadle_sha256(p, n, d); }'
    )
    path = compiled([tmp_path / "digest.c"], tmp_path / "digest.so", "-shared", "-fPIC", f"-I{folder}")
    data, digest = np.random.default_rng(size).bytes(size), ctypes.create_string_buffer(32)
    ctypes.CDLL(str(path)).digest(data, ctypes.c_size_t(size), digest)
    assert digest.raw == hashlib.sha256(data).digest()


def check(folder: Path, needs: Sequence[str], runner: Sequence[str] = ()) -> tuple[bool, list[bool]]:
    """Whether the library's check finds all of `needs`, as C has them, and which of them."""
    text = (Path(treadle.__file__).parent / "backends" / "c" / "library" / "library.c").read_text()
    start, end = text.index("/* Whether one of the words"), text.index("/* Maps the file of weights")
    (folder / "check.c").write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
        "#if defined(__x86_64__)\n#include <cpuid.h>\n#endif\n"
        f"#define NEEDS {{{', '.join([*needs, '{NULL, 0, 0, 0, 0, 0}'])}}}\n{text[start:end]}\n"
        "int main(void) {\n"
        "    static const struct need all[] = NEEDS;\n"
        "    putchar('0' + fits_processor());\n"
        "    for (const struct need *each = all; each->word; each++) putchar('0' + is_told(each));\n"
        "}\n"
    )
    command = [*runner, str(compiled([folder / "check.c"], folder / "check"))]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first, *others = (digit == "1" for digit in found)
    return first, others


WORD = '{{"{}", 0, 0, -1, 0, 0}}'


@pytest.mark.skipif(processor_words() is None, reason="no cpuid")
def test_a_processor_that_lacks_instructions(tmp_path: Path) -> None:
    told = processor_words() or frozenset()
    assert check(tmp_path, []) == (True, [])
    assert check(tmp_path, [_need(word, "x86_64") for word in told]) == (True, [True] * len(told))
    assert check(tmp_path, [_need(word, "x86_64") for word in FEATURES]) == (False, [word in told for word in FEATURES])
    none = ['{"a", 1u, 0, 2, 28, 0x4000000000000006ull}', '{"b", 0x7fffffffu, 0, 0, 0, 0}', '{"c", 7u, 999, 0, 0, 0}']
    assert check(tmp_path, none) == (False, [False] * 3), "registers that no system saves, a leaf, a subleaf"


@pytest.mark.skipif(not CPUINFO.is_file(), reason="no /proc/cpuinfo")
def test_words_that_cpuid_does_not_tell_are_read(tmp_path: Path) -> None:
    words = sorted(features_of(CPUINFO))
    assert check(tmp_path, [WORD.format(word) for word in words])[0]
    assert not check(tmp_path, [WORD.format(words[0]), WORD.format("fp_of_nobody")])[0]
    assert not check(tmp_path, [WORD.format(max(words, key=len)[:-1])])[0], "a part of a word"


@pytest.mark.slow
@pytest.mark.skipif("zig" not in COMMANDS or shutil.which("qemu-aarch64") is None, reason="no ziglang or qemu-aarch64")
def test_a_library_for_arm_runs_there(model: str, tmp_path: Path) -> None:
    """Both halves are cross compiled by zig, which nobody names; the first static program takes it a minute."""
    linear_model(tmp_path / "linear.onnx", rows="n")
    cases = {"model": (model, []), "linear": (str(tmp_path / "linear.onnx"), ["--shape", "x=n:1..9,8"])}
    x = np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)
    (tmp_path / "model.x").write_bytes(X.tobytes())
    (tmp_path / "linear.x").write_bytes(x.tobytes())
    given = {"model": ["1", "model.x", "y0", "y1"], "linear": ["2", "n=5", "linear.x", "y2"]}
    for name, (path, options) in cases.items():
        asked = ["--target", "neon", "--emit", "c-library", "--name", name, "-o", str(tmp_path / name), *options]
        assert main(["compile", path, *asked]) == 0
        built = [tmp_path / name / f"run_{name}.c", tmp_path / name / f"lib{name}.a"]
        zig = [*COMMANDS["zig"], "-target", "aarch64-linux-musl", "-static", *map(str, built), "-o", f"run_{name}"]
        subprocess.run([*zig, "-lm", "-lpthread"], cwd=tmp_path, check=True)
        command = ["qemu-aarch64", f"./run_{name}", f"{name}/{name}.weights", *given[name]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    scores, classes = treadle.compile(model)(X)
    found = np.fromfile(tmp_path / "y0", np.float32).reshape(scores.shape)
    np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-6)
    assert np.fromfile(tmp_path / "y1", np.int64).tolist() == classes.ravel().tolist()
    found = np.fromfile(tmp_path / "y2", np.float32).reshape(5, 4)
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("valgrind") is None or processor_words() is None, reason="no valgrind")
def test_a_processor_that_valgrind_emulates(built: Path, tmp_path: Path) -> None:
    """It has fewer instructions than the one that /proc/cpuinfo describes."""
    (tmp_path / "create.c").write_text(
        '#include "model.h"\nint main(int c, char **v) { model *m; return c < 2 ? 99 : model_create(&m, v[1], 1); }'
    )
    program = compiled([tmp_path / "create.c"], tmp_path / "create", f"-I{built}", str(built / "libmodel.a"))
    command, valgrind = [str(program), str(built / "model.weights")], ("valgrind", "-q")
    assert subprocess.run(command, check=False).returncode == OK
    needs = [_need(word, "x86_64") for word in needs_of(host_target()).split()[1:]]
    emulated, _ = check(tmp_path, needs, valgrind)
    assert subprocess.run([*valgrind, *command], check=False).returncode == (OK if emulated else WRONG_PROCESSOR)


def test_what_cannot_be_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    rejected = {
        ("--emit", "c-library", "--shape", "batch=1", "--target", "sm_80"): "target sm_80; accepted: a cpu target",
        ("--emit", "c-library", "--shape", "batch=1", "--name", "my-model"): "a C identifier, such as my_model",
        ("--emit", "c-library", "--shape", "batch=1", "--to", "fuse"): "--to writes IR, --emit c-library code",
        ("--shape", "batch=1", "--name", "reader"): "a name without a library",
    }
    for arguments, message in rejected.items():
        assert main(["compile", model, *arguments, "-o", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    assert main(["compile", model, "--shape", "batch=1", "--emit", "c-library", "-o", str(tmp_path / "other")]) == 2
    assert "the folder holds other files" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Dimensions that change, and what is kept between calls.


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    model = SMALL.write(folder)
    shapes = [
        word for name in ("sequence_length", "past_sequence_length") for word in ("--shape", f"{name}={RANGE[name]}")
    ]
    shapes += ["--shape", "total_sequence_length=past_sequence_length + sequence_length"]
    command = ["compile", str(model), "--emit", "c-library", "--name", "decoder", "--states", "auto", *shapes]
    assert main([*command, "-o", str(folder / "built")]) == 0
    assert main(["compile", str(model), "--states", "auto", *shapes, "-o", str(folder / "folder")]) == 0
    return folder


RANGE = {
    "sequence_length": "1..8",
    "past_sequence_length": "0..100",
    "total_sequence_length": "past_sequence_length + sequence_length",
}
SMALL = Decoder(layers=2, hidden=64, heads=4, groups=2, head=16, intermediate=96, vocabulary=300, positions=120)


@pytest.mark.parametrize("compiler", sorted(COMMANDS))
def test_text_from_c_is_that_of_python(decoder: Path, tmp_path: Path, compiler: str) -> None:
    built, prompt = decoder / "built", [5, 17, 200, 3, 9, 44, 7, 8, 1, 2, 3]
    sources, archive = [built / "generate_decoder.c"], str(built / "libdecoder.a")
    program = compiled(
        sources, tmp_path / "g", f"-I{built}", archive, compiler=compiler, standard=("-std=c99", "-pedantic")
    )
    with treadle.load(decoder / "folder") as model:
        wanted = treadle.generate(model, prompt, most=64)
    for threads in ("1", "2"):
        command = [str(program), str(built / "decoder.weights"), threads, "64", *map(str, prompt)]
        said = subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout
        assert [int(word) for word in said.split()] == wanted
    for tokens, message in ((["300"], "no token of the vocabulary"), (["1"] * 110, "no room")):
        command = [str(program), str(built / "decoder.weights"), "1", "64", *tokens]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


def test_the_loop_comes_with_decoders_alone(decoder: Path) -> None:
    manifest = Artifact(decoder / "folder").manifest
    assert is_decoder(manifest)
    others = [replace(tensor, name=tensor.name.replace("attention_mask", "pixels")) for tensor in manifest.inputs]
    assert not is_decoder(replace(manifest, inputs=tuple(others)))
    assert not is_decoder(replace(manifest, outputs=tuple(replace(t, name=f"{t.name}s") for t in manifest.outputs)))


def test_what_is_kept_has_a_length(decoder: Path) -> None:
    shared = decoder / "shared.so"
    built = decoder / "built"
    archive = ["-Wl,--whole-archive", str(built / "libdecoder.a"), "-Wl,--no-whole-archive"]
    subprocess.run(["gcc", "-shared", "-o", str(shared), *archive, "-lm", "-lpthread"], check=True)
    library = ctypes.CDLL(str(shared))
    library.decoder_length.restype = ctypes.c_longlong
    library.decoder_rewind.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong]
    model = ctypes.c_void_p()
    assert library.decoder_create(ctypes.byref(model), str(built / "decoder.weights").encode(), ctypes.c_long(1)) == OK
    logits = np.zeros(300, np.float32)
    names = [*(name for name in (built / "decoder.h").read_text().split() if name.startswith("decoder_DIMENSION_"))]
    order = [name.removeprefix("decoder_DIMENSION_") for name in names]
    kept = order.index("past_sequence_length")

    def call(tokens: Sequence[int], past: int) -> int:
        inputs = np.array([tokens]), np.ones((1, past + len(tokens)), np.int64)
        extents = (ctypes.c_longlong * 2)(*(len(tokens) if name == "sequence_length" else 77 for name in order))
        given = (ctypes.c_void_p * 2)(*(array.ctypes.data for array in inputs))
        return library.decoder_run_at(model, extents, given, (ctypes.c_void_p * 1)(logits.ctypes.data))

    assert [call([1, 2, 3], 0), call([4], 3)] == [OK, OK] and library.decoder_length(model, kept) == 4
    wanted = logits.copy()
    assert call([9, 9], 4) == OK and library.decoder_rewind(model, kept, 3) == OK and call([4], 3) == OK
    np.testing.assert_array_equal(logits, wanted)
    assert call(list(range(9)), 4) == BAD_EXTENT and library.decoder_length(model, kept) == 4
    assert library.decoder_rewind(model, kept, 5) == BAD_EXTENT
    assert library.decoder_rewind(model, 1 - kept, 0) == BAD_ARGUMENT == library.decoder_reset(None)
    assert library.decoder_length(model, 1 - kept) == -1
    assert library.decoder_reset(model) == OK and library.decoder_length(model, kept) == 0
    library.decoder_destroy(model)


def test_a_range_takes_calls_of_any_extent(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Softmax", ["p"], ["y"], axis=0)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    model = save_model(
        tmp_path / "m.onnx",
        nodes,
        [x],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(w, "w")],
    )
    command = ["compile", str(model), "--shape", "n=2..24:2", "--emit", "c-library", "-o", str(tmp_path / "built")]
    assert main(command) == 0
    built = tmp_path / "built"
    program = compiled([built / "run_m.c"], tmp_path / "run", f"-I{built}", str(built / "libm.a"))
    compiled_model = treadle.compile(model, shapes={"n": treadle.Dim("n", 2, 24, 2)})
    for n in (2, 10, 24):
        given = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        given.tofile(tmp_path / "x")
        subprocess.run([str(program), str(built / "m.weights"), "2", f"n={n}", "x", "y"], cwd=tmp_path, check=True)
        assert (tmp_path / "y").read_bytes() == as_bytes(compiled_model(given))[0]
    done = subprocess.run(
        [str(program), str(built / "m.weights"), "2", "n=3", "x", "y"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "an extent is out of its dimension's range" in done.stderr


def test_what_cannot_be_opened_at_run_time(tmp_path: Path):
    """A library that a program opens and calls with a caller's tensors has no padding, and finds every extent."""
    with treadle.compile(linear_model(tmp_path / "m.onnx")) as made:
        manifest, artifact = made.manifest, made.artifact
    (x,), n = manifest.inputs, treadle.Dim("n", 1, 2)
    padded = replace(x, extents=("n", "8"))
    hidden = replace(x, extents=("n + 1", "8"), dense=True)
    for changed, message in (
        (replace(manifest, found=("found0",)), "extent found0 depends on data"),
        (replace(manifest, symbols=(n,), inputs=(padded,)), "'x' lies in its largest shape"),
        (replace(manifest, symbols=(n,), inputs=(hidden,)), "no input has the dimension 'n' by itself"),
    ):
        artifact.manifest = changed
        with pytest.raises(treadle.TreadleError, match=message):
            bound_library(artifact)
