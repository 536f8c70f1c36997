// A plan: a list of driver calls with symbolic arguments, made by generate.cc or read from text (a recording, a shrunk sequence). A call's
// text is one line, `[@THREAD ]SYMBOL argument ...`; an argument is `[~]KIND[:NUMBER]...`, `~` marks one that the call needs but that is
// not passed by itself (a struct's pointers).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace conformance {

enum class Kind : uint8_t {
  kInt,       // i:VALUE
  kFloat,     // flt:VALUE thousandths; passed in a floating-point register
  kNull,      // null
  kDst,       // dst:SLOT:OFFSET:WHOLE:SPAN   memory that the call writes; WHOLE 1: all of it
  kSrc,       // src:SLOT:OFFSET:SPAN         memory that the call reads
  kPtr,       // ptr:SLOT:OFFSET         memory that the call only names
  kFreed,     // freed:SLOT:OFFSET[:1|2] what was freed just before; :1: in stream order, too; :2: if it was waited for
  kLost,      // lost:SLOT:OFFSET        what was of a context that has just ended
  kHostPtr,   // hostp:OFFSET            a buffer of the program that the driver does not know
  kRegion,    // region:SLOT             page-aligned host memory for cuMemHostRegister
  kHostIn,    // hin:SEED:BYTES          a host buffer filled from the seed
  kHostOut,   // hout:BYTES              a host buffer that the call fills; its checksum is the outcome
  kHandle,    // LETTER:SLOT             an object
  kNew,       // +LETTER:SLOT[...]       where the call puts a new object; memory: +m:SLOT:KIND:BYTES:DEVICE
  kGone,      // -LETTER:SLOT            an object that is gone when the call succeeds
  kBind,      // bind:SLOT:KIND:BYTES:DEVICE:RESERVATION:OFFSET   memory that is there when the call succeeds; not passed
  kAt,        // at:RESERVATION:OFFSET   an address in a reservation
  kFunction,  // fn:WHICH                a kernel of the context's own module
  kParams,    // kp:WHICH:WORDS:SEED     its parameters
  kDeps,      // deps                    the last node of the call's graph
  kDepCount,  // ndeps
  kName,      // name:WHICH              one of a list of strings
  kOutInt,    // oi, oq, op, oh: where an int, a 64-bit word, an address, a handle comes back
  kOutWord,
  kOutPointer,
  kOutHandle,
  kOutText,       // oz:BYTES                where text is written
  kOutString,     // os                      where a pointer to text is written
  kOutBytes,      // ox:BYTES:SHOWN          where so many bytes come back, of which the first SHOWN are compared
  kOutAttribute,  // oattr:WHICH           a pointer attribute
  kPartner,       // partner:WHAT:SEED       what a second process does besides (partner.h)
  kStruct,        // STRUCT:...              one of structs.h
};

struct Arg {
  Kind kind = Kind::kInt;
  bool hidden = false;
  char letter = 0;    // of kHandle, kNew, kGone
  uint8_t shape = 0;  // of kStruct
  uint8_t count = 0;
  int64_t v[8] = {};
};

struct Call {
  int op = -1;  // index into the table of operations
  int thread = 0;
  std::vector<Arg> args;
};

using Plan = std::vector<Call>;

std::string text_of(const Call& call);
// Ends the process with a message if the text is none.
Call call_of(std::string_view text);

}  // namespace conformance
