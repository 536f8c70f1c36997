// Host memory for swapping, as clients see it: what is lent, refused and asked back becomes messages, what room there is the policy hears,
// and clients are told early how much to have ready (PrepareSwap). Who gets how much: host_lender.h. One thread, the engine's.
#pragma once

#include <optional>

#include "base/descriptors.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/host/host_lender.h"
#include "scheduler/log.h"
#include "scheduler/settings.h"

namespace nvshare::scheduler {

class HostDesk : private HostBorrowers {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Clients& clients;
    Gpus& gpus;
    const ClientMessenger& messenger;
    RepeatedWarnings& warnings;
    PolicyDriver& policy;
  };
  HostDesk(const Neighbours& neighbours, HostLender::Options options, Departures::IsAlive is_alive)
      : at_(neighbours), is_alive_(std::move(is_alive)), lender_(std::move(options), *this) {}

  const HostLender& lender() const { return lender_; }

  // `returns`: it was a client of an earlier scheduler.
  void join(const RegisteredClient& client, bool returns) { lender_.join(borrower(client), returns); }
  // True: others may have more without it, at once, so look() is to follow when the policy knows that it has left; else look_soon().
  bool leave(const RegisteredClient& client);
  // It has said what it has of memory. How much more of its segments is in use now.
  int64_t report(RegisteredClient& client);
  // It has moved memory; `used_more` as report() has it.
  void moved(const RegisteredClient& client, int64_t used_more, int64_t resident_before, policy::Instant now);

  void request(const RegisteredClient& client, const protocol::ArenaRequest& message, policy::Instant now);
  void returned(const RegisteredClient& client, const protocol::ArenaReturned& message, policy::Instant now);
  void shrunk(const RegisteredClient& client, const protocol::ArenaShrunk& message, policy::Instant now);
  void held(const RegisteredClient& client, const protocol::ArenaHeld& message, policy::Instant now);
  void cannot_hand_over(const RegisteredClient& client, const protocol::ArenaSegment& segment, policy::Instant now);
  void made(SegmentId segment, FileDescriptor memory, policy::Instant now);  // none: it could not be
  void discarded(SegmentId segment, bool still_held, policy::Instant now);

  void look(policy::Instant now);                // at the host
  void look_if_much_moved(policy::Instant now);  // since the last look
  void look_soon(policy::Instant now);           // a client has left: its own memory is the host's again, soon
  void prepare_swaps(policy::GpuId gpu);         // tells clients there how much to have ready
  std::optional<policy::Instant> next_deadline() const;
  void deadline_reached(policy::Instant now);

 private:
  HostLender::Borrower borrower(const RegisteredClient& client) const;
  bool is_there(policy::ClientId client) const override { return at_.clients.find(client) != nullptr; }
  bool is_alive(pid_t pid, uint64_t start_time) const override { return is_alive_(pid, start_time); }
  void lend(policy::ClientId client, const protocol::ArenaSegment& segment, Descriptors descriptors) override;
  void refuse(policy::ClientId client, const protocol::ArenaRefused& message, bool urgent, HostBudget::Bound bound,
              policy::Instant now) override;
  void ask_back(policy::ClientId client, const protocol::ArenaShrink& message) override;
  void host_room_changed(const policy::HostMemory& room, policy::Instant now) override { at_.policy.apply(room, now); }

  const Neighbours at_;
  const Departures::IsAlive is_alive_;
  HostLender lender_;
  std::optional<policy::Instant> look_at_;  // clients have left
};

}  // namespace nvshare::scheduler
