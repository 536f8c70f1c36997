// Writes what became of a claim's devices into its status.devices, for people and controllers, on a loop, so that no claim waits
// for it or fails with it. What cannot be written is tried again a few times and then only logged.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "kubernetes/dra/claim.h"
#include "kubernetes/pods/api_client.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes::dra {

// The fields that this driver owns of the claim, for server-side apply. `pool`: the node's. Pure. `now`: as Kubernetes writes a time.
Json status_of(const Claim& claim, const std::string& pool, const std::string& now);

class StatusWriter {
 public:
  struct Pace {
    std::chrono::milliseconds first_pause{500};
    std::chrono::milliseconds longest_pause{30'000};
    int tries = 8;
  };
  static constexpr size_t kWaitingMax = 256;

  StatusWriter(LoopThread& loop, ApiServerAddress address, std::string pool, Pace pace);
  ~StatusWriter();
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  void prepared(const Claim& claim);  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Claim claim;
    Clock::time_point due;
    std::chrono::milliseconds pause;
    int tries = 0;
  };
  // On the loop's thread, as the members below.
  void add(Waiting one);
  void send_next();
  static Result<void> outcome_of(const Claim& claim, const Result<ApiReply>& reply);
  void after(Waiting one, const Result<void>& done);

  LoopThread& loop_;
  const std::string pool_;
  const Pace pace_;
  std::optional<ApiClient> server_;
  std::deque<Waiting> waiting_;
  std::optional<Waiting> sent_;  // not answered yet
  std::optional<Timer> next_due_;
};

}  // namespace nvshare::kubernetes::dra
