// Products of a warpgroup: issued by its 128 threads one by one, computed when one of them waits, and given back to each
// thread when it waits itself.
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

namespace emu {
namespace {

constexpr uint32_t UNWRITTEN = 0xfffbfffb;

uint32_t group_of(const Worker &w) { return w.current->index / WARPGROUP; }
Product &product_at(Warpgroup &group, uint32_t number) { return group.products[number % MOST_PRODUCTS]; }

// Of the 64 x N sums those of a thread: `each(its number in the registers, its number in the rows)`.
template <typename Each> void for_sums(uint32_t thread, uint32_t columns, Each each) {
  const uint32_t lane = thread % WARP_SIZE, row = thread % WARPGROUP / WARP_SIZE * 16 + lane / 4;
  for (uint32_t n = 0; n < columns / 2; ++n) {
    each(n, (row + n / 2 % 2 * 8) * columns + n / 4 * 8 + lane % 4 * 2 + n % 2);
  }
}

void report_product(What what, uint64_t pc, int64_t a = 0, int64_t b = 0) {
  report_numbers({what, pc, 0, NO_BUFFER}, 4, 0, {{a, b}});
}

Sums *free_sums(Worker &w, Warpgroup &group) {
  for (uint32_t i = 0; i < group.num_sums; ++i) {
    if (!group.sums[i]->users) return group.sums[i];
  }
  w.in_runtime = 1;
  Sums *made = group.num_sums < MOST_SUMS ? (Sums *)calloc(1, sizeof(Sums)) : nullptr;
  w.in_runtime = 0;
  if (!made) {
    stop_launch(OUT_OF_MEMORY);
    abandon();
  }
  return group.sums[group.num_sums++] = made;
}

// The thread's entry for these registers; one that is no longer under way makes room for a new one.
HeldSums &held_at(Asynchronous &own, uint32_t *memory, uint32_t words, uint64_t pc) {
  HeldSums *place = nullptr;
  for (uint32_t i = 0; i < own.num_held; ++i) {
    HeldSums &held = own.held[i];
    if (held.memory == memory && held.words == words) return held;
    const bool overlap = memory < held.memory + held.words && held.memory < memory + words;
    if (overlap && held.flying) report_product(WGMMA_SUMS, pc);
    if (overlap) held.touched = true;
    if (!held.flying) place = &held;
  }
  if (own.num_held < MOST_HELD) place = &own.held[own.num_held++];
  if (!place) {
    stop_launch(OUT_OF_MEMORY);
    abandon();
  }
  *place = {memory, words, 0, false, false, nullptr, 0};
  return *place;
}

void check_product(Worker &w, uint32_t warpgroup, Product &product) {
  // The warpgroup's last thread stands for its products, which end in the order in which they were issued.
  const uint32_t reader = warpgroup * WARPGROUP + WARPGROUP - 1;
  const uint32_t *clock = least_of(w, warpgroup);
  const Slot now = async_slot(w, reader, product.pc);
  for (uint32_t operand = product.shape.in_registers() ? 1 : 0; operand < 2; ++operand) {
    const Matrix matrix(product, operand);
    const int64_t wrong = matrix.wrong();
    if (wrong) report_numbers({WGMMA_DESCRIPTOR, product.pc, 0, NO_BUFFER}, 0, 0, {{wrong, operand}});
    for (uint32_t n = 0; n < matrix.chunks(); ++n) {
      check_async_read(w, matrix.chunk(n), clock, now, matrix.swizzle, product.pc);
    }
  }
  product.until = tick(w.warps[reader / WARP_SIZE]);
}

void compute(Worker &w, uint32_t warpgroup, uint32_t end) {
  Warpgroup &group = w.hopper->groups[warpgroup];
  while (group.computed < end) multiply(w, product_at(group, group.computed++));
}

void issue(uint32_t *memory, const uint32_t *fragment, uint64_t a, uint64_t b, Shape shape, bool keep, uint64_t pc) {
  Worker &w = *worker;
  Hopper &h = hopper();
  const uint32_t thread = w.current->index, warpgroup = group_of(w);
  Asynchronous &own = h.threads[thread];
  Warpgroup &group = h.groups[warpgroup];
  if (!group.products) {
    w.in_runtime = 1;
    group.products = (Product *)calloc(MOST_PRODUCTS, sizeof(Product));
    w.in_runtime = 0;
    if (!group.products) {
      stop_launch(OUT_OF_MEMORY);
      abandon();
    }
  }
  const uint32_t number = own.issued;
  while (number - group.computed >= MOST_PRODUCTS) {
    if (group.complete == group.computed) wait_for(AT_WARPGROUP, group.waiting, pc);
    else compute(w, warpgroup, group.computed + 1);
  }
  HeldSums &held = held_at(own, memory, shape.columns() / 2, pc);
  Product &product = product_at(group, number);
  if (number == group.issued) {
    product.a = a;
    product.b = b;
    product.pc = pc;
    product.shape = shape;
    product.keep = keep;
    product.issued = 0;
    product.sums = held.flying ? held.sums : free_sums(w, group);
    group.issued++;
  }
  // Not by address: compilers give the lane of a branch before a product a copy of the code behind it.
  const bool same = product.a == a && product.b == b && product.shape.packed == shape.packed && product.keep == keep &&
                    (!held.flying || held.sums == product.sums);
  if (!same) report_product(WGMMA_DIFFERS, pc);
  // Whoever reads sums waits for their products first: these are lost.
  if (held.flying && !keep) report_numbers({WGMMA_DROPPED, pc, held.pc, NO_BUFFER}, 4, 0, {{0, 0}});
  if (!held.flying) {
    if (!own.fenced || held.touched) report_product(WGMMA_FENCE, pc);
    for_sums(thread, product.shape.columns(), [&](uint32_t n, uint32_t place) {
      if (n < held.words) product.sums->values[place] = memory[n];
    });
    for (uint32_t n = 0; n < held.words; ++n) memory[n] = UNWRITTEN;
    held.flying = true;
    held.touched = false;
    held.sums = product.sums;
    held.sums->users++;
  }
  held.last = number;
  held.pc = pc;
  if (fragment) memcpy(product.fragments[thread % WARPGROUP], fragment, sizeof product.fragments[0]);
  own.issued++;
  if (++product.issued < WARPGROUP) return;
  group.complete++;
  if (w.launch->request->checks) check_product(w, warpgroup, product);
  if (w.counting) count_product(w, product);
  wake_all(w, group.waiting);
}

}  // namespace

void report_own_memory(Worker &w, const uint8_t *address, uint32_t bytes, uint64_t pc) {
  Asynchronous &own = w.hopper->threads[w.current->index];
  for (uint32_t i = 0; i < own.num_held; ++i) {
    HeldSums &held = own.held[i];
    if (address >= (uint8_t *)(held.memory + held.words) || address + bytes <= (uint8_t *)held.memory) continue;
    if (held.flying) report({WGMMA_SUMS, pc, held.pc, NO_BUFFER}, bytes, 0, nullptr);
    held.touched = true;
  }
}

namespace {

void wait(uint32_t pending, uint64_t pc) {
  Worker &w = *worker;
  Hopper &h = hopper();
  if (w.counting) log_wait(w, pc);
  const uint32_t thread = w.current->index, warpgroup = group_of(w);
  Asynchronous &own = h.threads[thread];
  Warpgroup &group = h.groups[warpgroup];
  if (own.groups <= pending) return;
  const uint32_t end = own.group_ends[(own.groups - pending - 1) % MOST_GROUPS];
  if (!end) return;
  while (group.complete < end) wait_for(AT_WARPGROUP, group.waiting, pc);
  compute(w, warpgroup, end);
  for (uint32_t i = 0; i < own.num_held; ++i) {
    HeldSums &held = own.held[i];
    if (!held.flying || held.last >= end) continue;
    for_sums(thread, held.words * 2, [&](uint32_t n, uint32_t place) { held.memory[n] = held.sums->values[place]; });
    held.flying = false;
    held.sums->users--;
  }
  if (!w.clocks.all) return;
  uint32_t &known = w.clocks.of(thread)[w.clocks.reads(w.clocks.own(warpgroup * WARPGROUP + WARPGROUP - 1))];
  const uint32_t until = product_at(group, end - 1).until;
  known = until > known ? until : known;
  group.version++;
}

}  // namespace
}  // namespace emu

using namespace emu;

#define PC ((uint64_t)__builtin_return_address(0))

extern "C" void treadle_emu_wgmma(uint32_t *sums, const uint32_t *fragment, uint64_t a, uint64_t b, uint32_t shape,
                                  int32_t keep) {
  issue(sums, fragment, a, b, {shape}, keep != 0, PC);
}
extern "C" void treadle_emu_wgmma_fence() {
  Asynchronous &own = hopper().threads[worker->current->index];
  own.fenced = true;
  for (uint32_t i = 0; i < own.num_held; ++i) own.held[i].touched = false;
}
extern "C" void treadle_emu_wgmma_commit() {
  Asynchronous &own = hopper().threads[worker->current->index];
  own.group_ends[own.groups++ % MOST_GROUPS] = own.issued;
}
extern "C" void treadle_emu_wgmma_wait(uint32_t pending) { wait(pending, PC); }
