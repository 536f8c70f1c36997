// Which container has how much of which GPU: pairing, refusals, restarts, and that no order of arrivals and departures ever overfills a
// GPU.
#include "kubernetes/devices/device_allocations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "e2e/harness/random.h"
#include "kubernetes/devices/preference.h"
#include "kubernetes/test_amounts.h"

namespace nvshare::kubernetes {
namespace {

std::vector<Gpu> gpus(int count, int64_t gib) {
  std::vector<Gpu> all;
  for (int i = 0; i < count; ++i) all.push_back({"GPU-" + std::to_string(i), gib * kGib, true});
  return all;
}

HeldDevices held(const std::string& pod, std::set<std::string> gpu_ids, int first, int count) {
  HeldDevices one{"default", pod, "main", std::move(gpu_ids), {}, {}};
  for (int i = 0; i < count; ++i) one.memory.insert(unit_id(Resource::kMemory, first + i));
  return one;
}

std::vector<std::string> list(const std::set<std::string>& ids) { return {ids.begin(), ids.end()}; }

Admission::Kind start(DeviceAllocations& allocations, const HeldDevices& one) {
  return allocations.admit(Resource::kMemory, list(one.memory)).kind;
}

using Kind = Admission::Kind;

TEST(DeviceAllocations, TheVirtualGpuDecidesWhoseMemoryItIs) {
  DeviceAllocations allocations(Division{}, gpus(2, 100));
  allocations.update({});
  auto a = held("a", {"GPU-0::0"}, 0, 60);
  auto b = held("b", {"GPU-0::1"}, 60, 60);
  auto c = held("c", {"GPU-1::0"}, 120, 60);
  allocations.update({a, b, c});
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  EXPECT_EQ(allocations.admit(Resource::kGpu, {"GPU-0::0"}).kind, Kind::kGranted) << "the container's other resource, no second charge";
  auto refused = allocations.admit(Resource::kMemory, list(b.memory));
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_NE(refused.reason.find("default/b, container main: GPU-0 has no room for 60 GiB"), std::string::npos) << refused.reason;
  EXPECT_NE(refused.reason.find("GPU-0 40 GiB of 100 GiB; GPU-1 100 GiB of 100 GiB;"), std::string::npos) << refused.reason;
  EXPECT_EQ(start(allocations, c), Kind::kGranted);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 60 * kGib);
  EXPECT_EQ(allocations.loads()[0].bytes_listed, 120 * kGib);
  allocations.update({b, c});  // a is gone
  EXPECT_EQ(start(allocations, b), Kind::kGranted);
}

TEST(DeviceAllocations, SeveralGpusShareTheContainersUnits) {
  DeviceAllocations allocations(Division{}, gpus(2, 10));
  allocations.update({});
  auto both = held("both", {"GPU-0::0", "GPU-1::0", "GPU-1::1"}, 0, 15);
  auto one = held("one", {"GPU-1::2"}, 15, 3);
  allocations.update({both, one});
  EXPECT_EQ(start(allocations, both), Kind::kGranted);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 15 * kGib / 2);
  EXPECT_EQ(allocations.loads()[1].bytes_granted, 15 * kGib / 2);
  EXPECT_EQ(allocations.loads()[1].devices_listed, 3);
  EXPECT_EQ(start(allocations, one), Kind::kRefused) << "2.5 GiB are left";
}

TEST(DeviceAllocations, WhoAsksForNoMemoryHasTheDefaultAndCountsWithIt) {
  Division division;
  division.default_memory = 4 * kGib;
  DeviceAllocations allocations(division, gpus(2, 10));
  allocations.update({});
  auto plain = held("plain", {"GPU-0::0"}, 0, 0);
  auto both = held("both", {"GPU-0::1", "GPU-1::0"}, 0, 0);
  auto asks = held("asks", {"GPU-0::2"}, 0, 5);
  HeldDevices no_gpu{"default", "none", "main", {}, {}, {}};
  allocations.update({plain, both, asks, no_gpu});
  EXPECT_EQ(allocations.admit(Resource::kGpu, {"GPU-0::0"}).kind, Kind::kGranted);
  EXPECT_EQ(allocations.admit(Resource::kGpu, {"GPU-0::1"}).kind, Kind::kGranted);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 6 * kGib) << "4, and an even part of 4";
  EXPECT_EQ(allocations.loads()[1].bytes_granted, 2 * kGib);
  auto refused = allocations.admit(Resource::kMemory, list(asks.memory));
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_NE(refused.reason.find("GPU-0 4 GiB of 10 GiB;"), std::string::npos) << refused.reason;
  allocations.update({plain, asks});
  EXPECT_EQ(start(allocations, asks), Kind::kGranted);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 9 * kGib);
}

TEST(DeviceAllocations, PercentsOfComputeAreBoundToo) {
  DeviceAllocations allocations(Division{}, gpus(1, 10));
  allocations.update({});
  auto a = held("a", {"GPU-0::0"}, 0, 1);
  auto b = held("b", {"GPU-0::1"}, 1, 1);
  for (int i = 0; i < 60; ++i) a.cores.insert(unit_id(Resource::kCore, i));
  for (int i = 60; i < 110; ++i) b.cores.insert(unit_id(Resource::kCore, i));
  allocations.update({a, b});
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  auto refused = allocations.admit(Resource::kCore, list(b.cores));
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_NE(refused.reason.find("no room for 50 % of compute. Free now: GPU-0 40 %;"), std::string::npos) << refused.reason;
}

TEST(DeviceAllocations, MemoryWithoutAGpuAndUnknownGpusAreRefused) {
  DeviceAllocations allocations(Division{}, gpus(1, 10));
  allocations.update({held("a", {}, 0, 1), held("b", {"GPU-7::0"}, 1, 1)});
  EXPECT_NE(allocations.admit(Resource::kMemory, {unit_id(Resource::kMemory, 0)}).reason.find("but for no GPU"), std::string::npos);
  EXPECT_NE(allocations.admit(Resource::kMemory, {unit_id(Resource::kMemory, 1)}).reason.find("GPU-7 is not there any more"),
            std::string::npos);
  EXPECT_EQ(allocations.admit(Resource::kMemory, {unit_id(Resource::kMemory, 5)}).kind, Kind::kNotListed);
}

TEST(DeviceAllocations, AnUnhealthyGpuStartsNothingUntilItIsWell) {
  auto all = gpus(1, 10);
  DeviceAllocations allocations(Division{}, all);
  auto a = held("a", {"GPU-0::0"}, 0, 4);
  allocations.update({a});
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  all[0].healthy = false;
  allocations.set_gpus(all);
  EXPECT_NE(allocations.admit(Resource::kMemory, list(a.memory)).reason.find("is unhealthy"), std::string::npos);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 4 * kGib) << "it may still run";
  all[0].healthy = true;
  allocations.set_gpus(all);
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
}

TEST(DeviceAllocations, WhoWasGrantedStaysSoOverARestartOfThePlugin) {
  auto a = held("a", {"GPU-0::0"}, 0, 60);
  auto b = held("b", {"GPU-0::1"}, 60, 60);
  DeviceAllocations before(Division{}, gpus(1, 100));
  before.update({});
  before.update({a, b});
  EXPECT_EQ(start(before, b), Kind::kGranted);
  EXPECT_EQ(start(before, a), Kind::kRefused);

  DeviceAllocations after(Division{}, gpus(1, 100));
  ASSERT_TRUE(after.restore(before.record()));
  after.update({a, b});
  EXPECT_EQ(after.loads()[0].bytes_granted, 60 * kGib);
  EXPECT_EQ(start(after, a), Kind::kRefused) << "the one that runs is b";
  EXPECT_EQ(start(after, b), Kind::kGranted);
  // What a release before it said its format wrote, and one after, which has more to say.
  const std::string record = before.record();
  const auto containers = nlohmann::json::parse(record).at("containers");
  EXPECT_TRUE(after.restore(containers.dump()));
  EXPECT_EQ(after.record(), record);
  auto richer = nlohmann::json::parse(record);
  richer["written_by"] = "9.9";
  for (auto& container : richer["containers"]) container["color"] = "green";
  EXPECT_TRUE(after.restore(richer.dump()));
  EXPECT_EQ(after.record(), record);
  richer["format"] = 2;
  auto later = after.restore(richer.dump());
  ASSERT_FALSE(later);
  EXPECT_NE(std::string(later.error().text).find("format 2, of a later release"), std::string::npos) << later.error().text;
  EXPECT_FALSE(after.restore("{]"));
  EXPECT_FALSE(after.restore("[{\"pod\": 3}]"));
  richer = nlohmann::json::parse(record);
  richer["other"] = nlohmann::json::parse(std::string(100, '[') + std::string(100, ']'));
  EXPECT_FALSE(after.restore(richer.dump())) << "it nests deeper than what this program writes";
}

// Another NVSHARE_GPU_MEMORY_UNIT while containers run: no container has more or less than what it started with. A default is always
// today's.
TEST(DeviceAllocations, WhoWasGrantedHasWhatItsUnitsWereWorthThen) {
  auto a = held("a", {"GPU-0::0"}, 0, 30);
  auto b = held("b", {"GPU-0::1"}, 0, 0);
  auto c = held("c", {"GPU-0::2"}, 30, 30);
  Division was;
  was.default_memory = 5 * kGib;
  DeviceAllocations before(was, gpus(1, 100));
  before.update({});
  before.update({a, b});
  ASSERT_EQ(start(before, a), Kind::kGranted);
  ASSERT_EQ(before.admit(Resource::kGpu, {"GPU-0::1"}).kind, Kind::kGranted);
  Division now;
  now.memory_unit = 2 * kGib;
  now.default_memory = 7 * kGib;
  DeviceAllocations allocations(now, gpus(1, 100));
  ASSERT_TRUE(allocations.restore(before.record()));
  allocations.update({a, b, c});
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 37 * kGib);
  EXPECT_EQ(allocations.loads()[0].bytes_listed, (37 + 60) * kGib);
  EXPECT_EQ(start(allocations, c), Kind::kGranted);
  EXPECT_EQ(start(allocations, a), Kind::kGranted) << "it restarts";
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 97 * kGib);
  EXPECT_EQ(allocations.memory_unit_of(a), kGib);
  EXPECT_EQ(allocations.memory_unit_of(c), 2 * kGib);
  // The kubelet starts anew and lists it late.
  allocations.update({});
  allocations.update({a, b, c});
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 97 * kGib);
  // A record of a plugin that did not write it down.
  auto record = nlohmann::json::parse(before.record());
  for (auto& one : record["containers"]) one.erase("memory_unit");
  ASSERT_TRUE(allocations.restore(record.dump()));
  allocations.update({a});
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 60 * kGib);
  record["containers"][0]["memory_unit"] = 0;
  EXPECT_FALSE(allocations.restore(record.dump()));
}

TEST(DeviceAllocations, WithoutARecordWhoIsListedCountsUntilItsNextStart) {
  auto a = held("a", {"GPU-0::0"}, 0, 60);
  auto b = held("b", {"GPU-0::1"}, 60, 60);
  auto c = held("c", {"GPU-0::2"}, 120, 10);
  DeviceAllocations allocations(Division{}, gpus(1, 100));
  allocations.update({a, b});
  allocations.update({a, b, c});
  EXPECT_EQ(start(allocations, c), Kind::kRefused) << "both may run";
  EXPECT_EQ(start(allocations, b), Kind::kRefused) << "a counts";
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  EXPECT_EQ(start(allocations, c), Kind::kGranted);
}

TEST(DeviceAllocations, AKubeletThatHasNotReadItsPodsYetFreesNothingForGood) {
  auto a = held("a", {"GPU-0::0"}, 0, 60);
  auto b = held("b", {"GPU-0::1"}, 60, 60);
  DeviceAllocations allocations(Division{}, gpus(1, 100));
  allocations.update({});
  allocations.update({a});
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  allocations.update({});  // the kubelet starts anew; a still runs
  allocations.update({a, b});
  EXPECT_EQ(start(allocations, b), Kind::kRefused);
  EXPECT_EQ(start(allocations, a), Kind::kGranted);
  // The same pod, made anew on the same devices after others took the room: it has to ask again.
  allocations.update({b});
  EXPECT_EQ(start(allocations, b), Kind::kGranted);
  allocations.update({a, b});
  EXPECT_EQ(start(allocations, a), Kind::kRefused);
}

TEST(DeviceAllocations, AnInitContainersDevicesAreThoseOfTheContainerThatFollowsIt) {
  DeviceAllocations allocations(Division{}, gpus(1, 100));
  allocations.update({});
  auto app = held("a", {"GPU-0::0"}, 0, 4);
  allocations.update({app, held("b", {"GPU-0::1"}, 50, 4)});
  auto ids = list(app.memory);
  ids.push_back(unit_id(Resource::kMemory, 4));  // the init container had one more
  EXPECT_EQ(allocations.admit(Resource::kMemory, ids).kind, Kind::kGranted);
  EXPECT_EQ(allocations.loads()[0].bytes_granted, 4 * kGib);
}

// A node as the cluster sees it: the kubelet hands out any units and the virtual GPUs that are preferred (or, where it does not ask, any),
// pods come, start, restart and go in any order, plugin and kubelet restart. Whatever runs never exceeds physical x ratio on any GPU.
TEST(DeviceAllocationsProperty, PodsInAnyOrderNeverOverfillAGpu) {
  const int runs = e2e::scaled(30, 4);
  for (int run = 0; run < runs; ++run) {
    SCOPED_TRACE(testing::Message() << "run " << run);
    auto random = e2e::generator(5000 + static_cast<uint64_t>(run));
    auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    Division division;
    division.oversubscription = pick(2, 8) / 4.0;
    if (pick(0, 1) == 0) division.default_memory = pick(1, 12 * 4) * kGib / 4;
    auto node = gpus(pick(1, 8), pick(8, 141));
    auto allocations = std::make_unique<DeviceAllocations>(division, node);
    allocations->update({});
    std::set<std::string> free_units;
    std::set<std::string> free_gpus;
    for (const Device& one : units(Resource::kMemory, node, division, {})) free_units.insert(one.id);
    for (const Device& one : virtual_gpus(node, division)) free_gpus.insert(one.id);
    std::vector<HeldDevices> listed;
    std::vector<HeldDevices> running;
    int refused = 0;
    for (int step = 0, made = 0; step < 400 && made < 100; ++step) {
      switch (pick(0, 6)) {
        case 0:
        case 1:
        case 2: {  // a pod is admitted: the kubelet knows only that the node has enough in all
          int gpu_count = pick(1, 2);
          int unit_count = pick(0, static_cast<int>(units_of(Resource::kMemory, node[0], division)));
          if (std::ssize(free_gpus) < gpu_count || std::ssize(free_units) < unit_count) break;
          auto chosen = pick(0, 3) > 0 ? prefer_gpus(allocations->loads(), list(free_gpus), {}, gpu_count)
                                       : std::vector<std::string>(free_gpus.begin(), std::next(free_gpus.begin(), gpu_count));
          HeldDevices pod{"default", "pod" + std::to_string(made++), "main", {chosen.begin(), chosen.end()}, {}, {}};
          pod.memory.insert(free_units.begin(), std::next(free_units.begin(), unit_count));
          for (const std::string& id : pod.gpus) free_gpus.erase(id);
          for (const std::string& id : pod.memory) free_units.erase(id);
          listed.push_back(pod);
          allocations->update(listed);
          break;
        }
        case 3:
        case 4: {  // a container starts, or starts again
          if (listed.empty()) break;
          const HeldDevices& pod = listed[static_cast<size_t>(pick(0, static_cast<int>(listed.size()) - 1))];
          bool runs_already = std::find(running.begin(), running.end(), pod) != running.end();
          Kind kind = allocations->admit(Resource::kGpu, list(pod.gpus)).kind;
          ASSERT_NE(kind, Kind::kNotListed);
          if (runs_already) {
            ASSERT_EQ(kind, Kind::kGranted) << "a container that runs may start again";
          } else if (kind == Kind::kGranted) {
            running.push_back(pod);
          } else {
            ++refused;
          }
          break;
        }
        case 5: {  // a pod goes
          if (listed.empty()) break;
          auto gone = listed.begin() + pick(0, static_cast<int>(listed.size()) - 1);
          std::erase(running, *gone);
          free_gpus.insert(gone->gpus.begin(), gone->gpus.end());
          free_units.insert(gone->memory.begin(), gone->memory.end());
          listed.erase(gone);
          allocations->update(listed);
          break;
        }
        case 6: {  // the plugin restarts, or the kubelet does and knows no pod at first
          if (pick(0, 1) == 0) {
            std::string record = allocations->record();
            allocations = std::make_unique<DeviceAllocations>(division, node);
            ASSERT_TRUE(allocations->restore(record));
          } else {
            allocations->update({});
          }
          allocations->update(listed);
          break;
        }
      }
      std::map<std::string, int64_t> used;
      for (const HeldDevices& pod : running) {
        std::set<std::string> uuids;
        for (const std::string& id : pod.gpus) uuids.emplace(*gpu_of(id));
        for (const std::string& uuid : uuids) used[uuid] += memory_of_container(std::ssize(pod.memory), true, division) / std::ssize(uuids);
      }
      for (const Gpu& gpu : node) {
        ASSERT_LE(static_cast<double>(used[gpu.uuid]), static_cast<double>(gpu.physical) * division.oversubscription) << gpu.uuid;
      }
    }
    RecordProperty("refused", refused);
  }
}

}  // namespace
}  // namespace nvshare::kubernetes
