// The instrument's program: makes plans from a seed, or reads them, runs them, and prints what came back.
//
//   conformance [--seed S] [--first N] [--count N] [--calls N] [--devices N] [--verbose]     runs sequences N.. of that seed
//   conformance --plan FILE [--verbose]      runs the sequences of a file: lines of calls, each sequence after a line `=`
//   conformance --list [--seed S] ...        prints the plans and runs nothing
//   conformance --symbols                    the entry points that the table has
//   --cold-calls N of sequences about what comes before the first turn (a third of --calls)
//   --other-heap   before calls about pools the program's memory comes to lie where the driver has freed some
//   --fresh        each sequence in a process of its own
//   --ballast B    that much memory is held on each GPU meanwhile
//   --partner      the second process has a context from the start
//   --without A,B  entry points that are not to be called
//   --tame A,B     entry points that get right arguments only
//   --apart A,B:N  the second hash leaves these out: entry points, or those with N among their arguments
//   --unshown 15   pointer attributes of which only the code is compared
//   --patience S   a call that takes longer is a hang (120)
//   --seconds S    ends after so long
//   --only A,B     --list: these sequences
//   --repeat S     begins anew until S seconds are over (a neighbour)
// Prints, one line each:  S SEQUENCE HASH CALLS MADE HASH2   before it `D CODE/HASH ...`, a word an outcome; with --verbose `L TEXT` for
// each
//   P SEQUENCE: its context is broken, or not as it was: what follows runs in a new process;  X SEQUENCE CALL SYMBOL SIGNAL: it crashed;  H
//   SEQUENCE CALL SYMBOL: it hung;  C SYMBOL SUCCESSES FAILURES: at the end;  M SYMBOL: the driver has no such entry point;  ! TEXT:
//   nothing can run
// Sequences run in child processes, so that one that crashes takes no other with it.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "../program.h"
#include "crash_report.h"
#include "execute.h"

namespace conformance {
namespace {

struct Job {
  Settings settings;
  uint64_t first = 0, count = 100;
  int devices = 1;
  uint64_t ballast = 0;
  bool partner = false;
  bool verbose = false, fresh = false, other_heap = false;
  double patience = 120;
  double seconds = 0;  // 0: all of them
  uint64_t begin_ns = 0;
  std::vector<uint64_t> only;  // sequences to list
  std::vector<std::string> apart;
  std::vector<Plan> plans;  // instead of a seed's
  Progress* progress = nullptr;
  Counts* counts = nullptr;

  bool out_of_time() const { return seconds > 0 && gputest::seconds_since(begin_ns) > seconds; }
  Plan plan(uint64_t sequence) const { return plans.empty() ? generate(settings, sequence) : plans[sequence]; }
};

bool is_apart(const Job& job, const Call& call) {
  for (const std::string& each : job.apart) {
    const size_t colon = each.find(':');
    if (each.compare(0, colon, ops()[static_cast<size_t>(call.op)].symbol) != 0) {
      continue;
    }
    const int64_t number = colon == std::string::npos ? 0 : std::atoll(each.c_str() + colon + 1);
    bool named = colon == std::string::npos;
    for (const Arg& arg : call.args) {
      named = named || (arg.kind == Kind::kInt && arg.v[0] == number);
    }
    if (named) {
      return true;
    }
  }
  return false;
}

// `whole`: of all lines, otherwise without those of calls that are compared apart.
uint64_t hash_of(const Job& job, const Plan& plan, const std::vector<std::string>& lines, bool whole) {
  uint64_t hash = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (whole || i >= plan.size() || !is_apart(job, plan[i])) {
      hash = (hash ^ checksum(lines[i].data(), lines[i].size())) * 0x9e3779b97f4a7c15ull;
    }
  }
  return hash;
}

// Of each outcome the code and a few bits of all of it: which one differed is known then of a sequence that no second run shows to differ.
void print_digest(const std::vector<std::string>& lines) {
  std::string digest;
  for (const std::string& line : lines) {
    size_t begin = std::min(line.find(' '), line.size() - 1) + 1;
    if (line.compare(0, 6, "~cuMem") == 0) {  // the memory is named first
      begin = std::min(line.find(' ', begin), line.size() - 1) + 1;
    }
    char hash[8];
    std::snprintf(hash, sizeof(hash), "/%04x ", static_cast<unsigned>(checksum(line.data(), line.size()) & 0xffff));
    digest += line.substr(begin, line.find(' ', begin) - begin) + hash;
  }
  std::printf("D %s\n", digest.c_str());
}

// Runs [first, end) and ends the process.
[[noreturn]] void work(const Job& job, uint64_t first, uint64_t end) {
  report_crashes();
  Runner runner(job.devices, job.ballast, job.progress, job.counts);
  if (job.partner) {
    runner.start_partner();
  }
  if (job.other_heap) {
    runner.use_another_heap();
  }
  std::vector<std::string> lines;
  for (uint64_t sequence = first; sequence < end; ++sequence) {
    if (job.out_of_time()) {
      break;
    }
    job.progress->sequence = sequence;
    lines.clear();
    const Plan plan = job.plan(sequence);
    const bool whole = runner.run(plan, lines);
    size_t made = 0;
    for (const std::string& line : lines) {
      made += line.compare(line.size() - 2, 2, " -") != 0 && line[0] != '~' ? 1 : 0;
      if (job.verbose) {
        std::printf("L %s\n", line.c_str());
      }
    }
    if (!job.verbose) {
      print_digest(lines);
    }
    std::printf("S %" PRIu64 " %016" PRIx64 " %zu %zu %016" PRIx64 "\n", sequence, hash_of(job, plan, lines, true), plan.size(), made,
                hash_of(job, plan, lines, false));
    if (!whole) {
      std::printf("P %" PRIu64 "\n", sequence);
      job.progress->poisoned = true;
      std::fflush(stdout);
      std::_Exit(0);
    }
    if (job.verbose || sequence % 16 == 0) {
      std::fflush(stdout);
    }
  }
  job.progress->sequence = end;
  std::fflush(stdout);
  std::exit(0);
}

const char* symbol_of(int op) { return op >= 0 ? ops()[static_cast<size_t>(op)].symbol : "-"; }

// Waits for the child. The next sequence to run.
uint64_t watch(const Job& job, pid_t child, uint64_t end) {
  uint64_t beat = ~uint64_t{0};
  uint64_t since = gputest::now_ns();
  int status = 0;
  bool hung = false;
  while (waitpid(child, &status, WNOHANG) == 0) {
    usleep(2000);
    if (job.progress->beat != beat) {
      beat = job.progress->beat;
      since = gputest::now_ns();
    } else if (!hung && gputest::seconds_since(since) > job.patience) {
      hung = true;
      kill(child, SIGABRT);  // it says where
    } else if (hung && gputest::seconds_since(since) > job.patience + 1) {
      kill(child, SIGKILL);
    }
  }
  const uint64_t sequence = job.progress->sequence;
  const int call = job.progress->call;
  const char* symbol = call >= 0 ? symbol_of(job.progress->op) : "-";
  if (hung) {
    std::printf("H %" PRIu64 " %d %s\n", sequence, call, symbol);
  } else if (WIFSIGNALED(status)) {
    std::printf("X %" PRIu64 " %d %s %d\n", sequence, call, symbol, WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    return ~uint64_t{0};
  } else if (!job.progress->poisoned) {
    return end;
  }
  job.progress->poisoned = false;
  return sequence + 1;
}

int run(const Job& job) {
  const uint64_t end = job.first + job.count;
  uint64_t next = job.first;
  while (next < end && !job.out_of_time()) {
    const uint64_t stop = job.fresh ? next + 1 : end;
    job.progress->sequence = next;
    job.progress->call = -1;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      work(job, next, stop);
    }
    next = watch(job, child, stop);
    if (next == ~uint64_t{0}) {
      return 3;
    }
  }
  return 0;
}

void print_counts(const Job& job) {
  for (size_t i = 0; i < ops().size(); ++i) {
    if (op_of(ops()[i].symbol) != static_cast<int>(i)) {
      continue;
    }
    Counts sum{};
    for (size_t j = i; j < ops().size(); ++j) {
      if (std::strcmp(ops()[j].symbol, ops()[i].symbol) == 0) {
        sum.success += job.counts[j].success;
        sum.failure += job.counts[j].failure;
      }
    }
    std::printf("C %s %" PRIu64 " %" PRIu64 "\n", ops()[i].symbol, sum.success, sum.failure);
  }
}

void read_plans(Job& job, const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "conformance: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  std::string line;
  while (std::getline(file, line)) {
    if (line[0] == '=') {
      job.plans.emplace_back();
    } else if (!line.empty() && line[0] != '#' && !job.plans.empty()) {
      job.plans.back().push_back(call_of(line));
    }
  }
  job.first = 0;
  job.count = job.plans.size();
}

void list(const Job& job) {
  std::vector<uint64_t> sequences = job.only;
  for (uint64_t sequence = job.first; sequences.size() < job.count && job.only.empty(); ++sequence) {
    sequences.push_back(sequence);
  }
  for (const uint64_t sequence : sequences) {
    std::printf("= %" PRIu64 "\n", sequence);
    for (const Call& call : job.plan(sequence)) {
      std::printf("%s\n", text_of(call).c_str());
    }
  }
}

// The operations that a list of entry points names.
std::vector<bool> chosen(const std::string& list) {
  std::vector<bool> marks(ops().size());
  for (size_t at = 0; at < list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    for (size_t i = 0; i < ops().size(); ++i) {
      marks[i] = marks[i] || list.compare(at, comma - at, ops()[i].symbol) == 0;
    }
    at = comma + 1;
  }
  return marks;
}

Job job_of(const gputest::Options& options) {
  Job job;
  job.settings.seed = options.number("seed", 1);
  job.settings.calls = static_cast<int>(options.number("calls", 100));
  job.settings.cold_calls = static_cast<int>(options.number("cold-calls", 0));
  job.devices = job.settings.devices = static_cast<int>(std::min<uint64_t>(2, options.number("devices", 1)));
  job.first = options.number("first", 0);
  job.count = options.number("count", 100);
  job.ballast = options.number("ballast", 0);
  job.partner = options.has("partner");
  job.patience = static_cast<double>(options.number("patience", 120));
  job.seconds = static_cast<double>(options.number("seconds", 0));
  job.begin_ns = gputest::now_ns();
  const std::string only = options.text("only", "");
  for (size_t at = 0; at < only.size(); at = std::min(only.find(',', at), only.size() - 1) + 1) {
    job.only.push_back(std::strtoull(only.c_str() + at, nullptr, 10));
  }
  const std::string apart = options.text("apart", "");
  for (size_t at = 0; at < apart.size(); at = std::min(apart.find(',', at), apart.size() - 1) + 1) {
    job.apart.push_back(apart.substr(at, apart.find(',', at) - at));
  }
  job.verbose = options.has("verbose");
  job.fresh = options.has("fresh");
  job.other_heap = options.has("other-heap");
  const std::string unshown = options.text("unshown", "");
  for (size_t at = 0; at < unshown.size(); at = std::min(unshown.find(',', at), unshown.size() - 1) + 1) {
    unshown_attributes().push_back(std::atoi(unshown.c_str() + at));
  }
  job.settings.without = chosen(options.text("without", ""));
  job.settings.tame = chosen(options.text("tame", ""));
  void* shared = mmap(nullptr, 4096 + ops().size() * sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  job.progress = static_cast<Progress*>(shared);
  job.counts = reinterpret_cast<Counts*>(static_cast<char*>(shared) + 4096);
  return job;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  using namespace conformance;
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // whole lines before a crash report
  const gputest::Options options(argc, argv);
  if (options.has("bare")) {
    serve_bare(3);
  }
  Job job = job_of(options);
  if (options.has("symbols")) {
    for (const Op& op : ops()) {
      std::printf("%s\n", op.symbol);
    }
    return 0;
  }
  if (options.has("plan")) {
    read_plans(job, options.text("plan", ""));
  }
  if (options.has("list")) {
    list(job);
    return 0;
  }
  const uint64_t begin = gputest::now_ns();
  const auto seconds = static_cast<double>(options.number("repeat", 0));
  int result = run(job);
  while (result == 0 && gputest::seconds_since(begin) < seconds) {
    result = run(job);
  }
  print_counts(job);
  std::printf("T %.2f\n", gputest::seconds_since(begin));
  return result;
}
