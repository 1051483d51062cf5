// What one request of a warp costs: sectors of global memory, wavefronts of shared memory.
#include "counters.h"

namespace emu {
namespace {

constexpr uint64_t SECTOR = 32, BANK = 4, BANKS = 32, WIDEST = 16;

bool is_shared(EventKind kind) { return kind == SHARED_READ || kind == SHARED_WRITE || kind == SHARED_ATOMIC; }

void sort_by_address(Touch *touches, uint32_t number) {
  for (uint32_t i = 1; i < number; ++i) {
    Touch moved = touches[i];
    uint32_t at = i;
    for (; at && touches[at - 1].address > moved.address; --at) touches[at] = touches[at - 1];
    touches[at] = moved;
  }
}

// Sectors that hold any of the bytes, and the fewest that could hold as many different bytes.
void count_global(Count &count, Touch *touches, uint32_t number, uint64_t bytes) {
  sort_by_address(touches, number);
  uint64_t end = 0, next_sector = 0, different = 0, sectors = 0;
  for (uint32_t i = 0; i < number; ++i) {
    uint64_t from = touches[i].address, to = from + bytes;
    if (to > end) different += to - (from > end ? from : end);
    uint64_t first = from / SECTOR, last = (to - 1) / SECTOR;
    if (first < next_sector) first = next_sector;
    if (last >= first) sectors += last - first + 1;
    if (last >= next_sector) next_sector = last + 1;
    if (to > end) end = to;
  }
  count.global_requests++;
  count.global_sectors += sectors;
  count.global_ideal += (different + SECTOR - 1) / SECTOR;
}

// Lanes are served together while they ask for at most 128 bytes: all, or halves, or quarters of the warp.
void count_shared(Count &count, const Touch *touches, uint32_t number, uint32_t bytes) {
  count.shared_requests++;
  const uint32_t together = bytes <= BANK ? WARP_SIZE : WARP_SIZE * (uint32_t)BANK / bytes;
  for (uint32_t first = 0, last; first < number; first = last) {
    const uint32_t phase = touches[first].lane / together;
    for (last = first + 1; last < number && touches[last].lane / together == phase;) ++last;
    count_shared_phase(count, touches + first, last - first, bytes);
  }
}

void count_bytes(Count &count, EventKind kind, uint64_t bytes) {
  if (kind == GLOBAL_READ || kind == GLOBAL_ATOMIC) count.global_read += bytes;
  if (kind == GLOBAL_WRITE || kind == GLOBAL_ATOMIC) count.global_written += bytes;
  if (kind == SHARED_READ || kind == SHARED_ATOMIC) count.shared_read += bytes;
  if (kind == SHARED_WRITE || kind == SHARED_ATOMIC) count.shared_written += bytes;
}

// The widest piece that one instruction can move of what all lanes ask for.
uint32_t piece_bytes(const Touch *touches, uint32_t number) {
  uint64_t bits = WIDEST;
  for (uint32_t i = 0; i < number; ++i) bits |= touches[i].address | touches[i].bytes;
  return (uint32_t)(bits & -bits);
}

}  // namespace

void count_shared_phase(Count &count, const Touch *touches, uint32_t number, uint32_t bytes) {
  uint64_t words[BANKS][WARP_SIZE];
  uint32_t held[BANKS] = {}, most = 0;
  for (uint32_t i = 0; i < number; ++i) {
    for (uint64_t word = touches[i].address / BANK; word <= (touches[i].address + bytes - 1) / BANK; ++word) {
      const uint32_t bank = (uint32_t)(word % BANKS);
      bool known = false;
      for (uint32_t n = 0; n < held[bank] && !known; ++n) known = words[bank][n] == word;
      if (!known) words[bank][held[bank]++] = word;
      if (held[bank] > most) most = held[bank];
    }
  }
  count.shared_phases++;
  count.shared_wavefronts += most;
}

void count_request(Count &count, EventKind kind, const Touch *touches, uint32_t number) {
  const uint32_t piece = piece_bytes(touches, number);
  uint32_t longest = 0;
  for (uint32_t i = 0; i < number; ++i) longest = touches[i].bytes > longest ? touches[i].bytes : longest;
  for (uint32_t start = 0; start < longest; start += piece) {
    Touch moved[WARP_SIZE];
    uint32_t active = 0;
    for (uint32_t i = 0; i < number; ++i) {
      if (start < touches[i].bytes) moved[active++] = {touches[i].address + start, touches[i].lane, piece};
    }
    count_bytes(count, kind, (uint64_t)active * piece);
    if (is_shared(kind)) {
      count_shared(count, moved, active, piece);
    } else {
      count_global(count, moved, active, piece);
    }
  }
}

}  // namespace emu
