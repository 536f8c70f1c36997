// For tests: an engine with clients that the kernel shows in pods.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {

inline constexpr char kTrain[] = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
inline constexpr char kServe[] = "77aa6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
inline constexpr char kOther[] = "88bb6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
inline constexpr char kLate[] = "99cc6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";

class PodsSink : public Transport {
 public:
  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors) override {
    if (*protocol::decode_type(packet.span()) == protocol::MessageType::kUpdateLimit) {
      limits[connection] = protocol::decode<protocol::UpdateLimit>(packet.span())->memory_limit;
    } else if (*protocol::decode_type(packet.span()) == protocol::MessageType::kRegistered) {
      limits[connection] = protocol::decode<protocol::Registered>(packet.span())->memory_limit;
    } else if (*protocol::decode_type(packet.span()) == protocol::MessageType::kLockOk) {
      const protocol::Grant grant = protocol::decode<protocol::LockOk>(packet.span())->grant;
      if (granted[connection].grant != grant.grant) locks.push_back(connection);
      granted[connection] = grant;
    } else if (*protocol::decode_type(packet.span()) == protocol::MessageType::kDropLock) {
      dropped[connection] = protocol::decode<protocol::DropLock>(packet.span())->grant;
    }
  }
  void close(ConnectionId connection) override { closed.insert(connection); }
  std::map<ConnectionId, uint64_t> limits;  // that the client was last told
  std::set<ConnectionId> closed;
  std::vector<ConnectionId> locks;  // in their order
  std::map<ConnectionId, protocol::Grant> granted, dropped;
};

class PodsTest : public testing::Test {
 protected:
  PodsTest() {
    set_log_level("error");
    settings_.lock_dir = settings_.runtime_dir = folder_.path();
    start();
  }

  void start() {
    Engine::Options options;
    options.settings = settings_;
    options.epoch = ++epoch_;
    options.tenants_file = tenants_file_;
    options.known_clients_file = folder_.path() + "/clients";
    if (keeps_tenants_) options.tenants_file = folder_.path() + "/tenants";
    options.look_at_host = [] { return HostBudget::Machine{1000 * kGiB, std::nullopt}; };
    options.look_at_cgroups = [this](pid_t pid) { return cgroups_[pid]; };
    options.gpus = gpus_;
    engine_.reset();
    engine_.emplace(std::move(options), sink_, now_);
  }

  static std::string container_of(const char* uid, char container) {
    return std::string("0::/kubepods/burstable/pod") + uid + "/" + std::string(64, container) + "\n";
  }

  // A client in the pod. But for this test's own process its number is no process's, so it starts at "0".
  void join(ConnectionId connection, const char* uid, protocol::Register message = test_registration(kGiB), pid_t pid = 0,
            char container = 'a') {
    Peer peer;
    peer.pid = pid != 0 ? pid : 500'000'000 + static_cast<pid_t>(connection);
    peer.start_time = start_time_of(peer.pid);
    cgroups_[peer.pid] = container_of(uid, container);
    engine_->connected(connection, std::move(peer));
    engine_->received(connection, protocol::encode(message).span(), ++now_);
  }
  // A client of the scheduler before, this process's, as which it had that limit.
  void come_back(ConnectionId connection, const char* uid, uint64_t id, uint64_t limit, uint8_t gpu = 1) {
    auto message = test_registration(kGiB, gpu);
    message.client_id = id;
    message.node_limit = limit;
    join(connection, uid, message, getpid());
  }
  // With a limit in its environment.
  void join_asking(ConnectionId connection, const char* uid, int64_t limit) {
    auto message = test_registration(kGiB);
    message.memory_limit = static_cast<uint64_t>(limit);
    join(connection, uid, message);
  }
  void set(std::vector<protocol::admin::PodRequest> pods, bool complete = false) {
    const Result<void> told = engine_->orders().set_pods({std::move(pods), complete}, ++now_);
    EXPECT_TRUE(told) << told.error().text;
  }
  // "kind name memory in GiB, core" of each tenant.
  std::string tenants() {
    std::string text;
    for (const auto& tenant : status_of(engine_->parts(), now_).tenants) {
      text += tenant.kind + " " + tenant.name + " " + std::to_string(tenant.gpu_memory_limit / kGiB) + " " +
              std::to_string(tenant.gpu_core_limit) + "; ";
    }
    return text;
  }

  TestFolder folder_;
  std::string tenants_file_;  // empty: none
  Settings settings_;
  std::vector<FoundGpu> gpus_;  // by NVML
  bool keeps_tenants_ = false;  // for the next scheduler
  std::map<pid_t, std::string> cgroups_;
  PodsSink sink_;
  policy::Instant now_ = 1'000'000'000;
  uint64_t epoch_ = 0;
  uint64_t request_ = 0;
  std::optional<Engine> engine_;
};

}  // namespace nvshare::scheduler
