// The modes of the test's CUDA program; each returns when its work is done and every byte was right. The comment of each, where it is
// defined, says what it does.
#pragma once

#include "e2e/worker/options.h"

namespace nvshare::e2e {

void run_mix(const Options& options);
void run_race(const Options& options);
void run_graph(const Options& options);
void run_recapture(const Options& options);
void run_capture_allocation(const Options& options);
void run_contexts(const Options& options);
void run_reset(const Options& options);
void run_churn(const Options& options);
void run_replace(const Options& options);
void run_free_while_loading(const Options& options);
void run_free_and_stay(const Options& options);
void run_pending_frees(const Options& options);
void run_grow(const Options& options);
void run_limit(const Options& options);
void run_limit_kinds(const Options& options);
void run_limit_churn(const Options& options);
void run_limit_follow(const Options& options);
void run_limit_view(const Options& options);
void run_fork(const Options& options);
void run_fork_beside_graphs(const Options& options);
void run_free_while_the_gpu_waits(const Options& options);
void run_failing_context(const Options& options);
void run_absurd_sizes(const Options& options);
void run_free_in_a_callback(const Options& options);
void run_unread(const Options& options);
void run_no_threads(const Options& options);
void run_destroy_while_the_gpu_waits(const Options& options);
void run_allocate_beside_a_capture(const Options& options);
void run_frees_of_captures(const Options& options);
void run_green_while_the_gpu_waits(const Options& options);
void run_signals(const Options& options);
void run_closes(const Options& options);
void run_cancelled_in_a_free(const Options& options);
void run_submits_at_the_end(const Options& options);
void run_cancelled(const Options& options);
void run_few_descriptors(const Options& options);
void run_range_attributes(const Options& options);
void run_arrays_that_stay(const Options& options);
void run_allocate_while_the_gpu_waits(const Options& options);
void run_another_context(const Options& options);
void run_leave(const Options& options);
void run_hold(const Options& options);
void run_serve(const Options& options);
void run_meet(const Options& options);
void run_leave_gpu(const Options& options);
void run_expandable(const Options& options);
void run_handles(const Options& options);
void run_vmm_churn(const Options& options);
void run_vmm_errors(const Options& options);
void run_pool_export(const Options& options);
void run_pool_import(const Options& options);
void run_vmm_export(const Options& options);
void run_vmm_import(const Options& options);
void run_vmm_limit(const Options& options);
void run_endless(const Options& options);
void run_interpreter_lock(const Options& options);
void run_crowd(const Options& options);
void run_cells(const Options& options);
void run_ipc_export(const Options& options);
void run_ipc_import(const Options& options);
void run_ipc_close_while_the_gpu_waits(const Options& options);
void run_ipc_close_elsewhere(const Options& options);
void run_ipc_close_unseen(const Options& options);
void run_ipc_export_freed(const Options& options);
void run_ipc_import_freed(const Options& options);
void run_ipc_refused(const Options& options);
void run_ipc_ordered(const Options& options);
void run_peer(const Options& options);
void run_pointers(const Options& options);
void run_arrays(const Options& options);
void run_load(const Options& options);
void run_managed(const Options& options);
void run_graph_memory(const Options& options);
void run_pools(const Options& options);
void run_ending_pools(const Options& options);
void run_bursts(const Options& options);
void run_steady(const Options& options);
void run_eager_threads(const Options& options);
void run_streams(const Options& options);
void run_sizes(const Options& options);
void run_two_contexts(const Options& options);
void open_session_early(const Options& options);
void load_library_early(const Options& options);
void run_session(const Options& options);
void run_newer_driver(const Options& options);
void run_newer_versions(const Options& options);

// The primary context of GPU 0, current in this thread.
CUcontext retain_primary();

}  // namespace nvshare::e2e
