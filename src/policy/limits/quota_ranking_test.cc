// Tenants that only wait for their turns are billed together (Ranking): the same comes of it as of billing each of them in each step.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "policy/limits/limits.h"
#include "policy/overloaded.h"
#include "policy/parts.h"

namespace nvshare::policy {
namespace {

constexpr Bytes kSmall = Bytes{64} << 20;

std::string text_of(const Actions& actions) {
  std::ostringstream text;
  for (const Action& action : actions) {
    text << action.index() << ' ';
    std::visit(Overloaded{[&](const SendLock& a) { text << a.client << ' ' << a.grant << ' ' << a.budget; },
                          [&](const SendDrop& a) { text << a.client << ' ' << a.grant; },
                          [&](const Note& a) { text << a.client << ' ' << a.tenant << ' ' << a.text; }, [](const auto&) {}},
               action);
    text << '\n';
  }
  return text.str();
}

std::string text_of(const std::vector<GpuView>& gpus) {
  std::ostringstream text;
  for (const TenantView& tenant : gpus.at(0).tenants) {
    text << tenant.tenant << ": " << tenant.quota << ' ' << tenant.used << ' ' << tenant.debt << ' ' << tenant.active << tenant.throttled
         << ' ' << tenant.throttled_time << '\n';
  }
  return text.str();
}

// Of all tenants, also of those that are looked at no more, and owe nothing.
std::string balances_at(const State& state, Instant now) {
  std::ostringstream text;
  const Gpu& gpu = state.gpus.at(0);
  AccountsAt at(state.config, gpu, now);
  for (const Accounts* accounts : {&gpu.quota.accounts, &gpu.quota.left.accounts}) {
    for (const Account& as_billed : *accounts) {
      const Account account = at.of(as_billed);
      text << account.tenant << ": " << account.quota << ' ' << account.balance << ' ' << account.ceiling_balance << '\n';
    }
  }
  return text.str();
}

struct Program {
  ClientId id = 0;
  GrantId grant = 0;
  bool waits = false;
  TenantId tenant = 0;
};

// Programs that all fit and want the GPU most of the time, half of them with a ceiling. Two schedulers hear of all that they do; the second
// one bills everybody at once, also those that left a debt.
class TwoSchedulers {
 public:
  TwoSchedulers(uint64_t seed, const Config& config, size_t programs)
      : random_(seed), together_(make_state(config)), one_by_one_(make_state(config)), programs_(programs) {
    take(GpuAppeared{0, Bytes{256} << 30});
    for (Program& program : programs_) join(program);
  }

  // Half of the programs give the GPU up in pauses, and those that come from now on take turns all the same.
  void leave_gaps() { leave_gaps_ = true; }
  // Time passes faster, and many tenants that left are back before long.
  void come_back() { come_back_ = true; }
  // Until they differ.
  void run(int turns) {
    for (int i = 0; i < turns && !::testing::Test::HasFailure(); ++i) {
      now_ += static_cast<Duration>(random_() % (come_back_ ? 60'000'000 : 7'000'000));
      Program& program = programs_[random_() % programs_.size()];
      switch (random_() % 16) {
        case 0:
          take(ClientLeft{program.id, true});
          join(program);
          break;
        case 1:
          limit(program.tenant, static_cast<int>(random_() % 100) + 1);
          break;
        case 2:
          if (program.grant != 0) release(program, true);
          break;
        default:
          if (program.grant == 0 && !program.waits) request(program);
      }
      for (Program& each : programs_) {
        if (leave_gaps_ && each.grant != 0 && each.id % 2 == 0) release(each, true);
      }
      if (const auto deadline = next_deadline(*together_); deadline && *deadline <= now_) take(Tick{});
      answer_drops();
      if (i % 64 == 0) compare();
    }
    compare();
  }

  size_t ranked_most() const { return ranked_most_; }
  size_t rested_most() const { return rested_most_; }
  size_t back() const { return back_; }  // tenants that were so, and had rested

 private:
  void join(Program& program) {
    program = {next_id_, 0, false, come_back_ ? 1 + random_() % next_id_ : next_id_};
    ++next_id_;
    if (const auto gpu = together_->gpus.find(0); gpu != together_->gpus.end()) {
      const Account* const left = gpu->second.quota.left.accounts.find(program.tenant);
      back_ += left != nullptr && left->seen.rests;
    }
    if (random_() % 2 == 0) limit(program.tenant, static_cast<int>(random_() % 60) + 1);
    if (leave_gaps_) take(TenantTurns{program.tenant, TenantSharing::kTurns});
    take(ClientJoined{program.id, 0, program.tenant, 0, {kSmall, kSmall, 0}, true, false, false});
    request(program);
  }

  void request(Program& program) {
    program.waits = true;
    take(LockRequested{program.id});
  }

  void limit(TenantId tenant, int ceiling) {
    take(ComputeLimit{tenant, ceiling, come_back_ && random_() % 8 == 0 ? std::min(ceiling, 2) : 0});
  }

  void release(Program& program, bool early) {
    take(LockReleased{program.id, std::exchange(program.grant, 0), {kSmall, kSmall, 0}, early, 0, std::nullopt});
  }

  void answer_drops() {
    if (leave_gaps_) now_ += 1'000'000;  // long hand-overs make long periods
    for (const ClientId id : std::exchange(drops_, {})) {
      for (Program& program : programs_) {
        if (program.id != id || program.grant == 0) continue;
        release(program, false);
        request(program);
      }
    }
  }

  void take(const Event& event) {
    bill_one_by_one();
    const Actions actions = step(*together_, event, now_);
    EXPECT_EQ(text_of(actions), text_of(step(*one_by_one_, event, now_)));
    EXPECT_EQ(next_deadline(*together_), next_deadline(*one_by_one_));
    EXPECT_EQ(check_invariants(*together_), std::nullopt);
    for (const auto& [id, gpu] : together_->gpus) {
      ranked_most_ = std::max(ranked_most_, gpu.quota.changes.ranking.places.size());
      rested_most_ = std::max(rested_most_, gpu.quota.left.resting.size());
    }
    for (const Action& action : actions) {
      if (const auto* drop = std::get_if<SendDrop>(&action)) drops_.push_back(drop->client);
      if (const auto* lock = std::get_if<SendLock>(&action)) {
        for (Program& program : programs_) {
          if (program.id == lock->client) program = {program.id, lock->grant, false, program.tenant};
        }
      }
    }
  }

  void bill_one_by_one() {
    for (auto& [id, gpu] : one_by_one_->gpus) {
      unrank_all(gpu.quota);
      look_at_all_left(one_by_one_->config, gpu);
    }
  }

  void compare() {
    bill_one_by_one();
    EXPECT_EQ(text_of(view_of_tenants(*together_, now_)), text_of(view_of_tenants(*one_by_one_, now_)));
    EXPECT_EQ(balances_at(*together_, now_), balances_at(*one_by_one_, now_));
  }

  std::mt19937_64 random_;
  Instant now_ = 1'000'000'000;
  StatePointer together_, one_by_one_;
  std::vector<Program> programs_;
  ClientId next_id_ = 1;
  std::vector<ClientId> drops_;
  size_t ranked_most_ = 0, rested_most_ = 0, back_ = 0;
  bool leave_gaps_ = false, come_back_ = false;
};

TEST(QuotaRanking, BilledTogetherIsAsBilledOneByOne) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    TwoSchedulers both(seed, Config(), 60);
    both.run(1500);
    EXPECT_GT(both.ranked_most(), 30U);
  }
}

// Of tenants that left a debt and come back, or do not.
TEST(QuotaRanking, RestingTenantsEarnAsIfTheyWereLookedAtEachTime) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    TwoSchedulers both(seed, Config(), 20);
    both.come_back();
    both.run(3000);
    EXPECT_GT(both.rested_most(), 20U);
    EXPECT_GT(both.back(), 10U);
  }
}

// The share of few tenants is more than some ceilings, now of these and then of those.
TEST(QuotaRanking, WhoseCeilingComesToBeBelowTheSharesOfTheOthersLeaves) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    TwoSchedulers both(seed, Config(), 12);
    both.run(2000);
    EXPECT_GT(both.ranked_most(), 6U);
  }
}

TEST(QuotaRanking, TheSameWhereProgramsThatLeaveGapsTakeTurns) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    TwoSchedulers both(seed, Config(), 12);
    both.leave_gaps();
    both.run(4000);
    EXPECT_GT(both.ranked_most(), 2U);
  }
}

TEST(QuotaRanking, TheSameWhereAllTakeTurnsAndNothingIsSavedInWindows) {
  for (const char* mode : {"round-robin", "serial"}) {
    SCOPED_TRACE(mode);
    Config config;
    config.scheduling_mode = *find_mode(mode);
    TwoSchedulers both(4, config, 60);
    both.run(700);
    EXPECT_GT(both.ranked_most(), 30U);
  }
  Config windowed;
  windowed.compute_window = 300'000'000;
  TwoSchedulers both(5, windowed, 60);
  both.run(300);
  EXPECT_EQ(both.ranked_most(), 0U);
}

}  // namespace
}  // namespace nvshare::policy
