// A scheduler under thousands of clients: see bench/README.md.
//
//   load [--clients 1000] [--processes 0] [--gpus 1] [--shape running|waiting] [--rate 1000] [--seconds 10] [--idle 0] [--patience 120]
//        [--scheduler PROGRAM] [--json FILE] [--folder FOLDER] [--page ADDRESS] [--status 200] [--settle 1]
//        [--runs 0] [--gang-turns on] [--status-in brief|full]
//
// --processes: that the clients are of, each on several GPUs; 0: as many as clients. --gang-turns: the scheduler's setting: whether such a
// process has its turns on all its GPUs together.
// --folder: an empty one for the scheduler's files, for others that look at it (bench/viewers.py), as --page, the address of its page.
// --status: milliseconds between two questions for the status; 0: none. --status-in: as `nvsharectl status` asks, or as with --json.
// --settle: seconds between the requests and the mix.
// --runs: so many `nvsharectl run` ask whether their tenants wait for turns, as often as they may.
//
// Of 100 messages 70 change memory, 10 ask for the lock, 10 give it up, 5 end a program and begin another, 4 tell of memory moved in, and
// one changes a priority over the admin socket. Processor time is the daemon's, by /proc. Where a phase takes longer than --patience the
// figures are of what it came to by then.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "load/scheduler.h"
#include "load/workload.h"
#include "protocol/admin.h"

namespace {

using namespace nvshare::bench;
namespace admin = nvshare::protocol::admin;
using Json = nlohmann::json;

constexpr int64_t kSecondNs = 1'000'000'000;

struct Options {
  Plan plan;
  double seconds = 10;
  double idle = 0;
  int patience = 120;
  std::string scheduler;
  std::string json;
  std::string folder;
  std::string page;
  int status_interval_ms = 200;
  bool brief_status = true;
  double settle = 1;
  size_t runs = 0;
  std::string gang_turns = "on";
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--clients") {
      options.plan.clients = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--processes") {
      options.plan.processes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--gpus") {
      options.plan.gpus = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--shape" && (value == "running" || value == "waiting")) {
      options.plan.shape = value == "running" ? Shape::kRunning : Shape::kWaiting;
    } else if (flag == "--rate") {
      options.plan.messages_per_second = std::atof(value.c_str());
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (flag == "--idle") {
      options.idle = std::atof(value.c_str());
    } else if (flag == "--patience") {
      options.patience = std::atoi(value.c_str());
    } else if (flag == "--scheduler") {
      options.scheduler = value;
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--folder") {
      options.folder = value;
    } else if (flag == "--page") {
      options.page = value;
    } else if (flag == "--status") {
      options.status_interval_ms = std::atoi(value.c_str());
    } else if (flag == "--status-in" && (value == "brief" || value == "full")) {
      options.brief_status = value == "brief";
    } else if (flag == "--settle") {
      options.settle = std::atof(value.c_str());
    } else if (flag == "--gang-turns") {
      options.gang_turns = value;
    } else if (flag == "--runs") {
      options.runs = std::strtoull(value.c_str(), nullptr, 10);
    } else {
      return false;
    }
  }
  const Plan& plan = options.plan;
  return argc % 2 == 1 && plan.clients > 0 && plan.gpus > 0 && plan.gpus <= 64 && plan.messages_per_second > 0 && options.patience > 0;
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())))];
}

// Asks for the status again and again, on a connection and a thread of its own.
class StatusAsker {
 public:
  StatusAsker(const Scheduler& scheduler, int interval_ms, bool brief)
      : thread_([this, path = scheduler.admin_socket(), interval_ms, brief] {
          if (interval_ms == 0) return;
          std::string question = admin::encode(admin::StatusRequest{.brief = brief});
          question.pop_back();  // its newline
          Admin link(path);
          while (!ends_) {
            const int64_t begin = now_ns();
            if (!link.ask_and_forget(question)) return;
            took_ms_.push_back(static_cast<double>(now_ns() - begin) / 1e6);
            usleep(static_cast<useconds_t>(interval_ms) * 1000);
          }
        }) {}
  std::vector<double> finish() {
    ends_ = true;
    thread_.join();
    return took_ms_;
  }

 private:
  std::atomic<bool> ends_{false};
  std::vector<double> took_ms_;
  std::thread thread_;
};

// Changes the priority of tenants, on a connection and a thread of its own: who waits for an answer takes no grants meanwhile.
class PriorityChanger {
 public:
  explicit PriorityChanger(const Scheduler& scheduler)
      : thread_([this, path = scheduler.admin_socket()] {
          Admin admin(path);
          std::unique_lock lock(mutex_);
          for (;;) {
            changed_.wait(lock, [this] { return ends_ || !tenants_.empty(); });
            if (ends_) return;
            const uint64_t tenant = tenants_.back();
            tenants_.clear();  // where answers take long, not all are changed
            lock.unlock();
            const Json request = {{"request", "set"}, {"tenant", std::to_string(tenant)}, {"priority", changes_ % 3}};
            const bool answered = admin.ask_and_forget(request.dump());
            lock.lock();
            if (!answered) return;
            ++changes_;
          }
        }) {}
  void change(uint64_t tenant) {
    {
      std::lock_guard lock(mutex_);
      tenants_.push_back(tenant);
    }
    changed_.notify_one();
  }
  uint64_t finish() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
    return changes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> tenants_;
  uint64_t changes_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

// Asks for tenants' turns as `nvsharectl run` does for its own (src/cli/turn_wait.cc) in a terminal: each on a connection for each
// question.
class TurnAskers {
 public:
  TurnAskers(const Scheduler& scheduler, size_t count)
      : thread_([this, path = scheduler.admin_socket(), count] {
          std::multimap<int64_t, size_t> due;  // when, and which tenant
          const int64_t began = now_ns();
          for (size_t i = 0; i < count; ++i) due.emplace(began + static_cast<int64_t>(i) * 1'000'000, i + 1);
          while (!ends_ && !due.empty()) {
            const auto [at, tenant] = *due.begin();
            if (const int64_t left = at - now_ns(); left > 0) {
              usleep(static_cast<useconds_t>(std::min<int64_t>(left, 20'000'000) / 1000));
              continue;
            }
            due.erase(due.begin());
            const auto answer = Admin(path).ask(R"({"request":"turn","tenant":)" + std::to_string(tenant) + "}");
            const Json reply = answer ? Json::parse(*answer, nullptr, false) : Json();
            if (!reply.is_object() || !reply.contains("turn")) continue;  // counted as one fewer answer
            const Json& turn = reply["turn"];
            const bool waits = turn.value("waits", false);
            ++answers_;
            waits_ += waits;
            due.emplace(now_ns() + std::max<int64_t>(turn.value("again_ms", 0), waits ? 250 : 1000) * 1'000'000, tenant);
          }
        }) {}
  Json finish() {
    ends_ = true;
    thread_.join();
    return {{"answers", answers_}, {"that_wait", waits_}};
  }

 private:
  std::atomic<bool> ends_{false};
  uint64_t answers_ = 0, waits_ = 0;
  std::thread thread_;
};

// How often the scheduler did not read a connection for a while, because it said too much.
uint64_t reads_paused(Admin& admin) {
  const auto answer = admin.ask(R"({"request":"status"})");
  const Json status = answer ? Json::parse(*answer, nullptr, false) : Json();
  if (!status.is_object()) return 0;
  const Json& report = status.contains("status") ? status["status"] : status;
  return report.value("bounds", Json::object()).value("reads_paused", uint64_t{0});
}

double wall_since(int64_t begin) { return static_cast<double>(now_ns() - begin) / 1e9; }

Json measure_registrations(const Options& options, const Scheduler& scheduler, Workload& workload) {
  const double cpu = scheduler.cpu_seconds();
  const int64_t begin = now_ns();
  const size_t registered = workload.register_all(begin + options.patience * kSecondNs);
  return {{"registered", registered},
          {"wall_s", wall_since(begin)},
          {"cpu_ms_each", (scheduler.cpu_seconds() - cpu) * 1e3 / static_cast<double>(std::max<size_t>(registered, 1))}};
}

Json measure_mix(const Options& options, const Scheduler& scheduler, Workload& workload) {
  workload.listen(now_ns() + static_cast<int64_t>(options.settle * 1e9));
  workload.figures() = Figures();
  workload.figures().since_ns = now_ns();
  Admin admin(scheduler.admin_socket());
  const uint64_t paused = reads_paused(admin);
  const ProcessorTime before = scheduler.processor_time(), own_before = processor_time(getpid());
  const int64_t begin = now_ns();
  StatusAsker status(scheduler, options.status_interval_ms, options.brief_status);
  TurnAskers turns(scheduler, options.runs);
  PriorityChanger priorities(scheduler);
  const auto end = begin + static_cast<int64_t>(options.seconds * 1e9);
  // A priority changes once for a hundred messages.
  const auto step = std::max<int64_t>(static_cast<int64_t>(1e11 / options.plan.messages_per_second), 1'000'000);
  for (int64_t at = begin; at < end; at = now_ns()) {
    workload.run(std::min(at + step, end));
    if (const uint64_t tenant = workload.tenant_to_change(); tenant != 0) priorities.change(tenant);
  }
  const double wall = wall_since(begin);
  const ProcessorTime after = scheduler.processor_time(), own_after = processor_time(getpid());
  const double used = after.used_s - before.used_s;
  const std::vector<double> status_ms = status.finish();
  const Json turn_answers = turns.finish();
  Figures& figures = workload.figures();
  const uint64_t changed = priorities.finish();
  return {{"wall_s", wall},
          {"messages", figures.sent},
          {"messages_to_clients", figures.received},
          {"messages_to_clients_by_type", figures.received_by_type},
          {"joins", figures.joined},
          {"priorities", changed},
          {"connections_lost", figures.lost},
          {"cpu_us_per_message", used * 1e6 / static_cast<double>(std::max<uint64_t>(figures.sent, 1))},
          {"cpu_percent", used * 100 / wall},
          {"scheduler_held_up_percent", (after.held_up_s - before.held_up_s) * 100 / wall},
          {"load_cpu_percent", (own_after.used_s - own_before.used_s) * 100 / wall},
          {"load_held_up_percent", (own_after.held_up_s - own_before.held_up_s) * 100 / wall},
          {"reads_paused", reads_paused(admin) - paused},
          {"grants", figures.grants_ms.size()},
          {"grants_of_requests_before", figures.grants_of_before},
          {"grant_p50_ms", percentile(figures.grants_ms, 0.5)},
          {"grant_p99_ms", percentile(figures.grants_ms, 0.99)},
          {"grant_max_ms", percentile(figures.grants_ms, 1)},
          {"statuses", status_ms.size()},
          {"status_in", options.brief_status ? "brief" : "full"},
          {"status_p50_ms", percentile(status_ms, 0.5)},
          {"status_p99_ms", percentile(status_ms, 0.99)},
          {"status_max_ms", percentile(status_ms, 1)},
          {"statuses_from_50_ms", std::ranges::count_if(status_ms, [](double ms) { return ms >= 50; })},
          {"status_first_ms", std::vector<double>(status_ms.begin(), status_ms.begin() + std::min<ptrdiff_t>(std::ssize(status_ms), 10))},
          {"runs", options.runs},
          {"turns_asked", turn_answers},
          {"rss_mib", scheduler.resident_mib()}};
}

// Until the scheduler knows none of them any more.
Json measure_deaths(const Options& options, const Scheduler& scheduler, Crowd& crowd, size_t clients) {
  const double cpu = scheduler.cpu_seconds();
  const int64_t begin = now_ns();
  crowd.kill_all();
  const double killed = wall_since(begin);
  Admin admin(scheduler.admin_socket());
  size_t left = clients;
  while (left > 0 && wall_since(begin) < options.patience) {
    const auto answer = admin.ask(R"({"request":"status"})");
    if (!answer) break;
    const Json status = Json::parse(*answer, nullptr, false);
    if (status.is_discarded()) break;
    const Json& report = status.contains("status") ? status["status"] : status;
    left = report.value("clients", Json::array()).size();
    usleep(20'000);
  }
  const double wall = wall_since(begin);
  const double used = scheduler.cpu_seconds() - cpu;
  const int64_t gone = now_ns();
  crowd.wait_for_all();
  return {{"clients", clients},
          {"left", left},
          {"wall_s", wall},
          {"kills_took_s", killed},
          {"waited_for_s", wall_since(gone)},
          {"cpu_ms_each", used * 1e3 / static_cast<double>(std::max<size_t>(clients, 1))}};
}

double load_average() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

Json measure(const Options& options) {
  Json result = {{"clients", options.plan.clients},
                 {"processes", options.plan.processes == 0 ? options.plan.clients : options.plan.processes},
                 {"gang_turns", options.gang_turns},
                 {"gpus", options.plan.gpus},
                 {"shape", options.plan.shape == Shape::kRunning ? "running" : "waiting"},
                 {"messages_per_second_asked", options.plan.messages_per_second},
                 {"load_average_before", load_average()}};
  std::vector<std::string> flags = {"--connections-per-tenant", "1000000", "--log-level", "warning", "--gang-turns", options.gang_turns};
  if (!options.page.empty()) flags.insert(flags.end(), {"--page-address", options.page});
  Scheduler scheduler(options.scheduler, flags, options.folder);
  Crowd crowd(scheduler.client_socket());
  Workload workload(crowd, options.plan);
  result["registrations"] = measure_registrations(options, scheduler, workload);
  workload.request_all();
  if (options.idle > 0) {
    workload.listen(now_ns() + 7 * kSecondNs);  // what was asked for is answered, and it is quiet
    const double cpu = scheduler.cpu_seconds();
    workload.listen(now_ns() + static_cast<int64_t>(options.idle * 1e9));
    result["idle_cpu_percent"] = (scheduler.cpu_seconds() - cpu) * 100 / options.idle;
  }
  if (options.seconds > 0) result["mix"] = measure_mix(options, scheduler, workload);
  result["deaths"] = measure_deaths(options, scheduler, crowd, workload.registered());
  result["scheduler_lives"] = scheduler.lives();
  result["load_average_after"] = load_average();
  return result;
}

// Each client is a descriptor here and one or two of the scheduler's, which inherits the limit.
void raise_descriptor_limit(size_t clients) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max = std::max<rlim_t>(limit.rlim_max, clients * 4 + 4096);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.scheduler = std::filesystem::canonical("/proc/self/exe").parent_path() / "nvshare-scheduler";
  if (!parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: load [--clients 1000] [--gpus 1..64] [--shape running|waiting] [--rate 1000] [--seconds 10] [--idle 0]\n"
        "            [--patience 120] [--scheduler PROGRAM] [--json FILE] [--folder FOLDER] [--page ADDRESS] [--status 200] [--runs 0]\n"
        "            [--processes 0] [--gang-turns on|off] [--status-in brief|full]\n");
    return 2;
  }
  raise_descriptor_limit(options.plan.clients);
  const Json result = measure(options);
  std::printf("%s\n", result.dump(2).c_str());
  if (!options.json.empty()) std::ofstream(options.json) << result.dump(2) << "\n";
  const bool well = result["scheduler_lives"].get<bool>() && result["deaths"]["left"] == 0 &&
                    result["registrations"]["registered"] == options.plan.clients;
  return well ? 0 : 1;
}
