#ifdef __linux__
#define _GNU_SOURCE /* for the CPUs of threads */
#endif
#include "pool.h"

#ifdef __wasm__
#include "pool_alone.h"
#else

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Between two kernels of one model pass microseconds: waiting workers spin that long, then sleep. */
enum { SPINS = 20000, YIELD_EVERY = 256, CACHE_LINE = 64, STACK_BYTES = 64 << 20 };

/* Shares of a run for each thread: enough to even out a late thread, few enough to cost nothing. */
enum { SHARES = 4, MOST_WORKERS = 0xffff / SHARES };

/* A queue holds, from the top, the number of the run (32 bits), the end of its shares, and the next one (16 bits each). */
#define QUEUE(run, end, next) ((run) << 32 | (unsigned long long)(end) << 16 | (unsigned long long)(next))
#define RUN_OF(queue) ((queue) >> 32)
#define END_OF(queue) ((long)((queue) >> 16 & 0xffff))
#define NEXT_OF(queue) ((long)((queue) & 0xffff))

struct worker {
    _Alignas(CACHE_LINE) atomic_ullong queue;
    struct crew *crew;
    long index;
    pthread_t thread;
};

/* The threads of a pool, and what they share. One run: the caller writes kernel and args, then each worker's queue of
 * neighbouring shares, then a new `run`; takes shares itself, and waits until all of them are `done`. A worker takes its
 * own shares from the front, since blocks that follow one another share data and fetch each other's ahead, and then
 * those of others from the end. Kernel and args do not change while a share is left to take, so a thread that takes one
 * has read the right ones. */
struct crew {
    long workers;
#ifdef __linux__
    cpu_set_t cpus; /* that its threads may use */
    int caller;     /* the CPU of the last run's caller, -1 before; -2 if there are not enough CPUs to keep others off */
#endif
    _Atomic(treadle_kernel) kernel;
    _Atomic(void *const *) args;
    _Atomic long shares;
    _Alignas(CACHE_LINE) atomic_ullong run;
    _Alignas(CACHE_LINE) atomic_long done;
    _Alignas(CACHE_LINE) atomic_long sleepers;
    atomic_int stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct worker each[];
};

/* Only `run` is known to other libraries, whose models may share this pool: all else is this file's own. */
struct treadle_pool {
    void (*run)(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks);
    long workers;
    unsigned forks;    /* of the process that started the crew */
    struct crew *crew; /* NULL if no threads could be started after a fork */
    double *seconds;   /* of the next run, NULL if none is wanted; room for `left` of them */
    long left;
    struct treadle_trace *trace; /* NULL unless `run` is run_traced */
    int pinned; /* whether worker i has the CPU cpus[i] alone */
    int cpus[];
};

const long treadle_pool_layout = 1;

/* fork() copies the calling thread only, so a crew is of use only to the process that started it. This counts the forks
 * between the process that loaded the library and this one; it differs from the count of every ancestor. */
static unsigned forks;
static int counting;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_fork(void) { forks++; }

static void count_forks(void) { counting = !pthread_atfork(NULL, NULL, count_fork); }

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

/* Takes the shares of one queue until there are none: its owner's from the front, others' from the end. */
static void take_from(struct crew *crew, struct worker *worker, int own) {
    unsigned long long queue = atomic_load_explicit(&worker->queue, memory_order_acquire);
    for (;;) {
        treadle_kernel kernel = atomic_load_explicit(&crew->kernel, memory_order_relaxed);
        void *const *args = atomic_load_explicit(&crew->args, memory_order_relaxed);
        long shares = atomic_load_explicit(&crew->shares, memory_order_relaxed);
        long next = NEXT_OF(queue), end = END_OF(queue);
        if (next >= end) return;
        unsigned long long rest = own ? QUEUE(RUN_OF(queue), end, next + 1) : QUEUE(RUN_OF(queue), end - 1, next);
        /* Success means that this share was still there to take when kernel, args and shares were read. */
        if (!atomic_compare_exchange_weak_explicit(&worker->queue, &queue, rest, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        kernel(args, own ? next : end - 1, shares);
        atomic_fetch_add_explicit(&crew->done, 1, memory_order_release);
        queue = atomic_load_explicit(&worker->queue, memory_order_acquire);
    }
}

/* Takes shares of the current run until there are none; returns the number of a run that has none left. */
static unsigned long long take_shares(struct crew *crew, long index) {
    unsigned long long run = atomic_load_explicit(&crew->run, memory_order_acquire);
    for (long i = 0; i < crew->workers; i++) take_from(crew, &crew->each[(index + i) % crew->workers], i == 0);
    return run;
}

static void wait_for_run_after(struct crew *crew, unsigned long long seen) {
    for (long spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&crew->run, memory_order_acquire) != seen) return;
        spin_once(spin);
    }
    /* `sleepers` is raised before the run is read again, and publish reads it after changing the run: one of the two
     * sees the other, so no wake-up is lost. */
    pthread_mutex_lock(&crew->mutex);
    atomic_fetch_add(&crew->sleepers, 1);
    while (atomic_load(&crew->run) == seen) pthread_cond_wait(&crew->wake, &crew->mutex);
    atomic_fetch_sub(&crew->sleepers, 1);
    pthread_mutex_unlock(&crew->mutex);
}

/* Begins the next run: the queues have their shares before it is seen. */
static void publish(struct crew *crew, long shares) {
    unsigned long long run = (atomic_load_explicit(&crew->run, memory_order_relaxed) + 1) & 0xffffffff;
    atomic_store_explicit(&crew->shares, shares, memory_order_relaxed);
    for (long i = 0; i < crew->workers; i++) {
        long first = shares * i / crew->workers, end = shares * (i + 1) / crew->workers;
        atomic_store_explicit(&crew->each[i].queue, QUEUE(run, end, first), memory_order_release);
    }
    atomic_store(&crew->run, run);
    if (atomic_load(&crew->sleepers) == 0) return;
    pthread_mutex_lock(&crew->mutex);
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->mutex);
}

#ifdef __linux__
static void find_cpus(struct crew *crew) {
    int known = !sched_getaffinity(0, sizeof crew->cpus, &crew->cpus);
    crew->caller = known && CPU_COUNT(&crew->cpus) >= crew->workers ? -1 : -2;
}

/* Keeps workers off the caller's CPU. A thread that is woken may wait there for milliseconds, although others are idle:
 * a scheduler that saves power packs threads, and the caller does not sleep until its run ends. */
static void keep_cpu(struct crew *crew) {
    if (crew->caller == -2) return;
    int cpu = sched_getcpu();
    if (cpu < 0 || cpu == crew->caller) return;
    cpu_set_t others = crew->cpus;
    CPU_CLR((size_t)cpu, &others);
    for (long i = 1; i < crew->workers; i++) pthread_setaffinity_np(crew->each[i].thread, sizeof others, &others);
    crew->caller = cpu;
}

/* Gives each worker its own CPU, for good; 0 if one of them cannot be had. */
static int pin(struct crew *crew, const int *cpus) {
    crew->caller = -2;
    for (long i = 1; i < crew->workers; i++) {
        cpu_set_t own;
        CPU_ZERO(&own);
        if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE) return 0;
        CPU_SET((size_t)cpus[i], &own);
        if (pthread_setaffinity_np(crew->each[i].thread, sizeof own, &own)) return 0;
    }
    return 1;
}
#else
static void find_cpus(struct crew *crew) { (void)crew; }
static void keep_cpu(struct crew *crew) { (void)crew; }
static int pin(struct crew *crew, const int *cpus) {
    (void)crew, (void)cpus;
    return 0;
}
#endif

/* Of the thread that asks; a caller is worker 0 of its pool. */
static _Thread_local int worker_index;

static void *thread_main(void *argument) {
    struct worker *self = argument;
    worker_index = (int)self->index;
    for (unsigned long long seen = 0;;) {
        wait_for_run_after(self->crew, seen);
        seen = take_shares(self->crew, self->index);
        /* Asked once the run is read: a thread that is late for a run may read that of stop_crew, the last one. */
        if (atomic_load_explicit(&self->crew->stop, memory_order_relaxed)) return NULL;
    }
}

/* Starts all threads but the caller's; returns how many there are then, the caller's included. */
static long start_threads(struct crew *crew) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return 1;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    long started = 1;
    while (started < crew->workers &&
           !pthread_create(&crew->each[started].thread, &attributes, thread_main, &crew->each[started]))
        started++;
    pthread_attr_destroy(&attributes);
    return started;
}

static void stop_crew(struct crew *crew, long started) {
    atomic_store(&crew->stop, 1);
    publish(crew, 0);
    for (long i = 1; i < started; i++) pthread_join(crew->each[i].thread, NULL);
    pthread_cond_destroy(&crew->wake);
    pthread_mutex_destroy(&crew->mutex);
    free(crew);
}

/* NULL if threads or memory run out, or a CPU of `cpus` cannot be had; with NULL workers have no CPUs of their own. */
static struct crew *start_crew(long workers, const int *cpus) {
    size_t bytes = sizeof(struct crew) + (size_t)workers * sizeof(struct worker);
    struct crew *crew = aligned_alloc(CACHE_LINE, bytes);
    if (!crew) return NULL;
    crew->workers = workers;
    find_cpus(crew);
    atomic_init(&crew->kernel, NULL);
    atomic_init(&crew->args, NULL);
    atomic_init(&crew->shares, 0);
    atomic_init(&crew->run, 0);
    for (long i = 0; i < workers; i++) {
        atomic_init(&crew->each[i].queue, 0);
        crew->each[i].crew = crew;
        crew->each[i].index = i;
    }
    atomic_init(&crew->done, 0);
    atomic_init(&crew->sleepers, 0);
    atomic_init(&crew->stop, 0);
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->wake, NULL);
    long started = start_threads(crew);
    if (started == workers && (!cpus || pin(crew, cpus))) return crew;
    stop_crew(crew, started);
    return NULL;
}

/* The pool's threads in this process. Those of the parent do not exist here and leave nothing but memory; their mutex
 * and condition may be in use for ever, so they are not destroyed. */
static struct crew *crew_of(struct treadle_pool *pool) {
    if (pool->forks == forks) return pool->crew;
    free(pool->crew);
    pool->forks = forks;
    return pool->crew = start_crew(pool->workers, pool->pinned ? pool->cpus : NULL);
}

/* How many shares a run of so many blocks has where there are threads. */
static long shares_of(long workers, long blocks) {
    if (workers == 1 || blocks <= 1) return 1;
    return blocks < SHARES * workers ? blocks : SHARES * workers;
}

static void run_shares(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    long shares = shares_of(pool->workers, blocks);
    struct crew *crew = shares == 1 ? NULL : crew_of(pool);
    if (!crew) {
        kernel(args, 0, 1);
        return;
    }
    atomic_store_explicit(&crew->kernel, kernel, memory_order_relaxed);
    atomic_store_explicit(&crew->args, args, memory_order_relaxed);
    atomic_store_explicit(&crew->done, 0, memory_order_relaxed);
    keep_cpu(crew);
    publish(crew, shares);
    take_shares(crew, 0);
    for (long spin = 0; atomic_load_explicit(&crew->done, memory_order_acquire) < shares; spin++) spin_once(spin);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    if (!pool->seconds || !pool->left) {
        run_shares(pool, kernel, args, blocks);
        return;
    }
    double start = now();
    run_shares(pool, kernel, args, blocks);
    *pool->seconds++ = now() - start;
    pool->left--;
}

/* A run that is traced is one of `traced_kernel`, whose arguments are this: all else is as in one that is not, and one
 * that is not traced executes nothing for it. */
struct traced_run {
    treadle_kernel kernel;
    void *const *args;
    struct treadle_trace *trace;
    unsigned long long first; /* the event of share 0 */
};

static struct treadle_event *event_of(struct treadle_trace *trace, unsigned long long number) {
    return &trace->events[number % (unsigned long long)trace->capacity];
}

static void traced_kernel(void *const *args, long share, long shares) {
    const struct traced_run *traced = (const struct traced_run *)(const void *)args;
    double start = now();
    traced->kernel(traced->args, share, shares);
    *event_of(traced->trace, traced->first + (unsigned long long)share) = (struct treadle_event){
        start, now(), traced->trace->launches, traced->kernel, worker_index, (int)share,
    };
}

/* Each share has its own place in the ring, so that threads agree on nothing when they write there. */
static void run_traced(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    struct treadle_trace *trace = pool->trace;
    long shares = shares_of(pool->workers, blocks);
    struct traced_run traced = {kernel, args, trace, trace->count};
    trace->launches++;
    trace->count += (unsigned long long)shares + 1;
    if (shares >= trace->capacity) {
        run(pool, kernel, args, blocks);
        return;
    }
    double start = now();
    run(pool, traced_kernel, (void *const *)(const void *)&traced, blocks);
    *event_of(trace, trace->count - 1) = (struct treadle_event){
        start, now(), trace->launches, kernel, -1, (int)shares,
    };
}

void treadle_pool_run(struct treadle_pool *pool, treadle_kernel kernel, void *const *args, long blocks) {
    pool->run(pool, kernel, args, blocks);
}

struct treadle_pool *treadle_pool_create_on(long workers, const int *cpus) {
    if (workers < 1 || workers > MOST_WORKERS) return NULL;
    if (pthread_once(&once, count_forks) || !counting) return NULL;
    struct treadle_pool *pool = malloc(sizeof *pool + (size_t)workers * sizeof *pool->cpus);
    if (!pool) return NULL;
    pool->run = run;
    pool->workers = workers;
    pool->forks = forks;
    pool->seconds = NULL;
    pool->left = 0;
    pool->trace = NULL;
    pool->pinned = cpus != NULL;
    if (cpus) memcpy(pool->cpus, cpus, (size_t)workers * sizeof *cpus);
    pool->crew = start_crew(workers, cpus);
    if (pool->crew) return pool;
    free(pool);
    return NULL;
}

struct treadle_pool *treadle_pool_create(long workers) { return treadle_pool_create_on(workers, NULL); }

void treadle_pool_record(struct treadle_pool *pool, double *seconds, long most) {
    pool->seconds = seconds;
    pool->left = seconds ? most : 0;
}

void treadle_pool_trace(struct treadle_pool *pool, struct treadle_trace *trace) {
    pool->trace = trace;
    pool->run = trace ? run_traced : run;
}

long treadle_pool_workers(const struct treadle_pool *pool) { return pool->workers; }

void treadle_pool_destroy(struct treadle_pool *pool) {
    if (!pool) return;
    if (pool->crew && pool->forks == forks)
        stop_crew(pool->crew, pool->workers);
    else
        free(pool->crew);
    free(pool);
}

#endif
