// Is asked for names of the driver only, but before it is known that there is a driver: no libc on that way (dlsym.cc).
#include "interposer/symbols/unknown_calls.h"

#include <atomic>

#include "interposer/generated/unhooked_names.h"
#include "interposer/log.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

constexpr uint32_t kStubs = 512;  // as in unknown_calls.S
constexpr uintptr_t kStubBytes = 16;

extern "C" {
// unknown_calls.S. Each stub jumps to its target, whose register for the stub's number it has set.
[[gnu::visibility("hidden")]] extern char nvshare_unknown_stubs[];
[[gnu::visibility("hidden")]] void nvshare_unknown_first_call();
[[gnu::used, gnu::visibility("hidden")]] constinit std::atomic<void*> nvshare_unknown_targets[kStubs] = {};
}

namespace {

struct Unknown {
  std::atomic<void*> function;  // the driver's; published last
  const char* name;
  const char* session;
};

struct Session {
  const char* name;
  const char* of;
};
constexpr Session kSessions[] = {
    {"NvEncodeAPICreateInstance", "the video encoder"},  // libnvidia-encode.so
    {"NvOFAPICreateInstanceCuda", "optical flow"},       // libnvidia-opticalflow.so
    {"NvOFAPICreateInstanceVk", "optical flow"},         //
    {"cuvidCreateDecoder", "the video decoder"},         // libnvcuvid.so
    {"optixQueryFunctionTable", "OptiX"},                // libnvoptix.so
};

static_assert(sizeof kSessions / sizeof kSessions[0] == kSessionNames);

constinit Unknown unknowns[kStubs] = {};
constinit std::atomic<uint32_t> taken{0};
constinit std::atomic<UnknownCallAction> action{nullptr};
constinit std::atomic<const Unknown*> early{nullptr};

bool begins(const char* text, const char* with) {
  while (*with != '\0') {
    if (*text++ != *with++) return false;
  }
  return true;
}

bool contains(const char* text, const char* part) {
  for (; *text != '\0'; ++text) {
    if (begins(text, part)) return true;
  }
  return false;
}

// <0, 0 or >0, bytewise.
int compare(const char* left, const char* right) {
  while (*left != '\0' && *left == *right) {
    ++left;
    ++right;
  }
  return static_cast<unsigned char>(*left) - static_cast<unsigned char>(*right);
}

// What follows "cu" in functions that neither submit work nor reach memory of the program, whatever is added to them.
constexpr const char* kHarmless[] = {"Checkpoint", "Coredump", "DevResource", "DevSm",  "Driver",     "EGL",      "Event", "Func",
                                     "GL",         "Get",      "Graphics",    "Kernel", "Library",    "Link",     "Logs",  "Module",
                                     "Occupancy",  "Profiler", "TensorMap",   "VDPAU",  "UserObject", "DeviceCan"};
constexpr const char* kQuestions[] = {"Get", "Query", "IsCapturing", "Synchronize", "Granularity", "Notification"};

void* stub(uint32_t number) { return nvshare_unknown_stubs + number * kStubBytes; }

}  // namespace

void on_unknown_call(UnknownCallAction wanted) { action.store(wanted, std::memory_order_release); }

const char* session_opened_early(const char** session) {
  const Unknown* first = early.load(std::memory_order_acquire);
  if (first == nullptr) return nullptr;
  *session = first->session;
  return first->name;
}

bool is_known_name(const char* name) {
  if (slot_of_name(name) != kNoSlot) return true;
  size_t low = 0, high = kUnhooked;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int order = compare(kUnhookedNames + kUnhookedOffsets[middle], name);
    if (order == 0) return true;
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return false;
}

bool is_risky_name(const char* name) {
  if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return false;
  for (const char* harmless : kHarmless) {
    if (begins(name + 2, harmless)) return false;
  }
  if (contains(name + 2, "Handle")) return true;  // a handle of memory outlives the question
  for (const char* question : kQuestions) {
    if (contains(name + 2, question)) return false;
  }
  return true;
}

// Two threads that come at once may get a stub each.
static void* stub_for(void* address, const char* name, const char* session) {
  const uint32_t known = taken.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < known && i < kStubs; ++i) {
    if (unknowns[i].function.load(std::memory_order_acquire) == address) return stub(i);
  }
  const uint32_t number = taken.fetch_add(1, std::memory_order_acq_rel);
  if (number >= kStubs) {
    log(LogLevel::kError, "this driver has more functions that nvshare does not know than %u: %s is not watched", kStubs, name);
    return address;
  }
  unknowns[number].name = name;
  unknowns[number].session = session;
  nvshare_unknown_targets[number].store(reinterpret_cast<void*>(&nvshare_unknown_first_call), std::memory_order_relaxed);
  unknowns[number].function.store(address, std::memory_order_release);
  return stub(number);
}

void* guard_unknown(void* address, const char* name) {
  return address == nullptr || !is_risky_name(name) || is_known_name(name) ? address : stub_for(address, name, nullptr);
}

void* guard_unnamed(void* address) { return stub_for(address, "a function that it does not export", nullptr); }

const char* session_opened_by(const char* name) {
  for (const Session& session : kSessions) {
    if (compare(session.name, name) == 0) return session.of;
  }
  return nullptr;
}

const char* session_name(size_t number) { return number < kSessionNames ? kSessions[number].name : nullptr; }

void* guard_session(void* address, const char* name) {
  const char* const at = static_cast<const char*>(address);
  if (at >= nvshare_unknown_stubs && at < nvshare_unknown_stubs + kStubs * kStubBytes) return address;
  for (const Session& session : kSessions) {
    if (address != nullptr && compare(session.name, name) == 0) return stub_for(address, session.name, session.of);
  }
  return address;
}

// Called by unknown_calls.S only: the function that the stub goes on to.
extern "C" [[gnu::used, gnu::visibility("hidden")]] void* nvshare_unknown_called(uint64_t number) {
  Unknown& unknown = unknowns[number];
  void* const function = unknown.function.load(std::memory_order_acquire);
  const UnknownCallAction act = action.load(std::memory_order_acquire);
  if (act == nullptr && unknown.session != nullptr) early.store(&unknown, std::memory_order_release);
  if (act != nullptr && act(unknown.name, unknown.session)) nvshare_unknown_targets[number].store(function, std::memory_order_release);
  return function;
}

}  // namespace nvshare::interposer
