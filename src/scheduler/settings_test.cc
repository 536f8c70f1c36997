#include "scheduler/settings.h"

#include <gtest/gtest.h>

#include <map>

namespace nvshare::scheduler {
namespace {

using Environment = std::map<std::string, std::string>;

Result<Settings> load(const char* file, const Environment& environment, const Texts& flags) {
  return load_settings(
      "test.toml", file,
      [&](const char* name) {
        auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      flags);
}

std::string refusal(const char* file, const Environment& environment, const Texts& flags) {
  auto settings = load(file, environment, flags);
  return settings ? "accepted" : settings.error().text;
}

TEST(Settings, DefaultsAreTheDocumentedOnes) {
  auto settings = load("", {}, {});
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->policy.switch_time_mode, policy::SwitchTimeMode::kAuto);
  EXPECT_EQ(settings->policy.switch_time_fixed, 60'000'000'000);
  EXPECT_EQ(settings->policy.switch_time_multiplier, 5);
  EXPECT_EQ(settings->runtime_dir, "/run/nvshare");
  EXPECT_EQ(settings->log_level, "info");
  EXPECT_EQ(settings->sharing, Sharing::kAuto);
  EXPECT_FALSE(settings->policy.memory_reserve_percent);
}

TEST(Settings, FlagBeatsEnvironmentBeatsFile) {
  const char* file = "switch_time_fixed = 1.5\nswitch_time_mode = 'fixed'\nnvml = false\nmemory_reserve_percent = 10";
  EXPECT_EQ(load(file, {}, {})->policy.switch_time_fixed, 1'500'000'000);
  EXPECT_EQ(load(file, {{"NVSHARE_SWITCH_TIME_FIXED", "50ms"}}, {})->policy.switch_time_fixed, 50'000'000);
  auto settings = load(file, {{"NVSHARE_SWITCH_TIME_FIXED", "50ms"}}, {{"switch_time_fixed", "2"}});
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->policy.switch_time_fixed, 2'000'000'000);
  EXPECT_EQ(settings->policy.switch_time_mode, policy::SwitchTimeMode::kFixed);
  EXPECT_FALSE(settings->nvml);
  EXPECT_EQ(settings->policy.memory_reserve_percent, 10);
}

TEST(Settings, EveryVariableHasAWrongValueThatIsRefusedByName) {
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"switch_time_mode", {"sometimes", "AUTO", " "}},
      {"switch_time_fixed", {"0", "-1", "soon", "25h"}},
      {"switch_time_multiplier", {"0", "1001", "2.5", "x"}},
      {"switch_time_min", {"0", "never"}},
      {"switch_time_max", {"0", "1e9"}},
      {"memory_reserve_percent", {"-1", "91", "10%"}},
      {"unanswered_grace", {"0", "x"}},
      {"gang_turns", {"maybe", "ON"}},
      {"metrics_address", {"on", "9402", ":9402", "localhost:9402", "127.0.0.1", "127.0.0.1:65536", "::1:9402", "[::1]", "127.0.0.1:80s"}},
      {"metrics_tenants", {"-1", "10001", "many"}},
      {"page_address", {"on", "9402", "localhost:9402", "127.0.0.1", "127.0.0.1:65536", "::1:9402"}},
      {"page_token_file", {"token"}},
      {"scheduling_mode", {"fair", "Auto", "round_robin"}},
      {"compute_window_ms", {"9", "600001", "2s", "AUTO"}},
      {"quota_sample_interval_ms", {"0", "10001", "x"}},
      {"quota_carryover_percent", {"-1", "101", "half"}},
      {"drop_tail_billing_percent", {"-1", "101", "50%"}},
      {"scheduling_slice_ms", {"0", "60001", "x"}},
      {"gpu_physical_memory_mb", {"63", "16Gi", "-5"}},
      {"gpu_memory_oversub_ratio", {"0.05", "101", "twice"}},
      {"host_memory_budget", {"much", "-1", "64", "1023Ki"}},
      {"host_memory_kept_free", {"much", "-1"}},
      {"host_arena", {"mine", "Process"}},
      {"skip_unchanged", {"yes", "auto", "On"}},
      {"prefetch", {"yes", "auto", "On"}},
      {"sharing", {"measured", "mps", "Turns"}},
      {"latency_target", {"0", "11s", "soon"}},
      {"mps", {"yes", "auto", "On"}},
      {"take_over_patience", {"-1", "25h"}},
      {"exit_when_idle", {"-1", "x"}},
      {"restart_grace", {"61", "x"}},
      {"nvml_interval", {"1ms", "x"}},
      {"nvml", {"maybe", "1"}},
      {"bypass", {"ignore", "Report", "refuse"}},
      {"connections_per_tenant", {"0", "1000001", "many"}},
      {"connections_per_user", {"0", "-1", "1e3"}},
      {"gpus_per_user", {"0", "1025"}},
      {"runtime_dir", {"relative/path", "/" + std::string(85, 'a')}},
      {"lock_dir", {"locks"}},
      {"log_level", {"verbose", "INFO"}},
  };
  for (const SettingSpec& spec : setting_specs()) {
    if (std::string(spec.name) == "trace") continue;  // any path will do
    std::vector<std::string> values = {"no setting has this value"};
    if (const auto own = wrong.find(spec.name); own != wrong.end()) values.insert(values.end(), own->second.begin(), own->second.end());
    for (const std::string& value : values) {
      std::string by_variable = refusal("", {{variable_of(spec.name), value}}, {});
      EXPECT_NE(by_variable.find(variable_of(spec.name)), std::string::npos) << by_variable;
      EXPECT_NE(by_variable.find(spec.accepted), std::string::npos) << by_variable;
      std::string by_flag = refusal("", {}, {{spec.name, value}});
      EXPECT_NE(by_flag.find(flag_of(spec.name)), std::string::npos) << by_flag;
    }
  }
}

TEST(Settings, TheFileIsRefusedByLineAndKey) {
  EXPECT_NE(refusal("log_level = 'info'\nswich_time = 3", {}, {}).find("line 2: 'swich_time'"), std::string::npos);
  EXPECT_NE(refusal("\ntrace = ['/tmp/x']", {}, {}).find("line 2: trace is a list or a table; accepted: a path"), std::string::npos);
  EXPECT_NE(refusal("[trace]\nfile = '/tmp/x'", {}, {}).find("line 1: trace is a list or a table"), std::string::npos);
  EXPECT_NE(refusal("switch_time_mode = 'never'", {}, {}).find("test.toml: switch_time_mode"), std::string::npos);
  EXPECT_NE(refusal("switch_time_mode = ", {}, {}).find("test.toml, line 1"), std::string::npos);
  EXPECT_NE(refusal("switch_time_fixed = [1]", {}, {}).find("switch_time_fixed"), std::string::npos);
}

TEST(Settings, MinimumAboveMaximumIsRefused) {
  EXPECT_NE(refusal("", {{"NVSHARE_SWITCH_TIME_MIN", "20"}, {"NVSHARE_SWITCH_TIME_MAX", "10"}}, {}).find("NVSHARE_SWITCH_TIME_MIN"),
            std::string::npos);
}

TEST(Settings, AnotherWayToWriteANameIsUnderstoodAsAMistake) {
  const auto refused = [](const char* name, const char* value) {
    const auto changed = change_settings(Settings(), {{name, value}});
    return changed ? std::string("accepted") : std::string(changed.error().text);
  };
  for (const char* name : {"switch-time-min", "--switch-time-min", "NVSHARE_SWITCH_TIME_MIN", "Switch_Time_Min"})
    EXPECT_NE(refused(name, "5").find("did you mean switch_time_min?"), std::string::npos) << refused(name, "5");
  EXPECT_NE(refused("fast", "1").find("'fast' is no setting; 'nvshare-scheduler --help' lists them"), std::string::npos);
  EXPECT_NE(refused("", "1").find("'' is no setting"), std::string::npos);
  EXPECT_NE(refused("mps", "on").find("set it in scheduler.toml, or as NVSHARE_MPS, and restart"), std::string::npos)
      << refused("mps", "on");
  EXPECT_NE(refused("switch_time_min", "500").find("is 500 s and switch_time_max 300 s; accepted: "), std::string::npos);
  EXPECT_EQ(refused("host_memory_budget", "0"), "accepted");
}

TEST(Settings, ThePageNeedsATokenWhereOtherMachinesReachIt) {
  for (const char* address : {"0.0.0.0:9402", "10.1.2.3:9402", "[::]:9402", "[::ffff:127.0.0.1]:9402"}) {
    const std::string text = refusal("", {}, {{"page_address", address}});
    EXPECT_NE(text.find(address), std::string::npos) << text;
    EXPECT_NE(text.find("NVSHARE_PAGE_TOKEN_FILE"), std::string::npos) << text;
    EXPECT_EQ(refusal("", {}, {{"page_address", address}, {"page_token_file", "/etc/nvshare/token"}}), "accepted");
  }
  for (const char* address : {"off", "127.0.0.1:9402", "127.1.2.3:0", "[::1]:9402"})
    EXPECT_EQ(refusal("", {}, {{"page_address", address}}), "accepted");
}

TEST(Settings, AChangeIsAllOrNothing) {
  Settings settings;
  auto changed = change_settings(settings, {{"switch_time_mode", "fixed"}, {"switch_time_fixed", "3"}});
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->policy.switch_time_fixed, 3'000'000'000);
  EXPECT_FALSE(change_settings(settings, {{"switch_time_mode", "fixed"}, {"switch_time_fixed", "x"}}));
  auto refused = change_settings(settings, {{"runtime_dir", "/tmp"}});
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("restart"), std::string::npos);
  EXPECT_FALSE(change_settings(settings, {{"colour", "blue"}}));
}

}  // namespace
}  // namespace nvshare::scheduler
