// Counts what warps do to memory. A lane runs alone, so it logs its accesses; those that the lanes of a warp make at
// one instruction, in one execution of it, are one request.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "shadow.h"

namespace emu {

struct Worker;

enum EventKind : uint32_t { PASS, GLOBAL_READ, GLOBAL_WRITE, GLOBAL_ATOMIC, SHARED_READ, SHARED_WRITE, SHARED_ATOMIC, WAIT };

struct Event {
  uint64_t address;
  uint32_t pc;        // after the module's base
  uint32_t bytes;
  EventKind kind;
};

constexpr uint32_t LOG_EVENTS = 128;

struct LaneLog {
  uint32_t next, count;
  bool full;          // the lane waits for room
  Event events[LOG_EVENTS];
};

struct Counting {
  uint64_t shared_low, shared_high;
  LaneLog *logs;      // one a thread of the block
  uint32_t *places;   // for each byte of the module: 1 + the index of its entry in `counts`
  uint64_t module_bytes;
  Count *counts;
  uint32_t num_counts, capacity;
  uint64_t *runs;     // how often each run of instructions was executed
};

// counters.cpp
bool open_counting(Worker &w);
void close_counting(Worker &w);      // adds the worker's counts to the request's
void start_counting_block(Worker &w);
void finish_requests(Worker &w);     // of all lanes of the block
bool resume_full_lanes(Worker &w);   // false if no lane waits for room in its log
void log_access(Worker &w, const void *address, uint32_t bytes, Access access, uint64_t pc);
void log_wait(Worker &w, uint64_t pc);
void count_barrier(Worker &w, uint32_t line);
void count_operations(Worker &w, uint64_t pc, uint64_t operations);
// The rows of `number` matrices of 8 rows of 16 bytes; lanes that are not there have none.
void count_matrices(Worker &w, const uint8_t *const *rows, uint32_t number, uint64_t pc, bool written);
// A copy of a box: the sectors and bytes of the tensor that it touches, and its bytes in shared memory.
void count_bulk(Worker &w, uint64_t pc, bool loads, uint64_t sectors, uint64_t bytes, uint64_t shared_bytes);
// What a product reads of shared memory.
void count_shared_reads(Worker &w, uint64_t pc, uint64_t bytes);

// requests.cpp
struct Touch {
  uint64_t address;
  uint32_t lane, bytes;
};
void count_request(Count &count, EventKind kind, const Touch *touches, uint32_t number);
void count_shared_phase(Count &count, const Touch *touches, uint32_t number, uint32_t bytes);

}  // namespace emu
