// A hash table from 64-bit keys to pointers, for a runtime without the C++ library.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace emu {

// Keys are never 0. Out of memory, it forgets what it is given.
class Map {
 public:
  // The value of the key; null where it is new. The reference stays valid until the next call.
  void **at(uint64_t key) {
    if (2 * (used_ + 1) > slots_) grow();
    if (!entries_) return &nowhere_;
    Entry &e = entries_[place(key)];
    if (!e.key) {
      e.key = key;
      used_++;
    }
    return &e.value;
  }

  void *find(uint64_t key) const { return used_ ? entries_[place(key)].value : nullptr; }

  void clear() {
    // A large table with few entries costs more to clear than to allocate again.
    if (slots_ > 1024 && used_ < slots_ / 16) return release();
    if (used_) memset((void *)entries_, 0, slots_ * sizeof(Entry));
    used_ = 0;
  }

  void release() {
    free(entries_);
    *this = {};
  }

 private:
  struct Entry {
    uint64_t key;
    void *value;
  };

  uint64_t place(uint64_t key) const {
    uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> 20;
    while (entries_[at & (slots_ - 1)].key && entries_[at & (slots_ - 1)].key != key) at++;
    return at & (slots_ - 1);
  }

  void grow() {
    Map larger;
    larger.slots_ = slots_ ? slots_ * 2 : 64;
    larger.entries_ = (Entry *)calloc(larger.slots_, sizeof(Entry));
    nowhere_ = nullptr;
    if (!larger.entries_) {
      clear();
      return;
    }
    for (uint64_t i = 0; i < slots_; ++i) {
      if (entries_[i].key) *larger.at(entries_[i].key) = entries_[i].value;
    }
    free(entries_);
    *this = larger;
  }

  Entry *entries_ = nullptr;
  uint64_t slots_ = 0, used_ = 0;
  void *nowhere_ = nullptr;
};

}  // namespace emu
