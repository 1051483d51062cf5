// Checks every access: in which buffer it falls, and whether other threads' accesses are ordered with it.
#include "shadow.h"

#include <string.h>

#include "concurrent.h"
#include "hopper.h"
#include "state.h"

namespace emu {
namespace {

// A shadow cell of global memory is shared by all workers.
uint8_t locks[4096];

struct Guard {
  uint8_t *lock;
  explicit Guard(const void *cell) : lock(&locks[((uintptr_t)cell / sizeof(Cell)) % sizeof locks]) {
    worker->in_runtime = 1;
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)) {
    }
  }
  ~Guard() {
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
    worker->in_runtime = 0;
  }
};

bool reads(Access access) { return access == READ || access == VOLATILE_READ; }

Slot slot_of(const Worker &w, Access access, uint64_t pc) {
  const Fiber &f = *w.current;
  uint32_t who = f.index | (w.warps[f.index / WARP_SIZE].epoch << WARP_EPOCH_SHIFT);
  if (access == ATOMIC) who |= ATOMIC_BIT;
  if (access == VOLATILE_READ || access == VOLATILE_WRITE) who |= VOLATILE_BIT;
  if (access == COPY_ISSUED) who |= FLIGHT_BIT;
  if (access == BULK_ISSUED) who |= FLIGHT_BIT | ASYNC_BIT;
  return {w.block + 1, w.epoch, who, (uint32_t)(pc - w.launch->module_low)};
}

}  // namespace

void remember_read(Worker &w, Cell &cell, const Slot &now) {
  if (cell.read.block == now.block && cell.read.thread() == now.thread() && cell.read.is_async() == now.is_async()) {
    cell.read = now;
    return;
  }
  bool keep = concurrent(w, cell.other, now);
  if (keep && cell.other.block == now.block) {
    bool farther_block = cell.read.block != now.block && cell.read.block;
    bool farther_warp = cell.other.thread() / WARP_SIZE == now.thread() / WARP_SIZE &&
                        cell.read.thread() / WARP_SIZE != now.thread() / WARP_SIZE && concurrent(w, cell.read, now);
    keep = !farther_block && !farther_warp;
  }
  if (!keep) cell.other = cell.read;
  cell.read = now;
}

namespace {

// Accesses that may meet: atomic and volatile ones, but not volatile ones of one warp, whose lanes used to run in step.
bool tolerated(const Slot &a, const Slot &b) {
  if (!a.is_volatile() || !b.is_volatile()) return (a.atomic() || a.is_volatile()) && (b.atomic() || b.is_volatile());
  return a.block != b.block || a.thread() / WARP_SIZE != b.thread() / WARP_SIZE;
}

bool races(Worker &w, const Slot &before, const Slot &now) {
  return may_be_concurrent(before, now) && !tolerated(before, now) && unordered(w, before, now);
}

struct Conflict {
  What what;
  Slot other;
  bool found;
};

Conflict touch(Worker &w, Cell &cell, const Slot &now, Access access) {
  Conflict conflict = {RACE_READ_WRITE, {}, false};
  if (cell.write.block && cell.write.in_flight() && access != COPY_DONE) {
    conflict = {RACE_IN_FLIGHT, cell.write, true};
  } else if (access != COPY_DONE && (cell.write.is_async() ? !arrived(w, w.clocks.of(now.thread()), cell) : races(w, cell.write, now))) {
    conflict = {reads(access) ? RACE_READ_WRITE : RACE_WRITE_WRITE, cell.write, true};
  }
  if (reads(access)) {
    remember_read(w, cell, now);
    return conflict;
  }
  if (!conflict.found && races(w, cell.read, now)) conflict = {RACE_READ_WRITE, cell.read, true};
  if (!conflict.found && races(w, cell.other, now)) conflict = {RACE_READ_WRITE, cell.other, true};
  cell.write = now;
  return conflict;
}

// The index of the shared variable at `offset` from the anchor, else the nearest one before it.
int32_t shared_variable(const Request &request, int64_t offset, bool &inside) {
  int32_t nearest = 0;
  inside = false;
  for (uint32_t i = 0; i < request.num_variables; ++i) {
    const SharedVariable &v = request.variables[i];
    if (offset < v.offset) continue;
    if (offset < v.offset + (int64_t)v.bytes) {
      inside = true;
      return (int32_t)i;
    }
    if (v.offset > request.variables[nearest].offset || request.variables[nearest].offset > offset) nearest = (int32_t)i;
  }
  return nearest;
}

void check_shared(Worker &w, uint8_t *address, uint32_t bytes, Access access, uint64_t pc) {
  const Request &request = *w.launch->request;
  int64_t offset = (char *)address - w.shared.anchor;
  bool inside;
  int32_t variable = shared_variable(request, offset, inside);
  const SharedVariable &v = request.variables[variable];
  int32_t buffer = -1 - variable;
  int64_t place = offset - v.offset;
  if (!inside || place + bytes > (int64_t)v.bytes) {
    report({BOUNDS_OUTSIDE, pc, 0, buffer}, bytes, place, nullptr);
    return;
  }
  if (!request.byte_cells && ((bytes & 3) || ((uintptr_t)address & 3))) stop_launch(NEEDS_BYTE_CELLS);
  const Slot now = slot_of(w, access, pc);
  uint64_t first = (uint64_t)(address - w.shared.low) / w.shared.granule;
  uint64_t last = (uint64_t)(address + bytes - 1 - w.shared.low) / w.shared.granule;
  for (uint64_t i = first; i <= last; ++i) {
    Cell &cell = w.shared.cells[i];
    if (cell.write.block != now.block) cell.write = {};
    if (cell.read.block != now.block) cell.read = {};
    if (cell.other.block != now.block) cell.other = {};
    int64_t at = place + (int64_t)((i - first) * w.shared.granule);
    if (reads(access) && !cell.write.block) report({INIT_SHARED, pc, 0, buffer}, bytes, at, nullptr);
    Conflict conflict = touch(w, cell, now, access);
    if (!conflict.found) continue;
    report({conflict.what, pc, w.launch->module_low + conflict.other.pc, buffer}, bytes, at, &conflict.other);
  }
}

void check_global(Worker &w, uint8_t *address, uint32_t bytes, Access access, uint64_t pc) {
  const Request &request = *w.launch->request;
  int32_t buffer = 0;
  for (uint32_t i = 0; i < request.num_buffers; ++i) {
    const Buffer &each = request.buffers[i];
    // Half of the red zone between two buffers belongs to each.
    if ((uint64_t)address + each.bytes / 2 + (1 << 20) >= each.device) buffer = (int32_t)i;
  }
  const Buffer &b = request.buffers[buffer];
  int64_t place = (int64_t)((uint64_t)address - b.device);
  if (place < 0 || place + bytes > (int64_t)b.bytes) {
    report({BOUNDS_OUTSIDE, pc, 0, buffer}, bytes, place, nullptr);
    return;
  }
  if (b.read_only) {
    if (!reads(access)) report({BOUNDS_READ_ONLY, pc, 0, buffer}, bytes, place, nullptr);
    return;
  }
  const Slot now = slot_of(w, access, pc);
  for (uint64_t i = (uint64_t)place / b.granule; i <= ((uint64_t)place + bytes - 1) / b.granule; ++i) {
    Cell &cell = w.launch->global.cells[buffer][i];
    Conflict conflict;
    {
      Guard guard(&cell);
      conflict = touch(w, cell, now, access);
    }
    if (!conflict.found) continue;
    report({conflict.what, pc, w.launch->module_low + conflict.other.pc, buffer}, bytes, (int64_t)(i * b.granule),
           &conflict.other);
  }
}

}  // namespace

void check_global_access(const void *address, uint32_t bytes, Access access, uint64_t pc) {
  Launch &launch = *worker->launch;
  if ((uint8_t *)address >= launch.global.arena && (uint8_t *)address < launch.global.arena + launch.global.arena_bytes) {
    check_global(*worker, (uint8_t *)address, bytes, access, pc);
  } else {
    check_access(address, bytes, access, pc);
  }
}

void check_access(const void *pointer, uint32_t bytes, Access access, uint64_t pc) {
  if (__builtin_expect(!worker, 0)) return;  // the text's own initialisation
  Worker &w = *worker;
  uint8_t *address = (uint8_t *)pointer;
  Launch &launch = *w.launch;
  if (address >= w.shared.low && address < w.shared.high) {
    if ((bytes & (bytes - 1)) == 0 && ((uintptr_t)address & (bytes - 1))) {
      report({BOUNDS_MISALIGNED, pc, 0, NO_BUFFER}, bytes, (int64_t)(uintptr_t)address, nullptr);
    }
    check_shared(w, address, bytes, access, pc);
  } else if (address >= launch.global.arena && address < launch.global.arena + launch.global.arena_bytes) {
    if ((bytes & (bytes - 1)) == 0 && ((uintptr_t)address & (bytes - 1))) {
      report({BOUNDS_MISALIGNED, pc, 0, NO_BUFFER}, bytes, (int64_t)(uintptr_t)address, nullptr);
    }
    check_global(w, address, bytes, access, pc);
  } else if (address >= w.fibers[0].stack && address < w.fibers[MAX_THREADS - 1].stack + STACK_BYTES) {
    // A thread's own memory.
    if (w.hopper) report_own_memory(w, address, bytes, pc);
  } else if ((uint64_t)address < launch.module_low || (uint64_t)address >= launch.module_high) {
    report({BOUNDS_WILD, pc, 0, NO_BUFFER}, bytes, (int64_t)(uintptr_t)address, nullptr);
    w.current->pc = pc;
    stop_launch(CRASHED);
    abandon();
  }
  if (__builtin_expect(launch.stop != FINISHED, 0)) {
    w.current->pc = pc;
    abandon();
  }
}

}  // namespace emu
