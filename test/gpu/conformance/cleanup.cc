// The end of a sequence: what its memory holds, and taking everything away.
#include <cinttypes>
#include <cstdio>

#include "execute.h"

namespace conformance {
namespace {

uint64_t word_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

void Runner::check_all(std::vector<std::string>& lines) {
  for (int slot = 0; slot < kMemorySlots; ++slot) {
    const MemoryState& memory = world_.memory(slot);
    if (!memory.live || !memory.written || !memory.access || memory.size > kHostBuffer) {
      continue;
    }
    const int code = call("cuMemcpyDtoH_v2", {word_of(host_out()), memory.address, memory.size});
    char text[64];
    std::snprintf(text, sizeof(text), "~check m%d %d %" PRIx64, slot, code, code == 0 ? checksum(host_out(), memory.size) : 0);
    lines.emplace_back(text);
  }
}

void Runner::clean_up(std::vector<std::string>& lines) {
  const auto end = [&](const char* symbol, std::initializer_list<uint64_t> x) {
    const int code = call(symbol, x);
    lines.push_back(std::string("~") + symbol + " " + std::to_string(code));
  };
  // Captures end first: nothing can be waited for before. Streams of a context that is gone are not asked: a driver of 580 may crash.
  for (int slot = 0; slot < slots_of('s') && !context_gone_; ++slot) {
    const ObjectState& stream = world_.object('s', slot);
    if (stream.live && is_capturing(stream.value)) {
      uint64_t graph = 0;
      end("cuStreamEndCapture", {stream.value, word_of(&graph)});
      if (world_.handle_name(graph) == "?") {  // not one that a capture was begun into
        end("cuGraphDestroy", {graph});
      }
    }
  }
  capturing_ = capturing_into_ = -1;
  unsigned mode = 0;  // as a thread begins
  call("cuThreadExchangeStreamCaptureMode", {word_of(&mode)});
  end("cuCtxSetCurrent", {world_.object('c', 0).value});
  end("cuCtxSynchronize", {});
  for (int slot = 1; slot < slots_of('c'); ++slot) {
    const ObjectState& context = world_.object('c', slot);
    if (context.live) {
      call("cuCtxSetCurrent", {context.value});
      end("cuCtxSynchronize", {});
    }
  }
  call("cuCtxSetCurrent", {world_.object('c', 0).value});
  check_all(lines);

  // Once the primary context is gone, a driver of 580 looks into memory of its own that it has freed (seen: cuModuleUnload, 709 or 400).
  // The process ends with this sequence.
  static constexpr struct {
    char letter;
    const char* symbol;
  } kEnds[] = {{'x', "cuGraphExecDestroy"}, {'g', "cuGraphDestroy"}, {'t', "cuTexObjectDestroy"},     {'o', "cuSurfObjectDestroy"},
               {'q', "cuTexRefDestroy"},    {'a', "cuArrayDestroy"}, {'y', "cuMipmappedArrayDestroy"}};
  for (const auto& [letter, symbol] : kEnds) {
    for (int slot = 0; slot < slots_of(letter) && !context_gone_; ++slot) {
      if (world_.object(letter, slot).live) {
        end(symbol, {world_.object(letter, slot).value});
      }
    }
  }
  for (int slot = 0; slot < slots_of('w'); ++slot) {
    if (world_.object('w', slot).live) {
      end("cuUserObjectRelease", {world_.object('w', slot).value, 1});
    }
  }
  end_exchanges(lines, Exchange::kCloseAll);
  free_memory(lines);
  end_exchanges(lines, Exchange::kFreeAll);
  partner_asked_ = false;  // what later sequences of this process print does not depend on it
  if (pool_set_) {
    end("cuDeviceSetMemPool", {0, world_.object('p', 0).value});
  }
  part_gpus();
  // Pools stay: where memory of one was freed on a default stream, a driver of 580 crashes at a later synchronisation of that stream.
  for (int slot = 1; slot < slots_of('p'); ++slot) {
    if (world_.object('p', slot).live) {
      end("cuMemPoolTrimTo", {world_.object('p', slot).value, 0});
    }
  }
  static constexpr struct {
    char letter;
    const char* symbol;
  } kLater[] = {{'h', "cuMemRelease"},    {'e', "cuEventDestroy_v2"}, {'s', "cuStreamDestroy_v2"}, {'l', "cuModuleUnload"},
                {'b', "cuLibraryUnload"}, {'z', "cuLinkDestroy"},     {'c', "cuCtxDestroy_v2"}};
  detach_all(lines);
  for (const auto& [letter, symbol] : kLater) {
    const int first = letter == 'c' ? 2 : 0;
    for (int slot = first; slot < slots_of(letter) && (letter == 'c' || !context_gone_); ++slot) {
      const ObjectState& object = world_.object(letter, slot);
      if (object.live && object.green != 0) {
        end("cuGreenCtxDestroy", {object.green});
      } else if (object.live) {
        end(symbol, {object.value});
      }
    }
  }
  for (int slot = 0; slot < slots_of('r'); ++slot) {
    if (world_.object('r', slot).live) {
      end("cuMemAddressFree", {world_.object('r', slot).value, static_cast<uint64_t>(kReservationBytes)});
    }
  }
  call("cuCtxSetCurrent", {world_.object('c', 0).value});
  world_.clear();
}

// GPUs and their pools are as closed to each other as before the sequence.
void Runner::part_gpus() {
  if (devices_ > 1 && !context_gone_) {
    for (int each = 0; each < slots_of('c') && peers_; ++each) {
      if (!world_.object('c', each).live) {
        continue;
      }
      call("cuCtxSetCurrent", {world_.object('c', each).value});
      for (int other = 0; other < slots_of('c'); ++other) {
        if (other != each && world_.object('c', other).live) {
          call("cuCtxDisablePeerAccess", {world_.object('c', other).value});
        }
      }
    }
    for (uint64_t each = 0; each < 2 && (pool_opened_ || pool_set_); ++each) {
      const struct { int type, id, flags; } closed = {1, static_cast<int>(1 - each), 0};
      uint64_t pool = 0;
      call("cuDeviceGetDefaultMemPool", {word_of(&pool), each});
      call("cuDeviceSetMemPool", {each, pool});
      call("cuMemPoolSetAccess", {pool, word_of(&closed), 1});
    }
    call("cuCtxSetCurrent", {world_.object('c', 0).value});
  }
  peers_ = pool_opened_ = pool_set_ = false;
}

// Contexts are as often attached to as before the sequence.
void Runner::detach_all(std::vector<std::string>& lines) {
  for (int slot = 0; slot < slots_of('c') && !context_gone_; ++slot) {
    ObjectState& context = world_.object('c', slot);
    for (; context.live && context.attachments > 0; --context.attachments) {
      call("cuCtxSetCurrent", {context.value});
      lines.push_back("~cuCtxDetach " + std::to_string(call("cuCtxDetach", {context.value})));
    }
  }
  call("cuCtxSetCurrent", {world_.object('c', 0).value});
}

// The second process lets go of what it has.
void Runner::end_exchanges(std::vector<std::string>& lines, Exchange what) {
  Request request;
  request.what = what;
  Reply reply;
  int descriptor = -1;
  if (partner_asked_) {
    lines.push_back("~partner" + (partner_.ask(request, reply, descriptor) ? text_of(reply) : " ended"));
  }
}

void Runner::free_memory(std::vector<std::string>& lines) {
  for (int slot = 0; slot < kMemorySlots; ++slot) {
    MemoryState& memory = world_.memory(slot);
    if (!memory.live) {
      continue;
    }
    const char* symbol = "cuMemFree_v2";
    uint64_t second = 0;
    switch (memory.kind) {
      case kMemAsync:
      case kMemPool:
        symbol = "cuMemFreeAsync";
        break;
      case kMemHost:
        symbol = "cuMemFreeHost";
        break;
      case kMemRegistered:
        symbol = "cuMemHostUnregister";
        break;
      case kMemIpc:
        symbol = "cuIpcCloseMemHandle";
        break;
      case kMemVmm:
        symbol = "cuMemUnmap";
        second = memory.size;
        break;
      default:
        break;
    }
    const int code = call(symbol, {memory.address, second});
    lines.push_back(std::string("~") + symbol + " m" + std::to_string(slot) + " " + std::to_string(code));
    memory.live = false;
  }
  lines.push_back("~cuCtxSynchronize " + std::to_string(call("cuCtxSynchronize", {})));
}

}  // namespace conformance
