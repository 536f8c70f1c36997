// A second process of the program. It opens what the first one hands over (memory by IPC handles, memory handles, pools, events), hands
// over memory of its own, and tells what the driver answered it. Not thread-safe: one question at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace conformance {

// What the partner is asked to do; in a plan `partner:NUMBER:...`.
enum class Exchange : int {
  kRead,          // opens the memory of an IPC handle, reads, closes it
  kWrite,         // the same, and writes
  kKeep,          // opens it into a slot of its own
  kKeptRead,      // what it keeps open: reads
  kKeptWrite,     // writes
  kKeptClose,     // closes
  kBorrow,        // allocates memory, fills it and hands it over
  kBorrowedRead,  // reads what it handed over
  kGiveBack,      // frees it
  kHandle,        // imports a memory handle, maps it, reads, takes it away
  kMakeHandle,    // makes a memory handle, fills it and hands it over
  kPool,          // imports a pool and a pointer of it, reads, frees
  kEvent,         // opens an event's handle, waits for it, destroys it
  kFork,          // not the partner: a child of the first process makes calls of its own
  kGreen,         // the program alone: a green context of all multiprocessors
  kGreenEnd,      // destroys it
  kBare,          // a new process without a context makes a memory handle and hands it over
  kCloseAll,      // closes what it keeps open
  kFreeAll,       // frees what it handed over
};

inline constexpr int kKeptSlots = 4;
inline constexpr int kBorrowedSlots = 24;  // one for each slot of memory

struct Request {
  Exchange what = Exchange::kRead;
  int slot = 0;
  uint64_t offset = 0, bytes = 0, seed = 0;  // bytes
  unsigned char data[64] = {};               // an IPC handle or a pool's export data
};

struct Reply {
  int codes[12] = {};  // of its calls, in their order, up to the first that failed, and of those that take away
  int count = 0;
  uint64_t sum = 0;             // checksum of what was read
  unsigned char data[64] = {};  // an IPC handle

  int first_failure() const {  // 0: there is none
    for (int i = 0; i < count; ++i) {
      if (codes[i] != 0) {
        return codes[i];
      }
    }
    return 0;
  }
};

// Ends when the object is gone.
class Partner {
 public:
  // Starts the process; before the program has loaded a driver.
  Partner();
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  // Asks and waits. `descriptor`: -1 or one that goes along (it is not closed); what came back, or -1. False: the partner is gone.
  bool ask(const Request& request, Reply& reply, int& descriptor);

 private:
  int socket_ = -1;
  pid_t process_ = -1;
};

// A process that has no context, ever: makes a memory handle, hands it over, and ends. What it got from the driver, -1 where it did not end
// well; `descriptor`: of the handle, or -1.
void ask_bare(const Request& request, Reply& reply, int& descriptor);
// That process; `socket` is its end.
[[noreturn]] void serve_bare(int socket);

// What a child made by fork() gets from the driver: the codes of a few calls, -1 where it did not end in 10 s.
void ask_child(Reply& reply);

}  // namespace conformance
