// What containers are given, and how it gets onto the host.
#include "kubernetes/devices/container_edits.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "kubernetes/devices/install.h"
#include "kubernetes/files.h"
#include "kubernetes/test_amounts.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;

class ContainerEditsTest : public testing::Test {
 protected:
  ContainerEditsTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-grants-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    settings_.install_dir = folder_ + "/install";
    settings_.cdi_dir = folder_ + "/cdi";
    settings_.runtime_dir = "/run/other";
    write("library-1",
          "\x7f"
          "ELF one");
    write("library-2",
          "\x7f"
          "ELF two");
  }
  ~ContainerEditsTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) { ASSERT_TRUE(write_file_atomically(folder_ + "/" + name, content)); }
  InstalledFiles install(const std::string& name) {
    auto files = install_files(folder_ + "/" + name, settings_.install_dir, "1.2.3");
    EXPECT_TRUE(files) << files.error().text;
    return files ? *files : InstalledFiles{};
  }
  static ino_t inode(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  std::string folder_;
  Settings settings_;
};

TEST_F(ContainerEditsTest, AContainerGetsTheLibraryTheSocketsFolderAndItsGpus) {
  InstalledFiles files{"/var/lib/nvshare/lib/libnvshare-1.so", "/var/lib/nvshare/lib/ld.so.preload"};
  auto one = gpu_edits(settings_, files, {"GPU-b::3"});
  EXPECT_EQ(one.variables, (std::map<std::string, std::string>{{"NVIDIA_VISIBLE_DEVICES", "GPU-b"}}));
  EXPECT_EQ(one.mounts, (std::vector<Mount>{{"/usr/lib/nvshare/libnvshare.so", files.library},
                                            {"/etc/ld.so.preload", files.preload},
                                            {"/run/nvshare/client", "/run/other/client"}}));
  EXPECT_TRUE(one.cdi_devices.empty());
  auto two = gpu_edits(settings_, files, {"GPU-b::3", "GPU-a::0", "GPU-b::4"});
  EXPECT_EQ(two.variables["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
  EXPECT_EQ(two.variables["NVSHARE_GPU_MEMORY_GRANT_GPUS"], "2");
  EXPECT_EQ(memory_edits(settings_, 4).variables["NVSHARE_GPU_MEMORY_LIMIT"], "4096Mi");
  EXPECT_EQ(memory_edits(settings_, 4).variables["NVSHARE_GPU_MEMORY_GRANT"], "4096Mi") << "which a pod's own variable does not replace";
  EXPECT_FALSE(one.variables.contains("NVSHARE_GPU_MEMORY_GRANT_DEFAULT"));
  settings_.division.default_memory = 3 * kGib;
  EXPECT_EQ(gpu_edits(settings_, files, {"GPU-b::3"}).variables["NVSHARE_GPU_MEMORY_GRANT_DEFAULT"], "3072Mi");
  EXPECT_EQ(gpu_edits(settings_, files, {"GPU-b::3", "GPU-a::0"}).variables["NVSHARE_GPU_MEMORY_GRANT_DEFAULT"], "1536Mi")
      << "an even part on each";
  settings_.division.memory_unit = 1'500'000;
  EXPECT_EQ(memory_edits(settings_, 3).variables["NVSHARE_GPU_MEMORY_LIMIT"], "4500000");
}

TEST_F(ContainerEditsTest, VersionsOfTheLibraryStandSideBySide) {
  auto first = install("library-1");
  ino_t before = inode(first.library);
  ino_t preload = inode(first.preload);
  EXPECT_EQ(first.library.find(settings_.install_dir + "/lib/libnvshare-1.2.3-"), 0u) << first.library;
  EXPECT_EQ(*read_file(first.preload), "/usr/lib/nvshare/libnvshare.so\n");
  auto second = install("library-2");
  EXPECT_NE(second.library, first.library);
  EXPECT_EQ(*read_file(first.library),
            "\x7f"
            "ELF one");
  EXPECT_EQ(install("library-1").library, first.library);
  EXPECT_EQ(inode(first.library), before) << "what containers have mounted is left alone";
  EXPECT_EQ(inode(first.preload), preload);
  struct stat info {};
  ASSERT_EQ(stat(second.library.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  EXPECT_EQ(std::distance(fs::directory_iterator(settings_.install_dir + "/lib"), {}), 3) << "no drafts are left";
  // Half a file of an earlier crash under the final name is replaced, and one with more in it.
  for (const uintmax_t bytes : {4, 40}) {
    std::filesystem::resize_file(first.library, bytes);
    install("library-1");
    EXPECT_EQ(*read_file(first.library),
              "\x7f"
              "ELF one");
  }
}

TEST_F(ContainerEditsTest, WhatCannotBeInstalledIsRefusedByName) {
  write("text", "no library");
  EXPECT_NE(std::string(install_files(folder_ + "/text", settings_.install_dir, "1").error().text).find("/text"), std::string::npos);
  EXPECT_NE(std::string(install_files(folder_ + "/none", settings_.install_dir, "1").error().text).find("/none"), std::string::npos);
  EXPECT_NE(std::string(install_files(folder_ + "/library-1", folder_ + "/no/folder", "1").error().text).find("/no/folder"),
            std::string::npos);
}

}  // namespace
}  // namespace nvshare::kubernetes
