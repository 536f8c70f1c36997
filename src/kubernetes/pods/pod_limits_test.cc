#include "kubernetes/pods/pod_limits.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kubernetes/test_amounts.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;

const ResourceNames kNames = {"nvshare.com/gpu", "nvshare.com/gpu-memory", "nvshare.com/gpu-core", {}};

Json container(int gpus, int memory, int cores = 0) {
  Json limits = {{"cpu", "500m"}};
  if (gpus > 0) limits["nvshare.com/gpu"] = std::to_string(gpus);
  if (memory > 0) limits["nvshare.com/gpu-memory"] = std::to_string(memory);
  if (cores > 0) limits["nvshare.com/gpu-core"] = std::to_string(cores);
  return {{"name", "main"}, {"resources", {{"limits", limits}}}};
}

Json pod_with(std::vector<Json> containers, Json annotations = Json::object()) {
  return {{"metadata", {{"uid", "0b4e-1"}, {"namespace", "team"}, {"name", "train"}, {"annotations", std::move(annotations)}}},
          {"spec", {{"containers", std::move(containers)}}},
          {"status", {{"phase", "Running"}}}};
}

WatchedPod watched(const Json& json) {
  auto pod = read_pod(json.dump(), kNames);
  EXPECT_TRUE(pod) << (pod ? "" : pod.error().text);
  return pod ? *pod : WatchedPod{};
}

WatchedPod granted(int memory, int cores, Json annotations) {
  return watched(pod_with({container(1, memory, cores)}, std::move(annotations)));
}

TEST(PodAllocations, AreWhatTheContainersHaveTogether) {
  EXPECT_EQ(watched(pod_with({container(1, 4)})).memory_granted, 4 * kGib);
  EXPECT_EQ(watched(pod_with({container(1, 4), container(1, 2)})).memory_granted, 6 * kGib);
  EXPECT_EQ(watched(pod_with({container(1, 4), container(0, 0)})).memory_granted, 4 * kGib) << "one without a GPU";
  EXPECT_EQ(watched(pod_with({container(1, 4), container(1, 0)})).memory_granted, 0) << "one that is not limited";
  Json pod = pod_with({container(1, 4, 30)});
  pod["spec"]["initContainers"] = {container(1, 7, 20)};
  EXPECT_EQ(watched(pod).memory_granted, 7 * kGib) << "it runs before the others";
  EXPECT_EQ(watched(pod).core_granted, 30);
  pod["spec"]["initContainers"][0]["restartPolicy"] = "Always";
  EXPECT_EQ(watched(pod).memory_granted, 11 * kGib) << "a sidecar runs beside them";
  EXPECT_EQ(watched(pod).core_granted, 50);
  EXPECT_EQ(watched(pod_with({container(1, 0)})).core_granted, 100);
  EXPECT_FALSE(watched(pod_with({container(0, 0)})).ours);
  EXPECT_TRUE(watched(pod_with({container(0, 0)}, {{kCoreAnnotation, "5"}})).ours);
  for (const char* bad : {"", "[]", "null", "{}", R"({"metadata":{"uid":5}})", R"({"metadata":{"uid":"a","name":"b"}})",
                          R"({"metadata":{"uid":"../a","namespace":"team","name":"b"}})"}) {
    EXPECT_FALSE(read_pod(bad, kNames)) << bad;
  }
  pod = pod_with({container(1, 4)});
  pod["status"] = Json::parse(std::string(100, '[') + std::string(100, ']'));
  EXPECT_FALSE(read_pod(pod.dump(), kNames)) << "it nests deeper than any pod";
}

TEST(PodAllocations, AmountsAreReadAsTheApiServerWritesThem) {
  const auto memory = [](const Json& amount) {
    Json one = container(1, 0);
    one["resources"]["limits"]["nvshare.com/gpu-memory"] = amount;
    ResourceNames names = kNames;
    names.division.memory_unit = 1 << 20;
    auto pod = read_pod(pod_with({one}).dump(), names);
    return pod ? pod->memory_granted >> 20 : int64_t{-1};
  };
  EXPECT_EQ(memory("8k"), 8000);
  EXPECT_EQ(memory("8Ki"), 8192);
  EXPECT_EQ(memory("12"), 12);
  EXPECT_EQ(memory(12), 12);
  EXPECT_EQ(memory("2M"), 2'000'000);
  EXPECT_EQ(memory("1e3"), 1000);
  EXPECT_EQ(memory("1E"), 1 << 30) << "more than any node has";
  EXPECT_EQ(memory("999999999999999999"), 1 << 30);
  for (const char* bad : {"", "k", "8kk", "8ki", "8x", "-1", "1.5", "1e", "1e99", "8 k"}) EXPECT_EQ(memory(bad), -1) << bad;
}

TEST(PodAllocations, TheDefaultCountsForContainersThatAskForNoMemory) {
  ResourceNames names = kNames;
  names.division.default_memory = kGib / 2;
  const auto memory = [&](std::vector<Json> containers) { return read_pod(pod_with(std::move(containers)).dump(), names)->memory_granted; };
  EXPECT_EQ(memory({container(1, 0)}), kGib / 2);
  EXPECT_EQ(memory({container(1, 4), container(1, 0), container(0, 0)}), 4 * kGib + kGib / 2);
  PodLimits limits;
  const auto annotated = [&](const char* text) {
    return limits.update(*read_pod(pod_with({container(1, 0)}, {{kMemoryAnnotation, text}}).dump(), names));
  };
  EXPECT_EQ(annotated("1Gi").notices.at(0).reason, "LimitClamped") << "it is lowered only, as every other grant";
  EXPECT_EQ(annotated("128Mi").limits.at(0).gpu_memory_limit, kGib / 8);
}

std::string shown(const PodLimits& limits) {
  std::string text;
  for (const auto& pod : limits.all()) {
    text += pod.name + " " + std::to_string(pod.gpu_memory_limit >> 20) + "Mi " + std::to_string(pod.gpu_core_limit) + "%;";
  }
  return text;
}

TEST(PodLimits, AnnotationsLowerAndTheirRemovalRestoresTheGrant) {
  PodLimits limits;
  EXPECT_EQ(limits.update(granted(4, 0, Json::object())).limits.size(), 1u);
  EXPECT_EQ(shown(limits), "team/train 4096Mi 100%;");
  auto changes = limits.update(granted(4, 0, {{kMemoryAnnotation, "1536Mi"}, {kCoreAnnotation, "30"}}));
  EXPECT_EQ(shown(limits), "team/train 1536Mi 30%;");
  EXPECT_TRUE(changes.notices.empty());
  ASSERT_EQ(changes.audit.size(), 2u);
  const Json audit = Json::parse(changes.audit[1]);
  EXPECT_EQ(audit["pod"], "team/train");
  EXPECT_EQ(audit["old"], "none");
  EXPECT_EQ(audit["new"], "30");
  EXPECT_TRUE(limits.update(granted(4, 0, {{kMemoryAnnotation, "1536Mi"}, {kCoreAnnotation, "30"}})).limits.empty()) << "nothing changed";
  EXPECT_EQ(limits.update(granted(4, 0, {{kCoreAnnotation, "30"}})).audit.size(), 1u);
  EXPECT_EQ(shown(limits), "team/train 4096Mi 30%;");
  limits.update(granted(4, 0, Json::object()));
  EXPECT_EQ(shown(limits), "team/train 4096Mi 100%;");
}

// The granted resource is reserved; an annotation lowers it with the ceiling, and reserves nothing by itself unless the cluster has it so.
TEST(PodLimits, OnlyGrantedGpuTimeIsReserved) {
  const auto reserved = [](bool annotations_reserve, int granted, const char* annotation) {
    PodLimits limits(0, {}, annotations_reserve);
    WatchedPod pod;
    pod.uid = "0b4e";
    pod.name_space = "team";
    pod.name = "train";
    pod.ours = true;
    pod.core_granted = granted == 0 ? 100 : granted;
    pod.core_reserved = granted;
    if (*annotation != 0) pod.annotations[kCoreAnnotation] = annotation;
    limits.update(pod);
    PodLimits next(0, {}, annotations_reserve);  // what the next plugin finds
    EXPECT_TRUE(next.restore(limits.record()));
    EXPECT_EQ(next.all().at(0).gpu_core_reserved, limits.all().at(0).gpu_core_reserved);
    return std::pair(limits.all().at(0).gpu_core_limit, limits.all().at(0).gpu_core_reserved);
  };
  EXPECT_EQ(reserved(false, 50, ""), std::pair(50, 50));
  EXPECT_EQ(reserved(false, 50, "30"), std::pair(30, 30));
  EXPECT_EQ(reserved(false, 50, "99"), std::pair(50, 50));
  EXPECT_EQ(reserved(false, 0, "95"), std::pair(95, 0));
  EXPECT_EQ(reserved(false, 100, ""), std::pair(100, 100)) << "all of the GPU, granted";
  EXPECT_EQ(reserved(true, 0, "95"), std::pair(95, 95));
  EXPECT_EQ(reserved(true, 50, "95"), std::pair(50, 50)) << "and never more than was granted";
}

TEST(PodLimits, WhoChangedItIsInTheAuditLine) {
  Json pod = pod_with({container(1, 4)}, {{kCoreAnnotation, "30"}});
  pod["metadata"]["managedFields"] = {
      {{"manager", "kubelet"}, {"fieldsV1", {{"f:status", Json::object()}}}},
      {{"manager", "kubectl-annotate"},
       {"fieldsV1", {{"f:metadata", {{"f:annotations", {{"f:nvshare.com/gpu-core-limit", Json::object()}}}}}}}}};
  PodLimits limits;
  auto changes = limits.update(watched(pod));
  ASSERT_EQ(changes.audit.size(), 2u);
  EXPECT_EQ(Json::parse(changes.audit[1])["by"], "kubectl-annotate");
}

TEST(PodLimits, MoreThanWasGrantedIsClampedAndToldOnce) {
  PodLimits limits;
  auto changes = limits.update(granted(4, 50, {{kMemoryAnnotation, "8Gi"}, {kCoreAnnotation, "80"}}));
  EXPECT_EQ(shown(limits), "team/train 4096Mi 50%;");
  ASSERT_EQ(changes.notices.size(), 2u);
  EXPECT_EQ(changes.notices[0].reason, "LimitClamped");
  EXPECT_NE(changes.notices[0].text.find("'8Gi' is more than the pod was granted; its limit is 4096Mi"), std::string::npos);
  EXPECT_TRUE(limits.update(granted(4, 50, {{kMemoryAnnotation, "8Gi"}, {kCoreAnnotation, "80"}})).notices.empty());
  EXPECT_EQ(limits.update(granted(4, 50, {{kMemoryAnnotation, "9Gi"}, {kCoreAnnotation, "80"}})).notices.size(), 1u);
}

TEST(NamespaceMaxima, AreReadAndFound) {
  auto maxima = parse_namespace_maxima("team-a:gpu-memory=16Gi,gpu-core=50;batch:gpu-core=20;*:gpu-memory=512Mi");
  ASSERT_TRUE(maxima) << maxima.error().text;
  EXPECT_EQ(maximum_of(*maxima, "team-a"), (NamespaceMaximum{16 * kGib, 50}));
  EXPECT_EQ(maximum_of(*maxima, "batch"), (NamespaceMaximum{0, 20}));
  EXPECT_EQ(maximum_of(*maxima, "other"), (NamespaceMaximum{kGib / 2, 100}));
  EXPECT_EQ(maximum_of(NamespaceMaxima{}, "other"), NamespaceMaximum{});
  ASSERT_TRUE(parse_namespace_maxima("none"));
  EXPECT_TRUE(parse_namespace_maxima("none")->empty());
  const auto bad = parse_namespace_maxima("team-a:gpu-core=50;team-b:gpu-memory=8");
  ASSERT_FALSE(bad);
  EXPECT_NE(std::string(bad.error().text).find("team-b: gpu-memory '8'"), std::string::npos) << bad.error().text;
}

TEST(NamespaceMaxima, LowerWhatWasGrantedAndWhatAnnotationsSayAndAreTold) {
  const NamespaceMaxima maxima = {{"team", {2 * kGib, 40}}};
  PodLimits limits(0, maxima);
  auto changes = limits.update(granted(4, 50, {}));
  EXPECT_EQ(shown(limits), "team/train 2048Mi 40%;");
  ASSERT_EQ(changes.notices.size(), 1u);
  EXPECT_EQ(changes.notices[0].reason, "LimitClamped");
  EXPECT_EQ(changes.notices[0].text,
            "of the 4096Mi of GPU memory that it was granted a pod of its namespace may have 2048Mi; of the 50 % of GPU time that it was "
            "granted a pod of its namespace may have 40 %");
  EXPECT_TRUE(limits.update(granted(4, 50, {})).notices.empty()) << "reported once";

  changes = limits.update(granted(4, 50, {{kMemoryAnnotation, "3Gi"}, {kCoreAnnotation, "45"}}));
  EXPECT_EQ(shown(limits), "team/train 2048Mi 40%;");
  ASSERT_EQ(changes.notices.size(), 2u);
  EXPECT_NE(changes.notices[0].text.find("'3Gi' is more than a pod of its namespace may have; its limit is 2048Mi"), std::string::npos);
  EXPECT_NE(changes.notices[1].text.find("'45' is more than a pod of its namespace may have; its limit is 40 %"), std::string::npos);
  limits.update(granted(4, 50, {{kMemoryAnnotation, "1Gi"}, {kCoreAnnotation, "10"}}));
  EXPECT_EQ(shown(limits), "team/train 1024Mi 10%;");
  limits.update(granted(0, 0, {}));
  EXPECT_EQ(shown(limits), "team/train 2048Mi 40%;") << "a pod that was granted without a limit";
  EXPECT_TRUE(limits.update(granted(1, 30, {})).notices.empty());
  EXPECT_EQ(shown(limits), "team/train 1024Mi 30%;");

  PodLimits before;
  before.update(granted(4, 50, {}));
  ASSERT_TRUE(limits.restore(before.record()));
  EXPECT_EQ(shown(limits), "team/train 2048Mi 40%;") << "a record of a plugin that knew no maximum";
}

TEST(PodLimits, ABadValueKeepsTheLastGoodOneAndIsTold) {
  PodLimits limits;
  limits.update(granted(4, 0, {{kMemoryAnnotation, "2Gi"}, {kCoreAnnotation, "30"}}));
  for (const char* bad : {"", "0", "101", "-5", "30%", "3.5", "thirty", "99999999999999999999"}) {
    auto changes = limits.update(granted(4, 0, {{kMemoryAnnotation, "2Gi"}, {kCoreAnnotation, bad}}));
    ASSERT_EQ(changes.notices.size(), 1u) << bad;
    EXPECT_EQ(changes.notices[0].reason, "BadLimit");
    EXPECT_NE(changes.notices[0].text.find("1 to 100"), std::string::npos);
    EXPECT_TRUE(changes.audit.empty());
  }
  for (const char* bad : {"", "8", "2000000000", "0Gi", "8G", "-1Gi", "Gi", "much", "9999999999Ti"}) {
    auto changes = limits.update(granted(4, 0, {{kMemoryAnnotation, bad}, {kCoreAnnotation, "30"}}));
    ASSERT_EQ(changes.notices.size(), 1u) << bad;
    EXPECT_EQ(shown(limits), "team/train 2048Mi 30%;");
  }
  auto shouted = limits.update(granted(4, 0, {{kMemoryAnnotation, "2Gi"}, {kCoreAnnotation, std::string(5000, 'x')}}));
  ASSERT_EQ(shouted.notices.size(), 1u);
  EXPECT_LT(shouted.notices[0].text.size(), 300u);
}

TEST(PodLimits, ABadValueThatNoGoodOneCameBeforeGivesTheLeastUntilItIsPutRight) {
  PodLimits limits;
  const auto changes = limits.update(granted(4, 0, {{kMemoryAnnotation, "4gb"}, {kCoreAnnotation, "4O"}}));
  EXPECT_EQ(shown(limits), "team/train 1Mi 1%;");
  ASSERT_EQ(changes.notices.size(), 2u);
  EXPECT_NE(changes.notices[0].text.find("'4gb' is no limit; until it is put right 1Mi holds"), std::string::npos)
      << changes.notices[0].text;
  EXPECT_NE(changes.notices[1].text.find("'4O' is no limit; until it is put right 1 % holds"), std::string::npos)
      << changes.notices[1].text;
  PodLimits restarted;
  ASSERT_TRUE(restarted.restore(limits.record()));
  restarted.update(granted(4, 0, {{kMemoryAnnotation, "4gb"}, {kCoreAnnotation, "4O"}}));
  EXPECT_EQ(shown(restarted), "team/train 1Mi 1%;") << "nor does a restart";
  limits.update(granted(4, 0, {{kMemoryAnnotation, "2Gi"}, {kCoreAnnotation, "40"}}));
  EXPECT_EQ(shown(limits), "team/train 2048Mi 40%;");
}

TEST(PodLimits, WhatPeopleWroteIsToldInOneLine) {
  PodLimits limits;
  const auto changes = limits.update(granted(4, 0, {{kMemoryAnnotation, "1Gi\naudit: all is well\x1b[2J"}, {kCoreAnnotation, "1\r2"}}));
  ASSERT_EQ(changes.notices.size(), 2u);
  for (const auto& notice : changes.notices) EXPECT_EQ(notice.text.find_first_of("\n\r\x1b"), std::string::npos) << notice.text;
  EXPECT_NE(changes.notices[0].text.find("'1Gi?audit: all is well?[2J'"), std::string::npos) << changes.notices[0].text;
  for (const std::string& line : changes.audit) EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

// One UID that the scheduler does not take would have it refuse the limits of all.
TEST(PodLimits, APodThatCannotBeIsLeftOutOfARecordAndTheOthersAreRead) {
  PodLimits before;
  before.update(granted(4, 50, {}));
  Json record = Json::parse(before.record());
  const Json good = record["pods"][0];
  for (const char* uid : {"", "uid", "0b4e\n", "0B4E", "0b4e/..", "00000000000000000000000000000000000000000000000000000000000000000"}) {
    record["pods"].push_back(good);
    record["pods"].back()["uid"] = uid;
  }
  record["pods"].push_back(good);
  record["pods"].back()["uid"] = "77aa";
  record["pods"].back()["gpu_core_limit"] = 0;
  record["pods"].push_back(good);
  record["pods"].back()["uid"] = "88aa";
  record["pods"].back()["gpu_memory_limit"] = (int64_t{1} << 50) + 1;
  PodLimits limits;
  auto left_out = limits.restore(record.dump());
  ASSERT_TRUE(left_out) << left_out.error().text;
  EXPECT_EQ(shown(limits), "team/train 4096Mi 50%;");
  ASSERT_EQ(left_out->size(), 8u);
  EXPECT_EQ(left_out->at(2), "pod '0b4e?' has no UID of hexadecimal digits and '-'; it is left out");
  EXPECT_EQ(left_out->at(6), "pod '77aa' has an impossible limit; it is left out");
  EXPECT_EQ(left_out->at(7), "pod '88aa' has an impossible limit; it is left out");
  for (const char* number :
       {"1.5", "1e116", "99999999999999999999"}) {  // persisted_fuzz: what such a one is as a whole number is undefined
    Json other = record;
    other["pods"][0]["gpu_memory_limit"] = Json::parse(number);
    EXPECT_FALSE(PodLimits().restore(other.dump())) << number;
  }
  record["other"] = Json::parse(std::string(100, '[') + std::string(100, ']'));
  EXPECT_FALSE(limits.restore(record.dump())) << "it nests deeper than what this program writes";
}

TEST(PodLimits, PriorityOnlyLowersUnlessTheNodeAllowsMore) {
  const auto priority = [](PodLimits& limits) { return limits.all().at(0).priority; };
  PodLimits limits;
  auto changes = limits.update(granted(4, 0, {{kPriorityAnnotation, "-5"}}));
  EXPECT_TRUE(changes.notices.empty());
  EXPECT_EQ(priority(limits), -5);
  EXPECT_EQ(Json::parse(changes.audit.back())["new"], "-5");
  for (const char* bad : {"", "high", "1.5", "101", "-101"}) {
    changes = limits.update(granted(4, 0, {{kPriorityAnnotation, bad}}));
    ASSERT_EQ(changes.notices.size(), 1u) << bad;
    EXPECT_EQ(changes.notices[0].reason, "BadPriority");
    EXPECT_EQ(priority(limits), -5) << bad;
  }
  changes = limits.update(granted(4, 0, {{kPriorityAnnotation, "5"}}));
  ASSERT_EQ(changes.notices.size(), 1u);
  EXPECT_EQ(changes.notices[0].reason, "PriorityClamped");
  EXPECT_NE(changes.notices[0].text.find("its priority is 0"), std::string::npos) << changes.notices[0].text;
  EXPECT_EQ(priority(limits), 0);
  PodLimits generous(10);
  EXPECT_TRUE(generous.update(granted(4, 0, {{kPriorityAnnotation, "10"}})).notices.empty());
  EXPECT_EQ(priority(generous), 10);
  generous.update(granted(4, 0, {{kPriorityAnnotation, "11"}}));
  EXPECT_EQ(priority(generous), 10);
  generous.update(granted(4, 0, Json::object()));
  EXPECT_EQ(priority(generous), 0);
}

TEST(PodLimits, ADeletionIsPassedOnOnce) {
  PodLimits limits;
  limits.update(granted(4, 0, Json::object()));
  Json pod = pod_with({container(1, 4)});
  pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  auto changes = limits.update(watched(pod));
  ASSERT_EQ(changes.limits.size(), 1u);
  EXPECT_TRUE(changes.limits[0].ends);
  EXPECT_FALSE(changes.limits[0].gone) << "it runs on, for its grace period";
  EXPECT_TRUE(limits.update(watched(pod)).limits.empty());
}

// A pod that is gone keeps its limits for as long as it has processes; one whose annotations were removed has none any more.
TEST(PodLimits, APodThatHasNothingOfOursAnyMoreIsSaidToHaveNoLimits) {
  PodLimits limits;
  WatchedPod pod;
  pod.uid = "0b4e";
  pod.name_space = "team";
  pod.name = "train";
  EXPECT_TRUE(limits.update(pod).limits.empty()) << "nothing was asked for";
  pod.ours = true;
  pod.annotations[kCoreAnnotation] = "30";
  ASSERT_EQ(limits.update(pod).limits.size(), 1u);
  pod.ours = false;
  pod.annotations.clear();
  const auto changes = limits.update(pod);
  ASSERT_EQ(changes.limits.size(), 1u);
  EXPECT_FALSE(changes.limits[0].gone);
  EXPECT_EQ(changes.limits[0].gpu_core_limit, 100);
  EXPECT_EQ(limits.all().size(), 1u) << "a scheduler that starts anew gets it, too";
  EXPECT_TRUE(limits.remove("0b4e").limits.at(0).gone);
}

TEST(PodLimits, PodsThatEndOrAreMissingFromTheListAreGone) {
  PodLimits limits;
  limits.update(granted(4, 0, Json::object()));
  Json ended = pod_with({container(1, 4)});
  ended["status"]["phase"] = "Succeeded";
  auto changes = limits.update(watched(ended));
  ASSERT_EQ(changes.limits.size(), 1u);
  EXPECT_TRUE(changes.limits[0].gone);
  limits.update(granted(4, 0, Json::object()));
  Json other = pod_with({container(1, 2)});
  other["metadata"]["uid"] = "0b4e-2";
  changes = limits.replace({watched(other)});
  EXPECT_EQ(changes.limits.size(), 2u);
  EXPECT_EQ(shown(limits), "team/train 2048Mi 100%;");
}

}  // namespace
}  // namespace nvshare::kubernetes
