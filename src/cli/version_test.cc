#include <gtest/gtest.h>

#include <algorithm>

#include "cli/version_command.h"

namespace nvshare::cli {
namespace {

Releases one_release() {
  Releases releases;
  releases.own = "0.2.0";
  releases.library = "/usr/lib/nvshare/libnvshare.so";
  releases.installed = {{"scheduler", "0.2.0", "/usr/bin/nvshare-scheduler"},
                        {"Slurm plugin", "0.2.0", "/usr/lib/nvshare/nvshare-slurm-step"}};
  releases.runtime_dir = "/run/nvshare";
  releases.running = "0.2.0";
  releases.clients = {{{"0.2.0", 2}, 3}};
  return releases;
}

size_t lines_of(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST(Version, PartsOfOneReleaseNeedNoAdvice) {
  const std::string text = text_of(one_release());
  EXPECT_EQ(lines_of(text), 6u) << text;
  for (const char* line :
       {"nvsharectl    0.2.0, protocol ", "Slurm plugin  0.2.0 at /usr/lib/nvshare/nvshare-slurm-step\n",
        "running       scheduler 0.2.0 in /run/nvshare\n", "              3 clients with the library 0.2.0, protocol 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST(Version, WhatDoesNotBelongTogetherIsNamedWithWhatToDo) {
  Releases releases = one_release();
  releases.installed[1].release = "0.1.0";
  releases.running = "0.1.0";
  releases.clients = {{{"", 1}, 1}, {{"0.1.0", 1}, 2}};
  const std::string text = text_of(releases);
  for (const char* said : {"/usr/lib/nvshare/nvshare-slurm-step and nvsharectl 0.2.0 belong to two releases: install all parts of one\n",
                           "the scheduler that runs is 0.1.0: restart it for 0.2.0",
                           "1 client keeps a library of an earlier release until it ends: the scheduler serves it by protocol 1"})
    EXPECT_NE(text.find(said), std::string::npos) << said << text;
  EXPECT_EQ(text.find("2 clients keep"), std::string::npos) << "theirs is the scheduler's";
}

TEST(Version, WithoutASchedulerOrWithOneThatDoesNotAnswerUs) {
  Releases releases = one_release();
  releases.running.clear();
  releases.unknown_why = "only root may ask";
  EXPECT_NE(text_of(releases).find("release unknown: only root may ask\n"), std::string::npos);
  releases.runtime_dir.clear();
  releases.none_why = "nobody answers";
  EXPECT_NE(text_of(releases).find("running       none: nobody answers\n"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::cli
