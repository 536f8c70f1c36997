#include "scheduler/sockets/closing_threads.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "scheduler/log.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace nvshare::scheduler {
namespace {

constexpr int64_t kEndPatienceNs = 1'000'000'000;
constexpr long kInterruptNs = 1'000'000;
constexpr int kInterrupt = SIGURG;  // the loop has no use for it
constexpr size_t kPacketsAtOnce = 64;
constexpr int kRounds = 64;       // of these; more than a socket holds
constexpr int kPacketsSeen = 16;  // by the caller's thread

void nothing(int) {}

// While it lives, what the thread waits for in the kernel is interrupted again and again.
class Interrupts {
 public:
  Interrupts() {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, kInterrupt);
    pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kInterrupt;
    event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
    there_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    if (!there_) spdlog::warn("no timer for a thread that closes descriptors: clients may make others wait for it");
  }
  ~Interrupts() {
    if (there_) timer_delete(timer_);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  void set(bool on) const {
    const itimerspec each{{0, on ? kInterruptNs : 0}, {0, on ? kInterruptNs : 0}};
    if (there_) timer_settime(timer_, 0, &each, nullptr);
  }

 private:
  timer_t timer_{};
  bool there_ = false;
};

// Of a socket to which nobody can send any more: takes what it holds out, up to a packet that came with descriptors. With SO_TIMESTAMP each
// packet, an empty one too, has a control message, for which there is room, and none for more.
bool holds_descriptors(int socket) {
  const int on = 1;
  if (setsockopt(socket, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0) return true;
  for (int i = 0; i < kPacketsSeen; ++i) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timeval))];
    std::byte ignored[1];
    iovec part{ignored, sizeof ignored};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    if (recvmsg(socket, &packet, MSG_PEEK | MSG_DONTWAIT) < 0 || (packet.msg_flags & MSG_CTRUNC) != 0) return true;
    if (packet.msg_controllen == 0) return false;  // the end
    if (recv(socket, ignored, sizeof ignored, MSG_DONTWAIT) < 0) return true;
  }
  return true;
}

// Without room for descriptors, so that the kernel lets go of them, all at once: one interruption ends the waiting for them all.
void drain(int socket) {
  std::byte ignored[1];
  iovec part{ignored, sizeof ignored};
  std::array<mmsghdr, kPacketsAtOnce> packets{};
  for (mmsghdr& packet : packets) {
    packet.msg_hdr.msg_iov = &part;
    packet.msg_hdr.msg_iovlen = 1;
  }
  // At the end of the connection there are empty ones for ever.
  for (int i = 0; i < kRounds; ++i) {
    const int count = recvmmsg(socket, packets.data(), packets.size(), MSG_DONTWAIT, nullptr);
    if (count <= 0 || packets[static_cast<size_t>(count) - 1].msg_len == 0) return;
  }
}

}  // namespace

struct ClosingThreads::State {
  struct Unclosed {
    FileDescriptor descriptor;
    bool is_socket = false;
  };
  struct Group {
    std::deque<Unclosed> unclosed;
    int64_t waiting = 0;  // the one that is being closed included
    bool busy = false;
  };

  mutable Mutex mutex;
  Condition changed;
  std::map<uint64_t, Group> groups GUARDED_BY(mutex);
  std::deque<uint64_t> ready GUARDED_BY(mutex);  // groups that have some, of which none is being closed
  int64_t waiting GUARDED_BY(mutex) = 0;
  int threads GUARDED_BY(mutex) = 0;
  int idle GUARDED_BY(mutex) = 0;
  bool ends GUARDED_BY(mutex) = false;

  static void push(const std::shared_ptr<State>& state, Unclosed unclosed, uint64_t whose);
  static void work(const std::shared_ptr<State>& state);
};

void ClosingThreads::State::push(const std::shared_ptr<State>& state, Unclosed unclosed, uint64_t whose) {
  Lock lock(state->mutex);
  Group& group = state->groups[whose];
  group.unclosed.push_back(std::move(unclosed));
  ++group.waiting;
  ++state->waiting;
  if (!group.busy && group.unclosed.size() == 1) state->ready.push_back(whose);
  if (state->idle < static_cast<int>(state->ready.size()) && state->threads < kThreadsMax) {
    // Signals are the loop's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([state] { work(state); }).detach();
      ++state->threads;
    } catch (const std::system_error& problem) {  // the next one tries again
      spdlog::warn("cannot start a thread to close descriptors: {}", problem.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  state->changed.notify_one();
}

void ClosingThreads::State::work(const std::shared_ptr<State>& state) {
  const Interrupts interrupts;
  Lock lock(state->mutex);
  while (true) {
    if (state->ready.empty()) {
      if (state->ends) break;
      ++state->idle;
      state->changed.wait(state->mutex);
      --state->idle;
      continue;
    }
    const uint64_t whose = state->ready.front();
    state->ready.pop_front();
    Group& group = state->groups.at(whose);
    group.busy = true;
    Unclosed unclosed = std::move(group.unclosed.front());
    group.unclosed.pop_front();
    lock.unlock();
    interrupts.set(true);
    if (unclosed.is_socket) drain(unclosed.descriptor.get());
    unclosed.descriptor.reset();
    interrupts.set(false);
    lock.lock();
    group.busy = false;
    --group.waiting;
    --state->waiting;
    if (!group.unclosed.empty()) {
      state->ready.push_back(whose);
    } else {
      state->groups.erase(whose);
    }
  }
  --state->threads;
  state->changed.notify_all();
}

ClosingThreads::ClosingThreads() : state_(std::make_shared<State>()) {
  struct sigaction none {};
  none.sa_handler = nothing;  // one that is ignored interrupts nothing
  sigaction(kInterrupt, &none, nullptr);
}

ClosingThreads::~ClosingThreads() {
  State& state = *state_;
  Lock lock(state.mutex);
  state.ends = true;
  state.changed.notify_all();
  state.changed.wait_for(state.mutex, kEndPatienceNs, [&]() REQUIRES(state.mutex) { return state.threads == 0; });
}

void ClosingThreads::close_later(FileDescriptor descriptor, uint64_t whose) {
  if (descriptor) State::push(state_, {std::move(descriptor), false}, whose);
}

void ClosingThreads::close_socket_later(FileDescriptor socket, uint64_t whose) {
  if (!socket) return;
  if (shutdown(socket.get(), SHUT_RDWR) == 0 && !holds_descriptors(socket.get())) return;  // closed here: there is nothing to wait for
  State::push(state_, {std::move(socket), true}, whose);
}

int64_t ClosingThreads::waiting(uint64_t whose) const {
  const Lock lock(state_->mutex);
  const auto at = state_->groups.find(whose);
  return at != state_->groups.end() ? at->second.waiting : 0;
}

int64_t ClosingThreads::waiting() const {
  const Lock lock(state_->mutex);
  return state_->waiting;
}

}  // namespace nvshare::scheduler
