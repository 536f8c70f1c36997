#include "interposer/link/link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "interposer/gate/gate.h"
#include "interposer/link/scheduler_need.h"
#include "interposer/link/scheduler_socket.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using protocol::MessageType;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kHandshakePatience_ns = 5'000 * kMillisecond;
constexpr int64_t kStartPatience_ns = 2'000 * kMillisecond;  // a scheduler that is being restarted
constexpr int64_t kWaitStep_ns = 200 * kMillisecond;         // between looks for a scheduler that there has to be
constexpr int64_t kReconnectFirst_ns = 20 * kMillisecond;
constexpr int64_t kReconnectMax_ns = 1'000 * kMillisecond;
constexpr int64_t kCgroupLook_ns = 1'000 * kMillisecond;
constexpr int64_t kDescriptorsLook_ns = 5'000 * kMillisecond;  // whether the program has closed ours, as nobody can wake us then
constexpr int64_t kAskAgain_ns = 10'000 * kMillisecond;

}  // namespace

// ---- connecting ----

bool Link::start(const char* waits_because) {
  if (!device_.limit().read_own()) {
    barred_by_ = "a limit of its environment cannot be read";
    barred_.store(true, std::memory_order_release);
    return false;
  }
  device_.memory().arena.configure();
  device_.swap_engine().unchanged().configure();
  if (!find_scheduler(waits_because)) {
    wake_.reset();
    gate_wake_.reset();
    device_.limit().alone();
    if (!barred()) device_.limit().log_limit();
    return false;
  }
  shared_.store(true, std::memory_order_release);
  device_.turns().set_shared(true);
  // The socket's thread last: it would connect anew once there is no socket.
  if (!device_.swap_engine().start() || !start_thread(&thread_, thread_body, this, "nvshare-link")) {
    barred_by_ = "no thread can be started for the link to nvshare-scheduler (ulimit -u, ulimit -v, pids.max of its cgroup)";
    barred_.store(true, std::memory_order_release);
    shared_.store(false, std::memory_order_release);
    device_.turns().set_shared(false);
    close();
    device_.limit().alone();
    return false;
  }
  return true;
}

// One that is being restarted may take a moment.
bool Link::find_scheduler(const char* waits_because) {
  const int64_t deadline = now_ns() + kStartPatience_ns;
  bool waits_told = false;
  while (!connect_once()) {
    if (short_of_descriptors(errno) && now_ns() > deadline) {
      barred_by_ = "the link to nvshare-scheduler needs three descriptors, and its open files are at their limit (ulimit -n)";
      barred_.store(true, std::memory_order_release);
      return false;
    }
    if (errno != ENOENT && errno != EACCES && errno != EPROTO && now_ns() <= deadline) {
      sleep_ns(kReconnectFirst_ns);
      continue;
    }
    if (waits_because == nullptr || barred()) return false;
    if (!waits_told) {
      log(LogLevel::kWarning, "no nvshare-scheduler answers: this program waits for one before it uses the GPU, because %s", waits_because);
    }
    waits_told = true;
    sleep_ns(kWaitStep_ns);
  }
  return true;
}

bool Link::connect_once() {
  broke_off_ = nobody_listens_ = refused_ = false;
  FileDescriptor fd = connect_to_scheduler();
  if (!fd) {
    nobody_listens_ = errno == ENOENT || errno == ECONNREFUSED;
    return false;
  }
  if (!have_wakers()) return false;
  const protocol::Register hello = registration();
  protocol::Registered answer;
  if (!handshake(fd.get(), hello, &answer)) return false;
  device_.swap_engine().unchanged().node_says(answer.skip_unchanged != 0);
  device_.turns().connected(hello, answer, std::move(fd));
  return true;
}

// Both are there from the first connection on, unless the program closes them.
bool Link::have_wakers() { return wake_.make() && gate_wake_.make(); }

int Link::own_socket() {
  Lock lock(mutex_);
  return socket_.get();
}

void Link::open(FileDescriptor socket, const protocol::Registered& terms) {
  Lock lock(mutex_);
  version_ = terms.version;
  client_id_ = terms.client_id;
  socket_.reset(std::move(socket));
  readable_.store(socket_.get(), std::memory_order_relaxed);
}

void Link::close() {
  Lock lock(mutex_);
  readable_.store(-1, std::memory_order_relaxed);
  socket_.reset();
}

bool Link::hung_up() {
  Lock lock(mutex_);
  if (!socket_) return false;
  pollfd end{socket_.get(), 0, 0};
  if (end.fd < 0) return true;  // the program has closed it
  return poll(&end, 1, 0) == 1 && (end.revents & (POLLHUP | POLLERR)) != 0;
}

void Link::send_about() {
  send(protocol::About{NVSHARE_VERSION});
  Lock lock(mutex_);
  if (keeps_.why[0] != '\0') send_packet(protocol::encode(keeps_, version_), {});
}

void Link::keeps_memory(const char* why) {
  Lock lock(mutex_);
  snprintf(keeps_.why, sizeof keeps_.why, "%s", why);
  send_packet(protocol::encode(keeps_, version_), {});
}

protocol::Register Link::registration() {
  protocol::Register message{};
  message.version_min = protocol::kVersionMin;
  message.version_max = protocol::version_spoken();
  message.backend = static_cast<uint8_t>(device_.backend());
  memcpy(message.gpu_uuid, device_.uuid().bytes, sizeof message.gpu_uuid);
  message.gpu_total_bytes = device_.total();
  message.memory_limit = device_.limit().own();
  message.pid = getpid();
  message.gpu_ordinal = static_cast<uint32_t>(device_.ordinal());
  message.memory = device_.memory().report();
  snprintf(message.gpu_name, sizeof message.gpu_name, "%s", device_.name());
  snprintf(message.program, sizeof message.program, "%s", program_invocation_short_name);
  message.client_id = id();
  device_.turns().introduce(&message);
  return message;
}

bool Link::handshake(int fd, const protocol::Register& hello, protocol::Registered* terms) {
  protocol::Packet packet = protocol::encode(hello, protocol::kVersionMin);
  broke_off_ = !send_whole(fd, packet.span(), {});
  if (broke_off_) return false;
  if (!wait_readable(fd, kHandshakePatience_ns)) {
    log(LogLevel::kWarning, "the scheduler does not answer");
    errno = EPROTO;
    return false;
  }
  ssize_t got = recv(fd, packet.bytes, sizeof packet.bytes, 0);
  if (got <= 0) {
    broke_off_ = true;
    errno = ECONNREFUSED;
    return false;
  }
  std::span<const std::byte> bytes{packet.bytes, static_cast<size_t>(got)};
  auto type = protocol::decode_type(bytes);
  if (type && *type == MessageType::kRegistered) {
    if (auto answer = protocol::decode<protocol::Registered>(bytes)) {
      log(LogLevel::kDebug, "nvshare-scheduler %s, protocol version %u", answer->version > 1 ? answer->release : "of an earlier release",
          answer->version);
      *terms = *answer;
      return true;
    }
  } else if (type && *type == MessageType::kRefused) {
    auto refused = protocol::decode<protocol::Refused>(bytes);
    refused_ = true;
    const char* reason = refused ? refused->reason : "(no reason given)";
    const bool told_later = refused && refused->barred != 0 && !shared();  // once the program attaches, with what it means: process.cc
    // It is asked again as long as the program runs: an upgrade under way may end in a scheduler that takes it.
    if (strcmp(reason, refusal_told_) != 0 && !told_later)
      log(LogLevel::kWarning, "the scheduler refuses GPU %s to this program: %s", device_.gpu(), reason);
    snprintf(refusal_told_, sizeof refusal_told_, "%s", reason);
    if (refused && refused->barred != 0) barred_.store(true, std::memory_order_release);
  } else {
    log(LogLevel::kWarning, "the scheduler's answer is not understood: %s", type ? protocol::name_of(*type) : type.error().text);
  }
  errno = EPROTO;
  return false;
}

void Link::disconnected() {
  device_.process().ipc.on_disconnected(device_);
  if (device_.turns().disconnected()) log(LogLevel::kInfo, "the scheduler is gone; going on with what this program holds");
  count_progress(false);
  reconnect_backoff_ns_ = kReconnectFirst_ns;
  reconnect_at_ns_ = now_ns() + kReconnectFirst_ns;
  device_.memory().arena.lender_gone();
}

void Link::reconnect() {
  if (now_ns() < reconnect_at_ns_) return;
  Turns& turns = device_.turns();
  if (turns.ask([](const turn::Turn& turn) { return turn::in_between(turn); })) {  // then there is one truth to tell
    reconnect_at_ns_ = now_ns() + kReconnectFirst_ns;
    return;
  }
  // From here on nothing is taken that the next scheduler is not told of.
  turns.take(turn::Registering{true});
  turns.hold_to_resident();
  const bool connected = connect_once();
  if (!connected) turns.take(turn::Registering{false, broke_off_, nobody_listens_, refused_});
  if (connected) {
    log(LogLevel::kInfo, "the scheduler is back");
    send_arena_held();
    flush();
    return;
  }
  reconnect_backoff_ns_ = std::min(reconnect_backoff_ns_ * 2, kReconnectMax_ns);
  reconnect_at_ns_ = now_ns() + reconnect_backoff_ns_;
}

// Nobody's memory leaves for that, and no limit is passed (turn::may_go_on_alone). This thread alone would begin another load.
void Link::go_on_alone() {
  Turns& turns = device_.turns();
  const auto may = [](const turn::Turn& turn) { return turn::may_go_on_alone(turn, now_ns()); };
  DeviceMemory& memory = device_.memory();
  if (!turns.ask(may) || memory.residency.pages_on_demand() || !device_.swap_engine().at_rest()) return;
  if (!memory.residency.run_if_complete()) return;
  if (!turns.take(turn::GoesOnAlone{memory.use.resident()}).agreed) return memory.residency.set_running(false);
  memory.copies.forget(device_.swap_engine().keeps_host_copies());
  log(LogLevel::kInfo, "goes on without a scheduler: all that this program has on GPU %s is there", device_.gpu());
}

// ---- the socket's thread ----

void* Link::thread_body(void* self) {
  static_cast<Link*>(self)->run();
  return nullptr;
}

void Link::run() {
  for (;;) {
    const int fd = readable_.load(std::memory_order_relaxed);  // this thread alone changes it
    const bool connected = fd >= 0;
    pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {fd, POLLIN, 0}};
    const int64_t timeout = next_timeout_ns();
    timespec limit{timeout / 1'000'000'000, timeout % 1'000'000'000};
    const int ready = ppoll(fds, 2, timeout < 0 ? nullptr : &limit, nullptr);
    if (ready > 0 && fds[0].revents != 0) wake_.settle();
    have_wakers();
    if (connected && (own_socket() < 0 || (ready > 0 && fds[1].revents != 0 && !receive()))) disconnected();
    if (!connected) {
      reconnect();
      go_on_alone();
    }
    flush();
    device_.turns().take(turn::Tick{});
    check_cgroup();
  }
}

int64_t Link::next_timeout_ns() {
  int64_t now = now_ns();
  int64_t timeout = -1;
  auto at = [&](int64_t deadline) {
    int64_t remaining = std::max<int64_t>(deadline - now, 0);
    if (timeout < 0 || remaining < timeout) timeout = remaining;
  };
  at(now + (wake_.get() >= 0 ? kDescriptorsLook_ns : kReconnectFirst_ns));
  if (readable_.load(std::memory_order_relaxed) < 0) at(reconnect_at_ns_);
  if (device_.memory().arena.wants_cgroup_watched()) at(cgroup_look_ns_);
  const turn::Instant due = device_.turns().ask([](const turn::Turn& turn) { return turn::next_deadline(turn); });
  if (due != turn::kNever) at(due);
  return timeout;
}

bool Link::receive() {
  uint16_t version = 0;
  {
    Lock lock(mutex_);
    version = version_;  // this thread alone changes it
  }
  for (;;) {
    alignas(8) std::byte bytes[protocol::kMessageBytesMax];
    Descriptors descriptors;
    ssize_t got = receive_packet(own_socket(), bytes, &descriptors, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (got == 0) return false;
    std::span<const std::byte> packet{bytes, static_cast<size_t>(got)};
    auto type = protocol::decode_type(packet);
    if (!type) {
      log(LogLevel::kWarning, "a message of the scheduler is not understood: %s", type.error().text);
      return false;
    }
    auto ok = protocol::check_version(packet, version);
    if (ok) ok = protocol::check_descriptors(*type, descriptors.count());
    if (!ok) {
      log(LogLevel::kWarning, "a message of the scheduler is not understood: %s", ok.error().text);
      return false;
    }
    handle(*type, packet, std::move(descriptors));
  }
}

// What is in flight is bounded meanwhile, so that what was submitted is what was done, but for some milliseconds.
void Link::count_progress(bool counts) {
  if (std::exchange(counts_progress_, counts) != counts) device_.process().gate.watch(Gate::kWatched, counts);
}

void Link::wake() { wake_.wake(); }

void Link::send_packet(const protocol::Packet& packet, const Descriptors& descriptors) {
  if (!socket_ || packet.length == 0) return;  // length 0: the version agreed on has no such message
  const NotCancelled whole;
  const int socket = socket_.get();
  if (socket >= 0 && !send_whole(socket, packet.span(), descriptors)) shutdown(socket, SHUT_RDWR);
}

// ---- questions ----

void Link::ask_why_waiting() {
  {
    Lock lock(mutex_);
    if (asked_why_at_ns_ != 0 && now_ns() - asked_why_at_ns_ < kAskAgain_ns) return;  // another thread that waits has
    asked_why_at_ns_ = now_ns();
    if (!socket_) return log(LogLevel::kInfo, "waits for GPU %s until a scheduler is back", device_.gpu());
  }
  why_wanted_.store(true, std::memory_order_release);
  wake();
}

// ---- host memory ----

void Link::arena_changed() {
  if (!arena_dirty_.exchange(true, std::memory_order_acq_rel)) wake();
}

void Link::send_arena() {
  if (!arena_dirty_.exchange(false, std::memory_order_acq_rel)) return;
  HostArena& arena = device_.memory().arena;
  HostArena::Outbox outbox;
  if (!arena.take_outbox(&outbox)) return;
  if (readable_.load(std::memory_order_relaxed) < 0) {
    arena.lender_gone();
    return;
  }
  for (uint64_t segment : outbox.returned) send(protocol::ArenaReturned{segment});
  for (const protocol::ArenaShrunk& answer : outbox.shrunk) send(answer);
  if (outbox.asks) send(outbox.request);
}

void Link::send_arena_held() {
  std::vector<protocol::ArenaHeld> held = device_.memory().arena.held();
  for (const protocol::ArenaHeld& segment : held) send(segment);
}

// The program may come to need what a swap arena of its own takes from its cgroup.
void Link::check_cgroup() {
  HostArena& arena = device_.memory().arena;
  if (!arena.wants_cgroup_watched() || now_ns() < cgroup_look_ns_) return;
  cgroup_look_ns_ = now_ns() + kCgroupLook_ns;
  if (arena.cgroup_is_full()) device_.memory().copies.give_back_spare(SIZE_MAX);
  arena.look_at_cgroup();
}

void Link::flush() {
  send_arena();
  device_.turns().flush();
  if (readable_.load(std::memory_order_relaxed) < 0) return;
  if (why_wanted_.exchange(false, std::memory_order_acq_rel)) send(protocol::AskWhyWaiting{++question_});
}

void Link::reset_after_fork() {
  mutex_.reset_after_fork();
  socket_.reset();
  wake_.reset();
  gate_wake_.reset();
  readable_.store(-1, std::memory_order_relaxed);
  shared_.store(false, std::memory_order_release);
  counts_progress_ = false;
}

}  // namespace nvshare::interposer
