/* A small pool of threads that runs one kernel at a time on all of its workers. */
#ifndef TREADLE_POOL_H
#define TREADLE_POOL_H

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel: `worker` of `workers` does its share of the grid over the buffers `args`. */
typedef void (*treadle_kernel)(void *const *args, long worker, long workers);

struct treadle_pool;

/* A pool of `workers` (at least 1), of which the caller of treadle_pool_run is worker 0. Each other worker is a thread
 * with a 64 MiB stack, since kernels keep packed panels in local arrays; worker 0 has its caller's stack, usually 8 MiB, so
 * a kernel's local arrays stay below 4 MiB. NULL if threads or memory run out. */
struct treadle_pool *treadle_pool_create(long workers);

/* Runs the kernel on every worker and returns when all are done; what they wrote is visible then. One caller at a time. */
void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args);

/* The number of workers, the caller included. */
long treadle_pool_workers(const struct treadle_pool *pool);

/* Ends the threads and frees the pool; NULL is ignored. No run may be under way. */
void treadle_pool_destroy(struct treadle_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
