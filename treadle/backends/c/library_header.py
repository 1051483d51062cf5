"""The header of a C library: what a program needs to know to run the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import fill

import numpy as np

from treadle.manifest import Manifest, Tensor
from treadle.passes.lower.identifiers import UniqueNames
from treadle.version import __version__

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


__all__ = ["arena_bytes", "library_header", "tensor_tables"]
