// The questions that `probe` asks a machine before nvshare relies on the answers. Each prints JSON lines, one fact a line.
#pragma once

#include "program.h"

namespace gputest {

// probe_kernels.cc: whether the kernels compute what they should.
void probe_kernels(const Options& options);
// probe_memory.cc: what queries say about memory whose mapping comes and goes.
void probe_pointers(const Options& options);
// probe_capture.cc: what a helper thread may do while the program captures a stream; membarrier.
void probe_capture(const Options& options);
void probe_membarrier(const Options& options);
// probe_time.cc: what things cost.
void probe_alloc(const Options& options);
void probe_launch(const Options& options);
void probe_vmm_chunks(const Options& options);
void probe_pinning(const Options& options);
void probe_copies(const Options& options);

}  // namespace gputest
