// Calls that the program and its second process make together (partner.h).
#include <dlfcn.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "execute.h"

namespace conformance {
namespace {

struct IpcHandle {  // passed by value, as the driver takes it
  unsigned char bytes[64];
};

uint64_t word_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

const Arg* find(const Call& call, Kind kind, char letter = 0) {
  for (const Arg& arg : call.args) {
    if (arg.kind == kind && (letter == 0 || arg.letter == letter)) {
      return &arg;
    }
  }
  return nullptr;
}

}  // namespace

int Runner::exchange_of(const Call& call) {
  const Arg* asked = find(call, Kind::kPartner);
  return asked != nullptr ? static_cast<int>(asked->v[0]) : -1;
}

void Runner::start_partner() {
  Request request;
  request.what = Exchange::kCloseAll;
  Reply reply;
  int descriptor = -1;
  partner_.ask(request, reply, descriptor);
}

// Before memory goes, or a context with all of its memory: natively what becomes of it in the other process is not defined.
void Runner::end_kept(int64_t slot) {
  for (int kept = 0; kept < slots_of('j'); ++kept) {
    ObjectState& object = world_.object('j', kept);
    if (object.live && (slot < 0 || object.parent == slot)) {
      Request request;
      request.what = Exchange::kKeptClose;
      request.slot = kept;
      Reply reply;
      int descriptor = -1;
      partner_.ask(request, reply, descriptor);
      object.live = false;
    }
  }
}

// Whether the program's half is made and the other one can be asked for; its code.
int Runner::hand_over(const Call& call, Made& made, Request& request, int& descriptor) {
  const Arg* piece = made.dst >= 0 ? find(call, Kind::kDst) : find(call, Kind::kSrc);
  const int slot = made.dst >= 0 ? made.dst : made.src;
  if (piece != nullptr) {
    request.offset = static_cast<uint64_t>(piece->v[1]);
    request.bytes = static_cast<uint64_t>(piece->kind == Kind::kDst ? piece->v[3] : piece->v[2]);
  }
  switch (request.what) {
    case Exchange::kRead:
    case Exchange::kWrite:
      return this->call("cuIpcGetMemHandle", {word_of(request.data), world_.memory(slot).address});
    case Exchange::kKeep:
      request.slot = static_cast<int>(find(call, Kind::kNew)->v[0]);
      return this->call("cuIpcGetMemHandle", {word_of(request.data), world_.memory(made.named).address});
    case Exchange::kKeptRead:
    case Exchange::kKeptWrite:
      request.slot = static_cast<int>(find(call, Kind::kHandle, 'j')->v[0]);
      return 0;
    case Exchange::kKeptClose:
      request.slot = static_cast<int>(find(call, Kind::kGone)->v[0]);
      return 0;
    case Exchange::kBorrow:
      request.slot = static_cast<int>(find(call, Kind::kNew)->v[0]);
      request.bytes = static_cast<uint64_t>(find(call, Kind::kNew)->v[2]);
      return 0;
    case Exchange::kBorrowedRead:
      request.slot = slot;
      return 0;
    case Exchange::kGiveBack:
      request.slot = static_cast<int>(find(call, Kind::kGone)->v[0]);
      return this->call("cuIpcCloseMemHandle", {world_.memory(request.slot).address});
    case Exchange::kHandle:
      return this->call("cuMemExportToShareableHandle", {word_of(&descriptor), made.x[0], 1, 0});
    case Exchange::kPool: {
      const int pool = world_.memory(slot).pool;
      const int code = this->call("cuMemPoolExportToShareableHandle", {word_of(&descriptor), world_.object('p', pool).value, 1, 0});
      return code != 0 ? code : this->call("cuMemPoolExportPointer", {word_of(request.data), world_.memory(slot).address});
    }
    case Exchange::kEvent:
      return this->call("cuIpcGetEventHandle", {word_of(request.data), made.x[0]});
    default:
      return 0;
  }
}

// What the program makes of the answer; its code.
int Runner::take_over(Made& made, Exchange what, const Reply& reply, int descriptor) {
  if (what == Exchange::kBorrow) {
    IpcHandle handle;
    std::memcpy(handle.bytes, reply.data, sizeof(handle));
    auto* open = reinterpret_cast<int (*)(uint64_t*, IpcHandle, unsigned)>(dlsym(library_, "cuIpcOpenMemHandle_v2"));
    return open != nullptr ? open(&made.outs[0], handle, 1) : 801;
  }
  if (what == Exchange::kMakeHandle || what == Exchange::kBare) {
    return this->call("cuMemImportFromShareableHandle", {word_of(&made.outs[0]), static_cast<uint64_t>(descriptor), 1});
  }
  return 0;
}

// Whether the checksum of what the other process read is the same everywhere.
bool Runner::sum_is_known(const Call& call, const Made& made, Exchange what) {
  if (what != Exchange::kHandle) {
    return made.src >= 0 && world_.memory(made.src).written;
  }
  const ObjectState& handle = world_.object('h', find(call, Kind::kHandle)->v[0]);
  bool mapped = false;
  bool known = false;
  for (int slot = 0; slot < kMemorySlots; ++slot) {
    const MemoryState& memory = world_.memory(slot);
    if (memory.live && memory.kind == kMemVmm && memory.handle == handle.value) {
      mapped = true;
      known = memory.written && !memory.aliased;
    }
  }
  return mapped ? known : handle.filled;
}

void Runner::exchange_effect(const Call& call, Made& made, Exchange what) {
  const bool known = world_.memory(made.dst >= 0 ? made.dst : 0).written;
  take_effect(call, made, false);
  if (what == Exchange::kWrite || what == Exchange::kKeptWrite) {
    const Arg* piece = find(call, Kind::kDst);
    MemoryState& memory = world_.memory(made.dst);
    const bool whole = piece->v[1] == 0 && static_cast<uint64_t>(piece->v[3]) >= memory.size;
    memory.written = (known || whole) && !memory.aliased;
  } else if (what == Exchange::kKeep) {
    ObjectState& kept = world_.object('j', find(call, Kind::kNew)->v[0]);
    kept.parent = made.named;
    kept.parent_serial = world_.memory(made.named).serial;
  } else if (what == Exchange::kBorrow) {
    world_.memory(find(call, Kind::kNew)->v[0]).written = true;
  } else if (what == Exchange::kMakeHandle) {
    world_.object('h', find(call, Kind::kNew)->v[0]).filled = true;
  }
}

std::string Runner::make_exchange(const Call& call, Made& made) {
  const Arg& asked = *find(call, Kind::kPartner);
  std::string line = ops()[static_cast<size_t>(call.op)].symbol;
  Request request;
  request.what = static_cast<Exchange>(asked.v[0]);
  request.seed = static_cast<uint64_t>(asked.v[1]);
  const bool pool_is_there = request.what != Exchange::kPool ||
                             (made.src >= 0 && world_.memory(made.src).pool >= 0 && world_.object('p', world_.memory(made.src).pool).live);
  if (capturing_ >= 0 || !pool_is_there) {
    return line + " -";
  }
  if (request.what == Exchange::kFork) {
    Reply reply;
    ask_child(reply);
    return line + " 0" + text_of(reply);
  }
  if (request.what == Exchange::kBare) {
    return make_bare(call, made, request);
  }
  if (request.what == Exchange::kGreen || request.what == Exchange::kGreenEnd) {
    return make_green(call, made, request.what == Exchange::kGreenEnd);
  }
  this->call("cuCtxSynchronize", {});
  int descriptor = -1;
  int code = hand_over(call, made, request, descriptor);
  std::string details;
  Reply reply;
  if (code == 0) {
    const int sent = descriptor;
    partner_asked_ = true;
    if (!partner_.ask(request, reply, descriptor)) {
      return line + " the second process ended";
    }
    if (sent >= 0) {
      close(sent);
    }
    code = reply.first_failure();
    details = text_of(reply);
    if (code == 0 && reply.sum != 0) {
      char sum[24];
      std::snprintf(sum, sizeof(sum), " %" PRIx64, reply.sum);
      details += sum_is_known(call, made, request.what) ? sum : " unwritten";
    }
    if (code == 0 && (request.what == Exchange::kBorrow || request.what == Exchange::kMakeHandle)) {
      code = take_over(made, request.what, reply, descriptor);
      details += " " + std::to_string(code);
    }
  }
  if (descriptor >= 0) {
    close(descriptor);
  }
  (code == 0 ? counts_[call.op].success : counts_[call.op].failure) += 1;
  if (code == 0) {
    exchange_effect(call, made, request.what);
  }
  return line + " " + std::to_string(code) + details;
}

std::string Runner::make_bare(const Call& call, Made& made, const Request& request) {
  Reply reply;
  int descriptor = -1;
  ask_bare(request, reply, descriptor);
  std::string line = text_of(reply);
  int code = reply.first_failure();
  if (code == 0) {
    code = take_over(made, request.what, reply, descriptor);
    line += " " + std::to_string(code);
  }
  if (descriptor >= 0) {
    close(descriptor);
  }
  (code == 0 ? counts_[call.op].success : counts_[call.op].failure) += 1;
  if (code == 0) {
    take_effect(call, made, false);
  }
  return ops()[static_cast<size_t>(call.op)].symbol + (" " + std::to_string(code)) + line;
}

// What was made with a green context current is the primary one's, and stays; its streams are not used again.
std::string Runner::make_green(const Call& call, Made& made, bool ends) {
  std::string line = ops()[static_cast<size_t>(call.op)].symbol;
  const Arg& context = *find(call, ends ? Kind::kGone : Kind::kNew, 'c');
  if (!ends) {
    const auto device = static_cast<int>(find(call, Kind::kInt)->v[0]);
    uint64_t green = 0;
    int code = this->call("cuGreenCtxCreate", {word_of(&green), 0, static_cast<uint64_t>(device), 1});
    line += " " + std::to_string(code);
    if (code == 0) {
      code = this->call("cuCtxFromGreenCtx", {word_of(&made.outs[0]), green});
      line += " " + std::to_string(code);
    }
    if (code == 0) {
      take_effect(call, made, false);
      ObjectState& object = world_.object('c', context.v[0]);
      object.green = green;
      object.parent = device;
    }
    return line;
  }
  ObjectState& object = world_.object('c', context.v[0]);
  if (object.green == 0) {
    return line + " -";
  }
  if (current_context() == static_cast<int>(context.v[0])) {
    this->call("cuCtxSetCurrent", {world_.object('c', 0).value});
  }
  this->call("cuCtxSynchronize", {});
  const int code = this->call("cuGreenCtxDestroy", {object.green});
  if (code == 0) {
    world_.leave_context(context.v[0], object.parent);
    object = ObjectState{};
  }
  return line + " " + std::to_string(code);
}

std::string Runner::text_of(const Reply& reply) {
  std::string text = " partner";
  for (int i = 0; i < reply.count; ++i) {
    text += " " + std::to_string(reply.codes[i]);
  }
  return text;
}

}  // namespace conformance
