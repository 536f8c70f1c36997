// Writes what became of a claim's devices into its status.devices, for people and controllers: a thread of its own, so that no claim waits
// for it or fails with it. What cannot be written is tried again a few times and then only logged.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "kubernetes/dra/claim.h"
#include "kubernetes/pods/api_server.h"

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

  StatusWriter(ApiServerAddress address, std::string pool, Pace pace);
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
  void run();
  Result<void> write(const Claim& claim);
  void after(Waiting one, const Result<void>& done);

  ApiServer server_;
  const std::string pool_;
  const Pace pace_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes::dra
