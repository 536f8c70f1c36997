// nvshare-dra-driver: offers shares of GPUs to Kubernetes' Dynamic Resource Allocation. See README.md.
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "kubernetes/devices/install.h"
#include "kubernetes/devices/runtime_config.h"
#include "kubernetes/dra/device_facts.h"
#include "kubernetes/dra/driver_settings.h"
#include "kubernetes/dra/kubelet/dra_node.h"
#include "kubernetes/program.h"

namespace {

using namespace nvshare;
using namespace nvshare::kubernetes;

constexpr char kProgram[] = "nvshare-dra-driver";

int refuse(const Error& error, int status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, error.text);
  return status;
}

int serve(Settings settings) {
  begin_log(kProgram, settings);
  umask(022);
  const std::string url = settings.api_server == "auto" ? url_of_own_cluster() : settings.api_server;
  if (url.empty()) return refuse(error_format("this runs in no cluster: NVSHARE_API_SERVER must be its API server's URL"), EXIT_FAILURE);
  Result<std::vector<Gpu>> gpus = find_gpus(settings.visible_gpus, settings.division);
  if (!gpus) return refuse(gpus.error(), EXIT_FAILURE);
  if (settings.library.empty()) settings.library = own_library();
  Result<InstalledFiles> files = install_files(settings.library, settings.install_dir, NVSHARE_VERSION);
  if (!files) return refuse(files.error(), EXIT_FAILURE);
  log_cdi_of_runtime(settings.runtime_config, settings.cdi_dir);
  keep_end_signals();
  dra::DraNode::Options options{settings, {url, settings.service_account, kProgram}, *files, dra::facts_of(*gpus), {}};
  Result<std::unique_ptr<dra::DraNode>> node = dra::DraNode::open(std::move(options));
  if (!node) return refuse(node.error(), EXIT_FAILURE);
  for (const Gpu& gpu : *gpus) spdlog::info("offers {}, {} MiB", shown(gpu), gpu.physical >> 20);
  spdlog::info("ends on signal {}", wait_for_end());
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Offers shares of GPUs to Kubernetes' Dynamic Resource Allocation, as driver gpu.nvshare.com.\n"
      "Every flag below is also a variable (--log-level: NVSHARE_LOG_LEVEL); the command line goes before the environment."};
  app.set_version_flag("--version", NVSHARE_VERSION);
  double probe_seconds = 0;
  app.add_option("--probe", probe_seconds,
                 "ask the driver that runs with the same settings whether it is alive, for at most SECONDS, and end: status 0 if it is")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.01, 600.0));
  settings::Texts given;
  if (const auto status = parse_command_line(app, dra::driver_setting_specs(), argc, argv, &given)) return *status;
  Result<Settings> loaded = dra::load_driver_settings([](const char* name) { return static_cast<const char*>(std::getenv(name)); }, given);
  if (!loaded) return refuse(loaded.error(), kExitWrongUse);
  if (probe_seconds > 0) {
    auto alive =
        dra::DraServer::probe(dra::registration_socket_of(*loaded), std::chrono::milliseconds(static_cast<int64_t>(probe_seconds * 1000)));
    return alive ? EXIT_SUCCESS : refuse(alive.error(), EXIT_FAILURE);
  }
  return serve(*loaded);
}
