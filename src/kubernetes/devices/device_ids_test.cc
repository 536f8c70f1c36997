#include "kubernetes/devices/device_ids.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kubernetes/devices/preference.h"

namespace nvshare::kubernetes {
namespace {

constexpr int64_t kGib = 1LL << 30;

std::vector<Gpu> gpus(int count, int64_t physical = 141 * kGib) {
  std::vector<Gpu> all;
  for (int i = 0; i < count; ++i) all.push_back({"GPU-0000000" + std::to_string(i) + "-0000-0000-0000-000000000000", physical, true});
  return all;
}

int64_t unhealthy(const std::vector<Device>& devices) {
  return std::count_if(devices.begin(), devices.end(), [](const Device& device) { return !device.healthy; });
}

TEST(Devices, NamesOfVirtualGpusCarryTheirGpu) {
  EXPECT_EQ(virtual_gpu_id("GPU-a", 3), "GPU-a::3");
  EXPECT_EQ(gpu_of("GPU-a::3"), "GPU-a");
  EXPECT_EQ(gpu_of("MIG-GPU-a/1/0::12"), "MIG-GPU-a/1/0");
  for (const char* wrong : {"", "GPU-a", "::3", "GPU-a::", "GPU-a::x", "GPU-a::-1", "memory-00001"}) EXPECT_FALSE(gpu_of(wrong)) << wrong;
}

TEST(Devices, UnitsAreWholeAndFollowTheRatio) {
  Division division;
  EXPECT_EQ(units_of(Resource::kMemory, gpus(1)[0], division), 141);
  EXPECT_EQ(units_of(Resource::kMemory, {"GPU-a", 141 * kGib - 1, true}, division), 140);
  division.oversubscription = 1.5;
  EXPECT_EQ(units_of(Resource::kMemory, gpus(1)[0], division), 211);
  division.physical_memory = 40 * kGib;
  EXPECT_EQ(units_of(Resource::kMemory, gpus(1)[0], division), 60);
  EXPECT_EQ(units_of(Resource::kMemory, {"GPU-a", 16 * kGib, true}, division), 24) << "at most as large as it is";
  EXPECT_EQ(units_of(Resource::kCore, gpus(1)[0], division), 100);
}

TEST(Devices, EveryNameIsOfferedOnce) {
  Division division;
  auto virtual_ones = virtual_gpus(gpus(8), division);
  auto memory = units(Resource::kMemory, gpus(8), division, {});
  EXPECT_EQ(virtual_ones.size(), 80u);
  EXPECT_EQ(memory.size(), 8u * 141);
  std::set<std::string> names;
  for (const auto& list : {virtual_ones, memory, units(Resource::kCore, gpus(8), division, {})}) {
    for (const Device& device : list) EXPECT_TRUE(names.insert(device.id).second) << device.id;
  }
}

TEST(Devices, ALostGpuTakesItsUnitsWithItUnusedOnesFirst) {
  Division division;
  auto all = gpus(2, 10 * kGib);
  all[1].healthy = false;
  std::set<std::string> in_use;
  for (int i = 12; i < 20; ++i) in_use.insert(unit_id(Resource::kMemory, i));
  auto memory = units(Resource::kMemory, all, division, in_use);
  EXPECT_EQ(unhealthy(memory), 10);
  for (const Device& device : memory) EXPECT_TRUE(device.healthy || in_use.count(device.id) == 0) << device.id;
  for (int i = 0; i < 6; ++i) in_use.insert(unit_id(Resource::kMemory, i));
  EXPECT_EQ(unhealthy(units(Resource::kMemory, all, division, in_use)), 10) << "used ones too where there are not enough others";
  EXPECT_EQ(unhealthy(virtual_gpus(all, division)), 10);
}

// ---- preferred allocation ----

std::vector<GpuLoad> loads(std::vector<int64_t> free_gib) {
  std::vector<GpuLoad> all;
  for (size_t i = 0; i < free_gib.size(); ++i) {
    GpuLoad load;
    load.uuid = "GPU-" + std::to_string(i);
    load.bytes = 100 * kGib;
    load.bytes_listed = load.bytes - free_gib[i] * kGib;
    all.push_back(load);
  }
  return all;
}

std::vector<std::string> ids(const std::vector<GpuLoad>& all, int each) {
  std::vector<std::string> names;
  for (const GpuLoad& load : all) {
    for (int i = 0; i < each; ++i) names.push_back(virtual_gpu_id(load.uuid, i));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Preference, TheGpuWithTheMostFreeMemoryComesFirst) {
  auto all = loads({10, 60, 30});
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 1), Names({"GPU-1::0"}));
  all[1].healthy = false;
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 1), Names({"GPU-2::0"}));
}

TEST(Preference, SeveralGpusAreDifferentOnesWhileThereAreAny) {
  auto all = loads({10, 60, 30});
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 3), Names({"GPU-1::0", "GPU-2::0", "GPU-0::0"}));
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 4), Names({"GPU-1::0", "GPU-2::0", "GPU-0::0", "GPU-1::1"}));
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {"GPU-1::1"}, 2), Names({"GPU-1::1", "GPU-2::0"})) << "not the GPU that it must have anyway";
}

TEST(Preference, TiesGoToTheGpuWithFewerTenants) {
  auto all = loads({50, 50});
  all[0].devices_listed = 1;
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 1), Names({"GPU-1::0"}));
}

TEST(Preference, AsksForMoreThanThereIsGetWhatThereIs) {
  auto all = loads({10});
  EXPECT_EQ(prefer_gpus(all, ids(all, 2), {}, 5).size(), 2u);
  EXPECT_EQ(prefer_gpus(all, {"unknown", "GPU-9::1"}, {"other"}, 2), Names({"other"}));
  EXPECT_TRUE(prefer_gpus(all, ids(all, 2), {"GPU-0::1"}, 0).empty());
  EXPECT_EQ(prefer_units({"memory-00002", "memory-00001"}, {}, 5).size(), 2u);
}

TEST(Preference, UnitsGoFromTheFirst) {
  EXPECT_EQ(prefer_units({"memory-00009", "memory-00003", "memory-100000", "memory-00007"}, {"memory-00009"}, 3),
            Names({"memory-00009", "memory-00003", "memory-00007"}));
}

}  // namespace
}  // namespace nvshare::kubernetes
