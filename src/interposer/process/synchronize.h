// Waiting for the GPU work of the program, without ever meeting a capture.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/process/captures.h"
#include "interposer/process/contexts.h"

namespace nvshare::interposer {

class Process;

// Waits for all work of all contexts on that GPU, or of the process (kAllGpus): any GPU may use any other's memory. Contexts are pinned
// meanwhile. False: a stream captures, or a context is on its way out; not all was waited for.
bool synchronize(Contexts& contexts, Captures& captures, int ordinal);

// Earlier GPU work of that context is done on return (null: of the current one). False: a stream captures, so nothing may be waited for.
bool synchronize_before_free(Captures& captures, cuda::CUcontext context, cuda::CUresult* result);

// What was freed or closed beside a capture has no event of ours, as none may be recorded there: it is given back once the GPU has ended
// all that the program has submitted. As the GPU may wait for the thread that needs the memory, another one waits, however long, and lives
// no longer than that. While something captures it is put off: who ends a capture, or needs the memory, asks again. False: no thread could
// be started.
bool settle(Process& process);
// While it lives, what was freed or closed is given back, and no longer in the books of what waits. False: not any more, the program ends.
// Nobody waits for the GPU meanwhile.
class GivingBack {
 public:
  explicit GivingBack(const Process& process);
  ~GivingBack();
  GivingBack(const GivingBack&) = delete;
  GivingBack& operator=(const GivingBack&) = delete;
  explicit operator bool() const { return may_; }

 private:
  bool may_ = false;
};
bool settle_gives_back();
// The program ends, and process.ending() says so. Waits for what is given back just now.
void settling_ends(int64_t patience_ns);
void settling_reset_after_fork();  // the child has one thread

// While something captured, imports were closed or the driver was asked for much of the least memory, and settle() is due.
inline constinit std::atomic<bool> imports_leave{false};
inline void settle_imports(Process& process) {
  if (imports_leave.load(std::memory_order_relaxed) && imports_leave.exchange(false, std::memory_order_acq_rel)) settle(process);
}

}  // namespace nvshare::interposer
