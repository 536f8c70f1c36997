// The table of driver calls that the instrument makes. `spec` says how generate.cc chooses the arguments, in order; generate.cc has the
// list of its words.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace conformance {

// Groups of calls; a sequence uses some of them (swarm testing).
enum Group : uint32_t {
  kPlain = 1 << 0,
  kCopy = 1 << 1,
  kAsync = 1 << 2,
  kVmm = 1 << 3,
  kManaged = 1 << 4,
  kHost = 1 << 5,
  kArray = 1 << 6,
  kGraph = 1 << 7,
  kCapture = 1 << 8,
  kModule = 1 << 9,
  kTexture = 1 << 10,
  kQuery = 1 << 11,
  kStream = 1 << 12,
  kLaunch = 1 << 13,
  kContext = 1 << 14,  // slow: makes contexts
  kPeer = 1 << 15,     // several GPUs
  kDevice = 1 << 16,
  kThread = 1 << 17,  // not of calls: their threads
  kMemOp = 1 << 18,
  kOld = 1 << 19,  // the 32-bit interface, and what is obsolete
  kRare = 1 << 20,
  kIpc = 1 << 21,    // with a second process
  kGreen = 1 << 22,  // green contexts
  kNever = 1u << 31,
};

enum Trait : uint8_t {
  kNothing = 0,
  kRacy = 1,       // 0 and "not ready" are the same outcome
  kPerThread = 2,  // a null stream is the thread's own
  kCodeOnly = 4,   // only whether it succeeds is compared
};

struct Op {
  const char* symbol;
  const char* spec;
  uint32_t group;
  int weight;
  uint8_t traits = kNothing;
};

const std::vector<Op>& ops();
int op_of(std::string_view symbol);  // -1: none

}  // namespace conformance
