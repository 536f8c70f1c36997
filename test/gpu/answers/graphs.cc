// Graphs built by hand: nodes whose making looks at addresses.
#include <thread>

#include "answers/answers.h"
#include "answers/structs.h"

namespace answers {
namespace {

constexpr size_t kBytes = 4 * kMiB;

struct Memory {
  Address a = 0, b = 0, small = 0;
  std::vector<unsigned char> host = std::vector<unsigned char>(kBytes, 9);
};

Memory make_memory() {
  Memory memory;
  must("cuMemAlloc_v2", &memory.a, kBytes);
  must("cuMemAlloc_v2", &memory.b, kBytes);
  must("cuMemAlloc_v2", &memory.small, size_t{4096});
  return memory;
}

Graph make_graph() {
  Graph graph = nullptr;
  must("cuGraphCreate", &graph, 0u);
  return graph;
}

struct Added {
  Result result;
  Node node;
};

Added add_copy(Graph graph, const Copy3D& copy, Context context, const std::vector<Node>& after = {}) {
  Added added{0, nullptr};
  added.result = call("cuGraphAddMemcpyNode", &added.node, graph, after.data(), after.size(), &copy, context);
  return added;
}

Added add_fill(Graph graph, const MemsetNode& fill, Context context) {
  Added added{0, nullptr};
  added.result = call("cuGraphAddMemsetNode", &added.node, graph, static_cast<const Node*>(nullptr), size_t{0}, &fill, context);
  return added;
}

Executable instantiate(Graph graph, const char* what) {
  Executable executable = nullptr;
  say_result(what, call("cuGraphInstantiateWithFlags", &executable, graph, 0ull));
  return executable;
}

int first_byte(Address address) {
  unsigned char byte = 0;
  must("cuMemcpyDtoH_v2", static_cast<void*>(&byte), address, size_t{1});
  return byte;
}

}  // namespace

// Made, instantiated, launched.
void hand_graphs() {
  const Context context = use(0);
  Memory memory = make_memory();
  settle();
  const Graph graph = make_graph();
  const Added fill = add_fill(graph, {memory.a, 0, 5, 1, kBytes, 1}, context);
  say_result("add a fill", fill.result);
  const Added words = add_fill(graph, {memory.small, 512, 6, 4, 16, 8}, context);
  say_result("add a fill of words", words.result);
  const Added copy = add_copy(graph, line(memory.b, memory.a, kBytes), context, {fill.node});
  say_result("add a copy on the device", copy.result);
  say_result("add a copy by unified addresses", add_copy(graph, unified_line(memory.b + 8, memory.a, 64), context, {copy.node}).result);
  say_result("add a copy from the host", add_copy(graph, line_from_host(memory.small + 64, memory.host.data(), 32), context).result);
  say_result("add a copy to the host", add_copy(graph, line_to_host(memory.host.data(), memory.small + 128, 32), context).result);
  const Added copied_rows = add_copy(graph, rows(memory.small, 512, memory.a, 1024, 256, 8), context, {fill.node, words.node});
  say_result("add a copy of rows", copied_rows.result);
  say_result("add a copy of no memory", add_copy(graph, line(memory.b, 0x1000, 64), context).result);
  BatchMemOpNode batch{};
  MemOp operation{};
  operation.write.operation = kWriteValue32;
  operation.write.address = memory.small + 2048;
  operation.write.value = 11;
  batch.context = context;
  batch.count = 1;
  batch.operations = &operation;
  Node node = nullptr;
  say_result("add a memory operation", call("cuGraphAddBatchMemOpNode", &node, graph, static_cast<const Node*>(nullptr), size_t{0},
                                            static_cast<const BatchMemOpNode*>(&batch)));
  NodeParameters parameters{};
  parameters.type = kMemsetNode;
  parameters.of.fill = {memory.small + 1024, 0, 7, 1, 64, 1, context};
  say_result("add a node of any kind: fill", call("cuGraphAddNode_v2", &node, graph, static_cast<const Node*>(&copied_rows.node),
                                                  static_cast<const void*>(nullptr), size_t{1}, &parameters));
  parameters = {};
  parameters.type = kMemcpyNode;
  parameters.of.copy.context = context;
  parameters.of.copy.copy = line(memory.small + 3072, memory.a + kMiB, 64);
  say_result("add a node of any kind: copy", call("cuGraphAddNode_v2", &node, graph, static_cast<const Node*>(nullptr),
                                                  static_cast<const void*>(nullptr), size_t{0}, &parameters));
  const Graph outer = make_graph();
  say_result("add a graph in a graph", call("cuGraphAddChildGraphNode", &node, outer, static_cast<const Node*>(nullptr), size_t{0}, graph));
  const Executable executable = instantiate(outer, "instantiate");
  if (executable == nullptr) return;
  say_result("launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  say_result("synchronize", call("cuCtxSynchronize"));
  say("copied: %d, filled: %d %d", first_byte(memory.b + 2 * kMiB), first_byte(memory.small + 1024), first_byte(memory.small + 1088));
}

// A thread without a context makes and changes the nodes.
void hand_graphs_elsewhere() {
  const Context context = use(0);
  Memory memory = make_memory();
  Address pooled = 0, mapped = 0;
  must("cuMemAllocAsync", &pooled, kBytes, Stream{nullptr});
  const AllocationProperties properties = on_gpu(0);
  Handle handle = 0;
  must("cuMemCreate", &handle, size_t{2 * kPage}, &properties, 0ull);
  must("cuMemAddressReserve", &mapped, size_t{2 * kPage}, size_t{0}, Address{0}, 0ull);
  must("cuMemMap", mapped, size_t{2 * kPage}, size_t{0}, handle, 0ull);
  const Access access{{1, 0}, 3};
  must("cuMemSetAccess", mapped, size_t{2 * kPage}, &access, size_t{1});
  const Graph graph = make_graph();
  const Added fill = add_fill(graph, {memory.a, 0, 5, 1, 64, 1}, context);
  const Added copy = add_copy(graph, line(memory.b, memory.a, 64), context, {fill.node});
  const Executable executable = instantiate(graph, "instantiate");
  settle();
  const struct {
    const char* name;
    Address address;
  } kinds[] = {{"plain", memory.b}, {"of a pool", pooled}, {"virtual", mapped}, {"nowhere", 0x1000}};
  for (const auto& each : kinds) {
    const auto elsewhere = [&](const char* what, auto make) {
      Result result = 0;
      std::thread([&] { result = make(); }).join();
      say_result(std::string(each.name) + ": " + what, result);
    };
    const MemsetNode filled{each.address, 0, 8, 1, 64, 1};
    const Copy3D to = line(each.address + 64, memory.a, 64), from = line(memory.a + 64, each.address, 64);
    elsewhere("fill", [&] { return call("cuGraphMemsetNodeSetParams", fill.node, &filled); });
    elsewhere("copy to", [&] { return call("cuGraphMemcpyNodeSetParams", copy.node, &to); });
    elsewhere("copy from", [&] { return call("cuGraphMemcpyNodeSetParams", copy.node, &from); });
    elsewhere("fill that runs", [&] { return call("cuGraphExecMemsetNodeSetParams", executable, fill.node, &filled, context); });
    elsewhere("copy that runs", [&] { return call("cuGraphExecMemcpyNodeSetParams", executable, copy.node, &to, context); });
    elsewhere("add a fill", [&] { return add_fill(make_graph(), filled, context).result; });
    elsewhere("add a copy", [&] { return add_copy(make_graph(), from, context).result; });
    elsewhere("range", [&] {
      Address base = 0;
      size_t bytes = 0;
      return call("cuMemGetAddressRange_v2", &base, &bytes, each.address);
    });
    if (each.address != 0x1000)
      elsewhere("instantiate", [&] {
        const Graph whole = make_graph();
        Executable made = nullptr;
        if (add_fill(whole, filled, context).result != 0) return Result{-1};
        return call("cuGraphInstantiateWithFlags", &made, whole, 0ull);
      });
  }
}

// Changed before and after it is instantiated.
void hand_graphs_updated() {
  const Context context = use(0);
  Memory memory = make_memory();
  const Graph graph = make_graph();
  const Added fill = add_fill(graph, {memory.a, 0, 5, 1, kBytes, 1}, context);
  const Added copy = add_copy(graph, line(memory.b, memory.a, kBytes), context, {fill.node});
  say("added: %d %d", fill.result, copy.result);
  settle();
  const MemsetNode other_fill{memory.a, 0, 8, 1, kBytes, 1};
  say_result("change the fill", call("cuGraphMemsetNodeSetParams", fill.node, &other_fill));
  Result elsewhere = 0;
  std::thread([&] { elsewhere = call("cuGraphMemsetNodeSetParams", fill.node, &other_fill); }).join();
  say_result("change the fill in a thread without a context", elsewhere);
  const Copy3D other_copy = line(memory.b, memory.a + kMiB, kMiB);
  say_result("change the copy", call("cuGraphMemcpyNodeSetParams", copy.node, &other_copy));
  const Executable executable = instantiate(graph, "instantiate");
  if (executable == nullptr) return;
  const MemsetNode third_fill{memory.a, 0, 12, 1, kBytes, 1};
  say_result("change the fill that runs", call("cuGraphExecMemsetNodeSetParams", executable, fill.node, &third_fill, context));
  const Copy3D third_copy = line(memory.b + kMiB, memory.a, kMiB);
  say_result("change the copy that runs", call("cuGraphExecMemcpyNodeSetParams", executable, copy.node, &third_copy, context));
  const Copy3D bad_copy = line(memory.b, 0x1000, kMiB);
  say_result("change the copy to no memory", call("cuGraphExecMemcpyNodeSetParams", executable, copy.node, &bad_copy, context));
  say_result("launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  say_result("synchronize", call("cuCtxSynchronize"));
  say("filled and copied: %d", first_byte(memory.b + kMiB));
  const Graph twin = make_graph();
  const Added twin_fill = add_fill(twin, {memory.a, 0, 21, 1, kBytes, 1}, context);
  const Added twin_copy = add_copy(twin, line(memory.b, memory.a, kMiB), context, {twin_fill.node});
  say("added again: %d %d", twin_fill.result, twin_copy.result);
  UpdateResult outcome{};
  say_result("update", call("cuGraphExecUpdate_v2", executable, twin, &outcome));
  say("outcome: %u", outcome.result);
  say_result("launch", call("cuGraphLaunch", executable, Stream{nullptr}));
  say_result("synchronize", call("cuCtxSynchronize"));
  say("filled and copied: %d", first_byte(memory.b));
}

namespace {

struct OfKind {
  const char* name;
  Address address;
};

void* new_pool() {
  struct {
    AllocationProperties properties;
    unsigned char rest[56];
  } wanted{};
  static_assert(sizeof wanted == 88);
  wanted.properties = on_gpu(0);
  void* pool = nullptr;
  must("cuMemPoolCreate", &pool, static_cast<const void*>(&wanted));
  return pool;
}

Address in_order(void* pool) {
  Address address = 0;
  if (pool != nullptr) must("cuMemAllocFromPoolAsync", &address, size_t{kMiB}, pool, Stream{nullptr});
  if (pool == nullptr) must("cuMemAllocAsync", &address, size_t{kMiB}, Stream{nullptr});
  return address;
}

Address plain() {
  Address address = 0;
  must("cuMemAlloc_v2", &address, size_t{kMiB});
  return address;
}

Address managed() {
  Address address = 0;
  must("cuMemAllocManaged", &address, size_t{kMiB}, 1u);
  return address;
}

Address mapped() {
  Handle handle = 0;
  const AllocationProperties properties = on_gpu(0);
  must("cuMemCreate", &handle, size_t{kPage}, &properties, 0ull);
  Address address = 0;
  must("cuMemAddressReserve", &address, size_t{kPage}, size_t{0}, Address{0}, 0ull);
  must("cuMemMap", address, size_t{kPage}, size_t{0}, handle, 0ull);
  const Access access{{1, 0}, 3};
  must("cuMemSetAccess", address, size_t{kPage}, &access, size_t{1});
  return address;
}

struct Made {
  std::string name;
  Graph graph;
  Node node;
  Executable executable;
};

Made make_copy(const std::string& name, Address to, Address from, Context context) {
  Made made{name, make_graph(), nullptr, nullptr};
  made.node = add_copy(made.graph, line(to, from, 64), context).node;
  must("cuGraphInstantiateWithFlags", &made.executable, made.graph, 0ull);
  return made;
}

template <size_t Count>
std::vector<Made> copies_to_and_from(const OfKind (&kinds)[Count], const Memory& memory, Context context) {
  must("cuCtxSynchronize");
  std::vector<Made> all;
  for (const OfKind& each : kinds) {
    all.push_back(make_copy(std::string("to ") + each.name, each.address, memory.a, context));
    all.push_back(make_copy(std::string("from ") + each.name, memory.a, each.address, context));
  }
  settle();
  return all;
}

}  // namespace

// An executable graph's copy is changed from memory of one kind, which may be gone, to memory of another.
void changed_copies() {
  const Context context = use(0);
  Memory memory = make_memory();
  void* const kept = new_pool();
  void* const ending = new_pool();
  const OfKind kinds[] = {
      {"plain", plain()}, {"in order", in_order(nullptr)}, {"of a pool", in_order(kept)}, {"of a pool that goes", in_order(ending)}};
  const OfKind targets[] = {{"plain", memory.b}, {"in order", in_order(nullptr)}, {"of a pool", in_order(kept)}};
  const std::vector<Made> all = copies_to_and_from(kinds, memory, context);
  const auto change_all = [&](const char* when) {
    for (const Made& each : all) {
      std::string results;
      for (const OfKind& to : targets) {
        const Copy3D changed = line(to.address + 128, memory.a + 256, 48);
        results += " " + std::to_string(call("cuGraphExecMemcpyNodeSetParams", each.executable, each.node, &changed, context));
      }
      say("%s, %s:%s", when, each.name.c_str(), results.c_str());
    }
  };
  change_all("all there");
  say_result("destroy a pool whose memory is in use", call("cuMemPoolDestroy", ending));
  change_all("a pool gone");
}

// Of a pool that another GPU may use, which is the driver's own under nvshare, too.
void two_gpus_changed_copies() {
  use(1);
  const Context context = use(0);
  Memory memory = make_memory();
  void* const pool = new_pool();
  const Access access{{1, 1}, 3};
  say_result("open it to the other GPU", call("cuMemPoolSetAccess", pool, &access, size_t{1}));
  const OfKind kinds[] = {{"plain", plain()}, {"of the open pool", in_order(pool)}};
  const std::vector<Made> all = copies_to_and_from(kinds, memory, context);
  for (const Made& each : all) {
    for (const OfKind& to : kinds) {
      const Copy3D there = line(to.address + 128, memory.a + 256, 48);
      const Copy3D back = line(memory.a + 256, to.address + 128, 48);
      say_result(each.name + ", to " + to.name, call("cuGraphExecMemcpyNodeSetParams", each.executable, each.node, &there, context));
      say_result(each.name + ", from " + to.name, call("cuGraphExecMemcpyNodeSetParams", each.executable, each.node, &back, context));
    }
  }
}

// The node is changed once its graph is instantiated: what the executable graph may be changed to stays as it was.
void copies_changed_later() {
  const Context context = use(0);
  Memory memory = make_memory();
  void* const pool = new_pool();
  const Address ordered = in_order(nullptr), pooled = in_order(pool), going = in_order(pool);
  must("cuCtxSynchronize");
  Made of_pool = make_copy("of a pool", going, ordered, context);
  Made of_plain = make_copy("plain", memory.b, memory.a, context);
  settle();
  const auto change_both = [&](const char* when) {
    const Copy3D pools = line(pooled + 128, ordered + 256, 48), plains = line(memory.b + 128, memory.a + 256, 48);
    for (const Made& each : {of_pool, of_plain}) {
      const Result to_pools = call("cuGraphExecMemcpyNodeSetParams", each.executable, each.node, &pools, context);
      const Result to_plains = call("cuGraphExecMemcpyNodeSetParams", each.executable, each.node, &plains, context);
      say("%s, %s: %d %d", when, each.name.c_str(), to_pools, to_plains);
    }
  };
  change_both("as instantiated");
  const Copy3D to_plain = line(memory.b + 64, ordered, 32), to_pool = line(pooled + 64, memory.a, 32);
  say_result("the node to plain memory", call("cuGraphMemcpyNodeSetParams", of_pool.node, &to_plain));
  say_result("the node to a pool's", call("cuGraphMemcpyNodeSetParams", of_plain.node, &to_pool));
  change_both("its node changed");
  must("cuMemFreeAsync", going, Stream{nullptr});
  must("cuCtxSynchronize");
  change_both("its memory freed");
  say_result("destroy it", call("cuGraphExecDestroy", of_pool.executable));
  must("cuGraphInstantiateWithFlags", &of_pool.executable, of_pool.graph, 0ull);
  change_both("instantiated anew");
}

// Not compared: what the kinds of memory mean to each way of changing a graph that is instantiated.
void changed_nodes() {
  const Context context = use(0);
  Memory memory = make_memory();
  void* const pool = new_pool();
  const OfKind kinds[] = {
      {"plain", plain()}, {"in order", in_order(nullptr)}, {"of a pool", in_order(pool)}, {"managed", managed()}, {"virtual", mapped()}};
  const OfKind targets[] = {
      {"plain", memory.b}, {"in order", in_order(nullptr)}, {"of a pool", in_order(pool)}, {"managed", managed()}, {"virtual", mapped()}};
  must("cuCtxSynchronize");
  settle();
  for (const OfKind& each : kinds) {
    std::string copies, generic, updates, fills, changed_before, fill_updates;
    for (const OfKind& to : targets) {
      const Copy3D changed = line(to.address + 128, memory.a + 256, 48);
      Made made = make_copy("", each.address, memory.a, context);
      copies += " " + std::to_string(call("cuGraphExecMemcpyNodeSetParams", made.executable, made.node, &changed, context));
      NodeParameters node{};
      node.type = kMemcpyNode;
      node.of.copy = {0, 0, context, changed};
      generic += " " + std::to_string(call("cuGraphExecNodeSetParams", made.executable, made.node, &node));
      const Graph twin = make_graph();
      add_copy(twin, changed, context);
      UpdateResult update{};
      updates += " " + std::to_string(call("cuGraphExecUpdate_v2", made.executable, twin, &update));
      Made other = make_copy("", each.address, memory.a, context);
      const Result before = call("cuGraphMemcpyNodeSetParams", other.node, &changed);
      changed_before += " " + std::to_string(before) + "/" +
                        std::to_string(call("cuGraphExecMemcpyNodeSetParams", other.executable, other.node, &changed, context));
      const Graph filling = make_graph();
      const Added fill = add_fill(filling, {each.address, 0, 5, 1, 64, 1}, context);
      Executable executable = nullptr;
      must("cuGraphInstantiateWithFlags", &executable, filling, 0ull);
      const MemsetNode filled{to.address + 64, 0, 8, 1, 48, 1};
      fills += " " + std::to_string(call("cuGraphExecMemsetNodeSetParams", executable, fill.node, &filled, context));
      const Graph fill_twin = make_graph();
      add_fill(fill_twin, filled, context);
      fill_updates += " " + std::to_string(call("cuGraphExecUpdate_v2", executable, fill_twin, &update));
    }
    say("%s: copies%s, generic%s, updates%s, changed before%s, fills%s, updates of fills%s", each.name, copies.c_str(), generic.c_str(),
        updates.c_str(), changed_before.c_str(), fills.c_str(), fill_updates.c_str());
  }
}

}  // namespace answers
