/* A custom operator of ONNX Runtime that runs one compiled model (docs/onnxruntime.md, docs/adr/0095). It is linked with
 * the model's C library (backends/c/library/library.c).
 *
 * Before this text stand these macros:
 *
 * MODEL, NAME       what the library's names begin with, and the same as text: the operator's name
 * DOMAIN            the operator's domain
 * INPUTS, OUTPUTS, DIMENSIONS  how many there are
 * SHOWN             of each dimension an input, and which of its dimensions it is
 * WEIGHTS           the name of the file of weights beside this library; "" if there is none */
#define _GNU_SOURCE
#define FAILURE ORT_FAIL

#include "model_call.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))
#define JOINED(a, b) a##_##b
#define EXPANDED(a, b) JOINED(a, b)
#define OURS(name) EXPANDED(MODEL, name)
#define THREADS "treadle.threads"

extern const struct tensor OURS(inputs)[], OURS(outputs)[];
extern const struct dimension OURS(dimensions)[];
int OURS(create)(struct treadle_model **, const char *weights, long threads);
int OURS(run_at)(struct treadle_model *, const long long *extents, const void *const *inputs, void *const *outputs);
int OURS(input_shape)(const struct treadle_model *, int, const long long *extents, size_t *);
int OURS(output_shape)(const struct treadle_model *, int, const long long *extents, size_t *);
void OURS(destroy)(struct treadle_model *);
const char *OURS(message)(int);

static const int counts[] = {INPUTS, OUTPUTS, DIMENSIONS}, shown[][2] = SHOWN;
static const struct library library = {
    .inputs = OURS(inputs),
    .outputs = OURS(outputs),
    .dimensions = OURS(dimensions),
    .counts = counts,
    .shown = shown,
    .run_at = OURS(run_at),
    .input_shape = OURS(input_shape),
    .output_shape = OURS(output_shape),
    .destroy = OURS(destroy),
    .message = OURS(message),
};

/* An operator for sessions whose calls have so many threads. It lives as long as this library: a session's options have
 * no end that it could see. */
struct variant {
    OrtCustomOp table;
    const OrtApi *api;
    OrtCustomOpDomain *domain;
    long threads;
    struct variant *next;
};

static struct {
    pthread_mutex_t lock;
    struct variant *variants;
    struct port inputs[INPUTS + 1], outputs[OUTPUTS + 1];
    char weights[PATH_MAX]; /* "" until the first session */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The node of a session. */
struct kernel {
    struct compiled compiled;
    const OrtApi *api;
};

/* Calls. */

static OrtStatus *read_shape(const OrtApi *api, const OrtTensorTypeAndShapeInfo *info, struct given *given, int64_t *shape) {
    RETURN_IF_FAILED(api->GetTensorElementType(info, &given->element));
    RETURN_IF_FAILED(api->GetDimensionsCount(info, &given->rank));
    if (given->rank > MOST_RANK) return failed(api, NAME, "an input has too many dimensions");
    given->shape = shape;
    return api->GetDimensions(info, shape, given->rank);
}

static OrtStatus *read_given(const OrtApi *api, const OrtKernelContext *context, size_t at, struct given *given, int64_t *shape) {
    const OrtValue *value;
    OrtTensorTypeAndShapeInfo *info;
    void *data;
    RETURN_IF_FAILED(api->KernelContext_GetInput(context, at, &value));
    RETURN_IF_FAILED(api->GetTensorTypeAndShape(value, &info));
    OrtStatus *status = read_shape(api, info, given, shape);
    api->ReleaseTensorTypeAndShapeInfo(info);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(api->GetTensorMutableData((OrtValue *)value, &data));
    given->data = data;
    return NULL;
}

static OrtStatus *refused(const OrtApi *api, const char *input, const char *text) {
    char message[4096];
    snprintf(message, sizeof message, "Treadle: %s: input %.1000s %.2000s", NAME, input, text);
    return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
}

/* Appends a shape to a text. */
static void add_shape(char *text, size_t room, const int64_t *shape, size_t rank) {
    for (size_t n = 0; n <= rank; n++) {
        size_t length = strlen(text);
        if (n == rank)
            snprintf(text + length, room - length, rank ? "]" : "[]");
        else
            snprintf(text + length, room - length, "%s%lld", n ? ", " : "[", (long long)shape[n]);
    }
}

/* The extent of a dimension in a call. */
static OrtStatus *find_extent(const OrtApi *api, const struct given *given, int number, long long *extent) {
    const struct dimension *dimension = &OURS(dimensions)[number];
    const char *input = OURS(inputs)[shown[number][0]].name;
    char text[1024];
    *extent = given[shown[number][0]].shape[shown[number][1]];
    if (*extent >= dimension->least && *extent <= dimension->greatest && *extent % dimension->multiple == 0) return NULL;
    int length = snprintf(text, sizeof text, "has %lld for dimension %.500s; accepted: %lld to %lld", *extent, dimension->name,
                          dimension->least, dimension->greatest);
    if (dimension->multiple > 1) snprintf(text + length, sizeof text - (size_t)length, ", multiples of %lld", dimension->multiple);
    return refused(api, input, text);
}

static OrtStatus *check_shape(const struct kernel *k, int number, const struct given *given, const long long *extents) {
    char text[2048] = "has shape ";
    size_t shape[MOST_RANK];
    int64_t wanted[MOST_RANK];
    int code = OURS(input_shape)(k->compiled.model, number, extents, shape), differs = 0;
    if (code) return failed(k->api, OURS(inputs)[number].name, OURS(message)(code));
    for (size_t n = 0; n < given->rank; n++) {
        wanted[n] = (int64_t)shape[n];
        differs |= wanted[n] != given->shape[n];
    }
    if (!differs) return NULL;
    add_shape(text, sizeof text, given->shape, given->rank);
    strcat(text, "; accepted: ");
    add_shape(text, sizeof text, wanted, given->rank);
    return refused(k->api, OURS(inputs)[number].name, text);
}

static OrtStatus *check_call(const struct kernel *k, const struct given *given, long long *extents) {
    char text[256];
    for (int i = 0; i < INPUTS; i++) {
        const struct tensor *tensor = &OURS(inputs)[i];
        if (given[i].rank != tensor->rank) {
            snprintf(text, sizeof text, "has %zu dimensions; accepted: %zu", given[i].rank, tensor->rank);
            return refused(k->api, tensor->name, text);
        }
    }
    for (int d = 0; d < DIMENSIONS; d++) RETURN_IF_FAILED(find_extent(k->api, given, d, &extents[d]));
    for (int i = 0; i < INPUTS; i++) RETURN_IF_FAILED(check_shape(k, i, &given[i], extents));
    return NULL;
}

static OrtStatus *compute(void *kernel, OrtKernelContext *context) {
    const struct kernel *k = kernel;
    struct given given[INPUTS + 1];
    int64_t shapes[INPUTS + 1][MOST_RANK];
    long long extents[DIMENSIONS + 1];
    for (size_t i = 0; i < INPUTS; i++) RETURN_IF_FAILED(read_given(k->api, context, i, &given[i], shapes[i]));
    RETURN_IF_FAILED(check_call(k, given, extents));
    return call(k->api, &k->compiled, given, extents, context);
}

/* A kernel for each node of each session, with threads and scratch memory of its own. */
static OrtStatus *create_kernel(const OrtCustomOp *this, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    (void)info;
    if (*WEIGHTS && access(state.weights, R_OK)) return failed(api, state.weights, strerror(errno));
    struct kernel *made = calloc(1, sizeof *made);
    if (!made) return failed(api, NAME, "memory ran out");
    made->compiled = (struct compiled){.library = library, .inputs = state.inputs, .outputs = state.outputs};
    made->api = api;
    int code = OURS(create)(&made->compiled.model, state.weights, ((const struct variant *)this)->threads);
    if (!code) {
        *kernel = made;
        return NULL;
    }
    free(made);
    return failed(api, *WEIGHTS ? state.weights : NAME, OURS(message)(code));
}

static void destroy_kernel(void *kernel) {
    struct kernel *k = kernel;
    OURS(destroy)(k->compiled.model);
    free(k);
}

/* The operator. */

static const char *name(const OrtCustomOp *this) {
    (void)this;
    return NAME;
}

static const char *provider(const OrtCustomOp *this) {
    (void)this;
    return NULL;
}

static size_t count_inputs(const OrtCustomOp *this) {
    (void)this;
    return INPUTS;
}

static size_t count_outputs(const OrtCustomOp *this) {
    (void)this;
    return OUTPUTS;
}

static int input_type(const OrtCustomOp *this, size_t number) {
    (void)this;
    return state.inputs[number].element;
}

static int output_type(const OrtCustomOp *this, size_t number) {
    (void)this;
    return state.outputs[number].element;
}

static int required(const OrtCustomOp *this, size_t number) {
    (void)this;
    (void)number;
    return ORT_REQUIRED;
}

static int default_memory(const OrtCustomOp *this, size_t number) {
    (void)this;
    (void)number;
    return ORT_DEFAULT_MEMORY;
}

/* The option of a session that says how many threads a call has. */
static OrtStatus *read_threads(const OrtApi *api, const OrtSessionOptions *options, long *threads) {
    char text[32] = "", *end;
    size_t size = sizeof text;
    int is_there = 0;
    *threads = default_threads();
    RETURN_IF_FAILED(api->HasSessionConfigEntry(options, THREADS, &is_there));
    if (!is_there) return NULL;
    OrtStatus *status = api->GetSessionConfigEntry(options, THREADS, text, &size);
    if (status) api->ReleaseStatus(status); /* it is too long for a number */
    *threads = strtol(text, &end, 10);
    if (!status && *threads >= 1 && !*end) return NULL;
    return failed(api, "the session's entry " THREADS, "not a number of threads; accepted: 1 upwards");
}

/* Where this library lies, and with it the weights. */
static OrtStatus *find_weights(const OrtApi *api) {
    static const char mark = 0;
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr(&mark, &info) || !realpath(info.dli_fname, path)) return failed(api, NAME, "the library's own path is unknown");
    int folder = (int)(strrchr(path, '/') - path);
    int length = snprintf(state.weights, sizeof state.weights, "%.*s/%s", folder, path, WEIGHTS);
    if (length < (int)sizeof state.weights) return NULL;
    *state.weights = 0;
    return failed(api, path, "the path is too long");
}

static OrtStatus *make_variant(const OrtApi *api, long threads, struct variant **made) {
    struct variant *v = calloc(1, sizeof *v);
    if (!v) return failed(api, NAME, "memory ran out");
    v->api = api;
    v->threads = threads;
    v->table = (OrtCustomOp){
        .version = ORT_OPERATOR_VERSION,
        .GetName = name,
        .GetExecutionProviderType = provider,
        .GetInputType = input_type,
        .GetInputTypeCount = count_inputs,
        .GetOutputType = output_type,
        .GetOutputTypeCount = count_outputs,
        .KernelDestroy = destroy_kernel,
        .GetInputCharacteristic = required,
        .GetOutputCharacteristic = required,
        .GetInputMemoryType = default_memory,
        .CreateKernelV2 = create_kernel,
        .KernelComputeV2 = compute,
    };
    OrtStatus *status = api->CreateCustomOpDomain(DOMAIN, &v->domain);
    if (!status) status = api->CustomOpDomain_Add(v->domain, &v->table);
    if (!status) {
        v->next = state.variants;
        *made = state.variants = v;
        return NULL;
    }
    if (v->domain) api->ReleaseCustomOpDomain(v->domain);
    free(v);
    return status;
}

/* The operator for so many threads. The caller has the lock. */
static OrtStatus *find_variant(const OrtApi *api, long threads, struct variant **found) {
    if (!*state.weights) {
        for (size_t i = 0; i < INPUTS; i++) state.inputs[i] = (struct port){i, element_of(OURS(inputs)[i].dtype)};
        for (size_t i = 0; i < OUTPUTS; i++) state.outputs[i] = (struct port){i, element_of(OURS(outputs)[i].dtype)};
        RETURN_IF_FAILED(find_weights(api));
    }
    for (*found = state.variants; *found; *found = (*found)->next) {
        if ((*found)->api == api && (*found)->threads == threads) return NULL;
    }
    return make_variant(api, threads, found);
}

/* What SessionOptions.register_custom_ops_library calls. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    const OrtApi *api = base->GetApi(ORT_OPERATOR_VERSION);
    struct variant *found = NULL;
    long threads;
    if (!api) return refuse_runtime(base, FAILURE, ORT_OPERATOR_VERSION);
    RETURN_IF_FAILED(read_threads(api, options, &threads));
    pthread_mutex_lock(&state.lock);
    OrtStatus *status = find_variant(api, threads, &found);
    pthread_mutex_unlock(&state.lock);
    return status ? status : api->AddCustomOpDomain(options, found->domain);
}

/* Before the library is closed, no session is left. */
__attribute__((destructor)) static void release_variants(void) {
    while (state.variants) {
        struct variant *v = state.variants;
        state.variants = v->next;
        v->api->ReleaseCustomOpDomain(v->domain);
        free(v);
    }
}
