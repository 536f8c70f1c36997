// A cluster of GPUs under a day of made-up jobs: exclusive GPUs, fractions without swapping, nvshare's shares with swapping: docs/fleet.md.
//
//   fleet [--nodes 1000] [--loads 0.8,1.2,1.6,2.0] [--ways exclusive,fractions,nvshare] [--oversubscription 2] [--hours 24] [--warm-up 6]
//         [--link 25] [--seed 1] [--check] [--json FILE]
//
// Virtual time, a fixed seed. Runs as many at a time as there are processors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "fleet/fleet.h"

namespace {

using namespace nvshare::fleet;
using Json = nlohmann::json;

struct Options {
  Plan plan;
  std::vector<double> loads = {0.8, 1.2, 1.6, 2.0};
  std::vector<Way> ways = {Way::kExclusive, Way::kFractions, Way::kNvshare};
  uint64_t seed = 1;
  std::string json;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

bool positive(const std::string& text, double& number) {
  char* end = nullptr;
  number = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == 0 && number > 0 && number < 1e6;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--check") {
      options.plan.checks = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    double number = 0;
    if (flag == "--json") {
      options.json = value;
    } else if (flag == "--loads") {
      options.loads.clear();
      for (const std::string& part : split(value)) {
        if (!positive(part, number)) return false;
        options.loads.push_back(number);
      }
    } else if (flag == "--ways") {
      options.ways.clear();
      for (const std::string& part : split(value)) {
        bool known = false;
        for (const Way way : {Way::kExclusive, Way::kFractions, Way::kNvshare}) {
          if (part != name_of(way)) continue;
          known = true;
          options.ways.push_back(way);
        }
        if (!known) return false;
      }
    } else if (!positive(value, number)) {
      return false;
    } else if (flag == "--nodes") {
      options.plan.nodes = static_cast<int>(number);
    } else if (flag == "--oversubscription") {
      options.plan.oversubscription = number;
    } else if (flag == "--hours") {
      options.plan.counted = static_cast<Nanoseconds>(number * kHour);
    } else if (flag == "--warm-up") {
      options.plan.warm_up = static_cast<Nanoseconds>(number * kHour);
    } else if (flag == "--link") {
      options.plan.machine.link = number * 1e9;
    } else if (flag == "--seed") {
      options.seed = static_cast<uint64_t>(number);
    } else {
      return false;
    }
  }
  return !options.loads.empty() && !options.ways.empty();
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

Json json_of(const Figures& figures) {
  return {{"arrived", figures.arrived},
          {"ended", figures.ended},
          {"waiting_at_end", figures.waiting_at_end},
          {"running_at_end", figures.running_at_end},
          {"wait_p50_s", percentile(figures.waits, 0.5)},
          {"wait_p95_s", percentile(figures.waits, 0.95)},
          {"bursts", figures.delays.size()},
          {"delay_p50_s", percentile(figures.delays, 0.5)},
          {"delay_p95_s", percentile(figures.delays, 0.95)}};
}

Json json_of(const Plan& plan, double load, const Outcome& outcome, double seconds) {
  Figures all;
  Json kinds;
  for (const auto& [kind, figures] : outcome.kinds) {
    kinds[name_of(kind)] = json_of(figures);
    all.arrived += figures.arrived;
    all.ended += figures.ended;
    all.waiting_at_end += figures.waiting_at_end;
    all.running_at_end += figures.running_at_end;
    all.waits.insert(all.waits.end(), figures.waits.begin(), figures.waits.end());
    all.delays.insert(all.delays.end(), figures.delays.begin(), figures.delays.end());
  }
  Json row = json_of(all);
  row["way"] = name_of(plan.way);
  row["load"] = load;
  row["kinds"] = kinds;
  row["idle_percent"] = 100 - 100 * outcome.busy_seconds / outcome.gpu_seconds;
  row["without_job_percent"] = 100 - 100 * outcome.taken_seconds / outcome.gpu_seconds;
  row["policy_steps"] = outcome.policy.steps;
  row["turns"] = outcome.policy.turns;
  row["drops"] = outcome.policy.drops;
  row["moved_out_tib"] = static_cast<double>(outcome.policy.moved_out) / static_cast<double>(kGiB) / 1024;
  row["host_peak_gib_of_a_gpu"] = static_cast<double>(outcome.policy.host_peak) / static_cast<double>(kGiB);
  row["seconds"] = seconds;
  row["broken"] = outcome.broken;
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: fleet [--nodes N] [--loads A,B] [--ways exclusive,fractions,nvshare] [--oversubscription R] [--hours H] [--warm-up H] "
        "[--link GB/s] [--seed N] [--check] [--json FILE]; numbers above 0\n");
    return 2;
  }
  struct Run {
    double load;
    Way way;
    Json row;
  };
  std::vector<Run> runs;
  for (const double load : options.loads) {
    for (const Way way : options.ways) runs.push_back({load, way, {}});
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> broken{false};
  const auto work = [&] {
    for (size_t i = next++; i < runs.size(); i = next++) {
      Plan plan = options.plan;
      plan.way = runs[i].way;
      Day day;
      day.gpus = plan.nodes * plan.gpus_per_node;
      day.load = runs[i].load;
      day.length = plan.warm_up + plan.counted;
      day.gpu_memory = plan.machine.memory;
      day.seed = options.seed;
      const auto began = std::chrono::steady_clock::now();
      const Outcome outcome = run_fleet(plan, make_jobs(day));
      runs[i].row = json_of(plan, day.load, outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
      if (!outcome.broken.empty()) broken = true;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();

  Json rows = Json::array();
  std::printf("%5s %-10s %8s %8s %8s %10s %10s %7s %9s %9s %6s\n", "load", "way", "arrived", "ended", "waiting", "wait p50", "wait p95",
              "idle", "delay p50", "delay p95", "took");
  for (const Run& run : runs) {
    const Json& row = run.row;
    rows.push_back(row);
    std::printf("%5.2f %-10s %8d %8d %8d %8.0f s %8.0f s %5.1f %% %7.1f s %7.1f s %4.0f s%s%s\n", run.load, name_of(run.way),
                row["arrived"].get<int>(), row["ended"].get<int>(), row["waiting_at_end"].get<int>(), row["wait_p50_s"].get<double>(),
                row["wait_p95_s"].get<double>(), row["idle_percent"].get<double>(), row["delay_p50_s"].get<double>(),
                row["delay_p95_s"].get<double>(), row["seconds"].get<double>(),
                row["broken"].get<std::string>().empty() ? "" : "  BROKEN: ", row["broken"].get<std::string>().c_str());
  }
  if (!options.json.empty()) {
    std::string command;
    for (int i = 0; i < argc; ++i) command += std::string(i > 0 ? " " : "") + (i > 0 ? argv[i] : "fleet");
    const Json figures = {{"nodes", options.plan.nodes},
                          {"gpus_per_node", options.plan.gpus_per_node},
                          {"oversubscription", options.plan.oversubscription},
                          {"hours", options.plan.counted / kHour},
                          {"warm_up_hours", options.plan.warm_up / kHour},
                          {"link_gb_per_s", options.plan.machine.link / 1e9},
                          {"seed", options.seed},
                          {"rows", rows}};
    std::ofstream file(options.json);
    file << Json{{"command", command}, {"figures", figures}}.dump(1) << "\n";
    if (!file) {
      std::fprintf(stderr, "fleet: cannot write %s\n", options.json.c_str());
      return 1;
    }
  }
  return broken ? 1 : 0;
}
