/* TreadleExecutionProvider: the parts of a graph that Treadle compiles are nodes of this provider, and the rest is for
 * others (docs/onnxruntime.md, docs/adr/0088).
 *
 * GetCapability gives the graph to the compiler, which answers with the parts that it takes, compiled where their shapes
 * are fixed. Compile opens those. Where shapes are open, a call of new ones asks the compiler again. */
#define _GNU_SOURCE

#include "kernel.h"

#define PREFIX "ep.treadleexecutionprovider."
#define EXPORTED __attribute__((visibility("default")))

/* The parts that the compiler takes. */

static void drop_parts(struct session *s) {
    for (size_t i = 0; i < s->num_parts; i++) {
        free(s->parts[i].nodes);
        free(s->parts[i].model);
        free(s->parts[i].kernels);
        free(s->parts[i].functions);
        free(s->parts[i].weights);
    }
    free(s->parts);
    s->parts = NULL;
    s->num_parts = 0;
    leave_folder(s, s->folder);
    s->folder = NULL;
}

static OrtStatus *read_part(const OrtApi *api, struct fields *answer, struct part *part) {
    part->model = strdup(next_field(answer));
    part->kernels = strdup(next_field(answer));
    part->functions = strdup(next_field(answer));
    part->weights = strdup(next_field(answer));
    part->count = next_count(answer);
    part->nodes = calloc(part->count + 1, sizeof *part->nodes);
    if (!part->model || !part->kernels || !part->functions || !part->weights || !part->nodes) return no_memory(api);
    for (size_t i = 0; i < part->count; i++) part->nodes[i] = next_count(answer);
    return NULL;
}

static OrtStatus *read_parts(struct session *s, struct fields *answer) {
    const OrtApi *api = s->factory->api;
    RETURN_IF_FAILED(read_messages(s, answer));
    size_t count = next_count(answer);
    s->parts = calloc(count + 1, sizeof *s->parts);
    if (!s->parts) return no_memory(api);
    s->num_parts = count;
    for (size_t i = 0; i < count; i++) RETURN_IF_FAILED(read_part(api, answer, &s->parts[i]));
    return NULL;
}

/* Asks which parts of a graph the compiler takes. */
static OrtStatus *find_parts(struct session *s, const OrtGraph *graph, const OrtNode *parent) {
    const OrtApi *api = s->factory->api;
    struct bytes request = {0};
    struct fields answer;
    char *text;
    size_t size;
    s->folder = make_folder();
    if (!s->folder) return failed(api, "no folder for temporary files (TMPDIR) can be made", strerror(errno));
    RETURN_IF_FAILED(write_model(api, graph, NULL, s->folder->path));
    if (parent) RETURN_IF_FAILED(write_model(api, graph, parent, s->folder->path));
    add_word(&request, "partition");
    add_word(&request, s->folder->path);
    add(&request, s->options.data, s->options.size);
    OrtStatus *status = ask(api, &s->factory->compiler, &request, &text, &size);
    free(request.data);
    RETURN_IF_FAILED(status);
    answer = (struct fields){text, text + size};
    status = read_parts(s, &answer);
    free(text);
    return status;
}

/* Nodes that hold compiled models: EPContext of com.microsoft, whose `source` is this provider. */

static OrtStatus *holds_model(const OrtApi *api, const OrtNode *node, int *holds) {
    const char *operator, *domain;
    char *source;
    size_t size;
    *holds = 0;
    RETURN_IF_FAILED(api->Node_GetOperatorType(node, &operator));
    RETURN_IF_FAILED(api->Node_GetDomain(node, &domain));
    if (strcmp(operator, "EPContext") || strcmp(domain, "com.microsoft")) return NULL;
    RETURN_IF_FAILED(text_attribute(api, node, "source", ORT_ATTR_STRING, &source, &size));
    *holds = source && !strcmp(source, NAME);
    free(source);
    return NULL;
}

/* GetCapability. */

static OrtStatus *fuse(const struct session *s, OrtEpGraphSupportInfo *info, const OrtNode *const *nodes, size_t count) {
    const OrtNodeFusionOptions options = {ORT_VERSION, true};
    return s->factory->ep_api->EpGraphSupportInfo_AddNodesToFuse(info, nodes, count, &options);
}

/* Takes the nodes that hold models, each by itself; *count of them. */
static OrtStatus *take_contexts(const struct session *s, const OrtNode **nodes, size_t total, OrtEpGraphSupportInfo *info,
                                size_t *count) {
    for (size_t i = *count = 0; i < total; i++) {
        int holds;
        RETURN_IF_FAILED(holds_model(s->factory->api, nodes[i], &holds));
        if (!holds) continue;
        RETURN_IF_FAILED(fuse(s, info, &nodes[i], 1));
        ++*count;
    }
    return NULL;
}

/* Takes the compiler's parts; their numbers of nodes become ONNX Runtime's. */
static OrtStatus *take_parts(struct session *s, const OrtNode **nodes, size_t total, OrtEpGraphSupportInfo *info) {
    for (size_t i = 0; i < s->num_parts; i++) {
        struct part *part = &s->parts[i];
        const OrtNode *taken[part->count + 1];
        for (size_t n = 0; n < part->count; n++) {
            if (part->nodes[n] >= total) return failed(s->factory->api, "the compiler's answer", "a node that there is not");
            taken[n] = nodes[part->nodes[n]];
            RETURN_IF_FAILED(s->factory->api->Node_GetId(taken[n], &part->nodes[n]));
        }
        RETURN_IF_FAILED(fuse(s, info, taken, part->count));
    }
    return NULL;
}

static OrtStatus *take_nodes(struct session *s, const OrtGraph *graph, const OrtNode **nodes, size_t total, OrtEpGraphSupportInfo *info) {
    const OrtNode *parent = NULL;
    size_t contexts;
    RETURN_IF_FAILED(s->factory->api->Graph_GetNodes(graph, nodes, total));
    RETURN_IF_FAILED(take_contexts(s, nodes, total, info, &contexts));
    if (contexts || !total) return NULL;
    RETURN_IF_FAILED(s->factory->api->Graph_GetParentNode(graph, &parent));
    RETURN_IF_FAILED(find_parts(s, graph, parent));
    return take_parts(s, nodes, total, info);
}

static OrtStatus *get_capability(OrtEp *this, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    struct session *s = (struct session *)this;
    size_t total;
    drop_parts(s);
    RETURN_IF_FAILED(s->factory->api->Graph_GetNumNodes(graph, &total));
    const OrtNode **nodes = malloc((total + 1) * sizeof *nodes);
    if (!nodes) return no_memory(s->factory->api);
    OrtStatus *status = take_nodes(s, graph, nodes, total, info);
    free(nodes);
    return status;
}

/* Compile. */

static OrtStatus *copy_names(const OrtApi *api, const OrtValueInfo **values, size_t count, char ***names) {
    *names = calloc(count + 1, sizeof **names);
    if (!*names) return no_memory(api);
    for (size_t i = 0; i < count; i++) {
        const char *name = "";
        if (values[i]) RETURN_IF_FAILED(api->GetValueInfoName(values[i], &name));
        (*names)[i] = strdup(name);
        if (!(*names)[i]) return no_memory(api);
    }
    return NULL;
}

static OrtStatus *name_values(struct kernel *k, const OrtNode *fused) {
    const OrtApi *api = k->session->factory->api;
    const char *name;
    RETURN_IF_FAILED(api->Node_GetName(fused, &name));
    RETURN_IF_FAILED(api->Node_GetNumInputs(fused, &k->num_inputs));
    RETURN_IF_FAILED(api->Node_GetNumOutputs(fused, &k->num_outputs));
    const OrtValueInfo *inputs[k->num_inputs + 1], *outputs[k->num_outputs + 1];
    RETURN_IF_FAILED(api->Node_GetInputs(fused, inputs, k->num_inputs));
    RETURN_IF_FAILED(api->Node_GetOutputs(fused, outputs, k->num_outputs));
    RETURN_IF_FAILED(copy_names(api, inputs, k->num_inputs, &k->inputs));
    RETURN_IF_FAILED(copy_names(api, outputs, k->num_outputs, &k->outputs));
    k->name = strdup(name);
    return k->name ? NULL : no_memory(api);
}

/* The part that has these nodes; NULL if there is none. */
static const struct part *find_part(const struct session *s, const OrtNode **nodes, size_t count) {
    for (size_t i = 0; i < s->num_parts; i++) {
        size_t same = 0, id;
        if (s->parts[i].count != count) continue;
        for (size_t n = 0; n < count; n++) {
            OrtStatus *status = s->factory->api->Node_GetId(nodes[n], &id);
            if (status) s->factory->api->ReleaseStatus(status);
            for (size_t m = 0; m < count && !status; m++) same += s->parts[i].nodes[m] == id;
        }
        if (same == count) return &s->parts[i];
    }
    return NULL;
}

/* A kernel keeps the folder of its model where calls may need another one compiled. */
static OrtStatus *open_part(struct kernel *k, const OrtGraph *graph, const struct part *part, OrtNode **context) {
    struct session *s = k->session;
    if (s->writes_context && !*part->kernels)
        return failed(s->factory->api, k->name,
                      "its shapes are open, so that no compiled model can be written (ep.context_enable); accepted: the "
                      "provider's option shapes, such as 'batch=1..8', or fixed shapes");
    if (*part->kernels) {
        const struct paths paths = {part->kernels, part->functions, part->weights};
        RETURN_IF_FAILED(open_for(k, &paths));
        if (s->writes_context) RETURN_IF_FAILED(make_context(k, graph, part, context));
    }
    if (!*part->model) return NULL;
    k->model = strdup(part->model);
    if (!k->model) return no_memory(s->factory->api);
    pthread_mutex_lock(&s->lock);
    s->folder->users++;
    pthread_mutex_unlock(&s->lock);
    k->folder = s->folder;
    return NULL;
}

static OrtStatus *compile_graph(struct kernel *k, const OrtGraph *graph, const OrtNode *fused, OrtNode **context) {
    struct session *s = k->session;
    const OrtApi *api = s->factory->api;
    size_t count;
    int holds;
    RETURN_IF_FAILED(name_values(k, fused));
    RETURN_IF_FAILED(api->Graph_GetNumNodes(graph, &count));
    const OrtNode **nodes = malloc((count + 1) * sizeof *nodes);
    if (!nodes) return no_memory(api);
    OrtStatus *status = api->Graph_GetNodes(graph, nodes, count);
    if (!status) status = count ? holds_model(api, nodes[0], &holds) : failed(api, k->name, "a part without nodes");
    const struct part *part = status || holds ? NULL : find_part(s, nodes, count);
    if (!status && holds) status = open_context(k, graph, nodes[0]);
    free(nodes);
    if (status || holds) return status;
    return part ? open_part(k, graph, part, context) : failed(api, k->name, "nodes that were not taken together");
}

static struct kernel *make_kernel(struct session *s) {
    struct kernel *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->table = (OrtNodeComputeInfo){ORT_VERSION, create_state, compute, release_state};
    k->session = s;
    pthread_mutex_init(&k->lock, NULL);
    return k;
}

static void release_compute_infos(OrtEp *this, OrtNodeComputeInfo **infos, size_t count) {
    (void)this;
    for (size_t i = 0; i < count; i++) {
        if (infos[i]) close_kernel((struct kernel *)infos[i]);
    }
}

static OrtStatus *compile(OrtEp *this, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos,
                          OrtNode **contexts) {
    struct session *s = (struct session *)this;
    OrtStatus *status = NULL;
    size_t made = 0;
    for (; made < count && !status; made++) {
        struct kernel *k = make_kernel(s);
        infos[made] = k ? &k->table : NULL;
        status = k ? compile_graph(k, graphs[made], fused[made], &contexts[made]) : no_memory(s->factory->api);
    }
    if (status) release_compute_infos(this, infos, made);
    for (size_t i = 0; i < made && status; i++) infos[i] = NULL;
    drop_parts(s);
    return status;
}

/* The session, and its options. */

static const char *session_name(const OrtEp *this) {
    (void)this;
    return NAME;
}

static OrtStatus *is_concurrent(OrtEp *this, bool *is_supported) {
    (void)this;
    *is_supported = true;
    return NULL;
}

static OrtStatus *read_threads(struct session *s, const char *value) {
    char *end;
    s->pool.count = strtol(value, &end, 10);
    if (*value && !*end && s->pool.count > 0 && s->pool.count < 1 << 16) return NULL;
    return failed(s->factory->api, "option 'threads' is no number from 1 upwards", value);
}

static int replace_text(char **text, const char *value) {
    free(*text);
    *text = strdup(value);
    return *text != NULL;
}

/* An option of the session. The compiler's own are checked there. */
static OrtStatus *read_option(struct session *s, const char *key, const char *value) {
    int has_room = 1;
    if (!strcmp(key, "ep.context_enable")) s->writes_context = !strcmp(value, "1");
    if (!strcmp(key, "ep.context_embed_mode")) s->embeds_context = !strcmp(value, "1");
    if (!strcmp(key, "ep.context_file_path")) has_room = replace_text(&s->context_file, value);
    if (!strcmp(key, "ep.context_node_name_prefix")) has_room = replace_text(&s->context_prefix, value);
    if (!has_room) return no_memory(s->factory->api);
    if (strncmp(key, PREFIX, strlen(PREFIX))) return NULL;
    key += strlen(PREFIX);
    if (!strcmp(key, "threads")) return read_threads(s, value);
    add_word(&s->options, key);
    add_word(&s->options, value);
    return NULL;
}

/* Has the compiler look at its options, if there are any. */
static OrtStatus *check_options(struct session *s) {
    const OrtApi *api = s->factory->api;
    struct bytes request = {0};
    char *text;
    size_t size;
    if (!s->options.size) return NULL;
    add_word(&request, "options");
    add(&request, s->options.data, s->options.size);
    OrtStatus *status = ask(api, &s->factory->compiler, &request, &text, &size);
    free(request.data);
    RETURN_IF_FAILED(status);
    struct fields answer = {text, text + size};
    status = read_messages(s, &answer);
    free(text);
    return status;
}

static OrtStatus *read_options(struct session *s, const OrtSessionOptions *options) {
    const OrtApi *api = s->factory->api;
    const char *const *keys, *const *values;
    OrtKeyValuePairs *entries;
    OrtStatus *status = NULL;
    size_t count;
    RETURN_IF_FAILED(api->GetSessionOptionsConfigEntries(options, &entries));
    api->GetKeyValuePairs(entries, &keys, &values, &count);
    for (size_t i = 0; i < count && !status; i++) status = read_option(s, keys[i], values[i]);
    api->ReleaseKeyValuePairs(entries);
    return status ? status : check_options(s);
}

static void release_session(OrtEpFactory *factory, OrtEp *ep) {
    struct session *s = (struct session *)ep;
    (void)factory;
    drop_parts(s);
    close_pool(&s->pool);
    pthread_mutex_destroy(&s->lock);
    free(s->options.data);
    free(s->context_file);
    free(s->context_prefix);
    free(s);
}

static OrtStatus *create_session(OrtEpFactory *this, const OrtHardwareDevice *const *devices, const OrtKeyValuePairs *const *metadata,
                                 size_t count, const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **ep) {
    struct factory *factory = (struct factory *)this;
    struct session *s = calloc(1, sizeof *s);
    (void)devices;
    (void)metadata;
    (void)count;
    if (!s) return no_memory(factory->api);
    s->table = (OrtEp){
        .ort_version_supported = ORT_VERSION,
        .GetName = session_name,
        .GetCapability = get_capability,
        .Compile = compile,
        .ReleaseNodeComputeInfos = release_compute_infos,
        .IsConcurrentRunSupported = is_concurrent,
    };
    s->factory = factory;
    s->logger = logger;
    s->pool.count = default_threads();
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->pool.lock, NULL);
    OrtStatus *status = read_options(s, options);
    if (status)
        release_session(this, &s->table);
    else
        *ep = &s->table;
    return status;
}

/* The factory. */

static const char *factory_name(const OrtEpFactory *this) {
    (void)this;
    return NAME;
}

static const char *factory_vendor(const OrtEpFactory *this) {
    (void)this;
    return "Treadle";
}

static const char *factory_version(const OrtEpFactory *this) {
    (void)this;
    return TREADLE_VERSION;
}

static uint32_t factory_vendor_id(const OrtEpFactory *this) {
    (void)this;
    return 0;
}

static OrtStatus *supported_devices(OrtEpFactory *this, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **supported,
                                    size_t most, size_t *found) {
    struct factory *factory = (struct factory *)this;
    *found = 0;
    for (size_t i = 0; i < count && *found < most; i++) {
        if (factory->api->HardwareDevice_Type(devices[i]) != ORT_DEVICE_CPU) continue;
        RETURN_IF_FAILED(factory->ep_api->CreateEpDevice(this, devices[i], NULL, NULL, &supported[*found]));
        ++*found;
    }
    return NULL;
}

/* Tensors lie in the CPU's memory, of ONNX Runtime's own allocator: there is nothing to allocate, and to transfer. */
static OrtStatus *default_allocator(OrtEpFactory *this, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, OrtAllocator **made) {
    (void)this;
    (void)info;
    (void)options;
    *made = NULL;
    return NULL;
}

static void release_allocator(OrtEpFactory *this, OrtAllocator *allocator) {
    (void)this;
    (void)allocator;
}

static OrtStatus *no_transfer(OrtEpFactory *this, OrtDataTransferImpl **made) {
    (void)this;
    *made = NULL;
    return NULL;
}

static bool is_stream_aware(const OrtEpFactory *this) {
    (void)this;
    return false;
}

EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
                                      size_t most, size_t *count) {
    const OrtApi *api = base->GetApi(ORT_VERSION);
    (void)name;
    (void)logger;
    if (!api) return refuse_runtime(base, FAILURE, ORT_VERSION);
    if (most < 1) return failed(api, "factories", "no room for one");
    struct factory *made = calloc(1, sizeof *made);
    if (!made) return no_memory(api);
    made->table = (OrtEpFactory){
        .ort_version_supported = ORT_VERSION,
        .GetName = factory_name,
        .GetVendor = factory_vendor,
        .GetSupportedDevices = supported_devices,
        .CreateEp = create_session,
        .ReleaseEp = release_session,
        .GetVendorId = factory_vendor_id,
        .GetVersion = factory_version,
        .CreateAllocator = default_allocator,
        .ReleaseAllocator = release_allocator,
        .CreateDataTransfer = no_transfer,
        .IsStreamAware = is_stream_aware,
    };
    made->api = api;
    made->ep_api = api->GetEpApi();
    pthread_mutex_init(&made->compiler.turn, NULL);
    factories[0] = &made->table;
    *count = 1;
    return NULL;
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    struct factory *f = (struct factory *)factory;
    end_compiler(&f->compiler);
    pthread_mutex_destroy(&f->compiler.turn);
    free(f);
    return NULL;
}
