// Shadow memory: who touched a cell of memory last, and when.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace emu {

enum Access : uint32_t { READ, WRITE, ATOMIC, VOLATILE_READ, VOLATILE_WRITE, COPY_ISSUED, COPY_DONE, BULK_ISSUED };

constexpr uint32_t ATOMIC_BIT = 1 << 10, FLIGHT_BIT = 1 << 11, VOLATILE_BIT = 1 << 12, ASYNC_BIT = 1 << 13,
                   WARP_EPOCH_SHIFT = 14;
// Where a warp's epochs end: what is done in it is taken for ordered.
constexpr uint32_t LAST_WARP_EPOCH = (1u << (32 - WARP_EPOCH_SHIFT)) - 1;


// One access. Epochs count the block's barriers, and since the last of them the warp's __syncwarps and fences.
struct Slot {
  uint32_t block;     // index + 1; 0 means no access
  uint32_t epoch;
  uint32_t who;       // thread (10 bits), atomic, in flight, volatile, asynchronous, warp epoch (18 bits)
  uint32_t pc;        // after the module's base

  uint32_t thread() const { return who & 1023; }
  bool atomic() const { return (who & ATOMIC_BIT) != 0; }
  bool in_flight() const { return (who & FLIGHT_BIT) != 0; }
  bool is_volatile() const { return (who & VOLATILE_BIT) != 0; }
  bool is_async() const { return (who & ASYNC_BIT) != 0; }
  uint32_t warp_epoch() const { return who >> WARP_EPOCH_SHIFT; }
};

struct Cell {
  Slot write;
  Slot read;          // the newest read
  Slot other;         // a read by another thread
};

struct SharedShadow {
  char *anchor;
  uint8_t *low, *high;  // all of the module's shared memory
  Cell *cells;
  uint64_t cells_bytes;
  uint32_t granule;
};

struct GlobalShadow {
  uint8_t *arena;
  uint64_t arena_bytes;
  Cell **cells;         // one array a buffer
};

struct Launch;
struct Worker;
struct Request;

bool open_arena(Launch &launch);     // copies the buffers in
bool has_pattern(const Buffer &buffer);
void find_unwritten(Launch &launch);  // values in global memory that were made from memory never written
void close_arena(Launch &launch, bool copy_back);
bool open_shared(Worker &w);
void close_shared(Worker &w);
void poison_shared(Worker &w);

// Keeps two reads of different threads, of different warps and blocks where there are such.
void remember_read(Worker &w, Cell &cell, const Slot &now);
void check_global_access(const void *address, uint32_t bytes, Access access, uint64_t pc);

// Checks one access of the current thread.
void check_access(const void *address, uint32_t bytes, Access access, uint64_t pc);

// report.cpp
struct FindingKey {
  What what;
  uint64_t pc, other_pc;
  int32_t buffer;
};
void report(const FindingKey &key, uint32_t bytes, int64_t offset, const Slot *other);
// Numbers that say how far something is from what it should be.
struct Numbers {
  int64_t at[4];
};
void report_numbers(const FindingKey &key, uint32_t bytes, int64_t offset, const Numbers &numbers);
// Ends the block: what follows a local array may be the thread's return address.
void report_index(uint64_t pc, int64_t index, const char *text);
// For when the workers are done: `writer` left a value that came from nowhere.
void report_value(Request &request, int32_t buffer, uint32_t bytes, int64_t offset, uint64_t pc, const Slot &writer);
void report_threads(const FindingKey &key, const uint32_t *threads, uint32_t line = 0, uint32_t other_line = 0);
void report_stuck(const FindingKey &key, const uint32_t *threads, int64_t offset, const Numbers &numbers);

}  // namespace emu
