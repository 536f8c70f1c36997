// Calls that come in rows, each right after the other, so that no address can be given out again between. Used by generate.cc alone.
#pragma once

#include "generate_calls.h"

namespace conformance::plans {

class Rows : public Calls {
 protected:
  using Calls::Calls;

  bool may_make(const char* symbol) const {
    const int index = op_of(symbol);
    return !is_in(settings_.without, index) && !is_in(settings_.tame, index);
  }

  // A call by its arguments, nothing after it.
  void put(const char* symbol, std::initializer_list<Arg> args) {
    call_ = Call{};
    call_.op = op_of(symbol);
    call_.args = args;
    plan_.push_back(call_);
    freed_ = -1;
    in_a_row_ = true;
    after(ops()[static_cast<size_t>(call_.op)]);
    in_a_row_ = false;
  }

  static Arg number_of(int64_t value) { return arg_of(Kind::kInt, {value}); }

  int free_slot() {
    for (int slot = 0; slot < kMemorySlots; ++slot) {
      if (!memory_[static_cast<size_t>(slot)].live && slot != freed_) {
        return slot;
      }
    }
    return -1;
  }

  static Arg new_memory_of(int kind, int slot, int64_t size) {
    Arg arg = object_arg(Kind::kNew, 'm', slot);
    arg.v[arg.count++] = kind;
    arg.v[arg.count++] = size;
    return arg;
  }

  // What was freed, or went with its context, is named once more, before anything can be given its address.
  void ask_again() {
    if (freed_ >= 0 && wrong_percent_ > 0 && random_.chance(20)) {
      const Memory& m = memory_[static_cast<size_t>(freed_)];
      if (m.kind == kMemPlain || m.kind == kMemPitch) {
        name_gone(Kind::kFreed, freed_, m.size);
      }
    }
    if (lost_in_ >= 0) {
      name_lost();
    }
  }

  void name_gone(Kind kind, int slot, int64_t size) {
    const int times = 1 + static_cast<int>(random_.below(3));
    for (int i = 0; i < times; ++i) {
      const Arg whole = arg_of(kind, {slot, 0});
      const int64_t die = random_.below(10);
      if (die < 6 && may_make("cuMemFree_v2")) {
        put("cuMemFree_v2", {die < 5 ? whole : arg_of(kind, {slot, size / 2})});
      } else if (die < 8) {
        put("cuMemGetAddressRange_v2", {arg_of(Kind::kOutPointer), arg_of(Kind::kOutWord), whole});
      } else {
        put("cuPointerGetAttribute", {arg_of(Kind::kOutAttribute, {2}), number_of(2), whole});
      }
    }
  }

  // Plain memory of a context that is gone, asked for in the first GPU's own.
  void name_lost() {
    put("cuCtxSetCurrent", {object_arg(Kind::kHandle, 'c', 0)});
    for (int slot = 0; slot < kMemorySlots; ++slot) {
      Memory& m = memory_[static_cast<size_t>(slot)];
      if (!m.live || m.context != lost_in_ || m.kind == kMemVmm || m.kind == kMemRegistered) {
        continue;
      }
      m.live = false;
      if (m.kind == kMemPlain || m.kind == kMemPitch) {
        name_gone(Kind::kLost, slot, m.size);
      }
    }
    lost_in_ = -1;
  }

  bool make_a_row() {
    if ((groups_ & kContext) != 0 && !attached_ && random_.chance(10)) {
      attached_ = attach_and_detach();
      return attached_;
    }
    if ((groups_ & kAsync) != 0 && wrong_percent_ > 0 && random_.chance(1)) {
      return free_in_stream_order();
    }
    return (groups_ & kCapture) != 0 && wrong_percent_ > 0 && random_.chance(2) && free_in_a_capture();
  }

  // Freed in stream order, waited for, and named once more: as an H200 was asked (1, and 500 of its range).
  bool free_in_stream_order() {
    const int memory = free_slot();
    const int known = pick_object('s', {}, false);
    const int stream = known >= 0 ? known : free_object('s', 0);
    if (capturing_ >= 0 || memory < 0 || stream < 0 || !may_make("cuMemFree_v2") || is_in(settings_.without, op_of("cuMemFreeAsync"))) {
      return false;
    }
    const Arg ordered = object_arg(Kind::kHandle, 's', stream);
    const int64_t size = random_.chance(50) ? some_size() : (1 << 20) + random_.below(5 << 20);
    const bool plain = random_.chance(50);
    if (known < 0) {
      put("cuStreamCreate", {object_arg(Kind::kNew, 's', stream), number_of(1)});
    }
    put("cuCtxSynchronize", {});
    if (plain) {
      put("cuMemAlloc_v2", {new_memory_of(kMemPlain, memory, size), number_of(size)});
    } else {
      put("cuMemAllocAsync", {new_memory_of(kMemAsync, memory, size), number_of(size), ordered});
    }
    if (random_.chance(50)) {
      put("cuMemsetD8Async", {arg_of(Kind::kDst, {memory, 0, 1, size}), number_of(random_.below(256)), number_of(size), ordered});
    }
    put("cuMemFreeAsync", {object_arg(Kind::kGone, 'm', memory), ordered});
    put("cuStreamSynchronize", {ordered});
    const Arg whole = arg_of(Kind::kFreed, {memory, 0, 2});
    const int64_t times = 1 + random_.below(3);
    for (int64_t i = 0; i < times; ++i) {
      const int64_t die = random_.below(4);
      if (die < 2) {
        put("cuMemFree_v2", {whole});
      } else if (die == 2) {
        put("cuMemGetAddressRange_v2", {arg_of(Kind::kOutPointer), arg_of(Kind::kOutWord), whole});
      } else {
        put("cuPointerGetAttribute", {arg_of(Kind::kOutAttribute, {2}), number_of(2), whole});
      }
    }
    return true;
  }

  int free_object(char letter, int first) {
    for (int slot = first; slot < slots_of(letter); ++slot) {
      if (!object(letter, slot).live) {
        return slot;
      }
    }
    return -1;
  }

  // A free in a capture that allows it, and once more, within and afterwards.
  bool free_in_a_capture() {
    const int memory = free_slot();
    const int graph = free_object('g', 0);
    const int known = pick_object('s', {}, false);
    const int stream = known >= 0 ? known : 0;
    if (capturing_ >= 0 || memory < 0 || graph < 0 || !may_make("cuMemFree_v2") || !may_make("cuStreamBeginCapture_v2")) {
      return false;
    }
    constexpr int64_t kRelaxed = 2;
    const Arg captures = object_arg(Kind::kHandle, 's', stream);
    const int64_t size = random_.chance(50) ? some_size() : (1 << 20) + random_.below(5 << 20);
    if (known < 0) {
      put("cuStreamCreate", {object_arg(Kind::kNew, 's', stream), number_of(1)});
    }
    put("cuMemAlloc_v2", {new_memory_of(kMemPlain, memory, size), number_of(size)});
    put("cuStreamBeginCapture_v2", {captures, number_of(kRelaxed)});
    put("cuMemFree_v2", {object_arg(Kind::kGone, 'm', memory)});
    name_gone(Kind::kFreed, memory, size);
    put("cuStreamEndCapture", {captures, object_arg(Kind::kNew, 'g', graph)});
    name_gone(Kind::kFreed, memory, size);
    return true;
  }

  // A context that is attached to, as PyCUDA's kind of programs hold theirs; it ends when it was detached from as often. Its plain memory
  // goes with it, a pool's stays.
  bool attach_and_detach() {
    const int context = free_object('c', 2);
    const int memory = free_slot();
    if (context < 0 || memory < 0 || capturing_ >= 0) {
      return false;
    }
    const Arg handle = object_arg(Kind::kHandle, 'c', context);
    const int64_t size = some_size();
    const auto fill = [&](int slot) {
      put("cuMemsetD8_v2", {arg_of(Kind::kDst, {slot, 0, 1, size}), number_of(random_.below(256)), number_of(size)});
    };
    put("cuCtxCreate_v2", {object_arg(Kind::kNew, 'c', context), number_of(0), number_of(0)});
    put("cuMemAlloc_v2", {new_memory_of(kMemPlain, memory, size), number_of(size)});
    const int pooled = free_slot();
    if (pooled >= 0) {
      put("cuMemAllocAsync", {new_memory_of(kMemAsync, pooled, size), number_of(size), object_arg(Kind::kHandle, 's', -1)});
      fill(pooled);
    }
    const int64_t times = 1 + random_.below(2);
    for (int64_t i = 0; i < times; ++i) {
      put("cuCtxAttach", {arg_of(Kind::kOutHandle), number_of(0)});
    }
    for (int64_t i = 0; i < times; ++i) {
      put("cuCtxDetach", {handle});
      fill(memory);
    }
    put("cuCtxSynchronize", {});
    put("cuCtxDetach", {handle});
    name_lost();
    if (pooled >= 0) {
      name_kept(pooled);
    }
    return true;
  }

  // Memory of a pool whose context is gone.
  void name_kept(int slot) {
    const Arg lost = arg_of(Kind::kLost, {slot, 0});
    put("cuPointerGetAttribute", {arg_of(Kind::kOutAttribute, {2}), number_of(2), lost});
    put("cuMemGetAddressRange_v2", {arg_of(Kind::kOutPointer), arg_of(Kind::kOutWord), lost});
    if (may_make("cuMemFree_v2")) {
      put("cuMemFree_v2", {lost});
      put("cuMemFree_v2", {lost});
    }
  }

  bool attached_ = false;
};

}  // namespace conformance::plans
