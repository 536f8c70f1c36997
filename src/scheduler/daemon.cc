#include "scheduler/daemon.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/cgroup_memory.h"
#include "cuda/nvml.h"
#include "protocol/admin.h"
#include "scheduler/log.h"
#include "scheduler/sockets/service_manager.h"
#include "scheduler/tenants/waiting_requests.h"
#include "scheduler/viewers/page_site.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kHousekeepingNs = 1'000'000'000;
// When no client has said anything for so long and no memory moved, GPUs and host are looked at more rarely, so that idle clients cost
// nothing. Whatever happens next, they are looked at at once.
constexpr int64_t kQuietAfterNs = 5'000'000'000;
constexpr int64_t kQuietIntervalNs = 2'000'000'000;
constexpr int64_t kQuietHousekeepingNs = 5'000'000'000;
// A dead process's memory is looked for this often, so that who waits for it has it soon.
constexpr int64_t kDepartedIntervalNs = 20'000'000;
// The earliest a deadline is served again, so that one that does not move cannot spin the daemon.
constexpr int64_t kDeadlineStepNs = 100'000;
constexpr int64_t kHandOverNs = 500'000'000;  // at its end, the longest wait for those that the GPU is handed to
constexpr int64_t kHandOverLookNs = 5'000'000;
constexpr int64_t kFailurePauseNs = 1'000'000'000;
constexpr size_t kMarksAtOnce = 250;
constexpr int64_t kOpenFilesMost = 1 << 20;
constexpr uint64_t kOwnMarginPart = 16;  // of the scheduler's own cgroup's limit
constexpr uint64_t kOwnMarginMin = uint64_t{64} << 20;

int64_t open_files_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kOpenFilesMost) return kOpenFilesMost;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t value_of(const bounds::Bound& bound, const Settings& settings) {
  if (bound.setting == nullptr) return bound.value;
  const std::string_view name = bound.setting;
  if (name == "connections_per_tenant") return settings.connections_per_tenant;
  if (name == "connections_per_user") return settings.connections_per_user;
  return settings.gpus_per_user;
}

uint64_t new_epoch() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// What is read of a client there is another process's where /proc was mounted for another PID namespace: each would be taken for somebody.
Result<void> check_that_proc_is_ours() {
  char self[32] = {};
  const ssize_t length = readlink("/proc/self", self, sizeof self - 1);
  if (length <= 0 || std::to_string(getpid()) == self) return {};
  return error_format(
      "/proc is of another PID namespace (process %d is %s there), so that nobody would know who connects; mount it anew, "
      "as 'unshare --mount-proc' does",
      getpid(), self);
}

HostBudget::Machine look_at_host() {
  std::ifstream stream("/proc/meminfo");
  std::ostringstream text;
  text << stream.rdbuf();
  HostBudget::Machine machine;
  machine.available = available_memory(text.str());
  CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited()) return machine;
  // Some of it is the scheduler's own need.
  const uint64_t margin = std::max(room.limit / kOwnMarginPart, kOwnMarginMin);
  machine.own_room = room.available > margin ? static_cast<int64_t>(room.available - margin) : 0;
  return machine;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::start(const Settings& settings, const char* nvml_library) {
  if (auto ok = check_that_proc_is_ours(); !ok) return ok.error();
  Result<RuntimeDir> runtime_dir = RuntimeDir::open(settings.runtime_dir, std::chrono::nanoseconds(settings.take_over_patience));
  if (!runtime_dir) return runtime_dir.error();
  std::unique_ptr<Daemon> daemon(new Daemon(settings, std::move(*runtime_dir)));
  if (auto ok = daemon->open(nvml_library); !ok) return ok.error();
  return daemon;
}

Daemon::Daemon(const Settings& settings, RuntimeDir runtime_dir)
    : settings_(settings),
      runtime_dir_(std::move(runtime_dir)),
      reports_(loop_, [this](bool begins) { return part_of_report(begins); }),
      deadline_timer_(loop_, [this] { call_engine([this] { engine_->deadline_reached(monotonic_ns()); }); }),
      housekeeping_timer_(loop_,
                          [this] {
                            call_engine([this] {
                              housekeeping_ = false;
                              if (engine_->housekeep(monotonic_ns(), false)) return;
                              housekeeping_ = true;
                              housekeeping_timer_.arm(monotonic_ns());  // whoever has said something meanwhile comes first
                            });
                          }),
      idle_timer_(loop_,
                  [this] {
                    if (has_runs(engine_->parts().tenants)) return idle_timer_.arm(monotonic_ns() + *settings_.exit_when_idle);
                    spdlog::info("no client for {:.1f} s: ending", static_cast<double>(*settings_.exit_when_idle) / 1e9);
                    loop_.stop();
                  }),
      end_timer_(loop_, [this] { end_once_handed_over(); }) {}

Daemon::~Daemon() {
  for (const auto& endpoint : endpoints_) endpoint->stop_asking();
}

Result<void> Daemon::open(const char* nvml_library) {
  Engine::Options options;
  options.settings = settings_;
  options.epoch = new_epoch();
  options.known_clients_file = runtime_dir_.known_clients_file();
  options.tenants_file = runtime_dir_.tenants_file();
  options.look_at_host = look_at_host;
  options.cgroup_reader = CgroupReader::here();
  segment_maker_ = std::make_unique<MemfdMaker>(
      loop_, MemfdMaker::Answers{[this](SegmentId segment, FileDescriptor memory) {
                                   call_engine([&] { engine_->host().made(segment, std::move(memory), monotonic_ns()); });
                                 },
                                 [this](SegmentId segment, bool still_held) {
                                   call_engine([&] { engine_->host().discarded(segment, still_held, monotonic_ns()); });
                                 }});
  options.segment_maker = segment_maker_.get();
  if (!settings_.trace_file.empty()) {
    Result<TraceWriter> trace = TraceWriter::open(settings_.trace_file, settings_.policy);
    if (!trace) return error_format("NVSHARE_TRACE (--trace): %.180s; accepted: a file to write to", trace.error().text);
    options.trace = std::make_unique<TraceWriter>(std::move(*trace));
  }
  if (settings_.nvml) start_nvml(nvml_library);
  if (monitor_) options.gpus = monitor_->gpus();
  if (monitor_) options.hooks.list_gpus = [this] { monitor_->list_mig_devices(); };
  if (auto ok = check_that_a_gpu_is_free(); !ok) return ok;
  options.hooks.ask_mps = [this](auto from, const auto& peer, const auto& group) { mps_->ask(from, peer.pid, {peer.uid, group}); };
  options.hooks.client_joined = [this](uid_t user) { mps_->joined(user); };

  // In this order: nvsharectl takes a scheduler that serves clients and no admin for one of which it sees only the clients' socket.
  Result<FileDescriptor> admin_listener = runtime_dir_.listen_admin();
  if (!admin_listener) return admin_listener.error();
  Result<FileDescriptor> client_listener = runtime_dir_.listen_clients();
  if (!client_listener) return client_listener.error();
  clients_ = std::make_unique<ClientSockets>(
      loop_, std::move(*client_listener),
      [this] {
        if (quiet()) housekeeping_ = false;  // and soon again
        active_at_ = monotonic_ns();
        after_engine();
      },
      ConnectionBounds::Limits{settings_.connections_per_tenant, settings_.connections_per_user}, open_files_max(),
      settings_.register_within);
  engine_ = std::make_unique<Engine>(std::move(options), *clients_, monotonic_ns());
  clients_->serve(*engine_);
  status_writer_ = std::make_unique<StatusWriter>(loop_, reports_);
  change_watch_ = std::make_unique<ChangeWatch>(loop_, [this](uint64_t changes) {
    for (const auto& endpoint : endpoints_) endpoint->changed(changes, changes_on_gpus());
  });
  admin_ = std::make_unique<AdminSockets>(loop_, std::move(*admin_listener), [this](std::string_view line, AdminSockets::Later later) {
    return answer(line, std::move(later));
  });
  start_mps();
  take_waiting_requests_about_jobs();
  if (auto ok = serve_http(); !ok) return ok;
  after_engine();
  return {};
}

ReportDesk::OnGpus Daemon::changes_on_gpus() const {
  const EngineParts& engine = engine_->parts();
  ReportDesk::OnGpus on_gpus;
  for (policy::GpuId id = 0; id < engine.gpus.size(); ++id) {
    if (engine.gpus[id].is_there()) on_gpus[engine.gpus[id].uuid_text] = engine.steps.changes_on(id);
  }
  return on_gpus;
}

void Daemon::take_waiting_requests_about_jobs() {
  const WaitingRequests waiting = take_waiting_requests(runtime_dir_.jobs_folder());
  for (const std::string& problem : waiting.problems) spdlog::warn("{}", problem);
  for (const protocol::admin::JobRequest& request : waiting.requests) {
    Result<policy::TenantId> id = engine_->orders().tell_of_job(request, monotonic_ns());
    if (!id) spdlog::info("job {}, told of while there was no scheduler: {}", request.job, id.error().text);
  }
}

// One endpoint for both where they have the same address.
Result<void> Daemon::serve_http() {
  HttpEndpoint::Options metrics, page;
  metrics.address = settings_.metrics_address;
  metrics.tenants_max = static_cast<size_t>(settings_.metrics_tenants);
  metrics.metrics = !settings_.metrics_address.empty();
  page.address = settings_.page_address;
  page.page = !settings_.page_address.empty();
  if (page.page && !settings_.page_token_file.empty()) {
    Result<std::string> token = read_page_token(settings_.page_token_file);
    if (!token) return token.error();
    page.page_token = *token;
  }
  if (page.page && page.address == metrics.address) {
    page.metrics = std::exchange(metrics.metrics, false);
    page.tenants_max = metrics.tenants_max;
  }
  if (metrics.metrics) {
    if (auto ok = serve_http(metrics); !ok) return ok;
  }
  return page.page ? serve_http(page) : Result<void>();
}

Result<void> Daemon::serve_http(const HttpEndpoint::Options& options) {
  auto endpoint = HttpEndpoint::serve(
      options, loop_,
      [this](int64_t age_max_ns, uint64_t changes_min, SharedReports::Then then) {
        reports_.ask(age_max_ns, changes_min, std::move(then));
      },
      [this](uint64_t after) -> std::optional<TraceRing::Copied> {
        if (engine_->parts().clients.all().size() > PastDesk::kClientsMax) return std::nullopt;
        return engine_->parts().steps.remembered(after, monotonic_ns());
      });
  if (!endpoint) return endpoint.error();
  if (options.metrics) spdlog::info("metrics at {}/metrics", (*endpoint)->url());
  if (options.page) spdlog::info("page at {}/", (*endpoint)->url());
  endpoints_.push_back(std::move(*endpoint));
  return {};
}

std::optional<protocol::admin::StatusReport> Daemon::part_of_report(bool begins) {
  const policy::Instant now = monotonic_ns();
  if (begins) begin_report(now);
  if (!to_mark_) {
    const bool is_complete = report_in_parts_->go_on(now);
    status_writer_->keep(report_in_parts_->take_outgrown());
    status_writer_->keep(report_in_parts_->take_outgrown_tenants());
    status_writer_->made(&report_in_parts_->clients());
    status_writer_->made(report_in_parts_->clients(), report_in_parts_->tenants(), is_complete);
    if (!is_complete) return std::nullopt;
    to_mark_ = std::exchange(report_in_parts_, nullptr)->take();
    complete(*to_mark_);
    change_marks_.begin(engine_->parts().steps.changes());
    return std::nullopt;
  }
  if (!change_marks_.mark_some(*to_mark_, kMarksAtOnce)) return std::nullopt;
  return std::exchange(to_mark_, std::nullopt);
}

void Daemon::begin_report(policy::Instant now) {
  if (real_time_) real_time_->needed();
  // What an error left.
  if (report_in_parts_) {
    for (ReportInParts::Clients& clients : report_in_parts_->take_clients()) status_writer_->keep(std::move(clients));
    for (ReportInParts::Tenants& tenants : report_in_parts_->take_tenants()) status_writer_->keep(std::move(tenants));
  }
  if (to_mark_) {
    status_writer_->keep(std::exchange(to_mark_->clients, {}));
    status_writer_->keep(std::exchange(to_mark_->tenants, {}));
    to_mark_.reset();
  }
  report_in_parts_ = std::make_unique<ReportInParts>(engine_->parts(), now);
  status_writer_->made(nullptr);
}

void Daemon::complete(protocol::admin::StatusReport& report) {
  report.version = NVSHARE_VERSION;
  report.pid = getpid();
  report.mps = mps_->report();
  report.bounds.connections = clients_->bounds().count();
  report.bounds.connections_refused = clients_->bounds().refused();
  report.bounds.reads_paused = clients_->bounds().reads_paused();
  for (const bounds::Bound& bound : bounds::kTable) report.bounds.values[bound.name] = value_of(bound, settings_);
}

void Daemon::start_nvml(const char* library) {
  Result<cuda::Nvml> nvml = cuda::Nvml::load(library);
  if (!nvml) {
    spdlog::info("{}; memory used by programs that are not clients is not seen", nvml.error().text);
    return;
  }
  monitor_ = std::make_unique<NvmlMonitor>(
      std::move(*nvml), loop_, [this](const std::vector<GpuSample>& samples) { sampled(samples); },
      [this](const std::vector<GpuUuid>& mig_devices) { call_engine([&] { engine_->gpus_listed(mig_devices, monotonic_ns()); }); });
}

void Daemon::start_mps() {
  MpsService::Options options{
      settings_.runtime_dir, settings_.mps,
      [this] { return engine_->parts().gpus.has_mig_devices() ? std::string("a GPU here is divided into MIG devices") : std::string(); }};
  MpsService::Callbacks callbacks{
      [this](MpsGroups::Asker asker, const protocol::MpsGroup& answer) { call_engine([&] { engine_->answer_mps(asker, answer); }); },
      [this](const MpsGroups::Attached& seen) { call_engine([&] { engine_->sharing().mps_seen(seen, monotonic_ns()); }); }};
  mps_ = std::make_unique<MpsService>(loop_, std::move(options), std::move(callbacks));
  if (settings_.mps && monitor_) monitor_->list_mig_devices();
}

void Daemon::sampled(const std::vector<GpuSample>& samples) {
  int64_t used = 0;
  for (const GpuSample& sample : samples) used += sample.used_after;
  if (std::abs(used - std::exchange(used_bytes_, used)) >= ForeignMemoryWatch::kStep) active_at_ = monotonic_ns();
  call_engine([&] { engine_->memory_sampled(samples, monotonic_ns()); });
}

bool Daemon::quiet() const { return engine_->parts().departures.is_empty() && monotonic_ns() - active_at_ > kQuietAfterNs; }

Result<void> Daemon::check_that_a_gpu_is_free() const {
  if (!monitor_ || monitor_->gpus().empty()) return {};
  Error last{};
  size_t number = 0;
  for (const FoundGpu& gpu : monitor_->gpus()) {
    char uuid[cuda::kUuidTextBytes];
    cuda::format_uuid(gpu.uuid, uuid);
    Result<GpuLock> lock = GpuLock::acquire(settings_.lock_dir, uuid, settings_.runtime_dir);  // and lets go of it
    if (lock) return {};
    last = error_format("GPU %zu: %s", number++, lock.error().text);
  }
  return last;
}

void Daemon::run() {
  spdlog::info("nvshare-scheduler serves {} (pid {})", settings_.runtime_dir, getpid());
  socket_guard_ =
      std::make_unique<SocketGuard>(loop_, runtime_dir_, [this](FileDescriptor listener) { clients_->listen_at(std::move(listener)); });
  notify_service_manager("READY=1");
  loop_.run();
  notify_service_manager("STOPPING=1");
  engine_->keep_accounts(monotonic_ns());
  spdlog::info("nvshare-scheduler ends; {} clients go on without it", engine_->parts().clients.all().size());
}

void Daemon::stop() {
  loop_.post([this] { loop_.stop(); });
}

void Daemon::stop_on_signals() {
  loop_.on_signals({SIGTERM, SIGINT}, [this](int signal) {
    spdlog::info("signal {}", signal);
    if (ends_by_ != 0) return loop_.stop();
    ends_by_ = monotonic_ns() + kHandOverNs;
    call_engine([this] { engine_->sharing().end(monotonic_ns()); });
    end_once_handed_over();
  });
}

void Daemon::go_before_others() {
  if (!settings_.real_time) return;
  auto real_time = RealTime::begin(loop_);
  if (real_time) {
    real_time_ = std::move(*real_time);
  } else {
    spdlog::info("real_time: {}; where all processors are busy, grants wait for one beside viewers (docs/tuning.md)",
                 real_time.error().text);
  }
}

// A client that gives up a load as this ends would wait for the next scheduler.
void Daemon::end_once_handed_over() {
  const int64_t now = monotonic_ns();
  if (now >= ends_by_ || !engine_->sharing().hands_over(now)) return loop_.stop();
  end_timer_.arm(now + kHandOverLookNs);
}

void Daemon::call_engine(const Callback& call) {
  try {
    call();
  } catch (const std::exception& problem) {
    deadline_not_before_ = monotonic_ns() + kFailurePauseNs;
    warnings_.warn("exception", monotonic_ns(), "an error of the scheduler's own: {}; it goes on", problem.what());
  }
  after_engine();
}

void Daemon::after_engine() {
  rearm();
  change_watch_->changed(engine_->parts().steps.changes());
  watch_memory();
  watch_idleness();
}

void Daemon::rearm() {
  std::optional<policy::Instant> deadline = engine_->next_deadline();
  if (!deadline) return deadline_timer_.cancel();
  deadline_timer_.arm(std::max({*deadline, monotonic_ns() + kDeadlineStepNs, deadline_not_before_}));
}

void Daemon::watch_memory() {
  const bool is_quiet = quiet();
  const int64_t interval = is_quiet ? std::max(settings_.nvml_interval, kQuietIntervalNs) : settings_.nvml_interval;
  if (monitor_) {
    const GpuLooks::Wanted look = engine_->to_look_at();
    monitor_->watch(look.in_use, look.shared_by_limits, engine_->parts().departures.is_empty() ? interval : kDepartedIntervalNs);
  }
  // Without a client nothing but the end of what `nvsharectl run` started is to be noticed, which may have had none.
  if ((!engine_->parts().clients.all().empty() || has_runs(engine_->parts().tenants)) && !std::exchange(housekeeping_, true)) {
    housekeeping_timer_.arm(monotonic_ns() + (is_quiet ? kQuietHousekeepingNs : kHousekeepingNs));
  }
}

void Daemon::watch_idleness() {
  if (!settings_.exit_when_idle) return;
  bool was_idle = std::exchange(idle_, engine_->parts().clients.all().empty());
  if (idle_ == was_idle) return;
  if (idle_) {
    idle_timer_.arm(monotonic_ns() + *settings_.exit_when_idle);
  } else {
    idle_timer_.cancel();
  }
}

std::optional<std::string> Daemon::answer(std::string_view line, AdminSockets::Later later) {
  try {
    return answer_request(line, std::move(later));
  } catch (const std::exception& problem) {
    warnings_.warn("admin exception", monotonic_ns(), "an error of the scheduler's own while it served an admin request: {}",
                   problem.what());
    return protocol::admin::encode_error(std::string("an error of the scheduler's own: ") + problem.what());
  }
}

void Daemon::answer_with_status(const protocol::admin::StatusRequest& request, AdminSockets::Later later) {
  const auto write = [this, later = std::move(later)](const StatusWriter::Wish& wish) { status_writer_->ask(wish, later); };
  if (request.within_ms == 0) return write({.brief = request.brief});
  const int64_t early_ns = request.early_ms * 1'000'000;
  const int64_t until = monotonic_ns() + request.within_ms * 1'000'000;
  const StatusWriter::Wish all{0, early_ns, request.changes, request.brief};
  // One of the others' may do: who is to have all of it soon takes it.
  if (until - early_ns <= monotonic_ns() && reports_.written(early_ns, request.changes, request.brief)) return write(all);
  change_watch_->wait(request.changes, until, early_ns, [write, all](uint64_t news) {
    write(news != 0 ? StatusWriter::Wish{all.changes_min, ChangeWatch::kApartNs, news, all.brief} : all);
  });
}

std::optional<std::string> Daemon::answer_request(std::string_view line, AdminSockets::Later later) {
  namespace admin = protocol::admin;
  Result<admin::Request> request = admin::decode_request(line);
  if (!request) return admin::encode_error(request.error().text);
  if (const auto* asked = std::get_if<admin::StatusRequest>(&*request)) {
    answer_with_status(*asked, std::move(later));
    return std::nullopt;
  }
  struct Answerer {
    Daemon& daemon;
    std::string operator()(const admin::StatusRequest&) const { return {}; }  // above
    std::string operator()(const admin::TraceRequest& asked) const {
      const TraceRing::Part part = daemon.engine_->parts().steps.recorded(asked, monotonic_ns());
      return admin::encode_trace_part({part.lines, part.next, part.more});
    }
    std::string operator()(const admin::TurnRequest& asked) const {
      const int64_t now = monotonic_ns();
      admin::TurnReport report = turn_report(daemon.engine_->parts(), asked.tenant, now);
      report.again_ms = daemon.turn_pace_.next(now) / 1'000'000;
      return admin::encode_turn(report);
    }
    std::string operator()(const admin::TenantRequest& tenant) const {
      Result<policy::TenantId> id = daemon.engine_->orders().add_run(tenant);
      daemon.after_engine();
      return id ? admin::encode_tenant(*id) : admin::encode_error(id.error().text);
    }
    std::string operator()(const admin::SetRequest& change) const {
      Result<void> ok = daemon.engine_->set(change, monotonic_ns());
      daemon.after_engine();
      return ok ? admin::encode_ok() : admin::encode_error(ok.error().text);
    }
    std::string operator()(const admin::PodsRequest& pods) const {
      Result<void> ok = daemon.engine_->orders().set_pods(pods, monotonic_ns());
      daemon.after_engine();
      if (ok && pods.notices_after) return admin::encode_notices(daemon.engine_->parts().notices.after(*pods.notices_after));
      return ok ? admin::encode_ok() : admin::encode_error(ok.error().text);
    }
    std::string operator()(const admin::JobRequest& job) const {
      Result<policy::TenantId> id = daemon.engine_->orders().tell_of_job(job, monotonic_ns());
      daemon.after_engine();
      return id ? admin::encode_tenant(*id) : admin::encode_error(id.error().text);
    }
    std::string operator()(const admin::ShutdownRequest&) const {
      spdlog::info("an admin request ends the scheduler");
      daemon.loop_.post([&loop = daemon.loop_] { loop.stop(); });  // after the answer
      return admin::encode_ok();
    }
  };
  return std::visit(Answerer{*this}, *request);
}

}  // namespace nvshare::scheduler
