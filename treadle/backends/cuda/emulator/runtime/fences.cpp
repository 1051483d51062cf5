// Release and acquire: what fences publish, what atomic operations hand on, and what threads learn from them.
//
// After the PTX memory model (release and acquire patterns, causality order), with two liberties that the CUDA
// programming guide's own examples take: the result of a read-modify-write needs no fence behind it, and a fence
// counts for atomics of every thread that a barrier orders behind it.
#include <string.h>

#include "concurrent.h"
#include "order.h"
#include "state.h"

namespace emu {

struct Chunk {
  Chunk *next;
  size_t used;
};

namespace {

constexpr size_t CHUNK_BYTES = 1 << 18;

uint8_t lock;

void take_lock() {
  worker->in_runtime = 1;
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
  }
}

void drop_lock() {
  __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
  worker->in_runtime = 0;
}

struct Locked {
  Locked() { take_lock(); }
  ~Locked() { drop_lock(); }
};

// Memory until the end of the launch; null, and the launch stops, where there is none.
void *allocate(size_t bytes) {
  LaunchOrder &order = worker->launch->order;
  bytes = (bytes + 15) & ~(size_t)15;
  if (!order.chunks || order.chunks->used + bytes > CHUNK_BYTES) {
    Chunk *chunk = (Chunk *)malloc(CHUNK_BYTES);
    if (!chunk) {
      stop_launch(OUT_OF_MEMORY);
      return nullptr;
    }
    chunk->next = order.chunks;
    chunk->used = (sizeof(Chunk) + 15) & ~(size_t)15;
    order.chunks = chunk;
  }
  void *made = (char *)order.chunks + order.chunks->used;
  order.chunks->used += bytes;
  return made;
}

const Known *together(const Known *left, const Known *right) {
  Known *made = (Known *)allocate(sizeof(Known));
  if (made) *made = {++worker->launch->order.last_number, 0, nullptr, left, right};
  return made;
}

// Whether a set is another one of the same location, or later there.
bool continues(const Known *later, const Known *earlier) {
  if (later == earlier) return true;
  return later && later->chain && later->chain == earlier->chain && later->number > earlier->number;
}

const Known *both(const Known *a, const Known *b) {
  if (!b || continues(a, b)) return a;
  if (!a || continues(b, a)) return b;
  if (!a->chain && continues(a->right, b)) return a;
  if (!a->chain && continues(b, a->right)) return together(a->left, b);
  return together(a, b);
}

uint64_t key_of(const void *address) {
  const Worker &w = *worker;
  if ((uint8_t *)address < w.shared.low || (uint8_t *)address >= w.shared.high) return (uint64_t)(uintptr_t)address;
  // Another block finds its shared memory at the same place.
  return 1ull << 63 | (uint64_t)(w.block + 1) << 24 | (uint64_t)((uint8_t *)address - w.shared.low);
}

// The current thread's, made ready at the first fence or volatile read of a block.
ThreadOrder *own_order() {
  Worker &w = *worker;
  if (!w.order.threads) w.order.threads = (ThreadOrder *)calloc(MAX_THREADS, sizeof(ThreadOrder));
  if (!w.order.threads) {
    stop_launch(OUT_OF_MEMORY);
    return nullptr;
  }
  w.order.used = w.order.active = true;
  return &w.order.threads[w.current->index];
}

void resolve_watched(ThreadOrder &thread) {
  for (uint32_t i = 0; i < thread.num_watched; ++i) {
    thread.seen = both(thread.seen, (const Known *)worker->launch->order.locations.find(thread.watched[i]));
  }
  thread.num_watched = 0;
}

Publication *publication(uint32_t epoch, uint32_t first, uint32_t count) {
  Publication *made = (Publication *)allocate(sizeof(Publication) + count * sizeof(uint32_t));
  if (!made) return nullptr;
  memset((void *)made, 0, sizeof(Publication) + count * sizeof(uint32_t));
  made->block = worker->block + 1;
  made->epoch = epoch;
  made->first = first;
  made->count = count;
  return made;
}

void add_lanes(uint32_t *to, const uint32_t *from) {
  for (uint32_t i = 0; i < WARP_SIZE; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

// What the current thread knows of others through barriers of a part of the block.
const uint32_t *known_of_others(const Worker &w) {
  if (!w.clocks.all) return nullptr;
  uint32_t *made = (uint32_t *)allocate(w.num_warps * WARP_SIZE * sizeof(uint32_t));
  if (!made) return nullptr;
  memset(made, 0, w.num_warps * WARP_SIZE * sizeof(uint32_t));
  memcpy(made, w.clocks.of(w.current->index) + w.clocks.first, w.num_threads * sizeof(uint32_t));
  return made;
}

// All that fences have published for the current thread to hand on; null where there was no fence.
const Release *release_of(ThreadOrder &thread) {
  Worker &w = *worker;
  if (thread.release) return thread.release;
  const Publication *published[SCOPES];
  for (uint32_t s = 0; s < SCOPES; ++s) {
    published[s] = w.order.published[s];
    const Fenced &fenced = thread.fenced[s];
    if (!fenced.any) continue;
    const uint32_t first = w.current->index / WARP_SIZE * WARP_SIZE, all = w.num_warps * WARP_SIZE;
    Publication *made = fenced.others ? publication(w.epoch, 0, all) : publication(w.epoch, first, WARP_SIZE);
    if (!made) return nullptr;
    made->known = fenced.known;
    made->earlier = published[s];
    if (fenced.others) memcpy(made->until, fenced.others, all * sizeof *fenced.others);
    add_lanes(made->until + (fenced.others ? first : 0), fenced.until);
    published[s] = made;
  }
  if (!published[BLOCK_SCOPE]) return nullptr;
  Release *made = (Release *)allocate(sizeof(Release));
  if (!made) return nullptr;
  *made = {w.block + 1, {published[BLOCK_SCOPE], published[DEVICE_SCOPE]}};
  memset(thread.given, 0, sizeof thread.given);
  return thread.release = made;
}

// What a read-modify-write sees.
void acquire(const void *address) {
  const Known *there = (const Known *)worker->launch->order.locations.find(key_of(address));
  if (!there) return;
  ThreadOrder *thread = own_order();
  if (thread) thread->known = both(thread->known, there);
}

// What an atomic operation leaves for those who see it; a read-modify-write continues what others left there.
void release(const void *address, bool continued) {
  Worker &w = *worker;
  if (!w.order.used) return;
  LaunchOrder &order = w.launch->order;
  uint64_t key = key_of(address);
  ThreadOrder &thread = w.order.threads[w.current->index];
  const Known *there = continued ? (const Known *)order.locations.find(key) : nullptr;
  const Release *own = release_of(thread);
  if (!own) {
    if (!continued && order.locations.find(key)) *order.locations.at(key) = nullptr;
    return;
  }
  if (there && thread.given[there->chain % ThreadOrder::MOST_GIVEN] == there->chain) return;
  Known *made = (Known *)allocate(sizeof(Known));
  if (!made) return;
  uint32_t number = ++order.last_number;
  *made = {number, there ? there->chain : number, own, there, nullptr};
  thread.given[made->chain % ThreadOrder::MOST_GIVEN] = made->chain;
  *order.locations.at(key) = made;
}

void add(Fenced &to, const Fenced &from) {
  if (!from.any) return;
  to.any = true;
  to.known = both(to.known, from.known);
  add_lanes(to.until, from.until);
  if (!to.others || !from.others) {
    to.others = to.others ? to.others : from.others;
    return;
  }
  const uint32_t all = worker->num_warps * WARP_SIZE;
  uint32_t *made = (uint32_t *)allocate(all * sizeof(uint32_t));
  if (!made) return;
  for (uint32_t i = 0; i < all; ++i) made[i] = from.others[i] > to.others[i] ? from.others[i] : to.others[i];
  to.others = made;
}

}  // namespace

void fence(Scope scope) {
  Worker &w = *worker;
  Locked locked;
  ThreadOrder *thread = own_order();
  if (!thread) return;
  resolve_watched(*thread);
  thread->known = both(both(thread->known, thread->seen), w.order.seen);
  thread->seen = nullptr;
  thread->release = nullptr;
  uint32_t index = w.current->index, warp = index / WARP_SIZE, lane = index % WARP_SIZE;
  uint32_t end = tick(w.warps[warp]);
  for (uint32_t s = BLOCK_SCOPE; s <= scope; ++s) {
    Fenced &fenced = thread->fenced[s];
    fenced.any = true;
    fenced.known = both(thread->known, w.order.known);
    fenced.others = known_of_others(w);
    for (uint32_t i = 0; i < WARP_SIZE; ++i) {
      uint32_t known = i == lane ? end : known_of_lane(w, warp, lane, i);
      fenced.until[i] = known > fenced.until[i] ? known : fenced.until[i];
    }
  }
}

const Known *gather_known(const Known *before) {
  Worker &w = *worker;
  if (!w.order.active) return before;
  Locked locked;
  return both(before, w.order.threads[w.current->index].known);
}

void learn_known(const Known *known) {
  if (!known) return;
  Locked locked;
  ThreadOrder *thread = own_order();
  if (thread) thread->known = both(thread->known, known);
}

// What is there is looked up at the fence: the load itself comes after this.
void watch(const void *address) {
  Locked locked;
  ThreadOrder *thread = own_order();
  if (!thread) return;
  uint64_t key = key_of(address);
  for (uint32_t i = 0; i < thread->num_watched; ++i) {
    if (thread->watched[i] == key) return;
  }
  if (thread->num_watched == ThreadOrder::MOST_WATCHED) resolve_watched(*thread);
  thread->watched[thread->num_watched++] = key;
}

void store(const void *address) {
  Locked locked;
  release(address, false);
}

ReadModifyWrite::ReadModifyWrite(const void *address) : address_(address), held_(checks(CHECK_RACES)) {
  if (!held_) return;
  take_lock();
  acquire(address_);
}

void ReadModifyWrite::wrote() {
  if (held_) release(address_, true);
}

ReadModifyWrite::~ReadModifyWrite() {
  if (held_) drop_lock();
}

void share_in_warp(Worker &w, uint32_t warp, uint32_t lanes) {
  Locked locked;
  ThreadOrder *threads = w.order.threads + warp * WARP_SIZE;
  ThreadOrder all = {};
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    ThreadOrder &each = threads[__builtin_ctz(rest)];
    resolve_watched(each);
    all.known = both(all.known, each.known);
    all.seen = both(all.seen, each.seen);
    for (uint32_t s = 0; s < SCOPES; ++s) add(all.fenced[s], each.fenced[s]);
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) threads[__builtin_ctz(rest)] = all;
}

void share_in_block(Worker &w) {
  Locked locked;
  BlockOrder &order = w.order;
  Publication *made[SCOPES] = {};
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    ThreadOrder &each = order.threads[i];
    resolve_watched(each);
    order.known = both(order.known, each.known);
    order.seen = both(order.seen, each.seen);
    for (uint32_t s = 0; s < SCOPES; ++s) {
      const Fenced &fenced = each.fenced[s];
      if (!fenced.any) continue;
      if (!made[s] && !(made[s] = publication(w.epoch, 0, MAX_THREADS))) return;
      made[s]->known = both(made[s]->known, fenced.known);
      uint32_t *until = made[s]->until + i / WARP_SIZE * WARP_SIZE;
      add_lanes(until, fenced.until);
      for (uint32_t n = 0; fenced.others && n < w.num_warps; ++n) {
        add_lanes(made[s]->until + n * WARP_SIZE, fenced.others + n * WARP_SIZE);
      }
    }
  }
  for (uint32_t s = 0; s < SCOPES; ++s) {
    if (!made[s]) continue;
    // A fence after a barrier publishes all that the block did before the barrier.
    if (order.published[s]) made[s]->known = both(made[s]->known, order.published[s]->known);
    order.published[s] = made[s];
  }
  memset((void *)order.threads, 0, w.num_threads * sizeof(ThreadOrder));
  order.active = false;
}

void end_order(Launch &launch) {
  launch.order.locations.release();
  for (Chunk *chunk = launch.order.chunks; chunk;) {
    Chunk *next = chunk->next;
    free(chunk);
    chunk = next;
  }
  launch.order = {};
}

}  // namespace emu

using namespace emu;

extern "C" void treadle_emu_fence(uint32_t scope) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (checks(CHECK_RACES)) fence((Scope)scope);
}
