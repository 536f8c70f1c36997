#include "simgpu/ipc_event.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

namespace simgpu {

using nvshare::cuda::CUipcEventHandle;

// More than a stream queues: the record that had a slot before was reached, or is of a stream that nobody looks at any more.
constexpr uint64_t kSlots = 2048;
constexpr long kLookNs = 50'000'000;  // whether a process that has recorded still lives

struct IpcEvent::Page {
  std::atomic<uint64_t> recorded;
  std::atomic<uint32_t> changes;  // counts up with each record reached; waited for
  struct Slot {
    std::atomic<uint64_t> number;
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> reached;
  } slots[kSlots];

  Slot& slot(uint64_t number) { return slots[number % kSlots]; }
};

namespace {

struct Token {
  char magic[8];
  uint64_t pid;
  uint64_t file;
  uint64_t inode;
  char reserved[32];
};
static_assert(sizeof(Token) == sizeof(CUipcEventHandle));
constexpr char kMagic[8] = {'s', 'i', 'm', 'e', 'v', 't', '1', 0};

Token token_of(const CUipcEventHandle& handle) {
  Token token;
  std::memcpy(&token, &handle, sizeof token);
  return token;
}

uint64_t inode_of(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 ? info.st_ino : 0;
}

bool lives(int pid) {
  FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (file == nullptr) return false;
  char text[512] = {};
  const size_t got = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* state = got > 0 ? std::strrchr(text, ')') : nullptr;
  return state != nullptr && std::strlen(state) > 2 && state[2] != 'Z' && state[2] != 'X';
}

}  // namespace

std::shared_ptr<IpcEvent> IpcEvent::make() {
  const int file = memfd_create("simgpu-event", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* at = MAP_FAILED;
  if (ftruncate(file, sizeof(Page)) == 0) at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  return std::shared_ptr<IpcEvent>(new IpcEvent(static_cast<Page*>(at), file));
}

bool IpcEvent::is_handle(const CUipcEventHandle& handle, bool* of_this_process) {
  const Token token = token_of(handle);
  *of_this_process = token.pid == static_cast<uint64_t>(getpid());
  return std::memcmp(token.magic, kMagic, sizeof kMagic) == 0;
}

std::shared_ptr<IpcEvent> IpcEvent::open(const CUipcEventHandle& handle) {
  const Token token = token_of(handle);
  const int file = ::open(("/proc/" + std::to_string(token.pid) + "/fd/" + std::to_string(token.file)).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* at = MAP_FAILED;
  if (inode_of(file) == token.inode) at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return nullptr;
  return std::shared_ptr<IpcEvent>(new IpcEvent(static_cast<Page*>(at), -1));
}

IpcEvent::~IpcEvent() {
  munmap(page_, sizeof(Page));
  if (file_ >= 0) close(file_);
}

CUipcEventHandle IpcEvent::handle() const {
  Token token{};
  std::memcpy(token.magic, kMagic, sizeof kMagic);
  token.pid = static_cast<uint64_t>(getpid());
  token.file = static_cast<uint64_t>(file_);
  token.inode = inode_of(file_);
  CUipcEventHandle handle;
  std::memcpy(&handle, &token, sizeof handle);
  return handle;
}

uint64_t IpcEvent::begin_record() {
  const uint64_t number = page_->recorded.fetch_add(1) + 1;
  Page::Slot& slot = page_->slot(number);
  slot.reached.store(0);
  slot.pid.store(getpid());
  slot.number.store(number);
  return number;
}

void IpcEvent::reach(uint64_t number) {
  Page::Slot& slot = page_->slot(number);
  if (slot.number.load() == number) slot.reached.store(1);
  page_->changes.fetch_add(1);
  syscall(SYS_futex, &page_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t IpcEvent::last_record() const { return page_->recorded.load(); }

bool IpcEvent::is_reached(uint64_t number) const {
  if (number == 0) return true;
  const Page::Slot& slot = page_->slot(number);
  const uint64_t there = slot.number.load();
  return there > number || (there == number && (slot.reached.load() != 0 || !lives(slot.pid.load())));
}

void IpcEvent::wait(uint64_t number) const {
  for (;;) {
    const uint32_t seen = page_->changes.load();
    if (is_reached(number)) return;
    const timespec look{0, kLookNs};
    syscall(SYS_futex, &page_->changes, FUTEX_WAIT, seen, &look, nullptr, 0);
  }
}

}  // namespace simgpu
