// What may be called: what could break the context, or would be a race, is not.
#include <string_view>

#include "execute.h"

namespace conformance {
namespace {

uint64_t word_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// A kernel's data must be on its own GPU.
bool kernel_reaches(const MemoryState& memory, int of_memory, int context) {
  return memory.kind == kMemManaged || (of_memory == context && memory.kind != kMemHost && memory.kind != kMemRegistered);
}

}  // namespace

bool Runner::is_capturing(uint64_t stream) {
  int status = 0;
  return call("cuStreamIsCapturing", {stream, word_of(&status)}) == 0 && status != 0;
}

bool Runner::has_context() {
  uint64_t context = 0;
  return call("cuCtxGetCurrent", {word_of(&context)}) == 0 && context != 0;
}

// The slot of the current context; -1: none, or one that is not known.
int Runner::current_context() {
  uint64_t context = 0;
  if (call("cuCtxGetCurrent", {word_of(&context)}) != 0 || context == 0) {
    return -1;
  }
  for (int slot = 0; slot < slots_of('c'); ++slot) {
    if (world_.object('c', slot).live && world_.object('c', slot).value == context) {
      return slot;
    }
  }
  return -1;
}

// A green context is a part of its GPU's primary one.
int Runner::primary_of(int context) {
  return context >= 0 && world_.object('c', context).green != 0 ? world_.object('c', context).parent : context;
}

bool Runner::uses_alive(const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    if (!world_.alive(use)) {
      return false;
    }
  }
  return true;
}

// A context is attached to, and detached from, while it is current; what a driver does otherwise is not known.
bool Runner::may_attach(const Call& call, Special special) {
  const int current = current_context();
  if (special == Special::kAttach) {
    return call.args.back().v[0] != 0 || (current >= 0 && world_.object('c', current).green == 0 && !context_gone_);
  }
  const int slot = detached_from(call);
  if (slot < 0) {
    return true;  // from none
  }
  const ObjectState& context = world_.object('c', slot);
  return slot == current && context.green == 0 && !context_gone_ && (context.attachments > 0 || (slot >= 2 && capturing_ < 0));
}

// The slot of the context; -1: none.
int Runner::detached_from(const Call& call) {
  const Arg* context = call.args.empty() ? nullptr : call.args.data();
  return context != nullptr && context->kind == Kind::kHandle ? static_cast<int>(context->v[0]) : -1;
}

bool Runner::ends_a_context(const Call& call) {
  const Special special = specials_[static_cast<size_t>(call.op)];
  if (special != Special::kDetach) {
    return special == Special::kContextDestroy || special == Special::kLasting;
  }
  const int slot = detached_from(call);
  return slot >= 0 && world_.object('c', slot).attachments == 0;
}

// Whether the call may be made at all: what could break the context, or would be a race, is not.
bool Runner::allowed(const Call& call, Made& made) {
  const Special special = specials_[static_cast<size_t>(call.op)];
  int kernel = -1;
  for (const Arg& arg : call.args) {
    if (arg.kind == Kind::kFunction) {
      kernel = static_cast<int>(arg.v[0]);
    }
  }
  if (kernel > 0) {
    const int context = primary_of(current_context());
    for (const int slot : {made.dst, made.src}) {
      if (slot >= 0 && !kernel_reaches(world_.memory(slot), primary_of(world_.memory(slot).context), context)) {
        return false;
      }
    }
  }
  if ((special == Special::kGraphLaunch || special == Special::kUpdate) && made.exec >= 0 &&
      !uses_alive(world_.object('x', made.exec).uses)) {
    return false;
  }
  if (made.exec >= 0 && special == Special::kGraphLaunch && world_.object('x', made.exec).loose) {
    return false;
  }
  if ((special == Special::kInstantiate || special == Special::kClone || special == Special::kUpdate) && made.graph >= 0) {
    const ObjectState& graph = world_.object('g', made.graph);
    if (!uses_alive(graph.uses) || graph.loose) {
      return false;
    }
  }
  if (made.child >= 0 && (!uses_alive(world_.object('g', made.child).uses) || world_.object('g', made.child).loose)) {
    return false;
  }
  if (special == Special::kWaits) {
    for (const Arg& arg : call.args) {
      if (arg.kind == Kind::kPtr && (world_.memory(arg.v[0]).waited_offset != arg.v[1] ||
                                     world_.memory(arg.v[0]).waited_value != static_cast<int64_t>(made.x[2]) || capturing_ >= 0)) {
        return false;
      }
      if (arg.kind != Kind::kPtr && arg.kind != Kind::kInt && arg.kind != Kind::kHandle) {
        return false;
      }
    }
    if (made.x[3] != 1) {
      return false;  // another condition might never come true
    }
  }
  // It would close what the plan takes to be open.
  if (made.named >= 0 && world_.memory(made.named).kind == kMemIpc && exchange_of(call) < 0 &&
      made.refs.ptr == world_.memory(made.named).address &&
      std::string_view(ops()[static_cast<size_t>(call.op)].symbol) == "cuIpcCloseMemHandle") {
    return false;
  }
  // The primary context would be there again without its memory; what the driver then says of those addresses changes from run to run.
  const std::string_view symbol = ops()[static_cast<size_t>(call.op)].symbol;
  if (context_gone_ && (symbol == "cuDevicePrimaryCtxRetain" || symbol == "cuGreenCtxCreate")) {
    return false;
  }
  if ((special == Special::kAttach || special == Special::kDetach) && !may_attach(call, special)) {
    return false;
  }
  for (const Arg& arg : call.args) {
    if (special == Special::kContextDestroy && arg.kind == Kind::kGone && world_.object('c', arg.v[0]).attachments != 0) {
      return false;
    }
  }
  return special != Special::kBeginCapture || capturing_ < 0;
}

// Before a stream uses memory that another one used last. Nothing can be waited for while a stream captures.
bool Runner::wait_for_owners(const Call& call, const Made& made) {
  if (ends_a_context(call)) {
    end_kept(-1);
  }
  for (const Arg& arg : call.args) {
    if (arg.kind == Kind::kGone && arg.letter == 'm') {
      end_kept(arg.v[0]);
    }
    if (arg.kind != Kind::kGone || arg.letter != 's') {
      continue;
    }
    if (capturing_ >= 0) {
      return false;
    }
    this->call("cuStreamSynchronize", {made.stream});  // it cannot be waited for once it is gone
    for (int64_t slot = 0; slot < kMemorySlots; ++slot) {
      Owner& owner = world_.memory(slot).owner;
      owner.pending = owner.pending && owner.stream != made.stream;
    }
  }
  const Op& op = ops()[static_cast<size_t>(call.op)];
  if (specials_[static_cast<size_t>(call.op)] == Special::kBeginCapture) {  // so that copies that block can be made meanwhile
    for (int slot = 0; slot < kMemorySlots; ++slot) {
      Owner& owner = world_.memory(slot).owner;
      if (owner.pending) {
        this->call("cuStreamSynchronize", {owner.stream});
        owner.pending = false;
      }
    }
  }
  // Calls that only ask need not wait; one that takes memory or access away must.
  const bool changes = (op.group & kVmm) != 0;
  const uint64_t stream = made.has_stream ? made.stream : (op.traits & kPerThread) != 0 ? 2 : 0;
  std::vector<int> slots = {made.dst, made.src, changes ? made.named : -1};
  if (made.exec >= 0 && specials_[static_cast<size_t>(call.op)] == Special::kGraphLaunch) {
    for (const Use& use : world_.object('x', made.exec).uses) {
      slots.push_back(use.letter == 'm' ? use.slot : -1);
    }
  }
  for (const int slot : slots) {
    if (slot < 0) {
      continue;
    }
    Owner& owner = world_.memory(slot).owner;
    if (!owner.pending || (!changes && owner.stream == stream)) {
      continue;
    }
    if (capturing_ >= 0) {
      return false;
    }
    this->call("cuStreamSynchronize", {owner.stream});
    owner.pending = false;
  }
  return true;
}

}  // namespace conformance
