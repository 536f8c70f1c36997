// The tests' CUDA program. It ends with the line "all right" and status 0 when every byte was right and no call failed.
#include <cinttypes>

#include "e2e/worker/modes.h"
#include "simgpu/control.h"

namespace nvshare::e2e {
namespace {

struct Mode {
  const char* name;
  void (*run)(const Options& options);
};

// What the stand-in GPU saw of all processes so far, or with --set TEXT: an order to it. Needs no context.
int control(const Options& options) {
  if (std::string order = options.text("set", ""); !order.empty()) {
    return simgpu_control(order.c_str(), nullptr) == 0 ? 0 : kExitUnexpected;
  }
  for (const char* name : {"all_submissions", "all_violations", "all_faults", "used_bytes"}) {
    uint64_t value = 0;
    if (simgpu_control(name, &value) != 0) fail(kExitUnexpected, "the stand-in has no %s", name);
    std::printf("%s %" PRIu64 "\n", name, value);
  }
  return 0;
}

constexpr Mode kModes[] = {
    {"mix", run_mix},
    {"race", run_race},
    {"graph", run_graph},
    {"capture-allocation", run_capture_allocation},
    {"contexts", run_contexts},
    {"reset", run_reset},
    {"grow", run_grow},
    {"limit", run_limit},
    {"limit-kinds", run_limit_kinds},
    {"limit-churn", run_limit_churn},
    {"limit-follow", run_limit_follow},
    {"limit-view", run_limit_view},
    {"fork", run_fork},
    {"fork-beside-graphs", run_fork_beside_graphs},
    {"free-while-the-gpu-waits", run_free_while_the_gpu_waits},
    {"failing-context", run_failing_context},
    {"absurd-sizes", run_absurd_sizes},
    {"free-in-a-callback", run_free_in_a_callback},
    {"unread", run_unread},
    {"no-threads", run_no_threads},
    {"destroy-while-the-gpu-waits", run_destroy_while_the_gpu_waits},
    {"allocate-beside-a-capture", run_allocate_beside_a_capture},
    {"frees-of-captures", run_frees_of_captures},
    {"green-while-the-gpu-waits", run_green_while_the_gpu_waits},
    {"signals", run_signals},
    {"closes", run_closes},
    {"cancelled-in-a-free", run_cancelled_in_a_free},
    {"submits-at-the-end", run_submits_at_the_end},
    {"cancelled", run_cancelled},
    {"few-descriptors", run_few_descriptors},
    {"range-attributes", run_range_attributes},
    {"arrays-that-stay", run_arrays_that_stay},
    {"allocate-while-the-gpu-waits", run_allocate_while_the_gpu_waits},
    {"another-context", run_another_context},
    {"leave", run_leave},
    {"churn", run_churn},
    {"recapture", run_recapture},
    {"replace", run_replace},
    {"free-while-loading", run_free_while_loading},
    {"free-and-stay", run_free_and_stay},
    {"pending-frees", run_pending_frees},
    {"hold", run_hold},
    {"serve", run_serve},
    {"meet", run_meet},
    {"leave-gpu", run_leave_gpu},
    {"expandable", run_expandable},
    {"handles", run_handles},
    {"vmm-errors", run_vmm_errors},
    {"pool-export", run_pool_export},
    {"pool-import", run_pool_import},
    {"vmm-export", run_vmm_export},
    {"vmm-import", run_vmm_import},
    {"vmm-limit", run_vmm_limit},
    {"endless", run_endless},
    {"interpreter-lock", run_interpreter_lock},
    {"crowd", run_crowd},
    {"cells", run_cells},
    {"ipc-export", run_ipc_export},
    {"ipc-import", run_ipc_import},
    {"ipc-close-while-the-gpu-waits", run_ipc_close_while_the_gpu_waits},
    {"ipc-close-elsewhere", run_ipc_close_elsewhere},
    {"ipc-close-unseen", run_ipc_close_unseen},
    {"ipc-export-freed", run_ipc_export_freed},
    {"ipc-import-freed", run_ipc_import_freed},
    {"ipc-refused", run_ipc_refused},
    {"ipc-ordered", run_ipc_ordered},
    {"peer", run_peer},
    {"pointers", run_pointers},
    {"arrays", run_arrays},
    {"load", run_load},
    {"managed", run_managed},
    {"graph-memory", run_graph_memory},
    {"pools", run_pools},
    {"ending-pools", run_ending_pools},
    {"bursts", run_bursts},
    {"steady", run_steady},
    {"eager-threads", run_eager_threads},
    {"streams", run_streams},
    {"sizes", run_sizes},
    {"two-contexts", run_two_contexts},
    {"session", run_session},
    {"newer-driver", run_newer_driver},
    {"newer-versions", run_newer_versions},
    {"vmm-churn", run_vmm_churn},
};

int run(int argc, char** argv) {
  Options options(argc, argv);
  if (options.mode() == "control") return control(options);
  for (const Mode& mode : kModes) {
    if (options.mode() != mode.name) continue;
    if (options.text("session", "") == "first") open_session_early(options);
    if (options.text("session", "") == "loaded") load_library_early(options);
    open_cuda(reach_named(options.text("reach", "link")));
    mode.run(options);
    say("all right");
    return 0;
  }
  fail(kExitUsage, "there is no mode '%s'", options.mode().c_str());
}

}  // namespace

CUcontext retain_primary() {
  CUcontext context = nullptr;
  check(cuda().cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  return context;
}

}  // namespace nvshare::e2e

int main(int argc, char** argv) { return nvshare::e2e::run(argc, argv); }
