#include "world.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace conformance {
namespace {

unsigned char* mapping(size_t size) {
  void* place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) {
    std::perror("mmap");
    std::exit(3);
  }
  return static_cast<unsigned char*>(place);
}

bool inside(uint64_t address, uint64_t base, uint64_t size) { return address >= base && address - base < size; }

}  // namespace

World::World() {
  for (const char* letter = kLetters; *letter != 0; ++letter) {
    objects_[*letter].resize(static_cast<size_t>(slots_of(*letter)));
  }
}

void World::clear() {
  for (MemoryState& memory : memory_) {
    memory = MemoryState{};
  }
  unwaited_frees_.clear();
  for (auto& [letter, all] : objects_) {
    for (size_t slot = 0; slot < all.size(); ++slot) {
      const bool stays = (letter == 'c' && slot < 2) || (letter == 'p' && slot == 0);
      if (!stays) {
        all[slot] = ObjectState{};
      }
    }
  }
}

std::string World::pointer_name(uint64_t address) const {
  if (address == 0) {
    return "0";
  }
  for (size_t slot = 0; slot < memory_.size(); ++slot) {
    if (memory_[slot].live && inside(address, memory_[slot].address, memory_[slot].size)) {
      return "m" + std::to_string(slot) + "+" + std::to_string(address - memory_[slot].address);
    }
  }
  const auto& reservations = objects_.at('r');
  for (size_t slot = 0; slot < reservations.size(); ++slot) {
    if (reservations[slot].live && inside(address, reservations[slot].value, static_cast<uint64_t>(kReservationBytes))) {
      return "r" + std::to_string(slot) + "+" + std::to_string(address - reservations[slot].value);
    }
  }
  return inside(address, reinterpret_cast<uint64_t>(host_pointer()), kHostBuffer) ? "hostp" : "?";
}

std::string World::handle_name(uint64_t value) const {
  if (value == 0) {
    return "0";
  }
  for (const auto& [letter, all] : objects_) {
    for (size_t slot = 0; slot < all.size(); ++slot) {
      if (all[slot].live && all[slot].value == value && letter != 'r') {
        return std::string(1, static_cast<char>(letter)) + std::to_string(slot);
      }
    }
  }
  return "?";
}

bool World::alive(const Use& use) {
  if (use.letter == 'm') {
    const MemoryState& m = memory(use.slot);
    return m.live && m.access && m.serial == use.serial;
  }
  const ObjectState& o = object(use.letter, use.slot);
  return o.live && o.serial == use.serial;
}

void World::freed_in_order(int64_t slot, uint64_t stream) {
  memory(slot).freed_in = stream;
  unwaited_frees_.insert(stream);
}

void World::waited_for_all() {
  for (const std::set<uint64_t> streams = unwaited_frees_; uint64_t stream : streams) {
    waited_for(stream);
  }
}

void World::waited_for(uint64_t stream) {
  unwaited_frees_.erase(stream);
  for (MemoryState& m : memory_) {
    m.waited = m.waited || (!m.live && m.in_order && m.freed_in == stream);
  }
}

void World::forget_context(int64_t slot, uint64_t now) {
  for (MemoryState& m : memory_) {
    if (m.live && m.context == slot && m.kind != kMemVmm && m.kind != kMemRegistered) {
      m.live = false;
      m.lost_at = m.kind == kMemPlain || m.kind == kMemPitch || m.kind == kMemAsync ? now : 0;
    }
  }
  for (auto& [letter, all] : objects_) {
    if (letter == 'c' || letter == 'p' || letter == 'h' || letter == 'r' || letter == 'b' || letter == 'k') {
      continue;
    }
    for (ObjectState& o : all) {
      o.live = o.live && o.context != slot;
    }
  }
}

void World::leave_context(int64_t slot, int primary) {
  for (MemoryState& m : memory_) {
    m.context = m.context == slot ? primary : m.context;
    m.owner.pending = false;
  }
  for (auto& [letter, all] : objects_) {
    for (ObjectState& o : all) {
      o.live = o.live && !(letter == 's' && o.context == slot);
      o.context = o.context == slot ? primary : o.context;
    }
  }
}

unsigned char* host_in() {
  static unsigned char* const place = mapping(kHostBuffer);
  return place;
}
unsigned char* host_out() {
  static unsigned char* const place = mapping(kHostBuffer);
  return place;
}
unsigned char* host_pointer() {
  static unsigned char* const place = mapping(kHostBuffer);
  return place;
}
unsigned char* region(int64_t slot) {
  static unsigned char* const place = mapping(static_cast<size_t>(kRegionBytes) * kMemorySlots);
  return place + kRegionBytes * slot;
}

void fill_pattern(unsigned char* bytes, size_t size, uint64_t seed) {
  uint64_t value = seed * 0x9e3779b97f4a7c15ull + 1;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    value = value * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(bytes + i, &value, 8);
  }
  for (; i < size; ++i) {
    bytes[i] = static_cast<unsigned char>(seed + i);
  }
}

uint64_t checksum(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t sum = 0xcbf29ce484222325ull ^ size;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    sum = (sum ^ word) * 0x9fb21c651e98df25ull;
    sum ^= sum >> 32;
  }
  for (; i < size; ++i) {
    sum = (sum ^ bytes[i]) * 0x100000001b3ull;
  }
  return sum;
}

}  // namespace conformance
