// The engine for tests, without sockets: what is sent to it, and what it sends. One GPU of 16 GiB.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {

constexpr policy::Duration kMillisecond = 1'000'000;

class SentPackets : public Transport {
 public:
  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors with) override {
    sent[connection].push_back(packet);
    if (with.count() > 0) descriptors[connection] = std::move(with);
  }
  void close(ConnectionId connection) override { closed.push_back(connection); }

  // The last message of this type to that connection.
  template <typename Payload>
  std::optional<Payload> last(ConnectionId connection) {
    std::optional<Payload> found;
    for (const protocol::Packet& packet : sent[connection]) {
      if (*protocol::decode_type(packet.span()) == protocol::TypeOf<Payload>::value) found = *protocol::decode<Payload>(packet.span());
    }
    return found;
  }

  std::map<ConnectionId, std::vector<protocol::Packet>> sent;
  std::map<ConnectionId, Descriptors> descriptors;  // that came last
  std::vector<ConnectionId> closed;
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    settings_.lock_dir = folder_.path();
    settings_.runtime_dir = folder_.path();
    set_log_level("error");
  }

  Engine& engine() {
    if (!engine_) {
      Engine::Options options;
      options.settings = settings_;
      options.epoch = 77;
      options.known_clients_file = folder_.path() + "/clients";
      options.tenants_file = folder_.path() + "/tenants";
      options.look_at_host = [this] {
        ++looks_at_host_;
        if (look_fails_) throw std::out_of_range("as a defect would");
        return HostBudget::Machine{1000 * kGiB, std::nullopt};
      };
      options.hooks.list_gpus = list_gpus_;
      options.hooks.ask_mps = ask_mps_;
      if (look_at_cgroups_) options.look_at_cgroups = look_at_cgroups_;
      if (alive_) {
        options.start_time_if_alive = [this](pid_t pid) -> uint64_t {
          ++looks_at_processes_;
          return alive_->contains(pid) ? 1 : 0;
        };
      }
      GpuUuid uuid;
      uuid.fill(1);
      if (has_nvml_) options.gpus = {{uuid, "card", 16 * kGiB}};
      engine_.emplace(std::move(options), packets_, now_);
    }
    return *engine_;
  }

  // As a process with this number.
  void join(ConnectionId connection, pid_t pid, uint64_t allocated, uint64_t resident, uint64_t id = 0) {
    Peer peer;
    peer.pid = pid;
    peer.start_time = 1;
    engine().connected(connection, std::move(peer));
    auto message = test_registration(allocated);
    message.memory.resident = resident;
    message.client_id = id;
    send(connection, message);
    ASSERT_TRUE(packets_.last<protocol::Registered>(connection));
  }

  // The same, of a user's, with anything else in it.
  void join_as(ConnectionId connection, pid_t pid, uid_t uid, const protocol::Register& message) {
    Peer peer;
    peer.pid = pid;
    peer.uid = uid;
    peer.start_time = 1;
    engine().connected(connection, std::move(peer));
    send(connection, message);
    ASSERT_TRUE(packets_.last<protocol::Registered>(connection));
  }

  // A live process registers, maybe with the id and what else it had of an earlier scheduler.
  struct Earlier {
    uint64_t lease = 0, node_limit = 0;
  };
  protocol::Registered come(ConnectionId connection, pid_t pid, uint64_t id = 0, const Earlier& earlier = {0, 0}) {
    Peer peer;
    peer.pid = pid;
    peer.start_time = start_time_of(pid);
    engine().connected(connection, std::move(peer));
    auto message = test_registration(0);
    message.client_id = id;
    message.lease = earlier.lease;
    message.node_limit = earlier.node_limit;
    send(connection, message);
    return packets_.last<protocol::Registered>(connection).value_or(protocol::Registered{});
  }

  template <typename Payload>
  void send(ConnectionId connection, const Payload& payload) {
    engine().received(connection, protocol::encode(payload).span(), ++now_);
  }

  void sample(int64_t used, std::vector<ProcessMemory> processes) {
    now_ += 250 * kMillisecond;
    GpuSample sample;
    sample.uuid.fill(1);
    sample.taken_at = now_;
    sample.used_before = sample.used_after = used;
    sample.processes = std::move(processes);
    engine().memory_sampled({sample}, ++now_);
  }

  protocol::admin::GpuReport gpu() { return status_of(engine().parts(), now_).gpus.at(0); }
  protocol::admin::ClientReport client(size_t index) { return status_of(engine().parts(), now_).clients.at(index); }

  TestFolder folder_;
  bool look_fails_ = false;
  int looks_at_host_ = 0;
  Settings settings_;
  SentPackets packets_;
  policy::Instant now_ = 1'000'000'000;
  bool has_nvml_ = true;
  std::optional<std::set<pid_t>> alive_;  // of the numbers that tests make up; none: as the kernel says
  int looks_at_processes_ = 0;
  std::function<void()> list_gpus_;
  std::function<void(ConnectionId, const Peer&, const std::string&)> ask_mps_;
  Tenants::LookAtCgroups look_at_cgroups_;
  std::optional<Engine> engine_;
};

}  // namespace nvshare::scheduler
