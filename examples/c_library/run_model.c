/* Runs a compiled model from C: inputs and outputs are files of raw elements, row-major.
 *
 *     treadle compile MODEL.onnx --emit c-library --name model -o build/model
 *     cc -Ibuild/model examples/c_library/run_model.c build/model/libmodel.a -lm -lpthread -o build/run_model
 *     build/run_model build/model/model.weights THREADS INPUT... OUTPUT...
 *
 * In place of the table that model.h declares, a program that knows its model may use the positions there
 * (model_INPUT_x) and arrays of its own. Exits with 0, or with 1 and a line on stderr.
 */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static void fail(const char *what, const char *why) {
    fprintf(stderr, "run_model: %s: %s\n", what, why);
    exit(1);
}

static void *buffer_for(const model_tensor *tensor) {
    void *buffer = aligned_alloc(ALIGNMENT, (tensor->bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (!buffer) fail(tensor->name, "memory ran out");
    return buffer;
}

static void read_file(const char *path, const model_tensor *tensor, char *buffer) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, strerror(errno));
    size_t found = fread(buffer, 1, tensor->bytes, file);
    if (found != tensor->bytes || fgetc(file) != EOF) {
        char why[200];
        snprintf(why, sizeof why, "input %.60s needs %zu bytes of %s", tensor->name, tensor->bytes, tensor->dtype);
        fail(path, why);
    }
    fclose(file);
}

static void write_file(const char *path, const model_tensor *tensor, const char *buffer) {
    FILE *file = fopen(path, "wb");
    if (!file) fail(path, strerror(errno));
    size_t written = fwrite(buffer, 1, tensor->bytes, file);
    if (fclose(file) || written != tensor->bytes) fail(path, "cannot write");
}

int main(int argc, char **argv) {
    void *inputs[model_NUM_INPUTS + 1], *outputs[model_NUM_OUTPUTS + 1];
    if (argc != 3 + model_NUM_INPUTS + model_NUM_OUTPUTS) fail("usage", "WEIGHTS THREADS INPUT... OUTPUT...");
    char **given = argv + 3, **wanted = given + model_NUM_INPUTS;
    for (int i = 0; i < model_NUM_INPUTS; i++)
        read_file(given[i], &model_inputs[i], inputs[i] = buffer_for(&model_inputs[i]));
    for (int i = 0; i < model_NUM_OUTPUTS; i++) outputs[i] = buffer_for(&model_outputs[i]);

    model *made;
    int code = model_create(&made, argv[1], atol(argv[2]));
    if (code) fail(argv[1], model_message(code));
    code = model_run(made, (const void *const *)inputs, outputs);
    if (code) fail("model_run", model_message(code));
    model_destroy(made);

    for (int i = 0; i < model_NUM_OUTPUTS; i++) write_file(wanted[i], &model_outputs[i], outputs[i]);
    for (int i = 0; i < model_NUM_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < model_NUM_OUTPUTS; i++) free(outputs[i]);
    return 0;
}
