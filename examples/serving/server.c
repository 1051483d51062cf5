/* Answers requests that come on standard input with a model compiled for a range of batches, without Python.
 *
 *     treadle compile model.onnx --shape batch=1..32 --emit c-library --name served -o library
 *     cc -Ilibrary examples/serving/server.c library/libserved.a -lm -lpthread -o server
 *     ./server library/served.weights 2 < requests > answers
 *
 * A request is one row of the model's one input, raw elements; its answer one row of the one output, in the order of the
 * requests. What has come while a call ran, up to the largest batch, is the next call: a pipe that is slower than the
 * model is answered row by row. Put a socket in the place of the descriptors 0 and 1 (inetd, socat) for a network.
 */
#define _POSIX_C_SOURCE 200809L
#include "served.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what, const char *why) {
    fprintf(stderr, "server: %s: %s\n", what, why);
    exit(1);
}

/* Bytes of a row: those of the largest batch, divided by its rows. */
static size_t row_bytes(const served_tensor *tensor) {
    return tensor->bytes / tensor->shape[0];
}

static int more_has_come(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) == 1;
}

/* Reads at least one row, and then what is there, until the buffer is full; 0 at the end of the input. */
static size_t read_rows(char *buffer, size_t row, size_t most) {
    size_t have = 0;
    while (have < most * row && (have < row || have % row || more_has_come())) {
        ssize_t count = read(0, buffer + have, most * row - have);
        if (count < 0) fail("standard input", "cannot read");
        if (count == 0) break;
        have += (size_t)count;
    }
    if (have % row) fail("standard input", "ends within a request");
    return have / row;
}

static void write_all(const char *buffer, size_t bytes) {
    while (bytes) {
        ssize_t count = write(1, buffer, bytes);
        if (count < 0) fail("standard output", "cannot write");
        buffer += count;
        bytes -= (size_t)count;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage", "server WEIGHTS THREADS < requests > answers");
    if (served_NUM_INPUTS != 1 || served_NUM_OUTPUTS != 1 || served_NUM_DIMENSIONS != 1)
        fail("the model", "accepted: one input, one output, and --shape batch=1..N");
    const served_tensor *input = &served_inputs[0], *output = &served_outputs[0];
    if (input->padded || output->padded) fail("the model", "its rows do not lie one after another");

    served *model;
    int code = served_create(&model, argv[1], atol(argv[2]));
    if (code) fail(argv[1], served_message(code));
    char *rows = malloc(input->bytes), *answers = malloc(output->bytes);
    if (!rows || !answers) fail("buffers", "memory ran out");

    size_t most = input->shape[0], count, calls = 0, requests = 0;
    while ((count = read_rows(rows, row_bytes(input), most)) > 0) {
        long long batch = (long long)count;
        const void *inputs[] = {rows};
        void *outputs[] = {answers};
        code = served_run_at(model, &batch, inputs, outputs);
        if (code) fail("served_run_at", served_message(code));
        write_all(answers, count * row_bytes(output));
        calls++;
        requests += count;
    }
    fprintf(stderr, "server: %zu requests in %zu calls\n", requests, calls);
    served_destroy(model);
    free(rows);
    free(answers);
    return 0;
}
