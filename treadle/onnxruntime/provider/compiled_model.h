/* Models that were compiled, as libraries that are opened at run time, and which of them serves a call. */
#ifndef TREADLE_COMPILED_MODEL_H
#define TREADLE_COMPILED_MODEL_H

#define FAILURE ORT_EP_FAIL
#include "model_call.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MOST_DIMENSIONS = 64 };

/* The paths of a compiled model: its kernels, the functions that call them, and its weights ("" if there are none). */
struct paths {
    const char *kernels, *functions, *weights;
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

#endif
