/* A node of the provider: the models that its part of a graph was compiled to, calls of them, and the bytes by which a
 * file holds one. */
#ifndef TREADLE_KERNEL_H
#define TREADLE_KERNEL_H

#include "compiled_model.h"
#include "compiler_client.h"
#include "sha256.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define NAME "TreadleExecutionProvider"

enum { MOST_FORMS = 64, MOST_COMPILED = 16 };

struct factory {
    OrtEpFactory table;
    const OrtApi *api;
    const OrtEpApi *ep_api;
    struct compiler compiler;
};

/* A folder of models, for as long as something may have to be compiled of them. */
struct folder {
    int users;
    pid_t owner; /* a forked child uses it, and leaves it */
    char path[];
};

/* A part of a graph: numbers of its nodes, its model in the folder ("" where no call can need it), and the paths of what it
 * was compiled to ("" where a call has to show its shapes). */
struct part {
    size_t *nodes, count;
    char *model, *kernels, *functions, *weights;
};

struct session {
    OrtEp table;
    struct factory *factory;
    const OrtLogger *logger;
    struct bytes options; /* for the compiler: names and values */
    char *context_file, *context_prefix;
    int writes_context, embeds_context;
    struct pool pool;
    pthread_mutex_t lock; /* of the folders' users */
    struct folder *folder; /* of the parts of the last graph, which the next call compiles */
    struct part *parts;
    size_t num_parts;
};

/* A call's shapes, each input's one after another with its rank before it. */
struct form {
    size_t size;
    int64_t numbers[];
};

struct kernel {
    OrtNodeComputeInfo table;
    struct session *session;
    struct folder *folder; /* NULL: it is compiled, and no call can need more */
    char *name, *model;
    char **inputs, **outputs;
    size_t num_inputs, num_outputs;
    pthread_mutex_t lock;
    int each_alone; /* ranges of shapes were tried in vain */
    struct compiled *compiled[MOST_COMPILED];
    size_t num_compiled;
    struct form *forms[MOST_FORMS];
    size_t num_forms;
    unsigned long long calls;
};

/* Folders. */

static struct folder *make_folder(void) {
    const char *root = getenv("TMPDIR");
    struct folder *made = malloc(sizeof *made + 4096);
    if (!made) return NULL;
    made->users = 1;
    made->owner = getpid();
    int size = snprintf(made->path, 4000, "%s/treadle-onnxruntime-XXXXXX", root && *root ? root : "/tmp");
    if (size < 4000 && mkdtemp(made->path)) return made;
    free(made);
    return NULL;
}

static void remove_folder(const char *path) {
    char name[8192];
    DIR *listing = opendir(path);
    struct dirent *entry;
    while (listing && (entry = readdir(listing))) {
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.') unlink(name);
    }
    if (listing) closedir(listing);
    rmdir(path);
}

static void leave_folder(struct session *s, struct folder *folder) {
    if (!folder) return;
    pthread_mutex_lock(&s->lock);
    int left = --folder->users;
    pthread_mutex_unlock(&s->lock);
    if (left) return;
    if (folder->owner == getpid()) remove_folder(folder->path);
    free(folder);
}

/* The compiler's answers. */

static void log_message(const struct session *s, int severity, const char *message) {
    const OrtApi *api = s->factory->api;
    OrtStatus *status = api->Logger_LogMessage(s->logger, severity, message, "provider.c", 0, NAME);
    if (status) api->ReleaseStatus(status);
}

/* Reads what every answer begins with: messages for the log, and an error, if there is one. */
static OrtStatus *read_messages(const struct session *s, struct fields *answer) {
    for (size_t count = next_count(answer); count; count--) {
        int severity = (int)next_count(answer);
        log_message(s, severity, next_field(answer));
    }
    const char *error = next_field(answer);
    return *error ? s->factory->api->CreateStatus(ORT_EP_FAIL, error) : NULL;
}

/* Calls. */

static void close_kernel(struct kernel *k) {
    for (size_t i = 0; i < k->num_compiled; i++) close_compiled(k->compiled[i]);
    for (size_t i = 0; i < k->num_forms; i++) free(k->forms[i]);
    for (size_t i = 0; k->inputs && i < k->num_inputs; i++) free(k->inputs[i]);
    for (size_t i = 0; k->outputs && i < k->num_outputs; i++) free(k->outputs[i]);
    leave_folder(k->session, k->folder);
    pthread_mutex_destroy(&k->lock);
    free(k->inputs);
    free(k->outputs);
    free(k->name);
    free(k->model);
    free(k);
}

/* Room for one more compiled model: the one that was called least lately goes, of those that no call uses. */
static int make_room(struct kernel *k) {
    if (k->num_compiled < MOST_COMPILED) return 1;
    size_t oldest = MOST_COMPILED;
    for (size_t i = 0; i < k->num_compiled; i++) {
        if (k->compiled[i]->busy) continue;
        if (oldest == MOST_COMPILED || k->compiled[i]->used < k->compiled[oldest]->used) oldest = i;
    }
    if (oldest == MOST_COMPILED) return 0;
    close_compiled(k->compiled[oldest]);
    k->compiled[oldest] = k->compiled[--k->num_compiled];
    return 1;
}

static OrtStatus *open_for(struct kernel *k, const struct paths *paths) {
    const OrtApi *api = k->session->factory->api;
    if (!make_room(k)) return failed(api, k->name, "too many calls of different shapes at once");
    OrtStatus *status = open_compiled(api, &k->session->pool, paths, k->inputs, k->num_inputs, k->outputs, k->num_outputs,
                                      &k->compiled[k->num_compiled]);
    if (!status) k->num_compiled++;
    return status;
}

/* Remembers the shapes of a call for the compiler, which makes ranges of what changes. */
static int remember(struct kernel *k, const struct given *given) {
    size_t size = 0;
    for (size_t i = 0; i < k->num_inputs; i++) size += given[i].rank + 1;
    struct form *form = malloc(sizeof *form + size * sizeof *form->numbers);
    if (!form) return 0;
    form->size = 0;
    for (size_t i = 0; i < k->num_inputs; i++) {
        form->numbers[form->size++] = (int64_t)given[i].rank;
        for (size_t n = 0; n < given[i].rank; n++) form->numbers[form->size++] = given[i].shape[n];
    }
    if (k->num_forms == MOST_FORMS) {
        free(k->forms[0]);
        memmove(k->forms, k->forms + 1, (MOST_FORMS - 1) * sizeof *k->forms);
        k->num_forms--;
    }
    k->forms[k->num_forms++] = form;
    return 1;
}

static void add_request(const struct kernel *k, struct bytes *request) {
    add_word(request, "compile");
    add_word(request, k->folder->path);
    add_word(request, k->model);
    add_word(request, k->each_alone ? "1" : "0");
    add_count(request, k->num_inputs);
    for (size_t i = 0; i < k->num_inputs; i++) add_word(request, k->inputs[i]);
    add_count(request, k->num_forms);
    for (size_t i = 0; i < k->num_forms; i++) {
        for (size_t n = 0; n < k->forms[i]->size; n++) add_count(request, (size_t)k->forms[i]->numbers[n]);
    }
    add(request, k->session->options.data, k->session->options.size);
}

/* Compiles for the shapes of a call, and for others beside them. The caller has the lock. */
static OrtStatus *compile_for(struct kernel *k, const struct given *given) {
    const OrtApi *api = k->session->factory->api;
    struct bytes request = {0};
    char *text;
    size_t size;
    if (!k->folder) return failed(api, k->name, "a call of other shapes or types than it was compiled for");
    if (!remember(k, given)) return no_memory(api);
    add_request(k, &request);
    OrtStatus *status = ask(api, &k->session->factory->compiler, &request, &text, &size);
    free(request.data);
    RETURN_IF_FAILED(status);
    struct fields answer = {text, text + size};
    status = read_messages(k->session, &answer);
    if (!status) {
        struct paths paths;
        paths.kernels = next_field(&answer);
        paths.functions = next_field(&answer);
        paths.weights = next_field(&answer);
        k->each_alone = (int)next_count(&answer);
        status = open_for(k, &paths);
    }
    free(text);
    return status;
}

static struct compiled *find_compiled(const struct kernel *k, const struct given *given, long long *extents) {
    for (size_t i = k->num_compiled; i; i--) {
        if (serves(k->compiled[i - 1], given, extents)) return k->compiled[i - 1];
    }
    return NULL;
}

/* The model for a call, which counts as busy, compiled if none serves its shapes. */
static OrtStatus *take_compiled(struct kernel *k, const struct given *given, long long *extents, struct compiled **taken) {
    OrtStatus *status = NULL;
    pthread_mutex_lock(&k->lock);
    *taken = find_compiled(k, given, extents);
    if (!*taken) {
        status = compile_for(k, given);
        *taken = status ? NULL : find_compiled(k, given, extents);
        if (!status && !*taken) status = failed(k->session->factory->api, k->name, "what was compiled does not serve the call");
    }
    if (*taken) {
        (*taken)->busy++;
        (*taken)->used = ++k->calls;
    }
    pthread_mutex_unlock(&k->lock);
    return status;
}

static OrtStatus *compute(OrtNodeComputeInfo *this, void *state, OrtKernelContext *context) {
    struct kernel *k = (struct kernel *)this;
    const OrtApi *api = k->session->factory->api;
    struct given given[k->num_inputs + 1];
    long long extents[MOST_DIMENSIONS];
    struct compiled *taken;
    (void)state;
    for (size_t i = 0; i < k->num_inputs; i++) RETURN_IF_FAILED(read_given(api, context, i, &given[i]));
    RETURN_IF_FAILED(take_compiled(k, given, extents, &taken));
    OrtStatus *status = call(api, taken, given, extents, context);
    pthread_mutex_lock(&k->lock);
    taken->busy--;
    pthread_mutex_unlock(&k->lock);
    return status;
}

static OrtStatus *create_state(OrtNodeComputeInfo *this, OrtNodeComputeContext *context, void **state) {
    (void)context;
    *state = this;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *this, void *state) {
    (void)this;
    (void)state;
}

/* Compiled models as bytes: a mark, the sizes of the kernels, the functions and the weights, the sha256 of all that
 * follows, and the three. */

struct context_head {
    char mark[8];
    uint64_t sizes[3];
    unsigned char digest[32];
};

static const char context_mark[8] = "TREADLE1";

static int read_file(const char *path, struct bytes *out) {
    char chunk[1 << 16];
    size_t got;
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    while ((got = fread(chunk, 1, sizeof chunk, file))) add(out, chunk, got);
    int is_read = !ferror(file) && !out->failed;
    fclose(file);
    return is_read;
}

static OrtStatus *pack_context(const OrtApi *api, const struct part *part, struct bytes *out) {
    const char *paths[] = {part->kernels, part->functions, part->weights};
    struct context_head head;
    memcpy(head.mark, context_mark, sizeof head.mark);
    add(out, &head, sizeof head);
    for (int i = 0; i < 3; i++) {
        size_t before = out->size;
        if (*paths[i] && !read_file(paths[i], out)) return failed(api, paths[i], strerror(errno));
        head.sizes[i] = out->size - before;
    }
    if (out->failed) return no_memory(api);
    treadle_sha256((unsigned char *)out->data + sizeof head, out->size - sizeof head, head.digest);
    memcpy(out->data, &head, sizeof head);
    return NULL;
}

/* A file that no other process can change, and its path; below 0 if there is none. */
static int private_file(const char *data, size_t size, char *path, size_t room) {
    int file = memfd_create("treadle-model", MFD_CLOEXEC);
    snprintf(path, room, "/proc/%ld/fd/%d", (long)getpid(), file);
    while (file >= 0 && size) {
        ssize_t written = write(file, data, size);
        if (written <= 0) {
            close(file);
            return -1;
        }
        data += written;
        size -= (size_t)written;
    }
    return file;
}

/* The beginnings of the three parts of a compiled model. */
static OrtStatus *check_context(const struct kernel *k, const struct bytes *content, struct context_head *head, const char **parts) {
    const OrtApi *api = k->session->factory->api;
    unsigned char digest[32];
    if (content->size < sizeof *head) return failed(api, k->name, "the compiled model is damaged: it is too short");
    memcpy(head, content->data, sizeof *head);
    size_t left = content->size - sizeof *head;
    if (memcmp(head->mark, context_mark, sizeof head->mark))
        return failed(api, k->name, "the compiled model is damaged, or of another version of Treadle");
    treadle_sha256((unsigned char *)content->data + sizeof *head, left, digest);
    if (memcmp(digest, head->digest, sizeof digest)) return failed(api, k->name, "the compiled model is damaged: its sha256 differs");
    parts[0] = content->data + sizeof *head;
    for (int i = 0; i < 3; i++) {
        if (head->sizes[i] > left) return failed(api, k->name, "the compiled model is damaged: a part of it is missing");
        left -= head->sizes[i];
        parts[i + 1] = parts[i] + head->sizes[i];
    }
    return NULL;
}

/* Opens a compiled model from its bytes. The files of its libraries stay open as long as these: the loader takes libraries
 * of one path for one. */
static OrtStatus *unpack_context(struct kernel *k, const struct bytes *content) {
    const OrtApi *api = k->session->factory->api;
    struct context_head head;
    const char *parts[4];
    char paths[3][64] = {"", "", ""};
    RETURN_IF_FAILED(check_context(k, content, &head, parts));
    for (int i = 0; i < 3; i++) {
        int file = private_file(parts[i], head.sizes[i], paths[i], sizeof paths[i]);
        if (file < 0) return failed(api, k->name, strerror(errno));
        if (!keep_file(&k->session->pool, file)) return no_memory(api);
    }
    const struct paths opened = {paths[0], paths[1], paths[2]};
    return open_for(k, &opened);
}

/* The path of a file beside a model, whose name must not lead elsewhere. */
static OrtStatus *beside(const OrtApi *api, const char *model, const char *name, char *path, size_t room) {
    const char *slash = model ? strrchr(model, '/') : NULL;
    if (!*name || strchr(name, '/') || !strcmp(name, "..")) return failed(api, name, "not the name of a file beside the model");
    int folder = slash ? (int)(slash - model) + 1 : 0;
    snprintf(path, room, "%.*s%s", folder, slash ? model : "", name);
    return NULL;
}

static OrtStatus *text_attribute(const OrtApi *api, const OrtNode *node, const char *name, int type, char **text, size_t *size) {
    const OrtOpAttr *attribute = NULL;
    int found;
    *text = NULL;
    *size = 0;
    OrtStatus *status = api->Node_GetAttributeByName(node, name, &attribute);
    if (status) {
        api->ReleaseStatus(status);
        return NULL;
    }
    if (!attribute) return NULL;
    RETURN_IF_FAILED(api->OpAttr_GetType(attribute, &found));
    if (found != type) return NULL;
    RETURN_IF_FAILED(read_attribute(api, attribute, type, text, size));
    (*text)[*size] = 0;
    return NULL;
}

static OrtStatus *open_context(struct kernel *k, const OrtGraph *graph, const OrtNode *node) {
    const OrtApi *api = k->session->factory->api;
    struct bytes content = {0};
    char path[8192], *text, *mode;
    const char *model = NULL;
    size_t size, mode_size;
    RETURN_IF_FAILED(text_attribute(api, node, "ep_cache_context", ORT_ATTR_STRING, &text, &size));
    if (!text) return failed(api, k->name, "the node has no ep_cache_context");
    OrtStatus *status = text_attribute(api, node, "embed_mode", ORT_ATTR_INT, &mode, &mode_size);
    int is_embedded = !status && (!mode || mode_size < sizeof(int64_t) || mode[0]);
    if (!status) free(mode);
    if (!status && is_embedded) {
        content = (struct bytes){text, size, size, 0};
        text = NULL;
    } else if (!status) {
        status = api->Graph_GetModelPath(graph, &model);
        const char *origin = model && *model ? model : k->session->context_file;
        if (!status) status = beside(api, origin, text, path, sizeof path);
        if (!status && !read_file(path, &content)) status = failed(api, path, strerror(errno));
    }
    if (!status) status = unpack_context(k, &content);
    free(text);
    free(content.data);
    return status;
}

/* The file that the session writes, or would by default: MODEL_ctx.onnx beside the model. */
static OrtStatus *context_path(const struct session *s, const OrtGraph *graph, char *path, size_t room) {
    const char *model;
    RETURN_IF_FAILED(s->factory->api->Graph_GetModelPath(graph, &model));
    if (s->context_file && *s->context_file) {
        snprintf(path, room, "%s", s->context_file);
        return NULL;
    }
    if (!model || !*model) return failed(s->factory->api, "ep.context_file_path is not set", "a model without a file needs it");
    size_t length = strlen(model);
    int stem = (int)(length > 5 && !strcmp(model + length - 5, ".onnx") ? length - 5 : length);
    snprintf(path, room, "%.*s_ctx.onnx", stem, model);
    return NULL;
}

/* Writes the compiled model into a file beside the one of the session, whose name is `name`. */
static OrtStatus *write_context(const struct kernel *k, const OrtGraph *graph, const struct bytes *content, char *name, size_t room) {
    const OrtApi *api = k->session->factory->api;
    char path[8192], file[8192 + 512];
    RETURN_IF_FAILED(context_path(k->session, graph, path, sizeof path));
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t stem = strlen(base) > 5 && !strcmp(base + strlen(base) - 5, ".onnx") ? strlen(base) - 5 : strlen(base);
    snprintf(name, room, "%.*s_%s.bin", (int)stem, base, k->name);
    RETURN_IF_FAILED(beside(api, path, name, file, sizeof file));
    FILE *out = fopen(file, "wb");
    int is_written = out && fwrite(content->data, 1, content->size, out) == content->size;
    if (out && fclose(out)) is_written = 0;
    if (is_written) return NULL;
    OrtStatus *status = failed(api, file, strerror(errno));
    if (out) unlink(file);
    return status;
}

static OrtStatus *make_attributes(const struct kernel *k, const struct bytes *content, const char *file, OrtOpAttr **made) {
    const OrtApi *api = k->session->factory->api;
    const int64_t one = 1, embeds = !file;
    const char *data = file ? file : content->data;
    size_t size = file ? strlen(file) : content->size;
    if (size > INT32_MAX) return failed(api, k->name, "too large for ep.context_embed_mode=1; accepted: 0");
    RETURN_IF_FAILED(api->CreateOpAttr("ep_cache_context", data, (int)size, ORT_ATTR_STRING, &made[0]));
    RETURN_IF_FAILED(api->CreateOpAttr("main_context", &one, 1, ORT_ATTR_INT, &made[1]));
    RETURN_IF_FAILED(api->CreateOpAttr("embed_mode", &embeds, 1, ORT_ATTR_INT, &made[2]));
    RETURN_IF_FAILED(api->CreateOpAttr("source", NAME, (int)strlen(NAME), ORT_ATTR_STRING, &made[3]));
    return api->CreateOpAttr("partition_name", k->name, (int)strlen(k->name), ORT_ATTR_STRING, &made[4]);
}

/* The node that holds a kernel's model in the file that the session writes. */
static OrtStatus *make_context(const struct kernel *k, const OrtGraph *graph, const struct part *part, OrtNode **node) {
    const struct session *s = k->session;
    const OrtApi *api = s->factory->api;
    struct bytes content = {0};
    OrtOpAttr *attributes[5] = {NULL};
    char file[1024], name[1024];
    OrtStatus *status = pack_context(api, part, &content);
    snprintf(name, sizeof name, "%s%s", s->context_prefix ? s->context_prefix : "", k->name);
    if (!status && !s->embeds_context) status = write_context(k, graph, &content, file, sizeof file);
    if (!status) status = make_attributes(k, &content, s->embeds_context ? NULL : file, attributes);
    free(content.data);
    if (!status)
        status = api->GetModelEditorApi()->CreateNode(
            "EPContext", "com.microsoft", name, (const char *const *)k->inputs, k->num_inputs,
            (const char *const *)k->outputs, k->num_outputs, attributes, 5, node);
    for (int i = 0; i < 5; i++) {
        if (attributes[i]) api->ReleaseOpAttr(attributes[i]); /* the node has copies */
    }
    return status;
}

#endif
