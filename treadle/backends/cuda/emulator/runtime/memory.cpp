// Device memory with red zones, the shadow of device and shared memory, and what shared memory starts as.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

namespace emu {
namespace {

constexpr uint64_t PAGE = 4096, SMALLEST_ZONE = 4 << 20;
constexpr int64_t BORDER = 64 * 1024 - 2048;  // what alignment leaves of it at least

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Pages of zeros that cost nothing until they are touched.
void *reserve(uint64_t bytes) {
  void *made = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? nullptr : made;
}

uint64_t zone(const Buffer &b) { return round_up(b.bytes > SMALLEST_ZONE ? b.bytes : SMALLEST_ZONE, PAGE); }

uint64_t cells_bytes(const Buffer &b) { return (b.bytes / b.granule + 1) * sizeof(Cell); }

}  // namespace

bool open_arena(Launch &launch) {
  Request &request = *launch.request;
  launch.global = {};
  if (!request.checks && !request.counters) {
    for (uint32_t i = 0; i < request.num_buffers; ++i) request.buffers[i].device = (uint64_t)request.buffers[i].host;
    return true;
  }
  uint64_t total = SMALLEST_ZONE;
  for (uint32_t i = 0; i < request.num_buffers; ++i) {
    total += zone(request.buffers[i]);
    request.buffers[i].device = total;
    total += round_up(request.buffers[i].bytes, PAGE) + zone(request.buffers[i]);
  }
  launch.global.arena_bytes = total;
  launch.global.arena = (uint8_t *)reserve(total);
  launch.global.cells = (Cell **)calloc(request.num_buffers + 1, sizeof(Cell *));
  if (!launch.global.arena || !launch.global.cells) return false;
  for (uint32_t i = 0; i < request.num_buffers; ++i) {
    Buffer &b = request.buffers[i];
    b.device += (uint64_t)launch.global.arena;
    if (b.bytes) memcpy((void *)b.device, b.host, b.bytes);
    if (request.checks & CHECK_INIT) launch.given_pattern |= has_pattern(b);
    if (!b.read_only && !(launch.global.cells[i] = (Cell *)reserve(cells_bytes(b)))) return false;
  }
  return true;
}

void close_arena(Launch &launch, bool copy_back) {
  Request &request = *launch.request;
  if (!launch.global.arena) return;
  for (uint32_t i = 0; i < request.num_buffers; ++i) {
    Buffer &b = request.buffers[i];
    if (copy_back && b.bytes && !b.read_only) memcpy(b.host, (void *)b.device, b.bytes);
    if (launch.global.cells && launch.global.cells[i]) munmap(launch.global.cells[i], cells_bytes(b));
  }
  free(launch.global.cells);
  munmap(launch.global.arena, launch.global.arena_bytes);
}

bool open_shared(Worker &w) {
  const Request &request = *w.launch->request;
  w.shared = {};
  if (!request.checks || !request.num_variables) return true;
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (uint32_t i = 0; i < request.num_variables; ++i) {
    const SharedVariable &v = request.variables[i];
    if (v.offset < low) low = v.offset;
    if (v.offset + (int64_t)v.bytes > high) high = v.offset + (int64_t)v.bytes;
  }
  // build.py links a border before and after all variables.
  w.shared.anchor = request.anchor();
  uint8_t *anchor = (uint8_t *)w.shared.anchor;
  w.shared.low = (uint8_t *)((uintptr_t)(anchor + low - BORDER) & ~(uintptr_t)15);
  w.shared.high = anchor + high + BORDER;
  w.shared.granule = request.byte_cells ? 1 : 4;
  w.shared.cells_bytes = ((uint64_t)(w.shared.high - w.shared.low) / w.shared.granule + 1) * sizeof(Cell);
  w.shared.cells = (Cell *)reserve(w.shared.cells_bytes);
  return w.shared.cells != nullptr;
}

void close_shared(Worker &w) {
  if (w.shared.cells) munmap(w.shared.cells, w.shared.cells_bytes);
  w.shared = {};
}

void poison_shared(Worker &w) {
  const Request &request = *w.launch->request;
  for (uint32_t i = 0; i < request.num_variables; ++i) {
    memset(w.shared.anchor + request.variables[i].offset, 0xff, request.variables[i].bytes);
  }
}

}  // namespace emu
