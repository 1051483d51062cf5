/* A host of ONNX Runtime without Python: onnxruntime_host provider|operator LIBRARY MODEL registers the library as an
 * execution provider or as one of custom operators, reads a model with an input x of 4 by 8 floats, -4 to 3.75 in steps
 * of 0.25, and prints the sum of its output. It knows ONNX Runtime's functions by their numbers. */
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
    void *const *devices;
    size_t found, at = 0;
    int is_provider;
    float elements[32], *result, sum = 0;
    int64_t shape[] = {4, 8};
    const char *in[] = {"x"}, *out[] = {"y"};
    if (count != 4) return 2;
    is_provider = arguments[1][0] == 'p';
    table = (void *const *)OrtGetApiBase()->get_api(is_provider ? 24 : 16);
    ORT(3, (int, const char *, void **), 3, "host", &env);
    ORT(10, (void **), &options);
    if (is_provider) {
        ORT(301, (void *, const char *, const char *), env, "treadle", arguments[2]);
        ORT(303, (void *, void *const **, size_t *), env, &devices, &found);
        while (at < found && ((const char *(*)(void *))table[312])(devices[at])[0] != 'T') at++;
        ORT(304, (void *, void *, void *const *, size_t, void *, void *, size_t), options, env, devices + at, 1, NULL, NULL, 0);
    } else {
        ORT(228, (void *, const char *), options, arguments[2]);
    }
    ORT(7, (void *, const char *, void *, void **), env, arguments[3], options, &session);
    for (int i = 0; i < 32; i++) elements[i] = (i - 16) / 4.0f;
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
    if (is_provider) ORT(302, (void *, const char *), env, "treadle");
    ((void (*)(void *))table[92])(env);
    return 0;
}
