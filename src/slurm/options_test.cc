#include "slurm/options.h"

#include <gtest/gtest.h>

#include <map>

namespace nvshare::slurm {
namespace {

constexpr int64_t kG = 1'000'000'000;

Lookup variables(const std::map<std::string, std::string>& values) {
  return [values](const char* name) {
    const auto at = values.find(name);
    return at == values.end() ? std::nullopt : std::optional(at->second);
  };
}

template <typename T>
std::string fault(const Result<T>& result) {
  return result ? "none" : result.error().text;
}

Site site_of(const char* text) {
  Result<Site> site = parse_site(text);
  EXPECT_TRUE(site) << fault(site);
  return site ? *site : Site();
}

TEST(SlurmOptions, ARequestSaysWhatItWants) {
  const auto all = parse_request("memory=20G,cores=30,priority=-5");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->memory, 20 * kG);
  EXPECT_EQ(all->cores, 30);
  EXPECT_EQ(all->priority, -5);
  EXPECT_NE(fault(parse_request("cores=30,,memory=1G")).find("'': "), std::string::npos);
  const auto nothing = parse_request("");
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(nothing->memory || nothing->cores || nothing->priority);
}

TEST(SlurmOptions, BadValuesAreRefusedByNameAndRange) {
  for (const char* bad : {"cores=0", "cores=101", "cores=3x", "cores", "memory=", "memory=0", "memory=2000Ti", "memory=-1", "priority=101",
                          "colour=red", "=3", "(null)"}) {
    const std::string why = fault(parse_request(bad));
    EXPECT_NE(why.find("accepted: memory=BYTES"), std::string::npos) << bad << ": " << why;
    EXPECT_EQ(why.find("accepted"), why.rfind("accepted")) << bad << ": " << why;
    EXPECT_NE(why.find(std::string("'") + std::string(bad).substr(0, 4)), std::string::npos) << bad << ": " << why;
  }
}

TEST(SlurmOptions, VariablesSayWhatTheOptionLeavesOpen) {
  const auto both = with_environment({1 * kG, {}, {}}, variables({{"SLURM_NVSHARE", "memory=2G,cores=20"}, {"SLURM_NVSHARE_CORES", "25"}}));
  ASSERT_TRUE(both);
  EXPECT_EQ(both->memory, 1 * kG);
  EXPECT_EQ(both->cores, 25);
  EXPECT_FALSE(both->priority);
  EXPECT_NE(fault(with_environment({}, variables({{"SLURM_NVSHARE_MEMORY", "x"}}))).find("SLURM_NVSHARE_MEMORY"), std::string::npos);
  EXPECT_NE(fault(with_environment({}, variables({{"SLURM_NVSHARE", "cores=x"}}))).find("SLURM_NVSHARE: 'cores=x'"), std::string::npos);
  EXPECT_TRUE(asks_by_environment(variables({{"SLURM_NVSHARE", ""}})));
  EXPECT_FALSE(asks_by_environment(variables({})));
}

TEST(SlurmOptions, ASitesFileIsReadAndItsMistakesAreNamed) {
  const Site site = site_of(
      "# comment\n\n runtime_dir = /run/x # why\nlibrary=/opt/libnvshare.so\njobs = all\ndefault_memory = 4G\ndefault_cores = 40\n"
      "default_priority = -1\nmax_memory = 8G\nmax_cores = 90\nmax_priority = 3\nshards_per_gpu = 20\nmemory_per_shard = 1G\nsuspend_time "
      "= 5\ncomment = "
      "yes\r\n");
  EXPECT_EQ(site.runtime_dir, "/run/x");
  EXPECT_EQ(site.library, "/opt/libnvshare.so");
  EXPECT_TRUE(site.all_jobs);
  EXPECT_EQ(site.defaults.cores, 40);
  EXPECT_EQ(site.max_memory, 8 * kG);
  EXPECT_EQ(site.shards_per_gpu, 20);
  EXPECT_EQ(site.suspend_time, 5);
  EXPECT_TRUE(site.comment);
  for (const auto& [text, said] : std::map<std::string, std::string>{{"\nspeed = 3", "line 2: 'speed'"},
                                                                     {"max_cores", "line 1"},
                                                                     {"max_cores = 0", "accepted: 1 to 100"},
                                                                     {"jobs = some", "accepted: asked, all"},
                                                                     {"runtime_dir = run", "accepted: an absolute path"},
                                                                     {"shards_per_gpu = 0", "accepted: 1 to 10000"}}) {
    EXPECT_NE(fault(parse_site(text)).find(said), std::string::npos) << fault(parse_site(text));
  }
  EXPECT_TRUE(read_site("/nonexistent/nvshare.conf")) << "the defaults";
  EXPECT_FALSE(read_site("/etc/passwd"));
}

TEST(SlurmOptions, AboveTheSitesMaximaIsRefusedAtSubmission) {
  const Site site = site_of("max_memory = 8G\nmax_cores = 90\nmax_priority = 3");
  EXPECT_TRUE(check(site, {8 * kG, 90, 3}));
  EXPECT_NE(fault(check(site, {9 * kG, {}, {}})).find("memory=9000000000"), std::string::npos);
  EXPECT_NE(fault(check(site, {{}, 91, {}})).find("accepted: 1 to 90"), std::string::npos);
  EXPECT_NE(fault(check(site, {{}, {}, 4})).find("accepted: -100 to 3"), std::string::npos);
  EXPECT_FALSE(check(Site(), {{}, {}, 1})) << "nobody goes first unless the site lets users";
}

TEST(SlurmOptions, OnTheNodeTheLowerOneHolds) {
  const Site site =
      site_of("max_memory = 8G\nmax_cores = 90\nmax_priority = 3\ndefault_cores = 40\ndefault_memory = 2G\ndefault_priority = 7");
  const Grant most = decide(site, {99 * kG, 100, 100}, 0);
  EXPECT_EQ(most.memory, 8 * kG);
  EXPECT_EQ(most.cores, 90);
  EXPECT_EQ(most.priority, 3);
  const Grant usual = decide(site, {}, 0);
  EXPECT_EQ(usual.memory, 2 * kG);
  EXPECT_EQ(usual.cores, 40);
  EXPECT_EQ(usual.priority, 7);
  const Grant nothing = decide(Site(), {}, 0);
  EXPECT_EQ(nothing.memory, 0);
  EXPECT_EQ(nothing.cores, 100);
}

TEST(SlurmOptions, ShardsAreAPartOfTheGpu) {
  const Site site = site_of("shards_per_gpu = 10\ndefault_cores = 20\ndefault_memory = 1G");
  EXPECT_EQ(decide(site, {}, 3).cores, 30);
  EXPECT_TRUE(decide(site, {}, 3).by_shards);
  EXPECT_FALSE(decide(site, {{}, 90, {}}, 0).by_shards) << "what a job asks for takes nothing from others";
  EXPECT_EQ(decide(site, {}, 3).memory, 0);
  EXPECT_EQ(decide(site, {}, 3).memory_percent, 30);
  EXPECT_EQ(decide(site, {{}, 90, {}}, 3).cores, 30) << "no more by asking";
  EXPECT_EQ(decide(site, {2 * kG, 10, {}}, 3).cores, 10);
  EXPECT_EQ(decide(site, {2 * kG, 10, {}}, 3).memory, 2 * kG);
  EXPECT_EQ(decide(site, {}, 20).cores, 100) << "of two GPUs";
  EXPECT_EQ(decide(site_of("shards_per_gpu = 1000"), {}, 1).cores, 1);
  EXPECT_EQ(decide(Site(), {}, 3).cores, 100) << "the site does not say what a shard is";
  const Site sized = site_of("shards_per_gpu = 10\nmemory_per_shard = 4G\nmax_memory = 10G");
  EXPECT_EQ(decide(sized, {}, 2).memory, 8 * kG);
  EXPECT_EQ(decide(sized, {}, 3).memory, 10 * kG);
  EXPECT_EQ(decide(sized, {}, 3).memory_percent, 0);
}

}  // namespace
}  // namespace nvshare::slurm
