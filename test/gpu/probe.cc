// Measures facts about a GPU, its driver and its kernel. `probe --only NAME`; without --only, all of them.
// Each runs in a process of its own: one that fails harms no other, and some must fork before CUDA is touched.
#include "probe.h"

#include <sys/wait.h>
#include <unistd.h>

namespace gputest {
namespace {

struct Probe {
  const char* name;
  void (*run)(const Options&);
};

constexpr Probe kProbes[] = {
    {"membarrier", probe_membarrier}, {"kernels", probe_kernels}, {"pointers", probe_pointers},
    {"capture", probe_capture},       {"alloc", probe_alloc},     {"launch", probe_launch},
    {"vmm_chunks", probe_vmm_chunks}, {"pinning", probe_pinning}, {"copies", probe_copies},
};

bool run_in_child(const Probe& probe, const Options& options) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    probe.run(options);
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0) {
    std::printf("{\"probe\": \"%s\", \"failed\": true, \"wait_status\": %d}\n", probe.name, status);
  }
  return status == 0;
}

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  const gputest::Options options(argc, argv);
  if (options.has("list")) {
    for (const gputest::Probe& probe : gputest::kProbes) {
      std::printf("%s\n", probe.name);
    }
    return 0;
  }
  const std::string only = options.text("only", "");
  bool found = false;
  bool passed = true;
  for (const gputest::Probe& probe : gputest::kProbes) {
    if (only.empty() || only == probe.name) {
      passed = gputest::run_in_child(probe, options) && passed;
      found = true;
    }
  }
  if (!found) {
    std::fprintf(stderr, "no probe '%s'; --list names them\n", only.c_str());
    return 2;
  }
  return passed ? 0 : 1;
}
