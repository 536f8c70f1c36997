#include "generate.h"

#include "generate_arguments.h"

namespace conformance {
namespace plans {

class Maker : public Arguments {
 public:
  Maker(const Settings& settings, uint64_t sequence)
      : Arguments(settings, sequence),
        sequence_(sequence),
        cold_(sequence >= kColdFirst && sequence < kPartnerFirst),
        busy_(!cold_ && sequence % 4 != 0) {
    for (int i = 0; i < settings.devices && i < 2; ++i) {
      object('c', i).live = true;
    }
    object('p', 0).live = true;
    choose_groups();
  }

  Plan make() {
    const int calls = !cold_ ? settings_.calls : settings_.cold_calls > 0 ? settings_.cold_calls : settings_.calls / 3;
    const int length = calls / 2 + static_cast<int>(random_.below(calls));
    while (static_cast<int>(plan_.size()) < length) {
      step();
    }
    end_capture();
    return std::move(plan_);
  }

 private:
  const uint64_t sequence_;
  const bool cold_;
  const bool busy_;
  bool in_a_row_ = false, attached_ = false;
  int lost_in_ = -1;  // a context that has just ended

  static bool is_in(const std::vector<bool>& set, int index) {
    return static_cast<size_t>(index) < set.size() && set[static_cast<size_t>(index)];
  }

  // ---- which operations ----
  void choose_groups() {
    static constexpr uint32_t kChoices[] = {kAsync,
                                            kVmm,
                                            kManaged,
                                            kHost,
                                            kArray | kTexture,
                                            kGraph,
                                            kGraph,
                                            kCapture | kGraph,
                                            kModule,
                                            kTexture,
                                            kQuery,
                                            kStream,
                                            kLaunch,
                                            kDevice,
                                            kMemOp | kStream,
                                            kAsync | kGraph,
                                            kVmm | kGraph,
                                            kRare,
                                            kRare | kArray | kTexture,
                                            kOld | kModule | kLaunch};
    groups_ = kPlain | kCopy | kQuery;
    const int64_t count = 2 + random_.below(4);
    for (int64_t i = 0; i < count; ++i) {
      groups_ |= kChoices[random_.below(static_cast<int64_t>(std::size(kChoices)))];
    }
    // To make and to destroy one takes a driver half a second, and no other process gets anything done meanwhile.
    if (random_.below(1000) < 6) {
      groups_ |= kContext;
    }
    if (settings_.devices > 1 && random_.chance(50)) {
      groups_ |= kPeer;
    }
    quiet_ = random_.chance(15) ? 4 + random_.below(16) : 0;
    threads_ = random_.chance(4) ? 3 : 1;
    if (cold_) {
      groups_ = kPlain | kCopy | kGraph | (random_.chance(30) ? kAsync : kPlain);
      quiet_ = 10 + random_.below(20);
      threads_ = 1;
    }
    // From a source of its own, so that the other sequences of a seed stay as they are.
    Random second(settings_.seed * 31 + sequence_);
    if (second.chance(5) || sequence_ >= kPartnerFirst) {
      groups_ |= kIpc | (second.chance(50) ? kVmm : kAsync) | kStream;
    }
    if (second.chance(2)) {
      groups_ |= kGreen | kStream | kLaunch;
    }
    groups_ &= settings_.groups;
    wrong_percent_ = random_.chance(30) ? 0 : 4 + static_cast<int>(random_.below(12));
    for (size_t i = 0; i < ops().size(); ++i) {
      const Op& op = ops()[i];
      const bool wanted = (op.group & groups_) == op.group && (op.group & kNever) == 0;
      // Entering another GPU's context needs no new context.
      const bool moves = (groups_ & (kPeer | kGreen)) != 0 && std::string_view(op.symbol) == "cuCtxSetCurrent";
      if ((wanted || moves) && !is_in(settings_.without, static_cast<int>(i))) {
        // Most sequences use what they allocate more often than others: an allocation takes a driver a hundred times as long as most calls.
        const bool cheap = op.group == kCopy || op.group == kQuery || op.group == kLaunch;
        total_ += op.weight * (cheap && busy_ ? 3 : 1);
        weights_.push_back({static_cast<int>(i), total_});
      }
    }
  }

  int choose() {
    const int64_t at = random_.below(total_);
    return std::upper_bound(weights_.begin(), weights_.end(), at, [](int64_t value, const auto& entry) { return value < entry.second; })
        ->first;
  }

  void step() {
    lost_in_ = -1;
    if (!is_quiet() && make_a_row()) {
      return;
    }
    for (int i = 0; i < 30; ++i) {
      if (make_call(choose())) {
        break;
      }
    }
    ask_again();
    if (capturing_ >= 0 && --capture_left_ <= 0) {
      end_capture();
    }
  }

  void end_capture() {
    if (capturing_ < 0) {
      return;
    }
    forced_stream_ = capturing_;
    make_call(op_of("cuStreamEndCapture"));
    forced_stream_ = -9;
    capturing_ = -1;
  }

  // ---- one call ----
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

  // ---- several calls in a row ----
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

}  // namespace plans

int slots_of(char letter) {
  switch (letter) {
    case 'm':
      return kMemorySlots;
    case 'n':
      return 16;
    case 's':
    case 'e':
    case 'h':
      return 6;
    case 'j':
    case 'c':
    case 'g':
    case 'x':
    case 'r':
    case 'a':
    case 't':
    case 'u':
      return 4;
    case 'p':
    case 'l':
    case 'k':
      return 3;
    case 'z':
      return 1;
    default:
      return 2;
  }
}

Plan generate(const Settings& settings, uint64_t sequence) { return plans::Maker(settings, sequence).make(); }

}  // namespace conformance
