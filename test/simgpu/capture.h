// Stream capture: what a capturing stream records instead of running, and what other calls must not do meanwhile.
//
// Measured on a driver 580 (and stricter than its documentation): while a thread captures in global mode, a synchronisation or query by any
// thread that is not in relaxed mode returns 900 and ruins the capture.
#pragma once

#include <pthread.h>

#include "simgpu/core.h"

namespace simgpu {

class Capture {
 public:
  Capture(Stream& origin, CUstreamCaptureMode mode, Graph* graph, bool owns_graph);

  const uint64_t id;
  const CUstreamCaptureMode mode;
  Stream& origin;
  const pthread_t thread;
  Graph* const graph;
  const bool owns_graph;
  std::vector<Stream*> members;  // guarded by Context::mutex
  std::atomic<bool> invalid{false};

  // All its streams leave it. With Context::mutex held.
  void finish();
  // With Context::mutex held.
  CUresult add(Stream& stream, WorkPtr work);
  CUresult join(Stream& stream, const std::vector<GraphNode*>& nodes);
  // The stream is destroyed. The capture is ruined; if it began on that stream it has ended too, because nobody else can end it (what a
  // real driver does then was not measured).
  void lose(Stream& stream);
};

// The check at the head of every potentially unsafe call. 900 after ruining the captures that forbid it.
CUresult check_unsafe_call();
// For a synchronisation or query of this stream: also 900 and ruin when the stream itself captures, in every mode.
CUresult check_synchronisation(Stream& stream);
// For a copy or fill that blocks: only the stream's own capture and, on the legacy stream, one that waits for it are in its way; a driver
// does not count it among the unsafe calls (bench/results/h200-captures-and-blocking-copies.txt).
CUresult check_blocking_copy(Stream& stream);
// The same as check_synchronisation for a whole context.
CUresult check_synchronisation(Context& context);
// For memory in the order of a stream that does not capture: 906 and ruin on the legacy stream while one captures that waits for it, else
// as check_unsafe_call (bench/results/h200-answers.json).
CUresult check_memory_in_order(Stream& stream);

}  // namespace simgpu
