/* Runs a compiled model from C: inputs and outputs are files of raw elements, row-major.
 *
 *     cc run_MODEL.c libMODEL.a -lm -lpthread -o run_MODEL
 *     ./run_MODEL MODEL.weights THREADS [DIMENSION=EXTENT...] INPUT... OUTPUT...
 *
 * A dimension that changes has its greatest extent unless another is given.
 *
 * In place of the table that MODEL.h declares, a program that knows its model may use the positions there
 * (MODEL_INPUT_x) and arrays of its own. Exits with 0, or with 1 and a line on stderr. Plain C99.
 */
#include "MODEL.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *why) {
    fprintf(stderr, "run_MODEL: %s: %s\n", what, why);
    exit(1);
}

static void *buffer_for(const MODEL_tensor *tensor) {
    void *buffer = malloc(tensor->bytes + 1); /* aligned for every type; a multiple of 64 may be faster */
    if (!buffer) fail(tensor->name, "memory ran out");
    return buffer;
}

/* The bytes of a tensor in a call. */
static size_t size_of(const MODEL_tensor *tensor, const size_t *shape) {
    if (tensor->padded || !tensor->bytes) return tensor->bytes;
    size_t elements = 1, most = 1;
    for (size_t d = 0; d < tensor->rank; d++) elements *= shape[d], most *= tensor->shape[d];
    return tensor->bytes / most * elements;
}

static void read_file(const char *path, const MODEL_tensor *tensor, size_t bytes, char *buffer) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, strerror(errno));
    size_t found = fread(buffer, 1, bytes, file);
    if (found != bytes || fgetc(file) != EOF) {
        char why[200];
        snprintf(why, sizeof why, "input %.60s needs %zu bytes of %s", tensor->name, bytes, tensor->dtype);
        fail(path, why);
    }
    fclose(file);
}

static void write_file(const char *path, size_t bytes, const char *buffer) {
    FILE *file = fopen(path, "wb");
    if (!file) fail(path, strerror(errno));
    size_t written = fwrite(buffer, 1, bytes, file);
    if (fclose(file) || written != bytes) fail(path, "cannot write");
}

/* Sets the extent that an argument such as "batch=4" says; 0 if it says none. */
static int is_extent(const char *argument, long long *extents) {
    for (int i = 0; i < MODEL_NUM_DIMENSIONS; i++) {
        size_t length = strlen(MODEL_dimensions[i].name);
        if (strncmp(argument, MODEL_dimensions[i].name, length) || argument[length] != '=') continue;
        extents[i] = atoll(argument + length + 1);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    void *inputs[MODEL_NUM_INPUTS + 1], *outputs[MODEL_NUM_OUTPUTS + 1];
    long long extents[MODEL_NUM_DIMENSIONS + 1];
    size_t shape[64];
    int first = 3;
    for (int i = 0; i < MODEL_NUM_DIMENSIONS; i++) extents[i] = MODEL_dimensions[i].greatest;
    while (first < argc && is_extent(argv[first], extents)) first++;
    if (argc != first + MODEL_NUM_INPUTS + MODEL_NUM_OUTPUTS) fail("usage", "WEIGHTS THREADS INPUT... OUTPUT...");
    char **given = argv + first, **wanted = given + MODEL_NUM_INPUTS;

    MODEL *made;
    int code = MODEL_create(&made, argv[1], atol(argv[2]));
    if (code) fail(argv[1], MODEL_message(code));
    for (int i = 0; i < MODEL_NUM_INPUTS; i++) {
        code = MODEL_input_shape(made, i, extents, shape);
        if (code) fail(MODEL_inputs[i].name, MODEL_message(code));
        inputs[i] = buffer_for(&MODEL_inputs[i]);
        read_file(given[i], &MODEL_inputs[i], size_of(&MODEL_inputs[i], shape), inputs[i]);
    }
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) outputs[i] = buffer_for(&MODEL_outputs[i]);
    code = MODEL_run_at(made, extents, (const void *const *)inputs, outputs);
    if (code) fail("MODEL_run_at", MODEL_message(code));

    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) {
        MODEL_output_shape(made, i, extents, shape);
        write_file(wanted[i], size_of(&MODEL_outputs[i], shape), outputs[i]);
    }
    MODEL_destroy(made);
    for (int i = 0; i < MODEL_NUM_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) free(outputs[i]);
    return 0;
}
