#include "kubernetes/settings.h"

#include <algorithm>

namespace nvshare::kubernetes {
namespace {

using settings::shown;
using settings::take_choice;
using settings::take_duration;
using settings::take_path;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kHour = 3'600'000 * kMillisecond;
constexpr size_t kResourceNameMax = 63;

bool is_name(std::string_view text, std::string_view also) {
  if (text.empty()) return false;
  auto good = [&](char c) {
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || also.find(c) != std::string_view::npos;
  };
  bool ends = also.find(text.front()) == std::string_view::npos && also.find(text.back()) == std::string_view::npos;
  return ends && std::all_of(text.begin(), text.end(), good);
}

// "example.com/thing", as Kubernetes wants the name of an extended resource.
Result<void> take_resource(std::string_view text, std::string* out) {
  size_t slash = text.find('/');
  bool good = slash != std::string_view::npos && is_name(text.substr(0, slash), "-.") && is_name(text.substr(slash + 1), "-._") &&
              text.size() - slash - 1 <= kResourceNameMax && slash <= 253 &&
              text.substr(0, slash).find("kubernetes.io") == std::string_view::npos;
  if (!good) return error_format("'%.*s' is no name of a resource", shown(text), text.data());
  *out = text;
  return {};
}

Result<void> take_optional_resource(std::string_view text, std::string* out) {
  if (text != "off") return take_resource(text, out);
  out->clear();
  return {};
}

Result<void> set_gpu_resource(Settings& settings, std::string_view text) { return take_resource(text, &settings.gpu_resource); }
Result<void> set_memory_resource(Settings& settings, std::string_view text) {
  return take_optional_resource(text, &settings.memory_resource);
}
Result<void> set_core_resource(Settings& settings, std::string_view text) { return take_optional_resource(text, &settings.core_resource); }

Result<void> set_virtual_devices(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 1, 1000);
  if (!value) return value.error();
  settings.division.virtual_devices = static_cast<int>(*value);
  return {};
}

Result<void> set_gpu_memory_unit(Settings& settings, std::string_view text) {
  Result<uint64_t> value = parse_bytes(text);
  if (!value) return value.error();
  if (*value < (1 << 20) || *value > (1ULL << 40)) return error_format("'%.*s' is out of range", shown(text), text.data());
  settings.division.memory_unit = static_cast<int64_t>(*value);
  return {};
}

Result<void> set_oversubscription(Settings& settings, std::string_view text) {
  Result<double> value = parse_decimal(text, 0.1, 100);
  if (!value) return value.error();
  settings.division.oversubscription = *value;
  return {};
}

Result<void> set_physical_memory_mb(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 64, 1 << 24);
  if (!value) return value.error();
  settings.division.physical_memory = *value << 20;
  return {};
}

Result<void> set_default_memory(Settings& settings, std::string_view text) {
  settings.division.default_memory = 0;
  if (text == "none") return {};
  Result<uint64_t> value = parse_bytes(text);
  if (!value) return value.error();
  if (*value < (1 << 20) || *value > (1ULL << 42)) return error_format("'%.*s' is out of range", shown(text), text.data());
  settings.division.default_memory = static_cast<int64_t>(*value);
  return {};
}

Result<void> set_gpus(Settings& settings, std::string_view text) {
  if (text.empty()) return error_format("it is empty");
  settings.visible_gpus = text;
  return {};
}

Result<void> set_kubelet_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.kubelet_dir); }
Result<void> set_pod_resources(Settings& settings, std::string_view text) { return take_path(text, &settings.pod_resources_socket); }
Result<void> set_runtime_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.runtime_dir); }
Result<void> set_install_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.install_dir); }
Result<void> set_library(Settings& settings, std::string_view text) { return take_path(text, &settings.library); }
Result<void> set_cdi_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.cdi_dir); }

Result<void> set_runtime_config(Settings& settings, std::string_view text) {
  settings.runtime_config.clear();
  return text == "none" ? Result<void>() : take_path(text, &settings.runtime_config);
}

Result<void> set_cdi(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"off", "on", "with-nvidia"}); !ok) return ok;
  settings.cdi = text == "off" ? Cdi::kOff : text == "on" ? Cdi::kOn : Cdi::kWithNvidia;
  return {};
}

Result<void> set_health_interval(Settings& settings, std::string_view text) {
  return take_duration(text, 10 * kMillisecond, kHour, &settings.health_interval);
}

Result<void> set_scheduler_patience(Settings& settings, std::string_view text) {
  settings.scheduler_patience = 0;
  return text == "off" ? Result<void>() : take_duration(text, 10 * kMillisecond, kHour, &settings.scheduler_patience);
}

Result<void> set_api_server(Settings& settings, std::string_view text) {
  if (text != "auto" && text != "off" && !(text.starts_with("https://") && text.size() > 8)) {
    return error_format("'%.*s' is none of these", shown(text), text.data());
  }
  settings.api_server = text;
  return {};
}

Result<void> set_service_account(Settings& settings, std::string_view text) { return take_path(text, &settings.service_account); }

Result<void> set_node_name(Settings& settings, std::string_view text) {
  if (text.size() > 253 || !is_name(text, "-.")) return error_format("'%.*s' is no name of a node", shown(text), text.data());
  settings.node_name = text;
  return {};
}

Result<void> set_instance(Settings& settings, std::string_view text) {
  if (text.size() > 63 || !is_name(text, "-.")) return error_format("'%.*s' is no name of an instance", shown(text), text.data());
  settings.instance = text;
  return {};
}

Result<void> set_other_plugins(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"refuse", "allow"}); !ok) return ok;
  settings.refuse_other_plugins = text == "refuse";
  return {};
}

Result<void> set_pod_priority_max(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 0, 100);
  if (!value) return value.error();
  settings.pod_priority_max = static_cast<int>(*value);
  return {};
}

Result<void> set_namespace_maxima(Settings& settings, std::string_view text) {
  Result<NamespaceMaxima> maxima = parse_namespace_maxima(text);
  if (!maxima) return maxima.error();
  settings.namespace_maxima = std::move(*maxima);
  return {};
}

Result<void> set_annotations_reserve(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"off", "on"}); !ok) return ok;
  settings.annotations_reserve = text == "on";
  return {};
}

Result<void> set_log_level(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"error", "warning", "info", "debug"}); !ok) return ok;
  settings.log_level = text;
  return {};
}

// What the settings must satisfy together.
Result<void> check_together(const Settings& settings) {
  const std::string* names[] = {&settings.gpu_resource, &settings.memory_resource, &settings.core_resource};
  for (const auto* a : names) {
    for (const auto* b : names) {
      if (a != b && !a->empty() && *a == *b) return error_format("two resources have the name %.200s", a->c_str());
    }
  }
  if (settings.api_server.starts_with("https://") && settings.node_name.empty()) {
    return error_format("%s is set, but not %s, whose pods are to be watched", settings::variable_of("api_server").c_str(),
                        settings::variable_of("node_name").c_str());
  }
  return {};
}

}  // namespace

const std::vector<SettingSpec>& setting_specs() {
  static const std::vector<SettingSpec> specs = {
      {"gpu_resource", "a name like example.com/gpu", "the resource of virtual GPUs (nvshare.com/gpu)", set_gpu_resource},
      {"memory_resource", "a name like example.com/gpu-memory, or off", "the resource of GPU memory, in units (nvshare.com/gpu-memory)",
       set_memory_resource},
      {"core_resource", "a name like example.com/gpu-core, or off", "the resource of compute, in percent of a GPU (off)",
       set_core_resource},
      {"virtual_devices", "an integer from 1 to 1000", "virtual GPUs of each GPU (10)", set_virtual_devices},
      {"gpu_memory_unit", "an amount of memory from 1Mi to 1Ti", "what one unit of GPU memory is (1Gi)", set_gpu_memory_unit},
      {"default_gpu_memory", "none, or an amount of memory from 1Mi to 4Ti",
       "GPU memory of a container that asks for a virtual GPU, but for no GPU memory (none: as much as it likes)", set_default_memory},
      {"gpu_memory_oversub_ratio", "a number from 0.1 to 100", "GPU memory on offer = physical memory times this (1)",
       set_oversubscription},
      {"gpu_physical_memory_mb", "MiB, an integer from 64 to 16777216", "treat each GPU as this large, at most as it is",
       set_physical_memory_mb},
      {"gpus", "all, or UUIDs and numbers with commas between them", "the GPUs to offer (NVIDIA_VISIBLE_DEVICES, else all)", set_gpus},
      {"kubelet_dir", "an absolute path", "the kubelet's folder for device plugins (/var/lib/kubelet/device-plugins)", set_kubelet_dir},
      {"pod_resources_socket", "an absolute path", "the kubelet's pod resources (/var/lib/kubelet/pod-resources/kubelet.sock)",
       set_pod_resources},
      {"runtime_dir", "an absolute path", "the scheduler's folder on the host (/run/nvshare)", set_runtime_dir},
      {"install_dir", "an absolute path",
       "where libnvshare.so is installed for containers; the same path on the host and here (/var/lib/nvshare)", set_install_dir},
      {"library", "an absolute path", "the libnvshare.so to install (the one that came with this program)", set_library},
      {"cdi", "off, on or with-nvidia",
       "give containers CDI devices; with-nvidia: nvidia.com/gpu=UUID as well, for runtimes without NVIDIA's own (off)", set_cdi},
      {"cdi_dir", "an absolute path", "where CDI specifications go (/var/run/cdi)", set_cdi_dir},
      {"runtime_config", "none, or an absolute path",
       "the folder of the container runtime's configuration, /etc/containerd or /etc/crio: whether CDI is on there is told in the log "
       "(none)",
       set_runtime_config},
      {"health_interval", "a duration from 10ms to 1h, plain numbers are seconds", "between two looks at the GPUs' health (5)",
       set_health_interval},
      {"scheduler_patience", "off, or a duration from 10ms to 1h, plain numbers are seconds",
       "for so long no scheduler may answer before all GPUs count as unhealthy (30)", set_scheduler_patience},
      {"api_server", "auto, off or an https:// URL",
       "the API server, where pods and claims are; auto: of the cluster that this runs in (auto)", set_api_server},
      {"service_account", "an absolute path", "the folder with token and ca.crt (/var/run/secrets/kubernetes.io/serviceaccount)",
       set_service_account},
      {"node_name", "a node's name", "this node's name in the cluster, from spec.nodeName; needed for whatever is asked of the API server",
       set_node_name},
      {"instance", "a name of letters, digits, '-' and '.', up to 63 bytes",
       "of this plugin in its sockets' names, as its pod's: so a new one registers before the old one ends", set_instance},
      {"other_plugins", "refuse or allow", "where another device plugin serves the same GPUs: refuse to run, with exit status 3 (refuse)",
       set_other_plugins},
      {"pod_priority_max", "0 to 100",
       "the highest priority that the annotation nvshare.com/priority or a claim may give a pod (0: it only lowers)", set_pod_priority_max},
      {"annotations_reserve", "off or on",
       "on: the annotation nvshare.com/gpu-core-limit reserves what it says, for clusters where administrators alone may write it (off)",
       set_annotations_reserve},
      {"namespace_maxima", "none, or NAMESPACE:gpu-memory=16Gi,gpu-core=50 with ';' between namespaces, * for all others",
       "what a pod of a namespace may have at most, on each GPU, whatever it was granted (none)", set_namespace_maxima},
      {"log_level", "error, warning, info or debug", "what is logged (info)", set_log_level},
  };
  return specs;
}

Result<Settings> load_settings(const settings::Lookup& environment, const settings::Texts& command_line) {
  Settings settings;
  // NVIDIA's own variable: what the container of this program was given. `void` and `none` are containers without any.
  if (const char* visible = environment("NVIDIA_VISIBLE_DEVICES"); visible != nullptr && *visible != 0) settings.visible_gpus = visible;
  if (auto ok = settings::apply_all(settings, setting_specs(), environment, command_line); !ok) return ok.error();
  if (auto ok = check_together(settings); !ok) return ok.error();
  return settings;
}

}  // namespace nvshare::kubernetes
