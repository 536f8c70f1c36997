#include "kubernetes/dra/driver_settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "kubernetes/dra/device_facts.h"

namespace nvshare::kubernetes::dra {
namespace {

Result<Settings> load_for_driver(const std::map<std::string, std::string>& environment) {
  return load_driver_settings(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      {});
}

std::string refused_driver(std::map<std::string, std::string> environment) {
  const auto loaded = load_for_driver(environment);
  return loaded ? "accepted" : loaded.error().text;
}

TEST(DraSettings, DefaultsAndWhatTheDriverNeeds) {
  const auto loaded =
      load_for_driver({{"NVSHARE_NODE_NAME", "node-1"}, {"NVIDIA_VISIBLE_DEVICES", "0"}, {"NVSHARE_POD_PRIORITY_MAX", "7"}});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(registration_socket_of(*loaded), "/var/lib/kubelet/plugins_registry/gpu.nvshare.com-reg.sock");
  EXPECT_EQ(service_socket_of(*loaded), "/var/lib/kubelet/plugins/gpu.nvshare.com/dra.sock");
  EXPECT_EQ(loaded->visible_gpus, "0");
  EXPECT_EQ(loaded->pod_priority_max, 7);
  EXPECT_NE(refused_driver({}).find("NVSHARE_NODE_NAME is not set"), std::string::npos);
  EXPECT_NE(refused_driver({{"NVSHARE_NODE_NAME", "n"}, {"NVSHARE_API_SERVER", "off"}}).find("accepted: auto"), std::string::npos);
}

TEST(DraSettings, EachInstanceHasItsOwnSockets) {
  const std::string long_name(63, 'x');
  const std::string folder = "/" + std::string(71, 'a');
  std::set<std::string> sockets;
  for (const std::string& instance : {std::string("nvshare-0"), std::string("nvshare-1"), long_name, "y" + long_name.substr(1)}) {
    for (const std::string& where : {std::string("/var/lib/kubelet/x"), folder}) {
      const auto loaded = load_for_driver({{"NVSHARE_NODE_NAME", "node-1"},
                                           {"NVSHARE_INSTANCE", instance},
                                           {"NVSHARE_PLUGINS_DIR", where},
                                           {"NVSHARE_REGISTRY_DIR", where}});
      ASSERT_TRUE(loaded) << loaded.error().text;
      for (const std::string& socket : {registration_socket_of(*loaded), service_socket_of(*loaded)}) {
        EXPECT_LE(socket.size(), 107U) << socket;
        sockets.insert(socket);
      }
    }
  }
  EXPECT_EQ(sockets.size(), 16U);
  const auto loaded = load_for_driver({{"NVSHARE_NODE_NAME", "node-1"}, {"NVSHARE_INSTANCE", "nvshare-0"}});
  EXPECT_EQ(registration_socket_of(*loaded), "/var/lib/kubelet/plugins_registry/gpu.nvshare.com-nvshare-0-reg.sock");
  EXPECT_EQ(service_socket_of(*loaded), "/var/lib/kubelet/plugins/gpu.nvshare.com/dra-nvshare-0.sock");
}

TEST(DraSettings, WrongFoldersAreRefusedByName) {
  for (const char* name : {"NVSHARE_PLUGINS_DIR", "NVSHARE_REGISTRY_DIR"}) {
    for (const std::string& value : {std::string("plugins"), "/" + std::string(72, 'a')}) {
      const std::string why = refused_driver({{"NVSHARE_NODE_NAME", "n"}, {name, value}});
      EXPECT_NE(why.find(name), std::string::npos) << why;
      EXPECT_NE(why.find("accepted: an absolute path of up to 72 bytes"), std::string::npos) << why;
    }
    EXPECT_EQ(refused_driver({{"NVSHARE_NODE_NAME", "n"}, {name, "/" + std::string(71, 'a')}}), "accepted");
  }
}

TEST(DraFacts, TheRootOfAPciSlotComesFromTheKernel) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "nvshare-dra-facts-XXXXXX").string();
  const std::string sysfs = mkdtemp(name.data());
  fs::create_directories(sysfs + "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  fs::create_directories(sysfs + "/bus/pci/devices");
  fs::create_symlink("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", sysfs + "/bus/pci/devices/0000:3b:00.0");
  EXPECT_EQ(pcie_root_of(sysfs, "00000000:3B:00.0"), "pci0000:3a");
  EXPECT_EQ(pcie_root_of(sysfs, "00000000:4B:00.0"), "");
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  fs::remove_all(sysfs);
}

TEST(DraFacts, AGpuThatCannotBeOfferedIsLeftOutAlone) {
  std::vector<DeviceFacts> facts(3);
  for (int i = 0; i < 3; ++i)
    facts[static_cast<size_t>(i)].gpu = {i == 1 ? "no UUID" : "GPU-0000000" + std::to_string(i), 1LL << 34, true, -1};
  const DeviceModels models = models_of(facts, {});
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[1].name, "gpu-00000002");
}

}  // namespace
}  // namespace nvshare::kubernetes::dra
