// Plain memory asked for what only virtual memory has, pointer queries, textures, stream-ordered frees.
#include <unistd.h>

#include "answers/answers.h"

namespace answers {
namespace {

constexpr int kMemoryType = 2;  // of cuPointerGetAttribute

struct Plain {
  std::string kind;
  Address address;
  size_t bytes;
};

Address plain(size_t bytes) {
  Address address = 0;
  must("cuMemAlloc_v2", &address, bytes);
  return address;
}

std::vector<Plain> one_of_each() {
  std::vector<Plain> all;
  all.push_back({"large", plain(8 * kMiB), 8 * kMiB});
  all.push_back({"odd", plain(3 * kMiB + 40), 3 * kMiB + 40});
  all.push_back({"small", plain(1000), 1000});
  Address address = 0;
  size_t pitch = 0;
  must("cuMemAllocPitch_v2", &address, &pitch, size_t{5000}, size_t{1000}, 16u);
  say("pitch of 5000: %zu", pitch);
  all.push_back({"pitched", address, pitch * 1000});
  must("cuMemAllocAsync", &address, size_t{4 * kMiB}, Stream{nullptr});
  must("cuCtxSynchronize");
  all.push_back({"stream-ordered", address, 4 * kMiB});
  return all;
}

constexpr Location kGpu{1, 0};
constexpr Access kReadWrite{kGpu, 3};

}  // namespace

// Every call that takes an address of virtual memory, or makes a handle of one, on memory that is not virtual.
void virtual_calls() {
  use(0);
  const std::vector<Plain> all = one_of_each();
  for (const Plain& each : all) write_pattern(each.address, each.bytes, 7);
  settle();
  Handle own = 0;
  const AllocationProperties properties = on_gpu(0);
  must("cuMemCreate", &own, kPage, &properties, 0ull);
  for (const Plain& each : all) {
    const auto tell = [&](const char* what, Result result) { say_result(each.kind + " " + what, result); };
    for (const size_t offset : {size_t{0}, each.bytes / 2}) {
      Handle handle = 0;
      tell("retain handle", call("cuMemRetainAllocationHandle", &handle, reinterpret_cast<void*>(each.address + offset)));
    }
    const Address page = (each.address + kPage - 1) / kPage * kPage;
    const Address inside = each.bytes >= 2 * kPage ? page : each.address / kPage * kPage;
    for (const Address at : {each.address, inside}) {
      tell("unmap a page", call("cuMemUnmap", at, size_t{kPage}));
      tell("set access to a page", call("cuMemSetAccess", at, size_t{kPage}, &kReadWrite, size_t{1}));
      tell("map over it", call("cuMemMap", at, size_t{kPage}, size_t{0}, own, 0ull));
      tell("free a page of addresses", call("cuMemAddressFree", at, size_t{kPage}));
    }
    tell("unmap", call("cuMemUnmap", each.address, each.bytes));
    tell("free the addresses", call("cuMemAddressFree", each.address, (each.bytes + kPage - 1) / kPage * kPage));
    unsigned long long access = 77;
    tell("get access", call("cuMemGetAccess", &access, &kGpu, each.address));
    say("%s access: %llu", each.kind.c_str(), access);
    int attribute = 77;
    tell("range attribute", call("cuMemRangeGetAttribute", static_cast<void*>(&attribute), size_t{4}, 2, each.address, size_t{4096}));
    if (multicast_allowed()) {
      tell("bind to multicast", call("cuMulticastBindAddr", Handle{1}, size_t{0}, inside, size_t{kPage}, 0ull));
    }
    tell("attach to a stream", call("cuStreamAttachMemAsync", Stream{nullptr}, each.address, size_t{0}, 4u));
    tell("advise", call("cuMemAdvise", each.address, size_t{4096}, 3, 0));
  }
  must("cuMemRelease", own);
  for (const Plain& each : all) say("%s bytes are there: %d", each.kind.c_str(), has_pattern(each.address, each.bytes, 7));
  run_kernel();
  for (const Plain& each : all) say("%s bytes are still there: %d", each.kind.c_str(), has_pattern(each.address, each.bytes, 7));
  for (const Plain& each : all) say_result(each.kind + " free", call("cuMemFree_v2", each.address));
}

// The same calls on the program's own virtual memory still work, beside plain memory.
void virtual_handles() {
  use(0);
  const Address beside = plain(4 * kMiB);
  const AllocationProperties properties = on_gpu(0);
  Handle handle = 0, again = 0;
  Address base = 0;
  must("cuMemCreate", &handle, size_t{2 * kPage}, &properties, 0ull);
  must("cuMemAddressReserve", &base, size_t{4 * kPage}, size_t{0}, Address{0}, 0ull);
  must("cuMemMap", base, size_t{2 * kPage}, size_t{0}, handle, 0ull);
  must("cuMemSetAccess", base, size_t{2 * kPage}, &kReadWrite, size_t{1});
  settle();
  say_result("retain", call("cuMemRetainAllocationHandle", &again, reinterpret_cast<void*>(base + kPage)));
  say("the same handle: %d", again == handle);
  AllocationProperties found{};
  say_result("properties", call("cuMemGetAllocationPropertiesFromHandle", &found, again));
  say("on GPU %d", found.location.id);
  say_result("release", call("cuMemRelease", again));
  say_result("release", call("cuMemRelease", again));
  unsigned long long access = 0;
  say_result("get access", call("cuMemGetAccess", &access, &kGpu, base));
  say("access: %llu", access);
  say_result("unmap too little", call("cuMemUnmap", base, size_t{kPage}));
  say_result("map over it", call("cuMemMap", base, size_t{2 * kPage}, size_t{0}, handle, 0ull));
  say_result("retain where nothing is mapped", call("cuMemRetainAllocationHandle", &again, reinterpret_cast<void*>(base + 3 * kPage)));
  write_pattern(base, 2 * kPage, 3);
  say("bytes: %d", has_pattern(base, 2 * kPage, 3));
  say_result("unmap", call("cuMemUnmap", base, size_t{2 * kPage}));
  say_result("unmap again", call("cuMemUnmap", base, size_t{2 * kPage}));
  say_result("free addresses", call("cuMemAddressFree", base, size_t{4 * kPage}));
  say_result("free plain", call("cuMemFree_v2", beside));
}

void pointers() {
  use(0);
  std::vector<Plain> all = one_of_each();
  settle();
  constexpr int kContext = 1, kTokens = 5, kSyncMemops = 6, kBufferId = 7;
  const auto id_of = [](Address address) {
    unsigned long long id = 0;
    return call("cuPointerGetAttribute", static_cast<void*>(&id), kBufferId, address) == 0 ? id : 0;
  };
  for (const Plain& each : all) {
    unsigned value = 1;
    say_result(each.kind + " set sync-memops", call("cuPointerSetAttribute", static_cast<const void*>(&value), kSyncMemops, each.address));
    value = 77;
    say_result(each.kind + " get sync-memops", call("cuPointerGetAttribute", static_cast<void*>(&value), kSyncMemops, each.address + 8));
    say("%s sync-memops: %u", each.kind.c_str(), value & 0xff);
    value = 0;
    say_result(each.kind + " clear sync-memops",
               call("cuPointerSetAttribute", static_cast<const void*>(&value), kSyncMemops, each.address + 8));
    struct {
      unsigned long long peer;
      unsigned address_space;
    } tokens = {77, 77};
    say_result(each.kind + " tokens", call("cuPointerGetAttribute", static_cast<void*>(&tokens), kTokens, each.address));
    say("%s tokens: %llu %u", each.kind.c_str(), tokens.peer, tokens.address_space);
    value = 77;
    call("cuPointerGetAttribute", static_cast<void*>(&value), kSyncMemops, each.address);
    say("%s sync-memops then: %u", each.kind.c_str(), value & 0xff);
    Context context = nullptr;
    say_result(each.kind + " context", call("cuPointerGetAttribute", static_cast<void*>(&context), kContext, each.address));
    say("%s is of the context: %d", each.kind.c_str(), context != nullptr);
    say_result(each.kind + " set memory type", call("cuPointerSetAttribute", static_cast<const void*>(&value), kMemoryType, each.address));
    say("%s has one id: %d", each.kind.c_str(), id_of(each.address) != 0 && id_of(each.address) == id_of(each.address + each.bytes - 1));
    say("%s alignment of 512: %d", each.kind.c_str(), each.address % 512 == 0);
  }
  // The same address, another allocation: another id.
  for (const size_t bytes : {size_t{1000}, size_t{6 * kMiB}}) {
    bool seen_twice = false;
    std::vector<unsigned long long> ids;
    for (int i = 0; i < 20; ++i) {
      const Address address = plain(bytes);
      const unsigned long long id = id_of(address);
      for (const unsigned long long other : ids) seen_twice = seen_twice || other == id;
      ids.push_back(id);
      must("cuMemFree_v2", address);
    }
    say("an id was seen twice of %zu bytes: %d", bytes, seen_twice);
  }
  for (const Plain& each : all) {
    must("cuMemFree_v2", each.address);
    unsigned type = 77;
    say_result(each.kind + " freed: memory type", call("cuPointerGetAttribute", static_cast<void*>(&type), kMemoryType, each.address));
    Address base = 0;
    size_t bytes = 0;
    say_result(each.kind + " freed: range", call("cuMemGetAddressRange_v2", &base, &bytes, each.address));
    say_result(each.kind + " freed: set sync-memops",
               call("cuPointerSetAttribute", static_cast<const void*>(&type), kSyncMemops, each.address));
    say_result(each.kind + " freed again", call("cuMemFree_v2", each.address));
  }
}

// What crashes the driver, and must harm nothing under nvshare: freed again before the first free is done. Another allocation of that size
// comes between.
void freed_twice() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const size_t bytes : {size_t{1000}, size_t{6 * kMiB}}) {
    const Address address = plain(bytes);
    say_result("free in order", call("cuMemFreeAsync", address, stream));
    say_result("free in order again", call("cuMemFreeAsync", address, stream));
    say_result("free at once", call("cuMemFree_v2", address));
    must("cuStreamSynchronize", stream);
    const Address kept = plain(bytes), other = plain(bytes);
    write_pattern(kept, bytes, 5);
    write_pattern(other, bytes, 6);
    say("apart: %d", kept != other);
    say("bytes are there: %d %d", has_pattern(kept, bytes, 5), has_pattern(other, bytes, 6));
  }
}

// What a program frees again must leave alone what lies beside it, and what has its place since.
void freed_beside() {
  use(0);
  for (const size_t bytes : {size_t{232}, size_t{100'000}, size_t{600'000}, size_t{6 * kMiB}}) {
    const Address first = plain(bytes), beside = plain(bytes);
    write_pattern(beside, bytes, 1);
    say("%zu bytes", bytes);
    for (const Address freed : {first, first + bytes / 2}) {
      if (freed == first) say_result("free", call("cuMemFree_v2", freed));
      Address base = 77;
      size_t size = 77;
      say_result("free again", call("cuMemFree_v2", freed));
      say_result("range", call("cuMemGetAddressRange_v2", &base, &size, freed));
      unsigned char handle[64];
      say_result("hand to others", call("cuIpcGetMemHandle", static_cast<void*>(handle), freed));
      int value = 77;
      say_result("range attribute", call("cuMemRangeGetAttribute", static_cast<void*>(&value), size_t{4}, 2, freed, size_t{128}));
      say_result("advise", call("cuMemAdvise", freed, size_t{128}, 3, 0));
      say_result("prefetch", call("cuMemPrefetchAsync", freed, size_t{128}, 0, Stream{nullptr}));
    }
    const Address later = plain(bytes), last = plain(2 * bytes);
    write_pattern(later, bytes, 2);
    write_pattern(last, 2 * bytes, 3);
    say("bytes are there: %d %d %d", has_pattern(beside, bytes, 1), has_pattern(later, bytes, 2), has_pattern(last, 2 * bytes, 3));
    for (const Address each : {beside, later, last}) say_result("free", call("cuMemFree_v2", each));
  }
}

void stream_ordered() {
  use(0);
  Address nothing = 77;
  say_result("allocate nothing", call("cuMemAllocAsync", &nothing, size_t{0}, Stream{nullptr}));
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const size_t bytes : {size_t{1000}, size_t{6 * kMiB}}) {
    Address address = 0;
    must("cuMemAllocAsync", &address, bytes, stream);
    must("cuMemsetD8Async", address, static_cast<unsigned char>(1), bytes, stream);
    settle();
    say_result("free inside", call("cuMemFreeAsync", address + 64, stream));
    say_result("free inside at once", call("cuMemFree_v2", address + 64));
    say_result("free in order", call("cuMemFreeAsync", address, stream));  // freeing it again crashes the driver
    must("cuStreamSynchronize", stream);
    const Address kept = plain(bytes);
    say_result("plain memory, at once", call("cuMemFree_v2", kept));
    say_result("and in order", call("cuMemFreeAsync", kept, stream));
    const Address other = plain(bytes);
    say_result("plain memory, in order", call("cuMemFreeAsync", other, stream));
    must("cuStreamSynchronize", stream);
  }
}

// What was freed in stream order, and its stream was waited for, is not there.
void freed_in_order() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  for (const size_t bytes : {size_t{1000}, size_t{6 * kMiB}}) {
    for (const bool in_order : {false, true}) {
      Address address = 0;
      if (in_order) {
        must("cuMemAllocAsync", &address, bytes, stream);
      } else {
        address = plain(bytes);
      }
      must("cuMemsetD8Async", address, static_cast<unsigned char>(1), bytes, stream);
      must("cuMemFreeAsync", address, stream);
      must("cuStreamSynchronize", stream);
      unsigned type = 77;
      say_result("memory type", call("cuPointerGetAttribute", static_cast<void*>(&type), kMemoryType, address));
      Address base = 0;
      size_t found = 0;
      say_result("range", call("cuMemGetAddressRange_v2", &base, &found, address));
      say_result("free", call("cuMemFree_v2", address));
      say_result("range", call("cuMemGetAddressRange_v2", &base, &found, address));
    }
  }
  Graph graph = nullptr;
  for (const int mode : {0, 1, 2}) {
    const Address address = plain(6 * kMiB);
    must("cuMemFreeAsync", address, stream);
    must("cuStreamSynchronize", stream);
    must("cuStreamBeginCapture_v2", stream, mode);
    unsigned type = 77;
    Address base = 0;
    size_t found = 0;
    say_result("memory type in a capture", call("cuPointerGetAttribute", static_cast<void*>(&type), kMemoryType, address));
    say_result("range in a capture", call("cuMemGetAddressRange_v2", &base, &found, address));
    say_result("end the capture", call("cuStreamEndCapture", stream, &graph));
  }
  Address nothing = 77;
  must("cuStreamBeginCapture_v2", stream, 0);  // global
  say_result("allocate nothing", call("cuMemAllocAsync", &nothing, size_t{0}, Stream{nullptr}));
  say_result("end the capture", call("cuStreamEndCapture", stream, &graph));
}

// Only a graph's own memory is freed in it; a graph of which another free was refused cannot be changed afterwards.
void refused_frees_in_captures() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  Address managed = 0, pooled = 0;
  must("cuMemAllocManaged", &managed, size_t{4096}, 1u);
  must("cuMemAllocAsync", &pooled, size_t{4096}, stream);
  must("cuStreamSynchronize", stream);
  const struct {
    const char* kind;
    Address address;
  } kinds[] = {{"plain", plain(4096)}, {"of a pool", pooled}, {"managed", managed}, {"unknown", Address{0x1000}}, {"none", 0}};
  for (const auto& each : kinds) {
    for (const int mode : {0, 1, 2}) {
      Graph graph = nullptr;
      must("cuStreamBeginCapture_v2", stream, mode);
      const Result freed = call("cuMemFreeAsync", each.address, stream);
      const Result ended = call("cuStreamEndCapture", stream, &graph);
      const void* nothing = nullptr;
      const Result changed = call("cuGraphRemoveDependencies_v2", graph, nothing, nothing, nothing, size_t{0});
      say("%s, mode %d, free: %d, end: %d, change: %d", each.kind, mode, freed, ended, changed);
      must("cuGraphDestroy", graph);
    }
  }
}

// Plain memory is not attached to a stream, managed memory is.
void attached_to_streams() {
  use(0);
  Stream stream = nullptr;
  must("cuStreamCreate", &stream, kNonBlocking);
  Address managed = 0;
  must("cuMemAllocManaged", &managed, size_t{4096}, 1u);
  for (const Address address : {plain(1000), plain(6 * kMiB), managed}) {
    for (const unsigned flags : {4u, 1u}) {  // to this stream, to all
      say_result("attach", call("cuStreamAttachMemAsync", stream, address, size_t{0}, flags));
      must("cuStreamSynchronize", stream);
    }
  }
}

// Memory that is mapped and that no GPU may use yet: it has attributes, and neither a range nor a device pointer.
void mapped_without_access() {
  use(0);
  const AllocationProperties properties = on_gpu(0);
  Handle handle = 0;
  Address base = 0;
  must("cuMemCreate", &handle, size_t{kPage}, &properties, 0ull);
  must("cuMemAddressReserve", &base, size_t{kPage}, size_t{0}, Address{0}, 0ull);
  must("cuMemMap", base, size_t{kPage}, size_t{0}, handle, 0ull);
  const auto ask = [&] {
    constexpr int kDevicePointer = 3;
    unsigned type = 77;
    Address found = 0;
    size_t bytes = 0;
    say_result("memory type", call("cuPointerGetAttribute", static_cast<void*>(&type), kMemoryType, base));
    say_result("device pointer", call("cuPointerGetAttribute", static_cast<void*>(&found), kDevicePointer, base));
    say_result("range", call("cuMemGetAddressRange_v2", &found, &bytes, base + 4096));
  };
  ask();
  const Access access{{1, 0}, 3};
  must("cuMemSetAccess", base, size_t{kPage}, &access, size_t{1});
  ask();
}

namespace {

struct ResourceDescription {
  int type;  // 2: linear, 3: pitch2D
  int pad;
  union {
    struct {
      Address address;
      int format;  // 0x20: float
      unsigned channels;
      size_t bytes;
    } linear;
    struct {
      Address address;
      int format;
      unsigned channels;
      size_t width, height, pitch;
    } pitch2d;
    int reserved[32];
  } of;
  unsigned flags;
};
struct TextureDescription {
  int address_mode[3];
  int filter_mode;
  unsigned flags;
  unsigned max_anisotropy;
  int mipmap_filter_mode;
  float mipmap_level_bias, min_mipmap_level_clamp, max_mipmap_level_clamp;
  float border_color[4];
  int reserved[12];
};

Result texture(const ResourceDescription& resource) {
  TextureDescription description{};
  description.address_mode[0] = description.address_mode[1] = description.address_mode[2] = 1;
  description.flags = 0;
  unsigned long long made = 0;
  const Result result =
      call("cuTexObjectCreate", &made, &resource, static_cast<const TextureDescription*>(&description), static_cast<const void*>(nullptr));
  if (result == 0) call("cuTexObjectDestroy", made);
  return result;
}

ResourceDescription linear(Address address, size_t bytes) {
  ResourceDescription resource{};
  resource.type = 2;
  resource.of.linear = {address, 0x20, 1, bytes};
  return resource;
}

ResourceDescription pitched(Address address, size_t pitch) {
  ResourceDescription resource{};
  resource.type = 3;
  resource.of.pitch2d = {address, 0x20, 1, 32, 4, pitch};
  return resource;
}

}  // namespace

void textures() {
  use(0);
  // Small ones of all sizes, several of each: where they lie is the allocator's business, but they are aligned.
  std::vector<Plain> all;
  for (const size_t bytes : {4, 200, 256, 300, 512, 700, 768, 1000, 1500, 3000, 5000, 100000}) {
    for (int i = 0; i < 5; ++i) {
      all.push_back({std::to_string(bytes) + " bytes", plain(bytes), bytes});
      Address address = 0;
      must("cuMemAllocAsync", &address, bytes, Stream{nullptr});
      all.push_back({std::to_string(bytes) + " bytes in order", address, bytes});
    }
  }
  Address rows = 0;
  size_t pitch = 0;
  must("cuMemAllocPitch_v2", &rows, &pitch, size_t{128}, size_t{4}, 4u);
  settle();
  for (const Plain& each : all) say_result(each.kind + ", linear", texture(linear(each.address, each.bytes / 4 * 4)));
  const Address large = plain(4 * kMiB);
  say_result("linear", texture(linear(large, 4096)));
  say_result("linear at 512", texture(linear(large + 512, 4096)));
  say_result("linear at 256", texture(linear(large + 256, 4096)));
  say_result("linear at 4", texture(linear(large + 4, 4096)));
  say_result("rows", texture(pitched(rows, pitch)));
  say_result("rows at 256", texture(pitched(large + 256, 512)));
}

// Whether a device address passes for mapped host memory depends on whether the process has any host memory.
void host_pointers() {
  const Context primary = use(0);
  const Address memory = plain(4 * kMiB), small = plain(1000);
  Address ordered = 0, managed = 0;
  must("cuMemAllocAsync", &ordered, size_t{4 * kMiB}, Stream{nullptr});
  must("cuCtxSynchronize");
  settle();
  const auto look = [&](const char* when) {
    const auto tell = [&](const char* kind, Address address) {
      Address found = 0;
      const Result result = call("cuMemHostGetDevicePointer_v2", &found, reinterpret_cast<void*>(address), 0u);
      say("%s, %s: %d, %s", when, kind, result, found == address ? "the same" : found == 0 ? "none" : "another");
    };
    tell("plain", memory);
    tell("within plain", memory + 12345);
    tell("small", small + 8);
    tell("in order", ordered + 4096);
    if (managed != 0) tell("managed", managed + 4096);
    tell("nothing", 4096);
  };
  look("at first");
  must("cuMemAllocManaged", &managed, size_t{4 * kMiB}, 1u);
  look("managed memory");
  void* host = nullptr;
  must("cuMemHostAlloc", &host, size_t{kMiB}, 0u);
  look("host memory");
  must("cuMemFreeHost", host);
  look("host memory is gone");
  std::vector<char> pages(2 * kMiB);
  void* const page = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(pages.data()) + 4095) / 4096 * 4096);
  must("cuMemHostRegister_v2", page, size_t{kMiB}, 0u);
  look("registered");
  must("cuMemHostUnregister", page);
  look("unregistered");
  Context other = nullptr;
  must("cuCtxCreate_v2", &other, 0u, 0);
  must("cuMemHostAlloc", &host, size_t{kMiB}, 0u);
  look("host memory of another context, from there");
  must("cuCtxSetCurrent", primary);
  look("host memory of another context");
  must("cuCtxDestroy_v2", other);
  look("that context is gone");
}

}  // namespace answers
