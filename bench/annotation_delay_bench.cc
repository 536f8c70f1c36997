// How long it takes from a change of a pod's annotation in the API server until the limit is in force in the scheduler, for a pod with a
// running client: a stand-in API server with TLS, the plugin's watch, a real scheduler, a real program in a cgroup of the pod.
//   annotation_delay_bench [CHANGES]      prints JSON; needs the right to make cgroups (root)
#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cli/admin_connection.h"
#include "e2e/harness/pod_cgroup.h"
#include "e2e/harness/stage.h"
#include "kubernetes/pods/pod_limit_controller.h"
#include "kubernetes/pods/test_api_server.h"

using namespace nvshare;
using namespace nvshare::e2e;

namespace {

constexpr char kUid[] = "5d1e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";

int fail(const char* why) {
  std::fprintf(stderr, "annotation_delay_bench: %s\n", why);
  return 1;
}

// Of the pod: "core limit, memory limit of its first client".
std::pair<int, int64_t> in_force(cli::AdminConnection& admin) {
  auto report = admin.status();
  if (!report || report->clients.empty()) return {0, 0};
  for (const auto& tenant : report->tenants) {
    if (tenant.kind == "pod") return {tenant.gpu_core_limit, report->clients[0].gpu_memory_limit};
  }
  return {0, 0};
}

}  // namespace

int main(int argc, char** argv) {
  const int changes = argc > 1 ? std::atoi(argv[1]) : 200;
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_level(spdlog::level::warn);
  auto cgroup = PodCgroup::make(kUid);
  if (!cgroup) return fail("no cgroup can be made here; it takes root");
  Stage stage;
  stage.start_scheduler();
  kubernetes::TestApiServer server(stage.directory());
  server.add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 128}}, kUid);
  kubernetes::PodLimitController::Options options;
  options.api_server = server.address();
  options.node = "node-1";
  options.runtime_dir = stage.runtime_directory();
  options.resources = {"nvshare.com/gpu", "nvshare.com/gpu-memory", "", {.memory_unit = 1 << 20}};
  options.kubelet_dir = stage.directory();  // as the plugin runs: it watches a checkpoint, and writes down what is in force
  options.record_dir = stage.directory();
  kubernetes::PodLimitController annotations(options);
  Child& program = stage.start_command(
      "pod", cgroup->inside({kWorkerPath, "limit-follow", "--piece", "1M", "--most", "4", "--stop", stage.directory() + "/stop"}), true);
  auto admin = cli::AdminConnection::open(stage.runtime_directory());
  if (!admin) return fail(admin.error().text);
  if (!stage.wait_until([&] { return program.logged("holds 4 pieces"); })) return fail("the program does not run");

  std::vector<double> delays_ms;
  for (int i = 0; i < changes; ++i) {
    // Not in step with anybody's timer.
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + i % 17));
    const auto begin = std::chrono::steady_clock::now();
    const int core = 10 + i % 80;
    const int64_t memory = (16 + i % 64) * (int64_t{1} << 20);
    server.annotate("train", i % 2 == 0 ? kubernetes::kCoreAnnotation : kubernetes::kMemoryAnnotation,
                    i % 2 == 0 ? std::to_string(core) : std::to_string(memory >> 20) + "Mi");
    const auto is_in_force = [&] {
      const auto now = in_force(*admin);
      return i % 2 == 0 ? now.first == core : now.second == memory;
    };
    const bool came = stage.wait_until(is_in_force, std::chrono::seconds(20));
    if (!came) {
      const auto now = in_force(*admin);
      std::fprintf(stderr, "change %d: asked for %d %% or %lld, in force are %d %% and %lld\n", i, core, static_cast<long long>(memory),
                   now.first, static_cast<long long>(now.second));
      for (const auto& pod : annotations.limits()) {
        std::fprintf(stderr, "the plugin wants %d %% and %lld\n", pod.gpu_core_limit, static_cast<long long>(pod.gpu_memory_limit));
      }
      return fail("a change did not come into force");
    }
    delays_ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  stage.tell_to_stop();
  program.wait(patience());
  std::sort(delays_ms.begin(), delays_ms.end());
  const auto at = [&](double part) { return delays_ms[static_cast<size_t>(part * static_cast<double>(delays_ms.size() - 1))]; };
  std::printf("{\"changes\": %d, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f, \"required_p99_ms\": 300, \"looked_every_ms\": 3}\n",
              changes, at(0.5), at(0.99), delays_ms.back());
  return at(0.99) < 300 ? 0 : 1;
}
