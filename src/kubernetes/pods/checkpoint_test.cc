// What pods were granted, as read from a kubelet's checkpoint, and what becomes of it beside what the API server says.
#include "kubernetes/pods/checkpoint.h"

#include <gtest/gtest.h>

#include "kubernetes/pods/test_checkpoint.h"
#include "kubernetes/test_amounts.h"

namespace nvshare::kubernetes {
namespace {

using protocol::admin::PodRequest;

constexpr char kTrain[] = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
constexpr char kGpu[] = "nvshare.com/gpu";
constexpr char kMemory[] = "nvshare.com/gpu-memory";
constexpr char kCore[] = "nvshare.com/gpu-core";

std::set<std::string> ids(Resource resource, int from, int count) {
  std::set<std::string> all;
  for (int i = from; i < from + count; ++i) all.insert(unit_id(resource, i));
  return all;
}

CheckpointEntry gpus(const std::string& container, std::set<std::string> devices) { return {kTrain, container, kGpu, std::move(devices)}; }
CheckpointEntry memory(const std::string& container, int from, int count) {
  return {kTrain, container, kMemory, ids(Resource::kMemory, from, count)};
}
CheckpointEntry cores(const std::string& container, int from, int count) {
  return {kTrain, container, kCore, ids(Resource::kCore, from, count)};
}

ResourceNames names(int64_t default_memory = 0) {
  ResourceNames names{kGpu, kMemory, kCore, {}};
  names.division.default_memory = default_memory;
  return names;
}

PodAllocation granted(const std::vector<CheckpointEntry>& entries, CheckpointLayout layout = CheckpointLayout::kByNumaNode,
                      int64_t default_memory = 0) {
  auto read = read_checkpoint(checkpoint_text(entries, layout, {{kGpu, {"GPU-a::0"}}}), names(default_memory));
  EXPECT_TRUE(read) << (read ? "" : read.error().text);
  if (!read || !read->pods.contains(kTrain)) return {};
  EXPECT_TRUE(read->unread.empty());
  EXPECT_TRUE(read->whole && read->half_read.empty());
  return allocation_of(read->pods[kTrain], names(default_memory).division);
}

using OnGpus = std::map<std::string, int64_t>;

TEST(Checkpoint, APodHasWhatItsContainersHave) {
  for (CheckpointLayout layout : {CheckpointLayout::kByNumaNode, CheckpointLayout::kList}) {
    PodAllocation allocation = granted({gpus("main", {"GPU-a::1"}),
                                        memory("main", 0, 4),
                                        cores("main", 0, 30),
                                        gpus("other", {"GPU-a::2"}),
                                        memory("other", 4, 2),
                                        cores("other", 30, 20),
                                        {"77aa", "x", "example.com/disk", {"disk-1"}}},
                                       layout);
    EXPECT_EQ(allocation.gpus, (std::set<std::string>{"GPU-a::1", "GPU-a::2"}));
    EXPECT_EQ(allocation.memory, 6 * kGib);
    EXPECT_EQ(allocation.memory_on, (OnGpus{{"GPU-a", 6 * kGib}}));
    EXPECT_EQ(allocation.core, 50);
  }
}

TEST(Checkpoint, SeveralGpusHaveAnEvenPartEach) {
  PodAllocation allocation = granted({gpus("main", {"GPU-a::1", "GPU-b::0"}), memory("main", 0, 8), cores("main", 0, 100),
                                      gpus("other", {"GPU-b::1"}), memory("other", 8, 2), cores("other", 100, 10)});
  EXPECT_EQ(allocation.memory, 10 * kGib);
  EXPECT_EQ(allocation.memory_on, (OnGpus{{"GPU-a", 4 * kGib}, {"GPU-b", 6 * kGib}}));
  EXPECT_EQ(allocation.core, 60) << "on the GPU where it has most";
}

TEST(Checkpoint, WhoAsksForNoMemoryIsBoundByTheDefaultOrByNothing) {
  const std::vector<CheckpointEntry> entries = {gpus("main", {"GPU-a::1"}), memory("main", 0, 4), gpus("free", {"GPU-b::1"})};
  PodAllocation allocation = granted(entries);
  EXPECT_EQ(allocation.memory, 0);
  EXPECT_EQ(allocation.memory_on, (OnGpus{{"GPU-a", 4 * kGib}})) << "where it has a bound, it holds";
  EXPECT_EQ(allocation.core, 100);
  allocation = granted(entries, CheckpointLayout::kByNumaNode, 3 * kGib);
  EXPECT_EQ(allocation.memory, 7 * kGib);
  EXPECT_EQ(allocation.memory_on, (OnGpus{{"GPU-a", 4 * kGib}, {"GPU-b", 3 * kGib}}));
  EXPECT_TRUE(granted({memory("main", 0, 4)}).gpus.empty()) << "without a GPU it does not start";
}

// The kubelet gives an init container's devices to the containers after it, and writes down both.
TEST(Checkpoint, AnInitContainersUnitsCountOnce) {
  PodAllocation allocation = granted({gpus("init", {"GPU-a::1"}), memory("init", 0, 8), gpus("main", {"GPU-a::1"}), memory("main", 0, 4)});
  EXPECT_EQ(allocation.memory, 8 * kGib);
  PodRequest limits = limits_with(nullptr, &allocation, kTrain, "team/train");
  EXPECT_EQ(limits.gpu_memory_limit, 8 * kGib);
  EXPECT_TRUE(limits.gpu_memory_on.empty()) << "no lower than the pod's own";
}

TEST(Checkpoint, EmptyOnesGrantNothing) {
  for (const char* text : {R"({"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1})",
                           R"({"Data":{"PodDeviceEntries":[]}})", R"({"Data":{"RegisteredDevices":null},"Checksum":7,"BootID":"x"})"}) {
    auto read = read_checkpoint(text, names());
    ASSERT_TRUE(read) << text;
    EXPECT_TRUE(read->pods.empty());
  }
}

TEST(Checkpoint, WhatIsNotUnderstoodIsNamedAndTheRestIsRead) {
  const std::string good = checkpoint_text({gpus("main", {"GPU-a::1"}), memory("main", 0, 4)});
  for (size_t length = 0; length < good.size(); length += 7) {
    EXPECT_FALSE(read_checkpoint(std::string_view(good).substr(0, length), names())) << "half a file: " << length;
  }
  for (const char* text : {"[]", "3", R"({"Data":[]})", R"({"Data":{"PodDeviceEntries":{}}})", R"({"PodDeviceEntries":[]})"}) {
    auto read = read_checkpoint(text, names());
    ASSERT_FALSE(read) << text;
    EXPECT_NE(std::string(read.error().text).find("Data.PodDeviceEntries"), std::string::npos) << read.error().text;
  }
  auto deep = read_checkpoint(R"({"Data":{"PodDeviceEntries":[]},"other":)" + std::string(100, '[') + std::string(100, ']') + "}", names());
  ASSERT_FALSE(deep);
  EXPECT_NE(std::string(deep.error().text).find("nests"), std::string::npos) << deep.error().text;
  auto read = read_checkpoint(R"({"Data":{"PodDeviceEntries":[
      3,
      {"PodUID":"../\nx","ContainerName":"a","ResourceName":"nvshare.com/gpu","DeviceIDs":["GPU-a::1"]},
      {"PodUID":"aa","ContainerName":"a","ResourceName":"nvshare.com/gpu","DeviceIDs":["GPU-a::1"]},
      {"PodUID":"aa","ContainerName":"a","ResourceName":"nvshare.com/gpu-memory","DeviceIDs":{"0":"memory-1"}},
      {"PodUID":"bb","ContainerName":"a","ResourceName":"nvshare.com/gpu","DeviceIDs":{"0":["GPU-a::1"],"1":["GPU-b::1"]},"New":{}},
      {"PodUID":"cc","ResourceName":"nvshare.com/gpu","DeviceIDs":["GPU-a::2"]}
      ]}})",
                              names());
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_FALSE(read->whole) << "two entries may be any pod's";
  EXPECT_EQ(read->half_read, (std::set<std::string>{"aa", "cc"}));
  ASSERT_EQ(read->unread.size(), 4u);
  EXPECT_EQ(read->unread[0], "an entry has no resource's name");
  EXPECT_EQ(read->unread[1], "an entry of '../?x' has no pod's UID");
  EXPECT_NE(read->unread[2].find("pod aa, container a"), std::string::npos);
  EXPECT_NE(read->unread[3].find("pod cc has no container's name"), std::string::npos);
  EXPECT_EQ(read->pods.at("bb").at("a").gpus.size(), 2u);
  auto other = read_checkpoint(
      R"({"Data":{"PodDeviceEntries":[{"PodUID":5,"ContainerName":"a","ResourceName":"example.com/x","DeviceIDs":3}]}})", names());
  ASSERT_TRUE(other);
  EXPECT_TRUE(other->whole && other->unread.empty() && other->pods.empty()) << "another plugin's";
}

TEST(Checkpoint, LowersWhatTheApiServerSaysAndNeverRaisesIt) {
  PodAllocation allocation;
  allocation.memory = 10 * kGib;
  allocation.core = 40;
  allocation.memory_on = {{"GPU-a", 4 * kGib}, {"GPU-b", 6 * kGib}};
  PodRequest said{kTrain, "team/train", 5 * kGib, 60, false, -3, true, {}};
  PodRequest limits = limits_with(&said, &allocation, kTrain, "ignored");
  EXPECT_EQ(limits.name, "team/train");
  EXPECT_EQ(limits.gpu_memory_limit, 5 * kGib);
  EXPECT_EQ(limits.gpu_memory_on, (OnGpus{{"GPU-a", 4 * kGib}}));
  EXPECT_EQ(limits.gpu_core_limit, 40);
  EXPECT_EQ(limits.priority, -3);
  EXPECT_TRUE(limits.ends);
  said.gpu_core_limit = 20;
  EXPECT_EQ(limits_with(&said, &allocation, kTrain, "").gpu_core_limit, 20);
  EXPECT_EQ(limits_with(&said, nullptr, kTrain, ""), said);
  limits = limits_with(nullptr, &allocation, kTrain, "");
  EXPECT_EQ(limits.name, kTrain);
  EXPECT_EQ(limits.gpu_memory_limit, 10 * kGib);
  EXPECT_EQ(limits.gpu_memory_on, allocation.memory_on);
}

}  // namespace
}  // namespace nvshare::kubernetes
