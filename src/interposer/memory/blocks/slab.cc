#include "interposer/memory/blocks/slab.h"

#include <algorithm>
#include <iterator>

#include "interposer/memory/blocks/block.h"

namespace nvshare::interposer {
namespace {

// 512, 1024, then 1.5 and 2 times each power of two, up to 1 MiB: above 1 KiB at most a third is lost to rounding. Of a piece at most a
// quarter is lost at its end, with slots of 768 KiB.
constexpr uint32_t kCount = 22;
struct ClassTable {
  uint32_t bytes[kCount];
};
constexpr ClassTable make_classes() {
  ClassTable table{};
  uint32_t count = 0;
  table.bytes[count++] = 512;
  table.bytes[count++] = 1024;
  for (uint32_t power = 1024; power < (1u << 20); power *= 2) {
    table.bytes[count++] = power + power / 2;
    table.bytes[count++] = power * 2;
  }
  return table;
}
constexpr ClassTable kClasses = make_classes();
static_assert(kClasses.bytes[kCount - 1] == SlabSet::kSlotBytesMax);

constexpr size_t slots_in_piece(uint32_t class_index) { return SlabSet::kPieceBytes / kClasses.bytes[class_index]; }

cuda::CUdeviceptr address_of(const Slab& slab, size_t slot) {
  const size_t in_piece = slots_in_piece(slab.class_index);
  return slab.block->base + slot / in_piece * SlabSet::kPieceBytes + slot % in_piece * kClasses.bytes[slab.class_index];
}

// The slot in which `address` lies, which is in the slab's block; slab.slots: it lies behind the last slot of its piece.
size_t slot_at(const Slab& slab, cuda::CUdeviceptr address) {
  const size_t offset = address - slab.block->base;
  const size_t in_piece = slots_in_piece(slab.class_index);
  const size_t slot = offset % SlabSet::kPieceBytes / kClasses.bytes[slab.class_index];
  return slot < in_piece ? offset / SlabSet::kPieceBytes * in_piece + slot : slab.slots;
}

bool is_occupied(const Slab& slab, size_t slot) { return (slab.occupied[slot / 64] >> (slot % 64) & 1) != 0; }

}  // namespace

uint32_t SlabSet::class_of(size_t bytes) {
  uint32_t low = 0;
  uint32_t high = kCount - 1;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (kClasses.bytes[middle] >= bytes) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

size_t SlabSet::slot_bytes(size_t bytes) { return kClasses.bytes[class_of(bytes)]; }

size_t SlabSet::next_slab_bytes(size_t bytes, size_t largest, SlabUse use) const {
  const uint32_t made = classes_[static_cast<uint32_t>(use)][class_of(bytes)].made;
  size_t slab = kPieceBytes;
  for (uint32_t i = 0; i < made && slab < kChunkBytesMax && slab * 2 <= largest; ++i) slab *= 2;
  return slab;
}

void SlabSet::add_slab(Block* block, size_t bytes, SlabUse use) {
  uint32_t index = class_of(bytes);
  Slab* slab = new Slab;
  slab->block = block;
  slab->class_index = index;
  slab->use = use;
  slab->slots = static_cast<uint32_t>(block->bytes / kPieceBytes * slots_in_piece(index));
  slab->occupied.resize((slab->slots + 63) / 64);
  slab->requested.resize(slab->slots);
  slab->notes.resize(slab->slots);
  block->slab = slab;
  Class& of = class_at(index, use);
  of.with_room.push_back(slab);
  ++of.made;
}

cuda::CUdeviceptr SlabSet::take(size_t bytes, cuda::CUcontext context, SlabUse use) {
  return take_of(class_at(class_of(bytes), use), bytes, context);
}

cuda::CUdeviceptr SlabSet::take_larger(size_t bytes, cuda::CUcontext context, SlabUse use) {
  for (uint32_t index = class_of(bytes) + 1; index < kCount; ++index) {
    if (const cuda::CUdeviceptr address = take_of(class_at(index, use), bytes, context)) return address;
  }
  return 0;
}

cuda::CUdeviceptr SlabSet::take_of(Class& of, size_t bytes, cuda::CUcontext context) {
  std::vector<Slab*>& with_room = of.with_room;
  for (size_t i = with_room.size(); i-- > 0;) {
    Slab* slab = with_room[i];
    if (slab->block->context != context) continue;
    uint32_t word = slab->first_free_word;
    while (slab->occupied[word] == ~uint64_t{0}) ++word;
    slab->first_free_word = word;
    uint32_t slot = word * 64 + static_cast<uint32_t>(__builtin_ctzll(~slab->occupied[word]));
    if (slot >= slab->slots) continue;
    slab->occupied[word] |= uint64_t{1} << (slot % 64);
    slab->requested[slot] = static_cast<uint32_t>(bytes);
    slab->notes[slot] = new_notes();
    if (++slab->used == slab->slots) with_room.erase(with_room.begin() + static_cast<ptrdiff_t>(i));
    return address_of(*slab, slot);
  }
  return 0;
}

bool SlabSet::slot_of(const Slab* slab, cuda::CUdeviceptr address, cuda::CUdeviceptr* base, size_t* requested) {
  const size_t slot = slot_at(*slab, address);
  if (slot >= slab->slots || !is_occupied(*slab, slot)) return false;
  *base = address_of(*slab, slot);
  *requested = slab->requested[slot];
  return address - *base < *requested;
}

void SlabSet::set_requested(Slab* slab, cuda::CUdeviceptr address, size_t bytes) {
  slab->requested[slot_at(*slab, address)] = static_cast<uint32_t>(bytes);
}

AllocationNotes& SlabSet::notes_of(Slab* slab, cuda::CUdeviceptr address) { return slab->notes[slot_at(*slab, address)]; }

bool SlabSet::outlives_context(const Slab* slab) {
  for (uint32_t slot = 0; slot < slab->slots; ++slot) {
    if (is_occupied(*slab, slot) && slab->notes[slot].outlives_context()) return true;
  }
  return false;
}

std::vector<cuda::CUdeviceptr> SlabSet::ends_with_context(const Slab* slab) {
  std::vector<cuda::CUdeviceptr> ending;
  for (uint32_t slot = 0; slot < slab->slots; ++slot) {
    if (!is_occupied(*slab, slot) || slab->notes[slot].of_pool || slab->notes[slot].freed) continue;
    ending.push_back(address_of(*slab, slot));
  }
  return ending;
}

std::vector<cuda::CUdeviceptr> SlabSet::of_pools(const Slab* slab) {
  std::vector<cuda::CUdeviceptr> found;
  for (uint32_t slot = 0; slot < slab->slots; ++slot) {
    if (is_occupied(*slab, slot) && slab->notes[slot].of_pool) found.push_back(address_of(*slab, slot));
  }
  return found;
}

bool SlabSet::give_back(Slab* slab, cuda::CUdeviceptr address, size_t* requested, bool* empty) {
  cuda::CUdeviceptr base = 0;
  if (!slot_of(slab, address, &base, requested) || base != address) return false;
  const size_t slot = slot_at(*slab, address);
  slab->occupied[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  slab->first_free_word = std::min(slab->first_free_word, static_cast<uint32_t>(slot / 64));
  std::vector<Slab*>& with_room = class_at(slab->class_index, slab->use).with_room;
  if (slab->used-- == slab->slots) with_room.push_back(slab);
  *empty = false;
  // The last slab of a class stays, until the memory is wanted (remove_empty): a loop of one small allocation and its free must not make
  // and drop a slab each time. One whose context has ended serves nobody any more, and one that was handed to other processes would keep
  // its memory on the GPU.
  const bool leaves = slab->block->context == nullptr || slab->block->export_id != 0;
  if (slab->used == 0 && (with_room.size() > 1 || leaves)) {
    remove(slab);
    *empty = true;
  }
  return true;
}

std::vector<Block*> SlabSet::remove_empty() {
  std::vector<Slab*> empty;
  for (const auto& of_use : classes_) {
    for (const Class& of : of_use) {
      std::copy_if(of.with_room.begin(), of.with_room.end(), std::back_inserter(empty), [](const Slab* slab) { return slab->used == 0; });
    }
  }
  std::vector<Block*> blocks;
  for (Slab* slab : empty) {
    blocks.push_back(slab->block);
    remove(slab);
  }
  return blocks;
}

void SlabSet::remove(Slab* slab) {
  Class& of = class_at(slab->class_index, slab->use);
  std::vector<Slab*>& with_room = of.with_room;
  for (size_t i = 0; i < with_room.size(); ++i) {
    if (with_room[i] == slab) {
      with_room.erase(with_room.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
  }
  if (of.made > 0) --of.made;
  slab->block->slab = nullptr;
  delete slab;
}

}  // namespace nvshare::interposer
