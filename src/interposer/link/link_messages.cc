// What the scheduler's messages mean: a function for each of protocol::SchedulerMessages. The socket's thread runs them, with no lock held.
#include "interposer/gate/gate.h"
#include "interposer/link/link.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "protocol/directions.h"

namespace nvshare::interposer {

struct Link::Incoming {
  Link& link;
  Device& device;
  Descriptors& descriptors;

  // ---- turns ----
  void operator()(const protocol::LockOk& message) const {
    const Turns::Outcome outcome = device.turns().take(message);
    if (outcome.load == 0) return;
    const bool context = device.turns().ask([](const turn::Turn& turn) { return turn.context; });
    if (!context || !load_at_once(outcome.load)) device.swap_engine().load(outcome.load);
  }
  void operator()(const protocol::DropLock& message) const { device.turns().take(message); }
  void operator()(const protocol::KeepLock& message) const { device.turns().take(message); }
  void operator()(const protocol::MemAvailable& message) const { device.turns().take(message); }
  void operator()(const protocol::WaitForMem&) const {}  // the wait in Turns::grow has begun already
  void operator()(const protocol::Prefetch& message) const { device.turns().take(message); }
  void operator()(const protocol::Evict& message) const { device.swap_engine().evict(message.eviction, message.bytes); }
  void operator()(const protocol::Contention& message) const {
    Turns& turns = device.turns();
    if (!turns.take(message).make_room) return;
    device.memory().freed.trim();
    turns.hold_to_resident();
    turns.take(turn::MemoryChanged{});
  }
  void operator()(const protocol::AskProgress& message) const {
    link.count_progress(message.counts != 0);
    link.send(protocol::Progress{message.question, device.process().gate.submissions()});
  }
  void operator()(const protocol::WhyWaiting& message) const {
    if (message.question != link.question_) return;
    const turn::Instant since =
        device.turns().ask([](const turn::Turn& turn) { return turn::may_run(turn) ? turn::kNever : turn.wish.at; });
    if (since == turn::kNever || message.text[0] == '\0') return;
    log(LogLevel::kInfo, "has waited for GPU %s for %lld s: for %s", device.gpu(),
        static_cast<long long>((now_ns() - since) / 1'000'000'000), message.text);
  }
  void operator()(const protocol::Refused& message) const {
    log(LogLevel::kWarning, "the scheduler ends the connection: %s", message.reason);
  }

  // ---- the tenant's memory limit ----
  void operator()(const protocol::UpdateLimit& message) const { device.limit().update(message); }
  void operator()(const protocol::Headroom& message) const { device.turns().take(message); }
  void operator()(const protocol::RecallHeadroom& message) const { device.turns().recall(message); }

  // ---- host memory ----
  void operator()(const protocol::PrepareSwap& message) const { device.swap_engine().prepare_arena(message.bytes); }
  void operator()(const protocol::ArenaSegment& message) const {
    device.memory().arena.lent(message, descriptors.count() > 0 ? descriptors.take(0) : FileDescriptor());
  }
  void operator()(const protocol::ArenaRefused& message) const { device.memory().arena.refused(message); }
  void operator()(const protocol::ArenaShrink& message) const {
    device.memory().copies.give_back_spare(message.bytes);
    device.memory().arena.shrink(message);
  }

  // ---- memory handed from process to process ----
  void operator()(const protocol::ExportWanted& message) const { device.process().ipc.on_export_wanted(device, message); }
  void operator()(const protocol::Imported& message) const { device.process().ipc.on_imported(device, message, descriptors); }
  void operator()(const protocol::ImportInherited& message) const { device.process().ipc.on_inherited(device, message); }

 private:
  // Without the swap engine, if there is nothing to bring in. Only this thread gives it jobs while a turn begins, so it stays at rest.
  bool load_at_once(uint64_t grant) const;
};

bool Link::Incoming::load_at_once(uint64_t grant) const {
  const int64_t started = now_ns();
  DeviceMemory& memory = device.memory();
  Turns& turns = device.turns();
  if (!device.swap_engine().at_rest() || !memory.residency.run_if_complete()) return false;
  const bool open = turns.take(turn::LoadEnded{}).agreed;
  if (!open) memory.residency.set_running(false);
  protocol::SwapProgress done{};
  done.direction = static_cast<uint8_t>(protocol::SwapDirection::kIn);
  done.finished = 1;
  done.failed = open ? 0 : 1;
  done.id = grant;
  done.elapsed_ns = static_cast<uint64_t>(now_ns() - started);
  done.memory = memory.report();
  turns.take(done);
  if (open) {
    memory.copies.forget(device.swap_engine().keeps_host_copies());
  } else {
    turns.take(turn::LoadStopped{});
  }
  return true;
}

// What is bad, or not for a client, is left out.
void Link::handle(protocol::MessageType type, std::span<const std::byte> packet, Descriptors descriptors) {
  static_cast<void>(protocol::dispatch(protocol::SchedulerMessages{}, type, packet, Incoming{*this, device_, descriptors}));
}

}  // namespace nvshare::interposer
