/* Runs a compiled model from C: inputs and outputs are files of raw elements, row-major.
 *
 *     cc run_MODEL.c libMODEL.a -lm -lpthread -o run_MODEL
 *     ./run_MODEL MODEL.weights THREADS INPUT... OUTPUT...
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

static void read_file(const char *path, const MODEL_tensor *tensor, char *buffer) {
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

static void write_file(const char *path, const MODEL_tensor *tensor, const char *buffer) {
    FILE *file = fopen(path, "wb");
    if (!file) fail(path, strerror(errno));
    size_t written = fwrite(buffer, 1, tensor->bytes, file);
    if (fclose(file) || written != tensor->bytes) fail(path, "cannot write");
}

int main(int argc, char **argv) {
    void *inputs[MODEL_NUM_INPUTS + 1], *outputs[MODEL_NUM_OUTPUTS + 1];
    if (argc != 3 + MODEL_NUM_INPUTS + MODEL_NUM_OUTPUTS) fail("usage", "WEIGHTS THREADS INPUT... OUTPUT...");
    char **given = argv + 3, **wanted = given + MODEL_NUM_INPUTS;
    for (int i = 0; i < MODEL_NUM_INPUTS; i++)
        read_file(given[i], &MODEL_inputs[i], inputs[i] = buffer_for(&MODEL_inputs[i]));
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) outputs[i] = buffer_for(&MODEL_outputs[i]);

    MODEL *made;
    int code = MODEL_create(&made, argv[1], atol(argv[2]));
    if (code) fail(argv[1], MODEL_message(code));
    code = MODEL_run(made, (const void *const *)inputs, outputs);
    if (code) fail("MODEL_run", MODEL_message(code));
    MODEL_destroy(made);

    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) write_file(wanted[i], &MODEL_outputs[i], outputs[i]);
    for (int i = 0; i < MODEL_NUM_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) free(outputs[i]);
    return 0;
}
