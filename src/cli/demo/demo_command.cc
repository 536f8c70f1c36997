#include "cli/demo/demo_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "cli/demo/plan.h"
#include "cli/demo/progress_view.h"
#include "cli/demo/report.h"
#include "cli/demo/runner.h"
#include "cli/demo/stage.h"
#include "cli/units.h"

namespace nvshare::cli::demo {
namespace {

int terminal_columns() {
  winsize size{};
  if (isatty(STDERR_FILENO) == 0 || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col > 40 ? size.ws_col : 0;
}

uint64_t available_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

class Demo {
 public:
  Demo(const Installation& installation, const Stage& stage, const Plan& plan)
      : installation_(installation), stage_(stage), view_(stderr, terminal_columns()) {
    outcome_.gpu = stage.gpu();
    outcome_.plan = plan;
  }

  Result<Outcome> play(bool paging) {
    fmt::print(stderr, "nvshare demo: {} jobs that need {} each, on {} with {}{}\n", plan().jobs, format_bytes(plan().job_bytes),
               outcome_.gpu.stand_in ? "a stand-in GPU" : outcome_.gpu.name, format_bytes(plan().gpu_bytes),
               plan().configured ? fmt::format(" (configured; it has {})", format_bytes(outcome_.gpu.total)) : "");
    if (auto ok = play_solo(); !ok) return ok.error();
    if (auto ok = play_shared(); !ok) return ok.error();
    if (paging && plan().paging_limit_s > 0) {
      if (auto ok = play_paging(); !ok) return ok.error();
    }
    return std::move(outcome_);
  }

 private:
  const Plan& plan() const { return outcome_.plan; }

  JobSpec job(int index, const char* memory, const Environment& environment) const {
    JobSpec spec{{stage_.job_program()}, environment};
    for (std::string& argument : job_arguments(plan(), index, memory)) spec.argv.push_back(std::move(argument));
    return spec;
  }

  std::vector<JobSpec> all_jobs(const char* memory, const Environment& environment) const {
    std::vector<JobSpec> specs;
    for (int i = 0; i < plan().jobs; ++i) specs.push_back(job(i, memory, environment));
    return specs;
  }

  static std::vector<JobLine> lines_of(const std::vector<JobState>& jobs) {
    std::vector<JobLine> lines;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const char* state = !jobs[i].ended ? "running" : jobs[i].succeeded() ? "done" : "failed";
      lines.push_back({fmt::format("job {}", i + 1), jobs[i].done, state});
    }
    return lines;
  }

  static Result<void> check_interrupt(const PhaseResult& result) {
    if (result.interrupted) return error_format("interrupted");
    return {};
  }

  Result<void> play_solo() {
    view_.begin("One after the other:");
    double before_s = 0;
    for (int i = 0; i < plan().jobs; ++i) {
      const Observer observer = [&](const std::vector<JobState>& jobs, double elapsed_s) {
        std::vector<JobLine> lines = lines_of(outcome_.solo);
        std::vector<JobLine> current = lines_of(jobs);
        current.front().label = fmt::format("job {}", i + 1);
        lines.push_back(current.front());
        view_.show(lines, before_s + elapsed_s);
      };
      auto result = run_jobs({job(i, "plain", stage_.environment())}, 0, observer);
      if (!result) return result.error();
      if (auto ok = check_interrupt(*result); !ok) return ok;
      const JobState& state = result->jobs.front();
      outcome_.solo.push_back(state);
      before_s += state.wall_s;
      if (!state.succeeded()) {
        return error_format("job %d failed when run alone (exit code %d): %.180s", i + 1, state.exit_code, state.last_words.c_str());
      }
    }
    view_.end(fmt::format("{:.1f} s in all, GPU at least {:.0f} % busy", outcome_.sequential_s(), 100 * outcome_.solo_busy_min()));
    return {};
  }

  Result<void> play_shared() {
    auto scheduler = DemoScheduler::start(installation_, stage_, plan());
    if (!scheduler) return scheduler.error();
    view_.begin(fmt::format("Under nvshare, all at once, turns of {:.1f} s:", plan().switch_time_s));
    const Observer observer = [&](const std::vector<JobState>& jobs, double elapsed_s) {
      std::vector<JobLine> lines = lines_of(jobs);
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (!jobs[i].ended) lines[i].state = jobs[i].done > 0 ? "ending" : "starting";  // unless the scheduler knows it
      }
      if (auto status = scheduler->status()) describe_clients(*status, jobs, lines);
      view_.show(lines, elapsed_s);
    };
    auto result = run_jobs(all_jobs("plain", scheduler->environment()), 0, observer);
    if (!result) return result.error();
    outcome_.shared = std::move(*result);
    if (auto ok = check_interrupt(outcome_.shared); !ok) return ok;
    auto status = scheduler->status();
    if (!status) return status.error();
    for (const auto& gpu : status->gpus) outcome_.switches += gpu.switches;
    view_.end(fmt::format("{:.1f} s, {} switches", outcome_.shared.wall_s, outcome_.switches));
    return {};
  }

  static void describe_clients(const protocol::admin::StatusReport& status, const std::vector<JobState>& jobs,
                               std::vector<JobLine>& lines) {
    for (const auto& client : status.clients) {
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (jobs[i].pid != client.pid || jobs[i].ended) continue;
        lines[i].state =
            fmt::format("{:8} {} on the GPU, {} in host memory", client.state, format_bytes(static_cast<uint64_t>(client.resident)),
                        format_bytes(static_cast<uint64_t>(client.swapped)));
      }
    }
  }

  Result<void> play_paging() {
    view_.begin(fmt::format("Demand paging without turns (managed memory), all at once, at most {:.0f} s:", plan().paging_limit_s));
    const Observer observer = [&](const std::vector<JobState>& jobs, double elapsed_s) { view_.show(lines_of(jobs), elapsed_s); };
    auto result = run_jobs(all_jobs("managed", stage_.environment()), plan().paging_limit_s, observer);
    if (!result) return result.error();
    if (auto ok = check_interrupt(*result); !ok) return ok;
    view_.end(result->cut_off ? fmt::format("cut off after {:.1f} s", result->wall_s) : fmt::format("{:.1f} s", result->wall_s));
    outcome_.paging = std::move(*result);
    return {};
  }

  const Installation& installation_;
  const Stage& stage_;
  ProgressView view_;
  Outcome outcome_;
};

}  // namespace

int demo_command(const DemoOptions& options) {
  auto fail = [](const Error& error) {
    fmt::print(stderr, "nvshare demo: {}\n", error.text);
    return 1;
  };
  auto installation = Installation::of_this_program();
  if (!installation) return fail(installation.error());
  auto stage = Stage::open(*installation, options.stand_in);
  if (!stage) return fail(stage.error());
  const Plan plan = make_plan(stage->gpu(), available_host_memory(), options.jobs);
  auto outcome = Demo(*installation, *stage, plan).play(options.paging);
  if (!outcome) return fail(outcome.error());
  if (getloadavg(&outcome->load_average, 1) == 1) outcome->processors = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));

  const std::vector<std::string> failures = failures_of(*outcome);
  fmt::print("{}\n", options.json ? json_of(*outcome) : draw_outcome(*outcome));
  std::fflush(stdout);
  for (const std::string& failure : failures) fmt::print(stderr, "nvshare demo: {}\n", failure);
  return failures.empty() ? 0 : 1;
}

}  // namespace nvshare::cli::demo
