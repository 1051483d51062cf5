// Values in global memory that were made of memory never written: local memory starts as a pattern that arithmetic keeps.
#include "state.h"

namespace emu {
namespace {

// The patterns of unwritten memory (unwritten.py's, else the compilers' own), and what operations make of them.
constexpr uint64_t INTEGERS_4[] = {0xfffbfffb, 0xfefefefe, 0xaaaaaaaa};
constexpr uint64_t INTEGERS_8[] = {0xfffbfffbfffbfffb, 0xfefefefefefefefe, 0xaaaaaaaaaaaaaaaa};
constexpr uint64_t FLOATS_2[] = {0xfffb, 0xfefe, 0xfeff};
// The second and third were 16 bits, the fourth had the precision of TF32.
constexpr uint64_t FLOATS_4[] = {0xfffbfffb, 0xfffb0000, 0xffff6000, 0xfffbe000, 0xfefefefe};
// The second was a float.
constexpr uint64_t FLOATS_8[] = {0xfffbfffbfffbfffb, 0xffff7fff60000000, 0xfefefefefefefefe};

// Calls `found` with the index of each element that equals a pattern or, where `filled`, what shared and temporary
// memory is filled with.
template <typename T, size_t N, typename Found>
void search(const Buffer &b, const uint64_t (&patterns)[N], bool filled, Found found) {
  const T *elements = (const T *)b.device;
  for (uint64_t n = 0; n < b.bytes / sizeof(T); ++n) {
    bool equal = filled && elements[n] == (T)~0ull;
    for (uint64_t pattern : patterns) equal |= elements[n] == (T)pattern;
    if (equal) found(n);
  }
}

template <typename Found> void search(const Buffer &b, bool filled, Found found) {
  if (b.floats) {
    if (b.element == 2) search<uint16_t>(b, FLOATS_2, filled, found);
    if (b.element == 4) search<uint32_t>(b, FLOATS_4, filled, found);
    if (b.element == 8) search<uint64_t>(b, FLOATS_8, filled, found);
  } else {
    if (b.element == 4) search<uint32_t>(b, INTEGERS_4, false, found);
    if (b.element == 8) search<uint64_t>(b, INTEGERS_8, false, found);
  }
}

}  // namespace

bool has_pattern(const Buffer &b) {
  bool any = false;
  search(b, false, [&](uint64_t) { any = true; });
  return any;
}

void find_unwritten(Launch &launch) {
  Request &request = *launch.request;
  // What the kernel was given, it may hand on.
  if (!(request.checks & CHECK_INIT) || launch.given_pattern) return;
  for (uint32_t i = 0; i < request.num_buffers; ++i) {
    const Buffer &b = request.buffers[i];
    if (b.read_only) continue;
    search(b, true, [&](uint64_t n) {
      uint64_t offset = n * b.element;
      const Slot &writer = launch.global.cells[i][offset / b.granule].write;
      if (!writer.block) return;
      report_value(request, (int32_t)i, b.element, (int64_t)offset, launch.module_low + writer.pc, writer);
    });
  }
}

}  // namespace emu
