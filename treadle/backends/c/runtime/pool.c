#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Between two kernels of one model pass microseconds: waiting workers spin that long, then sleep. */
enum { SPINS = 20000, YIELD_EVERY = 256, CACHE_LINE = 64, STACK_BYTES = 64 << 20 };

struct worker_thread {
    struct treadle_pool *pool;
    long index;
    pthread_t thread;
};

/* One run is one round: the caller writes kernel and args, advances `round`, works, and waits until `running` is 0. */
struct treadle_pool {
    long workers;
    treadle_kernel kernel;
    void *const *args;
    _Alignas(CACHE_LINE) atomic_ulong round;
    _Alignas(CACHE_LINE) atomic_long running;
    _Alignas(CACHE_LINE) atomic_long sleepers;
    atomic_int stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct worker_thread threads[];
};

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spinning alone would hold a core that the awaited thread needs when there are more threads than cores. */
static inline void spin_once(long spin) {
    if (spin % YIELD_EVERY == YIELD_EVERY - 1)
        sched_yield();
    else
        cpu_relax();
}

static void wait_for_round_after(struct treadle_pool *pool, unsigned long seen) {
    for (long spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool->round, memory_order_acquire) != seen) return;
        spin_once(spin);
    }
    /* `sleepers` is raised before the round is read again, and start_round reads it after advancing the round: one of
     * the two sees the other, so no wake-up is lost. */
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->round) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void start_round(struct treadle_pool *pool) {
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument) {
    struct worker_thread *self = argument;
    struct treadle_pool *pool = self->pool;
    for (unsigned long seen = 0;; seen++) {
        wait_for_round_after(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        pool->kernel(pool->args, self->index, pool->workers);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
    }
}

/* Starts the threads 1 .. workers-1; returns how many workers there are then, the caller included. */
static long start_threads(struct treadle_pool *pool) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return 1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    long started = 1;
    for (; started < pool->workers; started++) {
        struct worker_thread *worker = &pool->threads[started - 1];
        *worker = (struct worker_thread){.pool = pool, .index = started};
        if (pthread_create(&worker->thread, &attributes, worker_main, worker)) break;
    }
    pthread_attr_destroy(&attributes);
    return started;
}

static void stop_threads(struct treadle_pool *pool, long started) {
    atomic_store(&pool->stop, 1);
    start_round(pool);
    for (long i = 1; i < started; i++) pthread_join(pool->threads[i - 1].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

struct treadle_pool *treadle_pool_create(long workers) {
    if (workers < 1) return NULL;
    size_t bytes = sizeof(struct treadle_pool) + (size_t)(workers - 1) * sizeof(struct worker_thread);
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    struct treadle_pool *pool = aligned_alloc(CACHE_LINE, bytes);
    if (!pool) return NULL;
    pool->workers = workers;
    atomic_init(&pool->round, 0);
    atomic_init(&pool->running, 0);
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->stop, 0);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    long started = start_threads(pool);
    if (started == workers) return pool;
    stop_threads(pool, started);
    return NULL;
}

void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args) {
    if (pool->workers == 1) {
        kernel(args, 0, 1);
        return;
    }
    pool->kernel = kernel;
    pool->args = args;
    atomic_store_explicit(&pool->running, pool->workers - 1, memory_order_relaxed);
    start_round(pool);
    kernel(args, 0, pool->workers);
    for (long spin = 0; atomic_load_explicit(&pool->running, memory_order_acquire); spin++) spin_once(spin);
}

long treadle_pool_workers(const struct treadle_pool *pool) { return pool->workers; }

void treadle_pool_destroy(struct treadle_pool *pool) {
    if (pool) stop_threads(pool, pool->workers);
}
