#include "execute.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "../kernels_ptx.h"

namespace conformance {

// A thread of the program's; it makes one call at a time, while the main one waits.
struct Runner::Helper {
  std::mutex mutex;
  std::condition_variable changed;
  const Call* call = nullptr;
  std::string line;
  bool end = false;
  std::thread thread;
};

namespace {

constexpr const char* kKernels[] = {"sim_noop", "sim_fill", "sim_mix", "sim_add"};
constexpr uint64_t kPerThreadStream = 2;
uint64_t callback_counter;

void stream_callback(void*, int, void* counter) { host_function(counter); }

uint64_t word_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

[[noreturn]] void give_up(const char* what, int code) {
  std::printf("! %s returned %d\n", what, code);
  std::fflush(stdout);
  std::_Exit(3);
}

Special special_of(std::string_view symbol) {
  const auto has = [symbol](std::string_view part) { return symbol.find(part) != std::string_view::npos; };
  // Primary contexts, settings of contexts, and the end of pools (cleanup.cc). They are rare: a process for each such sequence costs less
  // than undoing them. (Functions go with their modules.)
  if ((has("PrimaryCtx") && !has("GetState")) || has("cuCtxSetFlags") || has("cuCtxSetLimit") || has("cuMemPoolDestroy") ||
      has("cuCtxSetCacheConfig") || has("cuCtxSetSharedMemConfig")) {
    return Special::kLasting;
  }
  if (symbol == "cuMemSetAccess") return Special::kSetAccess;
  if (has("BeginCapture")) return Special::kBeginCapture;
  if (has("EndCapture")) return Special::kEndCapture;
  if (has("cuGraphLaunch")) return Special::kGraphLaunch;
  if (has("cuGraphInstantiate")) return Special::kInstantiate;
  if (has("cuGraphAdd") && has("Node")) return Special::kAddNode;
  if (has("cuGraphExecUpdate")) return Special::kUpdate;
  if (has("NodeSetParams") || has("NodeSetEvent")) return Special::kSetNode;
  if (has("cuGraphDestroyNode")) return Special::kDestroyNode;
  if (has("cuGraphClone")) return Special::kClone;
  if (has("cuCtxCreate")) return Special::kContextCreate;
  if (has("cuCtxDestroy")) return Special::kContextDestroy;
  if (symbol == "cuCtxAttach") return Special::kAttach;
  if (symbol == "cuCtxDetach") return Special::kDetach;
  if (has("cuStreamWriteValue")) return Special::kWrites;
  if (has("cuStreamWaitValue")) return Special::kWaits;
  if (has("SetMemPool")) return Special::kSetPool;
  if (symbol == "cuCtxEnablePeerAccess") return Special::kPeer;
  if (symbol == "cuMemPoolSetAccess") return Special::kOpenPool;
  if (has("cuTexRefSetAddress_v2") || has("cuTexRefSetAddress2D_v")) return Special::kTexture;
  if (has("cuMemcpyHtoA")) return Special::kArrayWrite;
  if (has("cuMemcpyDtoA") || has("cuMemcpyAtoA")) return Special::kArrayMixes;
  return Special::kNone;
}

// A driver of 580 touches the current context without looking whether there is one.
bool wants_context(std::string_view symbol) {
  for (const char* each : {"cuCtxSetFlags", "cuStreamAttachMemAsync", "cuTexRef", "cuParam", "cuGraphAddKernelNode", "cuGraphKernelNode",
                           "cuGraphExecKernelNode", "cuGraphExecDestroy", "cuGraphClone", "cuArrayDestroy", "cuStreamWaitEvent"}) {
    if (symbol.find(each) != std::string_view::npos) return true;
  }
  return false;
}

bool means_broken(int code) { return code == 700 || (code >= 714 && code <= 720 && code != 719 + 1) || code == 702 || code == 719; }

}  // namespace

Runner::Runner(int devices, uint64_t ballast, Progress* progress, Counts* counts) : progress_(progress), counts_(counts) {
  library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library_ == nullptr) {
    std::printf("! no driver: %s\n", dlerror());
    std::_Exit(3);
  }
  for (const Op& op : ops()) {
    functions_.push_back(reinterpret_cast<Generic>(dlsym(library_, op.symbol)));
    specials_.push_back(special_of(op.symbol));
    wants_context_.push_back(wants_context(op.symbol));
  }
  const auto must = [this](const char* symbol, std::initializer_list<uint64_t> x) {
    if (const int code = call(symbol, x); code != 0) {
      give_up(symbol, code);
    }
  };
  must("cuInit", {0});
  int count = 0;
  must("cuDeviceGetCount", {word_of(&count)});
  devices_ = devices < count ? devices : count;
  for (int i = devices_ - 1; i >= 0; --i) {
    ObjectState& context = world_.object('c', i);
    must("cuDevicePrimaryCtxRetain", {word_of(&context.value), static_cast<uint64_t>(i)});
    context.live = true;
    context.context = i;
    must("cuCtxSetCurrent", {context.value});
    uint64_t module = 0;
    must("cuModuleLoadData", {word_of(&module), word_of(gputest::kKernelsPtx)});
    for (int k = 0; k < 4; ++k) {
      must("cuModuleGetFunction", {word_of(&kernels_[i][k]), module, word_of(kKernels[k])});
    }
    if (ballast != 0) {
      uint64_t place = 0;
      must("cuMemAlloc_v2", {word_of(&place), ballast});
      must("cuMemsetD8_v2", {place, 0xa5, ballast});
    }
  }
  ObjectState& pool = world_.object('p', 0);
  must("cuDeviceGetDefaultMemPool", {word_of(&pool.value), 0});
  pool.live = true;
}

Runner::~Runner() { end_threads(); }

int Runner::call(const char* symbol, std::initializer_list<uint64_t> x) {
  auto* function = reinterpret_cast<Generic>(dlsym(library_, symbol));
  if (function == nullptr) {
    return 801;
  }
  uint64_t v[12] = {};
  size_t count = 0;
  for (const uint64_t value : x) {
    v[count++] = value;
  }
  return function(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], 0, 0);
}

bool Runner::run(const Plan& plan, std::vector<std::string>& lines) {
  cautious_ = devices_ > 1;
  for (const Call& each : plan) {
    cautious_ = cautious_ || each.thread != 0 || (ops()[static_cast<size_t>(each.op)].group & (kContext | kGreen)) != 0;
  }
  allocations_ = 1;
  capturing_ = capturing_into_ = -1;
  for (size_t i = 0; i < plan.size() && !sticky_; ++i) {
    progress_->call = static_cast<int>(i);
    progress_->op = plan[i].op;
    progress_->beat = progress_->beat + 1;
    lines.push_back(make(plan[i]));
  }
  progress_->call = -1;
  if (!sticky_) {
    clean_up(lines);
  }
  end_threads();
  return !sticky_ && !lasting_;
}

// In the thread that the plan names.
std::string Runner::make(const Call& call) {
  if (call.thread == 0) {
    return make_here(call);
  }
  auto& helper = helpers_[call.thread];
  if (!helper) {
    helper = std::make_unique<Helper>();
    Helper* h = helper.get();
    h->thread = std::thread([this, h, first = call.thread == 1] {
      if (first) {
        this->call("cuCtxSetCurrent", {world_.object('c', 0).value});
      }
      std::unique_lock lock(h->mutex);
      while (true) {
        h->changed.wait(lock, [h] { return h->call != nullptr || h->end; });
        if (h->end) {
          return;
        }
        h->line = make_here(*h->call);
        h->call = nullptr;
        h->changed.notify_all();
      }
    });
  }
  std::unique_lock lock(helper->mutex);
  helper->call = &call;
  helper->changed.notify_all();
  helper->changed.wait(lock, [&] { return helper->call == nullptr; });
  return helper->line;
}

void Runner::end_threads() {
  for (auto& helper : helpers_) {
    if (helper) {
      {
        const std::scoped_lock lock(helper->mutex);
        helper->end = true;
      }
      helper->changed.notify_all();
      helper->thread.join();
      helper.reset();
    }
  }
}

std::string Runner::make_here(const Call& call) {
  const Op& op = ops()[static_cast<size_t>(call.op)];
  const Generic function = functions_[static_cast<size_t>(call.op)];
  Made made;
  if (function == nullptr || (wants_context_[static_cast<size_t>(call.op)] && !has_context()) || !resolve(call, made) ||
      !allowed(call, made) || !wait_for_owners(call, made)) {
    return std::string(op.symbol) + " -";
  }
  if (exchange_of(call) >= 0) {
    return make_exchange(call, made);
  }
  if (another_heap_ && std::strncmp(op.symbol, "cuMemPool", 9) == 0) {
    heap_.take();
  }
  const uint64_t* x = made.x;
  const int code = function(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], made.floats[0], made.floats[1]);
  Counts& counts = counts_[call.op];
  (code == 0 ? counts.success : counts.failure) += 1;
  const bool captured = code == 0 && capturing_ >= 0 && made.has_stream && is_capturing(made.stream);
  if (code == 0) {
    take_effect(call, made, captured);
  } else if (specials_[static_cast<size_t>(call.op)] == Special::kEndCapture && capturing_ >= 0 &&
             !is_capturing(world_.object('s', capturing_).value)) {
    capturing_ = capturing_into_ = -1;  // one that had failed is over
  }
  sticky_ = sticky_ || means_broken(code);
  return outcome(call, made, code, captured);
}

// Structs point to kernels' parameters, and these to memory.
bool Runner::resolve(const Call& call, Made& made) {
  const auto rank = [](Kind kind) { return kind == Kind::kStruct ? 2 : kind == Kind::kParams ? 1 : 0; };
  for (int pass = 0; pass < 3; ++pass) {
    int index = 0;
    for (const Arg& arg : call.args) {
      uint64_t value = 0;
      if (rank(arg.kind) == pass && !resolve_one(call, arg, made, value)) {
        return false;
      }
      if (arg.hidden || arg.kind == Kind::kFloat) {
        continue;
      }
      if (rank(arg.kind) == pass && index < 12) {
        made.x[index] = value;
      }
      ++index;
    }
  }
  return true;
}

bool Runner::resolve_one(const Call& call, const Arg& arg, Made& made, uint64_t& value) {
  switch (arg.kind) {
    case Kind::kInt:
      value = static_cast<uint64_t>(arg.v[0]);
      return true;
    case Kind::kFloat:
      made.floats[made.float_count++ % 2] = static_cast<float>(arg.v[0]) / 1000;
      return true;
    case Kind::kPartner:
      return true;
    case Kind::kNull:
      made.wrong_pointer = made.wrong_pointer || std::strstr(ops()[static_cast<size_t>(call.op)].spec, "null") == nullptr;
      return true;
    case Kind::kDst:
    case Kind::kSrc:
    case Kind::kPtr:
    case Kind::kFreed:
    case Kind::kLost:
    case Kind::kHostPtr:
    case Kind::kBind:
      return resolve_memory(arg, made, value);
    case Kind::kRegion:
      value = word_of(region(arg.v[0]));
      return true;
    case Kind::kHostIn:
      value = made.refs.hin = word_of(host_in());
      fill_pattern(host_in(), static_cast<size_t>(arg.v[1]), static_cast<uint64_t>(arg.v[0]));
      return true;
    case Kind::kHostOut:
      value = made.refs.hout = word_of(host_out());
      std::memset(host_out(), 0, static_cast<size_t>(arg.v[0]));
      return true;
    case Kind::kHandle:
    case Kind::kGone:
      return resolve_handle(arg, made, value);
    case Kind::kAt: {
      const ObjectState& reservation = world_.object('r', arg.v[0]);
      value = reservation.value + static_cast<uint64_t>(arg.v[1]);
      return reservation.live;
    }
    case Kind::kFunction: {
      const int context = primary_of(current_context());
      if (context < 0 || context > 1) {
        return false;
      }
      value = made.refs.function = kernels_[context][arg.v[0]];
      return value != 0;
    }
    case Kind::kParams:
      return resolve_params(arg, made, value);
    case Kind::kDeps:
    case Kind::kDepCount:
      made.dependency = made.graph >= 0 ? world_.object('g', made.graph).last_node : 0;
      value = arg.kind == Kind::kDeps ? (made.dependency != 0 ? word_of(&made.dependency) : 0) : (made.dependency != 0 ? 1 : 0);
      return true;
    case Kind::kStruct:
      value = build(arg, made.refs, made.storage);
      return true;
    case Kind::kName:
    case Kind::kNew:
    case Kind::kOutInt:
    case Kind::kOutWord:
    case Kind::kOutPointer:
    case Kind::kOutHandle:
    case Kind::kOutText:
    case Kind::kOutString:
    case Kind::kOutBytes:
    case Kind::kOutAttribute:
      return resolve_out(arg, made, value);
  }
  return call.op < 0;  // not reached
}

bool Runner::resolve_memory(const Arg& arg, Made& made, uint64_t& value) {
  if (arg.kind == Kind::kBind) {
    return !world_.memory(arg.v[0]).live;
  }
  if (arg.kind == Kind::kHostPtr) {
    value = word_of(host_pointer()) + static_cast<uint64_t>(arg.v[0]);
    made.unknown_source = made.wrong_pointer = true;
    // It stands where the call's memory stood.
    made.refs.dst = made.refs.dst != 0 ? made.refs.dst : value;
    made.refs.src = made.refs.src != 0 ? made.refs.src : value;
    made.refs.ptr = value;
    return true;
  }
  const MemoryState& memory = world_.memory(arg.v[0]);
  value = memory.address + static_cast<uint64_t>(arg.v[1]);
  if (arg.kind == Kind::kFreed || arg.kind == Kind::kLost) {
    made.unknown_source = made.wrong_pointer = true;
    made.refs.dst = made.refs.dst != 0 ? made.refs.dst : value;
    made.refs.src = made.refs.src != 0 ? made.refs.src : value;
    made.refs.ptr = value;
    const int64_t in_order = arg.count > 2 ? arg.v[2] : 0;
    const bool named_so = !memory.in_order || in_order == 1 || (in_order == 2 && world_.gone_in_order(memory));
    return !memory.live && memory.address != 0 &&
           (arg.kind == Kind::kLost ? memory.lost_at
            : named_so              ? memory.freed_at
                                    : 0) == allocations_;
  }
  if (!memory.live) {
    return false;
  }
  if (arg.kind == Kind::kDst) {
    made.refs.dst = value;
    made.dst = static_cast<int>(arg.v[0]);
    return memory.access && static_cast<uint64_t>(arg.v[1] + arg.v[3]) <= memory.size;
  }
  if (arg.kind == Kind::kSrc) {
    made.refs.src = value;
    made.src = static_cast<int>(arg.v[0]);
    return memory.access && static_cast<uint64_t>(arg.v[1] + arg.v[2]) <= memory.size;
  }
  made.refs.ptr = value;
  made.named = static_cast<int>(arg.v[0]);
  return static_cast<uint64_t>(arg.v[1]) < memory.size;  // behind its end lies what natively lies elsewhere
}

bool Runner::resolve_handle(const Arg& arg, Made& made, uint64_t& value) {
  const int64_t slot = arg.v[0];
  if (arg.letter == 'm') {
    const MemoryState& memory = world_.memory(slot);
    value = memory.address;
    made.dst = static_cast<int>(slot);
    return memory.live;
  }
  if (slot < 0) {  // a stream: null, legacy, per thread; a context: null
    value = arg.letter == 's' ? static_cast<uint64_t>(-1 - slot) : 0;
  } else {
    const ObjectState& object = world_.object(arg.letter, slot);
    if (!object.live || (context_gone_ && arg.letter != 'c' && arg.letter != 'p')) {
      return false;
    }
    value = object.value;
  }
  Refs& refs = made.refs;
  switch (arg.letter) {
    case 's':
      refs.stream = made.stream = value;
      made.has_stream = true;
      return arg.kind != Kind::kGone || slot != capturing_;
    case 'a':
      refs.arrays[refs.array_count++ % 2] = value;
      return true;
    case 'y':
      refs.mipmap = value;
      return true;
    case 'c':
      refs.contexts[refs.context_count++ % 2] = value;
      refs.context = value;
      return true;
    case 'e':
      refs.event = value;
      return true;
    case 'g':
      (made.graph < 0 ? made.graph : made.child) = static_cast<int>(slot);
      refs.graph = value;
      return arg.kind != Kind::kGone || slot != capturing_into_;
    case 'x':
      made.exec = static_cast<int>(slot);
      return true;
    case 'n':
      made.node = static_cast<int>(slot);
      return true;
    default:
      return true;
  }
}

bool Runner::resolve_out(const Arg& arg, Made& made, uint64_t& value) {
  if (arg.kind == Kind::kName) {
    static constexpr const char* kStrings[kNames] = {gputest::kKernelsPtx,   "/nowhere/at/all", "no image",  "sim_mix",
                                                     "nothing_of_that_name", "/nowhere/at/all", "cuMemAlloc"};
    switch (arg.v[0]) {
      case 100:
        value = sizeof(gputest::kKernelsPtx);
        return true;
      case 101:
        value = word_of(reinterpret_cast<const void*>(&host_function));
        return true;
      case 102:
        value = word_of(reinterpret_cast<const void*>(&stream_callback));
        return true;
      case 103:
        value = word_of(&callback_counter);
        return true;
      default:
        value = word_of(kStrings[arg.v[0]]);
        return true;
    }
  }
  if (arg.kind == Kind::kNew) {
    // A reservation may lie where memory was that went with its context: what is asked of that memory would be told of it. So may memory
    // that another context makes.
    const bool another = devices_ > 1 || current_context() > 1;
    if (context_gone_ && (arg.letter == 'r' || (std::strchr("mayxlb", arg.letter) != nullptr && another))) {
      return false;
    }
    // A slot that is in use would lose its object.
    if (arg.letter == 'm' ? world_.memory(arg.v[0]).live : world_.object(arg.letter, arg.v[0]).live) {
      return false;
    }
  }
  if (arg.kind == Kind::kOutBytes || arg.kind == Kind::kOutText) {
    value = word_of(made.bytes[made.byte_count++ % 3]);
    return true;
  }
  if (arg.kind == Kind::kOutAttribute && arg.v[0] < 0) {
    static constexpr int kSome[] = {2, 8, 9, 11};  // memory type, managed, ordinal, start
    for (int i = 0; i < 4; ++i) {
      made.attribute_ids[i] = kSome[i];
      made.attribute_places[i] = &made.attribute_values[i];
    }
    value = arg.v[0] == -1 ? word_of(made.attribute_ids) : word_of(made.attribute_places);
    return true;
  }
  value = word_of(&made.outs[made.count++ % 12]);
  return true;
}

bool Runner::resolve_params(const Arg& arg, Made& made, uint64_t& value) {
  const auto words = static_cast<uint64_t>(arg.v[1]);
  switch (arg.v[0]) {
    case 1:
    case 2:
      made.params[0] = made.refs.dst;
      made.params[1] = words;
      made.params[2] = static_cast<uint64_t>(arg.v[2]);
      break;
    case 3:
      made.params[0] = made.refs.dst;
      made.params[1] = made.refs.src;
      made.params[2] = words;
      break;
    default:
      break;
  }
  for (int i = 0; i < 4; ++i) {
    made.param_places[i] = &made.params[i];
  }
  value = made.refs.params = word_of(made.param_places);
  return true;
}

}  // namespace conformance
