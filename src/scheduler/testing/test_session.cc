#include "scheduler/testing/test_session.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "scheduler/host/segment_maker.h"

namespace nvshare::scheduler {
namespace {

using protocol::MessageType;
using protocol::Packet;

constexpr size_t kLiars = 10;
constexpr size_t kLyingProcesses = 6;  // so that some are on several GPUs
constexpr int kTenantsOfLiars = 4;
constexpr int kFirstHonestTenant = 100;
constexpr uint8_t kHonestGpu = 2, kSharedGpu = 1;
constexpr int64_t kHonestBytes = 12 * kGiB, kSharedBytes = 4 * kGiB;
constexpr int64_t kOverhead = 300 * kMiB;
constexpr policy::Duration kTurnPatience = 20 * kSecond;     // virtual; a turn of the other honest one takes 50 ms
constexpr policy::Duration kSharedPatience = 200 * kSecond;  // who never answers comes last after 60 s
constexpr int64_t kSegmentBytes = 4 * HostBudget::kUnit;     // what an honest one asks for
constexpr int64_t kFileBytes = 16'384;                       // of each segment, whatever it stands for
constexpr size_t kKeptMost = 64;
constexpr uint64_t kMark = 0x5ec0'e7ed'0000'0000;
constexpr uint64_t kStepsToARestart = 1'500;

pid_t start_process() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_range(3, ~0U, 0);  // locks of the scheduler's, and segments
  for (;;) pause();
}

void end_process(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace

TestSession::TestSession(const Options& options)
    : options_(options),
      honest_(kHonestApart + (options.nvml ? 1 : 0)),
      liar_(options.seed),
      time_random_(options.seed * 31 + 7),
      null_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  set_log_level("off");
  for (size_t i = 0; i < honest_; ++i) {
    processes_.push_back({start_process(), kFirstHonestTenant + static_cast<int>(i)});
    Client& client = clients_.emplace_back();
    client.index = client.process = i;
    client.gpu = i < kHonestApart ? kHonestGpu : kSharedGpu;
    client.bytes = i < kHonestApart ? kHonestBytes : kSharedBytes;
  }
  for (size_t i = 0; options_.liars && i < kLyingProcesses; ++i) {
    processes_.push_back({start_process(), static_cast<int>(i) % kTenantsOfLiars});
  }
  for (size_t i = 0; options_.liars && i < kLiars; ++i) {
    Client& client = clients_.emplace_back();
    client.index = honest_ + i;
    client.process = honest_ + i % kLyingProcesses;
  }
  start_engine();
}

TestSession::~TestSession() {
  engine_.reset();
  for (const Process& process : processes_) end_process(process.pid);
}

int TestSession::tenant_of(pid_t pid) const {
  for (const Process& process : processes_) {
    if (process.pid == pid) return process.tenant;
  }
  return -1;
}

void TestSession::start_engine() {
  Engine::Options options;
  options.settings.lock_dir = options.settings.runtime_dir = folder_.path();
  options.settings.policy.switch_time_mode = policy::SwitchTimeMode::kFixed;
  options.settings.policy.switch_time_fixed = 50'000'000;
  options.settings.policy.unanswered_grace = kSecond;
  options.settings.restart_grace = kRestartGrace;
  options.epoch = static_cast<uint64_t>(1'000'000 + restarts_);
  options.known_clients_file = folder_.path() + "/clients";
  options.tenants_file = folder_.path() + "/tenants";
  options.look_at_host = [] { return HostBudget::Machine{64 * kGiB, std::nullopt}; };
  options.look_at_cgroups = [this](pid_t pid) { return "0::/system.slice/tenant" + std::to_string(tenant_of(pid)) + ".service\n"; };
  options.segment_maker = this;
  options.new_segment_id = [this] { return next_segment_ += 1 + liar_.below(3); };
  for (uint8_t gpu = 1; options_.nvml && gpu <= 3; ++gpu) {
    GpuUuid uuid;
    uuid.fill(gpu);
    options.gpus.push_back({uuid, "card", 16 * kGiB});
  }
  engine_.emplace(std::move(options), *this, now_);
}

// Connections break, the processes live.
void TestSession::restart() {
  ++restarts_;
  engine_.reset();
  jobs_.clear();
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = clients_[i];
    client.connection = 0;
    client.registered = false;
    client.inbox.clear();
    client.segments.clear();
    client.turn_at = now_ + kRestartGrace;
  }
  start_engine();
}

// Its process ends, and another comes in its place.
void TestSession::revive(size_t process) {
  const pid_t former = processes_[process].pid;
  end_process(former);
  for (Client& client : clients_) {
    if (client.process != process) continue;
    client.id = 0;
    disconnect(client);
  }
  processes_[process].pid = start_process();
}

void TestSession::send(ConnectionId connection, const Packet& packet, Descriptors descriptors) {
  Client& client = clients_[connection % clients_.size()];
  if (client.connection == connection && client.inbox.size() < 256) client.inbox.push_back({packet, std::move(descriptors)});
}

void TestSession::close(ConnectionId connection) {
  Client& client = clients_[connection % clients_.size()];
  if (client.connection != connection) return;
  client.connection = 0;
  client.registered = false;
  client.was_refused = true;
}

void TestSession::serve_jobs() {
  while (!jobs_.empty()) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (job.bytes == 0) {
      const bool held = let_go(job.memory, job.punch);
      job.memory.reset();
      engine_->host().discarded(job.segment, held, now_);
    } else {
      Result<FileDescriptor> made = make_segment(kFileBytes);
      engine_->host().made(job.segment, made ? std::move(*made) : FileDescriptor(), now_);
    }
  }
}

// Every process that has a client on the GPU has a context there, but for every third liar.
void TestSession::look_with_nvml() {
  std::vector<GpuSample> samples;
  const protocol::admin::StatusReport report = status_of(engine_->parts(), now_);
  for (uint8_t gpu = 1; gpu <= 3; ++gpu) {
    GpuSample sample;
    sample.uuid.fill(gpu);
    sample.taken_at = now_;
    for (const auto& client : report.clients) {
      if (!client.gpu.starts_with("GPU-0" + std::to_string(gpu))) continue;
      int64_t used = kOverhead;
      for (size_t i = 0; i < honest_; ++i) used += processes_[i].pid == client.pid ? clients_[i].resident : 0;
      const bool is_seen = tenant_of(client.pid) >= kFirstHonestTenant || tenant_of(client.pid) % 3 != 0;
      if (!is_seen) continue;
      sample.processes.push_back({client.pid, used});
      sample.used_after += used;
    }
    sample.used_before = sample.used_after;
    samples.push_back(std::move(sample));
  }
  engine_->memory_sampled(samples, now_);
}

void TestSession::step() {
  ++steps_;
  now_ += static_cast<policy::Duration>(time_random_() % (time_random_() % 200 == 0 ? 1'000'000'000 : 2'000'000));
  serve_jobs();
  if (const auto deadline = engine_->next_deadline(); deadline && *deadline <= now_) engine_->deadline_reached(now_);
  if (now_ - housekept_ > kSecond) {
    housekept_ = now_;
    engine_->housekeep(now_);
    if (options_.nvml) look_with_nvml();
  }
  if (steps_ % kStepsToARestart == 0) restart();
  for (size_t i = 0; i < honest_; ++i) be_honest(i);
  if (options_.liars) be_hostile(clients_[honest_ + liar_.below(kLiars)]);
}

std::string TestSession::problem() {
  if (!found_.empty()) return found_;
  if (auto broken = engine_->parts().steps.violated_invariant()) return "the policy violates an invariant: " + *broken;
  for (size_t i = 0; i < honest_; ++i) {
    const Client& client = clients_[i];
    if (client.was_refused && client.inbox.empty()) return "an honest client was refused";
    const policy::Duration patience = i < kHonestApart ? kTurnPatience : kSharedPatience;
    if (client.joins > 0 && !client.runs && now_ - client.turn_at > patience) {
      return "honest client " + std::to_string(i) + " had no turn for " + std::to_string(patience / kSecond) + " s";
    }
    for (const HeldSegment& segment : client.segments) check_mark(segment.memory, processes_[client.process].tenant, "that it holds");
  }
  for (const auto& [tenant, memory] : kept_) check_mark(memory, tenant, "that it kept");
  return found_;
}

std::string TestSession::wrong_in_books() {
  const protocol::admin::StatusReport report = status_of(engine_->parts(), now_);
  size_t honest = 0;
  size_t there = 0;
  for (size_t i = 0; i < honest_; ++i) there += clients_[i].registered ? 1U : 0U;
  for (const auto& client : report.clients) {
    if (client.allocated < 0 || client.resident < 0 || client.lease < 0 || client.charged < 0) return "a client has a negative amount";
    for (size_t i = 0; i < honest_; ++i) {
      const Client& here = clients_[i];
      if (client.pid != processes_[i].pid || !here.registered) continue;
      ++honest;
      if (client.allocated != here.bytes || client.resident != here.resident) return "an honest client's memory is not what it said";
      if (client.gpu_memory_limit != 0) return "an honest client has a limit that nobody set";
      int64_t held = 0;
      for (const HeldSegment& segment : here.segments) held += segment.bytes;
      if (client.host_memory_scheduler < held) return "an honest client's host memory is another's";
    }
  }
  if (honest != there) return "an honest client is not in the report";
  for (const auto& gpu : report.gpus) {
    if (gpu.total < 0 || gpu.overhead < 0 || gpu.departed < 0) return "a GPU has a negative amount";
    if (!gpu.uuid.starts_with("GPU-02020202")) continue;
    if (gpu.total != 16 * kGiB || gpu.foreign != 0 || gpu.safe_limit < kHonestBytes) return "the honest clients' GPU is another";
  }
  return {};
}

void TestSession::connect(Client& client) {
  client.connection = ++rounds_ * clients_.size() + client.index;
  client.inbox.clear();
  client.registered = false;
  Peer peer;
  peer.pid = processes_[client.process].pid;
  peer.uid = 1000;
  peer.start_time = start_time_of(peer.pid);
  peer.account = "tenant " + std::to_string(processes_[client.process].tenant);
  engine_->connected(client.connection, std::move(peer));
}

void TestSession::disconnect(Client& client) {
  client.registered = false;
  if (const ConnectionId connection = std::exchange(client.connection, 0)) engine_->disconnected(connection, "it left", now_);
}

void TestSession::deliver(Client& client, const Packet& packet, Descriptors descriptors) {
  if (client.connection == 0) return;
  ++messages_;
  engine_->received(client.connection, packet.span(), now_, std::move(descriptors));
}

// ---- the honest ----
protocol::MemoryReport TestSession::memory_of(const Client& client) const {
  return {static_cast<uint64_t>(client.bytes), static_cast<uint64_t>(client.resident), 0, static_cast<uint64_t>(client.bytes), 0};
}

void TestSession::come(Client& client) {
  if (client.joins == 0) client.turn_at = now_;
  ++client.joins;
  connect(client);
  auto message = test_registration(static_cast<uint64_t>(client.bytes), client.gpu);
  message.client_id = client.id;
  message.memory = memory_of(client);
  message.has_lock = client.runs;
  message.wants_lock = !client.runs;
  deliver(client, protocol::encode(message, protocol::kVersionMin));
}

void TestSession::be_honest(size_t index) {
  Client& client = clients_[index];
  if (client.connection == 0 && !client.was_refused) return come(client);
  while (!client.inbox.empty()) {
    Received received = std::move(client.inbox.front());
    client.inbox.pop_front();
    liar_.hear(received.packet);
    answer(client, received);
  }
}

void TestSession::answer(Client& client, Received& received) {
  const auto span = received.packet.span();
  switch (*protocol::decode_type(span)) {
    case MessageType::kRegistered:
      client.registered = true;
      client.id = protocol::decode<protocol::Registered>(span)->client_id;
      return;
    case MessageType::kRefused:
      found_ = std::string("an honest client was refused: ") + protocol::decode<protocol::Refused>(span)->reason;
      return;
    case MessageType::kLockOk:
      return take_lock(client, *protocol::decode<protocol::LockOk>(span));
    case MessageType::kDropLock:
      if (client.grant && protocol::decode<protocol::DropLock>(span)->grant.grant == client.grant->grant) leave_turn(client);
      return;
    case MessageType::kEvict:
      return evict(client, *protocol::decode<protocol::Evict>(span));
    case MessageType::kArenaSegment:
      return take_segment(client, received);
    case MessageType::kArenaShrink: {
      const uint64_t shrink = protocol::decode<protocol::ArenaShrink>(span)->shrink;
      return say(client, protocol::ArenaShrunk{shrink, 0});
    }
    default:
      return;
  }
}

void TestSession::take_lock(Client& client, const protocol::LockOk& lock) {
  client.grant = lock.grant;
  if (lock.budget < static_cast<uint64_t>(client.bytes) || client.runs) return;
  client.resident = client.bytes;
  client.runs = true;
  ++client.turns;
  say(client, protocol::SwapProgress{1, 1, 0, 0, {}, lock.grant.grant, static_cast<uint64_t>(client.bytes), 0, 1000, memory_of(client)});
  if (client.turns % 8 == 0) give_back_segment(client);
  if (client.turns % 4 == 0) {
    const int64_t total = static_cast<int64_t>(client.segments.size() + 1) * kSegmentBytes;
    say(client, protocol::ArenaRequest{
                    ++client.arena_request, static_cast<uint64_t>(total), static_cast<uint8_t>(protocol::ArenaOwner::kScheduler), 1, {}});
  }
}

void TestSession::leave_turn(Client& client) {
  say(client, protocol::LockReleased{*client.grant, 0, {}, 0, 0, 1'000'000, memory_of(client)});
  client.grant.reset();
  client.runs = false;
  client.turn_at = now_;  // it waits from now on
  say(client, protocol::ReqLock{++client.request});
}

void TestSession::evict(Client& client, const protocol::Evict& evict) {
  client.resident = 0;
  const auto moved = static_cast<uint64_t>(client.bytes);
  say(client, protocol::SwapProgress{0, 1, 0, 0, {}, evict.eviction, moved, moved, 1000, memory_of(client)});
}

void TestSession::take_segment(Client& client, Received& received) {
  const auto message = protocol::decode<protocol::ArenaSegment>(received.packet.span());
  if (received.descriptors.count() != 1) return;
  const int tenant = processes_[client.process].tenant;
  HeldSegment segment{message->segment, static_cast<int64_t>(message->bytes), received.descriptors.take(0)};
  check_mark(segment.memory, tenant, "that was lent to it");
  mark(segment.memory, tenant);
  client.segments.push_back(std::move(segment));
}

void TestSession::give_back_segment(Client& client) {
  if (client.segments.empty()) return;
  const SegmentId id = client.segments.front().id;
  client.segments.erase(client.segments.begin());
  say(client, protocol::ArenaReturned{id});
}

// ---- the liars ----
void TestSession::read_all(Client& client) {
  const int tenant = processes_[client.process].tenant;
  for (; !client.inbox.empty(); client.inbox.pop_front()) {
    Received& received = client.inbox.front();
    liar_.hear(received.packet);
    const auto type = *protocol::decode_type(received.packet.span());
    if (type == MessageType::kRegistered) {
      client.registered = true;
      client.id = protocol::decode<protocol::Registered>(received.packet.span())->client_id;
    }
    for (int i = 0; type == MessageType::kArenaSegment && i < received.descriptors.count(); ++i) {
      FileDescriptor memory = received.descriptors.take(i);
      check_mark(memory, tenant, "that was lent to it");
      if (liar_.one_in(2)) mark(memory, tenant);
      if (liar_.one_in(2)) continue;
      if (kept_.size() == kKeptMost) kept_.erase(kept_.begin());
      kept_.emplace_back(tenant, std::move(memory));
    }
  }
}

void TestSession::be_hostile(Client& client) {
  read_all(client);
  if (!kept_.empty() && liar_.one_in(50)) {
    const auto& [tenant, memory] = kept_[liar_.below(kept_.size())];
    mark(memory, tenant);
  }
  if (liar_.one_in(3'000)) return revive(client.process);
  const auto gpu = static_cast<uint8_t>(liar_.one_in(4) ? 4 + liar_.below(20) : 1 + 2 * liar_.below(2));
  const bool was_there = client.connection != 0;
  if (!was_there) connect(client);
  if (!client.registered && (!was_there || !liar_.one_in(50))) return deliver(client, liar_.registration(gpu, client.id));
  if (liar_.one_in(400)) return disconnect(client);
  if (liar_.one_in(500)) return deliver(client, liar_.registration(gpu, client.id));
  const Packet packet = liar_.message();
  Descriptors descriptors;
  if (*protocol::decode_type(packet.span()) == MessageType::kExported) {
    for (uint64_t count = liar_.below(4); count > 0; --count) descriptors.add(FileDescriptor(dup(null_.get())));
  }
  deliver(client, packet, std::move(descriptors));
}

// ---- what is in segments ----
void TestSession::mark(const FileDescriptor& memory, int tenant) {
  const uint64_t word = kMark + static_cast<uint64_t>(tenant);
  if (pwrite(memory.get(), &word, sizeof word, 0) != sizeof word) found_ = "a segment cannot be written";
}

void TestSession::check_mark(const FileDescriptor& memory, int tenant, const char* when) {
  uint64_t word = 0;
  if (pread(memory.get(), &word, sizeof word, 0) != sizeof word) {
    found_ = "a segment cannot be read";
  } else if (word != 0 && word != kMark + static_cast<uint64_t>(tenant)) {
    found_ = "tenant " + std::to_string(tenant) + " reads what tenant " + std::to_string(word - kMark) + " wrote, in a segment " + when;
  }
}

}  // namespace nvshare::scheduler
