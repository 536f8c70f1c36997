// Memory of one GPU that is used, and asked about, from a context of another GPU.
#include "answers/answers.h"
#include "answers/structs.h"

namespace answers {
namespace {

constexpr size_t kBytes = 4 * kMiB;

struct Kind {
  const char* name;
  Address address = 0;
};

// One of each kind on GPU 0, which is current. `open`: virtual memory that GPU 1 may use.
std::vector<Kind> one_of_each_kind() {
  Kind plain{"plain"}, small{"small"}, pooled{"of a pool"}, own{"virtual"}, open{"virtual, open"};
  must("cuMemAlloc_v2", &plain.address, kBytes);
  must("cuMemAlloc_v2", &small.address, size_t{4096});
  must("cuMemAllocAsync", &pooled.address, kBytes, Stream{nullptr});
  const AllocationProperties properties = on_gpu(0);
  for (Kind* each : {&own, &open}) {
    Handle handle = 0;
    must("cuMemCreate", &handle, size_t{2 * kPage}, &properties, 0ull);
    must("cuMemAddressReserve", &each->address, size_t{2 * kPage}, size_t{0}, Address{0}, 0ull);
    must("cuMemMap", each->address, size_t{2 * kPage}, size_t{0}, handle, 0ull);
    const Access access[2] = {{{1, 0}, 3}, {{1, 1}, 3}};
    must("cuMemSetAccess", each->address, size_t{2 * kPage}, static_cast<const Access*>(access), size_t{each == &open ? 2u : 1u});
  }
  must("cuCtxSynchronize");
  return {plain, small, pooled, own, open};
}

struct Users {
  Context owner, user;
  Address beside;  // plain memory of the user's GPU
  Stream stream;   // of the user's
};

void ask(const Kind& kind) {
  const auto tell = [&](const char* what, Result result) { say_result(std::string(kind.name) + ": " + what, result); };
  Address base = 0, pointer = 0;
  size_t bytes = 0;
  unsigned value = 77;
  tell("range", call("cuMemGetAddressRange_v2", &base, &bytes, kind.address + 64));
  tell("device pointer", call("cuPointerGetAttribute", static_cast<void*>(&pointer), 3, kind.address + 64));
  tell("memory type", call("cuPointerGetAttribute", static_cast<void*>(&value), 2, kind.address));
  tell("mapped", call("cuPointerGetAttribute", static_cast<void*>(&value), 13, kind.address));
  say("%s: mapped %u", kind.name, value & 0xff);
  tell("access flags", call("cuPointerGetAttribute", static_cast<void*>(&value), 16, kind.address));
  int number = -1;
  int attributes[2] = {3, 9};
  void* answers[2] = {&pointer, &number};
  tell("many attributes", call("cuPointerGetAttributes", 2u, static_cast<int*>(attributes), static_cast<void**>(answers), kind.address));
  say("%s: on GPU %d", kind.name, number);
}

void use_from(const Users& users, const Kind& kind) {
  const auto tell = [&](const char* what, Result result) {
    const Result done = call("cuCtxSynchronize");  // of all its streams: what comes next uses the same memory
    say("%s: %s: %d %d", kind.name, what, result, done);
  };
  std::vector<unsigned char> host(512, 9);
  void* const data = host.data();
  const Address at = kind.address, beside = users.beside;
  tell("fill", call("cuMemsetD8_v2", at, static_cast<unsigned char>(1), size_t{64}));
  tell("fill in order", call("cuMemsetD32Async", at, 1u, size_t{16}, users.stream));
  tell("fill of rows", call("cuMemsetD2D8_v2", at, size_t{64}, static_cast<unsigned char>(1), size_t{16}, size_t{2}));
  tell("from the host", call("cuMemcpyHtoD_v2", at, static_cast<const void*>(data), host.size()));
  tell("from the host in order", call("cuMemcpyHtoDAsync_v2", at, static_cast<const void*>(data), host.size(), users.stream));
  tell("to the host", call("cuMemcpyDtoH_v2", data, at, host.size()));
  tell("to the host in order", call("cuMemcpyDtoHAsync_v2", data, at, host.size(), users.stream));
  tell("to the host, unified", call("cuMemcpy", reinterpret_cast<Address>(data), at, host.size()));
  tell("to here", call("cuMemcpyDtoD_v2", beside, at, size_t{512}));
  tell("from here", call("cuMemcpyAsync", at, beside, size_t{512}, users.stream));
  tell("within it", call("cuMemcpyDtoDAsync_v2", at + 1024, at, size_t{512}, users.stream));
  tell("peer", call("cuMemcpyPeerAsync", beside, users.user, at, users.owner, size_t{512}, users.stream));
  const Copy3D in = line_from_host(at, host.data(), 64), out = line_to_host(host.data(), at, 64);
  tell("lines from the host", call("cuMemcpy3D_v2", &in));
  tell("lines to the host in order", call("cuMemcpy3DAsync_v2", &out, users.stream));
  tell("write a value", call("cuStreamWriteValue32_v2", users.stream, at, 1u, 0u));
  for (const Context context : {users.owner, users.user}) {
    const char* const whose = context == users.owner ? "the owner's" : "the user's";
    Graph graph = nullptr;
    must("cuGraphCreate", &graph, 0u);
    Node node = nullptr;
    const MemsetNode fill{at, 0, 5, 1, 64, 1};
    say_result(std::string(kind.name) + ": add a fill by " + whose,
               call("cuGraphAddMemsetNode", &node, graph, static_cast<const Node*>(nullptr), size_t{0}, &fill, context));
    if (node == nullptr) continue;
    const MemsetNode near{beside, 0, 5, 1, 64, 1};
    say_result(std::string(kind.name) + ": change it to memory here", call("cuGraphMemsetNodeSetParams", node, &near));
    say_result(std::string(kind.name) + ": and back", call("cuGraphMemsetNodeSetParams", node, &fill));
    Executable executable = nullptr;
    say_result(std::string(kind.name) + ": instantiate", call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
    if (executable != nullptr) tell("launch", call("cuGraphLaunch", executable, users.stream));
  }
}

}  // namespace

void two_gpus_elsewhere() {
  Users users{};
  users.user = use(1);
  must("cuMemAlloc_v2", &users.beside, kBytes);
  must("cuStreamCreate", &users.stream, kNonBlocking);
  users.owner = use(0);
  const std::vector<Kind> kinds = one_of_each_kind();
  settle();
  must("cuCtxSetCurrent", users.user);
  for (const Kind& kind : kinds) {
    ask(kind);
    use_from(users, kind);
    ask(kind);
  }
  int can = 0;
  must("cuDeviceCanAccessPeer", &can, 1, 0);
  if (can == 0) return;
  say_result("enable", call("cuCtxEnablePeerAccess", users.owner, 0u));
  for (const Kind& kind : kinds) {
    ask(kind);
    use_from(users, kind);
  }
  say_result("disable", call("cuCtxDisablePeerAccess", users.owner));
  for (const Kind& kind : kinds) {
    ask(kind);
    say_result(std::string(kind.name) + ": fill", call("cuMemsetD8_v2", kind.address, static_cast<unsigned char>(1), size_t{64}));
    say_result(std::string(kind.name) + ": copy", call("cuMemcpyDtoD_v2", users.beside, kind.address, size_t{64}));
  }
}

// A pool is opened to the other GPU when memory of it is there already, and closed again.
void two_gpus_pools_opened() {
  Users users{};
  users.user = use(1);
  must("cuMemAlloc_v2", &users.beside, kBytes);
  must("cuStreamCreate", &users.stream, kNonBlocking);
  users.owner = use(0);
  struct {
    int type = 1, handle_types = 0;  // pinned
    Location location = {1, 0};
    void* security = nullptr;
    size_t most = 0;
    unsigned char reserved[56] = {};
  } const properties;
  void *made = nullptr, *standard = nullptr;
  must("cuMemPoolCreate", &made, &properties);
  must("cuDeviceGetDefaultMemPool", &standard, 0);
  Kind small{"small"}, large{"large"}, other{"of another pool"};
  must("cuMemAllocAsync", &small.address, size_t{4096}, Stream{nullptr});
  must("cuMemAllocAsync", &large.address, kBytes, Stream{nullptr});
  must("cuMemAllocFromPoolAsync", &other.address, kBytes, made, Stream{nullptr});
  must("cuCtxSynchronize");
  settle();
  int can = 0;
  must("cuDeviceCanAccessPeer", &can, 1, 0);
  if (can == 0) return;
  const auto look = [&] {
    must("cuCtxSetCurrent", users.user);
    for (const Kind& kind : {small, large, other}) {
      ask(kind);
      use_from(users, kind);
    }
    must("cuCtxSetCurrent", users.owner);
  };
  const Access open{{1, 1}, 3}, closed{{1, 1}, 0};
  say_result("open", call("cuMemPoolSetAccess", standard, &open, size_t{1}));
  look();
  say_result("close", call("cuMemPoolSetAccess", standard, &closed, size_t{1}));
  look();
  say_result("open the other", call("cuMemPoolSetAccess", made, &open, size_t{1}));
  look();
}

// Fills of plain memory of the other GPU, which a copy has reached, beside what else may be wrong with them.
void two_gpus_fills() {
  Address there = 0, here = 0;
  Stream stream = nullptr, blocking = nullptr;
  use(0);
  must("cuMemAlloc_v2", &there, kBytes);
  const Context user = use(1);
  must("cuMemAlloc_v2", &here, kBytes);
  must("cuStreamCreate", &stream, kNonBlocking);
  must("cuStreamCreate", &blocking, 0u);
  settle();
  must("cuCtxSetCurrent", user);
  must("cuMemcpyDtoD_v2", there, here, size_t{4096});
  must("cuCtxSynchronize");
  const unsigned short value = 7;
  const auto fill_each = [&](const char* when, Stream on) {
    for (const Address at : {here, there}) {
      const std::string which = std::string(when) + (at == here ? ", here: " : ", there: ");
      say_result(which + "fill", call("cuMemsetD32_v2", at, 1u, size_t{16}));
      say_result(which + "fill of nothing", call("cuMemsetD32_v2", at, 1u, size_t{0}));
      say_result(which + "one row without a pitch", call("cuMemsetD2D16_v2", at, size_t{0}, value, size_t{16}, size_t{1}));
      say_result(which + "two rows without a pitch", call("cuMemsetD2D16_v2", at, size_t{0}, value, size_t{16}, size_t{2}));
      say_result(which + "no row", call("cuMemsetD2D16_v2", at, size_t{64}, value, size_t{16}, size_t{0}));
      // Elsewhere in it: nothing orders it after those of the default stream.
      say_result(which + "in order", call("cuMemsetD2D16Async", at + kMiB, size_t{64}, value, size_t{16}, size_t{2}, on));
    }
  };
  fill_each("as it is", stream);
  must("cuCtxSynchronize");
  Graph graph = nullptr;
  say_result("capture", call("cuStreamBeginCapture_v2", stream, 1));
  say_result("what ends it", call("cuStreamSynchronize", stream));
  fill_each("in a capture that failed", stream);
  say_result("its end", call("cuStreamEndCapture", stream, &graph));
  say_result("capture on a blocking stream", call("cuStreamBeginCapture_v2", blocking, 2));
  fill_each("beside a capture", stream);
  say_result("its end", call("cuStreamEndCapture", blocking, &graph));
}

}  // namespace answers
