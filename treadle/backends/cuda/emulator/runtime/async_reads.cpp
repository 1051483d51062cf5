// What copies and products read of shared memory: of whom it is, by which way it was written, and when it may change again.
#include "hopper.h"

namespace emu {

Slot async_slot(const Worker &w, uint32_t thread, uint64_t pc) {
  const uint32_t epoch = w.warps[thread / WARP_SIZE].epoch;
  return {w.block + 1, w.epoch, thread | ASYNC_BIT | epoch << WARP_EPOCH_SHIFT, (uint32_t)(pc - w.launch->module_low)};
}

void check_async_read(Worker &w, uint32_t address, const uint32_t *clock, const Slot &now, uint32_t swizzle, uint64_t pc) {
  const WindowPlace place = place_of(w, address);
  if (place.room < (int64_t)CHUNK) {
    report({BOUNDS_OUTSIDE, pc, 0, place.buffer}, CHUNK, place.offset, nullptr);
    return;
  }
  const Tag &tag = w.hopper->tags[address / CHUNK];
  const uint32_t granule = w.shared.granule;
  Cell *cells = &w.shared.cells[(uint64_t)(place.memory - w.shared.low) / granule];
  for (uint32_t i = 0; i < CHUNK / granule; ++i) {
    Cell &cell = cells[i];
    if (cell.write.block != now.block) cell.write = {};
    if (cell.read.block != now.block) cell.read = {};
    if (cell.other.block != now.block) cell.other = {};
    const Slot &write = cell.write;
    const int64_t at = place.offset + i * granule;
    const uint64_t other = w.launch->module_low + write.pc;
    if (!write.block) {
      report({INIT_SHARED, pc, 0, place.buffer}, granule, at, nullptr);
    } else if (write.in_flight()) {
      report({RACE_IN_FLIGHT, pc, other, place.buffer}, granule, at, &write);
    } else {
      const Readable found = readable(w, clock, cell, now);
      if (found == NOT_ORDERED) report({RACE_READ_WRITE, pc, other, place.buffer}, granule, at, &write);
      if (found == NOT_FENCED) report({ASYNC_UNFENCED, pc, other, place.buffer}, granule, at, &write);
    }
    if (write.is_async() && tag.swizzle != swizzle) {
      report_numbers({WGMMA_SWIZZLE, pc, other, place.buffer}, granule, at, {{span_of(swizzle), span_of(tag.swizzle)}});
    }
    remember_read(w, cell, now);
  }
}

}  // namespace emu
