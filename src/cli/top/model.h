// What `nvsharectl top` shows: made from the scheduler's reports, one after the other. Pure, no clock: time is an argument. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/top/past.h"
#include "protocol/admin.h"

namespace nvshare::cli::top {

inline constexpr char kNobody = '.';    // in a strip of turns: no client ran
inline constexpr char kSwapping = '~';  // nobody ran, memory moved

// A tenant's memory on one GPU.
struct TenantBytes {
  uint64_t tenant = 0;
  char letter = '?';
  int64_t resident = 0;
  int64_t swapped = 0;
};

struct GpuPanel {
  size_t index = 0;
  protocol::admin::GpuReport report;
  std::vector<TenantBytes> tenants;  // by letter
  int64_t resident = 0;
  int64_t swapped = 0;
  size_t clients = 0;
  size_t waiting = 0;
  std::string running;                      // "train (python3 4711)", or several; empty: nobody
  int64_t running_since_ns = 0;             // of the one that has run longest
  std::optional<double> out_rate, in_rate;  // bytes per second since the last report; none with the first
  std::string strip;  // who ran, oldest first: tenants' letters (in turn, where several ran at once), or the marks above
};

struct Row {
  protocol::admin::ClientReport client;
  size_t gpu = 0;
  char letter = '?';
  std::string tenant;
  int64_t memory_limit = 0;     // in force on this GPU; 0 = none
  int core_limit = 100;         // percent: its ceiling; 100 = none
  int core_reserved = 0;        // percent of it that it was granted; 0 = none
  std::optional<double> share;  // percent of the GPU's time in the last window, where a compute limit applies
  int priority = 0;
  bool throttled = false;
  bool suspended = false;  // its tenant, by the administrator
  uint64_t made = 0;       // another number for each row that is made; of one that stays only ClientReport::since_ns goes on
};

struct Model {
  bool known = false;   // a report came
  std::string problem;  // why the latest look had no report; empty: it had
  std::string version;
  std::string runtime_dir;
  bool own = false;  // of one's own tenants alone
  int64_t uptime_ns = 0;
  int64_t host_used = 0;
  int64_t host_budget = 0;
  std::vector<GpuPanel> gpus;
  std::vector<Row> rows;  // as the scheduler lists them, by GPU
  double strip_cell_s = 0;
};

// Takes reports in; keeps what takes two of them: rates, and who ran when.
class History {
 public:
  // `cells`: so many marks are kept for each GPU, each of `cell_s` seconds.
  History(size_t cells, double cell_s) : cells_(cells), cell_s_(cell_s) {}

  // What happened before the first report, which is the next one that is added.
  void begin_with(const Past& past, const protocol::admin::StatusReport& report);
  void add(const protocol::admin::StatusReport& report, double now_s);
  // The same with new states, where amounts and times may be those of the last add(): of them nothing is made that takes two. Only of
  // clients and tenants that changed since the report before (their `changed`, as admin::complete() sets it) rows are made.
  void refresh(const protocol::admin::StatusReport& report);
  void fail(const std::string& problem) { model_.problem = problem; }

  const Model& model() const { return model_; }

 private:
  struct GpuPast {
    std::deque<char> strip;
    Cell cell;  // that is being filled
    double cell_began_s = 0;
    size_t cells = 0;  // made so far
  };

  char letter_of(uint64_t tenant);
  void forget_letters(const protocol::admin::StatusReport& report);
  Model head_of(const protocol::admin::StatusReport& report) const;
  Model model_of(const protocol::admin::StatusReport& report);
  void put_strip(GpuPanel& panel) const;
  void fill_strips(const protocol::admin::StatusReport& report, double now_s);
  void fill_cell(GpuPast& past, double now_s);
  // Puts `marks` of them at the strip's end.
  void add_marks(GpuPast& past, const Cell& cell, double length_s, size_t marks);

  size_t cells_;
  double cell_s_;
  std::map<uint64_t, char> letters_;  // by tenant
  std::map<std::string, GpuPast> past_;
  std::optional<protocol::admin::StatusReport> last_;
  double last_s_ = 0;
  uint64_t rows_made_ = 0;
  uint64_t shown_changes_ = 0;  // StatusReport::changes of the report that model_ is of
  Model model_;
};

}  // namespace nvshare::cli::top
