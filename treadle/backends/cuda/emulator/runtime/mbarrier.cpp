// Barriers of arrivals and bytes, barriers with numbers, and the registers of a warpgroup.
#include <string.h>

#include "concurrent.h"
#include "hopper.h"

namespace emu {

void report_barrier(Worker &w, What what, uint32_t address, uint64_t pc, int64_t a, int64_t b) {
  const WindowPlace place = w.hopper ? place_of(w, address) : WindowPlace{nullptr, NO_BUFFER, 0, 0};
  report_numbers({what, pc, 0, place.buffer}, 8, place.offset, {{a, b}});
}

// Threads may use a barrier whose initialisation is ordered before that.
static void check_made(Worker &target, const Mbarrier &b, uint64_t pc) {
  Worker &w = *worker;
  const uint32_t thread = w.current->index;
  const bool known = w.cluster && w.hopper->threads[thread].cluster_waits > b.arrivals;
  if (&target == &w && known && b.published && b.made.epoch == w.epoch) {
    // What the initialising thread did up to its fence is ordered.
    uint32_t &clock = w.clocks.of(thread)[w.clocks.own(b.thread)];
    clock = clock > b.made.warp_epoch() ? clock : b.made.warp_epoch() + 1;
  }
  const Slot now = {w.block + 1, w.epoch, thread | w.warps[thread / WARP_SIZE].epoch << WARP_EPOCH_SHIFT, 0};
  if (&target == &w ? !concurrent(w, b.made, now) : known) return;
  const WindowPlace place = place_of(target, b.address);
  report({RACE_READ_WRITE, pc, w.launch->module_low + b.made.pc, place.buffer}, 8, place.offset, &b.made);
}

Mbarrier *find_barrier(Worker &w, uint32_t address, uint64_t pc) {
  Hopper &own = hopper();
  Hopper &h = w.hopper ? *w.hopper : own;
  const uint32_t index = address % 8 || address >= WINDOW_BYTES || !w.hopper ? 0 : h.barrier_at[address / 8];
  if (index) {
    Mbarrier &found = h.barriers[index - 1];
    if (w.launch->request->checks) check_made(w, found, pc);
    return &found;
  }
  report_barrier(w, MBARRIER_UNINITIALISED, address, pc);
  return nullptr;
}

void end_phase(Worker &w, Mbarrier &b) {
  if (b.left || b.bytes) return;
  b.phase++;
  b.left = b.count;
  if (b.stored) b.stored_end = b.phase;
  b.stored = false;
  if (b.gathered.clock) b.gathered.clock[w.clocks.phases((uint32_t)(&b - w.hopper->barriers))] = b.phase;
  copy(w, b.released, b.gathered);
  wake_all(w, b.waiting);
}

namespace {

// `w` is the block that has the barrier.
void arrive(Worker &w, uint32_t address, int32_t bytes, uint64_t pc) {
  Mbarrier *b = find_barrier(w, address, pc);
  if (!b) return;
  if (&w == worker) touch_shared(address, 8, ATOMIC, pc);
  Worker &self = *worker;
  if (&w != worker && w.hopper->reached) {
    w.hopper->reached[self.clocks.own(self.current->index)] = async_slot(self, self.current->index, pc);
  }
  publish(*worker, b->gathered);
  b->bytes += bytes;
  if (bytes < 0 || b->bytes > MOST_BYTES) report_barrier(w, MBARRIER_BYTES, address, pc, b->bytes);
  if (!b->left) {
    report_barrier(w, MBARRIER_ARRIVALS, address, pc, b->count);
    return;
  }
  b->left--;
  end_phase(w, *b);
}

// A phase that ended after the one that the thread waits for, which it knew nothing of, was not kept from ending.
void check_behind(Worker &w, const Mbarrier &b, uint32_t parity, uint64_t pc) {
  if (!w.clocks.all) return;
  const int64_t known = w.clocks.of(w.current->index)[w.clocks.phases((uint32_t)(&b - w.hopper->barriers))];
  const int64_t wanted = ((known - 1) & 1) == (int64_t)parity ? known - 1 : known;
  if ((int64_t)b.phase - 1 > wanted) report_barrier(w, MBARRIER_BEHIND, b.address, pc, wanted, b.phase - 1);
}

void wait(uint32_t address, uint32_t parity, bool in_cluster, uint64_t pc) {
  Worker &w = *worker;
  if (w.counting) log_wait(w, pc);
  Mbarrier *b = find_barrier(w, address, pc);
  if (!b) return;
  touch_shared(address, 8, ATOMIC, pc);
  check_behind(w, *b, parity, pc);
  while ((b->phase & 1) == parity) wait_for(AT_MBARRIER, b->waiting, pc);
  if (!in_cluster && b->stored_end && b->stored_end == b->phase) report_barrier(w, CLUSTER_SCOPE, address, pc);
  learn(w, b->released);
}

void initialise(uint32_t address, int32_t arrivals, uint64_t pc) {
  Worker &w = *worker;
  Hopper &h = hopper();
  const WindowPlace place = place_of(w, address);
  if (place.room < 8) {
    report({BOUNDS_OUTSIDE, pc, 0, place.buffer}, 8, place.offset, nullptr);
    return;
  }
  if (address % 8) {
    report({BOUNDS_MISALIGNED, pc, 0, place.buffer}, 8, place.offset, nullptr);
    return;
  }
  touch_shared(address, 8, WRITE, pc);
  if (arrivals < 1 || arrivals > (int32_t)MOST_ARRIVALS) report_barrier(w, MBARRIER_ARRIVALS, address, pc, -1, arrivals);
  uint16_t &index = h.barrier_at[address / 8];
  if (!index && h.num_barriers == MOST_BARRIERS) {
    stop_launch(OUT_OF_MEMORY);
    abandon();
  }
  const bool again = index != 0;
  if (!again) index = (uint16_t)++h.num_barriers;
  Mbarrier &b = h.barriers[index - 1];
  if (again && (b.left != b.count || b.bytes)) report_barrier(w, MBARRIER_REINITIALISED, address, pc);
  for (uint32_t waiting : b.waiting) {
    if (waiting) report_barrier(w, MBARRIER_REINITIALISED, address, pc);
  }
  b.address = address;
  b.count = b.left = arrivals < 1 ? 1 : (uint32_t)arrivals;
  b.bytes = 0;
  b.phase = 0;
  b.thread = w.current->index;
  b.published = b.stored = false;
  b.arrivals = h.threads[b.thread].cluster_arrivals;
  b.stored_end = 0;
  b.made = async_slot(w, b.thread, pc);
  b.made.who &= ~ASYNC_BIT;
  if (!b.gathered.clock) b.gathered.clock = new_clock(w);
  if (!b.released.clock) b.released.clock = new_clock(w);
}

void check_named(Worker &w, int32_t number, int32_t threads, uint64_t pc) {
  const bool taken = number >= 1 && number < (int32_t)NAMED_BARRIERS && threads >= (int32_t)WARP_SIZE &&
                     threads % (int32_t)WARP_SIZE == 0 && threads <= (int32_t)(w.num_warps * WARP_SIZE);
  if (!taken) report_numbers({NAMED_NUMBER, pc, 0, NO_BUFFER}, 0, 0, {{number, threads}});
}

// Warps come whole; counted are the lanes that came.
void check_whole_warps(Worker &w, const NamedBarrier &b, uint32_t number, uint64_t pc) {
  for (uint32_t i = 0; i < w.num_warps; ++i) {
    if (!b.there[i] || b.there[i] == w.warps[i].present) continue;
    report_numbers({NAMED_WARP, pc, 0, NO_BUFFER}, 0, 0, {{number, i}});
  }
}

void meet(uint32_t number, int32_t threads, bool waits, uint64_t pc) {
  Worker &w = *worker;
  Hopper &h = hopper();
  if (w.counting && waits) log_wait(w, pc);
  check_named(w, (int32_t)number, threads, pc);
  NamedBarrier &b = h.named[number % NAMED_BARRIERS];
  const uint32_t warp = w.current->index / WARP_SIZE, bit = 1u << (w.current->index % WARP_SIZE);
  if (w.clocks.all && !b.gathered.clock) {
    b.gathered.clock = new_clock(w);
    b.released.clock = new_clock(w);
  }
  if (b.arrived && b.expected != (uint32_t)threads) {
    report_numbers({NAMED_COUNT, pc, 0, NO_BUFFER}, 0, 0, {{number, threads, b.expected}});
  }
  if (b.there[warp] & bit) report_numbers({NAMED_TWICE, pc, 0, NO_BUFFER}, 0, 0, {{number, b.arrived, b.expected}});
  b.expected = (uint32_t)threads;
  b.there[warp] |= bit;
  publish(w, b.gathered);
  const uint32_t generation = b.generation;
  if (++b.arrived >= b.expected) {
    check_whole_warps(w, b, number, pc);
    b.arrived = 0;
    b.generation++;
    memset(b.there, 0, sizeof b.there);
    copy(w, b.released, b.gathered);
    wake_all(w, b.waiting);
  }
  while (waits && b.generation == generation) wait_for(AT_NAMED, b.waiting, pc);
  if (waits) learn(w, b.released);
}

// The launch has as many for each thread as one block on a multiprocessor can, in steps of 8.
uint32_t registers_at_launch(const Worker &w) {
  const uint32_t most = 65536 / (w.num_warps * WARP_SIZE) / 8 * 8;
  return most > 255 ? 255 : most;
}

}  // namespace

void check_registers(Worker &w) {
  const Hopper &h = *w.hopper;
  const uint32_t given = registers_at_launch(w);
  uint32_t sum = 0;
  uint64_t pc = 0;
  for (uint32_t first = 0; first < w.num_threads; first += WARPGROUP) {
    const uint32_t end = first + WARPGROUP < w.num_threads ? first + WARPGROUP : w.num_threads;
    const Asynchronous &one = h.threads[first];
    for (uint32_t i = first; i < end; ++i) {
      const uint64_t either = one.registers_pc ? one.registers_pc : h.threads[i].registers_pc;
      if (h.threads[i].registers == one.registers) continue;
      report_numbers({REGISTERS_WARPGROUP, either, 0, NO_BUFFER}, 0, 0, {{h.threads[i].registers, one.registers}});
      break;
    }
    sum += (one.registers ? one.registers : given) * (end - first);
    if (one.registers > given) pc = one.registers_pc;
  }
  if (pc && sum > given * w.num_threads) {
    report_numbers({REGISTERS_SUM, pc, 0, NO_BUFFER}, 0, 0, {{sum, given * w.num_threads}});
  }
}

}  // namespace emu

using namespace emu;

#define PC ((uint64_t)__builtin_return_address(0))

extern "C" void treadle_emu_mbarrier_init(uint32_t barrier, int32_t arrivals) { initialise(barrier, arrivals, PC); }
extern "C" void treadle_emu_mbarrier_fence() {
  Hopper &h = hopper();
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    Mbarrier &b = h.barriers[i];
    if (b.thread != worker->current->index || b.published) continue;
    b.published = true;
    b.arrivals = h.threads[b.thread].cluster_arrivals;
    if (worker->clocks.all) tick(worker->warps[b.thread / WARP_SIZE]);
  }
}
extern "C" void treadle_emu_mbarrier_arrive(uint32_t barrier, int32_t bytes) { arrive(*worker, barrier, bytes, PC); }
extern "C" void treadle_emu_mbarrier_arrive_at(uint32_t barrier, int32_t rank) {
  hopper();
  Worker *member = member_at(*worker, (uint32_t)rank, PC);
  if (member) arrive(*member, barrier, 0, PC);
}
extern "C" void treadle_emu_mbarrier_wait(uint32_t barrier, int32_t parity, int32_t in_cluster) {
  wait(barrier, parity & 1, in_cluster, PC);
}
extern "C" void treadle_emu_named_barrier(int32_t number, int32_t threads, int32_t waits) {
  meet((uint32_t)number, threads, waits, PC);
}
extern "C" void treadle_emu_fence_async() {
  hopper();
  fence_for_copies(*worker);
}

extern "C" void treadle_emu_registers(int32_t number, int32_t increase) {
  Worker &w = *worker;
  Hopper &h = hopper();
  const uint32_t self = w.current->index;
  if (number < 24 || number > 240 || number % 8) {
    report_numbers({REGISTERS_NUMBER, PC, 0, NO_BUFFER}, 0, 0, {{number}});
    return;
  }
  h.threads[self].registers = (uint32_t)number;
  h.threads[self].registers_pc = PC;
  const uint32_t given = registers_at_launch(w), first = self / WARPGROUP * WARPGROUP;
  if (first + WARPGROUP > w.num_threads) report_numbers({REGISTERS_WARPGROUP, PC, 0, NO_BUFFER}, 0, 0, {{number}});
  if (increase ? (uint32_t)number < given : (uint32_t)number > given) {
    report_numbers({REGISTERS_NUMBER, PC, 0, NO_BUFFER}, 0, 0, {{number, given, increase ? 1 : 2}});
  }
}
