/* Generates text from C: the most probable token that follows some, again and again. Tokens are numbers.
 *
 *     cc generate_MODEL.c libMODEL.a -lm -lpthread -o generate_MODEL
 *     ./generate_MODEL MODEL.weights THREADS COUNT TOKEN...
 *
 * The loop is that of `treadle.generate`. Exits with 0, or with 1 and a line on stderr. Plain C99.
 */
#include "MODEL.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *why) {
    fprintf(stderr, "generate_MODEL: %s: %s\n", what, why);
    exit(1);
}

static void *buffer_for(const MODEL_tensor *tensor) {
    void *buffer = malloc(tensor->bytes + 1);
    if (!buffer) fail(tensor->name, "memory ran out");
    return buffer;
}

static int is_named(const MODEL_tensor *tensor, const char *name) { return !strcmp(tensor->name, name); }

static int position_of(const MODEL_tensor *tensors, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (is_named(&tensors[i], name)) return i;
    fail(name, "the model has no such tensor");
    return -1;
}

/* Whether an extent is the number of a call's tokens: that of `input_ids` changes with it. */
static int counts_tokens(const MODEL *model, int ids, int dimension) {
    long long extents[MODEL_NUM_DIMENSIONS + 1];
    size_t least[64], most[64];
    for (int i = 0; i < MODEL_NUM_DIMENSIONS; i++) extents[i] = MODEL_dimensions[i].least;
    MODEL_input_shape(model, ids, extents, least);
    extents[dimension] = MODEL_dimensions[dimension].greatest;
    MODEL_input_shape(model, ids, extents, most);
    return least[1] != most[1];
}

static void put(const MODEL_tensor *tensor, char *buffer, size_t position, long long number) {
    if (!strcmp(tensor->dtype, "int64"))
        ((int64_t *)buffer)[position] = number;
    else if (!strcmp(tensor->dtype, "int32"))
        ((int32_t *)buffer)[position] = (int32_t)number;
    else
        fail(tensor->name, "neither int64 nor int32");
}

int main(int argc, char **argv) {
    if (argc < 5) fail("usage", "WEIGHTS THREADS COUNT TOKEN...");
    MODEL *model;
    int code = MODEL_create(&model, argv[1], atol(argv[2]));
    if (code) fail(argv[1], MODEL_message(code));
    long count = atol(argv[3]), text = argc - 4, past = 0, new = 0;
    int ids = position_of(MODEL_inputs, MODEL_NUM_INPUTS, "input_ids");
    int logits = position_of(MODEL_outputs, MODEL_NUM_OUTPUTS, "logits");
    long vocabulary = (long)MODEL_outputs[logits].shape[2], most = (long)MODEL_inputs[ids].shape[1];
    if (strcmp(MODEL_outputs[logits].dtype, "float32")) fail("logits", "no float32");

    void *inputs[MODEL_NUM_INPUTS + 1], *outputs[MODEL_NUM_OUTPUTS + 1];
    long long extents[MODEL_NUM_DIMENSIONS + 1];
    int tokens_of[MODEL_NUM_DIMENSIONS + 1];
    for (int i = 0; i < MODEL_NUM_INPUTS; i++) inputs[i] = buffer_for(&MODEL_inputs[i]);
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) outputs[i] = buffer_for(&MODEL_outputs[i]);
    for (int i = 0; i < MODEL_NUM_DIMENSIONS; i++) tokens_of[i] = counts_tokens(model, ids, i);
    long long *tokens = malloc((size_t)(text + count + 1) * sizeof *tokens);
    if (!tokens) fail("tokens", "memory ran out");
    for (long i = 0; i < text; i++) {
        tokens[i] = atoll(argv[4 + i]);
        if (tokens[i] < 0 || tokens[i] >= vocabulary) fail(argv[4 + i], "no token of the vocabulary");
    }

    for (long made = 0; made < count; past += new) {
        new = text - past < most ? text - past : most;
        for (int i = 0; i < MODEL_NUM_DIMENSIONS; i++) extents[i] = tokens_of[i] ? new : past + new;
        for (int i = 0; i < MODEL_NUM_INPUTS; i++) {
            const MODEL_tensor *each = &MODEL_inputs[i];
            size_t shape[64];
            code = MODEL_input_shape(model, i, extents, shape);
            if (code) fail(each->name, MODEL_message(code));
            size_t length = shape[each->rank - 1];
            for (size_t n = 0; n < length; n++) {
                long long number = is_named(each, "input_ids") ? tokens[past + (long)n] : past + (long long)n;
                put(each, inputs[i], n, is_named(each, "attention_mask") ? 1 : number);
            }
        }
        code = MODEL_run_at(model, extents, (const void *const *)inputs, outputs);
        if (code) fail("MODEL_run_at", MODEL_message(code));
        if (past + new < text) continue;
        size_t shape[64];
        MODEL_output_shape(model, logits, extents, shape);
        const float *row = (const float *)outputs[logits] + (shape[1] - 1) * (size_t)vocabulary;
        long best = 0;
        for (long n = 1; n < vocabulary; n++)
            if (row[n] > row[best]) best = n;
        tokens[text++] = best;
        printf(made ? " %ld" : "%ld", best);
        fflush(stdout);
        made++;
    }
    printf("\n");
    free(tokens);
    for (int i = 0; i < MODEL_NUM_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < MODEL_NUM_OUTPUTS; i++) free(outputs[i]);
    MODEL_destroy(model);
    return 0;
}
