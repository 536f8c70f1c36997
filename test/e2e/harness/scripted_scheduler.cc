#include "e2e/harness/scripted_scheduler.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "protocol/paths.h"

namespace nvshare::e2e {

using namespace protocol;

namespace {
constexpr uint64_t kEpoch = 7;
constexpr int64_t kPoll_ns = 5'000'000;
constexpr int kGoodbyeMs = 2'000;  // for a client that is gone to say so
constexpr uint64_t kSwapCost_ns = 1'000'000;
constexpr std::chrono::milliseconds kOthersMoveOut{50};
}  // namespace

ScriptedScheduler::ScriptedScheduler(const std::string& runtime_directory, Script script) : script_(script) {
  const std::string path = runtime_directory + kClientSocket;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::filesystem::remove(path);  // of an earlier one
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(listener_.get(), 4) != 0) {
    std::perror(path.c_str());
    std::abort();
  }
  thread_ = std::thread([this] { run(); });
}

ScriptedScheduler::~ScriptedScheduler() {
  stop_ = true;
  thread_.join();
}

std::vector<ScriptedScheduler::Release> ScriptedScheduler::releases() {
  std::lock_guard lock(mutex_);
  return releases_;
}

std::vector<ScriptedScheduler::Release> ScriptedScheduler::releases(ReleaseReason reason) {
  std::vector<Release> those = releases();
  std::erase_if(those, [&](const Release& release) { return release.reason != reason; });
  return those;
}

std::vector<ScriptedScheduler::Pause> ScriptedScheduler::pauses() {
  std::lock_guard lock(mutex_);
  return pauses_;
}

std::string ScriptedScheduler::problem() {
  std::lock_guard lock(mutex_);
  return problem_;
}

void ScriptedScheduler::complain(const std::string& text) {
  std::lock_guard lock(mutex_);
  problem_ += text + "\n";
}

template <typename Payload>
void ScriptedScheduler::send(int fd, const Payload& payload) {
  const Packet packet = encode(payload);
  ::send(fd, packet.bytes, packet.length, MSG_NOSIGNAL);
}

void ScriptedScheduler::run() {
  while (!stop_) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(kPoll_ns / 1'000'000)) != 1) continue;
    FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client) serve(client.get());
  }
  listener_ = FileDescriptor();
}

void ScriptedScheduler::serve(int fd) {
  while (!stop_) {
    const bool drops = script_.drop_every.count() > 0 && !(script_.waiters && grants_ > 1) && granted_ && !dropping_;
    const int64_t due_ns = granted_at_ns_ + script_.drop_every.count() + script_.drop_spread.count() * (grants_ * 619 % 1000) / 1000;
    if ((drops && now_ns() >= due_ns) || (granted_ && !dropping_ && drop_asked_.exchange(false))) {
      dropping_ = true;
      dropped_at_ns_ = now_ns();
      send(fd, DropLock{{kEpoch, static_cast<uint64_t>(grants_)}, static_cast<uint64_t>(grants_), 0, {}, script_.tells_end, {}});
    }
    if (const int64_t cost_ns = granted_ ? contend_cost_ns_.exchange(0) : 0; cost_ns > 0) {
      send(fd, Contention{1, 1, static_cast<uint64_t>(cost_ns), 0, 0});
    }
    pollfd readable{fd, POLLIN, 0};
    const int64_t patience_ns = std::clamp<int64_t>(drops ? due_ns - now_ns() : INT64_MAX, 0, kPoll_ns);
    const timespec patience{0, patience_ns};
    if (ppoll(&readable, 1, &patience, nullptr) != 1) continue;
    std::byte bytes[kMessageBytesMax];
    const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
    if (got <= 0) break;
    handle(fd, {bytes, static_cast<size_t>(got)});
  }
  granted_ = dropping_ = paused_ = false;
  if (stop_) listener_ = FileDescriptor();  // who comes now finds nobody
  // Closed with something of the client's unread, the connection would be reset, and what was sent last, such as a grant, lost.
  shutdown(fd, SHUT_WR);
  std::byte rest[kMessageBytesMax];
  pollfd readable{fd, POLLIN, 0};
  while (poll(&readable, 1, kGoodbyeMs) == 1 && recv(fd, rest, sizeof rest, 0) > 0) {
  }
}

void ScriptedScheduler::end_pause(bool by_drop) {
  if (!paused_) return;
  paused_ = false;
  std::lock_guard lock(mutex_);
  pauses_.push_back({paused_used_ns_, now_ns() - paused_at_ns_, by_drop});
}

void ScriptedScheduler::handle_pause(MessageType type, std::span<const std::byte> packet) {
  const bool begins = type == MessageType::kLockPaused;
  const auto paused = begins ? decode<LockPaused>(packet) : Result<LockPaused>(LockPaused{});
  const auto resumed = begins ? Result<LockResumed>(LockResumed{}) : decode<LockResumed>(packet);
  if (!paused) return complain(paused.error().text);
  if (!resumed) return complain(resumed.error().text);
  const uint64_t grant = begins ? paused->grant.grant : resumed->grant.grant;
  if (script_.pause_us == 0) return complain("a pause that is not allowed");
  if (!granted_ || grant != static_cast<uint64_t>(grants_)) return complain("a pause with a lock that it does not hold");
  if (begins == paused_) return complain(begins ? "a pause in a pause" : "the end of a pause that it was not in");
  if (!begins) return end_pause(false);
  paused_ = true;
  paused_at_ns_ = now_ns();
  paused_used_ns_ = static_cast<int64_t>(paused->used_ns);
}

void ScriptedScheduler::give_lock(int fd) {
  granted_ = true;
  granted_at_ns_ = now_ns();
  const auto grant = static_cast<uint64_t>(++grants_);
  if (script_.contended || (script_.waiters && grants_ > 1)) {
    send(fd, LockOk{{kEpoch, grant}, 0, ++budget_sequence_});
    send(fd, Contention{1, script_.waiters ? 1u : 0u, kSwapCost_ns, 0, 0});
    std::this_thread::sleep_for(kOthersMoveOut);
  }
  const bool piecemeal = script_.piecemeal_bytes > 0 && grants_ > 1;
  send(fd, LockOk{{kEpoch, grant}, piecemeal ? script_.piecemeal_bytes : kMemoryBytesMax, ++budget_sequence_});
  if (grants_ == script_.gone_with_grant) stop_ = true;
}

void ScriptedScheduler::handle(int fd, std::span<const std::byte> packet) {
  const auto type = decode_type(packet);
  if (!type) return complain(type.error().text);
  if (*type == MessageType::kRegister) {
    const auto hello = decode<Register>(packet);
    if (!hello) return complain(hello.error().text);
    send(fd, Registered{kVersionMax, {}, 1, kEpoch, 0, 0, kLeaseMax, 0, hello->gpu_total_bytes, hello->gpu_total_bytes});
    if (hello->has_lock != 0) {  // the same lock, under a grant of ours
      came_with_lock_ = granted_ = true;
      granted_at_ns_ = now_ns();
      send(fd, LockOk{{kEpoch, static_cast<uint64_t>(++grants_)}, kMemoryBytesMax, ++budget_sequence_});
    }
    if (script_.limited) send(fd, Contention{0, 0, 0, kLimitedCompute, script_.idle_release_us, 0, {}, script_.pause_us});
    if (script_.tells_if_held) send(fd, Contention{});
    if (hello->has_lock == 0 && hello->wants_lock != 0) give_lock(fd);
  } else if (*type == MessageType::kReqLock) {
    if (granted_) return complain("a request for the lock from its holder");
    if (script_.grants_most == 0 || grants_ < script_.grants_most) give_lock(fd);
  } else if (*type == MessageType::kMemUpdate) {
    const auto update = decode<MemUpdate>(packet);
    if (!update) return complain(update.error().text);
    if (!granted_ || grants_ < 2 || update->memory.allocated >= allocated_ || script_.piecemeal_bytes == 0) return;
    allocated_ = update->memory.allocated;
    send(fd, LockOk{{kEpoch, static_cast<uint64_t>(grants_)}, allocated_, ++budget_sequence_});
  } else if (*type == MessageType::kArenaRequest) {
    const auto request = decode<ArenaRequest>(packet);
    if (!request) return complain(request.error().text);
    const uint64_t more = std::min(request->total - std::min(request->total, lent_), kArenaSegmentBytesMax);
    lent_ += more;
    send(fd, ArenaSegment{++segments_, more, static_cast<uint8_t>(ArenaOwner::kProcess), {}});
  } else if (*type == MessageType::kLockPaused || *type == MessageType::kLockResumed) {
    handle_pause(*type, packet);
  } else if (*type == MessageType::kEndsSoon) {
    const auto ends = decode<EndsSoon>(packet);
    if (!ends) return complain(ends.error().text);
    if (!dropping_ || ends->grant.grant != static_cast<uint64_t>(grants_)) return complain("the end of work that was not asked for");
    ++told_ahead_;
  } else if (*type == MessageType::kLockReleased) {
    const auto released = decode<LockReleased>(packet);
    if (!released) return complain(released.error().text);
    if (!granted_ || released->grant.grant != static_cast<uint64_t>(grants_)) return complain("a release of a lock that it does not hold");
    const auto reason = static_cast<ReleaseReason>(released->reason);
    if (reason != ReleaseReason::kNotDrained) end_pause(true);
    std::lock_guard lock(mutex_);
    const int64_t now = now_ns();
    releases_.push_back({reason, now - granted_at_ns_, dropping_ ? now - dropped_at_ns_ : 0, static_cast<int64_t>(released->used_ns),
                         int64_t{released->idle_us} * 1000});
    dropping_ = false;
    granted_ = reason == ReleaseReason::kNotDrained;
    granted_at_ns_ = now_ns();
    allocated_ = released->memory.allocated;
    const bool others_come = script_.waiters || script_.contended || script_.piecemeal_bytes > 0;
    const uint64_t leaves = released->memory.resident - std::min(released->memory.resident, script_.left_bytes);
    if (others_come && !granted_) send(fd, Evict{static_cast<uint64_t>(grants_), leaves});
  }
}

}  // namespace nvshare::e2e
