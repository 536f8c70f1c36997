#include "cli/environment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace nvshare::cli {
namespace {

constexpr char kLibrary[] = "/opt/nvshare/lib/libnvshare.so";

class TemporaryDirectory {
 public:
  TemporaryDirectory() { path_ = mkdtemp(template_); }
  ~TemporaryDirectory() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name, const std::string& content, mode_t mode) {
    std::string path = path_ + "/" + name;
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    files_.push_back(path);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  char template_[32] = "/tmp/nvshare-test-XXXXXX";
  std::string path_;
  std::vector<std::string> files_;
};

TEST(Preload, IsAppendedToWhatIsThere) {
  EXPECT_EQ(append_preload("", kLibrary), kLibrary);
  EXPECT_EQ(append_preload("/usr/lib/libjemalloc.so", kLibrary), std::string("/usr/lib/libjemalloc.so:") + kLibrary);
  EXPECT_EQ(append_preload("/a.so /b.so", kLibrary), std::string("/a.so /b.so:") + kLibrary);
}

TEST(Preload, IsNotAppendedTwice) {
  for (std::string existing : {std::string(kLibrary), std::string("/a.so:") + kLibrary, std::string(kLibrary) + " /b.so"}) {
    EXPECT_EQ(append_preload(existing, kLibrary), existing);
  }
  // A path that merely begins alike is another library.
  EXPECT_EQ(append_preload(std::string(kLibrary) + ".1", kLibrary), std::string(kLibrary) + ".1:" + kLibrary);
}

TEST(WrapperHint, NamesWhatToDoInstead) {
  for (const char* program : {"docker", "/usr/bin/docker", "podman", "nerdctl"}) {
    auto hint = wrapper_hint(program);
    ASSERT_TRUE(hint) << program;
    EXPECT_NE(hint->find("LD_PRELOAD"), std::string::npos) << *hint;
    EXPECT_NE(hint->find("/run/nvshare/client"), std::string::npos) << *hint;
  }
  EXPECT_NE(wrapper_hint("sudo")->find("sudo nvsharectl run"), std::string::npos);
  EXPECT_NE(wrapper_hint("/usr/bin/ssh")->find("nvsharectl run"), std::string::npos);
  EXPECT_TRUE(wrapper_hint("kubectl"));
}

TEST(WrapperHint, IsSilentForOrdinaryPrograms) {
  for (const char* program : {"python3", "/usr/bin/bash", "docker-train.py", "./sudoku", "torchrun", ""})
    EXPECT_FALSE(wrapper_hint(program)) << program;
}

TEST(ResolveProgram, LooksWhereExecWould) {
  TemporaryDirectory directory;
  const std::string program = directory.file("tool", "#!/bin/sh\n", 0755);
  directory.file("data", "not a program", 0644);
  const Environment environment = {{"PATH", "/nonexistent:" + directory.path()}};
  EXPECT_EQ(resolve_program("tool", environment), program);
  EXPECT_EQ(resolve_program(program, {}), program);
  EXPECT_FALSE(resolve_program("data", environment));
  EXPECT_FALSE(resolve_program("absent", environment));
  EXPECT_FALSE(resolve_program(directory.path(), environment));
  EXPECT_FALSE(resolve_program("", environment));
}

TEST(KindOfProgram, SeesSetuidAndScripts) {
  TemporaryDirectory directory;
  EXPECT_EQ(kind_of_program(directory.file("script", "#!/bin/sh\n", 0755)), ProgramKind::kOrdinary);
  EXPECT_EQ(kind_of_program(directory.file("setuid", "#!/bin/sh\n", 04755)), ProgramKind::kPrivileged);
  EXPECT_EQ(kind_of_program("/proc/self/exe"), ProgramKind::kOrdinary);
  EXPECT_EQ(kind_of_program("/nonexistent"), ProgramKind::kOrdinary);
}

TEST(KindOfProgram, SeesThatNoLoaderIsNamed) {
  // The ELF header of a program without any segment: no PT_INTERP.
  std::string header(64, '\0');
  header.replace(0, 5,
                 "\x7f"
                 "ELF\x02",
                 5);
  TemporaryDirectory directory;
  EXPECT_EQ(kind_of_program(directory.file("static", header, 0755)), ProgramKind::kStatic);
  EXPECT_EQ(kind_of_program(directory.file("cut-off", header.substr(0, 20), 0755)), ProgramKind::kOrdinary);
}

}  // namespace
}  // namespace nvshare::cli
