// What a driver refuses of plain memory and of pools' memory, and in a capture, although it would take it of virtual memory.
#include <functional>
#include <thread>

#include "answers/answers.h"
#include "answers/structs.h"

namespace answers {
namespace {

constexpr int kSyncMemops = 6, kMappingSize = 18, kMappingBase = 19;
constexpr unsigned kGlobal = 0, kThreadLocal = 1, kRelaxed = 2;

struct Piece {
  const char* kind;
  Address address;
  size_t bytes;
};

std::vector<Piece> pieces() {
  std::vector<Piece> all = {{"plain", 0, 8 * kMiB}, {"small", 0, 1000}, {"of a pool", 0, 4 * kMiB}, {"small of a pool", 0, 360}};
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < 2) {
      must("cuMemAlloc_v2", &all[i].address, all[i].bytes);
    } else {
      must("cuMemAllocAsync", &all[i].address, all[i].bytes, Stream{nullptr});
    }
    must("cuMemsetD8_v2", all[i].address, static_cast<unsigned char>(0), all[i].bytes);
  }
  must("cuCtxSynchronize");  // a fill does not wait, and streams that do not block do not wait for it
  return all;
}

MemOp writing(Address address, unsigned value) {
  MemOp operation{};
  operation.write.operation = kWriteValue32;
  operation.write.address = address;
  operation.write.value = value;
  return operation;
}

// What the call says while the stream captures, and what came of the capture.
template <typename Make>
Result say_in_capture(Stream stream, unsigned mode, const std::string& what, Make make) {
  must("cuStreamBeginCapture_v2", stream, mode);
  const Result result = make();
  say_result(what, result);
  Graph graph = nullptr;
  say_result("the capture", call("cuStreamEndCapture", stream, &graph));
  if (graph != nullptr) must("cuGraphDestroy", graph);
  return result;
}

}  // namespace

// Memory operations of streams, and questions that are for host memory or for whole pages.
void refusals() {
  use(0);
  const std::vector<Piece> all = pieces();
  settle();
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const Piece& each : all) {
    const auto tell = [&](const char* what, Result result) { say_result(std::string(each.kind) + " " + what, result); };
    tell("write of 4 bytes", call("cuStreamWriteValue32_v2", stream, each.address + 8, 7u, 0u));
    tell("write of 8 bytes", call("cuStreamWriteValue64_v2", stream, each.address + 16, 8ull, 0u));
    tell("write to the default stream", call("cuStreamWriteValue32_v2_ptsz", Stream{nullptr}, each.address + 24, 9u, 0u));
    MemOp list[2] = {writing(each.address + 32, 10), writing(each.address + 36, 11)};
    tell("batch", call("cuStreamBatchMemOp_v2", stream, 2u, list, 0u));
    say("%s: the batch is the caller's: %d", each.kind, list[0].write.address == each.address + 32);
    must("cuCtxSynchronize");
    unsigned words[10] = {};
    must("cuMemcpyDtoH_v2", static_cast<void*>(words), each.address, sizeof(words));
    say("%s: %u %u %u %u %u", each.kind, words[2], words[4], words[6], words[8], words[9]);
    unsigned flags = 77;
    tell("host flags", call("cuMemHostGetFlags", &flags, reinterpret_cast<void*>(each.address + 8)));
    unsigned long long mapped = 0;
    Address mapping = 0;
    tell("mapping's size", call("cuPointerGetAttribute", static_cast<void*>(&mapped), kMappingSize, each.address));
    tell("mapping's base", call("cuPointerGetAttribute", static_cast<void*>(&mapping), kMappingBase, each.address));
    if (each.bytes < kMiB) say("%s: the mapping is of %llu", each.kind, mapped);
    say("%s lies in it: %d", each.kind, mapping <= each.address && each.address + each.bytes <= mapping + mapped);
    unsigned long long access = 77;
    const Location here{1, 0};
    tell("access", call("cuMemGetAccess", &access, &here, each.address));
    Context context = nullptr;
    must("cuCtxPopCurrent_v2", &context);
    Address base = 0;
    size_t size = 0;
    tell("range without a context", call("cuMemGetAddressRange_v2", &base, &size, each.address));
    must("cuCtxPushCurrent_v2", context);
    int descriptor = -1;
    tell("descriptor of less than a page",
         call("cuMemGetHandleForAddressRange", static_cast<void*>(&descriptor), each.address, size_t{40}, 1, 0ull));
    Address named = 0;
    unsigned char ipc_handle[64] = {};
    must("cuCtxPopCurrent_v2", &context);
    tell("address without a context", call("cuPointerGetAttribute", static_cast<void*>(&named), 3, each.address));
    tell("type without a context", call("cuPointerGetAttribute", static_cast<void*>(&flags), 2, each.address));
    tell("handed over without a context", call("cuIpcGetMemHandle", static_cast<void*>(ipc_handle), each.address));
    must("cuCtxPushCurrent_v2", context);
    tell("unregistered", call("cuMemHostUnregister", reinterpret_cast<void*>(each.address)));
    int attribute = kSyncMemops;
    void* place = &flags;
    tell("no attributes", call("cuPointerGetAttributes", 0u, &attribute, &place, each.address));
  }
  // What is gone is no memory, also where nvshare keeps it for the next allocation.
  for (const Piece& each : all) {
    unsigned long long access = 77;
    const Location here{1, 0};
    must("cuMemFree_v2", each.address);
    say_result(std::string(each.kind) + " unregistered when freed", call("cuMemHostUnregister", reinterpret_cast<void*>(each.address)));
    say_result(std::string(each.kind) + " access when freed", call("cuMemGetAccess", &access, &here, each.address));
  }
}

// What is for managed memory only: a driver refuses it of other memory.
void for_managed_memory() {
  use(0);
  const std::vector<Piece> all = pieces();
  settle();
  for (const Piece& each : all) {
    const auto tell = [&](const char* what, Result result) { say_result(std::string(each.kind) + " " + what, result); };
    const Location gpu{1, 0};
    int attribute = 0;
    tell("advice", call("cuMemAdvise", each.address, size_t{300}, 1, 0));
    tell("advice, by location", call("cuMemAdvise_v2", each.address, size_t{300}, 3, gpu));
    tell("prefetch", call("cuMemPrefetchAsync", each.address, size_t{300}, 0, Stream{nullptr}));
    tell("prefetch, by location", call("cuMemPrefetchAsync_v2", each.address, size_t{300}, gpu, 0u, Stream{nullptr}));
    tell("range's attribute", call("cuMemRangeGetAttribute", static_cast<void*>(&attribute), sizeof(int), 1, each.address, size_t{300}));
    tell("and done", call("cuCtxSynchronize"));
  }
}

// Between an array and memory: what runs over the end of an allocation.
void array_copies() {
  use(0);
  struct {
    size_t width, height;
    int format;  // 1: bytes
    unsigned channels;
  } shape = {4096, 0, 1, 1};
  void* array = nullptr;
  must("cuArrayCreate_v2", &array, static_cast<const void*>(&shape));
  for (const Piece& each : pieces()) {
    must("cuMemsetD8_v2", each.address, static_cast<unsigned char>(3), each.bytes);
    must("cuCtxSynchronize");
    settle();
    const auto tell = [&](const char* what, Result result) { say_result(std::string(each.kind) + " " + what, result); };
    tell("into the array", call("cuMemcpyDtoA_v2", array, size_t{16}, each.address + each.bytes - 20, size_t{20}));
    tell("into the array, over its end", call("cuMemcpyDtoA_v2", array, size_t{16}, each.address + each.bytes - 20, size_t{21}));
    tell("out of the array", call("cuMemcpyAtoD_v2_ptds", each.address, array, size_t{12}, size_t{8}));
    tell("out of the array, over its end", call("cuMemcpyAtoD_v2_ptds", each.address + each.bytes - 20, array, size_t{16}, size_t{21}));
    unsigned char bytes[8] = {};
    must("cuMemcpyDtoH_v2", static_cast<void*>(bytes), each.address, sizeof(bytes));
    say("%s: %d %d", each.kind, bytes[4], bytes[7]);
  }
}

// The pool of a GPU by the calls of CUDA 13.
void pools() {
  use(0);
  struct {
    int type;  // 1: pinned
    int handle_types;
    Location location;
    void* security;
    size_t most;
    unsigned char reserved[56];
  } properties = {1, 0, {1, 0}, nullptr, 0, {}};
  void* pool = nullptr;
  must("cuMemPoolCreate", &pool, static_cast<const void*>(&properties));
  Location gpu{1, 0};
  Address first = 0;  // so that the pool that is used has been looked for
  must("cuMemAllocAsync", &first, size_t{1000}, Stream{nullptr});
  must("cuMemFreeAsync", first, Stream{nullptr});
  void* before = nullptr;
  say_result("get the pool", call("cuMemGetMemPool", &before, &gpu, 1));
  say("it is another: %d", before != pool);
  say_result("set the pool", call("cuMemSetMemPool", &gpu, 1, pool));
  void* current = nullptr;
  say_result("get the pool", call("cuMemGetMemPool", &current, &gpu, 1));
  say("it is the same: %d", current == pool);
  Address address = 0;
  must("cuMemAllocAsync", &address, size_t{4 * kMiB}, Stream{nullptr});
  constexpr int kPoolHandle = 17;
  void* found = nullptr;
  say_result("the pool of memory", call("cuPointerGetAttribute", static_cast<void*>(&found), kPoolHandle, address));
  say("it is the same: %d", found == pool);
  say_result("set no pool", call("cuMemSetMemPool", &gpu, 1, static_cast<void*>(nullptr)));
  must("cuMemFreeAsync", address, Stream{nullptr});
  must("cuCtxSynchronize");
  say_result("set the pool back", call("cuMemSetMemPool", &gpu, 1, before));
  say_result("destroy", call("cuMemPoolDestroy", pool));
}

// Frees and attributes while a stream of this thread captures: the capture is ended by what it forbids.
void captured_calls() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const unsigned mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (const Piece& each : pieces()) {
      must("cuCtxSynchronize");
      settle();
      const auto within = [&](const char* what, auto make) {
        say_in_capture(stream, mode, std::string(each.kind) + ", mode " + std::to_string(mode) + ", " + what, make);
      };
      bool value = true;
      within("sync-memops", [&] { return call("cuPointerSetAttribute", static_cast<const void*>(&value), kSyncMemops, each.address); });
      within("no attribute", [&] { return call("cuPointerSetAttribute", static_cast<const void*>(&value), 0, each.address); });
      within("free", [&] { return call("cuMemFree_v2", each.address); });
      within("free in order", [&] { return call("cuMemFreeAsync", each.address, stream); });
      within("free in order when the capture is ruined", [&] {
        say_result("query", call("cuStreamQuery", stream));
        return call("cuMemFreeAsync", each.address, stream);
      });
      say_result("free", mode == kRelaxed ? 0 : call("cuMemFree_v2", each.address));
    }
  }
}

// A capture that allows frees: what was freed in it is gone at once.
void freed_in_captures() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const Piece& each : pieces()) {
    must("cuCtxSynchronize");
    settle();
    say_in_capture(stream, kRelaxed, std::string(each.kind) + ", free", [&] { return call("cuMemFree_v2", each.address); });
    for (const bool captures : {true, false}) {
      const auto ask = [&] {
        Address base = 77;
        size_t size = 77;
        unsigned type = 77;
        bool value = true;
        say_result("free again", call("cuMemFree_v2", each.address));
        say_result("range", call("cuMemGetAddressRange_v2", &base, &size, each.address));
        say_result("type", call("cuPointerGetAttribute", static_cast<void*>(&type), 2, each.address));
        say_result("sync-memops", call("cuPointerSetAttribute", static_cast<const void*>(&value), kSyncMemops, each.address));
        return call("cuMemFree_v2", each.address);
      };
      if (captures) {
        say_in_capture(stream, kRelaxed, "free once more", ask);
      } else {
        say_result("free once more", ask());
      }
    }
  }
}

// Copies and fills that block, and what else programs call between, beside a capture of a stream that waits for the legacy one or does not.
void copies_beside_captures() {
  use(0);
  Address first = 0, second = 0;
  for (Address* each : {&first, &second}) must("cuMemAlloc_v2", each, 6 * kMiB);
  std::vector<unsigned char> host(4 * kMiB, 7);
  const struct {
    const char* name;
    std::function<Result()> make;
  } calls[] = {
      {"to the GPU", [&] { return call("cuMemcpyHtoD_v2", first, static_cast<const void*>(host.data()), host.size()); }},
      {"a little to the GPU", [&] { return call("cuMemcpyHtoD_v2", first, static_cast<const void*>(host.data()), size_t{100}); }},
      {"from the GPU", [&] { return call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), first, host.size()); }},
      {"within the GPU", [&] { return call("cuMemcpyDtoD_v2", second, first, host.size()); }},
      {"either way", [&] { return call("cuMemcpy", second, first, host.size()); }},
      {"fill", [&] { return call("cuMemsetD8_v2", first, static_cast<unsigned char>(1), host.size()); }},
      {"fill by four", [&] { return call("cuMemsetD32_v2", first, 1u, size_t{1000}); }},
      {"fill rows", [&] { return call("cuMemsetD2D8_v2", first, size_t{1024}, static_cast<unsigned char>(1), size_t{100}, size_t{10}); }},
      {"nothing to the GPU", [&] { return call("cuMemcpyHtoD_v2", first, static_cast<const void*>(host.data()), size_t{0}); }},
      {"to an address of nobody",
       [&] { return call("cuMemcpyHtoD_v2", Address{0x1000}, static_cast<const void*>(host.data()), size_t{100}); }},
      {"free no host memory", [&] { return call("cuMemFreeHost", static_cast<void*>(nullptr)); }},
      {"free nothing", [&] { return call("cuMemFree_v2", Address{0}); }},
  };
  for (const unsigned flags : {0u, kNonBlocking}) {
    Stream stream = nullptr;
    must("cuStreamCreate", &stream, flags);
    for (const unsigned mode : {kGlobal, kThreadLocal, kRelaxed}) {
      for (const auto& each : calls) {
        must("cuCtxSynchronize");
        settle();
        say_in_capture(stream, mode,
                       std::string(flags != 0 ? "non-blocking" : "blocking") + ", mode " + std::to_string(mode) + ", " + each.name,
                       each.make);
      }
    }
  }
  must("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), second, host.size());
  say("read back: %d", host[12345]);
}

// The same in a thread that has no current context, which neither a free nor an attribute needs.
void captured_elsewhere() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const unsigned mode : {kGlobal, kThreadLocal, kRelaxed}) {
    for (const Piece& each : pieces()) {
      must("cuCtxSynchronize");
      settle();
      const auto beside = [&](const char* what, auto make) {
        return say_in_capture(stream, mode, std::string(each.kind) + ", beside mode " + std::to_string(mode) + ", " + what, [&] {
          Result result = 0;
          std::thread([&] { result = make(); }).join();
          return result;
        });
      };
      bool value = true;
      beside("sync-memops", [&] { return call("cuPointerSetAttribute", static_cast<const void*>(&value), kSyncMemops, each.address); });
      const Result freed = beside("free", [&] { return call("cuMemFree_v2", each.address); });
      if (freed != 0) say_result("free", call("cuMemFree_v2", each.address));
    }
  }
}

// Memory in a stream's order while another stream captures.
void beside_captures() {
  use(0);
  void* pool = nullptr;
  must("cuDeviceGetDefaultMemPool", &pool, 0);
  Stream other = nullptr, waiting = nullptr;
  must("cuStreamCreate", &other, kNonBlocking);
  must("cuStreamCreate", &waiting, 0u);
  const struct {
    const char* name;
    Stream stream;
  } streams[] = {{"null", Stream{nullptr}},
                 {"legacy", reinterpret_cast<Stream>(1)},
                 {"the thread's", reinterpret_cast<Stream>(2)},
                 {"one that waits for the null stream", waiting},
                 {"one that does not", other}};
  for (const unsigned flags : {0u, kNonBlocking}) {
    Stream capturing = nullptr;
    must("cuStreamCreate", &capturing, flags);
    for (const unsigned mode : {kGlobal, kThreadLocal, kRelaxed}) {
      for (const auto& each : streams) {
        const char* const name = each.name;
        const Stream stream = each.stream;
        const std::string where =
            std::string(name) + ", beside mode " + std::to_string(mode) + (flags == 0 ? " of a stream that waits, " : ", ");
        Address kept = 0, made = 0;
        must("cuMemAllocAsync", &kept, size_t{1000}, other);
        must("cuStreamSynchronize", other);
        settle();
        const auto beside = [&](const char* what, auto make) {
          say_in_capture(capturing, mode, where + what, make);
          must("cuCtxSynchronize");
          if (made != 0) must("cuMemFree_v2", made);
          made = 0;
        };
        beside("allocate", [&] { return call("cuMemAllocAsync", &made, size_t{1000}, stream); });
        beside("allocate of a pool", [&] { return call("cuMemAllocFromPoolAsync", &made, size_t{5000}, pool, stream); });
        Result freed = 0;
        beside("free", [&] { return freed = call("cuMemFreeAsync", kept, stream); });
        if (freed != 0) must("cuMemFree_v2", kept);
      }
    }
    must("cuStreamDestroy_v2", capturing);
  }
}

namespace {

// Nodes of one write.
struct MemOpNodes {
  Context context;
  MemOp operation{};
  BatchMemOpNode node{};
  NodeParameters parameters{};

  MemOpNodes(Context of, Address address) : context(of) { name(address, 5); }
  void name(Address address, unsigned value) {
    operation = writing(address, value);
    node = {context, 1, &operation, 0};
    parameters = {};
    parameters.type = kMemOpsNode;
    parameters.of.memops = node;
  }
  Result add(Graph graph, Node* made) {
    return call("cuGraphAddBatchMemOpNode", made, graph, static_cast<const Node*>(nullptr), size_t{0}, &node);
  }
};

void launch(const char* what, Graph graph, Address looked_at) {
  Executable executable = nullptr;
  say_result(std::string(what) + ", instantiate", call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
  if (executable == nullptr) return;
  must("cuMemsetD8_v2", looked_at, static_cast<unsigned char>(0), size_t{64});
  must("cuCtxSynchronize");
  say_result(std::string(what) + ", launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  say_result(std::string(what) + ", done", call("cuCtxSynchronize"));
  unsigned words[2] = {};
  must("cuMemcpyDtoH_v2", static_cast<void*>(words), looked_at, sizeof(words));
  say("%s: %u %u", what, words[0], words[1]);
  must("cuGraphExecDestroy", executable);
}

}  // namespace

// Memory operations in graphs: a driver takes pools' memory, and does not launch it.
void memop_graphs() {
  const Context context = use(0);
  Address plain = 0, pooled = 0;
  must("cuMemAlloc_v2", &plain, size_t{64 << 10});
  must("cuMemAllocAsync", &pooled, size_t{64 << 10}, Stream{nullptr});
  must("cuCtxSynchronize");
  settle();
  Graph graph = nullptr;
  must("cuGraphCreate", &graph, 0u);
  Node node = nullptr;
  MemOpNodes nodes(context, pooled + 4);
  say_result("of a pool", nodes.add(graph, &node));
  launch("of a pool", graph, pooled);
  launch("of a pool, again", graph, plain);
  // A graph around it.
  Graph outer = nullptr;
  must("cuGraphCreate", &outer, 0u);
  Node child = nullptr;
  say_result("as a child", call("cuGraphAddChildGraphNode", &child, outer, static_cast<const Node*>(nullptr), size_t{0}, graph));
  launch("as a child", outer, plain);
  // Another address, and back.
  Executable executable = nullptr;
  say_result("instantiate", call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
  nodes.name(plain, 6);
  say_result("plain memory instead", call("cuGraphBatchMemOpNodeSetParams", node, &nodes.node));
  launch("plain memory instead", graph, plain);
  say_result("in what was made of it", call("cuGraphExecBatchMemOpNodeSetParams", executable, node, &nodes.node));
  say_result("launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  nodes.name(pooled + 8, 7);
  say_result("back, in what was made of it", call("cuGraphExecBatchMemOpNodeSetParams", executable, node, &nodes.node));
  say_result("launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  say_result("done", call("cuCtxSynchronize"));
  nodes.name(pooled + 2, 7);
  say_result("of an odd address", call("cuGraphBatchMemOpNodeSetParams", node, &nodes.node));
  // By the call for nodes of every kind.
  Graph other = nullptr;
  must("cuGraphCreate", &other, 0u);
  nodes.name(pooled, 8);
  Node second = nullptr;
  say_result("of any kind", call("cuGraphAddNode", &second, other, static_cast<const Node*>(nullptr), size_t{0}, &nodes.parameters));
  say("the address is the caller's: %d",
      nodes.parameters.of.memops.operations == &nodes.operation && nodes.operation.write.address == pooled);
  launch("of any kind", other, plain);
}

}  // namespace answers
