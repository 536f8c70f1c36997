#include "interposer/memory/blocks/slab.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "interposer/memory/blocks/block.h"

namespace nvshare::interposer {
namespace {

// A piece of 2 MiB of a context.
void lay_out(Block* block) {
  block->base = 1 << 30;
  block->bytes = 2 << 20;
  block->context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
}

TEST(Slab, ClassesCoverEverySizeAndWasteAtMostAThird) {
  for (size_t bytes = 1; bytes <= SlabSet::kSlotBytesMax; bytes += bytes < 8192 ? 1 : 997) {
    size_t slot = SlabSet::slot_bytes(bytes);
    ASSERT_GE(slot, bytes);
    ASSERT_EQ(slot % SlabSet::kAlignment, 0u);
    if (bytes > 1024) {
      ASSERT_LE((slot - bytes) * 3, slot) << bytes;
    }
  }
}

// Random allocations and frees against a map: no two overlap, sizes are remembered, empty slabs are handed back but for the last of a
// class.
TEST(Slab, RandomUseNeverOverlaps) {
  const char* text = getenv("NVSHARE_TEST_SEED");
  unsigned long seed = text != nullptr ? strtoul(text, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("NVSHARE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  SlabSet slabs;
  std::map<cuda::CUdeviceptr, size_t> live;
  std::map<cuda::CUdeviceptr, Block*> blocks;
  cuda::CUdeviceptr next_base = 1 << 30;
  auto context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  for (int step = 0; step < 20'000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      size_t bytes = 1 + random() % (random() % 4 == 0 ? SlabSet::kSlotBytesMax : 4096);
      cuda::CUdeviceptr address = slabs.take(bytes, context);
      if (address == 0) {
        auto* block = new Block;
        block->base = next_base;
        block->bytes = slabs.next_slab_bytes(bytes, size_t{1} << 30);
        block->context = context;
        next_base += block->bytes + (2 << 20);
        blocks[block->base] = block;
        slabs.add_slab(block, bytes);
        address = slabs.take(bytes, context);
      }
      ASSERT_NE(address, 0u);
      ASSERT_EQ(address % SlabSet::kAlignment, 0u);
      ASSERT_EQ(address / SlabSet::kPieceBytes, (address + bytes - 1) / SlabSet::kPieceBytes);
      auto after = live.lower_bound(address);
      if (after != live.end()) {
        ASSERT_LE(address + bytes, after->first);
      }
      if (after != live.begin()) {
        ASSERT_LE(std::prev(after)->first + std::prev(after)->second, address);
      }
      live[address] = bytes;
    } else {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      Block* block = std::prev(blocks.upper_bound(victim->first))->second;
      size_t requested = 0;
      bool empty = false;
      ASSERT_TRUE(slabs.give_back(block->slab, victim->first, &requested, &empty));
      ASSERT_EQ(requested, victim->second);
      live.erase(victim);
      if (empty) {
        blocks.erase(block->base);
        delete block;
      } else {
        ASSERT_FALSE(slabs.give_back(block->slab, block->base + 1, &requested, &empty));
      }
    }
  }
  for (auto& [base, block] : blocks) {
    slabs.remove(block->slab);
    delete block;
  }
}

// Three of 703 KiB want 768 KiB each; the third begins in the next piece, and what lies between is no allocation.
TEST(Slab, WhatIsLeftAtTheEndOfAPieceIsNobodys) {
  SlabSet slabs;
  Block block;
  block.base = 1 << 30;
  block.bytes = 4 << 20;
  block.context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  slabs.add_slab(&block, 719'808);
  for (const size_t offset : {0u, 768u << 10, 2u << 20, (2u << 20) + (768u << 10)}) {
    EXPECT_EQ(slabs.take(719'808, block.context), block.base + offset);
  }
  EXPECT_EQ(slabs.take(719'808, block.context), 0u);
  cuda::CUdeviceptr base = 0;
  size_t requested = 0;
  EXPECT_TRUE(SlabSet::slot_of(block.slab, block.base + (2 << 20) + 719'807, &base, &requested));
  EXPECT_EQ(base, block.base + (2 << 20));
  for (const size_t offset : {1536u << 10, (2u << 20) - 1, (3u << 20) + (512u << 10), (4u << 20) - 1}) {
    EXPECT_FALSE(SlabSet::slot_of(block.slab, block.base + offset, &base, &requested)) << offset;
  }
  slabs.remove(block.slab);
}

TEST(Slab, AnotherContextGetsItsOwnSlab) {
  SlabSet slabs;
  Block block;
  lay_out(&block);
  slabs.add_slab(&block, 1000);
  EXPECT_NE(slabs.take(1000, block.context), 0u);
  EXPECT_EQ(slabs.take(1000, reinterpret_cast<cuda::CUcontext>(uintptr_t{2})), 0u);
  slabs.remove(block.slab);
}

// The last of its class stayed for the next allocation, and on the GPU, whoever else needed that.
TEST(Slab, WhatOtherProcessesHaveGoesWhenItIsEmpty) {
  SlabSet slabs;
  Block block;
  lay_out(&block);
  slabs.add_slab(&block, 1000);
  size_t requested = 0;
  bool empty = false;
  EXPECT_TRUE(slabs.give_back(block.slab, slabs.take(1000, block.context), &requested, &empty));
  EXPECT_FALSE(empty);
  const cuda::CUdeviceptr handed = slabs.take(1000, block.context);
  block.export_id = 1;
  EXPECT_TRUE(slabs.give_back(block.slab, handed, &requested, &empty));
  EXPECT_TRUE(empty);
  EXPECT_EQ(slabs.take(1000, block.context), 0u);
}

// Plain memory in it ends with its context, a pool's does not; nothing new is put into it then, and empty it goes at once.
TEST(Slab, WhatOfItOutlivesItsContext) {
  SlabSet slabs;
  Block block;
  block.base = 1 << 30;
  block.bytes = 2 << 20;
  const auto context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  block.context = context;
  slabs.add_slab(&block, 1000);
  const cuda::CUdeviceptr plain = slabs.take(1000, context), pool = slabs.take(1000, context), freed = slabs.take(1000, context);
  EXPECT_FALSE(SlabSet::outlives_context(block.slab));
  EXPECT_EQ(SlabSet::ends_with_context(block.slab), (std::vector{plain, pool, freed}));
  SlabSet::notes_of(block.slab, freed).of_pool = SlabSet::notes_of(block.slab, freed).freed = true;
  EXPECT_FALSE(SlabSet::outlives_context(block.slab));
  SlabSet::notes_of(block.slab, pool).of_pool = true;
  EXPECT_TRUE(SlabSet::outlives_context(block.slab));
  EXPECT_EQ(SlabSet::ends_with_context(block.slab), std::vector{plain});
  block.context = nullptr;
  EXPECT_EQ(slabs.take(1000, context), 0u);
  size_t requested = 0;
  bool empty = true;
  for (const cuda::CUdeviceptr address : {plain, freed, pool}) {
    ASSERT_TRUE(slabs.give_back(block.slab, address, &requested, &empty));
    EXPECT_EQ(empty, address == pool);
  }
  EXPECT_EQ(block.slab, nullptr);
}

// The last slab of a class is kept when it has become empty, and given back when somebody wants the memory.
TEST(Slab, WhatIsEmptyCanBeTakenBack) {
  SlabSet slabs;
  Block small, large;
  small.base = 1 << 30;
  large.base = 2 << 30;
  small.bytes = large.bytes = 2 << 20;
  small.context = large.context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  slabs.add_slab(&small, 1000);
  slabs.add_slab(&large, 100'000);
  const cuda::CUdeviceptr of_small = slabs.take(1000, small.context);
  const cuda::CUdeviceptr of_large = slabs.take(100'000, small.context);
  size_t requested = 0;
  bool empty = true;
  ASSERT_TRUE(slabs.give_back(small.slab, of_small, &requested, &empty));
  EXPECT_FALSE(empty);
  EXPECT_EQ(slabs.remove_empty(), std::vector<Block*>{&small});
  EXPECT_EQ(small.slab, nullptr);
  EXPECT_EQ(slabs.take(1000, small.context), 0u);
  EXPECT_EQ(slabs.remove_empty(), std::vector<Block*>{});
  EXPECT_EQ(slabs.next_slab_bytes(1000, size_t{1} << 30), size_t{2} << 20);
  ASSERT_TRUE(slabs.give_back(large.slab, of_large, &requested, &empty));
  EXPECT_EQ(slabs.remove_empty(), std::vector<Block*>{&large});
}

// A copy between GPUs opens whole slabs, and a pool's memory is not to be opened.
TEST(Slab, PoolsHaveSlabsOfTheirOwn) {
  SlabSet slabs;
  Block plain, pool;
  plain.base = 1 << 30;
  pool.base = 2 << 30;
  plain.bytes = pool.bytes = 2 << 20;
  plain.context = pool.context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  slabs.add_slab(&plain, 1000);
  EXPECT_EQ(slabs.take(1000, plain.context, SlabUse::kPool), 0u);
  EXPECT_EQ(slabs.take_larger(500, plain.context, SlabUse::kPool), 0u);
  EXPECT_EQ(slabs.next_slab_bytes(1000, size_t{1} << 30, SlabUse::kPool), size_t{2} << 20);
  slabs.add_slab(&pool, 1000, SlabUse::kPool);
  const cuda::CUdeviceptr address = slabs.take(1000, plain.context, SlabUse::kPool);
  EXPECT_EQ(address, pool.base);
  EXPECT_EQ(slabs.take(1000, plain.context), plain.base);
  size_t requested = 0;
  bool empty = true;
  ASSERT_TRUE(slabs.give_back(pool.slab, address, &requested, &empty));
  EXPECT_FALSE(empty);
  EXPECT_EQ(slabs.take(1000, plain.context), plain.base + 1024);
  EXPECT_EQ(slabs.remove_empty(), std::vector<Block*>{&pool});
  slabs.remove(plain.slab);
}

TEST(Slab, AnAllocationMayTakeALargerSlot) {
  SlabSet slabs;
  Block small, large;
  small.base = 1 << 30;
  large.base = 2 << 30;
  small.bytes = large.bytes = 2 << 20;
  small.context = large.context = reinterpret_cast<cuda::CUcontext>(uintptr_t{1});
  slabs.add_slab(&small, 256);
  slabs.add_slab(&large, 1 << 20);
  EXPECT_EQ(slabs.take_larger(1 << 20, small.context), 0u);
  EXPECT_EQ(slabs.take_larger(300, reinterpret_cast<cuda::CUcontext>(uintptr_t{2})), 0u);
  const cuda::CUdeviceptr taken = slabs.take_larger(300, small.context);
  EXPECT_EQ(taken, large.base);
  size_t requested = 0;
  bool empty = false;
  cuda::CUdeviceptr base = 0;
  ASSERT_TRUE(slabs.slot_of(large.slab, taken + 299, &base, &requested));
  EXPECT_EQ(requested, 300u);
  EXPECT_FALSE(slabs.slot_of(large.slab, taken + 300, &base, &requested));
  ASSERT_TRUE(slabs.give_back(large.slab, taken, &requested, &empty));
  EXPECT_EQ(requested, 300u);
  EXPECT_EQ(slabs.remove_empty().size(), 2u);
}

}  // namespace
}  // namespace nvshare::interposer
