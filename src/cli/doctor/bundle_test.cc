// What may leave a machine in a bug report.
#include "cli/doctor/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/doctor/scrubber.h"

namespace nvshare::cli::doctor {
namespace {

constexpr const char* kSecrets[] = {"hunter2",
                                    "eyJhbGciOiJIUzI1NiJ9",
                                    "sk-live-4242424242424242424242",
                                    "10.11.12.13",
                                    "fe80::1ff:fe23:4567:890a",
                                    "ann@example.org",
                                    "annabel",
                                    "gauss.example.org",
                                    "merger-model",
                                    "GPU-8a899320-66a8-22f1-f58a-ff084f6c775c",
                                    "payroll",
                                    "secretsim",
                                    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"};

BundleParts telling_parts() {
  BundleParts parts;
  parts.releases = "nvsharectl  1.2.3\n";
  parts.machine = "Linux 6.1.0 x86_64\n";
  parts.findings = {{Level::kWarning, "bypass", "secretsim (pid 12) uses the GPU without nvshare", "of annabel", "ask 10.11.12.13"}};
  parts.hidden_hosts = {"gauss.example.org"};
  parts.hidden_users = {"annabel"};
  parts.environment = {"NVSHARE_RUNTIME_DIR=/home/annabel/run", "NVSHARE_API_TOKEN=hunter2", "LD_PRELOAD=/opt/merger-model/x.so"};
  parts.settings = {
      {"/etc/nvshare/scheduler.toml", "metrics_address = \"10.11.12.13:9402\"\npassword = \"hunter2\"\nswitch_time_min = 10\n"}};
  auto& gpu = parts.status.gpus.emplace_back();
  gpu.uuid = "GPU-8a899320-66a8-22f1-f58a-ff084f6c775c";
  auto& tenant = parts.status.tenants.emplace_back();
  tenant.name = "merger-model";
  tenant.user = "annabel";
  tenant.partition = "payroll";
  auto& client = parts.status.clients.emplace_back();
  client.program = "secretsim";
  parts.status.clients.emplace_back().program = "python3";
  parts.status_line = protocol::admin::encode(parts.status);
  parts.trace_line = R"({"lines":["{\"names\":{\"program\":\"secretsim\",\"tenant_name\":\"merger-model\",\"client\":1}}"]})";
  parts.log =
      "[2026-11-23 21:45:08.096] [info] serves /run/nvshare on gauss.example.org (pid 42)\n"
      "job of annabel on payroll: merger-model.7 waits for GPU-8a899320-66a8-22f1-f58a-ff084f6c775c\n"
      "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9\npassword hunter2\n--token=hunter2 {\"apikey\":\"hunter2\"} "
      "sk-live-4242424242424242424242\n"
      "from 10.11.12.13:443 and fe80::1ff:fe23:4567:890a, mail ann@example.org; container "
      "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n";
  return parts;
}

TEST(Bundle, HasNoNamesKeysOrAddresses) {
  const std::string text = bundle_of(telling_parts());
  for (const char* secret : kSecrets) EXPECT_EQ(text.find(secret), std::string::npos) << secret << " in\n" << text;
}

TEST(Bundle, HasWhatAReportNeeds) {
  const std::string text = bundle_of(telling_parts());
  for (const char* needed : {"==== releases\nnvsharectl  1.2.3", "Linux 6.1.0", "uses the GPU without nvshare", "switch_time_min = 10",
                             "NVSHARE_RUNTIME_DIR=/home/user/run", "[2026-11-23 21:45:08.096] [info] serves /run/nvshare",
                             "job of user-1 on partition-1: tenant-1.7 waits for GPU-1", "\"program\":\"program-1\"",
                             "\"program\":\"python3\"", "\"partition\":\"partition-1\""})
    EXPECT_NE(text.find(needed), std::string::npos) << needed << " not in\n" << text;
}

TEST(Bundle, WithoutASchedulerSaysWhy) {
  BundleParts parts;
  parts.status_error = "no scheduler answers in /run/nvshare";
  EXPECT_NE(bundle_of(parts).find("==== status\nno scheduler answers in /run/nvshare\n"), std::string::npos);
}

TEST(Scrubber, LeavesOrdinaryWordsAlone) {
  Scrubber scrubber;
  scrubber.hide("ai", "tenant");
  scrubber.hide("4711", "tenant");
  for (const char* text : {"main waits 4711 ms; 580.159.04 on 127.0.0.1:9402, 0000:3b:00.0 at 21:45:08.096",
                           "libnvshare.so: 12.5 GiB of 140 GiB", "[::1]:9402"})
    EXPECT_EQ(scrubber.text(text), text);
  EXPECT_EQ(scrubber.json(R"({"name":"ai","id":4711})"), R"({"id":4711,"name":"tenant-1"})")
      << "a value that is a name is one at any length";
  EXPECT_EQ(scrubber.json("no json, token: x"), "no json, token: [removed]");
}

TEST(Bundle, IsAFileOfItsOwnersAlone) {
  std::string folder = "/tmp/nvs-bundle-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/report.txt";
  ASSERT_TRUE(write_bundle(file, "text"));
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto again = write_bundle(file, "other");
  ASSERT_FALSE(again);
  EXPECT_NE(std::string(again.error().text).find("report.txt"), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace nvshare::cli::doctor
