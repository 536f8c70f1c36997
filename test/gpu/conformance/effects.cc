// What calls leave behind.
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "execute.h"

namespace conformance {
namespace {

uint64_t word_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

// Descriptors that came back are closed: a process has not many.
void Runner::close_descriptors(const Call& call, const Made& made) {
  const std::string_view symbol = ops()[static_cast<size_t>(call.op)].symbol;
  if (symbol.find("ToShareableHandle") != std::string_view::npos || symbol.find("HandleForAddressRange") != std::string_view::npos) {
    int descriptor = -1;
    std::memcpy(&descriptor, made.bytes[0], sizeof(descriptor));
    if (descriptor > 2) {
      close(descriptor);
    }
  }
}

bool Runner::only_primary_context() {
  int live = 0;
  for (int slot = 0; slot < slots_of('c'); ++slot) {
    live += world_.object('c', slot).live ? 1 : 0;
  }
  return live <= 1;
}

void Runner::take_effect(const Call& call, Made& made, bool captured) {
  close_descriptors(call, made);
  const std::string_view symbol = ops()[static_cast<size_t>(call.op)].symbol;
  if (symbol == "cuStreamSynchronize") {
    world_.waited_for(made.stream);
  } else if (symbol == "cuCtxSynchronize" && only_primary_context()) {
    world_.waited_for_all();
  }
  made.count = 0;
  for (const Arg& arg : call.args) {
    if (arg.kind == Kind::kNew) {
      make_objects(arg, call, made);
      ++made.count;
    } else if (arg.kind >= Kind::kOutInt && arg.kind <= Kind::kOutHandle) {
      ++made.count;
    } else if (arg.kind == Kind::kOutString || (arg.kind == Kind::kOutAttribute && arg.v[0] >= 0)) {
      ++made.count;
    }
  }
  for (const Arg& arg : call.args) {
    if (arg.kind == Kind::kGone) {
      const bool in_order = symbol.starts_with("cuMemFreeAsync");
      end_objects(arg, in_order);
      if (arg.letter == 'm' && in_order) {
        world_.freed_in_order(arg.v[0], made.stream);
      }
    } else if (arg.kind == Kind::kBind) {
      MemoryState& memory = world_.memory(arg.v[0]);
      memory = MemoryState{};
      memory.live = true;
      memory.access = false;
      memory.kind = kMemVmm;
      memory.size = static_cast<uint64_t>(arg.v[2]);
      memory.address = world_.object('r', arg.v[3]).value + static_cast<uint64_t>(arg.v[4] * kGranule);
      memory.serial = world_.next_serial();
      memory.context = current_context();
      ++allocations_;
      for (const Arg& other : call.args) {
        if (other.kind == Kind::kHandle && other.letter == 'h') {
          note_alias(arg.v[0], world_.object('h', other.v[0]).value);
          memory.written = world_.object('h', other.v[0]).filled && !memory.aliased;
        }
      }
    }
  }
  special_effect(call, made);
  data_effect(call, made, captured);
}

void Runner::note_alias(int64_t slot, uint64_t handle) {
  MemoryState& memory = world_.memory(slot);
  memory.handle = handle;
  for (int64_t other = 0; other < kMemorySlots; ++other) {
    MemoryState& same = world_.memory(other);
    if (other != slot && same.live && same.kind == kMemVmm && same.handle == handle) {
      same.aliased = memory.aliased = true;
      same.written = false;
    }
  }
}

void Runner::make_objects(const Arg& arg, const Call& call, Made& made) {
  const uint64_t value = made.outs[made.count];
  if (arg.letter == 'm') {
    MemoryState& memory = world_.memory(arg.v[0]);
    memory = MemoryState{};
    memory.live = true;
    memory.kind = static_cast<int>(arg.v[1]);
    memory.size = static_cast<uint64_t>(arg.v[2]);
    memory.address = value;
    memory.serial = world_.next_serial();
    memory.context = current_context();
    if (made.has_stream) {
      memory.owner = {true, made.stream};
    }
    ++allocations_;
    for (const Arg& other : call.args) {
      if (other.kind == Kind::kHandle && other.letter == 'p') {
        memory.pool = static_cast<int>(other.v[0]);
      }
    }
    if (memory.kind == kMemRegistered) {  // the address is the program's own, there is nothing to be filled in
      memory.address = word_of(region(arg.v[0]));
    }
    return;
  }
  ObjectState& object = world_.object(arg.letter, arg.v[0]);
  object = ObjectState{};
  object.live = true;
  object.value = value;
  object.serial = world_.next_serial();
  object.context = current_context();
  object.retained = arg.letter == 'h' && arg.v[1] == 1;
  if (arg.letter == 'n') {
    object.parent = made.graph;
  } else if (arg.letter == 'x' && made.graph >= 0) {
    object.parent = made.graph;
    object.uses = world_.object('g', made.graph).uses;
    object.poisoned = world_.object('g', made.graph).poisoned;
  } else if (std::strchr("rcayxlb", arg.letter) != nullptr) {  // its memory may lie where other memory was
    ++allocations_;
  }
}

void Runner::end_objects(const Arg& arg, bool in_order) {
  if (arg.letter == 'm') {
    MemoryState& memory = world_.memory(arg.v[0]);
    for (int slot = 0; memory.kind == kMemVmm && slot < slots_of('h'); ++slot) {
      ObjectState& handle = world_.object('h', slot);
      handle.filled = handle.filled && (handle.value != memory.handle || memory.written);
    }
    memory.live = false;
    memory.freed_at = allocations_;
    memory.in_order = in_order;
    return;
  }
  ObjectState& object = world_.object(arg.letter, arg.v[0]);
  object.live = false;
  if (arg.letter == 'g') {
    for (int slot = 0; slot < slots_of('n'); ++slot) {
      ObjectState& node = world_.object('n', slot);
      node.live = node.live && node.parent != arg.v[0];
    }
  } else if (arg.letter == 'l' || arg.letter == 'b') {
    for (const char letter : {'u', 'k'}) {
      for (int slot = 0; slot < slots_of(letter); ++slot) {
        world_.object(letter, slot).live = false;
      }
    }
  } else if (arg.letter == 'r') {
    for (int64_t slot = 0; slot < kMemorySlots; ++slot) {
      MemoryState& memory = world_.memory(slot);
      memory.live = memory.live && !(memory.kind == kMemVmm && memory.address - object.value < static_cast<uint64_t>(kReservationBytes));
    }
  }
}

void Runner::note(std::vector<Use>& uses, const Made& made) {
  for (const int slot : {made.dst, made.src}) {
    if (slot >= 0) {
      uses.push_back({'m', slot, world_.memory(slot).serial, slot == made.dst});
    }
  }
  if (made.refs.event != 0) {
    for (int slot = 0; slot < slots_of('e'); ++slot) {
      const ObjectState& event = world_.object('e', slot);
      if (event.live && event.value == made.refs.event) {
        uses.push_back({'e', slot, event.serial, false});
      }
    }
  }
  if (made.child >= 0) {
    const auto& inner = world_.object('g', made.child).uses;
    uses.insert(uses.end(), inner.begin(), inner.end());
  }
}

void Runner::data_effect(const Call& call, Made& made, bool captured) {
  const uint32_t group = ops()[static_cast<size_t>(call.op)].group;
  if ((group & kGraph) != 0) {
    return;
  }
  if (captured) {
    note(captured_, made);
    capture_loose_ = capture_loose_ || made.wrong_pointer;
    // What a graph copies from the program's buffer is what that holds when it runs.
    capture_poisoned_ = capture_poisoned_ || made.refs.hin != 0 || made.refs.array_count != 0 || made.unknown_source;
    return;
  }
  bool whole = false;
  bool touches = made.refs.array_count != 0;
  for (const Arg& arg : call.args) {
    if (arg.kind == Kind::kDst) {
      // The plan means the block that it allocated; where an earlier one was not freed, that may be larger.
      whole = arg.v[2] != 0 && arg.v[1] == 0 && static_cast<uint64_t>(arg.v[3]) >= world_.memory(arg.v[0]).size;
      touches = true;
    } else if (arg.kind == Kind::kSrc) {
      touches = true;
    }
  }
  if (!touches) {
    return;
  }
  const Special special = specials_[static_cast<size_t>(call.op)];
  if (made.dst >= 0) {
    MemoryState& dst = world_.memory(made.dst);
    bool known = !made.unknown_source && (made.src < 0 || world_.memory(made.src).written);
    if (made.refs.array_count != 0) {
      known = false;
    }
    dst.written = known && (whole || dst.written) && !dst.aliased;
    dst.waited_offset = -1;
    if (special == Special::kWrites) {
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kDst) {
          dst.waited_offset = arg.v[1];
          dst.waited_value = static_cast<int64_t>(made.x[2]);
        }
      }
    }
  }
  for (const int slot : {made.dst, made.src}) {
    if (slot >= 0) {
      world_.memory(slot).owner = {true, made.has_stream                                                  ? made.stream
                                         : (ops()[static_cast<size_t>(call.op)].traits & kPerThread) != 0 ? 2u
                                                                                                          : 0u};
      if (made.has_stream && made.stream == 0 && (ops()[static_cast<size_t>(call.op)].traits & kPerThread) != 0) {
        world_.memory(slot).owner.stream = 2;
      }
    }
  }
  if ((cautious_ || made.refs.array_count != 0) && capturing_ < 0) {
    if (made.has_stream) {  // it may be another context's
      this->call("cuStreamSynchronize", {made.stream});
    }
    this->call("cuCtxSynchronize", {});
  }
}

void Runner::special_effect(const Call& call, Made& made) {
  const Special special = specials_[static_cast<size_t>(call.op)];
  ObjectState* graph = made.graph >= 0 ? &world_.object('g', made.graph) : nullptr;
  ObjectState* exec = made.exec >= 0 ? &world_.object('x', made.exec) : nullptr;
  switch (special) {
    case Special::kSetAccess:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kPtr) {
          bool full = true;
          for (const Arg& other : call.args) {
            full = full && (other.kind != Kind::kStruct || other.v[1] == 3);
          }
          world_.memory(arg.v[0]).access = full;
        }
      }
      break;
    case Special::kBeginCapture:
      capturing_ = call.args[0].v[0];
      captured_.clear();
      capture_poisoned_ = capture_loose_ = false;
      if (graph != nullptr) {
        graph->loose = true;  // captured into: its nodes are not in one row
        capturing_into_ = made.graph;
      }
      break;
    case Special::kEndCapture:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kNew && arg.letter == 'g') {
          ObjectState& made_graph = world_.object('g', arg.v[0]);
          made_graph.uses = captured_;
          made_graph.poisoned = capture_poisoned_;
          made_graph.loose = capture_loose_;
          made_graph.live = made_graph.value != 0;
          for (int slot = 0; slot < slots_of('g'); ++slot) {  // a capture into a graph gives that graph back
            if (slot != arg.v[0] && world_.object('g', slot).live && world_.object('g', slot).value == made_graph.value) {
              made_graph.live = false;
            }
          }
        }
      }
      capturing_ = capturing_into_ = -1;
      break;
    case Special::kGraphLaunch:
      if (exec == nullptr) {
        break;
      }
      if (capturing_ >= 0 && is_capturing(made.stream)) {
        captured_.insert(captured_.end(), exec->uses.begin(), exec->uses.end());
        capture_poisoned_ = capture_poisoned_ || exec->poisoned;
        break;
      }
      this->call("cuStreamSynchronize",
                 {made.stream == 0 && (ops()[static_cast<size_t>(call.op)].traits & kPerThread) != 0 ? 2 : made.stream});
      {
        bool known = !exec->poisoned;
        for (const Use& use : exec->uses) {
          known = known && (use.letter != 'm' || world_.memory(use.slot).written);
        }
        for (const Use& use : exec->uses) {
          if (use.letter == 'm' && use.write) {
            world_.memory(use.slot).written = known && !world_.memory(use.slot).aliased;
            world_.memory(use.slot).waited_offset = -1;
          }
        }
      }
      break;
    case Special::kAddNode:
      if (graph != nullptr) {
        const bool frees = std::strstr(ops()[static_cast<size_t>(call.op)].symbol, "MemFreeNode") != nullptr;
        note(graph->uses, made);
        graph->last_node = made.outs[0];
        graph->loose = graph->loose || made.wrong_pointer || made.refs.allocates || frees;  // it would break the context
      }
      break;
    case Special::kSetNode:
      if (exec != nullptr) {
        note(exec->uses, made);
        exec->loose = exec->loose || made.wrong_pointer;
      } else if (made.node >= 0 && world_.object('n', made.node).parent >= 0) {
        world_.object('g', world_.object('n', made.node).parent).loose |= made.wrong_pointer;
        note(world_.object('g', world_.object('n', made.node).parent).uses, made);
      }
      break;
    case Special::kDestroyNode:
      if (made.node >= 0 && world_.object('n', made.node).parent >= 0) {
        world_.object('g', world_.object('n', made.node).parent).loose = true;
      }
      break;
    case Special::kClone:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kNew && graph != nullptr) {
          ObjectState& clone = world_.object('g', arg.v[0]);
          clone.uses = graph->uses;
          clone.poisoned = graph->poisoned;
          clone.loose = true;  // which of its nodes is the last is not known
        }
      }
      break;
    case Special::kUpdate:
      if (exec != nullptr && graph != nullptr) {
        exec->uses.insert(exec->uses.end(), graph->uses.begin(), graph->uses.end());
        exec->poisoned = exec->poisoned || graph->poisoned;
        exec->loose = exec->loose || graph->loose;
      }
      break;
    case Special::kContextDestroy:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kGone) {
          world_.forget_context(arg.v[0], allocations_);
        }
      }
      break;
    case Special::kAttach:
      if (const int current = current_context(); current >= 0) {
        ++world_.object('c', current).attachments;
      }
      break;
    case Special::kDetach:
      if (const int slot = detached_from(call); slot >= 0) {
        ObjectState& context = world_.object('c', slot);
        if (context.attachments > 0) {
          --context.attachments;
        } else {
          context.live = false;
          world_.forget_context(slot, allocations_);
        }
      }
      break;
    case Special::kSetPool:
      pool_set_ = true;
      break;
    case Special::kPeer:
      peers_ = true;
      break;
    case Special::kOpenPool:
      pool_opened_ = true;
      break;
    case Special::kLasting:
      lasting_ = true;
      context_gone_ = context_gone_ || std::strstr(ops()[static_cast<size_t>(call.op)].symbol, "Retain") == nullptr;
      break;
    case Special::kArrayWrite:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kHandle && arg.letter == 'a' && !(capturing_ >= 0 && made.has_stream && is_capturing(made.stream))) {
          world_.object('a', arg.v[0]).written = true;
        }
      }
      break;
    case Special::kArrayMixes:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kHandle && arg.letter == 'a') {
          world_.object('a', arg.v[0]).written = false;
          break;
        }
      }
      break;
    case Special::kTexture:
      for (const Arg& arg : call.args) {
        if (arg.kind == Kind::kHandle && arg.letter == 'q') {
          ObjectState& texture = world_.object('q', arg.v[0]);
          texture.uses.clear();
          texture.loose = made.wrong_pointer;
          if (made.named >= 0) {
            texture.uses.push_back({'m', made.named, world_.memory(made.named).serial, false});
          }
        }
      }
      break;
    case Special::kNone:
    case Special::kInstantiate:
    case Special::kContextCreate:
    case Special::kWrites:
    case Special::kWaits:
    case Special::kPitch:
      break;
  }
  if (special == Special::kNone && made.refs.array_count != 0 && (made.src >= 0 || made.dst >= 0)) {
    for (const Arg& arg : call.args) {
      if (arg.kind == Kind::kHandle && arg.letter == 'a' && made.src >= 0) {
        world_.object('a', arg.v[0]).written = false;
      }
    }
  }
}

}  // namespace conformance
