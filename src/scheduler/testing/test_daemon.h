// For tests: a whole daemon on a thread, with clients that are processes (test_client.h) and real sockets.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "protocol/admin.h"
#include "protocol/paths.h"
#include "scheduler/daemon.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {

class RunningDaemon {
 public:
  explicit RunningDaemon(const Settings& settings) {
    auto started = Daemon::start(settings, "/nonexistent/libnvidia-ml.so.1");
    if (!started) throw std::runtime_error(started.error().text);
    daemon_ = std::move(*started);
    thread_ = std::thread([this] { daemon_->run(); });
  }
  ~RunningDaemon() {
    daemon_->stop();
    thread_.join();
  }

 private:
  std::unique_ptr<Daemon> daemon_;
  std::thread thread_;
};

class DaemonTest : public testing::Test {
 protected:
  static constexpr uint64_t kGiB = 1ULL << 30;

  DaemonTest() {
    settings_.runtime_dir = folder_.path() + "/run";
    settings_.lock_dir = folder_.path() + "/lock";
    settings_.log_level = std::getenv("NVSHARE_TEST_LOG") ? "debug" : "error";
    settings_.trace_file = std::getenv("NVSHARE_TEST_LOG") ? "/tmp/sched-t.trace" : "";
    settings_.policy.switch_time_mode = policy::SwitchTimeMode::kFixed;
    settings_.policy.switch_time_fixed = 50'000'000;
    settings_.policy.departed_grace = 200'000'000;
    set_log_level(settings_.log_level);
  }

  // Before start().
  TestClient client(bool forks = false) { return TestClient(settings_.runtime_dir + protocol::kClientSocket, forks); }
  void start() { daemon_ = std::make_unique<RunningDaemon>(settings_); }
  void stop() { daemon_.reset(); }

  protocol::admin::StatusReport status() {
    auto report = protocol::admin::decode_status(ask_admin(settings_.runtime_dir, R"({"request":"status"})"));
    EXPECT_TRUE(report) << report.error().text;
    return report ? *report : protocol::admin::StatusReport{};
  }

  // Until it holds, or patience ends.
  template <typename Condition>
  bool eventually(Condition condition) {
    for (auto end = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  TestFolder folder_;
  Settings settings_;
  std::unique_ptr<RunningDaemon> daemon_;
};
// With enough host memory ready, so that the machine's own does not matter.
inline protocol::MemoryReport memory(uint64_t allocated, uint64_t resident) { return {allocated, resident, 0, allocated}; }

// What a client does when its memory is in and when it gives the lock back with everything moved out.
inline void report_loaded(TestClient& client, const protocol::LockOk& lock, uint64_t bytes) {
  client.send(protocol::SwapProgress{1, 1, 0, 0, {}, lock.grant.grant, bytes, 0, 1000, memory(bytes, bytes)});
}
inline void release(TestClient& client, const protocol::Grant& grant, uint64_t allocated, uint64_t resident,
                    protocol::ReleaseReason reason) {
  client.send(protocol::LockReleased{grant, static_cast<uint8_t>(reason), {}, 0, 0, 0, memory(allocated, resident)});
}
inline void obey_eviction(TestClient& client, uint64_t allocated) {
  auto evict = client.expect<protocol::Evict>();
  ASSERT_TRUE(evict);
  client.send(protocol::SwapProgress{0, 1, 0, 0, {}, evict->eviction, allocated, allocated, 1000, memory(allocated, 0)});
}

}  // namespace nvshare::scheduler
