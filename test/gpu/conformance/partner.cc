#include "partner.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "world.h"

namespace conformance {
namespace {

struct Location {
  int type = 1, id = 0;
};
struct Properties {  // CUmemAllocationProp
  int type = 1, handle_types = 1;
  Location location;
  void* metadata = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(Properties) == 32);
struct AccessDescriptor {
  Location location;
  int flags = 3;
};
struct IpcHandle {  // passed by value, as the driver takes it
  unsigned char bytes[64];
};

// ---- messages with a descriptor ----

bool send_all(int socket, const void* data, size_t size, int descriptor) {
  iovec piece{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_all(int socket, void* data, size_t size, int& descriptor) {
  descriptor = -1;
  iovec piece{data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(size)) {
    return false;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return true;
}

// ---- the partner's side ----

class Answers {
 public:
  void answer(const Request& request, Reply& reply, int& descriptor) {
    reply_ = &reply;
    failed_ = false;
    if (!started_) {
      started_ = true;
      start();
    }
    switch (request.what) {
      case Exchange::kRead:
      case Exchange::kWrite:
        open_once(request);
        break;
      case Exchange::kKeep:
        open(request, kept_[static_cast<size_t>(request.slot)]);
        break;
      case Exchange::kKeptRead:
        read(kept_[static_cast<size_t>(request.slot)] + request.offset, request.bytes);
        break;
      case Exchange::kKeptWrite:
        write(kept_[static_cast<size_t>(request.slot)] + request.offset, request.bytes, request.seed);
        break;
      case Exchange::kKeptClose:
        close_kept(kept_[static_cast<size_t>(request.slot)]);
        break;
      case Exchange::kBorrow:
        lend(request, reply);
        break;
      case Exchange::kBorrowedRead:
        read(lent_[static_cast<size_t>(request.slot)] + request.offset, request.bytes);
        break;
      case Exchange::kGiveBack:
        free_lent(lent_[static_cast<size_t>(request.slot)]);
        break;
      case Exchange::kHandle:
        use_handle(descriptor);
        break;
      case Exchange::kMakeHandle:
        make_handle(request, descriptor);
        break;
      case Exchange::kPool:
        use_pool(request, descriptor);
        break;
      case Exchange::kEvent:
        use_event(request);
        break;
      case Exchange::kCloseAll:
        for (uint64_t& address : kept_) {
          close_kept(address);
        }
        break;
      case Exchange::kFreeAll:
        for (uint64_t& address : lent_) {
          free_lent(address);
        }
        break;
      case Exchange::kBare:
        make_bare(request, descriptor);
        break;
      case Exchange::kFork:
      case Exchange::kGreen:
      case Exchange::kGreenEnd:
        break;
    }
  }
  // A process without a context.
  void answer_bare(const Request& request, Reply& reply, int& descriptor) {
    started_ = true;
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    answer(request, reply, descriptor);
  }

 private:
  template <typename... A>
  int plainly(const char* symbol, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(dlsym(library_, symbol));
    return function != nullptr ? function(arguments...) : 801;
  }
  // A call that is made only if none before it has failed; its code goes into the reply.
  template <typename... A>
  bool make(const char* symbol, A... arguments) {
    if (!failed_) {
      failed_ = tell(plainly(symbol, arguments...)) != 0;
    }
    return !failed_;
  }
  // One that takes away, whatever failed before.
  template <typename... A>
  void undo(const char* symbol, A... arguments) {
    tell(plainly(symbol, arguments...));
  }
  int tell(int code) {
    if (reply_->count < 12) {
      reply_->codes[reply_->count++] = code;
    }
    return code;
  }

  void start() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void* context = nullptr;
    if (library_ == nullptr || plainly("cuInit", 0U) != 0 || plainly("cuDevicePrimaryCtxRetain", &context, 0) != 0 ||
        plainly("cuCtxSetCurrent", context) != 0) {
      _exit(3);
    }
  }

  void read(uint64_t address, uint64_t bytes) {
    if (make("cuMemcpyDtoH_v2", static_cast<void*>(host_out()), address, static_cast<size_t>(bytes))) {
      reply_->sum = checksum(host_out(), bytes);
    }
  }
  void write(uint64_t address, uint64_t bytes, uint64_t seed) {
    fill_pattern(host_in(), bytes, seed);
    if (make("cuMemcpyHtoD_v2", address, static_cast<const void*>(host_in()), static_cast<size_t>(bytes))) {
      make("cuCtxSynchronize");  // a copy from pageable memory may return before it has arrived
    }
  }

  bool open(const Request& request, uint64_t& address) {
    IpcHandle handle;
    std::memcpy(handle.bytes, request.data, sizeof(handle));
    return make("cuIpcOpenMemHandle_v2", &address, handle, 1U);
  }
  void open_once(const Request& request) {
    uint64_t address = 0;
    if (!open(request, address)) {
      return;
    }
    if (request.what == Exchange::kRead) {
      read(address + request.offset, request.bytes);
    } else {
      write(address + request.offset, request.bytes, request.seed);
    }
    undo("cuIpcCloseMemHandle", address);
  }
  void close_kept(uint64_t& address) {
    if (address != 0) {
      undo("cuIpcCloseMemHandle", address);
    }
    address = 0;
  }

  void lend(const Request& request, Reply& reply) {
    uint64_t& address = lent_[static_cast<size_t>(request.slot)];
    if (!make("cuMemAlloc_v2", &address, static_cast<size_t>(request.bytes))) {
      address = 0;
      return;
    }
    write(address, request.bytes, request.seed);
    make("cuIpcGetMemHandle", static_cast<void*>(reply.data), address);
  }
  void free_lent(uint64_t& address) {
    if (address != 0) {
      undo("cuMemFree_v2", address);
    }
    address = 0;
  }

  bool map(uint64_t handle, uint64_t& address) {
    const AccessDescriptor access;
    constexpr auto kBytes = static_cast<size_t>(kGranule);
    return make("cuMemAddressReserve", &address, kBytes, size_t{0}, uint64_t{0}, 0ULL) &&
           make("cuMemMap", address, kBytes, size_t{0}, handle, 0ULL) && make("cuMemSetAccess", address, kBytes, &access, size_t{1});
  }
  void unmap(uint64_t address) {
    if (address != 0) {
      undo("cuMemUnmap", address, static_cast<size_t>(kGranule));
      undo("cuMemAddressFree", address, static_cast<size_t>(kGranule));
    }
  }
  void use_handle(int& descriptor) {
    uint64_t handle = 0, address = 0;
    if (make("cuMemImportFromShareableHandle", &handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)), 1)) {
      if (map(handle, address)) {
        read(address, kGranule);
      }
      unmap(address);
      undo("cuMemRelease", handle);
    }
    close(descriptor);
    descriptor = -1;
  }
  void make_handle(const Request& request, int& descriptor) {
    uint64_t handle = 0, address = 0;
    const Properties properties;
    int made = -1;
    if (make("cuMemCreate", &handle, static_cast<size_t>(kGranule), &properties, 0ULL)) {
      if (map(handle, address)) {
        write(address, kGranule, request.seed);
      }
      make("cuMemExportToShareableHandle", static_cast<void*>(&made), handle, 1, 0ULL);
      unmap(address);
      undo("cuMemRelease", handle);
    }
    descriptor = made;
  }

  // As a parent does that hands memory to its children. Some map the memory as well, before or after.
  void make_bare(const Request& request, int& descriptor) {
    uint64_t handle = 0, address = 0, again = 0;
    const Properties properties;
    int made = -1, second = -1;
    make("cuInit", 0U);
    make("cuMemCreate", &handle, static_cast<size_t>(kGranule), &properties, 0ULL);
    if (request.seed % 3 == 0) {
      map(handle, address);
    }
    make("cuMemExportToShareableHandle", static_cast<void*>(&made), handle, 1, 0ULL);
    if (request.seed % 3 == 1) {
      make("cuMemExportToShareableHandle", static_cast<void*>(&second), handle, 1, 0ULL);
      make("cuMemImportFromShareableHandle", &again, reinterpret_cast<void*>(static_cast<intptr_t>(second)), 1);
    }
    descriptor = made;
  }

  void use_pool(const Request& request, int& descriptor) {
    void* pool = nullptr;
    uint64_t address = 0;
    const AccessDescriptor access;
    if (make("cuMemPoolImportFromShareableHandle", &pool, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)), 1, 0ULL)) {
      make("cuMemPoolSetAccess", pool, &access, size_t{1});
      if (make("cuMemPoolImportPointer", &address, pool, static_cast<const void*>(request.data))) {
        read(address + request.offset, request.bytes);
        undo("cuMemFree_v2", address);
      }
      undo("cuMemPoolDestroy", pool);
    }
    close(descriptor);
    descriptor = -1;
  }

  void use_event(const Request& request) {
    IpcHandle handle;
    std::memcpy(handle.bytes, request.data, sizeof(handle));
    void* event = nullptr;
    if (make("cuIpcOpenEventHandle", &event, handle)) {
      make("cuEventSynchronize", event);
      make("cuEventQuery", event);
      undo("cuEventDestroy_v2", event);
    }
  }

  void* library_ = nullptr;
  bool started_ = false, failed_ = false;
  Reply* reply_ = nullptr;
  std::array<uint64_t, kKeptSlots> kept_{};
  std::array<uint64_t, kBorrowedSlots> lent_{};
};

[[noreturn]] void serve(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal_number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) {
    signal(signal_number, SIG_DFL);
  }
  Answers answers;
  Request request;
  int descriptor = -1;
  while (receive_all(socket, &request, sizeof(request), descriptor)) {
    Reply reply;
    answers.answer(request, reply, descriptor);
    const bool sent = send_all(socket, &reply, sizeof(reply), descriptor);
    if (descriptor >= 0) {
      close(descriptor);
    }
    if (!sent) {
      break;
    }
  }
  _exit(0);
}

}  // namespace

Partner::Partner() {
  int ends[2];
  std::fflush(stdout);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 || (process_ = fork()) < 0) {
    std::perror("conformance: a second process");
    std::_Exit(3);
  }
  if (process_ == 0) {
    close(ends[0]);
    serve(ends[1]);
  }
  close(ends[1]);
  socket_ = ends[0];
}

Partner::~Partner() {
  close(socket_);
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

bool Partner::ask(const Request& request, Reply& reply, int& descriptor) {
  return send_all(socket_, &request, sizeof(request), descriptor) && receive_all(socket_, &reply, sizeof(reply), descriptor);
}

void ask_bare(const Request& request, Reply& reply, int& descriptor) {
  constexpr int kItsEnd = 3;
  int ends[2];
  descriptor = -1;
  reply.codes[reply.count++] = -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return;
  }
  // Not by fork alone: a child of a process that has the driver has none.
  char program[] = "conformance", bare[] = "--bare";
  char* const arguments[] = {program, bare, nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kItsEnd);
  pid_t child = -1;
  Reply said;
  if (posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0) {
    close(ends[1]);
    ends[1] = -1;
    if (send_all(ends[0], &request, sizeof(request), -1) && receive_all(ends[0], &said, sizeof(said), descriptor)) {
      reply = said;
    }
    waitpid(child, nullptr, 0);
  }
  posix_spawn_file_actions_destroy(&actions);
  for (const int end : ends) {
    if (end >= 0) {
      close(end);
    }
  }
}

void serve_bare(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Answers answers;
  Request request;
  Reply reply;
  int descriptor = -1;
  if (receive_all(socket, &request, sizeof(request), descriptor)) {
    answers.answer_bare(request, reply, descriptor);
    send_all(socket, &reply, sizeof(reply), descriptor);
  }
  _exit(0);
}

void ask_child(Reply& reply) {
  int ends[2];
  if (pipe(ends) != 0) {
    return;
  }
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal_number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) {
      signal(signal_number, SIG_DFL);
    }
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    const auto call = [library](const char* symbol, auto... arguments) {
      return reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(library, symbol))(arguments...);
    };
    uint64_t word = 0;
    void* context = nullptr;
    int count = 0;
    const int codes[] = {
        call("cuInit", 0U),       call("cuDeviceGetCount", &count),           call("cuCtxGetCurrent", &context),
        call("cuCtxSynchronize"), call("cuMemAlloc_v2", &word, size_t{4096}), call("cuDevicePrimaryCtxRetain", &context, 0)};
    (void)!write(ends[1], codes, sizeof(codes));
    _exit(0);
  }
  close(ends[1]);
  pollfd waiting{ends[0], POLLIN, 0};
  constexpr int kPatienceMs = 10000;
  int codes[6] = {-1, -1, -1, -1, -1, -1};
  if (child > 0 && poll(&waiting, 1, kPatienceMs) > 0) {
    (void)!read(ends[0], codes, sizeof(codes));
  }
  close(ends[0]);
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  for (const int code : codes) {
    reply.codes[reply.count++] = code;
  }
}

}  // namespace conformance
