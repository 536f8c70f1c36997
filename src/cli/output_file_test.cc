#include "cli/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/fd.h"

namespace nvshare::cli {
namespace {

constexpr uid_t kSomebody = 4711;

class OutputFile : public testing::Test {
 protected:
  OutputFile() {
    std::string made = "/tmp/nvs-output-XXXXXX";
    if (mkdtemp(made.data()) != nullptr) folder_ = made;
    file_ = folder_ + "/picture.json";
    ours_ = folder_ + "/ours";
    std::ofstream(ours_) << "precious";
  }
  ~OutputFile() override { std::filesystem::remove_all(folder_); }

  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t mode(const std::string& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
  }
  size_t names() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  std::string folder_, file_, ours_;
};

TEST_F(OutputFile, IsWrittenWholeAndKeepsItsPermissions) {
  ASSERT_TRUE(write_output(file_, "first, which is longer"));
  EXPECT_EQ(content(file_), "first, which is longer");
  ASSERT_EQ(chmod(file_.c_str(), 0640), 0);
  ASSERT_TRUE(write_output(file_, "second"));
  EXPECT_EQ(content(file_), "second");
  EXPECT_EQ(mode(file_), 0640u);
  EXPECT_EQ(names(), 2u) << "nothing is left beside it";
}

// As in `{ one; nvsharectl trace -o /dev/stdout; three; } > file`.
TEST_F(OutputFile, AnOpenFileIsWrittenToFromWhereItStands) {
  const FileDescriptor fd(open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(fd.get(), "one ", 4), 4);
  for (const std::string folder : {"/proc/self/fd/", "/dev/fd/"}) {
    const std::string name = folder + std::to_string(fd.get());
    ASSERT_TRUE(check_output(name));
    ASSERT_TRUE(write_output(name, "two "));
  }
  ASSERT_EQ(symlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), (folder_ + "/stdout").c_str()), 0);
  ASSERT_TRUE(write_output(folder_ + "/stdout", "two "));
  ASSERT_EQ(write(fd.get(), "three", 5), 5);
  EXPECT_EQ(content(file_), "one two two two three");
  EXPECT_FALSE(write_output("/proc/self/fd/987654", "text"));
}

TEST_F(OutputFile, ALinkOfOnesOwnIsFollowed) {
  ASSERT_EQ(symlink("ours", file_.c_str()), 0);
  ASSERT_TRUE(check_output(file_));
  ASSERT_TRUE(write_output(file_, "text"));
  EXPECT_EQ(content(ours_), "text");
  EXPECT_TRUE(std::filesystem::is_symlink(file_));
  ASSERT_EQ(symlink(file_.c_str(), (folder_ + "/again").c_str()), 0);
  ASSERT_TRUE(write_output(folder_ + "/again", "over two"));
  EXPECT_EQ(content(ours_), "over two");
}

TEST_F(OutputFile, ACircleOfLinksIsRefused) {
  ASSERT_EQ(symlink("picture.json", file_.c_str()), 0);
  EXPECT_FALSE(write_output(file_, "text"));
  EXPECT_FALSE(check_output(file_));
}

TEST_F(OutputFile, ALinkOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a link away";
  ASSERT_EQ(symlink(ours_.c_str(), file_.c_str()), 0);
  ASSERT_EQ(lchown(file_.c_str(), kSomebody, kSomebody), 0);
  for (const auto& refused : {write_output(file_, "text"), check_output(file_), write_new_output(file_, "text")}) {
    ASSERT_FALSE(refused);
    EXPECT_NE(std::string(refused.error().text).find("picture.json"), std::string::npos);
  }
  EXPECT_NE(std::string(write_output(file_, "text").error().text).find("a link of another user (uid 4711)"), std::string::npos);
  EXPECT_EQ(content(ours_), "precious");
  // Nor where it is the second of two.
  ASSERT_EQ(symlink(file_.c_str(), (folder_ + "/again").c_str()), 0);
  EXPECT_FALSE(write_output(folder_ + "/again", "text"));
  EXPECT_EQ(content(ours_), "precious");
}

// Whoever has it open reads nothing of what is written.
TEST_F(OutputFile, WhatAnotherUserMadeThereIsReplaced) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a file away";
  std::ofstream(file_) << "theirs";
  ASSERT_EQ(chmod(file_.c_str(), 0666), 0);
  ASSERT_EQ(chown(file_.c_str(), kSomebody, kSomebody), 0);
  const FileDescriptor theirs(open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  const mode_t before = umask(022);
  ASSERT_TRUE(write_output(file_, "secret"));
  umask(before);
  char text[16] = {};
  EXPECT_EQ(read(theirs.get(), text, sizeof text), 6);
  EXPECT_STREQ(text, "theirs");
  EXPECT_EQ(mode(file_), 0644u);
  EXPECT_EQ(content(file_), "secret");
}

TEST_F(OutputFile, AHardLinkToAnotherFileIsReplaced) {
  ASSERT_EQ(link(ours_.c_str(), file_.c_str()), 0);
  ASSERT_TRUE(write_output(file_, "text"));
  EXPECT_EQ(content(ours_), "precious");
}

TEST_F(OutputFile, APipeAndADeviceAreWrittenTo) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const FileDescriptor out(ends[0]), in(ends[1]);
  ASSERT_TRUE(write_output("/proc/self/fd/" + std::to_string(in.get()), "text"));
  char text[16] = {};
  EXPECT_EQ(read(out.get(), text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  EXPECT_TRUE(check_output("/dev/null"));
  ASSERT_TRUE(write_output("/dev/null", "text"));
  EXPECT_EQ(mode("/dev/null"), 0666u) << "it is still the device";
}

TEST_F(OutputFile, APipeOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a pipe away";
  ASSERT_EQ(mkfifo(file_.c_str(), 0666), 0);
  ASSERT_EQ(chown(file_.c_str(), kSomebody, kSomebody), 0);
  const auto refused = write_output(file_, "text");  // nobody reads: opened, it would wait
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("another user's"), std::string::npos);
}

TEST_F(OutputFile, WhatCannotBeWrittenIsNamed) {
  const std::string nowhere = folder_ + "/no/such/file";
  EXPECT_FALSE(check_output(nowhere));
  const auto refused = write_output(nowhere, "text");
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find(nowhere), std::string::npos);
  EXPECT_FALSE(write_output(folder_, "text"));
  EXPECT_FALSE(check_output(folder_));
  EXPECT_EQ(names(), 1u);
}

TEST_F(OutputFile, OfWhatDoesNotFitNothingIsLeft) {
  const auto where_ten_bytes_fit = [this](bool is_new) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit ten{10, 10};
      setrlimit(RLIMIT_FSIZE, &ten);
      const std::string text(100, 'x');
      _exit((is_new ? write_new_output(file_, text) : write_output(file_, text)) ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  const size_t before = names();
  EXPECT_TRUE(where_ten_bytes_fit(true)) << "it is said";
  EXPECT_TRUE(where_ten_bytes_fit(false)) << "it is said";
  EXPECT_EQ(names(), before);
  EXPECT_FALSE(std::filesystem::exists(file_));
}

}  // namespace
}  // namespace nvshare::cli
