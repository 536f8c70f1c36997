// Random processes of one tenant on a model of the protocol: they allocate, free, stop, die; messages take their time; the limit changes;
// the scheduler restarts. What must hold: the tenant never charges more than the highest limit that was in force since what it held was
// last within the limit; a client that is refused was over the limit by what was in use or could not be asked; everybody is answered; at
// the end all is as free as it was. A seed is printed on failure; NVSHARE_TEST_SEED repeats it, NVSHARE_TEST_SCALE multiplies the number of
// runs. A ledger that grants what it does not have (the canary) must be caught.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/memory/memory_ledger.h"
#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kMaxLatency = 20 * kMs;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoll(value) : otherwise;
}

// A process's side of the protocol, as libnvshare.so plays it.
struct Process {
  struct Message {
    int64_t at = 0;
    bool is_grant = false;
    uint64_t number = 0;  // request or recall
    bool granted = false;
    int64_t bytes = 0;
  };
  struct Sent {
    enum class Kind { kAsk, kReturned, kReport } kind;
    int64_t at = 0;
    uint64_t number = 0;
    int64_t bytes = 0;
    int64_t other = 0;  // returned with an ask; charged with the rest
  };
  uint64_t id = 0;
  int64_t left = 0;
  int64_t leased = 0;
  int64_t charged = 0;
  bool stopped = false;
  uint64_t request = 0;
  int64_t asks_for = 0;  // 0: it does not wait
  int64_t asked_at = 0;
  std::vector<int64_t> allocations;
  std::deque<Message> inbox;
  std::deque<Sent> outbox;
};

class World {
 public:
  World(uint64_t seed, bool canary) : random_(seed), canary_(canary) { ledger_ = std::make_unique<MemoryLedger>(); }

  std::string run() {
    leased_bound_ = limit_ = between(8, 64) * 2 * kMiB;
    for (int i = 0, count = static_cast<int>(between(1, 5)); i < count; ++i) join();
    const int steps = 1500;
    for (int i = 0; i < steps && wrong_.empty(); ++i) {
      now_ += between(0, 3) * kMs;
      deliver();
      act();
      check();
    }
    finish();
    return wrong_;
  }

 private:
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return between(1, 100) <= percent; }
  int64_t later(int64_t after) { return std::max(after, now_ + between(0, kMaxLatency)); }

  Process& any() { return *processes_[static_cast<size_t>(between(0, static_cast<int64_t>(processes_.size()) - 1))]; }
  Process* find(uint64_t id) {
    for (auto& process : processes_) {
      if (process->id == id) return process.get();
    }
    return nullptr;
  }

  void perform(const MemoryLedger::Decisions& decisions) {
    for (const auto& decision : decisions) {
      if (const auto* grant = std::get_if<MemoryLedger::Grant>(&decision)) {
        Process* process = find(grant->client);
        if (process == nullptr) continue;
        int64_t bytes = grant->bytes;
        bool granted = grant->granted;
        if (canary_ && !granted) {  // a scheduler that never says no
          granted = true;
          bytes = process->asks_for;
        }
        if (grant->request != 0 && !grant->granted) judge_refusal(*process);
        process->inbox.push_back({later(last_at(*process)), true, grant->request, granted, bytes});
      } else if (const auto* recall = std::get_if<MemoryLedger::Recall>(&decision)) {
        Process* process = find(recall->client);
        if (process != nullptr) process->inbox.push_back({later(last_at(*process)), false, recall->recall, false, recall->bytes});
      }
    }
  }
  static int64_t last_at(const Process& process) { return process.inbox.empty() ? 0 : process.inbox.back().at; }

  // It is right where what is charged, what stopped processes hold or what is on its way leaves no room.
  void judge_refusal(const Process& asker) {
    int64_t must = asker.asks_for;
    for (const auto& process : processes_) {
      must += process->charged;
      const bool unheard = process->stopped || now_ - woken_at_ < MemoryLedger::kAnswerPatience + 4 * kMaxLatency;
      if (unheard) must += process->left;
    }
    for (const auto& [at, bytes] : freed_) {  // while the answers were under way
      if (at >= asker.asked_at - 4 * kMaxLatency) must += bytes;
    }
    if (must <= limit_)
      fail("refused " + std::to_string(asker.asks_for) + " though only " + std::to_string(must - asker.asks_for) + " of " +
           std::to_string(limit_) + " are in use");
  }

  void join() {
    auto process = std::make_unique<Process>();
    process->id = next_id_++;
    processes_.push_back(std::move(process));
    Process& made = *processes_.back();
    perform(ledger_->join({made.id, 1, 0, 0, limit_, 0, 0}, now_));
    made.left = made.leased = ledger_->lease_of(made.id);
  }

  void send(Process& process, Process::Sent message) {
    message.at = later(process.outbox.empty() ? 0 : process.outbox.back().at);
    process.outbox.push_back(message);
  }

  // Not each change is said: what the scheduler knows of use is old.
  void say(Process& process) { send(process, {Process::Sent::Kind::kReport, 0, 0, 0, process.charged}); }

  void allocate(Process& process) {
    if (process.asks_for > 0) return;
    const int64_t bytes = between(1, 12) * (chance(70) ? 2 * kMiB : 512);
    if (process.left >= bytes) {
      process.left -= bytes;
      process.charged += bytes;
      process.allocations.push_back(bytes);
    } else {
      process.asks_for = bytes;
      process.asked_at = now_;
      send(process, {Process::Sent::Kind::kAsk, 0, ++process.request, bytes, process.left});
      process.leased -= process.left;
      process.left = 0;
    }
    if (chance(50)) say(process);
  }

  void free_one(Process& process) {
    if (process.allocations.empty()) return;
    const size_t at = static_cast<size_t>(between(0, static_cast<int64_t>(process.allocations.size()) - 1));
    const int64_t bytes = process.allocations[at];
    process.allocations.erase(process.allocations.begin() + static_cast<std::ptrdiff_t>(at));
    process.charged -= bytes;
    process.left += bytes;
    freed_.emplace_back(now_, bytes);
    if (process.charged < 0) fail("a counter below zero");
    if (chance(50)) say(process);
  }

  void receive(Process& process, const Process::Message& message) {
    if (!message.is_grant) {
      const int64_t given = std::min(process.left, message.bytes) + std::max<int64_t>(0, process.left - message.bytes) / 2;
      process.left -= given;
      process.leased -= given;
      send(process, {Process::Sent::Kind::kReturned, 0, message.number, given, process.charged});
      return;
    }
    process.leased += message.bytes;
    process.left += message.bytes;
    if (process.asks_for == 0 || message.number != process.request) return;
    if (message.granted) {
      if (process.left < process.asks_for) return fail("granted, yet too little");
      process.left -= process.asks_for;
      process.charged += process.asks_for;
      process.allocations.push_back(process.asks_for);
      if (chance(50)) say(process);
    }
    process.asks_for = 0;
  }

  void deliver() {
    for (auto& process : processes_) {
      while (!process->inbox.empty() && !process->stopped && process->inbox.front().at <= now_) {
        const Process::Message message = process->inbox.front();
        process->inbox.pop_front();
        receive(*process, message);
      }
    }
    for (size_t i = 0; i < processes_.size(); ++i) {
      while (!processes_[i]->outbox.empty() && processes_[i]->outbox.front().at <= now_) {
        Process& process = *processes_[i];
        const Process::Sent sent = process.outbox.front();
        process.outbox.pop_front();
        switch (sent.kind) {
          case Process::Sent::Kind::kAsk:
            perform(ledger_->ask(process.id, sent.number, sent.bytes, sent.other, now_));
            break;
          case Process::Sent::Kind::kReturned:
            perform(ledger_->returned(process.id, sent.number, sent.bytes, sent.other, now_));
            break;
          case Process::Sent::Kind::kReport:
            perform(ledger_->report(process.id, sent.other, now_));
            break;
        }
      }
    }
    if (auto deadline = ledger_->next_deadline(); deadline && *deadline <= now_) perform(ledger_->tick(now_));
  }

  void act() {
    const int64_t what = between(1, 1000);
    if (processes_.empty() || what <= 10) {
      if (processes_.size() < 8) join();
    } else if (what <= 20) {
      const uint64_t id = any().id;
      std::erase_if(processes_, [&](const auto& process) { return process->id == id; });
      perform(ledger_->leave(id, now_));
    } else if (what <= 30) {
      Process& process = any();
      process.stopped = !process.stopped;
      woken_at_ = now_;
    } else if (what <= 36) {
      limit_ = between(4, 64) * 2 * kMiB;
      perform(ledger_->set_limit(1, 0, limit_, now_));
    } else if (what <= 42) {
      restart();
    } else if (Process& process = any(); !process.stopped) {
      chance(55) ? allocate(process) : free_one(process);
    }
  }

  // The next scheduler hears of everybody what it holds, one after the other. Messages on their way are lost with the connections.
  void restart() {
    ledger_ = std::make_unique<MemoryLedger>();
    perform(ledger_->freeze(true, now_));
    woken_at_ = now_;
    for (auto& process : processes_) {
      process->inbox.clear();
      process->outbox.clear();
      perform(ledger_->join({process->id, 1, 0, 0, limit_, process->charged, process->leased}, now_));
      const int64_t lease = ledger_->lease_of(process->id);
      process->left += lease - process->leased;
      process->leased = lease;
      if (process->asks_for > 0) {
        send(*process, {Process::Sent::Kind::kAsk, 0, ++process->request, process->asks_for, process->left});
        process->leased -= process->left;
        process->left = 0;
      }
    }
    perform(ledger_->freeze(false, now_));
  }

  int64_t charged() const {
    int64_t sum = 0;
    for (const auto& process : processes_) sum += process->charged;
    return sum;
  }
  int64_t leased() const {
    int64_t sum = 0;
    for (const auto& process : processes_) {
      sum += process->leased;
      for (const Process::Message& message : process->inbox) sum += message.bytes * (message.is_grant ? 1 : 0);  // on its way
    }
    return sum;
  }

  void check() {
    // What was leased under a higher limit may still be charged until it was recalled.
    leased_bound_ = std::max(limit_, std::min(leased_bound_, leased()));
    if (leased() > leased_bound_)
      fail("leases of " + std::to_string(leased()) + " where " + std::to_string(leased_bound_) + " are allowed");
    if (charged() > leased()) fail("more is charged than leased");
    for (const auto& process : processes_) {
      if (process->left < 0) fail("less than nothing is left");
      if (process->leased != process->left + process->charged) fail("a lease that does not add up");
      if (!process->stopped && process->asks_for > 0 && now_ - process->asked_at > kLongest) fail("an ask without an answer");
    }
  }

  // Everybody goes on and frees all; then all of the limit is to be had in one piece.
  void finish() {
    if (!wrong_.empty()) return;
    for (auto& process : processes_) process->stopped = false;
    for (int i = 0; i < 2000 && wrong_.empty(); ++i) {
      now_ += 5 * kMs;
      deliver();
      for (auto& process : processes_) {
        if (!process->allocations.empty() && process->asks_for == 0) free_one(*process);
      }
    }
    if (!wrong_.empty()) return;
    if (processes_.empty()) join();
    if (charged() != 0) return fail("at the end " + std::to_string(charged()) + " are charged");
    Process& process = *processes_.front();
    process.asks_for = limit_;
    process.asked_at = now_;
    send(process, {Process::Sent::Kind::kAsk, 0, ++process.request, limit_, process.left});
    process.leased -= process.left;
    process.left = 0;
    for (int i = 0; i < 1000 && process.asks_for > 0; ++i) {
      now_ += 5 * kMs;
      deliver();
    }
    if (process.charged != limit_) fail("the whole limit is not to be had though nobody uses any of it");
  }

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what + " (at " + std::to_string(now_ / kMs) + " ms)";
  }

  static constexpr int64_t kLongest = 20 * MemoryLedger::kAnswerPatience;
  std::mt19937_64 random_;
  const bool canary_;
  std::unique_ptr<MemoryLedger> ledger_;
  std::vector<std::unique_ptr<Process>> processes_;
  uint64_t next_id_ = 1;
  int64_t now_ = 1000 * kMs;
  int64_t limit_ = 0;
  int64_t leased_bound_ = 0;
  int64_t woken_at_ = 0;
  std::vector<std::pair<int64_t, int64_t>> freed_;  // when, bytes
  std::string wrong_;
};

TEST(MemoryLedgerProperty, RandomProcessesNeverPassTheirLimitTogether) {
  const int64_t only = from_environment("NVSHARE_TEST_SEED", -1);
  const int64_t runs = only >= 0 ? 1 : 150 * std::max<int64_t>(1, from_environment("NVSHARE_TEST_SCALE", 1));
  for (int64_t run = 0; run < runs; ++run) {
    const auto seed = static_cast<uint64_t>(only >= 0 ? only : run + 1);
    ASSERT_EQ(World(seed, false).run(), "") << "NVSHARE_TEST_SEED=" << seed;
  }
}

TEST(MemoryLedgerProperty, TheJudgeCanSayNo) {
  int caught = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) caught += World(seed, true).run().empty() ? 0 : 1;
  EXPECT_GE(caught, 8) << "a scheduler that never refuses passes";
}

}  // namespace
}  // namespace nvshare::scheduler
