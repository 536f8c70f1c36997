// One call: its arguments, wrong ones too, and what the model makes of it. Used by generate.cc alone.
#pragma once

#include "generate_arguments.h"

namespace conformance::plans {

class Calls : public Arguments {
 protected:
  Calls(const Settings& settings, uint64_t sequence)
      : Arguments(settings, sequence), cold_(sequence >= kColdFirst && sequence < kPartnerFirst) {}

  const bool cold_;
  bool in_a_row_ = false;
  int lost_in_ = -1;  // a context that has just ended

  static bool is_in(const std::vector<bool>& set, int index) {
    return static_cast<size_t>(index) < set.size() && set[static_cast<size_t>(index)];
  }

  bool make_call(int index, bool may_be_wrong = true) {
    const Op& op = ops()[static_cast<size_t>(index)];
    // Some sequences begin with calls that put no work on the GPU: what comes before the first turn.
    if (is_quiet() && ((op.group & (kCopy | kLaunch | kMemOp)) != 0 || (cold_ && Word(op.symbol).find("GraphLaunch") != Word::npos))) {
      return false;
    }
    if (index < 0 || ((op.group & kCapture) != 0 && std::string_view(op.symbol).find("BeginCapture") != Word::npos && capturing_ >= 0)) {
      return false;
    }
    call_ = Call{};
    call_.op = index;
    call_.thread = threads_ > 1 && random_.chance(15) && forced_dst_ < 0 ? static_cast<int>(random_.below(threads_)) : 0;
    per_thread_ = (op.traits & kPerThread) != 0;
    n_ = size_ = 0;
    picked_ = dst_ = src_ = -1;
    wrong_ok_ = may_be_wrong;
    follow_ = -1;
    Word spec = op.spec;
    const bool fixed = spec.find("null") != Word::npos || spec.find('!') != Word::npos || spec.find("partner") != Word::npos;
    while (!spec.empty()) {
      if (!take_word(take(spec, ' '))) {
        return false;
      }
    }
    set_spans();
    const bool wrong = may_be_wrong && !fixed && !is_in(settings_.tame, index) && random_.chance(wrong_percent_) && make_wrong(op);
    for (Arg& arg : call_.args) {
      if (wrong && arg.kind == Kind::kDst) {
        arg.v[2] = 0;  // it may write less, or nothing
      } else if (wrong && arg.kind == Kind::kNew && arg.letter == 'm') {
        arg.v[2] = 0;  // what it gets, if anything, is not used
      }
    }
    plan_.push_back(call_);
    freed_ = -1;
    if (!wrong) {
      after(op);
    }
    return true;
  }

  // How many bytes behind its address the call touches: it is not made where there are fewer.
  // ---- wrong arguments ----
  bool make_wrong(const Op& op) {
    if (call_.args.empty()) {
      return false;
    }
    Arg& arg = call_.args[static_cast<size_t>(random_.below(static_cast<int64_t>(call_.args.size())))];
    const bool launch = (op.group & kLaunch) != 0;
    switch (arg.kind) {
      case Kind::kInt:
        return wrong_number(arg, op, launch);
      case Kind::kDst:
      case Kind::kSrc:
      case Kind::kPtr:
        return !launch && wrong_pointer(arg, op);
      case Kind::kGone:
        // Of what was allocated in stream order a wrong pointer crashes the driver.
        if (arg.letter != 'm' || Word(op.symbol).find("FreeAsync") != Word::npos) {
          return false;
        }
        return wrong_pointer(arg, op);
      case Kind::kHandle:
        if (arg.letter == 's' || arg.letter == 'c' || arg.letter == 'r' || launch) {
          return false;
        }
        arg = arg_of(Kind::kNull);
        return true;
      default:
        return false;
    }
  }

  bool wrong_number(Arg& arg, const Op& op, bool launch) {
    const Word spec = op.spec;
    const bool length = arg.v[0] == n_ || arg.v[0] == size_;
    if (launch) {
      arg.v[0] = random_.chance(50) ? 0 : -1;
    } else if (arg.v[0] == kReservationBytes || arg.v[0] == kGranule) {
      arg.v[0] = random_.chance(50) ? 0 : 4096;
    } else if (spec.find("managed") != Word::npos || spec.find("host") != Word::npos || spec.find("region") != Word::npos) {
      arg.v[0] = 0;
    } else if (length && arg.v[0] > 1) {
      arg.v[0] = random_.chance(50) ? 0 : int64_t{1} << 45;
    } else if (arg.v[0] == 0) {
      arg.v[0] = random_.chance(50) ? 0x80 : -1;
    } else {
      arg.v[0] = 0;
    }
    return true;
  }

  bool wrong_pointer(Arg& arg, const Op& op) {
    const int64_t offset = arg.count > 1 && arg.kind != Kind::kGone ? arg.v[1] : 0;
    const bool hidden = arg.hidden;
    const bool names_only = arg.kind == Kind::kPtr;
    const int64_t die = random_.below(4);
    const bool pooled =
        freed_ >= 0 && (memory_[static_cast<size_t>(freed_)].kind == kMemAsync || memory_[static_cast<size_t>(freed_)].kind == kMemPool);
    if (die == 0 && freed_ >= 0 && !(arg.kind == Kind::kGone && pooled)) {
      arg = arg_of(Kind::kFreed, {freed_, names_only ? offset % 256 : 0});
    } else if (die == 1 && arg.kind == Kind::kGone) {
      const int64_t size = memory_[static_cast<size_t>(arg.v[0])].size;
      arg = arg_of(Kind::kPtr, {arg.v[0], size > 256 ? 256 : size / 2});  // an interior pointer
    } else if (die == 2 && (op.group & kHost) == 0 && arg.kind != Kind::kGone) {
      arg = arg_of(Kind::kHostPtr, {offset % 4096});
    } else {
      arg = arg_of(Kind::kNull);
    }
    arg.hidden = hidden;
    return true;
  }

  // ---- what the model makes of a call ----
  void after(const Op& op) {
    const Word symbol = op.symbol;
    for (const Arg& arg : call_.args) {
      if (arg.kind == Kind::kNew && arg.letter == 'm') {
        Memory& m = memory_[static_cast<size_t>(arg.v[0])];
        m = Memory{};
        m.live = true;
        m.kind = static_cast<int>(arg.v[1]);
        m.size = arg.v[2];
        m.context = current_;
        m.written = m.kind == kMemIpc;  // the second process has filled it
        follow_ = m.kind == kMemIpc ? -1 : static_cast<int>(arg.v[0]);
      } else if (arg.kind == Kind::kBind) {
        Memory& m = memory_[static_cast<size_t>(arg.v[0])];
        m = Memory{};
        m.live = true;
        m.access = false;
        m.kind = kMemVmm;
        m.size = arg.v[2];
        m.reservation = static_cast<int>(arg.v[3] * 8 + arg.v[4]);
        m.context = current_;
        follow_ = static_cast<int>(arg.v[0]);
      } else if (arg.kind == Kind::kGone && arg.letter == 'm') {
        memory_[static_cast<size_t>(arg.v[0])].live = false;
        end_kept(arg.v[0]);
        freed_ = symbol.find("Async") == Word::npos ? static_cast<int>(arg.v[0]) : -1;  // when it is really gone is not known
      } else if (arg.kind == Kind::kNew) {
        made(arg);
      } else if (arg.kind == Kind::kGone) {
        gone(arg);
      } else if (arg.kind == Kind::kDst && arg.v[2] != 0 && (op.group & kGraph) == 0 && capturing_ < 0) {
        memory_[static_cast<size_t>(arg.v[0])].written = true;
      }
    }
    after_symbol(symbol);
    follow_up();
  }

  // The second process closes what goes.
  void end_kept(int64_t slot) {
    for (int i = 0; i < slots_of('j'); ++i) {
      object('j', i).live = object('j', i).live && object('j', i).tag != slot;
    }
  }

  void made(const Arg& arg) {
    Object& o = object(arg.letter, arg.v[0]);
    o = Object{};
    o.live = true;
    o.context = current_;
    o.serial = ++serial_;
    if (arg.letter == 'n') {
      o.tag = static_cast<int>(arg.v[1]);
      o.parent = graph_;
      o.serial = object('g', graph_).serial;
    } else if (arg.letter == 'c') {
      o.tag = arg.count > 1 ? 1 : 0;  // a green one
    } else if (arg.letter == 'j') {
      o.tag = picked_;
    } else if (arg.letter == 'x') {
      o.parent = graph_;
      o.serial = object('g', graph_).serial;
    }
  }

  void gone(const Arg& arg) {
    object(arg.letter, arg.v[0]).live = false;
    if (arg.letter == 'g') {
      for (int i = 0; i < slots_of('n'); ++i) {
        if (object('n', i).parent == arg.v[0]) {
          object('n', i).live = false;
        }
      }
    } else if (arg.letter == 'l' || arg.letter == 'b') {
      for (const char letter : {'u', 'k'}) {
        for (int i = 0; i < slots_of(letter); ++i) {
          object(letter, i).live = false;
        }
      }
    }
  }

  void after_symbol(Word symbol) {
    if (symbol == "cuMemSetAccess") {
      for (const Arg& arg : call_.args) {
        if (arg.kind == Kind::kPtr) {
          memory_[static_cast<size_t>(arg.v[0])].access = true;
        }
      }
    } else if (symbol == "cuCtxSetCurrent" && call_.thread == 0 && call_.args[0].v[0] >= 0) {
      current_ = static_cast<int>(call_.args[0].v[0]);
    } else if (symbol.find("cuCtxCreate") != Word::npos && call_.thread == 0) {
      current_ = static_cast<int>(call_.args[0].v[0]);
    } else if (symbol == "cuCtxAttach" && call_.thread == 0 && call_.args[1].v[0] == 0) {
      ++object('c', current_).attachments;
    } else if (symbol == "cuCtxDetach" && call_.args[0].kind == Kind::kHandle) {
      detached(static_cast<int>(call_.args[0].v[0]));
    } else if (symbol.find("cuCtxDestroy") != Word::npos) {
      lost_in_ = static_cast<int>(call_.args[0].v[0]);
    } else if (symbol.find("BeginCapture") != Word::npos) {
      capturing_ = static_cast<int>(call_.args[0].v[0]);
      capture_left_ = 2 + static_cast<int>(random_.below(10));
    } else if (symbol.find("EndCapture") != Word::npos) {
      capturing_ = -1;
    }
  }

  void detached(int slot) {
    Object& context = object('c', slot);
    if (context.attachments > 0) {
      --context.attachments;
    } else {
      context.live = false;
      lost_in_ = slot;
    }
  }

  // New memory is mostly given access and written at once.
  void follow_up() {
    const int slot = follow_;
    if (in_a_row_ || slot < 0 || capturing_ >= 0 || random_.chance(10)) {
      return;
    }
    follow_ = -1;
    Memory& m = memory_[static_cast<size_t>(slot)];
    if (m.kind == kMemVmm) {
      forced_ptr_ = slot;
      make_call(op_of("cuMemSetAccess"), false);
      forced_ptr_ = -1;
    }
    static constexpr const char* kFills[] = {"cuMemsetD8_v2", "cuMemcpyHtoD_v2", "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2"};
    if (is_quiet() || m.kind == kMemHost || m.kind == kMemRegistered) {
      return;
    }
    forced_dst_ = slot;
    make_call(op_of(kFills[random_.below(4)]), false);
    forced_dst_ = -1;
  }
};

}  // namespace conformance::plans
