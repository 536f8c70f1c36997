// Which pods share claims, and what their annotations make of them.
#include "kubernetes/dra/claim_pods.h"

#include <gtest/gtest.h>

#include "kubernetes/dra/test_claims.h"

namespace nvshare::kubernetes::dra {
namespace {

using protocol::admin::PodRequest;

std::string pod_uid(int number) { return test_uid(900000 + number); }

WatchedPod watched(const Json& pod) {
  auto read = read_pod(pod.dump(), {});
  EXPECT_TRUE(read) << (read ? "" : read.error().text);
  return read ? *read : WatchedPod();
}

class DraClaimPods : public testing::Test {
 protected:
  // Claim `number` of GPU `gpu`, reserved for those pods.
  void prepare(int number, const std::vector<int>& pods, TestPart part = {}) {
    Json object = test_claim(number, {part});
    Json& reserved = object["status"]["reservedFor"];
    reserved = Json::array();
    for (const int pod : pods) reserved.push_back({{"resource", "pods"}, {"name", "pod-" + std::to_string(pod)}, {"uid", pod_uid(pod)}});
    auto claim = read_claim(object.dump(), test_claim_name(number), {kTestNode, devices_, 0});
    ASSERT_TRUE(claim) << claim.error().text;
    const auto ok = claims_.admit(*claim, devices_);
    ASSERT_TRUE(ok) << ok.error().text;
    changes_.add(pods_.compare(claims_));
  }
  void see(const Json& pod) { changes_.add(pods_.update(watched(pod), claims_)); }
  void see_with(int number, const std::vector<std::string>& claims, const char* annotation, const char* value,
                const char* phase = "Running") {
    Json pod = test_pod(number, claims, phase);
    pod["metadata"]["annotations"][annotation] = value;
    see(pod);
  }
  PodRequest of(int pod) {
    for (const PodRequest& limits : pods_.limits(claims_)) {
      if (limits.uid == pod_uid(pod)) return limits;
    }
    PodRequest none;
    none.gone = true;
    return none;
  }
  std::string tenant_of(int pod) { return of(pod).member_of.empty() ? of(pod).uid : of(pod).member_of; }

  const DeviceModels devices_ = test_devices(2);
  ClaimAllocations claims_;
  ClaimPods pods_{10, false};
  PodLimits::Changes changes_;
};

TEST_F(DraClaimPods, PodsThatAClaimIsReservedForAreOneTenant) {
  prepare(1, {3, 2, 5});
  EXPECT_EQ(tenant_of(2), pod_uid(2)) << "the least UID";
  EXPECT_EQ(tenant_of(3), pod_uid(2));
  EXPECT_EQ(tenant_of(5), pod_uid(2));
  EXPECT_EQ(of(3).name, "team/pod-3");
  EXPECT_EQ(of(3).gpu_memory_limit, 4 * kTestGib);
  EXPECT_EQ(of(3).gpu_memory_on, of(2).gpu_memory_on);
  EXPECT_EQ(pods_.limits(claims_).size(), 3U);
}

// The kubelet does not prepare a claim again for a pod that comes to it.
TEST_F(DraClaimPods, APodThatComesToAClaimLaterIsAMember) {
  prepare(1, {2});
  see(test_pod(1, {"claim-1"}, "Pending"));
  EXPECT_EQ(tenant_of(1), pod_uid(2)) << "whoever was first stays the first";
  EXPECT_GT(of(2).gpu_core_reserved, 0);
  EXPECT_EQ(of(1).gpu_core_reserved, 0) << "what the claim reserves is reserved once, also where the member runs already, by itself";
  see(test_pod(7, {"claim-7"}));
  EXPECT_TRUE(of(7).gone) << "a claim of another driver, or one that is not prepared";
  Json stranger = test_pod(8, {"claim-1"});
  stranger["metadata"]["namespace"] = "other";
  see(stranger);
  EXPECT_TRUE(of(8).gone) << "a claim of that name in another namespace";
  Json by_template = test_pod(9, {});
  by_template["spec"]["resourceClaims"] = {{{"name", "gpu"}, {"resourceClaimTemplateName", "share"}}};
  by_template["status"]["resourceClaimStatuses"] = {{{"name", "gpu"}, {"resourceClaimName", "claim-1"}}};
  see(by_template);
  EXPECT_EQ(tenant_of(9), pod_uid(2));
  pods_.remove(pod_uid(2));
  EXPECT_EQ(tenant_of(9), pod_uid(2)) << "the first pod ended, the others have its claim";
  pods_.remove(pod_uid(9));
  EXPECT_TRUE(of(9).gone);
  claims_.remove(test_uid(1));
  EXPECT_TRUE(of(1).gone);
}

TEST_F(DraClaimPods, PodsThatShareTwoClaimsHaveBoth) {
  prepare(1, {1, 2}, {0, "4Gi", "25"});
  prepare(2, {2, 1}, {1, "2Gi", "40"});
  EXPECT_EQ(tenant_of(1), pod_uid(1));
  EXPECT_EQ(tenant_of(2), pod_uid(1));
  const std::map<std::string, int64_t> both = {{test_gpu(0), 4 * kTestGib}, {test_gpu(1), 2 * kTestGib}};
  EXPECT_EQ(of(1).gpu_memory_on, both);
  EXPECT_EQ(of(2).gpu_memory_on, both);
  // The first pod of a claim goes on to be the first of those that come.
  prepare(3, {0, 2});
  prepare(4, {1, 0});
  EXPECT_EQ(tenant_of(0), pod_uid(0));
  EXPECT_EQ(tenant_of(2), pod_uid(1)) << "the claim that is the first by its UID";
}

// Each claim counts for one pod, so that no GPU is given twice.
TEST_F(DraClaimPods, AClaimThatCountsForAnotherPodGivesNothing) {
  prepare(1, {1}, {0, "4Gi", "25"});
  prepare(2, {2}, {1, "2Gi", "40"});
  see(test_pod(2, {"claim-1", "claim-2"}));
  EXPECT_EQ(tenant_of(2), pod_uid(2));
  EXPECT_EQ(of(2).gpu_memory_on, (std::map<std::string, int64_t>{{test_gpu(0), kMemoryStep}, {test_gpu(1), 2 * kTestGib}}));
  EXPECT_EQ(of(1).gpu_memory_on, (std::map<std::string, int64_t>{{test_gpu(0), 4 * kTestGib}}));
  std::map<std::string, int64_t> sums;
  for (const PodRequest& limits : pods_.limits(claims_)) {
    if (!limits.member_of.empty()) continue;
    for (const auto& [gpu, bytes] : limits.gpu_memory_on) sums[gpu] += bytes;
  }
  EXPECT_EQ(sums[test_gpu(0)], 4 * kTestGib + kMemoryStep);
}

TEST_F(DraClaimPods, AnnotationsLowerWhatClaimsGive) {
  prepare(1, {1}, {0, "4Gi", "25"});
  see_with(1, {"claim-1"}, kMemoryAnnotation, "1Gi");
  EXPECT_EQ(of(1).gpu_memory_limit, kTestGib);
  EXPECT_TRUE(of(1).gpu_memory_on.empty()) << "the limit is lower on each GPU";
  EXPECT_EQ(of(1).gpu_core_limit, 25);
  see_with(1, {"claim-1"}, kCoreAnnotation, "10");
  EXPECT_EQ(of(1).gpu_memory_limit, 4 * kTestGib) << "removed";
  EXPECT_EQ(of(1).gpu_core_limit, 10);
  EXPECT_EQ(of(1).gpu_core_reserved, 10);
  EXPECT_TRUE(changes_.notices.empty());
  see_with(1, {"claim-1"}, kMemoryAnnotation, "100Gi");
  EXPECT_EQ(of(1).gpu_memory_limit, 4 * kTestGib);
  ASSERT_EQ(changes_.notices.size(), 1U);
  EXPECT_EQ(changes_.notices[0].reason, "LimitClamped");
  EXPECT_NE(changes_.notices[0].text.find("4096Mi"), std::string::npos) << changes_.notices[0].text;
  see_with(1, {"claim-1"}, kCoreAnnotation, "much");
  EXPECT_EQ(changes_.notices.back().reason, "BadLimit");
  see_with(1, {"claim-1"}, kPriorityAnnotation, "70");
  EXPECT_EQ(of(1).priority, 10) << "no more than the node allows";
  Json ends = test_pod(1, {"claim-1"});
  ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  see(ends);
  EXPECT_TRUE(of(1).ends);
}

TEST_F(DraClaimPods, AnAnnotationIsComparedWithAClaimThatComesAfterIt) {
  see_with(1, {"claim-1"}, kMemoryAnnotation, "100Gi", "Pending");
  EXPECT_TRUE(changes_.notices.empty());
  prepare(1, {1});
  ASSERT_EQ(changes_.notices.size(), 1U);
  EXPECT_EQ(changes_.notices[0].reason, "LimitClamped");
}

TEST_F(DraClaimPods, AnAnnotationOfOnePodLowersTheTenantOnceThePodRuns) {
  prepare(1, {1});
  see(test_pod(1, {"claim-1"}));
  see_with(2, {"claim-1"}, kMemoryAnnotation, "1Gi", "Pending");
  EXPECT_EQ(of(1).gpu_memory_limit, 4 * kTestGib) << "anybody may make a pod that names a claim, and is never started";
  see_with(2, {"claim-1"}, kMemoryAnnotation, "1Gi");
  EXPECT_EQ(of(1).gpu_memory_limit, kTestGib);
  EXPECT_EQ(of(2).gpu_memory_limit, kTestGib);
  Json ends = test_pod(2, {"claim-1"});
  ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  see(ends);
  EXPECT_FALSE(of(1).ends) << "the other one goes on";
}

TEST_F(DraClaimPods, APodThatWasNeverStartedKeepsNobodyFromItsLastTurn) {
  prepare(1, {1});
  see(test_pod(2, {"claim-1"}, "Pending"));
  Json ends = test_pod(1, {"claim-1"});
  ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  see(ends);
  EXPECT_TRUE(of(1).ends);
}

TEST_F(DraClaimPods, TheLowerPriorityHolds) {
  Json object = test_claim(1, {{}});
  object["status"]["allocation"]["devices"]["config"].push_back(test_config("FromClass", {{"priority", 7}}));
  auto claim = read_claim(object.dump(), test_claim_name(1), {kTestNode, devices_, 0});
  ASSERT_TRUE(claim);
  ASSERT_TRUE(claims_.admit(*claim, devices_));
  see(test_pod(1, {"claim-1"}));
  EXPECT_EQ(of(1).priority, 7);
  see_with(1, {"claim-1"}, kPriorityAnnotation, "9");
  EXPECT_EQ(of(1).priority, 7);
  see_with(1, {"claim-1"}, kPriorityAnnotation, "-3");
  EXPECT_EQ(of(1).priority, -3);
}

// A driver that starts anew does not know yet what annotations say.
TEST_F(DraClaimPods, UntilPodsWereListedLimitsOnlyLower) {
  prepare(1, {1});
  EXPECT_FALSE(of(1).only_lowers);
  ClaimPods anew(0, true);
  for (const PodRequest& limits : anew.limits(claims_)) EXPECT_TRUE(limits.only_lowers);
  Json bad = test_pod(1, {"claim-1"});
  bad["metadata"]["annotations"][kMemoryAnnotation] = "2Gi";
  anew.replace({watched(bad)}, claims_);
  EXPECT_EQ(anew.limits(claims_)[0].gpu_memory_limit, 2 * kTestGib);
  EXPECT_FALSE(anew.limits(claims_)[0].only_lowers);
  // Its last good value outlives the driver, when it is no good any more.
  ClaimPods next(0, true);
  ASSERT_TRUE(next.restore(anew.record()));
  bad["metadata"]["annotations"][kMemoryAnnotation] = "much";
  next.replace({watched(bad)}, claims_);
  EXPECT_EQ(next.limits(claims_)[0].gpu_memory_limit, 2 * kTestGib);
  next.replace({}, claims_);
  EXPECT_EQ(next.limits(claims_)[0].gpu_memory_limit, 4 * kTestGib) << "the pod is gone, its claim is not yet";
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
