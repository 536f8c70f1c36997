#include "load/crowd.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace nvshare::bench {
namespace {

constexpr size_t kStackBytes = 16384;

struct Order {
  sockaddr_un address{};
  int socket = -1;
  std::atomic<int> connected{0};  // 1: yes, -1: no
};

// Of the child. It shares the thread-local storage of who made it, and so does nothing but system calls; that one waits meanwhile.
int live(void* argument) {
  auto* order = static_cast<Order*>(argument);
  const bool ok = connect(order->socket, reinterpret_cast<const sockaddr*>(&order->address), sizeof order->address) == 0;
  order->connected.store(ok ? 1 : -1, std::memory_order_release);
  for (;;) syscall(SYS_pause);
}

}  // namespace

Crowd::~Crowd() {
  kill_all();
  for (void* stack : stacks_) munmap(stack, kStackBytes);
}

Member Crowd::enter() {
  if (free_stacks_.empty()) {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) return {};
    free_stacks_.push_back(stacks_.size());
    stacks_.push_back(stack);
  }
  Order order;
  order.address.sun_family = AF_UNIX;
  std::strncpy(order.address.sun_path, socket_path_.c_str(), sizeof order.address.sun_path - 1);
  Member member;
  member.socket.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  order.socket = member.socket.get();
  if (!member.socket) return {};
  const size_t stack = free_stacks_.back();
  member.pid = clone(live, static_cast<char*>(stacks_[stack]) + kStackBytes, CLONE_VM | CLONE_FILES | SIGCHLD, &order);
  if (member.pid < 0) return {};
  free_stacks_.pop_back();
  living_.push_back({member.pid, stack});
  while (order.connected.load(std::memory_order_acquire) == 0) sched_yield();
  if (order.connected.load() < 0) member.socket.reset();
  if (member.socket) fcntl(member.socket.get(), F_SETFL, O_NONBLOCK);
  return member;
}

void Crowd::kill(pid_t pid) {
  const auto at = std::find_if(living_.begin(), living_.end(), [&](const Process& process) { return process.pid == pid; });
  if (at == living_.end()) return;
  ::kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  free_stacks_.push_back(at->stack);
  *at = living_.back();
  living_.pop_back();
}

void Crowd::kill_all() {
  for (const Process& process : living_) ::kill(process.pid, SIGKILL);
  for (const Process& process : living_) {
    waitpid(process.pid, nullptr, 0);
    free_stacks_.push_back(process.stack);
  }
  living_.clear();
}

}  // namespace nvshare::bench
