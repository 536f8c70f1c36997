// nvshare-device-plugin: offers shared GPUs to Kubernetes. See README.md.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "kubernetes/devices/cdi.h"
#include "kubernetes/devices/install.h"
#include "kubernetes/devices/runtime_config.h"
#include "kubernetes/kubelet/plugin.h"
#include "kubernetes/pods/pod_limit_controller.h"
#include "kubernetes/program.h"
#include "kubernetes/settings.h"

namespace {

using namespace nvshare;
using namespace nvshare::kubernetes;

constexpr int kExitUnwanted = 3;  // another device plugin serves the same GPUs

int refuse(const Error& error, int status) {
  std::fprintf(stderr, "nvshare-device-plugin: %s\n", error.text);
  return status;
}

Result<std::unique_ptr<PodLimitController>> watch_pods(const Settings& settings) {
  PodLimitController::Options options;
  options.runtime_dir = settings.runtime_dir;
  options.priority_max = settings.pod_priority_max;
  options.annotations_reserve = settings.annotations_reserve;
  options.namespace_maxima = settings.namespace_maxima;
  options.resources = {settings.gpu_resource, settings.memory_resource, settings.core_resource, settings.division};
  options.kubelet_dir = settings.kubelet_dir;
  options.record_dir = settings.install_dir;
  if (settings.cdi != Cdi::kOff) {
    options.not_shared_hint =
        "; this node gives containers CDI devices (NVSHARE_CDI), which a container runtime whose CDI is off drops without a word: "
        "containerd 1.7 wants enable_cdi = true";
  }
  const std::string url = settings.api_server == "auto" ? url_of_own_cluster() : settings.api_server == "off" ? "" : settings.api_server;
  if (url.empty()) {
    spdlog::info("limits by annotation are off: {}; pods have what they were granted",
                 settings.api_server == "off" ? "NVSHARE_API_SERVER says so" : "this runs in no cluster");
    return std::make_unique<PodLimitController>(options);
  }
  if (settings.node_name.empty()) {
    return error_format(
        "NVSHARE_NODE_NAME is not set: set it from the pod's spec.nodeName, or NVSHARE_API_SERVER=off for no limits by annotation");
  }
  options.api_server = {url, settings.service_account};
  options.node = settings.node_name;
  spdlog::info("watches annotations of the pods of {} at {}", options.node, options.api_server.url);
  return std::make_unique<PodLimitController>(options);
}

int serve(Settings settings) {
  begin_log("nvshare-device-plugin", settings);
  umask(022);
  Result<std::vector<Gpu>> gpus = find_gpus(settings.visible_gpus, settings.division);
  if (!gpus) return refuse(gpus.error(), EXIT_FAILURE);
  if (settings.library.empty()) settings.library = own_library();
  Result<InstalledFiles> files = install_files(settings.library, settings.install_dir, NVSHARE_VERSION);
  if (!files) return refuse(files.error(), EXIT_FAILURE);
  if (settings.cdi != Cdi::kOff) log_cdi_of_runtime(settings.runtime_config, settings.cdi_dir);
  Result<std::unique_ptr<Node>> node = Node::open(settings, *files, *gpus);
  if (!node) return refuse(node.error(), EXIT_FAILURE);
  for (const Gpu& gpu : *gpus) spdlog::info("offers {}, {} MiB", shown(gpu), gpu.physical >> 20);

  keep_end_signals(SIGUSR1);  // which comes from ourselves
  Result<std::unique_ptr<PodLimitController>> controller = watch_pods(settings);
  if (!controller) return refuse(controller.error(), EXIT_FAILURE);
  (*node)->listen({[&controller](const std::vector<HeldDevices>& listed) { (*controller)->held(listed); },
                   [&controller] { return !(*controller)->all_named(); },
                   [&controller](const std::vector<protocol::admin::PodNotice>& notices) { (*controller)->noticed(notices); }});
  std::string unwanted;
  Plugin plugin(settings, std::move(*node), [&unwanted](const std::string& why) {
    unwanted = why;
    kill(getpid(), SIGUSR1);
  });
  const int signal = wait_for_end(SIGUSR1);
  if (signal == SIGUSR1 && !unwanted.empty()) {
    spdlog::error("{}", unwanted);
    return kExitUnwanted;
  }
  spdlog::info("ends on signal {}", signal);
  return EXIT_SUCCESS;
}

int write_cdi(Settings settings) {
  umask(022);
  Result<std::vector<Gpu>> gpus = find_gpus(settings.visible_gpus, settings.division);
  if (!gpus) return refuse(gpus.error(), EXIT_FAILURE);
  Result<std::vector<Gpu>> all = find_gpus("all", settings.division);
  if (settings.library.empty()) settings.library = own_library();
  Result<InstalledFiles> files = install_files(settings.library, settings.install_dir, NVSHARE_VERSION);
  if (!files) return refuse(files.error(), EXIT_FAILURE);
  Result<std::string> said =
      write_cdi_for_people(settings, *files, *gpus, all ? *all : std::vector<Gpu>());  // without NVML GPUs have no numbers
  if (!said) return refuse(said.error(), EXIT_FAILURE);
  std::printf("nvshare-device-plugin: %s\n", said->c_str());
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Offers shared GPUs to Kubernetes.\n"
      "Every flag below is also a variable (--log-level: NVSHARE_LOG_LEVEL); the command line goes before the environment."};
  app.set_version_flag("--version", NVSHARE_VERSION);
  bool cdi_only = false;
  double probe_seconds = 0;
  app.add_option("--probe", probe_seconds,
                 "ask the plugin that runs with the same settings whether it is alive, for at most SECONDS, and end: status 0 if it is")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.01, 600.0));
  app.add_flag("--write-cdi", cdi_only, "write CDI specifications for docker run --device nvshare.com/gpu=0 into the CDI folder, and end");
  settings::Texts given;
  if (const auto status = parse_command_line(app, setting_specs(), argc, argv, &given)) return *status;
  Result<Settings> loaded = load_settings([](const char* name) { return static_cast<const char*>(std::getenv(name)); }, given);
  if (!loaded) return refuse(loaded.error(), kExitWrongUse);
  if (probe_seconds > 0) {
    auto alive = probe_plugin(*loaded, std::chrono::milliseconds(static_cast<int64_t>(probe_seconds * 1000)));
    return alive ? EXIT_SUCCESS : refuse(alive.error(), EXIT_FAILURE);
  }
  return cdi_only ? write_cdi(*loaded) : serve(*loaded);
}
