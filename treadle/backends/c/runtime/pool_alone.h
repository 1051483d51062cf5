/* The pool where there are no threads, as in WebAssembly: kernels run on the caller. pool.c includes it in place of all
 * that it has itself. Nothing is recorded or traced: there is no clock, either. */
#include <stdlib.h>

struct treadle_pool {
    void (*run)(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks);
};

const long treadle_pool_layout = 1;

static void run_alone(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    (void)pool, (void)blocks;
    kernel(args, 0, 1);
}

void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    pool->run(pool, kernel, args, blocks);
}

struct treadle_pool *treadle_pool_create_on(long workers, const int *cpus) {
    if (workers < 1 || cpus) return NULL;
    struct treadle_pool *pool = malloc(sizeof *pool);
    if (pool) pool->run = run_alone;
    return pool;
}

struct treadle_pool *treadle_pool_create(long workers) { return treadle_pool_create_on(workers, NULL); }

void treadle_pool_record(struct treadle_pool *pool, double *seconds, long most) { (void)pool, (void)seconds, (void)most; }

void treadle_pool_trace(struct treadle_pool *pool, struct treadle_trace *trace) { (void)pool, (void)trace; }

long treadle_pool_workers(const struct treadle_pool *pool) {
    (void)pool;
    return 1;
}

void treadle_pool_destroy(struct treadle_pool *pool) { free(pool); }
