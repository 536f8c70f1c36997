#include "load/workload.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "load/scheduler.h"

namespace nvshare::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kOverhead = 300 * kMiB;  // as the scheduler takes it without NVML
constexpr uint64_t kSmall = 64 * kMiB;
constexpr uint64_t kLarge = 10240 * kMiB;
constexpr size_t kUnanswered = 128;  // registrations on their way: the listener's queue is no longer than that
constexpr int kEvents = 256;
constexpr uint64_t kNews = UINT64_MAX;  // of the crowd, among programs' numbers

uint64_t gpu_total(const Plan& plan) {
  const uint64_t per_gpu = plan.clients / plan.gpus + 1;
  return per_gpu * kOverhead * 5 / 4 + (plan.shape == Shape::kWaiting ? kLarge + kLarge / 2 : 2 * per_gpu * kSmall + 1024 * kMiB);
}

}  // namespace

Workload::Workload(Crowd& crowd, const Plan& plan)
    : crowd_(crowd),
      plan_(plan),
      need_(plan.shape == Shape::kWaiting ? kLarge : kSmall),
      gpu_total_(gpu_total(plan)),
      programs_(plan.clients),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      seed_(plan.seed * 88172645463325252ULL + 1) {
  const size_t count = plan.processes == 0 ? plan.clients : std::min(plan.processes, plan.clients);
  for (size_t i = 0; i < count; ++i) processes_.push_back({i * plan.clients / count, (i + 1) * plan.clients / count});
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kNews;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, crowd_.news(), &event);
}

Workload::~Workload() { close(epoll_); }

uint64_t Workload::random() {
  seed_ ^= seed_ << 13;
  seed_ ^= seed_ >> 7;
  seed_ ^= seed_ << 17;
  return seed_;
}

template <typename Payload>
void Workload::send(Program& program, const Payload& payload) {
  const protocol::Packet packet = protocol::encode(payload);
  if (::send(program.socket.get(), packet.bytes, packet.length, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) ++figures_.sent;
}

size_t Workload::process_of(size_t index) const {
  const auto next =
      std::upper_bound(processes_.begin(), processes_.end(), index, [](size_t at, const Process& process) { return at < process.first; });
  return static_cast<size_t>(next - processes_.begin()) - 1;
}

bool Workload::enter(size_t at) {
  Process& process = processes_[at];
  Member member = crowd_.enter(process.end - process.first);
  if (member.sockets.empty()) return false;
  process.place = member.place;
  for (size_t index = process.first; index < process.end; ++index) {
    Program& program = programs_[index];
    program = Program();
    program.socket = std::move(member.sockets[index - process.first]);
    program.gpu = static_cast<uint32_t>(index % plan_.gpus);
    program.memory.allocated = program.memory.swappable_host = program.memory.charged = need_;
  }
  connecting_.push_back(at);
  return true;
}

void Workload::register_connected() {
  uint64_t count = 0;
  if (::read(crowd_.news(), &count, sizeof count) < 0) return;
  std::erase_if(connecting_, [this](size_t at) {
    const Process& process = processes_[at];
    if (!crowd_.has_answered(process.place)) return false;
    if (crowd_.has_connected(process.place)) {
      for (size_t index = process.first; index < process.end; ++index) register_one(index);
    } else {
      figures_.lost += process.end - process.first;
      leave(at);
    }
    return true;
  });
}

void Workload::register_one(size_t index) {
  Program& program = programs_[index];
  fcntl(program.socket.get(), F_SETFL, O_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = index;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, program.socket.get(), &event);
  protocol::Register message{};
  message.version_min = protocol::kVersionMin;
  message.version_max = protocol::version_spoken();
  std::memset(message.gpu_uuid, static_cast<int>(program.gpu) + 1, sizeof message.gpu_uuid);
  message.gpu_total_bytes = gpu_total_;
  message.memory = program.memory;
  std::strcpy(message.gpu_name, "card under load");
  std::strcpy(message.program, "load");
  send(program, message);
}

void Workload::leave(size_t at) {
  const Process& process = processes_[at];
  crowd_.kill(process.place);
  for (size_t index = process.first; index < process.end; ++index) {
    Program& program = programs_[index];
    epoll_ctl(epoll_, EPOLL_CTL_DEL, program.socket.get(), nullptr);
    registered_ -= program.registered;
    program = Program();
  }
}

size_t Workload::register_all(int64_t until_ns) {
  size_t entered = 0, next = 0;
  while (registered_ + figures_.lost < plan_.clients && now_ns() < until_ns) {
    while (next < processes_.size() && entered - registered_ - figures_.lost < kUnanswered) {
      if (!enter(next)) return registered_;
      entered = processes_[next++].end;
    }
    poll_once(10'000'000);
  }
  return registered_;
}

void Workload::request_all() {
  for (Program& program : programs_) {
    if (!program.registered) continue;
    request(program);
    poll_once(0);
  }
}

void Workload::run(int64_t until_ns) {
  const auto between = static_cast<int64_t>(1e9 / plan_.messages_per_second);
  int64_t due = now_ns();
  for (int64_t now = due; now < until_ns; now = now_ns()) {
    for (; due <= now; due += between) act();
    poll_once(due - now_ns());
    if (now - due > 1'000'000'000) due = now;  // this side was late: no flood follows
  }
}

void Workload::listen(int64_t until_ns) {
  while (now_ns() < until_ns) poll_once(until_ns - now_ns());
}

uint64_t Workload::tenant_to_change() {
  const size_t index = next_limit_++ % programs_.size();
  return programs_[index].tenant;
}

void Workload::act() {
  const size_t index = random() % programs_.size();
  Program& program = programs_[index];
  if (!program.registered) return;
  const uint64_t kind = random() % 100;
  if (kind < 70) return change_memory(program);
  if (kind < 80) return program.grant == 0 ? request(program) : release(program, protocol::ReleaseReason::kEarly);
  if (kind < 90) return program.grant != 0 ? release(program, protocol::ReleaseReason::kEarly) : request(program);
  if (kind < 95) {  // a process ends with all its clients
    const size_t at = process_of(index);
    const size_t clients = processes_[at].end - processes_[at].first;
    if (clients > 1 && random() % clients != 0) return;
    leave(at);
    enter(at);
    return;
  }
  if (program.grant != 0) load(program);
}

void Workload::change_memory(Program& program) {
  protocol::MemoryReport& memory = program.memory;
  memory.allocated = need_ - random() % 16 * kMiB;
  memory.resident = std::min(program.grant != 0 ? std::min(memory.allocated, program.budget) : memory.resident, memory.allocated);
  memory.charged = memory.allocated;
  send(program, protocol::MemUpdate{memory, program.budget, program.budget_sequence, 0, 0, 0});
}

void Workload::request(Program& program) {
  if (program.grant != 0 || program.waits) return;
  program.waits = true;
  program.asked_at = now_ns();
  send(program, protocol::ReqLock{++request_});
}

void Workload::release(Program& program, protocol::ReleaseReason reason) {
  if (program.grant == 0) return;
  protocol::LockReleased message{};
  message.grant = {program.epoch, std::exchange(program.grant, 0)};
  message.reason = static_cast<uint8_t>(reason);
  message.used_ns = 1'000'000;
  message.memory = program.memory;
  send(program, message);
}

// As much as its budget allows.
void Workload::load(Program& program) {
  program.memory.resident = std::min(program.budget, program.memory.allocated);
  protocol::SwapProgress message{};
  message.direction = static_cast<uint8_t>(protocol::SwapDirection::kIn);
  message.finished = program.memory.resident == program.memory.allocated;
  message.id = program.grant;
  message.moved = message.copied = program.memory.resident;
  message.elapsed_ns = 1'000'000;
  message.memory = program.memory;
  send(program, message);
}

// As the library does when others wait for memory: what is not in use is not its own to take any more.
void Workload::make_room(Program& program) {
  if (program.grant == 0 || program.memory.resident < program.memory.allocated) return;
  program.budget = std::min(program.budget, program.memory.resident);
  send(program, protocol::MemUpdate{program.memory, program.budget, program.budget_sequence, 0, 0, 0});
}

void Workload::evict(Program& program, const protocol::Evict& order) {
  program.memory.resident -= std::min(order.bytes, program.memory.resident);
  protocol::SwapProgress message{};
  message.direction = static_cast<uint8_t>(protocol::SwapDirection::kOut);
  message.finished = 1;
  message.id = order.eviction;
  message.moved = message.copied = order.bytes;
  message.elapsed_ns = 1'000'000;
  message.memory = program.memory;
  send(program, message);
}

void Workload::take(size_t index, const protocol::Packet& packet) {
  using namespace protocol;
  ++figures_.received;
  Program& program = programs_[index];
  const Result<MessageType> type = decode_type(packet.span());
  if (!type) return;
  ++figures_.received_by_type[static_cast<uint16_t>(*type)];
  if (*type == MessageType::kRegistered) {
    const auto message = decode<Registered>(packet.span());
    if (!message) return;
    program.registered = true;
    program.tenant = message->tenant;
    program.epoch = message->epoch;
    ++registered_;
    ++figures_.joined;
  } else if (*type == MessageType::kLockOk) {
    const auto message = decode<LockOk>(packet.span());
    if (!message) return;
    const bool is_new = program.grant != message->grant.grant;
    program.grant = message->grant.grant;
    program.budget = message->budget;
    program.budget_sequence = message->budget_sequence;
    if (is_new && program.waits && program.asked_at < figures_.since_ns) {
      ++figures_.grants_of_before;
    } else if (is_new && program.waits) {
      figures_.grants_ms.push_back(static_cast<double>(now_ns() - program.asked_at) / 1e6);
    }
    program.waits = false;
    if (program.memory.resident < std::min(program.budget, program.memory.allocated)) load(program);
  } else if (*type == MessageType::kDropLock) {
    release(program, ReleaseReason::kDropped);
    request(program);
  } else if (*type == MessageType::kEvict) {
    if (const auto message = decode<Evict>(packet.span())) evict(program, *message);
  } else if (*type == MessageType::kContention) {
    const auto message = decode<Contention>(packet.span());
    if (message && message->memory_waiters > 0) make_room(program);
  } else if (*type == MessageType::kRecallHeadroom) {
    if (const auto message = decode<RecallHeadroom>(packet.span()))
      send(program, HeadroomReturned{message->recall, 0, program.memory.charged});
  }
}

bool Workload::read(size_t index) {
  protocol::Packet packet;
  const ssize_t length = recv(programs_[index].socket.get(), packet.bytes, sizeof packet.bytes, MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (length <= 0) {
    const Process& process = processes_[process_of(index)];
    figures_.lost += process.end - process.first;
    leave(process_of(index));
    return false;
  }
  packet.length = static_cast<uint32_t>(length);
  take(index, packet);
  return true;
}

// Sleeps to the nanosecond: what waits in whole milliseconds spins at a thousand messages a second, and takes a processor of the
// scheduler's.
void Workload::poll_once(int64_t timeout_ns) {
  epoll_event events[kEvents];
  timeout_ns = std::max<int64_t>(timeout_ns, 0);
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  const int count = epoll_pwait2(epoll_, events, kEvents, &timeout, nullptr);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kNews) {
      register_connected();
      continue;
    }
    while (programs_[events[i].data.u64].socket && read(events[i].data.u64)) {
    }
  }
}

}  // namespace nvshare::bench
