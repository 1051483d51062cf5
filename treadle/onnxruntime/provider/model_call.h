/* A compiled model, as the functions of its C library (docs/c-library.md), and calls of it with the tensors of ONNX
 * Runtime, where they lie.
 *
 * Macro: FAILURE, the code of what fails. */
#ifndef TREADLE_MODEL_CALL_H
#define TREADLE_MODEL_CALL_H

#include "ort_api.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANK = 64, ALIGNMENT = 64 };

/* As in the header of such a library. */
struct tensor {
    const char *name, *dtype;
    size_t rank;
    const size_t *shape;
    size_t bytes, alignment;
    int padded;
};

struct dimension {
    const char *name;
    long long least, greatest, multiple;
    int kept;
};

struct treadle_threads;
struct treadle_model;

struct library {
    const struct tensor *inputs, *outputs;
    const struct dimension *dimensions;
    const int *counts;     /* inputs, outputs, dimensions */
    const int (*shown)[2]; /* of each dimension: an input, and which of its dimensions it is */
    int (*bind)(void *kernels);
    int (*create_on)(struct treadle_model **, const char *weights, struct treadle_threads *);
    int (*run_at)(struct treadle_model *, const long long *extents, const void *const *inputs, void *const *outputs);
    int (*input_shape)(const struct treadle_model *, int, const long long *extents, size_t *);
    int (*output_shape)(const struct treadle_model *, int, const long long *extents, size_t *);
    void (*destroy)(struct treadle_model *);
    int (*threads_create)(struct treadle_threads **, long);
    void (*threads_destroy)(struct treadle_threads *);
    const char *(*message)(int);
};

/* A tensor of a model: its number among those of the node, and ONNX's number of its elements' type. */
struct port {
    size_t at;
    int element;
};

/* A compiled model of a node. */
struct compiled {
    struct library library;
    struct treadle_model *model;
    struct port *inputs, *outputs;
    int busy;               /* calls that are under way */
    unsigned long long used; /* the number of the last call */
};

/* How many threads a call has where nobody says it: as in Python (treadle/environment.py). */
static long default_threads(void) {
    const char *text = getenv("TREADLE_NUM_THREADS");
    long count = text ? strtol(text, NULL, 10) : 0;
    if (count > 0) return count;
    cpu_set_t cpus;
    if (!sched_getaffinity(0, sizeof cpus, &cpus)) return CPU_COUNT(&cpus);
    count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? count : 1;
}

static OrtStatus *failed(const OrtApi *api, const char *what, const char *why) {
    char message[4096];
    snprintf(message, sizeof message, "Treadle: %.2000s: %.2000s", what, why ? why : "unknown error");
    return api->CreateStatus(FAILURE, message);
}

/* ONNX's number of an element type by NumPy's name; 0 for one whose elements ONNX Runtime stores otherwise. */
static int element_of(const char *dtype) {
    static const char *const names[] = {
        "", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "", "bool", "float16", "float64", "uint32",
        "uint64", "", "", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    };
    for (int i = 1; i < (int)(sizeof names / sizeof *names); i++) {
        if (!strcmp(names[i], dtype)) return i;
    }
    return 0;
}

/* An input of a call: an input of the node as ONNX Runtime has it. */
struct given {
    const void *data;
    const int64_t *shape;
    size_t rank;
    int element;
};

static OrtStatus *make_output(const OrtApi *api, const struct compiled *c, int i, const long long *extents,
                              OrtKernelContext *context, void **data) {
    static char empty[ALIGNMENT] __attribute__((aligned(ALIGNMENT)));
    size_t shape[MOST_RANK];
    int64_t extents_of[MOST_RANK];
    OrtValue *value;
    int code = c->library.output_shape(c->model, i, extents, shape);
    if (code) return failed(api, c->library.outputs[i].name, c->library.message(code));
    for (size_t n = 0; n < c->library.outputs[i].rank; n++) extents_of[n] = (int64_t)shape[n];
    RETURN_IF_FAILED(api->KernelContext_GetOutput(context, c->outputs[i].at, extents_of, c->library.outputs[i].rank, &value));
    RETURN_IF_FAILED(api->GetTensorMutableData(value, data));
    if (!*data) *data = empty; /* it has no elements */
    return NULL;
}

/* An input that begins within an element is copied, `*copy` then; programs make few such. */
static const void *aligned(const struct tensor *tensor, const struct given *given, void **copy) {
    static const char empty[ALIGNMENT] __attribute__((aligned(ALIGNMENT)));
    size_t size = tensor->alignment;
    if (!given->data) return empty;
    if ((size_t)given->data % tensor->alignment == 0) return given->data;
    for (size_t n = 0; n < given->rank; n++) size *= (size_t)given->shape[n];
    *copy = malloc(size);
    return *copy ? memcpy(*copy, given->data, size) : NULL;
}

/* Computes the outputs of a call that the model serves. */
static OrtStatus *call(const OrtApi *api, const struct compiled *c, const struct given *given, const long long *extents,
                       OrtKernelContext *context) {
    int inputs = c->library.counts[0], outputs = c->library.counts[1];
    const void *reads[inputs + 1];
    void *writes[outputs + 1], *copies[inputs + 1];
    memset(copies, 0, sizeof copies);
    for (int i = 0; i < outputs; i++) RETURN_IF_FAILED(make_output(api, c, i, extents, context, &writes[i]));
    for (int i = 0; i < inputs; i++) reads[i] = aligned(&c->library.inputs[i], &given[c->inputs[i].at], &copies[i]);
    int code = c->library.run_at(c->model, extents, reads, writes);
    for (int i = 0; i < inputs; i++) free(copies[i]);
    return code ? failed(api, "a call failed", c->library.message(code)) : NULL;
}

#endif
