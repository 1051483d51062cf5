// Clusters: blocks that reach each other's shared memory. Each has a core's thread for itself, as its variables in shared
// memory are that thread's; the threads take turns, each until none of its fibers can run.
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

namespace emu {
namespace {

struct Held {
  pthread_mutex_t &mutex;
  explicit Held(Cluster &cluster) : mutex(cluster.mutex) { pthread_mutex_lock(&mutex); }
  ~Held() { pthread_mutex_unlock(&mutex); }
};

bool has_ended(const Worker &w) { return w.left == w.num_threads; }

void pass_turn(Cluster &cluster, uint32_t rank) {
  Held held(cluster);
  cluster.turn = rank;
  pthread_cond_broadcast(&cluster.changed);
}

void forget_barrier(Cluster &cluster) {
  free(cluster.barrier.gathered.clock);
  free(cluster.barrier.released.clock);
  cluster.barrier = {};
}

// Passes the turn to a member that can run.
bool pass_to_ready(Worker &w) {
  Cluster &cluster = *w.cluster;
  for (uint32_t i = 0; i < cluster.size; ++i) {
    const uint32_t rank = (w.rank + i) % cluster.size;
    if (!cluster.members[rank]->ready_warps) continue;
    pass_turn(cluster, rank);
    return true;
  }
  return false;
}

// Lets one of all copies under way arrive.
bool land_any(Worker &w) {
  Cluster &cluster = *w.cluster;
  uint32_t all = 0;
  for (uint32_t i = 0; i < cluster.size; ++i) all += under_way(*cluster.members[i]);
  if (!all) return false;
  uint32_t number = random(*cluster.members[0]->hopper, all);
  for (uint32_t i = 0; i < cluster.size; ++i) {
    Worker &member = *cluster.members[i];
    if (number < under_way(member)) {
      land(member, number);
      return true;
    }
    number -= under_way(member);
  }
  return true;
}

}  // namespace

void open_cluster(Cluster &cluster, Worker *members, uint32_t size) {
  memset((void *)&cluster, 0, sizeof cluster);
  pthread_mutex_init(&cluster.mutex, nullptr);
  pthread_cond_init(&cluster.changed, nullptr);
  cluster.size = size;
  for (uint32_t i = 0; i < size; ++i) {
    cluster.members[i] = &members[i];
    members[i].cluster = &cluster;
    members[i].rank = i;
  }
}

void close_cluster(Cluster &cluster) {
  forget_barrier(cluster);
  pthread_mutex_destroy(&cluster.mutex);
  pthread_cond_destroy(&cluster.changed);
}

void break_cluster(Cluster &cluster) {
  Held held(cluster);
  cluster.broken = true;
  pthread_cond_broadcast(&cluster.changed);
}

void meet_members(Worker &w) {
  Cluster &cluster = *w.cluster;
  Held held(cluster);
  const uint32_t meeting = cluster.meeting;
  if (++cluster.met == cluster.size) {
    cluster.met = 0;
    cluster.meeting++;
    pthread_cond_broadcast(&cluster.changed);
  }
  while (cluster.meeting == meeting && !cluster.broken) pthread_cond_wait(&cluster.changed, &cluster.mutex);
}

uint64_t next_cluster(Worker &w) {
  Cluster &cluster = *w.cluster;
  meet_members(w);
  if (w.rank == 0) {
    Launch &launch = *w.launch;
    cluster.number = launch.stop != FINISHED ? ~0ull : __atomic_fetch_add(&launch.next_block, 1, __ATOMIC_RELAXED);
    cluster.turn = 0;
    cluster.over = cluster.failed = false;
    forget_barrier(cluster);
  }
  meet_members(w);
  return cluster.broken ? ~0ull : cluster.number;
}

bool take_turn(Worker &w) {
  Cluster &cluster = *w.cluster;
  Held held(cluster);
  while (cluster.turn != w.rank && !cluster.over && !cluster.broken) pthread_cond_wait(&cluster.changed, &cluster.mutex);
  if (cluster.failed || cluster.broken) w.abandoned = true;
  return !cluster.over && !cluster.broken;
}

void end_cluster(Worker &w, bool failed) {
  Cluster &cluster = *w.cluster;
  Held held(cluster);
  cluster.over = true;
  cluster.failed = failed;
  pthread_cond_broadcast(&cluster.changed);
}

bool settle_turn(Worker &w) {
  Cluster &cluster = *w.cluster;
  if (pass_to_ready(w)) return true;
  uint32_t ended = 0;
  for (uint32_t i = 0; i < cluster.size; ++i) ended += has_ended(*cluster.members[i]);
  if (ended == cluster.size) return false;
  if (land_any(w)) return true;
  // What is left are faults, which are reported as those of the block that has them.
  bool stuck = false;
  for (uint32_t i = 0; i < cluster.size; ++i) {
    worker = cluster.members[i];
    if (worker->hopper && !has_ended(*worker)) stuck = report_stuck_block(*worker) || stuck;
  }
  for (uint32_t i = 0; i < cluster.size && !stuck; ++i) {
    worker = cluster.members[i];
    if (has_ended(*worker)) continue;
    if (!resolve_collective(*worker)) resolve_barrier(*worker);
    break;
  }
  worker = &w;
  if (stuck) stop_launch(STUCK);
  return true;
}

uint32_t rank_of(const Cluster &cluster, uint32_t block) {
  for (uint32_t i = 0; i < cluster.size; ++i) {
    if (cluster.members[i]->block + 1 == block) return i;
  }
  return NO_RANK;
}

bool unordered_in_cluster(const Worker &w, uint32_t rank, const Slot &before, const Slot &now) {
  // What a block did before its last barrier is taken for ordered.
  if (before.epoch != w.cluster->members[rank]->epoch) return false;
  const uint32_t own = rank * w.num_threads + before.thread();
  return before.warp_epoch() >= w.clocks.of(now.thread())[before.is_async() ? w.clocks.reads(own) : own];
}

Worker *member_at(Worker &w, uint32_t rank, uint64_t pc) {
  const uint32_t size = w.cluster ? w.cluster->size : 1;
  if (rank >= size) {
    report_numbers({CLUSTER_RANK, pc, 0, NO_BUFFER}, 0, 0, {{rank, size}});
    return nullptr;
  }
  Worker *member = w.cluster ? w.cluster->members[rank] : &w;
  if (!has_ended(*member)) return member;
  report_numbers({CLUSTER_ENDED, pc, 0, NO_BUFFER}, 0, 0, {{rank}});
  return nullptr;
}

void check_reached(Worker &w) {
  const Hopper &h = *w.hopper;
  for (uint32_t i = 0; i < w.clocks.threads; ++i) {
    const Slot &last = h.reached[i];
    const Worker &from = *w.cluster->members[i / w.num_threads];
    if (!last.block || last.epoch != from.epoch || h.left[i] > last.warp_epoch()) continue;
    report_numbers({CLUSTER_ENDED, w.launch->module_low + last.pc, 0, NO_BUFFER}, 0, 0, {{w.rank}});
  }
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    const Mbarrier &b = h.barriers[i];
    if (b.stored_end <= h.left[w.clocks.phases(i)]) continue;
    report_numbers({CLUSTER_ENDED, b.stored_pc, 0, NO_BUFFER}, 0, 0, {{w.rank}});
  }
}

void mark_remote(Worker &w, Worker &target, uint8_t *memory, uint32_t bytes, const Slot &now, uint64_t pc) {
  const WindowPlace place = place_of_memory(target, memory);
  const uint32_t granule = target.shared.granule;
  Cell *cells = &target.shared.cells[(uint64_t)(memory - target.shared.low) / granule];
  const uint32_t *clock = w.clocks.of(w.current->index);
  const uint32_t block = target.block + 1;
  const auto unordered = [&](const Slot &before) {
    return before.block == block && unordered_in_cluster(w, target.rank, before, now);
  };
  for (uint32_t i = 0; i < bytes / granule; ++i) {
    Cell &cell = cells[i];
    const Slot *other = nullptr;
    What what = RACE_READ_WRITE;
    if (cell.write.block == block && cell.write.in_flight()) {
      other = &cell.write;
      what = RACE_IN_FLIGHT;
    } else if (cell.write.block == block && (cell.write.is_async() ? !arrived(target, clock, cell) : unordered(cell.write))) {
      other = &cell.write;
      what = RACE_WRITE_WRITE;
    } else if (unordered(cell.read) || unordered(cell.other)) {
      other = unordered(cell.read) ? &cell.read : &cell.other;
    }
    if (other) report({what, pc, w.launch->module_low + other->pc, place.buffer}, granule, place.offset + i * granule, other);
    cell.write = now;
    cell.write.block = block;
    cell.write.epoch = target.epoch;
    cell.write.who |= FLIGHT_BIT;
  }
}

}  // namespace emu

using namespace emu;

extern "C" uint32_t treadle_emu_cluster_rank() { return worker->rank; }

namespace {

NamedBarrier &cluster_barrier(Worker &w) { return w.cluster ? w.cluster->barrier : w.hopper->named[0]; }

// `releases`: those that wait see what the thread did before.
void arrive(Worker &w, bool releases, uint64_t pc) {
  Hopper &h = hopper();
  NamedBarrier &b = cluster_barrier(w);
  Asynchronous &self = h.threads[w.current->index];
  if (self.cluster_arrivals != self.cluster_waits) report_numbers({CLUSTER_ARRIVALS, pc, 0, NO_BUFFER}, 0, 0, {{1}});
  self.cluster_arrivals++;
  if (w.clocks.all && !b.gathered.clock) {
    b.gathered.clock = new_clock(w);
    b.released.clock = new_clock(w);
  }
  const uint32_t size = w.cluster ? w.cluster->size : 1;
  b.expected = size * w.num_threads;
  if (releases) publish(w, b.gathered);
  if (++b.arrived < b.expected) return;
  b.arrived = 0;
  b.generation++;
  copy(w, b.released, b.gathered);
  for (uint32_t i = 0; i < size; ++i) {
    Worker &member = w.cluster ? *w.cluster->members[i] : w;
    if (member.hopper) wake_all(member, member.hopper->at_cluster);
  }
}

void wait(Worker &w, uint64_t pc) {
  Hopper &h = hopper();
  if (w.counting) log_wait(w, pc);
  NamedBarrier &b = cluster_barrier(w);
  Asynchronous &self = h.threads[w.current->index];
  if (self.cluster_arrivals == self.cluster_waits) {
    report_numbers({CLUSTER_ARRIVALS, pc, 0, NO_BUFFER}, 0, 0, {{0}});
    return;
  }
  while (b.generation <= self.cluster_waits) wait_for(AT_CLUSTER, h.at_cluster, pc);
  self.cluster_waits++;
  learn(w, b.released);
}

}  // namespace

#define PC ((uint64_t)__builtin_return_address(0))

extern "C" void treadle_emu_cluster_arrive(int32_t releases) { arrive(*worker, releases, PC); }
extern "C" void treadle_emu_cluster_wait() { wait(*worker, PC); }
extern "C" void treadle_emu_cluster_barrier() {
  arrive(*worker, true, PC);
  wait(*worker, PC);
}
