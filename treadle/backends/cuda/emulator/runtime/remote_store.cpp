// Stores of a few bytes to the shared memory of a block of the cluster, which complete at a barrier of that block.
//
// As copies do, they arrive when nothing else can run, in any order. Addresses of other blocks carry their rank.
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

namespace emu {
namespace {

constexpr uint32_t RANK_SHIFT = 24, RANK_MASK = 0x7f;
constexpr uint32_t address_in(uint32_t address) { return address & ((1u << RANK_SHIFT) - 1); }
// An address without a rank is one of the block itself.
uint32_t rank_in(const Worker &w, uint32_t address) {
  return address >> RANK_SHIFT ? (address >> RANK_SHIFT) - 1 : w.rank;
}

// The bytes belong to the store from here on, and whoever reads them gets what no number is.
void begin_store(Worker &target, const RemoteStore &store, uint8_t *memory, uint32_t phase) {
  Worker &w = *worker;
  if (w.launch->request->checks) {
    if (&target == &w) check_access(memory, store.bytes, BULK_ISSUED, store.pc);
    else mark_remote(w, target, memory, store.bytes, async_slot(w, w.current->index, store.pc), store.pc);
    target.hopper->tags[store.address / CHUNK] = {store.barrier, phase, SWIZZLE_NONE};
  }
  memset(memory, 0xff, store.bytes);
}

void issue(uint32_t to, uint32_t barrier, const void *data, uint32_t bytes, uint64_t pc) {
  Worker &w = *worker;
  hopper();
  const uint32_t rank = rank_in(w, to), address = address_in(to);
  if (rank != rank_in(w, barrier)) report_numbers({STORE_BARRIER, pc, 0, NO_BUFFER}, 0, 0, {{rank, rank_in(w, barrier)}});
  Worker *target = member_at(w, rank, pc);
  Mbarrier *b = target ? find_barrier(*target, address_in(barrier), pc) : nullptr;
  if (!b) return;
  if (!b->published) report_barrier(*target, MBARRIER_UNPUBLISHED, address_in(barrier), pc);
  const WindowPlace place = place_of(*target, address);
  if (place.room < (int64_t)bytes) {
    report({BOUNDS_OUTSIDE, pc, 0, place.buffer}, bytes, place.offset, nullptr);
    return;
  }
  if (address % bytes) {
    report({BOUNDS_MISALIGNED, pc, 0, place.buffer}, bytes, place.offset, nullptr);
    return;
  }
  if (w.counting) log_access(w, place_of(w, address).memory, bytes, WRITE, pc);
  Hopper &h = *target->hopper;
  RemoteStore store = {address, bytes, (uint32_t)(b - h.barriers), w.current->index, pc, {}};
  memcpy(store.data, data, bytes);
  if (target != &w) {
    b->stored = true;
    b->stored_pc = pc;
  }
  begin_store(*target, store, place.memory, b->phase);
  if (h.num_stores == h.stores_capacity) {
    w.in_runtime = 1;
    h.stores_capacity = h.stores_capacity ? 2 * h.stores_capacity : 256;
    h.stores = (RemoteStore *)realloc((void *)h.stores, h.stores_capacity * sizeof(RemoteStore));
    w.in_runtime = 0;
  }
  h.stores[h.num_stores++] = store;
}

}  // namespace

void land_store(Worker &w, uint32_t number) {
  Hopper &h = *w.hopper;
  const RemoteStore store = h.stores[number];
  h.stores[number] = h.stores[--h.num_stores];
  uint8_t *memory = place_of(w, store.address).memory;
  memcpy(memory, store.data, store.bytes);
  if (w.launch->request->checks) {
    Cell *cells = &w.shared.cells[(uint64_t)(memory - w.shared.low) / w.shared.granule];
    for (uint32_t i = 0; i < store.bytes / w.shared.granule; ++i) cells[i].write.who &= ~FLIGHT_BIT;
  }
  Mbarrier &b = h.barriers[store.barrier];
  b.bytes -= store.bytes;
  end_phase(w, b);
}

}  // namespace emu

using namespace emu;

extern "C" uint32_t treadle_emu_remote_address(uint32_t address, int32_t rank) {
  return address | (((uint32_t)rank & RANK_MASK) + 1) << RANK_SHIFT;
}
extern "C" void treadle_emu_store_async(uint32_t to, uint32_t barrier, const void *data, uint32_t bytes) {
  issue(to, barrier, data, bytes, (uint64_t)__builtin_return_address(0));
}
