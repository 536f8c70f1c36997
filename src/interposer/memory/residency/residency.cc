#include "interposer/memory/residency/residency.h"

#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

void Residency::changed() { device_.turns().memory_changed(); }

size_t Residency::resident_bytes(const Block& block) {
  if (block.kind == BlockKind::kHandle) return block.in_resident ? block.bytes : 0;
  size_t sum = 0;
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    if (block.chunks[i].state == ChunkState::kResident) sum += block.chunks[i].bytes;
  }
  return sum;
}

// ---- turns ----

void Residency::set_running(bool running) {
  Lock lock(blocks_.mutex);
  blocks_.running = running;
}

bool Residency::run_if_complete() {
  Lock lock(blocks_.mutex);
  bool complete = true;
  blocks_.each([&](const Block* block) {
    if (!complete || !takes_turns(*block)) return;
    for (uint32_t i = 0; i < block->chunk_count; ++i) complete = complete && block->chunks[i].state == ChunkState::kResident;
  });
  if (complete) blocks_.running = true;
  return complete;
}

bool Residency::pages_on_demand() {
  bool found = !device_.process().pools.managed_of(device_.ordinal()).empty();
  Lock lock(blocks_.mutex);
  blocks_.each([&](const Block* block) { found = found || block->demand; });
  return found;
}

void Residency::lower_budget(std::atomic<size_t>& budget, size_t kept) {
  Lock lock(blocks_.mutex);
  const size_t least = use_.resident() + kept;
  if (least < budget.load(std::memory_order_relaxed)) budget.store(least, std::memory_order_release);
}

bool Residency::claim(size_t bytes, bool* running) {
  Lock lock(blocks_.mutex);
  *running = blocks_.running;
  if (!*running || use_.resident() + bytes > device_.turns().signs.budget()) return false;
  use_.add_fixed(bytes);
  return true;
}

// ---- what stays ----

bool Residency::all_stays() const { return device_.backend() == protocol::Backend::kNone || all_kept(); }

bool Residency::keep_all() {
  {
    Lock lock(blocks_.mutex);
    bool absent = false;
    blocks_.each([&](const Block* block) { absent = absent || (takes_turns(*block) && resident_bytes(*block) < block->bytes); });
    if (!blocks_.running && absent) return false;
    keeps_.store(true, std::memory_order_release);
    for (Block* block : blocks_.by_address()) copies_.drop(blocks_, *block);
    for (Block* block : blocks_.handles()) copies_.drop(blocks_, *block);
  }
  changed();
  return true;
}

void Residency::make_unswappable(Block& block) {
  {
    Lock lock(blocks_.mutex);
    if (block.unswappable) return;
    block.unswappable = true;
    copies_.drop(blocks_, block);
    use_.add_unswappable(block.bytes);
  }
  changed();
}

}  // namespace nvshare::interposer
