// What a scheduler leaves its successor of tenants: runs, limits; and what it does not take over.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/printable.h"
#include "scheduler/persisted_file.h"
#include "scheduler/tenants/tenants.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

Peer peer_with(pid_t pid) {
  Peer peer;
  peer.pid = pid;
  peer.start_time = start_time_of(pid);
  return peer;
}

// A process below this one, until it is told to end.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() { end(); }
  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

class PersistedTenants : public testing::Test {
 protected:
  std::string text() const {
    std::ifstream stream(file_);
    std::ostringstream content;
    content << stream.rdbuf();
    return content.str();
  }
  void expect_refused(const std::string& why) const {
    const Tenants tenants(file_);
    EXPECT_NE(tenants.problem().find(file_), std::string::npos) << tenants.problem();
    EXPECT_NE(tenants.problem().find(why), std::string::npos) << tenants.problem();
    EXPECT_TRUE(tenants.all().empty());
  }

  TestFolder folder_;
  std::string file_ = folder_.path() + "/tenants";
};

TEST_F(PersistedTenants, RunsLimitsAndIdsOutliveTheScheduler) {
  Sleeper root, below_another;
  policy::TenantId run = 0, changed = 0;
  {
    Tenants tenants(file_);
    EXPECT_EQ(tenants.problem(), "");
    run = *tenants.add_run(getpid(), "train \"it\"\xff", 5 * kGiB, false, 30);
    changed = *tenants.add_run(root.pid(), "serve", 0);
    tenants.find(changed)->core_limit = 70;
    tenants.find(changed)->core_ceiling = 60;
    tenants.find(changed)->suspended = true;
    tenants.find(changed)->sharing = "turns";
    tenants.find(changed)->pod.sharing = "together";
    tenants.find(changed)->pod.turn_seconds = 20;
    tenants.find(changed)->pod.core_limit = 50;
    tenants.find(changed)->pod.core_reserved = 45;
    tenants.find(changed)->priority = -7;
    tenants.find(changed)->pod.priority = 3;
    tenants.save();
    EXPECT_EQ(tenants.join(peer_with(below_another.pid()), "worker").id, run);
    EXPECT_EQ(tenants.problem(), "");
  }
  Tenants next(file_);
  EXPECT_EQ(next.problem(), "");
  ASSERT_NE(next.find(run), nullptr);
  EXPECT_EQ(next.find(run)->gpu_memory_limit, 5 * kGiB);
  EXPECT_EQ(next.find(run)->core_limit, 30);
  EXPECT_FALSE(next.find(run)->gang_turns);
  EXPECT_EQ(next.find(run)->clients, 0u);
  EXPECT_EQ(next.find("serve")->core_limit, 70);
  EXPECT_EQ(next.find("serve")->core_ceiling, 60);
  EXPECT_TRUE(next.find("serve")->suspended);
  EXPECT_FALSE(next.find(run)->suspended);
  EXPECT_EQ(next.find("serve")->sharing, "turns");
  EXPECT_EQ(next.find("serve")->pod.sharing, "together");
  EXPECT_EQ(next.find("serve")->pod.turn_seconds, 20);
  EXPECT_EQ(next.find("serve")->sharing_in_force(), "turns") << "the administrator's word goes before the pod's";
  EXPECT_EQ(next.find(run)->sharing, "node");
  EXPECT_EQ(next.find("serve")->core_limit_in_force(), 50);
  EXPECT_EQ(next.find("serve")->pod.core_reserved, 45);
  EXPECT_EQ(next.find("serve")->priority_in_force(), -4);
  EXPECT_EQ(next.join(peer_with(below_another.pid()), "worker").id, run) << "what hangs from the run's process is its tenant again";
  EXPECT_GT(*next.add_run(below_another.pid(), "new", 0), changed) << "an id is never given twice";
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077, 0u);
}

// What was used and is owed, too: until a client there takes it over, and however often the scheduler starts anew before that.
TEST_F(PersistedTenants, AccountsOutliveTheScheduler) {
  {
    Tenants tenants(file_);
    tenants.find(*tenants.add_run(getpid(), "train", 0, true, 30))->accounts["GPU-1"] = {5, 6, 7, 8};
    tenants.save();
  }
  for (int i = 0; i < 2; ++i) {
    Tenants next(file_);
    EXPECT_EQ(next.problem(), "");
    ASSERT_NE(next.find("train"), nullptr);
    EXPECT_TRUE(next.find("train")->accounts.empty());
    ASSERT_EQ(next.find("train")->former_accounts.count("GPU-1"), 1u);
    const KeptAccount& account = next.find("train")->former_accounts.at("GPU-1");
    EXPECT_EQ(account.joined_at, 5);
    EXPECT_EQ(account.debt, 6);
    EXPECT_EQ(account.used, 7);
    EXPECT_EQ(account.throttled_time, 8);
    next.find("train")->name = "train";
    next.join(peer_with(getpid()), "python");  // writes the file again
  }
  nlohmann::json kept = nlohmann::json::parse(text());
  const auto is_left_out_with = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json wrong = kept;
    wrong["tenants"][0]["accounts"].push_back(wrong["tenants"][0]["accounts"][0]);
    wrong["tenants"][0]["accounts"][0]["gpu"] = "GPU-2";
    wrong["tenants"][0]["accounts"][0][field] = value;
    ASSERT_TRUE(write_persisted_file(file_, wrong.dump()));
    Tenants next(file_);
    EXPECT_NE(next.problem().find("an impossible account"), std::string::npos) << next.problem();
    ASSERT_NE(next.find("train"), nullptr) << "what limits it has nothing to do with that";
    EXPECT_EQ(next.find("train")->core_limit, 30);
    EXPECT_EQ(next.find("train")->former_accounts.count("GPU-1"), 1u);
    EXPECT_EQ(next.find("train")->former_accounts.count("GPU-2"), 0u);
  };
  is_left_out_with("debt", -1);
  is_left_out_with("debt", INT64_MAX);
  is_left_out_with("used", -1);
  is_left_out_with("joined_at", INT64_MAX);
  is_left_out_with("throttled_time", "long");
  kept["tenants"][0].erase("accounts");  // an earlier release's
  ASSERT_TRUE(write_persisted_file(file_, kept.dump()));
  EXPECT_EQ(Tenants(file_).problem(), "");
}

TEST_F(PersistedTenants, ARunHasItsReservationOnItsGpuUnderTheNextScheduler) {
  {
    Tenants tenants(file_);
    ASSERT_TRUE(tenants.add_run(getpid(), "train", 0, true, 100, 0, 5 * kGiB, 100, {"GPU-a"}));
  }
  Tenants next(file_);
  EXPECT_EQ(next.problem(), "");
  ASSERT_NE(next.find("train"), nullptr);
  EXPECT_TRUE(next.find("train")->has_reserved_on("GPU-a"));
  EXPECT_FALSE(next.find("train")->has_reserved_on("GPU-b"));
}

// Upgrade and downgrade: a release that knew less wrote the file, or one that knows more and says that we may read it.
TEST_F(PersistedTenants, FilesOfOtherReleasesKeepTheirLimits) {
  {
    Tenants tenants(file_);
    const policy::TenantId run = *tenants.add_run(getpid(), "train", 5 * kGiB, false, 30, 9);
    tenants.find(run)->pod.priority = 3;
    tenants.find(run)->pod.memory_on["GPU-a"] = 2 * kGiB;
    tenants.save();
  }
  nlohmann::json kept = nlohmann::json::parse(text());
  const auto reads = [&](int priority, int64_t memory_on_a) {
    ASSERT_TRUE(write_persisted_file(file_, kept.dump()));
    Tenants tenants(file_);
    EXPECT_EQ(tenants.problem(), "");
    ASSERT_NE(tenants.find("train"), nullptr);
    EXPECT_EQ(tenants.find("train")->gpu_memory_limit, 5 * kGiB);
    EXPECT_EQ(tenants.find("train")->core_limit, 30);
    EXPECT_EQ(tenants.find("train")->priority_in_force(), priority);
    EXPECT_EQ(tenants.find("train")->memory_limit_on("GPU-a"), memory_on_a);
    EXPECT_EQ(tenants.find("train")->memory_limit_on("GPU-b"), 5 * kGiB);
  };
  kept["written_by"] = "9.9";
  kept["tenants"][0]["color"] = "green";
  reads(12, 2 * kGiB);
  kept["tenants"][0]["pod"].erase("priority");
  kept["tenants"][0]["pod"].erase("memory_on");
  reads(9, 5 * kGiB);
}

TEST_F(PersistedTenants, APauseOutlivesTheTenantsPrograms) {
  Sleeper program;
  Tenants tenants(file_);
  const policy::TenantId tenant = tenants.join(peer_with(program.pid()), "notebook").id;
  tenants.find(tenant)->suspended = true;
  tenants.leave(tenant);
  ASSERT_NE(tenants.find(tenant), nullptr);
  tenants.find(tenant)->suspended = false;
  tenants.prune();
  EXPECT_EQ(tenants.find(tenant), nullptr);
}

TEST_F(PersistedTenants, WhatHasEndedIsForgottenUnlessItsClientsAreAwaited) {
  Sleeper root, orphan;
  policy::TenantId run = 0;
  {
    Tenants tenants(file_);
    run = *tenants.add_run(root.pid(), "train", kGiB);
    EXPECT_TRUE(tenants.add_run(orphan.pid(), "other", kGiB));
  }
  root.end();
  {
    Tenants next(file_);
    next.prune();
    EXPECT_EQ(next.find(run), nullptr);
    EXPECT_NE(next.find("other"), nullptr);
  }
  Tenants next(file_);
  ++next.find(run)->awaited;
  next.prune();
  ASSERT_NE(next.find(run), nullptr);
  // Its process no longer hangs from the run's, which has ended.
  EXPECT_EQ(next.join(peer_with(orphan.pid()), "worker", run).name, "other") << "what the kernel shows goes before what was";
  orphan.end();
  Sleeper adopted;
  EXPECT_EQ(next.join(peer_with(adopted.pid()), "worker", run).id, run);
  next.find(run)->is_awaited_no_more();
  next.leave(run);
  EXPECT_EQ(next.find(run), nullptr);
}

// One tenant that cannot be taken over, whatever is wrong with it, costs no other its limits.
TEST_F(PersistedTenants, ABadTenantIsLeftOutAndTheOthersAreKept) {
  Sleeper other;
  policy::TenantId bad = 0;
  {
    Tenants tenants(file_);
    ASSERT_TRUE(tenants.add_run(getpid(), "train", 5 * kGiB, true, 30));
    bad = *tenants.add_run(other.pid(), "broken", kGiB, true, 40);
    tenants.save();
  }
  const nlohmann::json kept = nlohmann::json::parse(text());
  const auto is_left_out_with = [&](const char* field, const nlohmann::json& value, const std::string& why) {
    nlohmann::json wrong = kept;
    for (nlohmann::json& tenant : wrong["tenants"]) {
      if (tenant["id"] == bad) tenant[field] = value;
    }
    ASSERT_TRUE(write_persisted_file(file_, wrong.dump()));
    Tenants next(file_);
    EXPECT_NE(next.problem().find(file_), std::string::npos) << next.problem();
    EXPECT_NE(next.problem().find(why), std::string::npos) << next.problem();
    EXPECT_EQ(next.all().size(), 1u);
    ASSERT_NE(next.find("train"), nullptr);
    EXPECT_EQ(next.find("train")->gpu_memory_limit, 5 * kGiB);
    EXPECT_EQ(next.find("train")->core_limit, 30);
    const policy::TenantId fresh = *next.add_run(other.pid(), "new", 0);
    EXPECT_GT(fresh, bad) << "its id stays its own";
    EXPECT_EQ(next.problem(), "") << "it was told, and the file is good again";
    EXPECT_EQ(Tenants(file_).all().size(), 2u);
  };
  is_left_out_with("core_limit", 0, "compute limit");
  is_left_out_with("core_ceiling", 101, "compute ceiling");
  is_left_out_with("gpu_memory_limit", -1, "memory limit");
  is_left_out_with("gpu_memory_limit", "much", "must be number");
  is_left_out_with("kind", "guess", "kind");
  is_left_out_with("pod", nullptr, "null");
  is_left_out_with("root", 0, "run");
}

// ---- changes beside it ----

class PersistedTenantsChanges : public PersistedTenants {
 protected:
  PersistedTenantsChanges() : tenants_(std::in_place, file_) {
    tenants_->save_later();
    train_ = *tenants_->add_run(getpid(), "train", 5 * kGiB, true, 30);
    whole_ = text();
  }
  std::string changes() const {
    std::ifstream stream(file_ + ".changes");
    std::ostringstream content;
    content << stream.rdbuf();
    return content.str();
  }
  void set(int core_limit) {
    tenants_->find(train_)->core_limit = core_limit;
    tenants_->save_changes(train_);
  }
  int core_limit_read() const {
    const Tenants next(file_);
    EXPECT_EQ(next.problem(), "");
    const Tenant* train = next.find(train_);
    return train == nullptr ? 0 : train->core_limit;
  }

  std::optional<Tenants> tenants_;
  policy::TenantId train_ = 0;
  std::string whole_;
};

TEST_F(PersistedTenantsChanges, OneOfThemIsALineAndIsReadBack) {
  set(40);
  EXPECT_EQ(text(), whole_) << "not all of it is written for that";
  EXPECT_NE(changes().find("\"core_limit\": 40"), std::string::npos) << changes();
  EXPECT_EQ(core_limit_read(), 40);
  set(55);
  const std::string before = changes();
  set(55);
  EXPECT_EQ(changes(), before) << "nothing has changed";
  EXPECT_EQ(core_limit_read(), 55);
  Sleeper other;
  const policy::TenantId serve = *tenants_->add_run(other.pid(), "serve", kGiB);
  EXPECT_EQ(text(), whole_);
  EXPECT_EQ(Tenants(file_).find(serve)->gpu_memory_limit, kGiB);
  other.end();
  tenants_->prune();
  tenants_->save_changes();
  Tenants next(file_);
  EXPECT_EQ(next.find(serve), nullptr);
  EXPECT_GT(*next.add_run(getppid(), "new", 0), serve) << "an id is never given twice";
  tenants_->save();
  EXPECT_EQ(changes(), "");
  EXPECT_EQ(core_limit_read(), 55);
}

TEST_F(PersistedTenantsChanges, ALineIsOneWhateverATenantIsCalled) {
  const std::string name = "two\nlines, \"quoted\",   and spaces\n   ";
  tenants_->find(train_)->name = name;
  set(40);
  const std::string text = changes();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << "one beside the first: " << text;
  const Tenants next(file_);
  ASSERT_NE(next.find(train_), nullptr);
  EXPECT_EQ(next.find(train_)->name, printable(name)) << "an earlier release may have written it";
}

TEST_F(PersistedTenantsChanges, ClientsThatCameAndWentAreThoseThatAreWritten) {
  const policy::TenantId first = tenants_->join(peer_with(getppid()), "worker").id;
  ASSERT_NE(first, train_);
  tenants_->find(first)->core_limit = 20;
  EXPECT_EQ(changes(), "");
  EXPECT_TRUE(tenants_->is_unsaved());
  tenants_->save_changes();
  EXPECT_FALSE(tenants_->is_unsaved());
  EXPECT_EQ(Tenants(file_).find(first)->core_limit, 20);
  tenants_->find(first)->core_limit = 100;
  tenants_->leave(first);
  tenants_->save_changes();
  EXPECT_EQ(Tenants(file_).find(first), nullptr);
  EXPECT_EQ(text(), whole_);
}

TEST_F(PersistedTenantsChanges, ALineThatWasCutOffIsNone) {
  set(40);
  const std::string one = changes();
  set(50);
  const std::string two = changes();
  for (size_t length = one.size(); length < two.size(); length += 37) {
    std::filesystem::resize_file(file_ + ".changes", length);
    EXPECT_EQ(core_limit_read(), 40) << length;
    ASSERT_TRUE(write_persisted_file(file_ + ".changes", two));
  }
  EXPECT_EQ(core_limit_read(), 50);
}

TEST_F(PersistedTenantsChanges, ThoseOfAnotherFileAreNone) {
  set(40);
  const std::string old = changes();
  tenants_->save();
  ASSERT_TRUE(write_persisted_file(file_ + ".changes", old));
  set(60);
  EXPECT_EQ(core_limit_read(), 60);
  tenants_->save();
  ASSERT_TRUE(write_persisted_file(file_ + ".changes", old));
  EXPECT_EQ(core_limit_read(), 60) << "they followed an earlier one";
  EXPECT_EQ(changes(), "") << "and cannot come to life again";
}

TEST_F(PersistedTenantsChanges, ADamagedLineIsLeftOutAndToldAndTheOthersHold) {
  set(40);
  const std::string good = changes();
  const std::string entry = good.substr(good.find('\n') + 1);
  for (const std::string& bad : std::vector<std::string>{"{", "7", "[]", "{\"next_id\":\"x\"}", "{\"next_id\":9}", "\xff\xfe",
                                                         "{\"next_id\":9,\"tenant\":{}}", std::string(100'000, '[')}) {
    ASSERT_TRUE(write_persisted_file(file_ + ".changes", good.substr(0, good.find('\n') + 1) + bad + "\n" + entry));
    Tenants next(file_);
    EXPECT_NE(next.problem().find(file_ + " is damaged"), std::string::npos) << bad.substr(0, 60) << ": " << next.problem();
    EXPECT_EQ(next.problem().find('\n'), std::string::npos);
    ASSERT_NE(next.find(train_), nullptr) << bad.substr(0, 60);
    EXPECT_EQ(next.find(train_)->core_limit, 40) << bad.substr(0, 60);
  }
}

TEST_F(PersistedTenantsChanges, AnImpossibleOneLeavesTheTenantAsItWas) {
  set(40);
  set(60);
  std::string wrong = changes();
  wrong.replace(wrong.find("\"core_limit\": 60"), 16, "\"core_limit\": 0");
  ASSERT_TRUE(write_persisted_file(file_ + ".changes", wrong));
  Tenants next(file_);
  EXPECT_NE(next.problem().find("compute limit"), std::string::npos) << next.problem();
  ASSERT_NE(next.find(train_), nullptr);
  EXPECT_EQ(next.find(train_)->core_limit, 40);
  EXPECT_EQ(next.find(train_)->gpu_memory_limit, 5 * kGiB);
}

TEST_F(PersistedTenantsChanges, AnotherUsersAreRefused) {
  set(40);
  std::filesystem::permissions(file_ + ".changes", std::filesystem::perms(0666));
  expect_refused(".changes");
}

TEST_F(PersistedTenantsChanges, AllIsWrittenOnceTheyAreTooMany) {
  for (int i = 0; i < 1000 && text() == whole_; ++i) set(1 + i % 90);
  EXPECT_NE(text(), whole_);
  const int last = tenants_->find(train_)->core_limit;
  EXPECT_EQ(core_limit_read(), last);
  set(95);
  EXPECT_EQ(core_limit_read(), 95);
}

TEST_F(PersistedTenantsChanges, AFileThatIsGoneIsWrittenAnew) {
  set(40);
  std::filesystem::remove(file_ + ".changes");
  set(50);
  EXPECT_EQ(core_limit_read(), 50);
  EXPECT_NE(text(), whole_);
}

TEST_F(PersistedTenants, ABadPodIsLeftOutAndTheOthersAreKept) {
  {
    Tenants tenants(file_);
    tenants.pods.remember("0b4e", {"team/train", 3 * kGiB, 50});
    tenants.pods.remember("77aa", {"team/serve", 2 * kGiB, 60});
    tenants.save();
  }
  const nlohmann::json kept = nlohmann::json::parse(text());
  for (const auto& [field, value] : std::map<std::string, nlohmann::json>{
           {"uid", 7}, {"core_limit", 0}, {"gpu_memory_limit", -1}, {"memory_on", {{"GPU-a", -1}}}, {"gone", "yes"}, {"priority", 101}}) {
    nlohmann::json wrong = kept;
    wrong["pods"][0][field] = value;
    ASSERT_TRUE(write_persisted_file(file_, wrong.dump()));
    const Tenants next(file_);
    EXPECT_NE(next.problem().find("pod '"), std::string::npos) << field << ": " << next.problem();
    EXPECT_EQ(pods_but(next, {}), (std::set<std::string>{"77aa"})) << field;
  }
  nlohmann::json earlier = kept;
  earlier.erase("pods");
  ASSERT_TRUE(write_persisted_file(file_, earlier.dump()));
  EXPECT_EQ(Tenants(file_).problem(), "");
}

TEST_F(PersistedTenants, ADamagedOrForeignFileIsRefusedByNameAndWrittenAnew) {
  policy::TenantId run = 0;
  {
    Tenants tenants(file_);
    run = *tenants.add_run(getpid(), "train", kGiB, true, 30);
  }
  const std::string good = text();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = good;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::ofstream(file_) << changed.replace(at, from.size(), to);
  };
  with("\"format\": 1", "\"format\": 2");
  expect_refused("format 2");
  with("\"core_limit\": 30", "\"core_limit\": 0");
  expect_refused("compute limit");
  with("\"gpu_memory_limit\": ", "\"gpu_memory_limit\": -");
  expect_refused("memory limit");
  with("\"kind\": \"run\"", "\"kind\": \"guess\"");
  expect_refused("kind");
  with("\"root\": " + std::to_string(getpid()), "\"root\": 0");
  expect_refused("run");
  with("\"id\": " + std::to_string(run), "\"id\": " + std::to_string(run + 1));
  expect_refused("id");
  with("\"name\"", "\"nome\"");
  expect_refused("damaged");
  std::ofstream(file_) << good.substr(0, good.size() / 2);
  expect_refused("damaged");
  std::ofstream(file_) << "\xff\xfe not this";
  expect_refused("damaged");
  with("\"format\": 1", "\"other\": " + std::string(100, '[') + std::string(100, ']') + ", \"format\": 1");
  expect_refused("nests too deep");

  std::ofstream(file_) << good;
  chmod(file_.c_str(), 0666);
  expect_refused("only user");
  std::filesystem::remove(file_);
  std::ofstream(folder_.path() + "/elsewhere") << good;
  std::filesystem::create_symlink(folder_.path() + "/elsewhere", file_);
  expect_refused("cannot read");
  {
    Tenants tenants(file_);  // and a good one takes its place
    EXPECT_TRUE(tenants.add_run(getpid(), "train", kGiB, true, 30));
    EXPECT_EQ(tenants.problem(), "");
  }
  EXPECT_EQ(Tenants(file_).all().size(), 1u);
  std::filesystem::remove(file_);
  std::filesystem::create_directory(file_);
  expect_refused("plain file");
  Tenants unwritable("/nonexistent/tenants");
  EXPECT_TRUE(unwritable.add_run(getpid(), "train", 0));
  EXPECT_NE(unwritable.problem(), "");
}

}  // namespace
}  // namespace nvshare::scheduler
