// Configurations as containerd 1.7, containerd 2 and CRI-O have them, and damaged ones.
#include "kubernetes/devices/runtime_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace nvshare::kubernetes {
namespace {

using State = RuntimeCdi::State;

class RuntimeConfig : public testing::Test {
 protected:
  RuntimeConfig() {
    char name[] = "/tmp/nvshare-runtime-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~RuntimeConfig() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  RuntimeCdi read(const std::string& cdi_dir = "/var/run/cdi") { return cdi_of_runtime(folder_, cdi_dir); }
  testing::AssertionResult says(State state, const std::string& part, const std::string& cdi_dir = "/var/run/cdi") {
    const RuntimeCdi cdi = read(cdi_dir);
    if (cdi.state == state && cdi.text.find(part) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << static_cast<int>(cdi.state) << ": " << cdi.text;
  }
  std::string folder_;
};

TEST_F(RuntimeConfig, Containerd17) {
  write("config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"pause\"\n");
  EXPECT_TRUE(says(State::kNotSaid, "does not say enable_cdi, which containerd 1.7 has off and containerd 2 on"));
  EXPECT_TRUE(says(State::kNotSaid, "enable_cdi = true in [plugins.\"io.containerd.grpc.v1.cri\"]"));
  write("config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = false\n");
  EXPECT_TRUE(says(State::kOff, "config.toml has CDI off"));
  write("config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n");
  EXPECT_TRUE(says(State::kOn, "config.toml has CDI on"));
  EXPECT_TRUE(says(State::kOn, "", "/run/cdi/")) << "the same folder";
  EXPECT_TRUE(says(State::kOff, "add that to cdi_spec_dirs", "/srv/cdi"));
  write("config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n  cdi_spec_dirs = [\"/etc/cdi\"]\n");
  EXPECT_TRUE(says(State::kOff, "in /etc/cdi only"));
  EXPECT_TRUE(says(State::kOn, "", "/etc/cdi"));
}

TEST_F(RuntimeConfig, Containerd2HasItOnUnlessItSaysOtherwise) {
  write("config.toml", "version = 3\n");
  EXPECT_TRUE(says(State::kOn, "is of containerd 2"));
  write("config.toml", "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = false\n");
  EXPECT_TRUE(says(State::kOff, "[plugins.\"io.containerd.cri.v1.runtime\"]"));
}

TEST_F(RuntimeConfig, ImportsOfTheFolderCountTheLastOneLast) {
  write("config.toml", "version = 2\nimports = [\"" + folder_ + "/conf.d/*.toml\"]\n");
  EXPECT_TRUE(says(State::kNotSaid, ""));
  write("conf.d/20-nvidia.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n");
  EXPECT_TRUE(says(State::kOn, "conf.d/20-nvidia.toml"));
  write("conf.d/30-off.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = false\n");
  EXPECT_TRUE(says(State::kOff, "conf.d/30-off.toml"));
  write("config.toml", "version = 2\nimports = [\"/nowhere/*.toml\", \"../other/*.toml\"]\n");
  EXPECT_TRUE(says(State::kNotSaid, "which it imports, is not seen here"));
}

TEST_F(RuntimeConfig, CrioHasItOnInItsFolders) {
  write("crio.conf", "[crio.runtime]\ndefault_runtime = \"runc\"\n");
  EXPECT_TRUE(says(State::kOn, "has CDI on"));
  write("crio.conf.d/10-cdi.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/srv/cdi\"]\n");
  EXPECT_TRUE(says(State::kOff, "10-cdi.conf has CDI specifications in /srv/cdi only"));
  write("crio.conf.d/20-cdi.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/run/cdi\"]\n");
  EXPECT_TRUE(says(State::kOn, ""));
}

TEST_F(RuntimeConfig, WhatCannotBeReadIsNeitherOnNorOff) {
  EXPECT_TRUE(says(State::kNotSaid, "has neither config.toml (containerd) nor crio.conf"));
  write("config.toml", "version = 2\n[plugins\n");
  EXPECT_TRUE(says(State::kUnreadable, "config.toml, line 2"));
  write("config.toml", "version = 2\nimports = [\"" + folder_ + "/bad.toml\"]\n");
  write("bad.toml", "\xff\xfe");
  EXPECT_TRUE(says(State::kUnreadable, "bad.toml, line 1"));
  write("config.toml", "version = \"two\"\nplugins = 7\nimports = 3\n");
  EXPECT_TRUE(says(State::kNotSaid, ""));
  write("config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = \"yes\"\n  cdi_spec_dirs = [7]\n");
  EXPECT_TRUE(says(State::kNotSaid, "")) << "a value of another type says nothing";
  std::filesystem::remove(folder_ + "/config.toml");
  std::filesystem::create_directories(folder_ + "/config.toml");
  EXPECT_TRUE(says(State::kUnreadable, "config.toml"));
}

}  // namespace
}  // namespace nvshare::kubernetes
