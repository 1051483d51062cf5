/* A host of a custom operator without Python: operator_host LIBRARY MODEL reads a model with an input x of 4 by 8 floats,
 * all of them -0.5, and prints the sum of its output. It knows ONNX Runtime's functions by their numbers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *(*function)();

extern const struct {
    function (*get_api)(uint32_t);
    const char *(*version)(void);
} *OrtGetApiBase(void);

static void *const *table;

static void check(void *status) {
    if (!status) return;
    fprintf(stderr, "%s\n", ((const char *(*)(void *))table[2])(status));
    exit(1);
}

#define ORT(number, types, ...) check(((void *(*)types)table[number])(__VA_ARGS__))

int main(int count, char **arguments) {
    void *env, *options, *session, *memory, *x, *y = NULL;
    float elements[32], *result, sum = 0;
    int64_t shape[] = {4, 8};
    const char *in[] = {"x"}, *out[] = {"y"};
    if (count != 3) return 2;
    table = (void *const *)OrtGetApiBase()->get_api(16);
    ORT(3, (int, const char *, void **), 3, "host", &env);
    ORT(10, (void **), &options);
    ORT(228, (void *, const char *), options, arguments[1]);
    ORT(7, (void *, const char *, void *, void **), env, arguments[2], options, &session);
    for (int i = 0; i < 32; i++) elements[i] = -0.5f;
    ORT(69, (int, int, void **), 0, 0, &memory);
    ORT(49, (void *, void *, size_t, int64_t *, size_t, int, void **), memory, elements, sizeof elements, shape, 2, 1, &x);
    for (int turn = 0; turn < 3; turn++) {
        ORT(9, (void *, void *, const char **, void **, size_t, const char **, size_t, void **), session, NULL, in, &x, 1, out, 1, &y);
    }
    ORT(51, (void *, float **), y, &result);
    for (int i = 0; i < 16; i++) sum += result[i];
    printf("%.4f\n", sum);
    ((void (*)(void *))table[96])(x);
    ((void (*)(void *))table[96])(y);
    ((void (*)(void *))table[94])(memory);
    ((void (*)(void *))table[95])(session);
    ((void (*)(void *))table[100])(options);
    ((void (*)(void *))table[92])(env);
    return 0;
}
