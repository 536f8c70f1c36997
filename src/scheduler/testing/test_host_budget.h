// A host budget for its tests: three clients, each of a tenant of its own, and time that stands still.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <variant>
#include <vector>

#include "scheduler/host/host_budget.h"
#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {

// A budget with clients that do at once what they are told, and a scheduler that can make segments.
class HostBudgetTest : public testing::Test {
 protected:
  using Owner = HostBudget::Owner;

  void SetUp() override {
    budget_.observe({100 * kGiB, std::nullopt});  // keeps 20 GiB free
    for (policy::ClientId client : {1, 2, 3}) budget_.join(client, member(client == 3 ? 7 : client));
  }

  static HostBudget::Member member(policy::TenantId tenant) {
    HostBudget::Member member;
    member.tenant = tenant;
    return member;
  }
  std::vector<HostBudget::Decision> settle() { return budget_.settle(now_); }
  // Nobody has what was to be discarded.
  void gone(const std::vector<HostBudget::Decision>& decisions) {
    for (const auto& discard : of<HostBudget::Discard>(decisions)) budget_.discarded(discard.segment);
  }
  template <typename Kind>
  static std::vector<Kind> of(const std::vector<HostBudget::Decision>& decisions) {
    std::vector<Kind> found;
    for (const auto& decision : decisions) {
      if (const auto* one = std::get_if<Kind>(&decision)) found.push_back(*one);
    }
    return found;
  }
  static int64_t lent(const std::vector<HostBudget::Decision>& decisions) {
    int64_t sum = 0;
    for (const auto& lend : of<HostBudget::Lend>(decisions)) sum += lend.bytes;
    return sum;
  }
  // Asks and answers Make; what was decided in sum.
  std::vector<HostBudget::Decision> ask(policy::ClientId client, int64_t total, Owner owner = Owner::kProcess, bool urgent = true) {
    budget_.request(client, ++requests_, total, owner, urgent);
    auto decisions = settle();
    for (const auto& make : of<HostBudget::Make>(decisions)) budget_.made(make.segment, true);
    auto more = settle();
    decisions.insert(decisions.end(), more.begin(), more.end());
    return decisions;
  }
  // Client 1 has so many whole segments and uses none of them.
  std::vector<HostBudget::Lend> lend_unused(int segments) {
    auto lends = of<HostBudget::Lend>(ask(1, segments * HostBudget::kSegmentMax));
    budget_.report(1, segments * HostBudget::kSegmentMax, 0);
    return lends;
  }
  // The machine runs short by so many for a moment.
  std::vector<HostBudget::Shrink> run_short_by(int segments) {
    budget_.observe({20 * kGiB - segments * HostBudget::kSegmentMax, std::nullopt});
    auto shrinks = of<HostBudget::Shrink>(settle());
    budget_.observe({100 * kGiB, std::nullopt});
    return shrinks;
  }
  // Client 2 asks, and client 1 has nothing to give.
  void ask_in_vain() {
    const auto shrinks = of<HostBudget::Shrink>(ask(2, 512 * kMiB));
    ASSERT_EQ(shrinks.size(), 1u);
    budget_.shrunk(1, shrinks[0].shrink, 0, now_);
    EXPECT_EQ(of<HostBudget::Refuse>(settle()).size(), 1u);
  }

  HostBudget budget_{[this] { return ++last_id_; }, 0};
  SegmentId last_id_ = 0;
  policy::Instant now_ = kSecond;
  uint64_t requests_ = 0;
};

}  // namespace nvshare::scheduler
