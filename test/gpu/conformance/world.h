// What exists while a plan runs: the driver's objects by slot, and names for them that are the same in every process. Not thread-safe:
// calls of a plan run one after the other, whatever thread makes them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "generate.h"

namespace conformance {

// The stream that must be waited for before another stream may use a piece of memory.
struct Owner {
  bool pending = false;
  uint64_t stream = 0;
};

struct MemoryState {
  bool live = false;
  bool access = true;
  bool written = false;  // every byte of it, with bytes that are the same everywhere
  uint64_t handle = 0;   // of mapped memory
  bool aliased = false;  // mapped twice: two streams may use it at once, and copies overlap unseen
  int kind = 0;
  int pool = -1;    // slot
  int context = 0;  // slot
  uint64_t address = 0;
  uint64_t size = 0;
  uint32_t serial = 0;
  uint64_t freed_at = 0;  // the count of calls that allocate, when it was freed
  bool in_order = false;  // it was freed in stream order
  uint64_t freed_in = 0;  // in that of which stream
  bool waited = false;    // which was waited for since
  uint64_t lost_at = 0;   // and when its context ended
  uint64_t buffer_id = 0;
  Owner owner;
  int64_t waited_offset = -1, waited_value = 0;  // what a stream wrote here last
};

struct Use {
  char letter;
  int slot;
  uint32_t serial;
  bool write;
};

struct ObjectState {
  bool live = false;
  uint64_t value = 0;
  int context = 0;
  uint32_t serial = 0;
  int parent = -1;             // of a node and of an executable graph: the graph's slot
  uint32_t parent_serial = 0;  // and which one it was
  std::vector<Use> uses;       // of graphs and executable graphs
  bool loose = false;          // a graph whose nodes are no longer one behind the other
  bool poisoned = false;       // a graph that writes what is not the same everywhere
  uint64_t last_node = 0;
  bool written = false;   // of an array
  bool retained = false;  // of a memory handle
  uint64_t green = 0;     // of a context: what it is of
  int attachments = 0;    // of a context: by cuCtxAttach
  bool filled = false;    // of a memory handle: its memory holds bytes that are the same everywhere
};

class World {
 public:
  World();
  ObjectState& object(char letter, int64_t slot) { return objects_[static_cast<unsigned char>(letter)][static_cast<size_t>(slot)]; }
  MemoryState& memory(int64_t slot) { return memory_[static_cast<size_t>(slot)]; }
  uint32_t next_serial() { return ++serial_; }

  // Everything is forgotten but the primary contexts and the default pool.
  void clear();
  // "m3+16", "r0+2097152", "0", "?".
  std::string pointer_name(uint64_t address) const;
  std::string handle_name(uint64_t value) const;
  bool alive(const Use& use);
  // Of memory that was freed in stream order: it is gone once the stream was waited for. Until then the driver may give its place away, and
  // still answer for the former memory there, so that no other such memory is asked about.
  void freed_in_order(int64_t slot, uint64_t stream);
  void waited_for(uint64_t stream);
  void waited_for_all();
  bool gone_in_order(const MemoryState& memory) const { return memory.waited && unwaited_frees_.empty(); }
  // All that belongs to a context that is gone. `now`: the count of calls that allocate.
  void forget_context(int64_t slot, uint64_t now);
  // What belongs to a green context that is gone is the primary one's; but for its streams, which nobody may use. Nothing is pending.
  void leave_context(int64_t slot, int primary);

 private:
  std::array<MemoryState, kMemorySlots> memory_;
  std::set<uint64_t> unwaited_frees_;  // streams
  std::map<int, std::vector<ObjectState>> objects_;
  uint32_t serial_ = 0;
};

inline constexpr const char* kLetters = "secgxnhrpaylbkutoqwzj";

// Buffers of the program itself.
unsigned char* host_in();       // 16 MiB
unsigned char* host_out();      // 16 MiB
unsigned char* host_pointer();  // 16 MiB, unknown to the driver
unsigned char* region(int64_t slot);
inline constexpr size_t kHostBuffer = 16 << 20;

void fill_pattern(unsigned char* bytes, size_t size, uint64_t seed);
uint64_t checksum(const void* bytes, size_t size);

}  // namespace conformance
