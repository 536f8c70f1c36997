#include "kubernetes/settings.h"

#include <gtest/gtest.h>

#include <map>

namespace nvshare::kubernetes {
namespace {

using Environment = std::map<std::string, std::string>;

Result<Settings> load(const Environment& environment, const settings::Texts& flags = {}) {
  return load_settings(
      [&](const char* name) {
        auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      flags);
}

std::string refusal(const Environment& environment, const settings::Texts& flags = {}) {
  auto loaded = load(environment, flags);
  return loaded ? "accepted" : loaded.error().text;
}

TEST(PluginSettings, DefaultsAreTheDocumentedOnes) {
  auto loaded = load({});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->gpu_resource, "nvshare.com/gpu");
  EXPECT_EQ(loaded->memory_resource, "nvshare.com/gpu-memory");
  EXPECT_EQ(loaded->core_resource, "");
  EXPECT_EQ(loaded->division.virtual_devices, 10);
  EXPECT_EQ(loaded->division.memory_unit, 1LL << 30);
  EXPECT_EQ(loaded->division.oversubscription, 1);
  EXPECT_EQ(loaded->division.default_memory, 0);
  EXPECT_EQ(loaded->visible_gpus, "all");
  EXPECT_EQ(loaded->cdi, Cdi::kOff);
}

TEST(PluginSettings, FlagsGoBeforeVariables) {
  Environment environment = {{"NVSHARE_GPU_MEMORY_OVERSUB_RATIO", "1.5"},
                             {"NVSHARE_GPU_PHYSICAL_MEMORY_MB", "4096"},
                             {"NVSHARE_MEMORY_RESOURCE", "nvshare.com/gpumem"},
                             {"NVIDIA_VISIBLE_DEVICES", "1"},
                             {"NVSHARE_CDI", ""}};
  auto loaded = load(environment, {{"gpu_memory_oversub_ratio", "2"}});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->division.oversubscription, 2);
  EXPECT_EQ(loaded->division.physical_memory, 4LL << 30);
  EXPECT_EQ(loaded->memory_resource, "nvshare.com/gpumem");
  EXPECT_EQ(loaded->visible_gpus, "1");
  environment["NVSHARE_GPUS"] = "0";
  EXPECT_EQ(load(environment)->visible_gpus, "0") << "ours goes before NVIDIA's";
}

TEST(PluginSettings, EveryVariableHasAWrongValueThatIsRefusedByName) {
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"gpu_resource", {"gpu", "nvshare.com/", "/gpu", "a b/gpu", "kubernetes.io/gpu", "off", "nvshare.com/-gpu"}},
      {"memory_resource", {"memory", "nvshare.com/gpu memory"}},
      {"core_resource", {"on", "nvshare.com/"}},
      {"virtual_devices", {"0", "1001", "ten"}},
      {"gpu_memory_unit", {"1", "2Ti", "much"}},
      {"default_gpu_memory", {"0", "1", "5Ti", "much", "off"}},
      {"gpu_memory_oversub_ratio", {"0", "101", "-1", "twice"}},
      {"gpu_physical_memory_mb", {"63", "16Gi"}},
      {"kubelet_dir", {"device-plugins"}},
      {"pod_resources_socket", {"kubelet.sock"}},
      {"runtime_dir", {"run"}},
      {"install_dir", {"lib"}},
      {"library", {"libnvshare.so"}},
      {"cdi", {"yes", "ON"}},
      {"cdi_dir", {"cdi"}},
      {"runtime_config", {"containerd", "off"}},
      {"health_interval", {"1ms", "2h", "often"}},
      {"instance", {"a/b", "-a"}},
      {"scheduler_patience", {"1ms", "2h", "never"}},
      {"api_server", {"on", "http://10.0.0.1", "https://"}},
      {"service_account", {"secrets"}},
      {"node_name", {"a b", "-node", "node/1"}},
      {"other_plugins", {"no", "Refuse"}},
      {"pod_priority_max", {"-1", "101", "high"}},
      {"annotations_reserve", {"yes", "ON"}},
      {"namespace_maxima",
       {"team", "team:", "Team:gpu-core=5", "a:gpu-core=0", "a:gpu-core=101", "a:gpu-memory=16", "a:gpu-memory=0Gi", "a:memory=1Gi",
        "a:gpu-core=5;a:gpu-core=6", "a:gpu-core=5,gpu-core=6", ";", "-a:gpu-core=5"}},
      {"log_level", {"verbose"}},
  };
  for (const SettingSpec& spec : setting_specs()) {
    if (std::string(spec.name) == "gpus") continue;  // what it names is looked at when the GPUs are known
    auto values = wrong.find(spec.name);
    ASSERT_NE(values, wrong.end()) << spec.name << " has no wrong value in this test";
    for (const std::string& value : values->second) {
      std::string by_variable = refusal({{settings::variable_of(spec.name), value}});
      EXPECT_NE(by_variable.find(settings::variable_of(spec.name)), std::string::npos) << spec.name << "=" << value << ": " << by_variable;
      EXPECT_NE(by_variable.find(spec.accepted), std::string::npos) << by_variable;
      EXPECT_NE(refusal({}, {{spec.name, value}}).find(settings::flag_of(spec.name)), std::string::npos) << value;
    }
  }
  EXPECT_NE(refusal({{"NVSHARE_API_SERVER", "https://10.0.0.1"}}).find("NVSHARE_NODE_NAME"), std::string::npos);
  EXPECT_NE(refusal({{"NVSHARE_MEMORY_RESOURCE", "nvshare.com/gpu"}}).find("two resources"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::kubernetes
