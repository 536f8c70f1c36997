#include "kubernetes/dra/driver_settings.h"

#include <cstdint>
#include <cstdio>

#include "kubernetes/dra/share_config.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr size_t kSocketPathMax = 107;
constexpr size_t kFolderMax = 72;

Result<void> take_socket_folder(std::string_view text, std::string* out) {
  if (text.size() > kFolderMax) return error_format("'%.*s' is too long for a socket's path", settings::shown(text), text.data());
  return settings::take_path(text, out);
}

Result<void> set_plugins_dir(Settings& settings, std::string_view text) { return take_socket_folder(text, &settings.plugins_dir); }
Result<void> set_registry_dir(Settings& settings, std::string_view text) { return take_socket_folder(text, &settings.registry_dir); }

std::vector<SettingSpec> make_specs() {
  std::vector<SettingSpec> specs = {
      {"plugins_dir", "an absolute path of up to 72 bytes", "the kubelet's folder for plugins (/var/lib/kubelet/plugins)", set_plugins_dir},
      {"registry_dir", "an absolute path of up to 72 bytes",
       "the kubelet's folder in which it looks for plugins (/var/lib/kubelet/plugins_registry)", set_registry_dir},
  };
  for (const char* shared : {"gpus", "gpu_memory_oversub_ratio", "gpu_physical_memory_mb", "runtime_dir", "install_dir", "library",
                             "cdi_dir", "runtime_config", "health_interval", "scheduler_patience", "instance", "api_server",
                             "service_account", "node_name", "pod_priority_max", "log_level"}) {
    specs.push_back(*settings::find(setting_specs(), shared));
  }
  return specs;
}

// FNV-1a in hexadecimal digits, for what is too long for a socket's path.
std::string short_name_of(const std::string& text) {
  uint32_t hash = 0x811c9dc5;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", hash);
  return digits;
}

std::string with_instance(const std::string& begin, const std::string& instance, const char* end) {
  if (instance.empty()) return begin + end;
  const std::string path = begin + "-" + instance + end;
  return path.size() <= kSocketPathMax ? path : begin + "-" + short_name_of(instance) + end;
}

}  // namespace

const std::vector<SettingSpec>& driver_setting_specs() {
  static const std::vector<SettingSpec> specs = make_specs();
  return specs;
}

Result<Settings> load_driver_settings(const settings::Lookup& environment, const settings::Texts& command_line) {
  Settings settings;
  if (const char* visible = environment("NVIDIA_VISIBLE_DEVICES"); visible != nullptr && *visible != 0) settings.visible_gpus = visible;
  if (auto ok = settings::apply_all(settings, driver_setting_specs(), environment, command_line); !ok) return ok.error();
  if (settings.node_name.empty()) return error_format("NVSHARE_NODE_NAME is not set: set it from the pod's spec.nodeName");
  if (settings.api_server == "off") {
    return error_format("NVSHARE_API_SERVER is off: this driver reads claims there; accepted: auto, or an https:// URL");
  }
  return settings;
}

std::string registration_socket_of(const Settings& settings) {
  return with_instance(settings.registry_dir + "/" + kDriverName, settings.instance, "-reg.sock");
}
std::string service_socket_of(const Settings& settings) {
  return with_instance(settings.plugins_dir + "/" + kDriverName + "/dra", settings.instance, ".sock");
}

}  // namespace nvshare::kubernetes::dra
