#include "load/crowd.h"

#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace nvshare::bench {
namespace {

constexpr size_t kStackBytes = 16384;

// Of the child. It shares the thread-local storage of who made it, and so does nothing but system calls, whose errors it does not read.
long raw_call(long number, long a, long b, long c) {
#if defined(__x86_64__)
  long result = 0;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#else
#error "which instruction calls this kernel?"
#endif
}

int live(void* argument) {
  auto* place = static_cast<Crowd::Place*>(argument);
  raw_call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0);
  bool failed = false;
  for (const int socket : place->sockets) {
    failed = raw_call(SYS_connect, socket, reinterpret_cast<long>(&place->address), sizeof place->address) != 0 || failed;
  }
  place->connected.store(failed ? -1 : 1, std::memory_order_release);
  const uint64_t one = 1;
  raw_call(SYS_write, place->news, reinterpret_cast<long>(&one), sizeof one);
  const timespec day{86'400, 0};
  for (;;) raw_call(SYS_nanosleep, reinterpret_cast<long>(&day), 0, 0);
}

}  // namespace

Crowd::Crowd(const std::string& socket_path) : news_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  address_.sun_family = AF_UNIX;
  std::strncpy(address_.sun_path, socket_path.c_str(), sizeof address_.sun_path - 1);
}

Crowd::~Crowd() {
  kill_all();
  wait_for_all();
  for (const Place& place : places_) munmap(place.stack, kStackBytes);
}

Member Crowd::enter(size_t connections) {
  forget_dead();
  if (free_.empty()) {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) return {};
    free_.push_back(places_.size());
    places_.emplace_back().stack = stack;
  }
  Member member;
  member.place = free_.back();
  Place& place = places_[member.place];
  place.sockets.clear();
  for (size_t i = 0; i < connections; ++i) {
    member.sockets.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!member.sockets.back()) return {};
    place.sockets.push_back(member.sockets.back().get());
  }
  place.address = address_;
  place.news = news_.get();
  place.connected = 0;
  place.pid = clone(live, static_cast<char*>(place.stack) + kStackBytes, CLONE_VM | CLONE_FILES | SIGCHLD, &place);
  if (place.pid < 0) return {};
  free_.pop_back();
  return member;
}

void Crowd::kill(size_t at) {
  ::kill(places_[at].pid, SIGKILL);
  dying_.push_back(at);
  forget_dead();
}

// Its stack is another's only then.
void Crowd::forget_dead() {
  std::erase_if(dying_, [this](size_t at) {
    if (waitpid(places_[at].pid, nullptr, WNOHANG) != places_[at].pid) return false;
    places_[at].pid = -1;
    free_.push_back(at);
    return true;
  });
}

void Crowd::kill_all() {
  for (const Place& place : places_) {
    if (place.pid > 0) ::kill(place.pid, SIGKILL);
  }
}

void Crowd::wait_for_all() {
  dying_.clear();
  free_.clear();
  for (size_t at = 0; at < places_.size(); ++at) {
    if (places_[at].pid > 0) waitpid(places_[at].pid, nullptr, 0);
    places_[at].pid = -1;
    free_.push_back(at);
  }
}

}  // namespace nvshare::bench
