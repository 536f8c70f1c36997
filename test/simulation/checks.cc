#include "checks.h"

#include <algorithm>

#include "run.h"
#include "scheduler/gpus/memory_watch.h"

namespace nvshare::simulation {

namespace {

constexpr Duration kToldApart = 100 * kUs;     // the program's wait for its work, and the swap engine's
constexpr Duration kDropAnswered = 10 * kSec;  // a second or two of GPU work, and slow threads
constexpr Duration kCopiesAsked = 2 * kSec;    // after which a program that waits for room has been asked for its copies in host memory
constexpr Duration kAskedAgain = 13 * kSec;    // after which one that did not answer has been asked once more
constexpr Duration kSeen = 4 * kSec;           // in which NVML is asked several times
constexpr Duration kDeathSeen = 2 * kSec;      // after which the death of a process is known
constexpr Bytes kSeenApart = 32 * kMiB;        // smaller changes are none
constexpr Bytes kCopiesKept = 256 * kMiB;      // and keeps less than this of them

bool holds(policy::ClientState state) { return state != policy::ClientState::kIdle && state != policy::ClientState::kWaiting; }

const policy::ClientGlimpse* find(const std::vector<policy::ClientGlimpse>& clients, uint64_t id) {
  const auto at = std::find_if(clients.begin(), clients.end(), [&](const policy::ClientGlimpse& one) { return one.client == id; });
  return at == clients.end() ? nullptr : &*at;
}

}  // namespace

void Checks::submits(const Process& process, const Client& client) {
  if (client.turn().context && !turn::may_run(client.turn())) {
    run_.world().fail(fmt::format("program {} submits to GPU {} without the lock", process.plan().number, client.gpu()));
  }
}

// Since when it is idle: not before its work ended, as far as threads wake up in time to tell one from the other. Where several threads, or
// GPUs, have work, a wait of the program may have been for a part of it (docs/known-gaps.md).
void Checks::gives_up(const Process& process, const Client& client) {
  if (process.plan().threads.size() > 1 || process.plan().gpus.size() > 1) return;
  const Instant since = client.turn().idle.idle_since_ns();
  const Instant ended = process.work_ended(client.place());
  if (ended <= since + kToldApart) return;
  run_.world().fail(fmt::format("program {} gives GPU {} up, idle for {} us, and its work ended {} us ago", process.plan().number,
                                client.gpu(), (run_.world().now() - since) / kUs, (run_.world().now() - ended) / kUs));
}

void Checks::drains(const Process& process) {
  if (process.capturing()) run_.world().fail(fmt::format("program {} has drained, and a stream captures", process.plan().number));
}

// It is asked for them in the moment in which host memory is short, but one that left that unanswered only seconds later.
void Checks::host_is_short(const Process& process) {
  const auto answers = [&](const Process& one) {
    const Instant since = one.answers_since();
    return one.alive() && !one.stopped() && (since == 0 || run_.world().now() - since > kAskedAgain);
  };
  if (!answers(process)) return;  // it may have lost its connection, and asks the scheduler anew
  for (const auto& other : run_.processes()) {
    if (!answers(*other) || other.get() == &process) continue;
    for (const auto& client : other->clients()) {
      const Instant waits = client->waits_for_room_since();
      if (waits == 0 || run_.world().now() - waits < kCopiesAsked || client->copied() < kCopiesKept) continue;
      run_.world().fail(fmt::format("memory of program {} finds no host memory, while program {} waits for room and keeps {} MiB of copies",
                                    process.plan().number, other->plan().number, client->copied() / kMiB));
    }
  }
}

void Checks::after_step() {
  check_memory();
  for (const auto& process : run_.processes()) {
    if (!process->alive()) continue;
    for (const auto& client : process->clients()) check_client(*process, *client);
  }
}

void Checks::check_client(const Process& process, const Client& client) {
  const turn::Turn& turn = client.turn();
  const auto fail = [&](const std::string& what) {
    run_.world().fail(fmt::format("program {} on GPU {}: {}", process.plan().number, client.gpu(), what));
  };
  if (turn::may_run(turn) == process.gate_closed(client.place()) && turn.context) fail("its gate and its turn do not agree");
  if (turn::may_run(turn) && turn.connected && client.resident() != client.allocated()) fail("it runs without all of its memory");
  // A drop ends in a drain, or is answered; the gate opens in the middle of one for moments only.
  const bool goes_on = (turn.phase == turn::Phase::kRunning && turn.drain.reopened_until == 0) || turn.phase == turn::Phase::kPaused;
  if (goes_on && client.drop_since() != 0) fail("it goes on, and has not answered a drop");
  if (!client.registered() || !run_.node().serves(client.connection())) return;
  const policy::ClientGlimpse* known = find(run_.node().glimpse(), client.id());
  if (known == nullptr) return fail("the scheduler does not know it");
  // The lock goes by its own word only.
  if (turn::holds_lock(turn) && !holds(known->state))
    return fail(fmt::format("it has the lock, the scheduler says {}", name_of(known->state)));
  if (!client.at_rest() || !run_.node().quiet(client.connection()) || process.stopped()) return;
  if (holds(known->state) != turn::holds_lock(turn))
    return fail(fmt::format("it has no lock, the scheduler says {}", name_of(known->state)));
  if (known->memory.allocated != client.allocated() || known->memory.resident != client.resident()) {
    fail(fmt::format("the scheduler counts {} MiB, {} of them on the GPU; it has {}, {}", known->memory.allocated / kMiB,
                     known->memory.resident / kMiB, client.allocated() / kMiB, client.resident() / kMiB));
  }
}

// Without NVML a scheduler cannot know what a program grew by while there was none, if it is stopped or killed before it can register: what
// a killed one had is there until the driver has freed it (docs/known-gaps.md). So much may be given to others as well.
void Checks::note_unknown() {
  if (run_.plan().nvml) return;
  std::map<int, Bytes> unknown;
  for (const auto& process : run_.processes()) {
    const bool killed = !process->alive() && process->has_context();
    if (!process->stopped() && !killed) continue;
    for (const auto& client : process->clients()) unknown[client->gpu()] += client->grown_alone();
  }
  for (const auto& [gpu, bytes] : unknown) unknown_[gpu] = std::max(unknown_[gpu], bytes);
}

void Checks::check_memory() {
  note_unknown();
  for (int gpu = 0; gpu < run_.plan().gpus; ++gpu) {
    // What children keep of a program that has ended is any other's memory: without NVML nobody knows of it (docs/known-gaps.md), a new
    // scheduler from its first looks on.
    const Bytes resident = run_.resident_on(gpu) - run_.kept_on(gpu, run_.plan().nvml);
    const Bytes most = run_.plan().gpu_bytes - run_.plan().policy.reserve_fixed;
    // A little more of others' memory is no change to the scheduler.
    const Bytes unseen = std::min(run_.kept_on(gpu), scheduler::ForeignMemoryWatch::kStep);
    if (resident > most + unknown_[gpu] + unseen)
      run_.world().fail(fmt::format("GPU {}: {} MiB are resident, {} may be", gpu, resident / kMiB, most / kMiB));
  }
}

void Checks::each_second() {
  if (run_.plan().bounded) check_waits();
  if (run_.plan().bounded) check_drops();
  check_leases();
  check_dead();
  if (run_.plan().nvml && run_.node().is_up()) check_seen();
}

// What NVML shows is what the policy reckons with, a moment later: what programs that are no clients have, and what contexts take.
void Checks::check_seen() {
  for (const policy::GpuView& gpu : policy::view(run_.node().policy_state(), run_.world().now())) {
    const auto place = static_cast<int>(gpu.gpu);
    Bytes least = run_.foreign_on(place), most = least, untold = 0;
    const auto known = [&](const Client& client) {
      return std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const auto& one) { return one.client == client.id(); });
    };
    for (const auto& process : run_.processes()) {
      for (const auto& client : process->clients()) {
        if (client->gpu() != place || !process->has_context()) continue;
        if (!process->alive() || !known(*client)) most += client->resident() + process->plan().context;
        for (const policy::ClientView& one : gpu.clients) {
          if (one.client == client->id()) untold += std::max<Bytes>(0, one.memory.resident - client->resident());
        }
      }
    }
    const bool blind = run_.plan().blind != Plan::Blind::kNot;
    // Who NVML shows no processes has to reckon with at least as much in all, but for what clients have moved out and not told, as one that
    // is stopped then: so much counts as theirs.
    const Bytes kept = least + run_.kept_on(place) - kSeenApart;
    const bool is_off = blind ? gpu.foreign + gpu.overhead + gpu.departed < kept + run_.contexts_on(place) - untold
                              : gpu.foreign < least - kSeenApart || gpu.foreign + gpu.departed < kept || gpu.foreign > most + kSeenApart;
    if (stays_off(foreign_[place], least + run_.resident_on(place) * (blind ? 1 : 0), is_off && !gpu.clients.empty())) {
      run_.world().fail(fmt::format("others have {} MiB of GPU {}, the policy reckons with {}", least / kMiB, place, gpu.foreign / kMiB));
    }
    for (const policy::ClientView& client : gpu.clients) {
      if (!blind) check_overhead(client);
    }
  }
}

// True: for so long that NVML must have shown it, and of the same bytes.
bool Checks::stays_off(Sight& sight, Bytes of, bool is_off) {
  const uint64_t life = run_.node().lives();
  const bool same = std::exchange(sight.of, of) == of && std::exchange(sight.life, life) == life;
  if (!same || !is_off || sight.since == 0) sight.since = is_off ? run_.world().now() : 0;
  return is_off && run_.world().now() - sight.since >= kSeen;
}

void Checks::check_overhead(const policy::ClientView& known) {
  for (const auto& process : run_.processes()) {
    for (const auto& client : process->clients()) {
      if (client->id() != known.client || !process->alive()) continue;
      const Bytes takes = process->plan().context;
      const bool rests = client->at_rest() && !process->stopped() && process->has_context();
      const bool is_off = known.overhead < takes - kSeenApart || known.overhead > takes + kSeenApart;
      if (stays_off(contexts_[known.client], client->resident(), rests && is_off)) {
        run_.world().fail(fmt::format("the context of program {} takes {} MiB, the policy reckons with {}", process->plan().number,
                                      takes / kMiB, known.overhead / kMiB));
      }
    }
  }
}

void Checks::check_drops() {
  for (const auto& process : run_.processes()) {
    for (const auto& client : process->clients()) {
      if (!process->alive() || client->drop_since() == 0 || run_.world().now() - client->drop_since() < kDropAnswered) continue;
      run_.world().fail(fmt::format("program {} has not answered a drop for {} s", process->plan().number, kDropAnswered / kSec));
    }
  }
}

// A process that has ended has no client, whoever holds its connections.
void Checks::check_dead() {
  for (const auto& process : run_.processes()) {
    const bool known = process->ended() && !process->has_pid() && run_.node().has_client_of(process->pid());
    if (!known) {
      dead_.erase(process->pid());
      continue;
    }
    const Instant since = dead_.try_emplace(process->pid(), run_.world().now()).first->second;
    if (run_.world().now() - since > kDeathSeen)
      run_.world().fail(fmt::format("program {} has ended, and the scheduler has a client of it", process->plan().number));
  }
}

// The tenants' memory limits, and host memory that is lent: both sides count the same.
void Checks::check_leases() {
  if (!run_.node().is_up()) return;
  const protocol::admin::StatusReport report = run_.node().status();
  for (const auto& process : run_.processes()) {
    for (const auto& client : process->clients()) {
      if (!process->alive() || process->stopped() || !client->at_rest() || !run_.node().quiet(client->connection())) continue;
      for (const protocol::admin::ClientReport& known : report.clients) {
        if (known.id == client->id()) check_books(*process, *client, known);
      }
    }
  }
}

void Checks::check_books(const Process& process, const Client& client, const protocol::admin::ClientReport& known) {
  const auto fail = [&](const char* what, int64_t has, int64_t said) {
    run_.world().fail(fmt::format("program {} on GPU {} has {} of {} bytes, the scheduler says {}", process.plan().number, client.gpu(),
                                  what, has, said));
  };
  const auto leased = static_cast<int64_t>(client.leased());
  if (known.lease != leased) fail("a lease", leased, known.lease);
  const Bytes host = client.host().lent_bytes();
  // What a client had of an earlier scheduler, or over another connection, and had not made yet, is not believed (docs/known-gaps.md).
  const bool known_whole = std::none_of(run_.plan().faults.begin(), run_.plan().faults.end(), [](const Fault& fault) {
    return fault.kind == Fault::Kind::kRestart || fault.kind == Fault::Kind::kCut;
  });
  if (run_.plan().host_lent && known_whole && client.host().at_rest() && known.host_memory_process != host)
    fail("host memory", host, known.host_memory_process);
}

void Checks::check_waits() {
  if (!run_.node().is_up()) return;
  const Instant now = run_.world().now();
  for (const policy::ClientGlimpse& client : run_.node().glimpse()) {
    const std::optional<policy::Duration> bound =
        client.state == policy::ClientState::kWaiting ? policy::waiting_bound(run_.node().policy_state(), client.client) : std::nullopt;
    if (!bound) {
      waits_.erase(client.client);
      continue;
    }
    Wait& wait = waits_.try_emplace(client.client, Wait{now, 0}).first->second;
    wait.bound = std::max(wait.bound, *bound);
    if (now - wait.since > wait.bound) {
      run_.world().fail(
          fmt::format("client {} has waited for {} s, the bound was {} s", client.client, (now - wait.since) / kSec, wait.bound / kSec));
    }
  }
}

}  // namespace nvshare::simulation
