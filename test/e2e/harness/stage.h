// A stage: one stand-in GPU, one scheduler and the programs that share it, all in private folders, so that any number of stages (and
// whatever else the machine runs) do not meet. What is left is killed at the end; when the test has failed the logs are printed.
// Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "e2e/harness/child.h"
#include "protocol/admin.h"

namespace nvshare::e2e {

using Environment = std::map<std::string, std::string>;
using Arguments = std::vector<std::string>;

// Longest wait for something that should come within moments, and for a whole test's work.
Duration moments();
Duration patience();

struct StageOptions {
  int gpu_memory_mb = 256;
  int context_mb = 4;
  int link_mbps = 8000;              // of the simulated link
  std::string switch_time = "0.05";  // seconds
  int reserve_percent = 20;          // of the GPU: contexts live there
  Environment scheduler;             // more settings, NVSHARE_...
  Environment gpu;                   // more of SIMGPU_...
};

// Paths of what was built; set by CMake.
extern const char* const kSchedulerPath;
extern const char* const kLibraryPath;
extern const char* const kStandInFolder;
extern const char* const kLinkedVideoPath;     // a library that is linked with that
extern const char* const kFakeVideoPath;       // a library that stands for libnvcuvid.so
extern const char* const kNewerStandInFolder;  // whose driver has functions that nvshare does not know
extern const char* const kWorkerPath;
extern const char* const kControlPath;  // nvsharectl
extern const char* const kNvmlViewerPath;
extern const char* const kNvmlLinkedViewerPath;
// Scheduler and library of the previous release: this one's of the previous protocol version, or what lies in the folder
// NVSHARE_TEST_PREVIOUS.
std::string previous_scheduler();
std::string previous_library();

class Stage {
 public:
  explicit Stage(StageOptions options = {});
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // ---- the scheduler ----
  // Returns when it answers; fails the test otherwise.
  void start_scheduler() { start_scheduler(kSchedulerPath); }
  void start_scheduler(const std::string& program);
  void kill_scheduler();  // SIGKILL
  void stop_scheduler();  // SIGTERM, waits for its end
  Child& scheduler() { return *scheduler_; }
  bool has_scheduler() const { return scheduler_ != nullptr; }
  std::optional<protocol::admin::StatusReport> status();  // nullopt: it does not answer (now)
  std::string raw_status();                               // as JSON, or why there is none
  std::string stacks_of(const Child& child) const;

  // ---- programs ----
  // The test's own CUDA program under libnvshare.so, in one of its modes (worker/main.cc).
  Child& start(const std::string& name, const Arguments& arguments, const Environment& more = {});
  // The same without libnvshare.so.
  Child& start_bare(const std::string& name, const Arguments& arguments, const Environment& more = {});
  // Under another libnvshare.so.
  Child& start_with(const std::string& library, const std::string& name, const Arguments& arguments, const Environment& more = {});
  // Any program; `preload`: with libnvshare.so.
  Child& start_command(const std::string& name, const std::vector<std::string>& command, bool preload, const Environment& more = {});
  // Several of the tests' programs as one tenant, as `nvsharectl run` makes one: children of a shell that the scheduler knows.
  Child& start_tenant(const std::string& name, const std::vector<Arguments>& members, int64_t memory_limit = 0, int core_limit = 100);
  // One of them, for which the node reserves so much.
  Child& start_reserved(const std::string& name, const Arguments& arguments, int64_t reserved);
  void forget(Child& child);  // takes it off the stage; kills its family

  // Programs that run until they are told end themselves after this.
  void tell_to_stop();
  void tell_to_go(const std::string& name);  // what waits for --go NAME goes on
  std::string go_file(const std::string& name) const { return directory_ + "/go-" + name; }

  bool anybody_ended();  // of the programs

  // Expects the program to end by itself, with all its bytes right and no CUDA error.
  void expect_success(Child& child);
  void expect_success_of_all();

  // Waits until `ready`, looked at every few milliseconds; false at the end of the patience.
  bool wait_until(const std::function<bool()>& ready, Duration longest);
  bool wait_until(const std::function<bool()>& ready) { return wait_until(ready, patience()); }
  // Until each has had so many turns more, or something has ended.
  bool wait_for_turns(const std::vector<const Child*>& children, uint64_t more);
  // Everything below that process is one tenant from now on, as under `nvsharectl run`.
  void make_tenant(const std::string& name, pid_t root, int64_t gpu_memory_limit = 0);
  // `nvsharectl set TENANT memory=...`; empty, or the refusal.
  std::string set_memory_limit(const std::string& tenant, int64_t bytes);
  // The client of a process as the scheduler reports it.
  std::optional<protocol::admin::ClientReport> client_of(pid_t pid);

  // What the stand-in GPU saw on this stage so far. Both must be 0: work that touched memory that was not there; work submitted where it
  // was forbidden.
  struct GpuCounters {
    uint64_t submissions = 0, violations = 0, faults = 0, used_bytes = 0;
  };
  GpuCounters gpu_counters();
  void expect_gpu_unharmed();
  void order_gpu(const std::string& order);  // simgpu/control.h, such as "set_faults copy_fail=1%"

  const std::string& directory() const { return directory_; }
  std::string runtime_directory() const { return directory_ + "/run"; }
  std::string trace_file() const { return directory_ + "/trace"; }
  Environment base_environment() const;

 private:
  Child& start_family(const std::string& name, const std::vector<Arguments>& members, protocol::admin::TenantRequest request);
  void print_logs();
  void replay_recording();

  StageOptions options_;
  std::string directory_;
  std::unique_ptr<Child> scheduler_;
  std::vector<std::unique_ptr<Child>> children_;
  int schedulers_ = 0;
};

}  // namespace nvshare::e2e
