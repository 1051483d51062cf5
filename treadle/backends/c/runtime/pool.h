/* A small pool of threads that runs one kernel at a time. */
#ifndef TREADLE_POOL_H
#define TREADLE_POOL_H

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel: does share `worker` of `workers` of its grid over the buffers `args`. There are more shares than threads. */
typedef void (*treadle_kernel)(void *const *args, long worker, long workers);

struct treadle_pool;

/* A pool of `workers` threads (at least 1), of which the caller of treadle_pool_run is one. Each other has a 64 MiB stack,
 * since kernels keep packed panels in local arrays; the caller's is usually 8 MiB, so a kernel's local arrays stay below
 * 4 MiB. NULL if threads or memory run out.
 *
 * The child of a fork() may run and destroy its copy of a pool, even if a run was under way in another thread. Its first
 * run starts threads of its own; if that fails, kernels run on the caller alone. */
struct treadle_pool *treadle_pool_create(long workers);

/* The same with worker i bound to the CPU cpus[i], for i from 1: worker 0 is the caller, who is not bound. NULL, too, if
 * one of them cannot be had; on other systems than Linux, none can. With NULL for `cpus` no worker is bound. */
struct treadle_pool *treadle_pool_create_on(long workers, const int *cpus);

/* What another library has to know of a pool to run kernels on it. 1: a pool begins with the address of a function with
 * the parameters of treadle_pool_run, which treadle_pool_run calls. Libraries that export the same number take each
 * other's pools in treadle_pool_run, and in that function alone; the one that created a pool stays loaded meanwhile. */
extern const long treadle_pool_layout;

/* Runs a kernel of `blocks` blocks in shares: each thread takes neighbouring ones, then those that others have left, so
 * that a thread which the system holds up delays no more than one share; returns when all are done, and what they wrote is
 * visible then. A kernel of one block runs on the calling thread, which costs less than waking the others. One caller at a
 * time. */
void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks);

/* From now on each run stores how many seconds it took, the first one in seconds[0], while there is room for `most`;
 * with NULL none does. Not while a run is under way. */
void treadle_pool_record(struct treadle_pool *pool, double *seconds, long most);

/* What a traced pool did from `start` to `end`, in seconds of CLOCK_MONOTONIC: a worker a share of a launch, or, where
 * `worker` is -1, the pool a launch of so many shares. Launches are numbered from 1. */
struct treadle_event {
    double start, end;
    long long launch;
    treadle_kernel kernel;
    int worker, share;
};

/* A ring of events: the newest `capacity` of the `count` events that there were; the event of number n is in place n
 * modulo the capacity. Those of a launch follow one another: its shares in order, then the launch. */
struct treadle_trace {
    unsigned long long count;
    long long launches;
    long long capacity;
    struct treadle_event events[];
};

/* From now on each run writes its events to the ring, which is the caller's, and zero but for its capacity at first; with
 * NULL none does, and a run costs what it costs in a pool that was never traced. Not while a run is under way. A launch of
 * as many shares as the ring has places, or more, is counted, and not written. */
void treadle_pool_trace(struct treadle_pool *pool, struct treadle_trace *trace);

/* The number of workers, the caller included. */
long treadle_pool_workers(const struct treadle_pool *pool);

/* Ends the threads and frees the pool; NULL is ignored. No run may be under way. */
void treadle_pool_destroy(struct treadle_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
