#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Between two kernels of one model pass microseconds: waiting workers spin that long, then sleep. */
enum { SPINS = 20000, YIELD_EVERY = 256, CACHE_LINE = 64, STACK_BYTES = 64 << 20 };

/* Shares of a run for each thread: enough to even out a late thread, few enough to cost nothing. */
enum { SHARES = 4, MOST_WORKERS = 0xffff / SHARES };

/* `turn` holds, from the top, the number of the run (32 bits), its shares, and the next one to take (16 bits each). */
#define TURN(run, shares) ((run) << 32 | (unsigned long long)(shares) << 16)
#define RUN_OF(turn) ((turn) >> 32)
#define SHARES_OF(turn) ((long)((turn) >> 16 & 0xffff))
#define SHARE_OF(turn) ((long)((turn) & 0xffff))

/* One run: the caller writes kernel and args, publishes a new `turn`, takes shares itself, and waits until all of them
 * are `done`. Kernel and args do not change while a share is left to take, so a thread that takes one has read the right
 * ones. */
struct treadle_pool {
    long workers;
    _Atomic(treadle_kernel) kernel;
    _Atomic(void *const *) args;
    _Alignas(CACHE_LINE) atomic_ullong turn;
    _Alignas(CACHE_LINE) atomic_long done;
    _Alignas(CACHE_LINE) atomic_long sleepers;
    atomic_int stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t threads[];
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

/* Takes shares of the run at hand until there are none; returns that run's number. */
static unsigned long long take_shares(struct treadle_pool *pool) {
    unsigned long long turn = atomic_load_explicit(&pool->turn, memory_order_acquire);
    for (;;) {
        treadle_kernel kernel = atomic_load_explicit(&pool->kernel, memory_order_relaxed);
        void *const *args = atomic_load_explicit(&pool->args, memory_order_relaxed);
        if (SHARE_OF(turn) >= SHARES_OF(turn)) return RUN_OF(turn);
        /* Success means that this share was still there to take when kernel and args were read. */
        if (!atomic_compare_exchange_weak_explicit(&pool->turn, &turn, turn + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        kernel(args, SHARE_OF(turn), SHARES_OF(turn));
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        turn = atomic_load_explicit(&pool->turn, memory_order_acquire);
    }
}

static void wait_for_run_after(struct treadle_pool *pool, unsigned long long seen) {
    for (long spin = 0; spin < SPINS; spin++) {
        if (RUN_OF(atomic_load_explicit(&pool->turn, memory_order_acquire)) != seen) return;
        spin_once(spin);
    }
    /* `sleepers` is raised before the turn is read again, and publish reads it after changing the turn: one of the two
     * sees the other, so no wake-up is lost. */
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (RUN_OF(atomic_load(&pool->turn)) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

/* Begins the next run. */
static void publish(struct treadle_pool *pool, long shares) {
    unsigned long long run = RUN_OF(atomic_load_explicit(&pool->turn, memory_order_relaxed)) + 1;
    atomic_store(&pool->turn, TURN(run, shares));
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void *thread_main(void *argument) {
    struct treadle_pool *pool = argument;
    for (unsigned long long seen = 0;;) {
        wait_for_run_after(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        seen = take_shares(pool);
    }
}

/* Starts all threads but the caller's; returns how many there are then, the caller's included. */
static long start_threads(struct treadle_pool *pool) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return 1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    long started = 1;
    while (started < pool->workers && !pthread_create(&pool->threads[started - 1], &attributes, thread_main, pool))
        started++;
    pthread_attr_destroy(&attributes);
    return started;
}

static void stop_threads(struct treadle_pool *pool, long started) {
    atomic_store(&pool->stop, 1);
    publish(pool, 0);
    for (long i = 1; i < started; i++) pthread_join(pool->threads[i - 1], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

struct treadle_pool *treadle_pool_create(long workers) {
    if (workers < 1 || workers > MOST_WORKERS) return NULL;
    size_t bytes = sizeof(struct treadle_pool) + (size_t)(workers - 1) * sizeof(pthread_t);
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    struct treadle_pool *pool = aligned_alloc(CACHE_LINE, bytes);
    if (!pool) return NULL;
    pool->workers = workers;
    atomic_init(&pool->kernel, NULL);
    atomic_init(&pool->args, NULL);
    atomic_init(&pool->turn, 0);
    atomic_init(&pool->done, 0);
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->stop, 0);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    long started = start_threads(pool);
    if (started == workers) return pool;
    stop_threads(pool, started);
    return NULL;
}

void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    if (pool->workers == 1 || blocks <= 1) {
        kernel(args, 0, 1);
        return;
    }
    long shares = blocks < SHARES * pool->workers ? blocks : SHARES * pool->workers;
    atomic_store_explicit(&pool->kernel, kernel, memory_order_relaxed);
    atomic_store_explicit(&pool->args, args, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    publish(pool, shares);
    take_shares(pool);
    for (long spin = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < shares; spin++) spin_once(spin);
}

long treadle_pool_workers(const struct treadle_pool *pool) { return pool->workers; }

void treadle_pool_destroy(struct treadle_pool *pool) {
    if (pool) stop_threads(pool, pool->workers);
}
