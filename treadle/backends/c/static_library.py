"""A cpu artifact as a C library: `libNAME.a`, `NAME.h`, `NAME.weights` and a program, `run_NAME.c`."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import WROTE_IT, Manifest, Tensor
from treadle.artifact.weights import ALIGNMENT, FOLDER
from treadle.backends.c.compiler import Unit, compile_objects, find_toolchain, write
from treadle.backends.c.open_artifact import artifact_text
from treadle.backends.interface import file_names
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.passes.lower.identifiers import UniqueNames, identifier
from treadle.shapes.dim import Dim, Shapes, normalized
from treadle.support.progress import Progress, no_progress
from treadle.support.version import __version__
from treadle.target import TARGETS, Target
from treadle.target.host import FEATURES

# The header of a C library: what a program needs to know to run the model.

_ALIGNMENT = 64
_C_TYPES = {
    "bool": "unsigned char, 0 or 1", "float16": "16 bits of IEEE 754's binary16",
    "bfloat16": "the upper 16 bits of a float", "float32": "float", "float64": "double",
}  # fmt: skip
_IN_A_BYTE = re.compile(r"(u?int[24]|float[48]_.*)$")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-.,:;+=()[]{}<>")

_ABOUT = """\
/* {name}: a model that treadle {version} compiled for {machine}. Its kernels use
{features}
 *
 * A program needs this header, lib{name}.a, -lm and -lpthread{weights}:
 *
 *     cc program.c lib{name}.a -lm -lpthread
 *
 * A model takes {arena} bytes of scratch memory{mapped}, and a stack of 64 MiB for each
 * thread but the caller's, of which few pages are touched.
 */
#ifndef {guard}_H
#define {guard}_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {{
#endif

{numbers}
/* An input or an output: its name in the model, NumPy's name of its elements' type, the extents of its dimensions (NULL
 * for a scalar), its bytes, and the alignment that a buffer needs. A buffer at a multiple of 64 may be faster. */
typedef struct {{
    const char *name;
    const char *dtype;
    size_t rank;
    const size_t *shape;
    size_t bytes;
    size_t alignment;
}} {name}_tensor;

extern const {name}_tensor {name}_inputs[];
extern const {name}_tensor {name}_outputs[];

/* What the functions return; {name}_message says it in words. */
enum {{
    {name}_OK = 0,
    {name}_BAD_ARGUMENT,    /* a pointer is NULL, or threads is below 1 */
    {name}_MISALIGNED,      /* a buffer is not aligned as its tensor says */
    {name}_CANNOT_OPEN,     /* the file of weights; errno says why */
    {name}_WRONG_SIZE,      /* the file of weights has another size */
    {name}_WRONG_DIGEST,    /* the file of weights has another sha256 */
    {name}_NO_MEMORY,
    {name}_NO_THREADS,      /* they cannot be started, or this library cannot use them */
    {name}_WRONG_PROCESSOR  /* it lacks instructions that the kernels use */
}};

typedef struct {name} {name};

/* A model that runs on `threads` threads, of which the caller of {name}_run is one (from 1 upwards).
 * {file}
 * On failure, *model is NULL. */
int {name}_create({name} **model, const char *weights, long threads);

/* Threads on which several models run, those of other libraries, too: the calls of all of them take turns. `count` has
 * the meaning of `threads` above. On failure, *threads is NULL. */
struct treadle_threads;
int {name}_threads_create(struct treadle_threads **threads, long count);

/* A model that runs on such threads, of whichever library; those of another version of Treadle may be refused. */
int {name}_create_on({name} **model, const char *weights, struct treadle_threads *threads);

/* Ends the threads, whose models are destroyed by then; NULL is ignored. */
void {name}_threads_destroy(struct treadle_threads *threads);

/* Computes the outputs. inputs[i] and outputs[i] are the buffers of {name}_inputs[i] and {name}_outputs[i]; outputs
 * overlap neither inputs nor each other. Several threads may call it: calls of one model take turns, those of models
 * with threads of their own run at the same time. */
int {name}_run({name} *model, const void *const *inputs, void *const *outputs);

/* Frees the model; NULL is ignored. No call may be under way. */
void {name}_destroy({name} *model);

/* What a code means; never NULL, never freed. */
const char *{name}_message(int code);

#ifdef __cplusplus
}}
#endif

#endif
"""


def library_header(name: str, manifest: Manifest, weights_bytes: int) -> str:
    """The text of `NAME.h`."""
    machine, *features = manifest.machine.split()
    words = f"{', '.join(features) or 'no more than every such processor has'}."
    file = f"`weights` is the path of {name}.weights, which is mapped read-only, and must not change meanwhile."
    sides = ("input", manifest.inputs), ("output", manifest.outputs)
    return _ABOUT.format(
        name=name,
        version=__version__,
        machine=machine,
        features=fill(words, 120, initial_indent=" * ", subsequent_indent=" * "),
        weights=f", and {name}.weights when it runs" if weights_bytes else "",
        arena=arena_bytes(manifest),
        mapped=f", {weights_bytes} of weights, which processes share" if weights_bytes else "",
        guard=name.upper(),
        numbers="\n".join(line for kind, tensors in sides for line in _numbers(name, kind, tensors)),
        file=file if weights_bytes else "There are no weights: that is ignored.",
    )


def tensor_tables(name: str, manifest: Manifest) -> str:
    """The definitions of the header's tables of tensors."""
    lines: list[str] = []
    for kind, tensors in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        rows: list[str] = []
        for number, tensor in enumerate(tensors):
            shape = f"{name}_{kind}_{number}" if tensor.shape else "NULL"
            if tensor.shape:
                lines.append(f"static const size_t {shape}[] = {{{', '.join(map(str, tensor.shape))}}};")
            words = _quoted(tensor.name), _quoted(tensor.dtype), len(tensor.shape), shape, tensor.num_bytes
            rows.append(f"    {{{', '.join(map(str, words))}, {np.dtype(tensor.dtype).itemsize}}},")
        none = '    {"", "", 0, NULL, 0, 1},'
        lines += [f"const {name}_tensor {name}_{kind}[] = {{", *(rows or [none]), "};"]
    return "\n".join(lines)


def arena_bytes(manifest: Manifest) -> int:
    """Bytes of scratch memory: a multiple of its alignment, and not 0."""
    return max(_ALIGNMENT, -(-manifest.arena_bytes // _ALIGNMENT) * _ALIGNMENT)


def _numbers(name: str, kind: str, tensors: Sequence[Tensor]) -> list[str]:
    """The position of each input or output, with what it is."""
    names = UniqueNames()
    lines = [f"/* The positions of {kind}s, which are row-major and without padding. */", "enum {"]
    for number, tensor in enumerate(tensors):
        word = names.unique(re.sub(r"\W", "_", tensor.name, flags=re.ASCII))
        shape = ", ".join(map(str, tensor.shape))
        what = f"{_quoted(tensor.name)}: {_element(tensor.dtype)} [{shape}], {tensor.num_bytes} bytes"
        lines.append(f"    {name}_{kind.upper()}_{word} = {number}, /* {what} */")
    return [*lines, f"    {name}_NUM_{kind.upper()}S = {len(tensors)}", "};", ""]


def _element(dtype: str) -> str:
    """A type of elements as C has it."""
    in_byte = _IN_A_BYTE.match(dtype)
    return f"{dtype} in the low bits of a byte" if in_byte else _C_TYPES.get(dtype, f"{dtype}_t")


def _quoted(text: str) -> str:
    """A string of C, which may stand in a comment; octal, since hexadecimal escapes have no end."""
    return f'"{"".join(chr(b) if chr(b) in _PLAIN else f"{chr(92)}{b:03o}" for b in text.encode())}"'


_WHERE = "a C library"
_SOURCES = Path(__file__).parent / "library"
_FUNCTION = re.compile(r"^void (\w+)\(void \*const \*args, long worker, long workers\)", re.MULTILINE)
_POOL = tuple(
    f"treadle_pool_{word}" for word in ("create", "create_on", "run", "record", "workers", "layout", "destroy")
)
_HOST = ("treadle_run", "treadle_interface")
_POOL_UNIT = "pool"
_BASE = {"x86_64": "sse2", "AMD64": "sse2", "aarch64": "neon", "arm64": "neon"}
"""What code runs on that asks the processor what it has."""


def check_library(target: Target, shapes: Shapes, name: str) -> None:
    """TreadleError for what cannot be compiled to a C library, and for a name that cannot begin C's names."""
    if target.is_cuda:
        raise TreadleError(f"target {target.name}", _WHERE, "a cpu target")
    for given, extents in normalized(shapes).items():
        if any(isinstance(extent, Dim) for extent in extents):
            raise TreadleError(f"the shape of {given} has a range", _WHERE, "one extent for each dimension")
    if identifier(name) != name:
        raise TreadleError(f"{name!r} cannot begin names in C", "--name", f"a C identifier, such as {identifier(name)}")


def library_files(name: str) -> tuple[str, ...]:
    """The files of a library; the last one is there if the model has constants."""
    return f"lib{name}.a", f"{name}.h", f"run_{name}.c", f"{name}.weights"


def write_library(
    artifact: Artifact, target: Target, name: str, folder: Path, progress: Progress = no_progress
) -> None:
    """Writes the library of an artifact that was compiled for `target` into a folder.

    All names that the linker sees begin with `name`, so that a program may have several libraries. TreadleError for an
    artifact with ranges of extents, or of which a file is missing or changed, and what the compiler raises.
    """
    manifest = artifact.manifest
    if manifest.symbols:
        ranges = ", ".join(map(str, manifest.symbols))
        raise TreadleError(f"the model has ranges of extents: {ranges}", _WHERE, "one shape for each input")
    progress("writing weights", 0.0)
    offsets, size, digest = _write_weights(artifact, folder / f"{name}.weights")
    header = library_header(name, manifest, size)
    (folder / f"{name}.h").write_text(header)
    (folder / f"run_{name}.c").write_text((_SOURCES / "run_model.c").read_text().replace("MODEL", name))
    sources, headers = artifact_text(artifact)
    if not sources:
        raise TreadleError("the artifact has no C text", artifact.folder, WROTE_IT)
    progress("compiling C", 0.2)
    objects = compile_objects(_renamed(sources, name), headers=headers, target=target)
    entry = _entry(name, manifest, header, offsets, size, digest)
    headers["sha256.h"] = (_SOURCES / "sha256.h").read_text()
    base = TARGETS[_BASE[manifest.machine.split()[0]]]
    objects += compile_objects([entry], headers=headers, target=base)
    progress("writing the library", 0.9)
    _archive(objects, [*sources, "library"], folder / f"lib{name}.a", target)


def _write_weights(artifact: Artifact, path: Path) -> tuple[list[int], int, str]:
    """Writes the constants, equal ones once; the byte of each, the size of all, and their sha256. None: no file."""
    positions: dict[str, int] = {}
    hasher, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for tensor in artifact.manifest.constants:
            if tensor.name in positions:
                continue
            data = artifact.read(f"{FOLDER}/{tensor.name}")
            padded = data + bytes(-len(data) % ALIGNMENT)
            positions[tensor.name] = size
            file.write(padded)
            hasher.update(padded)
            size += len(padded)
    if size == 0:
        path.unlink()
    return [positions[tensor.name] for tensor in artifact.manifest.constants], size, hasher.hexdigest()


def _renamed(sources: dict[str, str], name: str) -> list[Unit]:
    """The units with `name` before the names that they share; the pool, which includes system headers, has its own
    alone."""
    kernels = [found for text in sources.values() for found in _FUNCTION.findall(text)]
    units: list[Unit] = []
    for stem, text in sources.items():
        shared = _POOL if stem == _POOL_UNIT else (*_POOL, *_HOST, *kernels)
        units.append(Unit(stem, f"{_renaming(name, shared)}\n{text}"))
    return units


def _renaming(name: str, words: Sequence[str]) -> str:
    return "\n".join(f"#define {word} {name}__{word}" for word in words)


def _entry(name: str, manifest: Manifest, header: str, offsets: Sequence[int], size: int, digest: str) -> Unit:
    """The unit with the functions of the header."""
    _, *features = manifest.machine.split()
    needs = ", ".join([*map(_need, features), "{NULL, 0, 0, 0, 0, 0}"])
    definitions = {
        "MODEL": name,
        "CONSTANTS": str(len(offsets)),
        "OFFSETS": f"{{{', '.join(map(str, offsets)) or '0'}}}",
        "WEIGHTS_BYTES": str(size),
        "WEIGHTS_DIGEST": f"{{{', '.join(map(str, bytes.fromhex(digest)))}}}",
        "ARENA_BYTES": str(arena_bytes(manifest)),
        "NEEDS": f"{{{needs}}}",
    }
    lines = [f"#define {word} {text}" for word, text in definitions.items()]
    renaming = _renaming(name, (*_POOL, *_HOST))
    text = (_SOURCES / "library.c").read_text()
    return Unit("library", "\n".join([renaming, header, tensor_tables(name, manifest), *lines, text]))


def _need(word: str) -> str:
    """A feature as library.c asks the processor for it."""
    told = FEATURES.get(word)
    if told is None:
        return f'{{"{word}", 0, 0, -1, 0, 0}}'
    return f'{{"{word}", {told.leaf}u, {told.subleaf}, {told.register}, {told.bit}, {told.state}}}'


def _archive(objects: Sequence[Path], names: Sequence[str], path: Path, target: Target) -> None:
    """A static library of the objects, whose members have these names."""
    archiver = find_toolchain(load_environment(), target).archiver()
    if archiver is None:
        raise TreadleError("there is no ar", _WHERE, "the package binutils, or the ziglang wheel")
    members = path.parent / "members"
    members.mkdir()
    files = [members / f"{stem}.o" for stem in file_names(names)]
    for file, made in zip(files, objects, strict=True):
        shutil.copyfile(made, file)
    write([*archiver, "rcsD", str(path), *map(str, files)], path, str(path))
    shutil.rmtree(members)
