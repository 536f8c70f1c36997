#include "cli/demo/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "cli/units.h"

namespace nvshare::cli::demo {
namespace {

constexpr double kBusyLoads = 2;  // programs for each processor, from which on the demo is one of many

double rounded(double value) { return std::round(value * 1000) / 1000; }

std::string seconds(double value) { return fmt::format("{:.1f} s", value); }

int equal_results(const std::vector<JobState>& solo, const std::vector<JobState>& jobs) {
  int equal = 0;
  for (size_t i = 0; i < jobs.size() && i < solo.size(); ++i) {
    if (jobs[i].succeeded() && solo[i].succeeded() && jobs[i].checksum == solo[i].checksum) ++equal;
  }
  return equal;
}

std::string done_of(const std::vector<JobState>& jobs) {
  double sum = 0;
  for (const JobState& job : jobs) sum += job.done;
  return fmt::format("{:.0f} % done", 100 * sum / static_cast<double>(std::max<size_t>(jobs.size(), 1)));
}

std::string results_of(const Outcome& outcome, const std::vector<JobState>& jobs) {
  return fmt::format("{} of {} as solo", equal_results(outcome.solo, jobs), outcome.plan.jobs);
}

}  // namespace

double Outcome::sequential_s() const {
  double sum = 0;
  for (const JobState& job : solo) sum += job.wall_s;
  return sum;
}

double Outcome::ratio() const { return sequential_s() > 0 ? shared.wall_s / sequential_s() : 0; }

double Outcome::solo_busy_min() const {
  double lowest = solo.empty() ? 0 : 1;
  for (const JobState& job : solo) lowest = std::min(lowest, job.wall_s > 0 ? job.busy_s / job.wall_s : 0);
  return lowest;
}

bool Outcome::all_correct() const {
  return solo.size() == static_cast<size_t>(plan.jobs) && shared.jobs.size() == solo.size() &&
         equal_results(solo, shared.jobs) == plan.jobs;
}

std::vector<std::string> failures_of(const Outcome& outcome) {
  std::vector<std::string> failures;
  const auto check_job = [&failures](const char* phase, size_t index, const JobState& job, const JobState* solo) {
    if (!job.succeeded()) {
      failures.push_back(fmt::format("{}: job {} ended with exit code {}{}", phase, index + 1, job.exit_code,
                                     job.last_words.empty() ? "" : ": " + job.last_words));
    } else if (solo != nullptr && solo->succeeded() && job.checksum != solo->checksum) {
      failures.push_back(fmt::format("{}: job {} computed {}, solo {}", phase, index + 1, job.checksum, solo->checksum));
    }
  };
  for (size_t i = 0; i < outcome.solo.size(); ++i) check_job("one after the other", i, outcome.solo[i], nullptr);
  for (size_t i = 0; i < outcome.shared.jobs.size(); ++i) {
    check_job("nvshare", i, outcome.shared.jobs[i], i < outcome.solo.size() ? &outcome.solo[i] : nullptr);
  }
  if (outcome.paging && !outcome.paging->cut_off) {
    for (size_t i = 0; i < outcome.paging->jobs.size(); ++i) {
      check_job("demand paging", i, outcome.paging->jobs[i], i < outcome.solo.size() ? &outcome.solo[i] : nullptr);
    }
  }
  if (!failures.empty()) return failures;  // times of failed runs say nothing
  if (!outcome.all_correct()) failures.emplace_back("not every job ran");
  if (outcome.solo_busy_min() < kSoloBusyMin) {
    failures.push_back(
        fmt::format("a solo run kept the GPU only {:.0f} % busy, at least {:.0f} % were due: is the machine busy with something else?",
                    100 * outcome.solo_busy_min(), 100 * kSoloBusyMin));
  }
  if (outcome.ratio() > kRatioMax) {
    std::string text =
        fmt::format("sharing took {:.3f} times as long as one after the other, at most {:.2f} was due", outcome.ratio(), kRatioMax);
    if (outcome.processors > 0 && outcome.load_average > kBusyLoads * outcome.processors)
      text += fmt::format("; {:.0f} programs wanted the machine's {:.0f} processors meanwhile: try again when it is idle",
                          outcome.load_average, outcome.processors);
    failures.push_back(std::move(text));
  }
  if (outcome.switches < kSwitchesMin) {
    failures.push_back(fmt::format("only {} switches, at least {} were due", outcome.switches, kSwitchesMin));
  }
  return failures;
}

std::string draw_outcome(const Outcome& outcome) {
  Table table({{""}, {"TOTAL TIME", Align::kRight}, {"RELATIVE", Align::kRight}, {"RESULTS"}, {"SWITCHES", Align::kRight}, {"NOTE"}});
  const double sequential = outcome.sequential_s();
  const auto relative = [&](double wall_s) { return sequential > 0 ? fmt::format("{:.2f}", wall_s / sequential) : std::string("-"); };
  table.add({"one after the other", seconds(sequential), relative(sequential), fmt::format("{} jobs", outcome.solo.size()), "-",
             fmt::format("GPU at least {:.0f} % busy", 100 * outcome.solo_busy_min())});
  table.add({"nvshare, all at once", seconds(outcome.shared.wall_s), relative(outcome.shared.wall_s),
             results_of(outcome, outcome.shared.jobs), std::to_string(outcome.switches),
             fmt::format("turns of {:.1f} s", outcome.plan.switch_time_s)});
  if (outcome.paging) {
    const PhaseResult& paging = *outcome.paging;
    const char* more = paging.cut_off ? "> " : "";
    table.add({"demand paging, all at once", more + seconds(paging.wall_s), more + relative(paging.wall_s),
               paging.cut_off ? "-" : results_of(outcome, paging.jobs), "-", paging.cut_off ? "cut off, " + done_of(paging.jobs) : ""});
  }
  return fmt::format("\n{} jobs of {} each on {} with {}{}\n\n{}", outcome.plan.jobs, format_bytes(outcome.plan.job_bytes),
                     outcome.gpu.name, format_bytes(outcome.plan.gpu_bytes),
                     outcome.plan.configured ? " (configured; it has " + format_bytes(outcome.gpu.total) + ")" : "", table.draw());
}

std::string json_of(const Outcome& outcome) {
  nlohmann::ordered_json json;
  json["jobs"] = outcome.plan.jobs;
  json["all_correct"] = outcome.all_correct();
  json["makespan_s"] = rounded(outcome.shared.wall_s);
  json["sequential_s"] = rounded(outcome.sequential_s());
  json["ratio"] = rounded(outcome.ratio());
  json["switches"] = outcome.switches;
  json["gpu"] = outcome.gpu.name;
  json["stand_in"] = outcome.gpu.stand_in;
  json["gpu_bytes"] = outcome.plan.gpu_bytes;
  json["job_bytes"] = outcome.plan.job_bytes;
  json["switch_time_s"] = outcome.plan.switch_time_s;
  json["solo_busy_min"] = rounded(outcome.solo_busy_min());
  if (outcome.paging) {
    json["paging_s"] = rounded(outcome.paging->wall_s);
    json["paging_cut_off"] = outcome.paging->cut_off;
  }
  json["failures"] = failures_of(outcome);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace nvshare::cli::demo
