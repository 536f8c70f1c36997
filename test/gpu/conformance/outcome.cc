// What is written down about a call.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "execute.h"

namespace conformance {
namespace {

std::string hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof(text), "%" PRIx64, value);
  return text;
}

}  // namespace

std::vector<int>& unshown_attributes() {
  static std::vector<int> attributes;
  return attributes;
}

std::string Runner::attribute_name(int which, uint64_t value, const Call& call) {
  for (const int unshown : unshown_attributes()) {
    if (which == unshown) {
      return "-";
    }
  }
  switch (which) {
    case 1:
    case 17:
      return world_.handle_name(value);
    case 3:
    case 4:
    case 11:
      return world_.pointer_name(value);
    case 6:
    case 8:
    case 10:
    case 13:
    case 15:
    case 21:
      return std::to_string(value & 0xff);
    case 2:
    case 9:
    case 16:
      return std::to_string(static_cast<int>(value));
    case 7: {
      for (const Arg& arg : call.args) {
        if (arg.kind != Kind::kPtr) {
          continue;
        }
        MemoryState& memory = world_.memory(arg.v[0]);
        const bool same = memory.buffer_id == value;
        const bool fresh = memory.buffer_id == 0;
        memory.buffer_id = value;
        for (int64_t slot = 0; slot < kMemorySlots; ++slot) {
          if (slot != arg.v[0] && world_.memory(slot).buffer_id == value) {
            return "another's";
          }
        }
        return same ? "own" : fresh ? "own" : "changed";
      }
      return "-";
    }
    case 19:  // what else lies in the same mapping is not compared
      return value % static_cast<uint64_t>(kGranule) == 0 ? "granule" : world_.pointer_name(value);
    case 20:
      return "-";
    default:
      return std::to_string(value);
  }
}

std::string Runner::outcome(const Call& call, const Made& made, int code, bool captured) {
  const Op& op = ops()[static_cast<size_t>(call.op)];
  std::string line = op.symbol;
  // Of two events, one that is not over is complained of before one that was never recorded.
  const bool finished_or_not = code == 0 || code == 600 || (code == 400 && (op.traits & kCodeOnly) != 0);
  line += (op.traits & kRacy) != 0 && finished_or_not ? " q" : " " + std::to_string(code);
  if (code != 0 || (op.traits & kCodeOnly) != 0) {
    return line;
  }
  int out = 0;
  int bytes = 0;
  for (const Arg& arg : call.args) {
    switch (arg.kind) {
      case Kind::kNew:
        if (arg.letter == 'm' && (arg.v[1] == kMemPlain || arg.v[1] == kMemPitch || arg.v[1] == kMemManaged)) {
          line += (made.outs[out] % 512 == 0 ? " a512" : " a" + std::to_string(made.outs[out] % 512));
        }
        ++out;
        break;
      case Kind::kOutInt: {
        // CU_CTX_LMEM_RESIZE_TO_MAX is set by the driver itself, once something of the process needed it.
        constexpr uint64_t kLmemResize = 0x10;
        const uint64_t value = made.outs[out++];
        line += " " + std::to_string(static_cast<int>(line.compare(0, 13, "cuCtxGetFlags") == 0 ? value & ~kLmemResize : value));
        break;
      }
      case Kind::kOutWord:
        line += " " + std::to_string(made.outs[out++]);
        break;
      case Kind::kOutPointer: {
        // Of a texture reference to memory that is gone: natively something else may lie there by now.
        bool gone = false;
        for (const Arg& other : call.args) {
          const bool texture = other.kind == Kind::kHandle && other.letter == 'q';
          gone = gone || (texture && (world_.object('q', other.v[0]).loose || !uses_alive(world_.object('q', other.v[0]).uses)));
        }
        line += " " + (gone ? std::string("?") : world_.pointer_name(made.outs[out]));
        ++out;
        break;
      }
      case Kind::kOutHandle:
        line += " " + world_.handle_name(made.outs[out++]);
        break;
      case Kind::kOutString:
        line += std::string(" ") + (made.outs[out] != 0 ? reinterpret_cast<const char*>(made.outs[out]) : "0");
        ++out;
        break;
      case Kind::kOutText:
        line += " " + std::string(reinterpret_cast<const char*>(made.bytes[bytes]),
                                  strnlen(reinterpret_cast<const char*>(made.bytes[bytes]), 64));
        ++bytes;
        break;
      case Kind::kOutBytes:
        if (arg.v[1] > 0) {
          line += " " + hex(checksum(made.bytes[bytes], static_cast<size_t>(arg.v[1])));
        }
        ++bytes;
        break;
      case Kind::kOutAttribute:
        if (arg.v[0] >= 0) {
          line += " " + attribute_name(static_cast<int>(arg.v[0]), made.outs[out++], call);
        } else if (arg.v[0] == -2) {
          for (int i = 0; i < 4; ++i) {
            line += " " + attribute_name(made.attribute_ids[i], made.attribute_values[i], call);
          }
        }
        break;
      case Kind::kHostOut:
        if (!captured && made.refs.array_count == 0 && (made.src < 0 || !world_.memory(made.src).written)) {
          line += " unwritten";
        } else if (!captured) {
          if (made.has_stream) {
            this->call("cuStreamSynchronize", {made.stream});
          }
          const bool array = made.src < 0;
          bool known = !array;
          for (const Arg& other : call.args) {
            known = known || (array && other.kind == Kind::kHandle && other.letter == 'a' && world_.object('a', other.v[0]).written);
          }
          line += known && static_cast<uint64_t>(arg.v[0]) <= kHostBuffer ? " " + hex(checksum(host_out(), static_cast<size_t>(arg.v[0])))
                                                                          : " unwritten";
        }
        break;
      default:
        break;
    }
  }
  return line;
}

}  // namespace conformance
