/* The functions that a library's header declares. Before this text stand the header, and these macros:
 *
 * MODEL          the name that everything begins with
 * CONSTANTS      how many constants there are, OFFSETS: the bytes at which they begin in the file of weights
 * WEIGHTS_BYTES  the size of that file (0: there is none), WEIGHTS_DIGEST: the 32 bytes of its sha256
 * ARENA_BYTES    scratch memory of a call
 * INPUTS, OUTPUTS  how many tensors treadle_run takes and gives; GIVEN, MADE: the numbers of those that are not kept
 * EXTENTS        how many of the inputs, the last ones, are extents
 * STATES         how many tensors are kept between calls, KEPT: their numbers, bytes, and whether they are in place
 * NEEDS          features of the processor that the kernels use, {NULL} at the end
 * SHOWN          only where the kernels and the pool are in another library, which is opened at run time: of each
 *                dimension an input, and which of its dimensions it is; KERNELS: the sha256 of that library. Who opens
 *                it has compared the weights with their digest
 */
#include "pool.h"
#ifndef SHOWN
#include "sha256.h"
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef __wasm__
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define JOINED(a, b) a##_##b
#define EXPANDED(a, b) JOINED(a, b)
#define OURS(name) EXPANDED(MODEL, name)

enum { ALIGNMENT = 64 };

#ifdef __wasm__ /* One thread, whose calls take turns by themselves; and no files: the weights lie in memory. */
typedef int turn;
static int turn_init(turn *turn) { return *turn = 0; }
static void turn_destroy(turn *turn) { (void)turn; }
static void turn_take(turn *turn) { (void)turn; }
static void turn_give(turn *turn) { (void)turn; }
#else
typedef pthread_mutex_t turn;
static int turn_init(turn *turn) { return pthread_mutex_init(turn, NULL); }
static void turn_destroy(turn *turn) { pthread_mutex_destroy(turn); }
static void turn_take(turn *turn) { pthread_mutex_lock(turn); }
static void turn_give(turn *turn) { pthread_mutex_unlock(turn); }
#endif

#ifdef SHOWN
#include <dlfcn.h>

static struct {
    void (*run)(struct treadle_pool *, void *const *, void *const *, void *const *, char *);
    struct treadle_pool *(*create)(long);
    void (*destroy)(struct treadle_pool *);
    const long *layout;
} kernels;
#define treadle_run (*kernels.run)
#define treadle_pool_create (*kernels.create)
#define treadle_pool_destroy (*kernels.destroy)
#define treadle_pool_layout (*kernels.layout)

const int OURS(counts)[] = {OURS(NUM_INPUTS), OURS(NUM_OUTPUTS), OURS(NUM_DIMENSIONS)};
const int OURS(shown)[][2] = SHOWN;
const char OURS(kernels)[] = KERNELS; /* so that no two libraries have the same bytes, and are one to the loader */

/* Takes the kernels and the pool of a library that dlopen gave; 0 if it has none. */
int OURS(bind)(void *library) {
    void *found[] = {dlsym(library, "treadle_run"), dlsym(library, "treadle_pool_create"),
                     dlsym(library, "treadle_pool_destroy"), dlsym(library, "treadle_pool_layout")};
    memcpy(&kernels, found, sizeof kernels);
    return found[0] && found[1] && found[2] && found[3];
}
#else
void treadle_run(struct treadle_pool *pool, void *const *inputs, void *const *outputs, void *const *constants, char *arena);
#endif

/* Libraries of other versions read this: `layout` stays first, and other changes need another number of the layout. */
struct treadle_threads {
    long layout; /* treadle_pool_layout of the library whose threads they are */
    struct treadle_pool *pool;
    void (*destroy)(struct treadle_pool *pool);
    turn turn;
};

struct MODEL {
    struct treadle_threads *threads;
    int shares; /* whether the threads are not its own */
    char *arena;
    char *weights; /* NULL if there are none */
    void *constants[CONSTANTS + 1];
    char *states[STATES + 1][2]; /* what the next call reads, and where it writes; equal where in place */
    long long lengths[OURS(NUM_DIMENSIONS) + 1];
};

static const struct {
    int argument, result;
    size_t bytes;
    int in_place;
} kept[] = KEPT;

#ifdef __wasm__
/* A module with instructions that an engine lacks is not loaded. */
static int fits_processor(void) { return 1; }

/* The bytes of the weights, which the caller keeps, compared with their digest. */
static int map_weights(const char *bytes, char **weights) {
    static const unsigned char expected[32] = WEIGHTS_DIGEST;
    unsigned char digest[32];
    treadle_sha256((const unsigned char *)bytes, WEIGHTS_BYTES, digest);
    if (memcmp(digest, expected, sizeof digest)) return OURS(WRONG_DIGEST);
    *weights = (char *)bytes;
    return OURS(OK);
}

static void unmap_weights(char *weights) { (void)weights; }
#else
/* Whether one of the words of a line is `word`. */
static int has_word(const char *line, const char *word) {
    size_t length = strlen(word);
    for (const char *at = line; (at = strstr(at, word)); at += length) {
        int begins = at == line || at[-1] == ' ' || at[-1] == '\t', ends = !at[length] || at[length] == ' ' || at[length] == '\n';
        if (begins && ends) return 1;
    }
    return 0;
}

/* A feature of the processor: a bit of a register (0 to 3) of cpuid with a leaf and a subleaf, and bits that XCR0 must
 * have besides; of ARM, a bit of AT_HWCAP. With a register below 0 its word in /proc/cpuinfo counts. */
struct need {
    const char *word;
    unsigned leaf, subleaf;
    int place, bit;
    unsigned long long state;
};

#if defined(__x86_64__)
static int has_bit(unsigned leaf, unsigned subleaf, int place, int bit) {
    unsigned answer[4];
    if (!__get_cpuid_count(leaf, 0, answer, answer + 1, answer + 2, answer + 3) || subleaf > (subleaf ? answer[0] : 0))
        return 0;
    if (subleaf) __cpuid_count(leaf, subleaf, answer[0], answer[1], answer[2], answer[3]);
    return (int)(answer[place] >> bit & 1);
}

/* Asks the processor: under an emulator, /proc/cpuinfo may describe another one. */
static int is_told(const struct need *need) {
    unsigned low = 0, high = 0;
    if (need->state) {
        if (!has_bit(1, 0, 2, 27)) return 0; /* OSXSAVE: there is xgetbv */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    }
    return !(need->state & ~((unsigned long long)high << 32 | low)) &&
           has_bit(need->leaf, need->subleaf, need->place, need->bit);
}
#elif defined(__aarch64__) && defined(__linux__)
static int is_told(const struct need *need) { return (int)(getauxval(AT_HWCAP) >> need->bit & 1); }
#else
static int is_told(const struct need *need) {
    (void)need;
    return 1; /* the system has no word for it */
}
#endif

/* Whether a line of /proc/cpuinfo lists those features that only it tells; taken to be so where it cannot be read. */
static int are_listed(const struct need *needs) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return 1;
    char *line = NULL;
    size_t room = 0;
    int fits = 1;
    while (getline(&line, &room, file) > 0) {
        if (strncmp(line, "flags", 5) && strncmp(line, "Features", 8)) continue;
        for (const struct need *need = needs; need->word; need++) fits &= need->place >= 0 || has_word(line, need->word);
        break;
    }
    free(line);
    fclose(file);
    return fits;
}

/* Whether the processor has every feature of NEEDS. */
static int fits_processor(void) {
    static const struct need needs[] = NEEDS;
    int fits = 1, listed = 0;
    for (const struct need *need = needs; need->word; need++) {
        listed |= need->place < 0;
        fits &= need->place < 0 || is_told(need);
    }
    return fits && (!listed || are_listed(needs));
}

/* Maps the file of weights, and compares it with its size and digest. */
static int map_weights(const char *path, char **weights) {
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return OURS(CANNOT_OPEN);
    if (fstat(descriptor, &status) || !S_ISREG(status.st_mode) || status.st_size != WEIGHTS_BYTES) {
        close(descriptor);
        return OURS(WRONG_SIZE);
    }
    void *mapped = mmap(NULL, WEIGHTS_BYTES, PROT_READ, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (mapped == MAP_FAILED) return OURS(NO_MEMORY);
#ifndef SHOWN
    static const unsigned char expected[32] = WEIGHTS_DIGEST;
    unsigned char digest[32];
    treadle_sha256(mapped, WEIGHTS_BYTES, digest);
    if (memcmp(digest, expected, sizeof digest)) {
        munmap(mapped, WEIGHTS_BYTES);
        return OURS(WRONG_DIGEST);
    }
#endif
    *weights = mapped;
    return OURS(OK);
}

static void unmap_weights(char *weights) { munmap(weights, WEIGHTS_BYTES); }
#endif

int OURS(threads_create)(struct treadle_threads **threads, long count) {
    if (!threads) return OURS(BAD_ARGUMENT);
    *threads = NULL;
    if (count < 1) return OURS(BAD_ARGUMENT);
    if (!fits_processor()) return OURS(WRONG_PROCESSOR); /* the pool's code is for it, too */
    struct treadle_threads *made = calloc(1, sizeof *made);
    if (!made) return OURS(NO_MEMORY);
    if (turn_init(&made->turn)) {
        free(made);
        return OURS(NO_MEMORY);
    }
    made->layout = treadle_pool_layout;
    made->destroy = treadle_pool_destroy;
    made->pool = treadle_pool_create(count);
    if (made->pool) {
        *threads = made;
        return OURS(OK);
    }
    OURS(threads_destroy)(made);
    return OURS(NO_THREADS);
}

void OURS(threads_destroy)(struct treadle_threads *threads) {
    if (!threads) return;
    threads->destroy(threads->pool);
    turn_destroy(&threads->turn);
    free(threads);
}

static int opened(struct MODEL *model, const char *weights) {
    static const size_t offsets[] = OFFSETS;
    if (WEIGHTS_BYTES) {
        int code = map_weights(weights, &model->weights);
        if (code) return code;
    }
    for (int i = 0; i < CONSTANTS; i++) model->constants[i] = model->weights + offsets[i];
    for (int i = 0; i < STATES; i++) {
        size_t room = (kept[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        model->states[i][0] = model->states[i][1] = aligned_alloc(ALIGNMENT, room);
        if (!kept[i].in_place) model->states[i][1] = aligned_alloc(ALIGNMENT, room);
        if (!model->states[i][0] || !model->states[i][1]) return OURS(NO_MEMORY);
    }
    model->arena = aligned_alloc(ALIGNMENT, ARENA_BYTES);
    return model->arena ? OURS(reset)(model) : OURS(NO_MEMORY);
}

int OURS(reset)(struct MODEL *model) {
    if (!model) return OURS(BAD_ARGUMENT);
    for (int i = 0; i < STATES; i++) {
        memset(model->states[i][0], 0, kept[i].bytes);
        memset(model->states[i][1], 0, kept[i].bytes);
    }
    for (int i = 0; i < OURS(NUM_DIMENSIONS); i++) model->lengths[i] = OURS(dimensions)[i].least;
    return OURS(OK);
}

static int is_kept(int dimension) {
    return dimension >= 0 && dimension < OURS(NUM_DIMENSIONS) && OURS(dimensions)[dimension].kept;
}

long long OURS(length)(const struct MODEL *model, int dimension) {
    return model && is_kept(dimension) ? model->lengths[dimension] : -1;
}

int OURS(rewind)(struct MODEL *model, int dimension, long long length) {
    if (!model || !is_kept(dimension)) return OURS(BAD_ARGUMENT);
    if (length < OURS(dimensions)[dimension].least || length > model->lengths[dimension]) return OURS(BAD_EXTENT);
    model->lengths[dimension] = length;
    return OURS(OK);
}

int OURS(create_on)(struct MODEL **model, const char *weights, struct treadle_threads *threads) {
    if (!model) return OURS(BAD_ARGUMENT);
    *model = NULL;
    if (!threads || (WEIGHTS_BYTES && !weights)) return OURS(BAD_ARGUMENT);
    if (threads->layout != treadle_pool_layout) return OURS(NO_THREADS);
    if (!fits_processor()) return OURS(WRONG_PROCESSOR);
    struct MODEL *made = calloc(1, sizeof *made);
    if (!made) return OURS(NO_MEMORY);
    made->threads = threads;
    made->shares = 1;
    int code = opened(made, weights);
    if (code)
        OURS(destroy)(made);
    else
        *model = made;
    return code;
}

int OURS(create)(struct MODEL **model, const char *weights, long threads) {
    if (!model) return OURS(BAD_ARGUMENT);
    *model = NULL;
    struct treadle_threads *own;
    int code = OURS(threads_create)(&own, threads);
    if (code) return code;
    code = OURS(create_on)(model, weights, own);
    if (code)
        OURS(threads_destroy)(own);
    else
        (*model)->shares = 0;
    return code;
}

static int check(const void *const *buffers, const OURS(tensor) *tensors, int count) {
    if (!buffers && count) return OURS(BAD_ARGUMENT);
    for (int i = 0; i < count; i++) {
        if (!buffers[i] && tensors[i].bytes) return OURS(BAD_ARGUMENT);
        if ((size_t)buffers[i] % tensors[i].alignment) return OURS(MISALIGNED);
    }
    return OURS(OK);
}

/* The extents of a call, by dimension. */
static int bind(const struct MODEL *model, const long long *extents, long long *bound) {
    for (int i = 0; i < OURS(NUM_DIMENSIONS); i++) {
        const OURS(dimension) *each = &OURS(dimensions)[i];
        bound[i] = each->kept ? model->lengths[i] : extents ? extents[i] : each->greatest;
        if (bound[i] < each->least || bound[i] > each->greatest || bound[i] % each->multiple) return OURS(BAD_EXTENT);
    }
    return OURS(OK);
}

/* A call, by a caller that has the turn. What it keeps changes at its end. */
static int run_in_turn(struct MODEL *model, const long long *extents, const void *const *inputs, void *const *outputs) {
    static const int given[] = GIVEN, made[] = MADE;
    long long bound[OURS(NUM_DIMENSIONS) + 1];
    int64_t values[EXTENTS + 1];
    long long found[EXTENTS + 1];
    void *reads[INPUTS + 1], *writes[OUTPUTS + 1];
    int code = bind(model, extents, bound);
    if (code) return code;
    find_extents(bound, found);
    for (int i = 0; i < EXTENTS; i++) values[i] = found[i];
    for (int i = 0; i < OURS(NUM_INPUTS); i++) reads[given[i]] = (void *)inputs[i];
    for (int i = 0; i < OURS(NUM_OUTPUTS); i++) writes[made[i]] = outputs[i];
    for (int i = 0; i < EXTENTS; i++) reads[INPUTS - EXTENTS + i] = &values[i];
    for (int i = 0; i < STATES; i++) {
        reads[kept[i].argument] = model->states[i][0];
        writes[kept[i].result] = model->states[i][1];
    }
    treadle_run(model->threads->pool, reads, writes, model->constants, model->arena);
    for (int i = 0; i < STATES; i++) {
        char *now = model->states[i][0];
        model->states[i][0] = model->states[i][1];
        model->states[i][1] = now;
    }
    find_lengths(bound, model->lengths);
    return OURS(OK);
}

int OURS(run_at)(struct MODEL *model, const long long *extents, const void *const *inputs, void *const *outputs) {
    if (!model) return OURS(BAD_ARGUMENT);
    int code = check(inputs, OURS(inputs), OURS(NUM_INPUTS));
    if (!code) code = check((const void *const *)outputs, OURS(outputs), OURS(NUM_OUTPUTS));
    if (code) return code;
    turn_take(&model->threads->turn);
    code = run_in_turn(model, extents, inputs, outputs);
    turn_give(&model->threads->turn);
    return code;
}

int OURS(run)(struct MODEL *model, const void *const *inputs, void *const *outputs) {
    return OURS(run_at)(model, NULL, inputs, outputs);
}

int OURS(input_shape)(const struct MODEL *model, int i, const long long *extents, size_t *shape) {
    long long bound[OURS(NUM_DIMENSIONS) + 1];
    if (!model || !shape || i < 0 || i >= OURS(NUM_INPUTS)) return OURS(BAD_ARGUMENT);
    int code = bind(model, extents, bound);
    if (!code) find_input_shape(i, bound, shape);
    return code;
}

int OURS(output_shape)(const struct MODEL *model, int i, const long long *extents, size_t *shape) {
    long long bound[OURS(NUM_DIMENSIONS) + 1];
    if (!model || !shape || i < 0 || i >= OURS(NUM_OUTPUTS)) return OURS(BAD_ARGUMENT);
    int code = bind(model, extents, bound);
    if (!code) find_output_shape(i, bound, shape);
    return code;
}

void OURS(destroy)(struct MODEL *model) {
    if (!model) return;
    if (!model->shares) OURS(threads_destroy)(model->threads);
    free(model->arena);
    for (int i = 0; i < STATES; i++) {
        free(model->states[i][0]);
        if (!kept[i].in_place) free(model->states[i][1]);
    }
    if (model->weights) unmap_weights(model->weights);
    free(model);
}

const char *OURS(message)(int code) {
    switch (code) {
    case OURS(OK): return "no error";
    case OURS(BAD_ARGUMENT): return "a pointer is NULL, or the number of threads is below 1";
    case OURS(MISALIGNED): return "an input or an output does not begin at a multiple of its alignment";
    case OURS(CANNOT_OPEN): return "the file of weights cannot be opened; errno says why";
    case OURS(WRONG_SIZE): return "the file of weights has another size than this library's";
    case OURS(WRONG_DIGEST): return "the file of weights is not this library's, or damaged: its sha256 differs";
    case OURS(NO_MEMORY): return "memory ran out";
    case OURS(NO_THREADS): return "the threads cannot be started, or are of a library of another version of Treadle";
    case OURS(WRONG_PROCESSOR): return "the processor lacks instructions that the kernels use";
    case OURS(BAD_EXTENT): return "an extent is out of its dimension's range, or what the model keeps has no room";
    default: return "an unknown code";
    }
}
