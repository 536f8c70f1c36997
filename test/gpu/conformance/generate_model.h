// What generate.cc believes to exist, and how it picks among it. Used by generate.cc alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "generate.h"
#include "ops.h"
#include "structs.h"

namespace conformance::plans {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

struct Object {
  bool live = false;
  int tag = 0;      // of a node: its type; of a memory handle: 1 for retained; of a pool: 1 for one of ours
  int parent = -1;  // of a node and an executable graph: the graph; of mapped memory: the reservation
  int serial = 0;   // of the graph that it had
  int context = 0;
  int64_t size = 0;
  int attachments = 0;  // of a context
};

struct Memory {
  bool live = false, written = false, access = true;
  int kind = 0, context = 0;
  int64_t size = 0;
  int reservation = -1;
};

using Word = std::string_view;

Word take(Word& text, char separator) {
  const size_t end = text.find(separator);
  const Word word = text.substr(0, end);
  text = end == Word::npos ? Word() : text.substr(end + 1);
  return word;
}
int64_t number(Word word) { return std::strtoll(std::string(word).c_str(), nullptr, 10); }

Arg arg_of(Kind kind, std::initializer_list<int64_t> values = {}) {
  Arg arg;
  arg.kind = kind;
  for (const int64_t value : values) {
    arg.v[arg.count++] = value;
  }
  return arg;
}
Arg object_arg(Kind kind, char letter, int64_t slot) {
  Arg arg = arg_of(kind, {slot});
  arg.letter = letter;
  return arg;
}

constexpr uint32_t kDeviceKinds =
    1u << kMemPlain | 1u << kMemPitch | 1u << kMemAsync | 1u << kMemPool | 1u << kMemManaged | 1u << kMemVmm | 1u << kMemIpc;
constexpr uint32_t kAllKinds = kDeviceKinds | 1u << kMemHost | 1u << kMemRegistered;

uint32_t kinds_of(Word words, uint32_t otherwise) {
  if (words.empty()) {
    return otherwise;
  }
  uint32_t kinds = 0;
  while (!words.empty()) {
    const Word name = take(words, '|');
    for (int i = 0; i < kMemKinds; ++i) {
      if (name == kMemoryKindNames[i]) {
        kinds |= 1u << i;
      }
    }
  }
  return kinds;
}

class Model {
 protected:
  bool is_quiet() const { return static_cast<int64_t>(plan_.size()) < quiet_; }
  Model(const Settings& settings, uint64_t sequence)
      : settings_(settings), random_(settings.seed * 0x1000003 + sequence * 0x9e3779b1 + 77) {}

  void add(Kind kind, std::initializer_list<int64_t> values = {}) { call_.args.push_back(arg_of(kind, values)); }

  int64_t choice(Word words) {
    std::array<Word, 12> all;
    size_t count = 0;
    while (!words.empty() && count < all.size()) {
      all[count++] = take(words, '|');
    }
    return count > 0 ? number(all[static_cast<size_t>(random_.below(static_cast<int64_t>(count)))]) : 0;
  }

  int64_t device() { return settings_.devices > 1 ? random_.below(settings_.devices) : 0; }

  // ---- objects ----
  Object& object(char letter, int64_t slot) { return objects_[static_cast<unsigned char>(letter)][static_cast<size_t>(slot)]; }

  int pick_object(char letter, Word rest, bool going) {
    int found = -1;
    int64_t seen = 0;
    const bool of_exec = letter == 'n' && !rest.empty() && rest[0] == 'x';
    Word tags = of_exec ? (rest.size() > 2 ? rest.substr(2) : Word()) : rest;
    for (int slot = 0; slot < slots_of(letter); ++slot) {
      const Object& o = object(letter, slot);
      if (!o.live || (going && ((letter == 'p' && slot == 0) || (letter == 'c' && slot < 2)))) {
        continue;
      }
      if (of_exec && (o.parent != object('x', exec_).parent || o.serial != object('x', exec_).serial)) {
        continue;
      }
      if (letter == 'c' && going && (o.tag == 1) != (rest == "green")) {
        continue;
      }
      if (letter == 'n' && !tags.empty()) {
        Word list = tags;
        bool fits = false;
        while (!list.empty()) {
          fits |= number(take(list, '|')) == o.tag;
        }
        if (!fits) {
          continue;
        }
      }
      if ((letter == 'p' && rest == "own" && slot == 0) || (letter == 'g' && rest == "other" && slot == graph_)) {
        continue;
      }
      if (random_.below(++seen) == 0) {
        found = slot;
      }
    }
    return found;
  }

  int64_t some_size() {
    const int64_t die = random_.below(100);
    return die < 30   ? 4 * (1 + random_.below(128))
           : die < 70 ? 8 * (1 + random_.below(8192))
           : die < 92 ? 8 * (1 + random_.below(1 << 17))
           : die < 97 ? 8 * (1 + random_.below(1 << 19))
                      : 1 + random_.below(100000);
  }

  int pick_memory(uint32_t kinds, bool must_be_written, bool usable) {
    int found = -1;
    int64_t seen = 0;
    for (int slot = 0; slot < kMemorySlots; ++slot) {
      const Memory& m = memory_[static_cast<size_t>(slot)];
      if (m.live && (kinds >> m.kind & 1) != 0 && (!must_be_written || m.written) && (!usable || m.access) && random_.below(++seen) == 0) {
        found = slot;
      }
    }
    return found;
  }

  // A piece of a block: offset and length, both multiples of `unit`; sometimes all of it.
  bool choose_piece(int slot, int64_t unit, int64_t& offset, int64_t& length) {
    const int64_t units = memory_[static_cast<size_t>(slot)].size / unit;
    if (units < 1) {
      return false;
    }
    if (forced_dst_ >= 0 || random_.chance(40)) {
      offset = 0;
      length = units * unit;
      return true;
    }
    const int64_t first = random_.below(units);
    offset = first * unit;
    length = (1 + random_.below(units - first)) * unit;
    return true;
  }

  const Settings& settings_;
  Random random_;
  Plan plan_;
  Call call_;
  uint32_t groups_ = 0;
  int wrong_percent_ = 0;
  int64_t quiet_ = 0;  // so many calls without work at the beginning
  int64_t threads_ = 1;
  std::vector<std::pair<int, int64_t>> weights_;
  int64_t total_ = 0;

  std::array<Memory, kMemorySlots> memory_;
  std::array<std::array<Object, 16>, 128> objects_{};
  int current_ = 0, serial_ = 0;
  int capturing_ = -1, capture_left_ = 0;
  int freed_ = -1;

  // Of the call that is being made.
  int64_t n_ = 0, size_ = 0, width_ = 0, height_ = 0, pitch_ = 0, value_ = 0, which_ = 0, words_ = 0, region_ = 0;
  int picked_ = -1, dst_ = -1, src_ = -1, graph_ = 0, exec_ = 0, follow_ = -1;
  int64_t picked_offset_ = 0;
  int forced_dst_ = -1, forced_ptr_ = -1;
  int64_t forced_stream_ = -9;
  bool per_thread_ = false, wrong_ok_ = true;
  Arg bind_;
};

}  // namespace conformance::plans
