// A launch: workers that take blocks until none is left, watched by the thread that called.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "hopper.h"
#include "state.h"

namespace emu {
namespace {

// One launch at a time; the mutex also guards the pool of stacks. A fork waits for the launch under way: its child then
// has no thread to miss, no mutex that is locked for ever, and the signal handlers of its own.
pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
void hold_launches() { pthread_mutex_lock(&one_launch); }
void go_on() { pthread_mutex_unlock(&one_launch); }
[[maybe_unused]] const int at_fork = pthread_atfork(hold_launches, go_on, go_on);

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed;
Worker *pool;           // workers of earlier launches, with their stacks
uint32_t pool_size;

// Stacks of consecutive threads begin in different sets of the first cache.
constexpr size_t STACK_STRIDE = STACK_BYTES + 4096 + 320;

bool prepare(Worker &w) {
  if (w.fibers[0].stack) return true;
  void *stacks = mmap(nullptr, STACK_STRIDE * MAX_THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return false;
  for (uint32_t i = 0; i < MAX_THREADS; ++i) w.fibers[i].stack = (uint8_t *)stacks + STACK_STRIDE * i;
  return true;
}

void keep_places(Worker &w) {
  Request &request = *w.launch->request;
  pthread_mutex_lock(&mutex);
  if (request.stopped_block == ~0u || w.block < request.stopped_block) {
    request.stopped_block = w.block;
    for (uint32_t i = 0; i < w.num_threads; ++i) {
      Standing standing = w.fibers[i].standing;
      bool waits = standing == AT_BARRIER || standing == AT_WARP || standing == RUNNING || standing == READY ||
                   standing >= AT_MBARRIER;
      request.places[i] = {standing, waits ? w.fibers[i].line : 0, waits ? w.fibers[i].pc : 0};
    }
  }
  pthread_mutex_unlock(&mutex);
}

void run_clusters(Worker &w) {
  Launch &launch = *w.launch;
  const uint32_t *grid = launch.request->grid, *cluster = launch.request->cluster;
  const uint32_t columns = grid[0] / cluster[0], rows = grid[1] / cluster[1];
  while (true) {
    const uint64_t number = next_cluster(w);
    if (number >= launch.num_blocks) return;
    w.block_x = (uint32_t)(number % columns) * cluster[0] + w.rank % cluster[0];
    w.block_y = (uint32_t)(number / columns % rows) * cluster[1] + w.rank / cluster[0] % cluster[1];
    w.block_z = (uint32_t)(number / columns / rows) * cluster[2] + w.rank / cluster[0] / cluster[1];
    w.block = (w.block_z * grid[1] + w.block_y) * grid[0] + w.block_x;
    run_block(w);
    w.current = nullptr;
    w.in_runtime = 0;
    if (w.abandoned && launch.stop != FINISHED && launch.stop != NEEDS_BYTE_CELLS) keep_places(w);
  }
}

void run_blocks(Worker &w) {
  if (w.cluster) return run_clusters(w);
  Launch &launch = *w.launch;
  const uint32_t *grid = launch.request->grid;
  while (launch.stop == FINISHED) {
    uint64_t block = __atomic_fetch_add(&launch.next_block, 1, __ATOMIC_RELAXED);
    if (block >= launch.num_blocks) return;
    w.block = (uint32_t)block;
    w.block_x = (uint32_t)(block % grid[0]);
    w.block_y = (uint32_t)(block / grid[0] % grid[1]);
    w.block_z = (uint32_t)(block / grid[0] / grid[1]);
    run_block(w);
    w.current = nullptr;
    w.in_runtime = 0;
    if (w.abandoned && launch.stop != FINISHED && launch.stop != NEEDS_BYTE_CELLS) keep_places(w);
  }
}

void *work(void *argument) {
  Worker &w = *(Worker *)argument;
  worker = &w;
  static const size_t SIGNAL_STACK = 64 * 1024;
  stack_t own = {}, none = {};
  own.ss_sp = malloc(SIGNAL_STACK);
  own.ss_size = SIGNAL_STACK;
  none.ss_flags = SS_DISABLE;
  sigaltstack(&own, nullptr);
  if (open_shared(w) && open_counting(w)) {
    run_blocks(w);
  } else {
    stop_launch(OUT_OF_MEMORY);
    if (w.cluster) break_cluster(*w.cluster);
  }
  close_counting(w);
  close_hopper(w);
  close_shared(w);
  begin_order(w);
  release_reach(w.order.block_reach);
  release_reach(w.order.thread_reach);
  worker = nullptr;
  sigaltstack(&none, nullptr);
  free(own.ss_sp);
  pthread_mutex_lock(&mutex);
  w.launch->running--;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
  return nullptr;
}

timespec after(const timespec &start, double seconds) {
  timespec t = start;
  t.tv_sec += (time_t)seconds;
  t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
  if (t.tv_nsec >= 1000000000L) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000L;
  }
  return t;
}

// Waits for the workers; past the limit, and once any of them stopped the launch, throws the others out.
void watch(Launch &launch, const pthread_t *threads, uint32_t count) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  timespec deadline = after(now, launch.request->limit);
  pthread_mutex_lock(&mutex);
  while (launch.running) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    bool late = now.tv_sec > deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec >= deadline.tv_nsec);
    uint32_t finished = FINISHED;
    if (late) __atomic_compare_exchange_n((uint32_t *)&launch.stop, &finished, OUT_OF_TIME, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (launch.stop != FINISHED) {
      for (uint32_t i = 0; i < count; ++i) interrupt((unsigned long)threads[i]);
    }
    timespec until = after(now, launch.stop != FINISHED ? 0.01 : 0.05);
    pthread_cond_timedwait(&changed, &mutex, &until);
  }
  pthread_mutex_unlock(&mutex);
}

struct Range {
  uint64_t inside, low, high;
};

int find_module(dl_phdr_info *info, size_t, void *data) {
  Range &range = *(Range *)data;
  uint64_t low = UINT64_MAX, high = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) &header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    uint64_t start = info->dlpi_addr + header.p_vaddr;
    if (start < low) low = start;
    if (start + header.p_memsz > high) high = start + header.p_memsz;
  }
  if (range.inside < low || range.inside >= high) return 0;
  range.low = low;
  range.high = high;
  return 1;
}

bool grow_pool(uint32_t count) {
  if (count <= pool_size) return true;
  Worker *grown = (Worker *)calloc(count, sizeof(Worker));
  if (!grown) return false;
  if (pool) memcpy((void *)grown, (void *)pool, pool_size * sizeof(Worker));
  free(pool);
  pool = grown;
  pool_size = count;
  return true;
}

void run(Launch &launch) {
  Request &request = *launch.request;
  const uint32_t size = request.cluster[0] * request.cluster[1] * request.cluster[2];
  uint64_t wanted = (request.workers + size - 1) / size;
  if (wanted > launch.num_blocks) wanted = launch.num_blocks;
  uint32_t count = (wanted ? (uint32_t)wanted : 1) * size;
  Cluster *clusters = size > 1 ? (Cluster *)calloc(count / size, sizeof(Cluster)) : nullptr;
  if (!grow_pool(count) || (size > 1 && !clusters)) {
    launch.stop = OUT_OF_MEMORY;
    return;
  }
  pthread_t *threads = (pthread_t *)calloc(count, sizeof(pthread_t));
  uint32_t started = 0;
  launch.running = count;
  for (uint32_t i = 0; i < count; ++i) {
    pool[i].cluster = nullptr;
    pool[i].rank = 0;
  }
  for (uint32_t i = 0; i < count / size && clusters; ++i) open_cluster(clusters[i], pool + i * size, size);
  for (; threads && started < count; ++started) {
    Worker &w = pool[started];
    w.launch = &launch;
    w.num_threads = request.block[0] * request.block[1] * request.block[2];
    w.num_warps = (w.num_threads + WARP_SIZE - 1) / WARP_SIZE;
    w.current = nullptr;
    w.in_runtime = 0;
    if (!prepare(w) || pthread_create(&threads[started], nullptr, work, &w)) break;
  }
  pthread_mutex_lock(&mutex);
  launch.running -= count - started;
  if (!started || (started < count && clusters)) launch.stop = OUT_OF_MEMORY;
  pthread_mutex_unlock(&mutex);
  if (started < count && clusters) {
    for (uint32_t i = 0; i < count / size; ++i) break_cluster(clusters[i]);
  }
  watch(launch, threads, started);
  for (uint32_t i = 0; i < started; ++i) pthread_join(threads[i], nullptr);
  free(threads);
  for (uint32_t i = 0; i < count / size && clusters; ++i) close_cluster(clusters[i]);
  free(clusters);
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" void treadle_emu_free_counts(Request *request);

extern "C" void treadle_emu_launch(Request *request) {
  pthread_mutex_lock(&one_launch);
  static bool ready = false;
  if (!ready) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    ready = true;
  }
  Launch launch = {};
  launch.request = request;
  launch.num_blocks = (uint64_t)request->grid[0] * request->grid[1] * request->grid[2];
  launch.num_blocks /= request->cluster[0] * request->cluster[1] * request->cluster[2];
  Range range = {(uint64_t)(uintptr_t)request->entry, 0, 0};
  dl_iterate_phdr(find_module, &range);
  launch.module_low = request->module_base = range.low;
  launch.module_high = range.high;
  request->stopped_block = ~0u;
  request->counts = nullptr;
  request->num_counts = 0;
  for (uint32_t i = 0; i < request->num_runs; ++i) request->runs[i] = 0;
  if (open_arena(launch)) {
    for (uint32_t i = 0; i < request->num_pointers; ++i) {
      const PointerArgument &p = request->pointers[i];
      *(uint64_t *)request->arguments[p.argument] = request->buffers[p.buffer].device + p.offset;
    }
    install_signals();
    run(launch);
    restore_signals();
    if (launch.stop == FINISHED) find_unwritten(launch);
  } else {
    launch.stop = OUT_OF_MEMORY;
  }
  request->outcome = launch.stop;
  if (launch.stop == NEEDS_BYTE_CELLS) treadle_emu_free_counts(request);
  end_order(launch);
  close_arena(launch, launch.stop != NEEDS_BYTE_CELLS);
  pthread_mutex_unlock(&one_launch);
}
