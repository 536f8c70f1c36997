// nvshare-simulate: runs drawn from seeds, until the time is over or one fails, which is shrunk and printed as a story.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "folder.h"
#include "run.h"
#include "scheduler/log.h"

namespace {

using namespace nvshare::simulation;

struct Request {
  uint64_t seed = 0;
  uint64_t runs = 0;
  double minutes = 1;
  std::string canary;
  bool tells = false;
  bool goes_on = false;
};

void print(const Failure& failure, uint64_t seed) {
  std::printf(
      "\n%s\n%s\n%s\nFAILED: %s\nnvshare-simulate --seed %llu --runs 1 repeats it; what is above is the smallest part that fails so.\n",
      describe(failure.plan).c_str(), failure.story.c_str(), failure.state.c_str(), failure.problem.c_str(),
      static_cast<unsigned long long>(seed));
}

int simulate(const Request& request) {
  Run::Options options;
  const Folder folder;
  options.folder = folder.path();
  if (!request.canary.empty()) {
    const std::optional<Canary> canary = canary_of(request.canary);
    if (!canary) {
      std::fprintf(stderr, "there is no canary '%s'; known are:", request.canary.c_str());
      for (const CanaryName& known : kCanaries) std::fprintf(stderr, " %s", known.name);
      std::fprintf(stderr, "\n");
      return 2;
    }
    options.canary = *canary;
  }
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  uint64_t runs = 0, steps = 0, failed = 0;
  std::printf("seeds from %llu\n", static_cast<unsigned long long>(request.seed));
  for (uint64_t seed = request.seed; request.runs > 0 ? runs < request.runs : seconds() < request.minutes * 60; ++seed) {
    const Plan plan = draw_plan(seed);
    options.tells = request.tells;
    std::string problem;
    {
      Run run(plan, options);
      problem = run.play();
      steps += run.steps();
      if (request.tells) std::printf("%s%s%s", describe(plan).c_str(), run.story().c_str(), run.describe().c_str());
    }
    ++runs;
    if (problem.empty()) continue;
    std::printf("run %llu, seed %llu: %s\n", static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed), problem.c_str());
    std::fflush(stdout);
    ++failed;
    if (request.goes_on) continue;
    if (!request.tells) print(shrink(plan, options), seed);
    return 1;
  }
  std::printf("%llu runs, %llu steps in %.1f s: %s\n", static_cast<unsigned long long>(runs), static_cast<unsigned long long>(steps),
              seconds(), failed == 0 ? "nothing wrong" : fmt::format("{} failed", failed).c_str());
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays schedulers and clients against each other on virtual time (test/simulation/README.md)");
  Request request;
  request.seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000'000;
  app.add_option("--seed", request.seed, "the first seed");
  app.add_option("--runs", request.runs, "so many, instead of minutes");
  app.add_option("--minutes", request.minutes, "how long");
  app.add_option("--canary", request.canary, "a bug to switch on, by name");
  app.add_flag("--go-on", request.goes_on, "names each run that fails, and goes on with the next; nothing is shrunk");
  app.add_flag("--tell", request.tells, "prints each run's whole story");
  CLI11_PARSE(app, argc, argv);
  nvshare::scheduler::set_log_level("off");
  return simulate(request);
}
