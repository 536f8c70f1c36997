// A kernel with its arguments.
#pragma once

#include <array>

#include "simgpu/core.h"
#include "simgpu/kernels.h"

namespace simgpu {

inline constexpr int kAnyDevice = -1;

// Behind CUfunction and CUkernel: one for each kernel and device, the same in all modules that were loaded there.
struct Function {
  const KernelDefinition* kernel;
  int device;  // of the context that its module was loaded into
};

// Null: no such kernel.
Function* find_function(const char* name);

class KernelWork : public Work {
 public:
  KernelWork(const KernelDefinition& kernel, const std::array<uint64_t, kMaxParameters>& arguments, Context* context)
      : kernel_(kernel), arguments_(arguments), context_(context) {}
  void run(Execution& execution) const override;
  void spans(std::vector<Span>& out) const override;
  bool instant() const override { return kernel_.compute == nullptr && kernel_.duration == kNoParameter; }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_KERNEL; }
  const char* name() const override { return kernel_.name; }
  const KernelDefinition& kernel() const { return kernel_; }

 private:
  const KernelDefinition& kernel_;
  const std::array<uint64_t, kMaxParameters> arguments_;
  Context* const context_;  // in which it was made: a graph's runs there, whatever stream the graph is launched in
};

// Reads the arguments the way the driver takes them; null: they are not given. `context`: where it runs, or null.
WorkPtr make_kernel(const Function& function, void** parameters, void** extra, Context* context);

}  // namespace simgpu
