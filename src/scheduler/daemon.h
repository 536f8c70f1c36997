// The scheduler as a whole: sockets, timers, NVML and signals around an Engine. Also run inside tests.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "loop/event_loop.h"
#include "protocol/report_changes.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/gpus/mps_service.h"
#include "scheduler/gpus/nvml_monitor.h"
#include "scheduler/host/segment_maker.h"
#include "scheduler/real_time.h"
#include "scheduler/settings.h"
#include "scheduler/sockets/admin_sockets.h"
#include "scheduler/sockets/ask_pace.h"
#include "scheduler/sockets/client_sockets.h"
#include "scheduler/sockets/runtime_dir.h"
#include "scheduler/sockets/socket_guard.h"
#include "scheduler/viewers/change_watch.h"
#include "scheduler/viewers/http_endpoint.h"
#include "scheduler/viewers/shared_reports.h"
#include "scheduler/viewers/status_writer.h"

namespace nvshare::scheduler {

class Daemon {
 public:
  // Everything that can go wrong at start does so here; afterwards clients can connect. `nvml_library`: what to load NVML from.
  static Result<std::unique_ptr<Daemon>> start(const Settings& settings, const char* nvml_library = "libnvidia-ml.so.1");

  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Until a signal, an admin's shutdown, idleness (if set) or stop().
  void run();
  void stop();  // any thread
  void stop_on_signals();
  // While there are viewers, and where settings and kernel let it; one daemon in a process. On the thread that calls run().
  void go_before_others();

 private:
  Daemon(const Settings& settings, RuntimeDir runtime_dir);
  Result<void> open(const char* nvml_library);
  void start_nvml(const char* library);
  void start_mps();
  ReportDesk::OnGpus changes_on_gpus() const;
  void take_waiting_requests_about_jobs();
  Result<void> serve_http();
  Result<void> serve_http(const HttpEndpoint::Options& options);
  std::optional<protocol::admin::StatusReport> part_of_report(bool begins);  // SharedReports::LookInParts
  void begin_report(policy::Instant now);
  void complete(protocol::admin::StatusReport& report);
  Result<void> check_that_a_gpu_is_free() const;
  void call_engine(const Callback& call);  // and what follows from it; no exception comes out
  void after_engine();
  void rearm();
  void watch_memory();
  bool quiet() const;
  void sampled(const std::vector<GpuSample>& samples);
  void watch_idleness();
  void end_once_handed_over();
  // As AdminSockets has it; no exception comes out.
  std::optional<std::string> answer(std::string_view line, AdminSockets::Later later);
  std::optional<std::string> answer_request(std::string_view line, AdminSockets::Later later);
  void answer_with_status(const protocol::admin::StatusRequest& request, AdminSockets::Later later);

  std::vector<std::unique_ptr<HttpEndpoint>> endpoints_;  // end last: nobody who comes back waits for them
  Settings settings_;
  RuntimeDir runtime_dir_;
  EventLoop loop_;  // outlives what watches descriptors
  std::unique_ptr<RealTime> real_time_;
  std::unique_ptr<ClientSockets> clients_;
  std::unique_ptr<SocketGuard> socket_guard_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MemfdMaker> segment_maker_;
  SharedReports reports_;
  // For reports_. Both end after who writes their clients.
  std::unique_ptr<ReportInParts> report_in_parts_;
  std::optional<protocol::admin::StatusReport> to_mark_;  // complete but for its marks
  std::unique_ptr<StatusWriter> status_writer_;
  std::unique_ptr<ChangeWatch> change_watch_;
  protocol::admin::ChangeMarks change_marks_;
  AskPace turn_pace_;
  std::unique_ptr<AdminSockets> admin_;
  std::unique_ptr<NvmlMonitor> monitor_;
  Timer deadline_timer_;
  Timer housekeeping_timer_;
  Timer idle_timer_;
  Timer end_timer_;
  bool housekeeping_ = false;
  int64_t active_at_ = 0;   // CLOCK_MONOTONIC ns: a client said something, or memory on a GPU moved
  int64_t used_bytes_ = 0;  // on the GPUs that were last looked at, together
  bool idle_ = false;
  int64_t ends_by_ = 0;              // it was told to end, and does by then
  int64_t deadline_not_before_ = 0;  // after a failure: what cannot be served must not spin the daemon
  RepeatedWarnings warnings_;
  std::unique_ptr<MpsService> mps_;  // ends first: what it started is ended while the folder is still ours
};

}  // namespace nvshare::scheduler
