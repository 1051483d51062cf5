/* A graph of ONNX Runtime as an ONNX file: `model.onnx`, with the data of large initialisers in `weights` beside it.
 *
 * Fields are written by their numbers in onnx.proto. Values that come from graphs around this one are its inputs, or
 * its initialisers where they are constants. A value that is no tensor has no type in the file, and an attribute that
 * cannot be read makes its node one of the domain `unreadable`. */
#ifndef TREADLE_GRAPH_PROTO_H
#define TREADLE_GRAPH_PROTO_H

#include "ort_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that grow. Where memory ran out, `failed` is set, and nothing is added any more. */
struct bytes {
    char *data;
    size_t size, room;
    int failed;
};

static void add(struct bytes *b, const void *data, size_t size) {
    if (b->failed || !size) return;
    if (b->size + size > b->room) {
        size_t room = (b->size + size) * 2;
        char *grown = realloc(b->data, room);
        if (!grown) {
            b->failed = 1;
            return;
        }
        b->data = grown;
        b->room = room;
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void add_varint(struct bytes *b, uint64_t value) {
    unsigned char digits[10];
    int count = 0;
    do {
        digits[count] = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        value >>= 7;
        count++;
    } while (value);
    add(b, digits, (size_t)count);
}

static void add_number(struct bytes *b, int field, int64_t value) {
    add_varint(b, (uint64_t)field << 3);
    add_varint(b, (uint64_t)value);
}

static void add_real(struct bytes *b, int field, float value) {
    add_varint(b, (uint64_t)field << 3 | 5);
    add(b, &value, sizeof value);
}

static void add_field(struct bytes *b, int field, const void *data, size_t size) {
    add_varint(b, (uint64_t)field << 3 | 2);
    add_varint(b, size);
    add(b, data, size);
}

static void add_text(struct bytes *b, int field, const char *text) { add_field(b, field, text, strlen(text)); }

/* Adds a message, and frees it. */
static void add_message(struct bytes *b, int field, struct bytes *message) {
    add_field(b, field, message->data, message->size);
    b->failed |= message->failed;
    free(message->data);
    *message = (struct bytes){0};
}

/* Names that were seen: open addressing, with the names themselves ONNX Runtime's. */
struct names {
    const char **slots;
    size_t count, room;
};

static size_t slot_of(const struct names *set, const char *name) {
    uint64_t hash = 1469598103934665603u;
    for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    size_t slot = hash & (set->room - 1);
    while (set->slots[slot] && strcmp(set->slots[slot], name)) slot = (slot + 1) & (set->room - 1);
    return slot;
}

static int has_name(const struct names *set, const char *name) { return set->room && set->slots[slot_of(set, name)]; }

/* Whether a name is new; it is one of the set then. A set that cannot grow has every name. */
static int is_new(struct names *set, const char *name) {
    if (2 * set->count >= set->room) {
        struct names grown = {NULL, set->count, set->room ? 2 * set->room : 64};
        grown.slots = calloc(grown.room, sizeof *grown.slots);
        if (!grown.slots) return 0;
        for (size_t i = 0; i < set->room; i++) {
            if (set->slots[i]) grown.slots[slot_of(&grown, set->slots[i])] = set->slots[i];
        }
        free(set->slots);
        *set = grown;
    }
    size_t slot = slot_of(set, name);
    if (set->slots[slot]) return 0;
    set->slots[slot] = name;
    set->count++;
    return 1;
}

enum { INLINE_BYTES = 1024 }; /* of an initialiser that is in the model's file: shapes, axes, scales */

struct writer {
    const OrtApi *api;
    FILE *weights;
    size_t offset; /* bytes of `weights` so far */
};

static OrtStatus *put_graph(struct writer *w, const OrtGraph *graph, int is_inner, struct bytes *out);

static OrtStatus *no_memory(const OrtApi *api) { return api->CreateStatus(ORT_EP_FAIL, "Treadle: memory ran out"); }

/* ONNX's number of an element type: those of the smallest ones differ. */
static int onnx_element(int element) {
    static const int onnx[] = {25, 26, 24}; /* UINT2, INT2, FLOAT8E8M0 */
    return element >= 24 && element < 27 ? onnx[element - 24] : element;
}

static OrtStatus *put_value_info(struct writer *w, const OrtValueInfo *info, int field, struct bytes *out) {
    const char *name;
    const OrtTypeInfo *type;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    int kind = 0, element = 0;
    struct bytes entry = {0};
    RETURN_IF_FAILED(w->api->GetValueInfoName(info, &name));
    RETURN_IF_FAILED(w->api->GetValueInfoTypeInfo(info, &type));
    add_text(&entry, 1, name);
    if (type) RETURN_IF_FAILED(w->api->GetOnnxTypeFromTypeInfo(type, &kind));
    if (kind == ORT_IS_TENSOR) RETURN_IF_FAILED(w->api->CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor) {
        struct bytes shape = {0}, tensor_type = {0}, type_proto = {0};
        int64_t extents[64];
        const char *labels[64];
        size_t rank;
        RETURN_IF_FAILED(w->api->GetTensorElementType(tensor, &element));
        RETURN_IF_FAILED(w->api->GetDimensionsCount(tensor, &rank));
        int has_shape = w->api->TensorTypeAndShape_HasShape(tensor) && rank <= 64;
        if (has_shape) {
            RETURN_IF_FAILED(w->api->GetDimensions(tensor, extents, rank));
            RETURN_IF_FAILED(w->api->GetSymbolicDimensions(tensor, labels, rank));
        }
        for (size_t i = 0; has_shape && i < rank; i++) {
            struct bytes dimension = {0};
            if (extents[i] >= 0)
                add_number(&dimension, 1, extents[i]);
            else if (labels[i] && *labels[i])
                add_text(&dimension, 2, labels[i]);
            add_message(&shape, 1, &dimension);
        }
        add_number(&tensor_type, 1, onnx_element(element));
        if (has_shape) add_message(&tensor_type, 2, &shape);
        add_message(&type_proto, 1, &tensor_type);
        add_message(&entry, 2, &type_proto);
    }
    add_message(out, field, &entry);
    return NULL;
}

/* Writes a tensor; `name` is that of an initialiser, or NULL for an attribute's. */
static OrtStatus *put_tensor(struct writer *w, const OrtValue *value, const char *name, struct bytes *out) {
    const int64_t *shape;
    const void *data;
    size_t rank, size;
    int element;
    RETURN_IF_FAILED(w->api->GetTensorElementTypeAndShapeDataReference(value, &element, &shape, &rank));
    RETURN_IF_FAILED(w->api->GetTensorSizeInBytes(value, &size));
    RETURN_IF_FAILED(w->api->GetTensorData(value, &data));
    for (size_t i = 0; i < rank; i++) add_number(out, 1, shape[i]);
    add_number(out, 2, onnx_element(element));
    if (name) add_text(out, 8, name);
    if (!name || size <= INLINE_BYTES) {
        add_field(out, 9, data, size);
        return NULL;
    }
    const char *keys[] = {"location", "offset", "length"};
    char numbers[2][32];
    snprintf(numbers[0], sizeof numbers[0], "%zu", w->offset);
    snprintf(numbers[1], sizeof numbers[1], "%zu", size);
    const char *values[] = {"weights", numbers[0], numbers[1]};
    for (int i = 0; i < 3; i++) {
        struct bytes entry = {0};
        add_text(&entry, 1, keys[i]);
        add_text(&entry, 2, values[i]);
        add_message(out, 13, &entry);
    }
    add_number(out, 14, 1);
    if (fwrite(data, 1, size, w->weights) != size)
        return w->api->CreateStatus(ORT_EP_FAIL, "Treadle: the folder for temporary files (TMPDIR) has no room for the weights");
    w->offset += size;
    return NULL;
}

/* Writes an initialiser. One of strings is an input of its type instead, which the compiler refuses by name. */
static OrtStatus *put_initializer(struct writer *w, const OrtValueInfo *info, struct bytes *out) {
    const OrtValue *value;
    const char *name;
    const int64_t *shape;
    size_t rank;
    int element;
    struct bytes tensor = {0};
    RETURN_IF_FAILED(w->api->GetValueInfoName(info, &name));
    RETURN_IF_FAILED(w->api->ValueInfo_GetInitializerValue(info, &value));
    RETURN_IF_FAILED(w->api->GetTensorElementTypeAndShapeDataReference(value, &element, &shape, &rank));
    if (element == ORT_STRINGS) return put_value_info(w, info, 11, out);
    RETURN_IF_FAILED(put_tensor(w, value, name, &tensor));
    add_message(out, 5, &tensor);
    return NULL;
}

static const int attribute_types[] = {0, 2, 7, 1, 6, 3, 8, 5, 4}; /* ONNX's, by ONNX Runtime's */

/* Reads an attribute that is neither tensor nor graph; *data is to be freed. */
static OrtStatus *read_attribute(const OrtApi *api, const OrtOpAttr *attribute, int type, char **data, size_t *size) {
    size_t room = 64;
    for (int attempt = 0; attempt < 2; attempt++) {
        *data = malloc(room + 1);
        if (!*data) return no_memory(api);
        OrtStatus *status = api->ReadOpAttr(attribute, type, *data, room, size);
        if (!status) return NULL;
        free(*data);
        *data = NULL;
        if (attempt || *size <= room) return status;
        api->ReleaseStatus(status);
        room = *size;
    }
    return NULL;
}

static void put_numbers(int type, const char *data, size_t size, struct bytes *out) {
    int64_t number;
    float real;
    switch (type) {
    case ORT_ATTR_INT:
    case ORT_ATTR_INTS:
        for (size_t at = 0; at + sizeof number <= size; at += sizeof number) {
            memcpy(&number, data + at, sizeof number);
            add_number(out, type == ORT_ATTR_INT ? 3 : 8, number);
        }
        return;
    case ORT_ATTR_FLOAT:
    case ORT_ATTR_FLOATS:
        for (size_t at = 0; at + sizeof real <= size; at += sizeof real) {
            memcpy(&real, data + at, sizeof real);
            add_real(out, type == ORT_ATTR_FLOAT ? 2 : 7, real);
        }
        return;
    case ORT_ATTR_STRING: add_field(out, 4, data, size); return;
    default: /* each string has a zero behind it */
        for (size_t at = 0; at < size; at += strlen(data + at) + 1) add_text(out, 9, data + at);
    }
}

/* Writes an attribute; *is_read is 0 for one of a type that this interface does not give. */
static OrtStatus *put_attribute(struct writer *w, const OrtOpAttr *attribute, struct bytes *node, int *is_read) {
    struct bytes out = {0};
    const char *name;
    OrtValue *value = NULL;
    char *data = NULL;
    size_t size = 0;
    int type;
    RETURN_IF_FAILED(w->api->OpAttr_GetType(attribute, &type));
    RETURN_IF_FAILED(w->api->OpAttr_GetName(attribute, &name));
    *is_read = type >= ORT_ATTR_INT && type <= ORT_ATTR_TENSOR;
    if (!*is_read || type == ORT_ATTR_GRAPH) return NULL;
    add_text(&out, 1, name);
    if (type == ORT_ATTR_TENSOR) {
        struct bytes tensor = {0};
        RETURN_IF_FAILED(w->api->OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
        const int64_t *shape;
        size_t rank;
        int element;
        OrtStatus *status = w->api->GetTensorElementTypeAndShapeDataReference(value, &element, &shape, &rank);
        *is_read = !status && element != ORT_STRINGS;
        if (*is_read) status = put_tensor(w, value, NULL, &tensor);
        w->api->ReleaseValue(value);
        RETURN_IF_FAILED(status);
        add_message(&out, 5, &tensor);
    } else {
        RETURN_IF_FAILED(read_attribute(w->api, attribute, type, &data, &size));
        put_numbers(type, data, size, &out);
        free(data);
    }
    add_number(&out, 20, attribute_types[type]);
    add_message(node, 5, &out);
    return NULL;
}

static OrtStatus *put_attributes(struct writer *w, const OrtNode *node, struct bytes *out, int *are_read) {
    size_t count, graphs;
    RETURN_IF_FAILED(w->api->Node_GetNumAttributes(node, &count));
    RETURN_IF_FAILED(w->api->Node_GetNumSubgraphs(node, &graphs));
    const OrtOpAttr *attributes[count + 1];
    const OrtGraph *inner[graphs + 1];
    const char *names[graphs + 1];
    RETURN_IF_FAILED(w->api->Node_GetAttributes(node, attributes, count));
    for (size_t i = 0; i < count; i++) {
        int is_read;
        RETURN_IF_FAILED(put_attribute(w, attributes[i], out, &is_read));
        *are_read &= is_read;
    }
    if (graphs) RETURN_IF_FAILED(w->api->Node_GetSubgraphs(node, inner, graphs, names));
    for (size_t i = 0; i < graphs; i++) {
        struct bytes attribute = {0}, graph = {0};
        RETURN_IF_FAILED(put_graph(w, inner[i], 1, &graph));
        add_text(&attribute, 1, names[i]);
        add_message(&attribute, 6, &graph);
        add_number(&attribute, 20, attribute_types[ORT_ATTR_GRAPH]);
        add_message(out, 5, &attribute);
    }
    return NULL;
}

/* The names of values, "" where there is none. */
static OrtStatus *put_value_names(struct writer *w, const OrtValueInfo **values, size_t count, int field, struct bytes *out) {
    for (size_t i = 0; i < count; i++) {
        const char *name = "";
        if (values[i]) RETURN_IF_FAILED(w->api->GetValueInfoName(values[i], &name));
        add_text(out, field, name);
    }
    return NULL;
}

static OrtStatus *put_node(struct writer *w, const OrtNode *node, struct bytes *graph) {
    struct bytes out = {0};
    size_t inputs, outputs;
    const char *name, *operator, *domain;
    int are_read = 1;
    RETURN_IF_FAILED(w->api->Node_GetNumInputs(node, &inputs));
    RETURN_IF_FAILED(w->api->Node_GetNumOutputs(node, &outputs));
    const OrtValueInfo *read[inputs + 1], *made[outputs + 1];
    RETURN_IF_FAILED(w->api->Node_GetInputs(node, read, inputs));
    RETURN_IF_FAILED(w->api->Node_GetOutputs(node, made, outputs));
    RETURN_IF_FAILED(w->api->Node_GetName(node, &name));
    RETURN_IF_FAILED(w->api->Node_GetOperatorType(node, &operator));
    RETURN_IF_FAILED(w->api->Node_GetDomain(node, &domain));
    RETURN_IF_FAILED(put_value_names(w, read, inputs, 1, &out));
    RETURN_IF_FAILED(put_value_names(w, made, outputs, 2, &out));
    add_text(&out, 3, name);
    add_text(&out, 4, operator);
    RETURN_IF_FAILED(put_attributes(w, node, &out, &are_read));
    add_text(&out, 7, are_read ? domain : "unreadable");
    add_message(graph, 1, &out);
    for (size_t i = 0; i < outputs; i++) {
        if (made[i]) RETURN_IF_FAILED(put_value_info(w, made[i], 13, graph));
    }
    return NULL;
}

/* The values that a node reads, itself or in its graphs: those that no node of the graph makes are inputs or
 * initialisers of it. */
static OrtStatus *put_reads(struct writer *w, const OrtNode *node, const struct names *made, struct names *seen, struct bytes *out) {
    size_t inputs, implicit;
    RETURN_IF_FAILED(w->api->Node_GetNumInputs(node, &inputs));
    RETURN_IF_FAILED(w->api->Node_GetNumImplicitInputs(node, &implicit));
    const OrtValueInfo *read[inputs + implicit + 1];
    RETURN_IF_FAILED(w->api->Node_GetInputs(node, read, inputs));
    if (implicit) RETURN_IF_FAILED(w->api->Node_GetImplicitInputs(node, read + inputs, implicit));
    for (size_t i = 0; i < inputs + implicit; i++) {
        const char *name = "";
        bool is_constant;
        if (read[i]) RETURN_IF_FAILED(w->api->GetValueInfoName(read[i], &name));
        if (!*name || has_name(made, name) || !is_new(seen, name)) continue;
        RETURN_IF_FAILED(w->api->ValueInfo_IsConstantInitializer(read[i], &is_constant));
        RETURN_IF_FAILED(is_constant ? put_initializer(w, read[i], out) : put_value_info(w, read[i], 11, out));
    }
    return NULL;
}

static OrtStatus *add_made(const OrtApi *api, const OrtNode *node, struct names *made) {
    size_t outputs;
    const char *name;
    RETURN_IF_FAILED(api->Node_GetNumOutputs(node, &outputs));
    const OrtValueInfo *values[outputs + 1];
    RETURN_IF_FAILED(api->Node_GetOutputs(node, values, outputs));
    for (size_t i = 0; i < outputs; i++) {
        if (!values[i]) continue;
        RETURN_IF_FAILED(api->GetValueInfoName(values[i], &name));
        is_new(made, name);
    }
    return NULL;
}

/* Nodes with what they read from elsewhere. */
static OrtStatus *put_nodes(struct writer *w, const OrtNode **nodes, size_t count, struct bytes *out) {
    struct names made = {0}, seen = {0};
    OrtStatus *status = NULL;
    for (size_t i = 0; i < count && !status; i++) status = add_made(w->api, nodes[i], &made);
    for (size_t i = 0; i < count && !status; i++) status = put_reads(w, nodes[i], &made, &seen, out);
    for (size_t i = 0; i < count && !status; i++) status = put_node(w, nodes[i], out);
    free(made.slots);
    free(seen.slots);
    return status;
}

/* A graph in an attribute has its own inputs and initialisers; what else it reads is of the graphs around it. */
static OrtStatus *put_inner(struct writer *w, const OrtGraph *graph, struct bytes *out) {
    size_t inputs, initializers;
    RETURN_IF_FAILED(w->api->Graph_GetNumInputs(graph, &inputs));
    RETURN_IF_FAILED(w->api->Graph_GetNumInitializers(graph, &initializers));
    const OrtValueInfo *infos[inputs + initializers + 1];
    RETURN_IF_FAILED(w->api->Graph_GetInputs(graph, infos, inputs));
    RETURN_IF_FAILED(w->api->Graph_GetInitializers(graph, infos + inputs, initializers));
    for (size_t i = 0; i < inputs; i++) RETURN_IF_FAILED(put_value_info(w, infos[i], 11, out));
    for (size_t i = 0; i < initializers; i++) RETURN_IF_FAILED(put_initializer(w, infos[inputs + i], out));
    return NULL;
}

static OrtStatus *put_all_nodes(struct writer *w, const OrtNode **nodes, size_t count, int is_inner, struct bytes *out) {
    if (!is_inner) return put_nodes(w, nodes, count, out);
    for (size_t i = 0; i < count; i++) RETURN_IF_FAILED(put_node(w, nodes[i], out));
    return NULL;
}

static OrtStatus *put_graph(struct writer *w, const OrtGraph *graph, int is_inner, struct bytes *out) {
    size_t count, outputs;
    RETURN_IF_FAILED(w->api->Graph_GetNumNodes(graph, &count));
    RETURN_IF_FAILED(w->api->Graph_GetNumOutputs(graph, &outputs));
    const OrtValueInfo *made[outputs + 1];
    const OrtNode **nodes = malloc((count + 1) * sizeof *nodes);
    if (!nodes) return no_memory(w->api);
    OrtStatus *status = w->api->Graph_GetNodes(graph, nodes, count);
    add_text(out, 2, "graph");
    if (!status && is_inner) status = put_inner(w, graph, out);
    if (!status) status = put_all_nodes(w, nodes, count, is_inner, out);
    free(nodes);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(w->api->Graph_GetOutputs(graph, made, outputs));
    for (size_t i = 0; i < outputs; i++) RETURN_IF_FAILED(put_value_info(w, made[i], 12, out));
    return NULL;
}

static OrtStatus *put_opsets(struct writer *w, const OrtGraph *graph, struct bytes *model) {
    size_t count;
    RETURN_IF_FAILED(w->api->Graph_GetNumOperatorSets(graph, &count));
    const char *domains[count + 1];
    int64_t versions[count + 1];
    RETURN_IF_FAILED(w->api->Graph_GetOperatorSets(graph, domains, versions, count));
    for (size_t i = 0; i < count; i++) {
        struct bytes opset = {0};
        add_text(&opset, 1, domains[i]);
        add_number(&opset, 2, versions[i]);
        add_message(model, 8, &opset);
    }
    return NULL;
}

static OrtStatus *write_file(const OrtApi *api, const char *path, const struct bytes *content) {
    FILE *file = fopen(path, "wb");
    int is_written = file && !content->failed && fwrite(content->data, 1, content->size, file) == content->size;
    if (file && fclose(file)) is_written = 0;
    if (is_written) return NULL;
    return api->CreateStatus(ORT_EP_FAIL, "Treadle: cannot write into the folder for temporary files (TMPDIR)");
}

/* Writes a graph as `model.onnx`; with `parent`, the node whose graph it is, that node alone as `parent.onnx`. */
static OrtStatus *write_model(const OrtApi *api, const OrtGraph *graph, const OrtNode *parent, const char *folder) {
    char path[4096];
    struct bytes model = {0}, content = {0};
    int64_t version;
    snprintf(path, sizeof path, "%s/weights", folder);
    struct writer w = {api, fopen(path, parent ? "ab" : "wb"), 0};
    if (!w.weights) return write_file(api, path, &content);
    if (parent && !fseek(w.weights, 0, SEEK_END)) w.offset = (size_t)ftell(w.weights);
    OrtStatus *status = api->Graph_GetOnnxIRVersion(graph, &version);
    add_number(&model, 1, status ? 0 : version);
    if (!status) status = put_opsets(&w, graph, &model);
    if (!status) status = parent ? put_nodes(&w, &parent, 1, &content) : put_graph(&w, graph, 0, &content);
    if (fclose(w.weights) && !status) status = api->CreateStatus(ORT_EP_FAIL, "Treadle: cannot write the weights (TMPDIR)");
    add_message(&model, 7, &content);
    snprintf(path, sizeof path, "%s/%s", folder, parent ? "parent.onnx" : "model.onnx");
    if (!status) status = write_file(api, path, &model);
    free(model.data);
    return status;
}

#endif
