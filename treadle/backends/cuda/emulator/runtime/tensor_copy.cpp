// Copies of boxes, and of pixels of images, between tensors in global memory and tiles in shared memory, by tensor maps.
//
// A load arrives when nothing else can run, in any order: as late as it may. A store reads shared memory and writes global
// memory when its thread waits for that.
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

namespace emu {
namespace {

constexpr uint32_t WIDEST_ROW = 256 * 8;

constexpr uint32_t OFFSET_BITS[] = {0, 0, 0, 16, 8, 5};  // by rank

// How many pixels a map walks over along a dimension.
int64_t pixels_along(const TensorMap &map, uint32_t d) {
  return ((int64_t)map.extents[d] + map.upper[d - 1] - map.lower[d - 1] - 1) / map.steps[d - 1] + 1;
}

// The rows of a box along the innermost dimension, or pixels: where each lies in the tensor, and in the tile.
struct Box {
  const TensorCopy &copy;
  uint32_t rows, row_bytes, pitch;
  explicit Box(const TensorCopy &copy) : copy(copy), rows(1) {
    const TensorMap &map = copy.map;
    if (map.walks()) rows = map.box[1];
    else for (uint32_t d = 1; d < map.rank; ++d) rows *= map.box[d];
    row_bytes = map.box[0] * map.element_bytes;
    // A swizzle has rows of its own length.
    pitch = map.swizzle ? span_of(map.swizzle) : row_bytes;
  }
  uint32_t tile_bytes() const { return (rows - 1) * pitch + (copy.map.swizzle ? pitch : row_bytes); }
  uint32_t chunk(uint32_t row, uint32_t byte) const { return swizzled(copy.tile + row * pitch + byte, copy.map.swizzle); }

  // What lies in the tensor: its address, and the bytes of the row before it and of itself; none where all is outside.
  struct Inside {
    uint8_t *address;
    uint32_t skipped, bytes;
  };
  Inside inside(uint32_t row) const {
    const TensorMap &map = copy.map;
    uint64_t address = map.base;
    int64_t left = row;
    for (uint32_t d = 1; d < map.rank; ++d) {
      const int64_t at = place(d, left);
      if (at < 0 || at >= (int64_t)map.extents[d]) return {nullptr, 0, 0};
      address += (uint64_t)at * map.strides[d - 1];
    }
    const int64_t low = copy.at[0] < 0 ? 0 : copy.at[0], last = (int64_t)copy.at[0] + map.box[0];
    const int64_t high = last < (int64_t)map.extents[0] ? last : (int64_t)map.extents[0];
    if (high <= low) return {nullptr, 0, 0};
    return {(uint8_t *)address + low * map.element_bytes, (uint32_t)((low - copy.at[0]) * map.element_bytes),
            (uint32_t)((high - low) * map.element_bytes)};
  }

 private:
  // Where a row is along a dimension; of `left`, what the dimensions outside of it move by remains.
  int64_t place(uint32_t d, int64_t &left) const {
    const TensorMap &map = copy.map;
    int64_t at = copy.at[d];
    if (!map.walks()) {
      at += left % map.box[d];
      left /= map.box[d];
      return at;
    }
    if (d + 1 == map.rank) return at + left;
    const int64_t count = pixels_along(map, d), lower = map.lower[d - 1], step = map.steps[d - 1];
    left += (at - lower) / step;
    at = lower + left % count * step + copy.offsets[d - 1];
    left /= count;
    return at;
  }
};

// Whether a copy of pixels begins at one that its map walks over, by offsets that it takes; else it is no copy.
bool check_pixels(const TensorCopy &copy) {
  const TensorMap &map = copy.map;
  const int32_t most = (1 << OFFSET_BITS[map.rank]) - 1;
  for (uint32_t d = 1; d + 1 < map.rank; ++d) {
    const int64_t moved = (int64_t)copy.at[d] - map.lower[d - 1];
    if (moved < 0 || moved % map.steps[d - 1] || moved / map.steps[d - 1] >= pixels_along(map, d)) {
      report_numbers({TENSOR_PIXEL, copy.pc, 0, NO_BUFFER}, 0, 0, {{copy.at[d], (int64_t)(map.rank - 1 - d)}});
      return false;
    }
    if (copy.offsets[d - 1] < 0 || copy.offsets[d - 1] > most) {
      report_numbers({TENSOR_OFFSET, copy.pc, 0, NO_BUFFER}, 0, 0, {{copy.offsets[d - 1], most}});
      return false;
    }
  }
  return true;
}

// Memory of 16 bytes of a tile; null where its variable ends before.
uint8_t *memory_of(const WindowPlace &tile, uint32_t from, uint32_t address) {
  const int64_t moved = (int64_t)address - from;
  return moved + tile.offset < 0 || moved + CHUNK > tile.room ? nullptr : tile.memory + moved;
}

// Whether there is such a copy at all; misplaced ones are findings.
bool check_copy(Worker &w, const TensorCopy &copy, uint32_t rank, bool walks) {
  const TensorMap &map = copy.map;
  if (map.made != TENSOR_MAP_MADE || map.rank != rank || map.base % CHUNK) {
    report_numbers({TENSOR_MAP, copy.pc, 0, NO_BUFFER}, 0, 0, {{map.made == TENSOR_MAP_MADE ? map.rank : 0, rank}});
    return false;
  }
  if (map.walks() != walks) {
    report_numbers({TENSOR_MODE, copy.pc, 0, NO_BUFFER}, 0, 0, {{walks}});
    return false;
  }
  if (walks && !check_pixels(copy)) return false;
  const Box box(copy);
  const WindowPlace tile = place_of(w, copy.tile);
  const uint32_t alignment = map.swizzle ? 8 * span_of(map.swizzle) : 128;
  if (copy.tile % alignment) report_numbers({TENSOR_ALIGNMENT, copy.pc, 0, tile.buffer}, 1, tile.offset, {{alignment}});
  if ((int64_t)copy.at[0] * map.element_bytes % CHUNK) {
    report_numbers({TENSOR_COORDINATE, copy.pc, 0, NO_BUFFER}, 0, 0, {{copy.at[0], map.element_bytes}});
  }
  if (tile.room < (int64_t)box.tile_bytes()) {
    report({BOUNDS_OUTSIDE, copy.pc, 0, tile.buffer}, box.tile_bytes(), tile.offset, nullptr);
  }
  return copy.tile % CHUNK == 0;
}

void count_copy(Worker &w, const TensorCopy &copy, bool loads) {
  const Box box(copy);
  uint64_t sectors = 0, bytes = 0;
  for (uint32_t row = 0; row < box.rows; ++row) {
    const Box::Inside inside = box.inside(row);
    const uint64_t first = (uint64_t)inside.address / 32, end = ((uint64_t)inside.address + inside.bytes + 31) / 32;
    bytes += inside.bytes;
    if (inside.bytes) sectors += end - first;
  }
  count_bulk(w, copy.pc, loads, sectors, bytes, copy.bytes);
}

// The cells of the tile belong to the copy from here on, and whoever reads them gets what no number is.
void begin_load(Worker &target, const TensorCopy &copy, uint32_t phase) {
  Worker &w = *worker;
  const Box box(copy);
  const WindowPlace tile = place_of(target, copy.tile);
  const bool checked = w.launch->request->checks != 0;
  const Slot now = async_slot(w, w.current->index, copy.pc);
  for (uint32_t row = 0; row < box.rows; ++row) {
    const Box::Inside inside = box.inside(row);
    if (checked && inside.bytes) check_global_access(inside.address, inside.bytes, READ, copy.pc);
    for (uint32_t byte = 0; byte < box.row_bytes; byte += CHUNK) {
      const uint32_t address = box.chunk(row, byte);
      uint8_t *memory = memory_of(tile, copy.tile, address);
      if (!memory) continue;
      if (checked) {
        if (&target == &w) check_access(memory, CHUNK, BULK_ISSUED, copy.pc);
        else mark_remote(w, target, memory, CHUNK, now, copy.pc);
        target.hopper->tags[address / CHUNK] = {copy.barrier, phase, copy.map.swizzle};
      }
      memset(memory, 0xff, CHUNK);
    }
  }
}

// To the shared memory of `target`, and its barrier.
// offsets: of a copy of pixels; null for a box
void load(Worker &target, uint32_t address, const TensorMap &map, uint32_t barrier, const int32_t *at, uint32_t rank,
          const int32_t *offsets, uint64_t pc) {
  Worker &w = *worker;
  Mbarrier *b = find_barrier(target, barrier, pc);
  if (!b) return;
  Hopper &h = *target.hopper;
  TensorCopy copy = {};
  copy.map = map;
  copy.tile = address;
  copy.thread = w.current->index;
  copy.barrier = (uint32_t)(b - h.barriers);
  copy.pc = pc;
  memcpy(copy.at, at, rank * sizeof *at);
  if (offsets) memcpy(copy.offsets, offsets, (rank - 2) * sizeof *offsets);
  if (&target == &w) touch_shared(barrier, 8, ATOMIC, pc);
  if (!b->published) report_barrier(target, MBARRIER_UNPUBLISHED, barrier, pc);
  if (!check_copy(w, copy, rank, offsets != nullptr)) return;
  const Box box(copy);
  copy.bytes = box.rows * box.row_bytes;
  if (w.counting) count_copy(w, copy, true);
  begin_load(target, copy, b->phase);
  if (h.num_loads == h.loads_capacity) {
    w.in_runtime = 1;
    h.loads_capacity = h.loads_capacity ? 2 * h.loads_capacity : 16;
    h.loads = (TensorCopy *)realloc((void *)h.loads, h.loads_capacity * sizeof(TensorCopy));
    w.in_runtime = 0;
  }
  h.loads[h.num_loads++] = copy;
}

// A store's box comes from shared memory.
void read_tile(Worker &w, TensorCopy &copy) {
  const Box box(copy);
  const WindowPlace tile = place_of(w, copy.tile);
  w.in_runtime = 1;
  copy.data = (uint8_t *)calloc(box.rows, box.row_bytes);
  w.in_runtime = 0;
  for (uint32_t row = 0; row < box.rows; ++row) {
    for (uint32_t byte = 0; byte < box.row_bytes; byte += CHUNK) {
      const uint8_t *memory = memory_of(tile, copy.tile, box.chunk(row, byte));
      if (memory) memcpy(copy.data + (uint64_t)row * box.row_bytes + byte, memory, CHUNK);
    }
  }
  copy.was_read = true;
}

void write_tensor(Worker &w, TensorCopy &copy) {
  const Box box(copy);
  for (uint32_t row = 0; row < box.rows; ++row) {
    const Box::Inside inside = box.inside(row);
    if (!inside.bytes) continue;
    if (w.launch->request->checks) check_global_access(inside.address, inside.bytes, WRITE, copy.pc);
    memcpy(inside.address, copy.data + (uint64_t)row * box.row_bytes + inside.skipped, inside.bytes);
  }
  free(copy.data);
}

void store(const TensorMap &map, uint32_t address, const int32_t *at, uint32_t rank, uint64_t pc) {
  Worker &w = *worker;
  Hopper &h = hopper();
  TensorStores &stores = h.threads[w.current->index].stores;
  TensorCopy copy = {};
  copy.map = map;
  copy.tile = address;
  copy.group = stores.group;
  copy.pc = pc;
  memcpy(copy.at, at, rank * sizeof *at);
  if (!check_copy(w, copy, rank, false)) return;
  const Box box(copy);
  copy.bytes = box.rows * box.row_bytes;
  if (w.counting) count_copy(w, copy, false);
  if (w.launch->request->checks) {
    const uint32_t *clock = with_own(w);
    const Slot now = async_slot(w, w.current->index, pc);
    for (uint32_t row = 0; row < box.rows; ++row) {
      if (!box.inside(row).bytes) continue;
      for (uint32_t byte = 0; byte < box.row_bytes; byte += CHUNK) {
        check_async_read(w, box.chunk(row, byte), clock, now, map.swizzle, pc);
      }
    }
    forget_own(w);
    copy.until = tick(w.warps[w.current->index / WARP_SIZE]);
  }
  if (stores.count == stores.capacity) {
    w.in_runtime = 1;
    stores.capacity = stores.capacity ? 2 * stores.capacity : 8;
    stores.copies = (TensorCopy *)realloc((void *)stores.copies, stores.capacity * sizeof(TensorCopy));
    w.in_runtime = 0;
  }
  stores.copies[stores.count++] = copy;
}

}  // namespace

void land(Worker &w, uint32_t number) {
  Hopper &h = *w.hopper;
  if (number >= h.num_loads) return land_store(w, number - h.num_loads);
  const TensorCopy copy = h.loads[number];
  h.loads[number] = h.loads[--h.num_loads];
  const Box box(copy);
  const WindowPlace tile = place_of(w, copy.tile);
  for (uint32_t row = 0; row < box.rows; ++row) {
    uint8_t bytes[WIDEST_ROW] = {};
    const Box::Inside inside = box.inside(row);
    if (inside.bytes) memcpy(bytes + inside.skipped, inside.address, inside.bytes);
    for (uint32_t byte = 0; byte < box.row_bytes; byte += CHUNK) {
      uint8_t *memory = memory_of(tile, copy.tile, box.chunk(row, byte));
      if (!memory) continue;
      memcpy(memory, bytes + byte, CHUNK);
      if (!w.launch->request->checks) continue;
      Cell *cells = &w.shared.cells[(uint64_t)(memory - w.shared.low) / w.shared.granule];
      for (uint32_t i = 0; i < CHUNK / w.shared.granule; ++i) cells[i].write.who &= ~FLIGHT_BIT;
    }
  }
  Mbarrier &b = h.barriers[copy.barrier];
  b.bytes -= copy.bytes;
  end_phase(w, b);
}

void finish_stores(Worker &w, bool written, uint32_t before_group) {
  TensorStores &stores = w.hopper->threads[w.current->index].stores;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < stores.count; ++i) {
    TensorCopy &copy = stores.copies[i];
    if (copy.group < before_group && !copy.was_read) {
      read_tile(w, copy);
      if (w.clocks.all) {
        uint32_t &known = w.clocks.of(w.current->index)[w.clocks.reads(w.clocks.own(w.current->index))];
        known = copy.until > known ? copy.until : known;
      }
    }
    if (written && copy.group < before_group) {
      write_tensor(w, copy);
    } else {
      stores.copies[kept++] = copy;
    }
  }
  stores.count = kept;
}

}  // namespace emu

using namespace emu;

#define PC ((uint64_t)__builtin_return_address(0))

extern "C" void treadle_emu_tensor_load(uint32_t tile, const TensorMap *map, uint32_t barrier, const int32_t *at,
                                        uint32_t rank) {
  hopper();
  load(*worker, tile, *map, barrier, at, rank, nullptr, PC);
}
extern "C" void treadle_emu_tensor_load_pixels(uint32_t tile, const TensorMap *map, uint32_t barrier, const int32_t *at,
                                               uint32_t rank, const int32_t *offsets) {
  hopper();
  load(*worker, tile, *map, barrier, at, rank, offsets, PC);
}
extern "C" void treadle_emu_tensor_load_multicast(uint32_t tile, const TensorMap *map, uint32_t barrier, uint32_t blocks,
                                                  const int32_t *at, uint32_t rank) {
  hopper();
  for (uint32_t rest = blocks & 0xffff; rest; rest &= rest - 1) {
    Worker *member = member_at(*worker, (uint32_t)__builtin_ctz(rest), PC);
    if (member) load(*member, tile, *map, barrier, at, rank, nullptr, PC);
  }
}
extern "C" void treadle_emu_tensor_store(const TensorMap *map, uint32_t tile, const int32_t *at, uint32_t rank) {
  store(*map, tile, at, rank, PC);
}
extern "C" void treadle_emu_bulk_commit() { hopper().threads[worker->current->index].stores.group++; }
extern "C" void treadle_emu_bulk_wait(uint32_t pending, uint32_t written) {
  Worker &w = *worker;
  if (w.counting) log_wait(w, PC);
  const uint32_t group = hopper().threads[w.current->index].stores.group;
  if (group > pending) finish_stores(w, written, group - pending);
}
