// What is published of GPUs, and which writes lead there from what the API server has.
#include "kubernetes/dra/resource_slices.h"

#include <gtest/gtest.h>

#include <random>

#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/test_claims.h"
#include "repeats.h"

namespace nvshare::kubernetes::dra {
namespace {

const NodeIdentity kNode{kTestNode, "node-uid"};

DeviceModels many_devices(int count) {
  DeviceModels devices;
  for (int i = 0; i < count; ++i) {
    char uuid[64];
    std::snprintf(uuid, sizeof uuid, "GPU-%08d-0000-4000-8000-000000000000", i);
    auto model = model_of({{uuid, 16 * kTestGib, true, -1}, "Stand-in", "", "", "", "", ""}, {});
    if (model) devices.push_back(std::move(*model));
  }
  return devices;
}

// The part of an API server that matters here: versions, immutable fields, its own way to write amounts.
class Slices {
 public:
  std::vector<Json> seen() const { return slices_; }
  void add(Json slice) { take(std::move(slice)); }
  void clear() { slices_.clear(); }
  Json& at(size_t i) { return slices_.at(i); }
  void apply(const SlicePlan& plan) {
    for (const auto& removal : plan.removals) {
      const auto gone = std::erase_if(slices_, [&](const Json& slice) {
        return slice["metadata"]["name"] == removal.name && slice["metadata"]["uid"] == removal.uid &&
               slice["metadata"]["resourceVersion"] == removal.resource_version;
      });
      EXPECT_EQ(gone, 1U);
    }
    for (const Json& update : plan.updates) {
      const auto there = std::find_if(slices_.begin(), slices_.end(),
                                      [&](const Json& slice) { return slice["metadata"]["name"] == update["metadata"]["name"]; });
      ASSERT_NE(there, slices_.end());
      EXPECT_EQ((*there)["metadata"], update["metadata"]);
      for (const char* fixed : {"driver", "nodeName"}) EXPECT_EQ((*there)["spec"][fixed], update["spec"][fixed]);
      EXPECT_EQ((*there)["spec"]["pool"]["name"], update["spec"]["pool"]["name"]);
      *there = update;
      (*there)["metadata"]["resourceVersion"] = std::to_string(++version_);
    }
    for (const Json& creation : plan.creations) {
      EXPECT_FALSE(creation["metadata"].contains("name"));
      take(creation);
    }
  }
  // One generation and one count in all slices of the pool, and each device once.
  void expect_consistent(const DeviceModels& devices) const {
    std::vector<std::string> names;
    for (const Json& slice : slices_) {
      EXPECT_EQ(slice["spec"]["pool"], slices_[0]["spec"]["pool"]);
      EXPECT_EQ(slice["spec"]["pool"]["resourceSliceCount"], slices_.size());
      EXPECT_LE(slice["spec"]["devices"].size(), kDevicesOfSliceMax);
      for (const Json& device : slice["spec"]["devices"]) names.push_back(device["name"]);
    }
    std::vector<std::string> wanted;
    for (const DeviceModel& device : devices) wanted.push_back(device.name);
    std::sort(names.begin(), names.end());
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(names, wanted);
  }
  int64_t generation() const { return slices_.at(0)["spec"]["pool"]["generation"]; }

 private:
  void take(Json slice) {
    if (!slice["metadata"].contains("name"))
      slice["metadata"]["name"] = slice["metadata"].value("generateName", "") + std::to_string(++version_);
    slice["metadata"]["uid"] = "uid-" + std::to_string(++version_);
    slice["metadata"]["resourceVersion"] = std::to_string(++version_);
    for (Json& device : slice["spec"]["devices"]) {
      for (Json& taint : device["taints"].is_null() ? device["taints"] = Json::array() : device["taints"])
        taint["timeAdded"] = "2026-01-01T00:00:00Z";
      if (device["taints"].empty()) device.erase("taints");
    }
    slices_.push_back(std::move(slice));
  }
  std::vector<Json> slices_;
  int version_ = 0;
};

TEST(DraDeviceModel, AGpuIsADeviceNamedByItsUuid) {
  Division division;
  division.oversubscription = 1.25;
  const auto model = model_of(
      {{test_gpu(1), (16 * kTestGib) + 12345, true, 1}, "NVIDIA H200", "Hopper", "550.054.15", "12.4", "pci0000:17", ""}, division);
  ASSERT_TRUE(model) << model.error().text;
  EXPECT_EQ(model->name, "gpu-00000001-0000-4000-8000-00000000000a");
  EXPECT_EQ(model->memory, 20 * kTestGib) << "down to whole MiB";
  const Json json = device_json(*model);
  EXPECT_EQ(json["allowMultipleAllocations"], true);
  EXPECT_EQ(json["attributes"]["uuid"]["string"], test_gpu(1));
  EXPECT_EQ(json["attributes"]["type"]["string"], "gpu");
  EXPECT_EQ(json["attributes"]["productName"]["string"], "NVIDIA H200");
  EXPECT_EQ(json["attributes"]["driverVersion"]["version"], "550.54.15");
  EXPECT_EQ(json["attributes"]["cudaVersion"]["version"], "12.4.0");
  EXPECT_EQ(json["attributes"]["resource.kubernetes.io/pcieRoot"]["string"], "pci0000:17");
  EXPECT_EQ(json["attributes"]["numaNode"]["int"], 1);
  EXPECT_FALSE(json.contains("taints"));
  EXPECT_FALSE(model_of({{"memory-1", kTestGib, true, -1}, "", "", "", "", "", ""}, {}));
  EXPECT_FALSE(model_of({{test_gpu(1), 1000, true, -1}, "", "", "", "", "", ""}, {}));
  EXPECT_EQ(model_of({{"MIG-00000001-0000-4000-8000-00000000000A", kTestGib, true, -1}, "", "", "", "", "", ""}, {})->texts["type"], "mig");
}

TEST(DraDeviceModel, GpusThatNvlinkJoinsAreOneGroup) {
  const auto json_of = [](int gpu, std::optional<std::vector<std::string>> peers) {
    DeviceFacts facts;
    facts.gpu = {test_gpu(gpu), 16 * kTestGib, true, -1};
    facts.nvlink_peers = std::move(peers);
    return device_json(*model_of(facts, {}))["attributes"];
  };
  const Json first = json_of(1, std::vector{test_gpu(2), test_gpu(3)});
  const Json second = json_of(2, std::vector{test_gpu(3), test_gpu(1)});
  EXPECT_EQ(first["nvlinkPeers"]["int"], 2);
  EXPECT_EQ(first["nvlinkGroup"], second["nvlinkGroup"]);
  EXPECT_NE(first["nvlinkGroup"], json_of(3, std::vector{test_gpu(1)})["nvlinkGroup"]) << "it is not joined to all of them";
  EXPECT_NE(first["nvlinkGroup"], json_of(4, std::vector{test_gpu(5)})["nvlinkGroup"]);
  EXPECT_LE(first["nvlinkGroup"]["string"].get<std::string>().size(), 64u);
  const Json lone = json_of(6, std::vector<std::string>{});
  EXPECT_EQ(lone["nvlinkPeers"]["int"], 0);
  EXPECT_FALSE(lone.contains("nvlinkGroup"));
  EXPECT_FALSE(json_of(7, std::nullopt).contains("nvlinkPeers")) << "not known";
}

TEST(DraDeviceModel, CapacitiesKeepTheRulesOfRequestPolicies) {
  const DeviceModels devices = test_devices(1, 81559LL << 20, 1.33);
  const Json capacity = device_json(devices[0])["capacity"];
  const std::pair<const char*, int64_t> steps[] = {{"memory", 1 << 20}, {"cores", 1}};
  for (const auto& [name, step] : steps) {
    const Json& policy = capacity[name]["requestPolicy"];
    const int64_t whole = *parse_quantity(capacity[name]["value"].get<std::string>());
    EXPECT_EQ(*parse_quantity(policy["default"].get<std::string>()), whole) << "whole by default";
    EXPECT_EQ(*parse_quantity(policy["validRange"]["max"].get<std::string>()), whole);
    EXPECT_EQ(*parse_quantity(policy["validRange"]["min"].get<std::string>()), 0);
    EXPECT_EQ(*parse_quantity(policy["validRange"]["step"].get<std::string>()), step);
    EXPECT_EQ(whole % step, 0);
  }
}

TEST(DraDeviceModel, VersionsAreSemanticOrLeftOut) {
  EXPECT_EQ(semantic_version("535.183.01"), "535.183.1");
  EXPECT_EQ(semantic_version("12.4"), "12.4.0");
  EXPECT_EQ(semantic_version("12"), "12.0.0");
  for (const char* none : {"", "12.", "a.b", "1.2.3.4", "-1.2", "1..2"}) EXPECT_EQ(semantic_version(none), "") << none;
}

TEST(DraDeviceModel, AGpuInTroubleIsTainted) {
  DeviceModels devices = test_devices(1);
  devices[0].ailment = "the driver reported XID 79 (off the bus!)";
  const Json taint = device_json(devices[0])["taints"].at(0);
  EXPECT_EQ(taint["key"], "gpu.nvshare.com/unhealthy");
  EXPECT_EQ(taint["value"], "the-driver-reported-XID-79-off-the-bus");
  EXPECT_EQ(taint["effect"], "NoSchedule");
}

TEST(DraResourceSlices, TheFirstSliceIsOwnedByTheNode) {
  const SlicePlan plan = plan_slices(kNode, test_devices(2), {});
  ASSERT_EQ(plan.creations.size(), 1U);
  const Json& slice = plan.creations[0];
  EXPECT_EQ(slice["apiVersion"], "resource.k8s.io/v1");
  EXPECT_EQ(slice["metadata"]["generateName"], "00000-gpu.nvshare.com-node-1-");
  EXPECT_EQ(slice["metadata"]["ownerReferences"],
            Json::array({{{"apiVersion", "v1"}, {"kind", "Node"}, {"name", "node-1"}, {"uid", "node-uid"}, {"controller", true}}}));
  EXPECT_EQ(slice["spec"]["driver"], "gpu.nvshare.com");
  EXPECT_EQ(slice["spec"]["nodeName"], "node-1");
  EXPECT_EQ(slice["spec"]["pool"], Json({{"name", "node-1"}, {"generation", 1}, {"resourceSliceCount", 1}}));
  EXPECT_EQ(slice["spec"]["devices"].size(), 2U);
  const SlicePlan empty = plan_slices(kNode, {}, {});
  ASSERT_EQ(empty.creations.size(), 1U);
  EXPECT_EQ(empty.creations[0]["spec"]["devices"], Json::array());
}

TEST(DraResourceSlices, WhatIsRightIsLeftAloneHoweverTheServerWritesIt) {
  Slices server;
  DeviceModels devices = test_devices(2);
  devices[1].ailment = "ill";
  server.apply(plan_slices(kNode, devices, server.seen()));
  server.at(0)["spec"]["devices"][0]["capacity"]["memory"]["value"] = "16384Mi";
  EXPECT_TRUE(plan_slices(kNode, devices, server.seen()).empty());
}

TEST(DraResourceSlices, OneChangedSliceKeepsItsGenerationAndTaintsTheirTime) {
  Slices server;
  DeviceModels devices = test_devices(2);
  devices[1].ailment = "ill";
  server.apply(plan_slices(kNode, devices, server.seen()));
  devices[0].ailment = "ill";
  const SlicePlan plan = plan_slices(kNode, devices, server.seen());
  ASSERT_EQ(plan.updates.size(), 1U);
  EXPECT_EQ(plan.updates[0]["spec"]["pool"]["generation"], 1);
  EXPECT_EQ(plan.updates[0]["spec"]["devices"][1]["taints"][0]["timeAdded"], "2026-01-01T00:00:00Z");
  EXPECT_FALSE(plan.updates[0]["spec"]["devices"][0]["taints"][0].contains("timeAdded"));
}

TEST(DraResourceSlices, SlicesOfOtherDriversAndNodesAreLeftAloneOwnOldPoolsAreNot) {
  Slices server;
  const DeviceModels devices = test_devices(1);
  server.apply(plan_slices(kNode, devices, server.seen()));
  const auto other = [&](const char* driver, const char* node, const char* pool) {
    server.add({{"metadata", {{"name", std::string("x-") + driver + node + pool}}},
                {"spec", {{"driver", driver}, {"nodeName", node}, {"pool", {{"name", pool}}}, {"devices", Json::array()}}}});
  };
  other("gpu.nvidia.com", kTestNode, kTestNode);
  other(kDriverName, "node-2", "node-2");
  other(kDriverName, kTestNode, "old-pool");
  const SlicePlan plan = plan_slices(kNode, devices, server.seen());
  ASSERT_EQ(plan.removals.size(), 1U);
  EXPECT_EQ(plan.removals[0].name, "x-gpu.nvshare.comnode-1old-pool");
  EXPECT_TRUE(plan.updates.empty() && plan.creations.empty());
}

TEST(DraResourceSlices, WhateverHappenedOneLookPutsItRight) {
  for (unsigned seed = 1; seed <= repeats(30u, 5); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
    Slices server;
    int64_t generation = 0;
    for (int round = 0; round < 6; ++round) {
      DeviceModels devices = many_devices(below(200));
      for (int i = 0; !devices.empty() && i < below(3); ++i)
        devices[static_cast<size_t>(below(static_cast<int>(devices.size())))].ailment = "ill";
      server.apply(plan_slices(kNode, devices, server.seen()));
      server.expect_consistent(devices);
      EXPECT_GE(server.generation(), generation) << "seed " << seed;
      generation = server.generation();
      EXPECT_TRUE(plan_slices(kNode, devices, server.seen()).empty()) << "seed " << seed;
      // Somebody else writes, or the kubelet removes all of them.
      const int what = below(4);
      if (what == 0) server.clear();
      if (what == 0) generation = 0;
      if (what == 1) server.at(0)["spec"]["devices"] = Json::array();
      if (what == 2) server.at(0)["spec"]["pool"]["resourceSliceCount"] = 99;
    }
  }
}

TEST(DraResourceSlices, WhatTheServerDropsIsSaidWithItsGate) {
  DeviceModels devices = test_devices(1);
  devices[0].ailment = "ill";
  const Json sent = plan_slices(kNode, devices, {}).creations[0];
  EXPECT_TRUE(check_stored(sent, sent));
  const auto without = [&](const std::function<void(Json&)>& drop) {
    Json stored = sent;
    drop(stored["spec"]["devices"][0]);
    const auto ok = check_stored(sent, stored);
    return std::string(ok ? "" : ok.error().text);
  };
  EXPECT_NE(without([](Json& d) { d.erase("allowMultipleAllocations"); }).find("DRAConsumableCapacity"), std::string::npos);
  EXPECT_NE(without([](Json& d) { d["capacity"]["memory"].erase("requestPolicy"); }).find("DRAConsumableCapacity"), std::string::npos);
  EXPECT_NE(without([](Json& d) { d.erase("taints"); }).find("DRADeviceTaints"), std::string::npos);
  EXPECT_NE(without([](Json& d) { d = nullptr; }), "");
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
