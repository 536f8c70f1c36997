// What a libcuda.so.1 newer than nvshare's list of entry points has in the stand-in's second variant (<build>/simgpu-newer): 40 functions
// that no list knows, all of one signature, and some of those that CUDA 13.1 and 13.2 added.
#pragma once

// clang-format off
// Names that may touch memory or submit work; then names that only ask.
#define SIM_UNKNOWN_RISKY(X) \
  X(cuMemNew1) X(cuMemNew2) X(cuMemNew3) X(cuMemNew4) X(cuMemNew5) X(cuMemNew6) X(cuMemNew7) X(cuMemNew8) X(cuMemNew9) X(cuMemNew10) \
  X(cuMemcpyNewAsync) X(cuMemcpyNewAsync_ptsz) X(cuMemsetNewAsync) X(cuMemAlloc_v9) X(cuMemcpyAsync_v9) X(cuMemcpyAsync_v9_ptsz) \
  X(cuLaunchNew1) X(cuLaunchNew2) X(cuLaunchNew3) X(cuLaunchKernel_v9) X(cuGraphNew1) X(cuGraphNew2) X(cuGraphLaunch_v9) \
  X(cuMulticastNew1) X(cuMulticastNew2) X(cuStreamNewCapture) X(cuStreamNewWork) X(cuArrayNew) X(cuIpcNew) X(cuWhollyNewThing) \
  X(cuMemGetNewHandle)
#define SIM_UNKNOWN_HARMLESS(X) \
  X(cuDeviceGetNew1) X(cuDeviceGetNew2) X(cuGraphGetNew1) X(cuMemGetNewInfo) X(cuStreamGetNew) X(cuStreamQueryNew) X(cuCtxGetNew) \
  X(cuLogsNew) X(cuProfilerNew)
// clang-format on

namespace simgpu {

// Copies `bytes` from `source` to `to` in stream order, if the other arguments arrive as they are expected: they fill the registers, and go
// on on the stack.
struct UnknownArguments {
  static constexpr unsigned long long kWords[] = {0x1111111111111111, 0x2222222222222222, 0x3333333333333333, 0x4444444444444444};
  static constexpr double kNumbers[] = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5};
};
using UnknownCall = int (*)(unsigned long long to, unsigned long long source, unsigned long long bytes, void* stream, unsigned long long,
                            unsigned long long, unsigned long long, unsigned long long, double, double, double, double, double, double,
                            double, double, double);

}  // namespace simgpu
