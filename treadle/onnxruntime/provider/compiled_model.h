/* Models that were compiled, as libraries that are opened at run time (docs/c-library.md), and calls of them with the
 * tensors of ONNX Runtime, where they lie. */
#ifndef TREADLE_COMPILED_MODEL_H
#define TREADLE_COMPILED_MODEL_H

#include "ort_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANK = 64, MOST_DIMENSIONS = 64, ALIGNMENT = 64 };

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

/* The paths of a compiled model: its kernels, the functions that call them, and its weights ("" if there are none). */
struct paths {
    const char *kernels, *functions, *weights;
};

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

/* Threads that the models of a session share. The libraries stay open until the threads end, whose code is one's. */
struct pool {
    pthread_mutex_t lock;
    long count;
    struct treadle_threads *threads;
    void (*destroy)(struct treadle_threads *);
    void **handles;
    int *files; /* which libraries lie in that came as bytes: they are closed after these, so that no two have one path */
    size_t opened, num_files;
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
    return api->CreateStatus(ORT_EP_FAIL, message);
}

static OrtStatus *find_functions(const OrtApi *api, struct library *l, void *kernels, void *functions) {
    struct {
        void *at;
        const char *name;
    } wanted[] = {
        {&l->inputs, "treadle_model_inputs"},
        {&l->outputs, "treadle_model_outputs"},
        {&l->dimensions, "treadle_model_dimensions"},
        {&l->counts, "treadle_model_counts"},
        {&l->shown, "treadle_model_shown"},
        {&l->bind, "treadle_model_bind"},
        {&l->create_on, "treadle_model_create_on"},
        {&l->run_at, "treadle_model_run_at"},
        {&l->input_shape, "treadle_model_input_shape"},
        {&l->output_shape, "treadle_model_output_shape"},
        {&l->destroy, "treadle_model_destroy"},
        {&l->threads_create, "treadle_model_threads_create"},
        {&l->threads_destroy, "treadle_model_threads_destroy"},
        {&l->message, "treadle_model_message"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(functions, wanted[i].name);
        if (!found) return failed(api, "a compiled model cannot be loaded", dlerror());
        memcpy(wanted[i].at, &found, sizeof found);
    }
    return l->bind(kernels) ? NULL : failed(api, "a compiled model cannot be loaded", "its kernels are missing");
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

/* Starts the session's threads with the first model, and opens a model on them. */
static int open_model(struct pool *pool, struct compiled *c, const char *weights) {
    int code = 0;
    pthread_mutex_lock(&pool->lock);
    if (!pool->threads) {
        code = c->library.threads_create(&pool->threads, pool->count);
        pool->destroy = c->library.threads_destroy;
    }
    if (!code) code = c->library.create_on(&c->model, weights, pool->threads);
    pthread_mutex_unlock(&pool->lock);
    return code;
}

/* Opens a library, which stays open as long as the pool. */
static OrtStatus *open_library(const OrtApi *api, struct pool *pool, const char *path, void **handle) {
    pthread_mutex_lock(&pool->lock);
    void **grown = realloc(pool->handles, (pool->opened + 1) * sizeof *grown);
    if (grown) pool->handles = grown;
    *handle = grown ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    OrtStatus *status = *handle ? NULL : failed(api, "a compiled model cannot be loaded", grown ? dlerror() : "memory ran out");
    if (*handle) pool->handles[pool->opened++] = *handle;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* Closes a file with the pool; 0 if memory ran out. */
static int keep_file(struct pool *pool, int file) {
    pthread_mutex_lock(&pool->lock);
    int *grown = realloc(pool->files, (pool->num_files + 1) * sizeof *grown);
    if (grown) {
        pool->files = grown;
        pool->files[pool->num_files++] = file;
    }
    pthread_mutex_unlock(&pool->lock);
    return grown != NULL;
}

/* Ends the threads, and closes the libraries, whose models are closed by then. */
static void close_pool(struct pool *pool) {
    if (pool->threads) pool->destroy(pool->threads);
    while (pool->opened) dlclose(pool->handles[--pool->opened]);
    while (pool->num_files) close(pool->files[--pool->num_files]);
    free(pool->handles);
    free(pool->files);
    pthread_mutex_destroy(&pool->lock);
}

static void close_compiled(struct compiled *c) {
    if (c->model) c->library.destroy(c->model);
    free(c->inputs);
    free(c->outputs);
    free(c);
}

/* Where the model's tensors are among the values of the node, which may have more. */
static OrtStatus *find_ports(const OrtApi *api, const struct tensor *tensors, int count, char *const *names, size_t named,
                             struct port **ports) {
    *ports = calloc((size_t)count + 1, sizeof **ports);
    if (!*ports) return failed(api, "a compiled model", "memory ran out");
    for (int i = 0; i < count; i++) {
        size_t found = 0;
        while (found < named && strcmp(names[found], tensors[i].name)) found++;
        if (found == named) return failed(api, tensors[i].name, "the compiled model has this value, and the node does not");
        if (tensors[i].rank > MOST_RANK || tensors[i].padded) return failed(api, tensors[i].name, "no tensor that a node can have");
        (*ports)[i] = (struct port){found, element_of(tensors[i].dtype)};
    }
    return NULL;
}

/* Opens a compiled model. The names are those of the values of the node that it is for. */
static OrtStatus *open_compiled(const OrtApi *api, struct pool *pool, const struct paths *paths, char *const *inputs,
                                size_t num_inputs, char *const *outputs, size_t num_outputs, struct compiled **opened) {
    void *kernels, *functions;
    struct compiled *c = calloc(1, sizeof *c);
    if (!c) return failed(api, paths->kernels, "memory ran out");
    struct library *l = &c->library;
    OrtStatus *status = open_library(api, pool, paths->kernels, &kernels);
    if (!status) status = open_library(api, pool, paths->functions, &functions);
    if (!status) status = find_functions(api, l, kernels, functions);
    if (!status && l->counts[2] > MOST_DIMENSIONS) status = failed(api, paths->functions, "too many dimensions change");
    if (!status) status = find_ports(api, l->inputs, l->counts[0], inputs, num_inputs, &c->inputs);
    if (!status) status = find_ports(api, l->outputs, l->counts[1], outputs, num_outputs, &c->outputs);
    int code = status ? 0 : open_model(pool, c, paths->weights);
    if (code) status = failed(api, "a compiled model cannot be opened", l->message(code));
    if (status)
        close_compiled(c);
    else
        *opened = c;
    return status;
}

/* An input of a call: an input of the node as ONNX Runtime has it. */
struct given {
    const void *data;
    const int64_t *shape;
    size_t rank;
    int element;
};

static OrtStatus *read_given(const OrtApi *api, const OrtKernelContext *context, size_t at, struct given *given) {
    const OrtValue *value;
    RETURN_IF_FAILED(api->KernelContext_GetInput(context, at, &value));
    RETURN_IF_FAILED(api->GetTensorElementTypeAndShapeDataReference(value, &given->element, &given->shape, &given->rank));
    return api->GetTensorData(value, &given->data);
}

/* Whether a model serves the call; its extents are in `extents` then. */
static int serves(const struct compiled *c, const struct given *given, long long *extents) {
    size_t shape[MOST_RANK];
    for (int d = 0; d < c->library.counts[2]; d++) {
        const struct given *input = &given[c->inputs[c->library.shown[d][0]].at];
        size_t axis = (size_t)c->library.shown[d][1];
        if (axis >= input->rank) return 0;
        extents[d] = input->shape[axis];
    }
    for (int i = 0; i < c->library.counts[0]; i++) {
        const struct given *input = &given[c->inputs[i].at];
        if (input->rank != c->library.inputs[i].rank || input->element != c->inputs[i].element) return 0;
        if (c->library.input_shape(c->model, i, extents, shape)) return 0;
        for (size_t n = 0; n < input->rank; n++) {
            if ((int64_t)shape[n] != input->shape[n]) return 0;
        }
    }
    return 1;
}

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
