"""A cpu artifact as a C library: `libNAME.a`, `NAME.h`, `NAME.weights` and a program, `run_NAME.c`."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from treadle.artifact.artifact import WEIGHTS, Artifact
from treadle.artifact.decoder import is_decoder
from treadle.artifact.manifest import WROTE_IT, Manifest, Tensor, dynamic_calls
from treadle.artifact.store import digest, store_of
from treadle.artifact.weights import ALIGNMENT
from treadle.backends.c.compiler import (
    WASM,
    Toolchain,
    Unit,
    build_library,
    compile_objects,
    find_toolchain,
    write,
)
from treadle.backends.c.open_artifact import LIBRARY, artifact_text
from treadle.backends.c.web_module import check_addresses, web_files, write_web_module
from treadle.backends.interface import file_names
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.passes.lower.identifiers import UniqueNames, identifier
from treadle.shapes.dynamic import DynamicCalls, ExtentExpression
from treadle.shapes.states import given_of, made_of
from treadle.support.progress import Progress, no_progress
from treadle.support.version import __version__
from treadle.target import TARGETS, Target
from treadle.target.host import FEATURES, HWCAP

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
 * for a scalar), its bytes, and the alignment that a buffer needs. A buffer at a multiple of 64 may be faster. Where
 * dimensions change, `shape` and `bytes` are the largest; a tensor that is `padded` lies in that shape in every call,
 * others have a call's elements one after another. */
typedef struct {{
    const char *name;
    const char *dtype;
    size_t rank;
    const size_t *shape;
    size_t bytes;
    size_t alignment;
    int padded;
}} {name}_tensor;

extern const {name}_tensor {name}_inputs[];
extern const {name}_tensor {name}_outputs[];

/* A dimension that changes from call to call: its name, its least and greatest extent, of which it is a multiple, and
 * whether it is the length of what the model keeps between calls ({name}_length). */
typedef struct {{
    const char *name;
    long long least, greatest, multiple;
    int kept;
}} {name}_dimension;

extern const {name}_dimension {name}_dimensions[];

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
    {name}_WRONG_PROCESSOR, /* it lacks instructions that the kernels use */
    {name}_BAD_EXTENT       /* an extent is out of its dimension's range, or what the model keeps has no room */
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

/* A call in which dimensions have some extents, an extent for each of {name}_dimensions; those that are kept are known,
 * and what is given for them is not read. NULL, and {name}_run: the greatest of each. */
int {name}_run_at({name} *model, const long long *extents, const void *const *inputs, void *const *outputs);

/* The shapes of inputs[i] and outputs[i] in such a call; `shape` has room for their ranks. */
int {name}_input_shape(const {name} *model, int i, const long long *extents, size_t *shape);
int {name}_output_shape(const {name} *model, int i, const long long *extents, size_t *shape);

/* What the model keeps between calls: how long it is, by a dimension that is kept (-1 for another); shorter, as it was
 * at that length; and empty. No call may be under way. */
long long {name}_length(const {name} *model, int dimension);
int {name}_rewind({name} *model, int dimension, long long length);
int {name}_reset({name} *model);

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
    sides = ("input", given_tensors(manifest)), ("output", made_tensors(manifest))
    kept = sum(manifest.inputs[s.argument].num_bytes * (1 if s.in_place else 2) for s in manifest.states)
    return _ABOUT.format(
        name=name,
        version=__version__,
        machine=machine,
        features=fill(words, 120, initial_indent=" * ", subsequent_indent=" * "),
        weights=f", and {name}.weights when it runs" if weights_bytes else "",
        arena=arena_bytes(manifest),
        mapped=(f", {kept} of what it keeps between calls" if kept else "")
        + (f", {weights_bytes} of weights, which processes share" if weights_bytes else ""),
        guard=name.upper(),
        numbers="\n".join(
            [*(line for kind, tensors in sides for line in _numbers(name, kind, tensors)), *_dimensions(name, manifest)]
        ),
        file=file if weights_bytes else "There are no weights: that is ignored.",
    )


def tensor_tables(name: str, manifest: Manifest) -> str:
    """The definitions of the header's tables of tensors."""
    lines: list[str] = []
    for kind, tensors in (("inputs", given_tensors(manifest)), ("outputs", made_tensors(manifest))):
        rows: list[str] = []
        for number, tensor in enumerate(tensors):
            shape = f"{name}_{kind}_{number}" if tensor.shape else "NULL"
            if tensor.shape:
                lines.append(f"static const size_t {shape}[] = {{{', '.join(map(str, tensor.shape))}}};")
            words = quoted(tensor.name), quoted(tensor.dtype), len(tensor.shape), shape, tensor.num_bytes
            padded = int(bool(tensor.extents) and not tensor.dense)
            rows.append(f"    {{{', '.join(map(str, words))}, {np.dtype(tensor.dtype).itemsize}, {padded}}},")
        none = '    {"", "", 0, NULL, 0, 1, 0},'
        lines += [f"const {name}_tensor {name}_{kind}[] = {{", *(rows or [none]), "};"]
    return "\n".join([*lines, *_ranges(name, manifest, dynamic_calls(manifest))])


# Dimensions that change, and what is kept: expressions of extents as C.


class _CText:
    """A number of 64 bits as C, under the operators of extents."""

    def __init__(self, text: str):
        self.text = text

    def __add__(self, other: object) -> _CText:
        return _CText(f"({self.text} + {_c(other)})")

    def __radd__(self, other: object) -> _CText:
        return _CText(f"({_c(other)} + {self.text})")

    def __sub__(self, other: object) -> _CText:
        return _CText(f"({self.text} - {_c(other)})")

    def __rsub__(self, other: object) -> _CText:
        return _CText(f"({_c(other)} - {self.text})")

    def __mul__(self, other: object) -> _CText:
        return _CText(f"({self.text} * {_c(other)})")

    __rmul__ = __mul__

    def __neg__(self) -> _CText:
        return _CText(f"(-{self.text})")

    def __floordiv__(self, other: object) -> _CText:
        return _CText(f"floor_quotient({self.text}, {_c(other)})")

    def __mod__(self, other: object) -> _CText:
        return self - (self // other) * other


def _c(value: object) -> str:
    return value.text if isinstance(value, _CText) else f"{value}LL"


def _expression(extent: ExtentExpression, names: Sequence[str]) -> str:
    values: Any = {name: _CText(f"d[{n}]") for n, name in enumerate(names)}
    return _c(extent.value(values))


def given_tensors(manifest: Manifest) -> tuple[Tensor, ...]:
    """What a caller gives."""
    given = given_of(manifest.inputs, manifest.states)
    return given[: len(given) - len(manifest.extents)]


def made_tensors(manifest: Manifest) -> tuple[Tensor, ...]:
    """What a caller gets, with extents that depend on data."""
    return made_of(manifest.outputs, manifest.states)


def _dimensions(name: str, manifest: Manifest) -> list[str]:
    """The position of each dimension that changes."""
    names = UniqueNames()
    lines = ["/* The positions of the dimensions that change from call to call. */", "enum {"]
    for number, dim in enumerate(manifest.symbols):
        word = names.unique(re.sub(r"\W", "_", dim.name, flags=re.ASCII))
        lines.append(f"    {name}_DIMENSION_{word} = {number}, /* {dim.least} to {dim.greatest} */")
    return [*lines, f"    {name}_NUM_DIMENSIONS = {len(manifest.symbols)}", "};", ""]


def _ranges(name: str, manifest: Manifest, calls: DynamicCalls) -> list[str]:
    """The table of dimensions, and functions of their extents `d`: those that kernels take, those of tensors, and what
    is kept after a call."""
    names, lines = [dim.name for dim in manifest.symbols], [f"const {name}_dimension {name}_dimensions[] = {{"]
    for dim in manifest.symbols:
        kept = int(dim.name in calls.lengths)
        row = quoted(dim.name), f"{dim.least}LL", f"{dim.greatest}LL", f"{dim.multiple}LL", str(kept)
        lines.append(f"    {{{', '.join(row)}}},")
    lines += ["    {NULL, 0, 0, 1, 0}", "};"]
    lines += [
        "static long long floor_quotient(long long a, long long b) { return a / b - (a % b < 0); }",
        "static void find_extents(const long long *d, long long *e) {",
        *(f"    e[{n}] = {_expression(ExtentExpression(t, names), names)};" for n, t in enumerate(manifest.extents)),
        "    (void)d, (void)e, (void)floor_quotient;",
        "}",
        "static void find_lengths(const long long *d, long long *after) {",
        *(f"    after[{names.index(n)}] = {_expression(e, names)};" for n, e in calls.lengths_after.items()),
        "    (void)d, (void)after;",
        "}",
    ]
    for kind, tensors in (("input", given_tensors(manifest)), ("output", made_tensors(manifest))):
        lines += [f"static void find_{kind}_shape(int number, const long long *d, size_t *shape) {{"]
        lines += ["    switch (number) {"]
        for number, tensor in enumerate(tensors):
            texts = tensor.extents or tuple(map(str, tensor.shape))
            sizes = [_size(text, bound, names) for text, bound in zip(texts, tensor.shape, strict=True)]
            lines += [f"    case {number}:", *(f"        shape[{n}] = (size_t){size};" for n, size in enumerate(sizes))]
            lines += ["        break;"]
        lines += ["    default: break;", "    }", "    (void)d, (void)shape;", "}"]
    return lines


def _size(text: str, bound: int, names: Sequence[str]) -> str:
    """An extent, of which some factors may be merged; of one that depends on data, the largest."""
    try:
        factors = [ExtentExpression(part.partition("<=")[0], names) for part in text.split(",")]
    except ValueError:
        return str(bound)
    return f"({' * '.join(_expression(factor, names) for factor in factors)})"


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
        what = f"{quoted(tensor.name)}: {_element(tensor.dtype)} [{shape}], {tensor.num_bytes} bytes"
        lines.append(f"    {name}_{kind.upper()}_{word} = {number}, /* {what} */")
    return [*lines, f"    {name}_NUM_{kind.upper()}S = {len(tensors)}", "};", ""]


def _element(dtype: str) -> str:
    """A type of elements as C has it."""
    in_byte = _IN_A_BYTE.match(dtype)
    return f"{dtype} in the low bits of a byte" if in_byte else _C_TYPES.get(dtype, f"{dtype}_t")


def quoted(text: str) -> str:
    """A string of C, which may stand in a comment; octal, since hexadecimal escapes have no end."""
    return f'"{"".join(chr(b) if chr(b) in _PLAIN else f"{chr(92)}{b:03o}" for b in text.encode())}"'


_WHERE = "a C library"
_SOURCES = Path(__file__).parent / "library"
_FUNCTION = re.compile(r"^void (\w+)\(void \*const \*args, long worker, long workers\)", re.MULTILINE)
_POOL = tuple(
    f"treadle_pool_{word}" for word in ("create", "create_on", "run", "record", "trace", "workers", "layout", "destroy")
)
_HOST = ("treadle_run", "treadle_interface")
_POOL_UNIT = "pool"
_BASE = {"x86_64": "sse2", "AMD64": "sse2", "aarch64": "neon", "arm64": "neon", WASM: "wasm"}
"""What code runs on that asks the processor what it has."""


def check_library(target: Target, name: str) -> None:
    """TreadleError for what cannot be compiled to a C library, and for a name that cannot begin C's names."""
    if target.is_cuda:
        raise TreadleError(f"target {target.name}", _WHERE, "a cpu target")
    if identifier(name) != name:
        raise TreadleError(f"{name!r} cannot begin names in C", "--name", f"a C identifier, such as {identifier(name)}")


def library_files(name: str) -> tuple[str, ...]:
    """The files that a library may have: the weights are there if it has constants, `generate` if it is a decoder, and
    those of a module of WebAssembly instead of the programs in C."""
    return f"lib{name}.a", f"{name}.h", f"run_{name}.c", f"generate_{name}.c", f"{name}.weights", *web_files(name)


def write_library(
    artifact: Artifact, target: Target, name: str, folder: Path, progress: Progress = no_progress
) -> None:
    """Writes the library of an artifact that was compiled for `target` into a folder.

    All names that the linker sees begin with `name`, so that a program may have several libraries. TreadleError for an
    artifact of which a file is missing or changed, and what the compiler raises.
    """
    toolchain = find_toolchain(load_environment(), target)
    if toolchain.is_wasm:
        check_addresses(artifact.manifest)
    parts = compile_parts(artifact, target, name, folder / f"{name}.weights", progress)
    (folder / f"{name}.h").write_text(parts.header)
    examples = [] if toolchain.is_wasm else ["run", *(["generate"] if is_decoder(artifact.manifest) else [])]
    for word in examples:
        (folder / f"{word}_{name}.c").write_text((_SOURCES / f"{word}_model.c").read_text().replace("MODEL", name))
    progress("writing the library", 0.9)
    _archive(parts.objects, parts.units, folder / f"lib{name}.a", toolchain)
    if toolchain.is_wasm:
        write_web_module(toolchain, parts.objects, name, artifact.manifest, parts.weights_bytes, folder)


@dataclass(frozen=True)
class Parts:
    """What a C library consists of: the text of its header, its units with their objects, and the bytes of its weights,
    0 if it has none."""

    header: str
    units: list[str]
    objects: list[Path]
    weights_bytes: int


def compile_parts(artifact: Artifact, target: Target, name: str, weights: Path, progress: Progress) -> Parts:
    """Compiles the units of an artifact's C library, and writes its constants, if there are any, to `weights`."""
    manifest = artifact.manifest
    progress("writing weights", 0.0)
    offsets, size = _weight_offsets(manifest)
    sha256 = _write_weights(artifact, weights) if size else hashlib.sha256().hexdigest()
    header = library_header(name, manifest, size)
    sources, headers = artifact_text(artifact)
    if not sources:
        raise TreadleError("the artifact has no C text", artifact.folder, WROTE_IT)
    progress("compiling C", 0.2)
    objects = compile_objects(_renamed(sources, name), headers=headers, target=target)
    entry = _entry(name, manifest, header, offsets, size, sha256)
    headers["sha256.h"] = (_SOURCES / "sha256.h").read_text()
    objects += compile_objects([entry], headers=headers, target=entry_target(manifest))
    return Parts(header, [*sources, "library"], objects, size)


def entry_target(manifest: Manifest) -> Target:
    """What code that asks the processor for its features, before any kernel, is compiled for."""
    return TARGETS[_BASE[manifest.machine.split()[0]]]


BOUND = "treadle_model"
"""What the names of a bound library begin with."""


def bound_library(artifact: Artifact) -> tuple[Path, Path | None]:
    """The functions of a C library for an artifact's own `model.so`, which the program opens at run time, and its file
    of weights, if it has any: both in the cache, compiled for this machine.

    The library has the names of `NAME.h` with `treadle_model` for `NAME`, and three more. `treadle_model_bind(handle)`
    takes the kernels of what `dlopen` gave, and comes first. `treadle_model_counts` are the numbers of inputs, outputs
    and dimensions. `treadle_model_shown` says where a call shows each dimension: an input, and which of its dimensions.

    TreadleError for an artifact whose tensors a caller could not give or take without padding: some lie in the largest
    shape, depend on data, or show a dimension in expressions only.
    """
    manifest, store = artifact.manifest, store_of(load_environment())
    offsets, size = _weight_offsets(manifest)
    header = library_header(BOUND, manifest, size)
    entry = _entry(
        BOUND, manifest, header, offsets, size, "", shown_dimensions(manifest, "a library that is opened at run time")
    )
    headers = {name: text for name, text in artifact_text(artifact)[1].items() if name == "pool.h"}
    with store.writing():  # until both are there, nobody evicts them
        key = digest(*(manifest.files[f"{WEIGHTS}/{tensor.name}"] for tensor in manifest.constants))

        def write_weights(path: Path) -> None:
            _write_weights(artifact, path)

        weights = store.fetch("libraries", key, ".weights", write_weights) if size else None
        return build_library([entry], headers=headers), weights


def shown_dimensions(manifest: Manifest, what: str) -> str:
    """Of each dimension the first input that has it, and where, as C; TreadleError as `bound_library`, about `what`."""
    where: dict[str, str] = {}
    for number, tensor in enumerate(given_tensors(manifest)):
        for axis, text in enumerate(tensor.extents):
            where.setdefault(text.strip(), f"{{{number}, {axis}}}")
    hidden = [dim.name for dim in manifest.symbols if dim.name not in where]
    padded = [t.name for t in (*given_tensors(manifest), *made_tensors(manifest)) if t.extents and not t.dense]
    problems = [
        *(f"extent {name} depends on data" for name in manifest.found),
        *(f"no input has the dimension '{name}' by itself" for name in hidden),
        *(f"'{name}' lies in its largest shape, of which a call has a part" for name in padded),
    ]
    if problems:
        raise TreadleError(problems[0], what, "fixed shapes, or dense ranges")
    return f"{{{', '.join([where[dim.name] for dim in manifest.symbols] or ['{0, 0}'])}}}"


def _weight_offsets(manifest: Manifest) -> tuple[list[int], int]:
    """Where each constant begins in the file of weights, which has equal ones once, and the bytes of all."""
    positions, size = dict[str, int](), 0
    for tensor in manifest.constants:
        if tensor.name not in positions:
            positions[tensor.name] = size
            size += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
    return [positions[tensor.name] for tensor in manifest.constants], size


def _write_weights(artifact: Artifact, path: Path) -> str:
    """Writes the constants, each at its offset; the sha256 of all."""
    hasher = hashlib.sha256()
    with path.open("wb") as file:
        for name in dict.fromkeys(tensor.name for tensor in artifact.manifest.constants):
            data = artifact.read(f"{WEIGHTS}/{name}")
            padded = data + bytes(-len(data) % ALIGNMENT)
            file.write(padded)
            hasher.update(padded)
    return hasher.hexdigest()


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


def _entry(
    name: str, manifest: Manifest, header: str, offsets: Sequence[int], size: int, sha256: str, shown: str | None = None
) -> Unit:
    """The unit with the functions of the header; `shown`: of a library that is bound to another one."""
    machine, *features = manifest.machine.split()
    states = [
        f"{{{s.argument}, {s.result}, {max(1, manifest.inputs[s.argument].num_bytes)}, {int(s.in_place)}}}"
        for s in manifest.states
    ]
    needs = ", ".join([*(_need(word, machine) for word in features), "{NULL, 0, 0, 0, 0, 0}"])
    definitions = {
        "MODEL": name,
        "CONSTANTS": str(len(offsets)),
        "OFFSETS": _listed(offsets),
        "WEIGHTS_BYTES": str(size),
        "WEIGHTS_DIGEST": f"{{{', '.join(map(str, bytes.fromhex(sha256)))}}}",
        "ARENA_BYTES": str(arena_bytes(manifest)),
        "INPUTS": str(len(manifest.inputs)),
        "OUTPUTS": str(len(manifest.outputs)),
        "EXTENTS": str(len(manifest.extents)),
        "GIVEN": _listed(given_of(range(len(manifest.inputs)), manifest.states)),
        "MADE": _listed(made_of(range(len(manifest.outputs)), manifest.states)),
        "STATES": str(len(manifest.states)),
        "KEPT": f"{{{', '.join([*states, '{0, 0, 0, 0}'])}}}",
        "NEEDS": f"{{{needs}}}",
    }
    lines = [f"#define {word} {text}" for word, text in definitions.items()]
    if shown is not None:
        lines += [f"#define SHOWN {shown}", f'#define KERNELS "{manifest.files[LIBRARY]}"']
    renaming = "" if shown is not None else _renaming(name, (*_POOL, *_HOST))
    text = (_SOURCES / "library.c").read_text()
    return Unit("library", "\n".join([renaming, header, tensor_tables(name, manifest), *lines, text]))


def _listed(numbers: Iterable[int]) -> str:
    return f"{{{', '.join(map(str, numbers)) or '0'}}}"


def _need(word: str, machine: str) -> str:
    """A feature as library.c asks the processor, or the system, for it."""
    if machine == "aarch64" and word in HWCAP:
        return f'{{"{word}", 0, 0, 0, {HWCAP[word]}, 0}}'
    told = FEATURES.get(word)
    if told is None:
        return f'{{"{word}", 0, 0, -1, 0, 0}}'
    return f'{{"{word}", {told.leaf}u, {told.subleaf}, {told.register}, {told.bit}, {told.state}}}'


def _archive(objects: Sequence[Path], names: Sequence[str], path: Path, toolchain: Toolchain) -> None:
    """A static library of the objects, whose members have these names."""
    archiver = toolchain.archiver()
    if archiver is None:
        raise TreadleError("there is no ar", _WHERE, "the package binutils, or the ziglang wheel")
    members = path.parent / "members"
    members.mkdir()
    files = [members / f"{stem}.o" for stem in file_names(names)]
    for file, made in zip(files, objects, strict=True):
        shutil.copyfile(made, file)
    write([*archiver, "rcsD", str(path), *map(str, files)], path, str(path))
    shutil.rmtree(members)
