#include "cli/top/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cli/columns.h"
#include "cli/units.h"

namespace nvshare::cli::top {
namespace {

using protocol::admin::ClientReport;

constexpr char kForeign = '#';
constexpr char kOverhead = '+';
constexpr char kFree = '.';
constexpr size_t kNarrowest = 40;       // of fewer columns nothing is made
constexpr size_t kRoomy = 60;           // from here on lines are whole sentences,
constexpr size_t kWide = 110;           // and from here on there are all columns
constexpr size_t kLinesOfGpu = 5;       // in full
constexpr size_t kLinesKeptMax = 4096;  // also of clients that have left
constexpr size_t kReasonColumns = 12;   // less is not worth a column

std::string bytes_of(int64_t bytes) { return format_bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))); }

Style style_of(char mark) {
  static constexpr Style kStyles[] = {Style::kTenant0, Style::kTenant1, Style::kTenant2, Style::kTenant3, Style::kTenant4, Style::kTenant5};
  if (mark >= 'a' && mark <= 'z') return kStyles[static_cast<size_t>(mark - 'a') % std::size(kStyles)];
  if (mark >= 'A' && mark <= 'Z') return kStyles[static_cast<size_t>(mark - 'A' + 26) % std::size(kStyles)];
  return mark == kForeign ? Style::kPlain : Style::kDim;
}

Style style_of(const ClientReport& client) {
  if (client.state == "running" || client.state == "paused") return Style::kGood;
  if (client.state == "waiting" || client.state == "loading" || client.state == "dropping") return Style::kWarning;
  return client.state == "unresponsive" ? Style::kBad : Style::kPlain;
}

void add_marks(Line& line, const std::string& marks) {
  for (size_t begin = 0; begin < marks.size();) {
    const size_t end = std::min(marks.find_first_not_of(marks[begin], begin), marks.size());
    line.add(marks.substr(begin, end - begin), style_of(marks[begin]));
    begin = end;
  }
}

// Marks in proportion; whatever has some has at least one, while there is room.
class Bar {
 public:
  Bar(size_t columns, int64_t whole) : columns_(columns), whole_(std::max<int64_t>(whole, 1)) {}

  void add(char mark, int64_t bytes) {
    if (bytes <= 0) return;
    bytes_ += bytes;
    const auto end =
        static_cast<size_t>(std::lround(static_cast<double>(columns_) * static_cast<double>(bytes_) / static_cast<double>(whole_)));
    marks_.append(std::max(end, marks_.size() + 1) - marks_.size(), mark);
  }
  // `more`: ends in '>' what is longer than the bar.
  std::string marks(char free) const {
    if (marks_.size() > columns_) return marks_.substr(0, columns_ - 1) + (bytes_ > whole_ ? '>' : marks_.back());
    return marks_ + std::string(columns_ - marks_.size(), free);
  }

 private:
  size_t columns_;
  int64_t whole_;
  int64_t bytes_ = 0;
  std::string marks_;
};

std::string memory_bar(const GpuPanel& gpu, size_t columns) {
  Bar bar(columns, gpu.report.total);
  for (const TenantBytes& tenant : gpu.tenants) bar.add(tenant.letter, tenant.resident);
  bar.add(kOverhead, gpu.report.overhead + gpu.report.departed);
  bar.add(kForeign, gpu.report.foreign);
  return bar.marks(kFree);
}

std::string host_bar(const GpuPanel& gpu, size_t columns) {
  Bar bar(columns, gpu.report.total);
  for (const TenantBytes& tenant : gpu.tenants) bar.add(tenant.letter, tenant.swapped);
  return bar.marks(' ');
}

std::string rate_of(const std::optional<double>& rate) { return rate ? bytes_of(static_cast<int64_t>(*rate)) + "/s" : std::string("-"); }

std::string turns_of(const GpuPanel& gpu, size_t width) {
  if (gpu.running.empty()) return gpu.waiting > 0 ? fmt::format("nobody runs, {} wait", gpu.waiting) : "nobody runs";
  const std::string turns = width < kRoomy ? std::string() : ", turns of " + format_duration(gpu.report.switch_time_ns);
  const std::string waits =
      gpu.waiting == 0 ? std::string() : fmt::format("{} wait{}{}; ", gpu.waiting, gpu.waiting == 1 ? "s" : "", turns);
  return waits + fmt::format("runs since {}: {}", format_duration(gpu.running_since_ns), gpu.running);
}

void add_bar_line(Screen& screen, const char* label, const std::string& marks, const std::string& after) {
  Line line(fmt::format("  {:<8}[", label));
  add_marks(line, marks);
  line.add("] " + after);
  screen.push_back(std::move(line));
}

// The time before now that a strip of marks reaches back.
std::string span_of(const Model& model, size_t marks) {
  return format_duration(static_cast<int64_t>(model.strip_cell_s * static_cast<double>(marks) * 1e9));
}

void draw_gpu(Screen& screen, const Model& model, const GpuPanel& gpu, size_t width) {
  const size_t bar = width - 34;
  const std::string traffic = fmt::format("{}out {}  in {}", width < kRoomy ? "" : "swap ", rate_of(gpu.out_rate), rate_of(gpu.in_rate));
  Line head(shortened(fmt::format("GPU {} {}{}", gpu.index, gpu.report.name, gpu.report.told ? " (configured smaller)" : ""),
                      width - std::min(width, width_of(traffic) + 1)),
            Style::kTitle);
  head.fill_to(width > width_of(traffic) ? width - width_of(traffic) : 0);
  head.add(traffic);
  screen.push_back(std::move(head));
  add_bar_line(screen, "on GPU", memory_bar(gpu, bar),
               fmt::format("{} of {}", bytes_of(gpu.resident + gpu.report.overhead + gpu.report.departed + gpu.report.foreign),
                           bytes_of(gpu.report.total)));
  add_bar_line(screen, "in host", host_bar(gpu, bar), bytes_of(gpu.swapped) + " swapped");
  if (!gpu.strip.empty()) {
    const std::string shown = gpu.strip.size() > bar ? gpu.strip.substr(gpu.strip.size() - bar) : gpu.strip;
    add_bar_line(screen, "turns", std::string(bar - shown.size(), ' ') + shown, fmt::format("last {}", span_of(model, shown.size())));
  }
  screen.push_back(Line("  " + turns_of(gpu, width)));
}

void draw_gpu_short(Screen& screen, const GpuPanel& gpu, size_t width) {
  Line line(fmt::format("GPU {:<2}[", gpu.index));
  const size_t bar = width > 70 ? width - 60 : 10;
  add_marks(line, memory_bar(gpu, bar));
  line.add(fmt::format("] {} of {}", bytes_of(gpu.resident + gpu.report.foreign), bytes_of(gpu.report.total)));
  const std::string more = fmt::format(", {} swapped, {} wait", bytes_of(gpu.swapped), gpu.waiting);
  if (line.columns() + more.size() <= width) line.add(more);
  screen.push_back(std::move(line));
}

std::string share_of(const Row& row) {
  const std::string limit = row.core_limit < 100 ? fmt::format("{} %", row.core_limit) : "none";
  return row.share ? fmt::format("{:.0f}/{}", *row.share, limit) : limit;
}

// Where there are 8 columns: "4 min" of "4 min 29 s".
std::string in_short(int64_t nanoseconds) {
  std::string text = format_duration(nanoseconds);
  if (text.size() > 8) text.resize(text.find(' ', text.find(' ') + 1));
  return text;
}

struct Column {
  const char* title;
  size_t columns;
  bool right;
  size_t from;  // columns of the screen on which there is room for it: so many have all that is shown there
  std::string (*cell)(const Row&);
};

constexpr Column kColumns[] = {
    {"", 1, false, 0, [](const Row& row) { return std::string(1, row.letter); }},
    {"TENANT", 11, false, 60, [](const Row& row) { return row.tenant; }},
    {"PROGRAM", 10, false, 0, [](const Row& row) { return row.client.program; }},
    {"PID", 7, true, 0, [](const Row& row) { return std::to_string(row.client.pid); }},
    {"GPU", 3, true, 64, [](const Row& row) { return std::to_string(row.gpu); }},
    {"STATE", 9, false, 0,
     [](const Row& row) {
       return row.suspended && row.client.state == "idle"      ? "held"
              : row.throttled && row.client.state == "waiting" ? "throttled"
                                                               : row.client.state;
     }},
    {"SINCE", 8, true, 73, [](const Row& row) { return in_short(row.client.since_ns); }},
    {"ON GPU", 8, true, 0, [](const Row& row) { return bytes_of(row.client.resident); }},
    {"SWAPPED", 8, true, 48, [](const Row& row) { return bytes_of(row.client.swapped); }},
    {"LIMIT", 8, true, kWide, [](const Row& row) { return row.memory_limit > 0 ? bytes_of(row.memory_limit) : "none"; }},
    {"SHARE/LIMIT", 11, true, kWide, [](const Row& row) { return share_of(row); }},
    {"PRIO", 4, true, kWide, [](const Row& row) { return std::to_string(row.priority); }},
};

std::string cell_text(const Column& column, const std::string& text) {
  const std::string shown = shortened(text, column.columns);
  const std::string fill(column.columns - width_of(shown), ' ');
  return column.right ? fill + shown : shown + fill;
}

Line line_of(const Row* row, bool selected, size_t width) {
  const Style base = row == nullptr ? Style::kHeading : selected ? Style::kSelected : Style::kPlain;
  Line line;
  for (const Column& column : kColumns) {
    if (width < column.from) continue;
    if (line.columns() > 0) line.add(" ", base);
    const std::string text = row != nullptr ? column.cell(*row) : column.title;
    Style style = base;
    if (base == Style::kPlain && column.columns == 1) style = style_of(row->letter);
    if (base == Style::kPlain && std::string_view(column.title) == "STATE") style = style_of(row->client);
    line.add(cell_text(column, text), style);
  }
  if (width > line.columns() + kReasonColumns) {
    line.add(" " + shortened(row != nullptr ? row->client.waiting_for : "WAITING FOR", width - line.columns() - 1), base);
  }
  if (base != Style::kPlain) line.fill_to(width, base);
  return line;
}

// In as many lines as it takes.
void add_wrapped(Screen& screen, const std::string& text, size_t width, size_t indent, Style style = Style::kPlain) {
  std::istringstream lines(width_of(text) <= width ? text : wrapped(text, width - indent, indent));
  for (std::string line; std::getline(lines, line);) screen.push_back(Line(line, style));
}

// What the row has no columns for.
void draw_details(Screen& screen, const Row& row, size_t width) {
  const std::string figures = fmt::format("memory {}, core {}{}; priority {}; {} turn{}, ran {}, waited {}",
                                          row.memory_limit > 0 ? bytes_of(row.memory_limit) : "none", share_of(row),
                                          row.core_reserved > 0 ? fmt::format(", of which {} % are reserved", row.core_reserved) : "",
                                          row.priority, row.client.turns, row.client.turns == 1 ? "" : "s",
                                          format_duration(row.client.time_running_ns), format_duration(row.client.time_waiting_ns));
  const bool fits = width_of(row.tenant) + 10 + width_of(figures) <= width;
  if (!fits) screen.push_back(Line(row.tenant, Style::kDim));
  add_wrapped(screen, fits ? row.tenant + ": limits: " + figures : "  " + figures, width, 2, Style::kDim);
  if (!row.client.waiting_for.empty()) add_wrapped(screen, "waits for " + row.client.waiting_for, width, 2, Style::kWarning);
}

const char* name_of(Sort sort) {
  switch (sort) {
    case Sort::kGpu:
      return "GPU";
    case Sort::kMemory:
      return "memory";
    case Sort::kSwapped:
      return "swapped";
    case Sort::kWaiting:
      return "time waiting";
    case Sort::kShare:
      return "share";
    case Sort::kTenant:
      return "tenant";
  }
  return "";
}

std::string prompt_text(const Ui& ui, const Model& model) {
  std::string tenant = std::to_string(ui.prompt_tenant);
  for (const Row& row : model.rows) {
    if (row.client.tenant == ui.prompt_tenant) tenant = shortened(row.tenant, 20);  // what is typed is to be seen, too
  }
  switch (ui.prompt) {
    case Ui::Prompt::kNone:
      return "";
    case Ui::Prompt::kFilter:
      return "show rows with: ";
    case Ui::Prompt::kMemory:
      return "memory limit of " + tenant + " (such as 8Gi, or none): ";
    case Ui::Prompt::kCeiling:
      return "ceiling of " + tenant + " (1 to 100 % of the time at most, or none): ";
    case Ui::Prompt::kReservation:
      return "reservation and ceiling of " + tenant + " (1 to 100 %, or none): ";
    case Ui::Prompt::kPriority:
      return "priority of " + tenant + " (-100 to 100): ";
  }
  return "";
}

void draw_help(Screen& screen, size_t width) {
  constexpr size_t kMeaning = 19;  // the column in which what a key does begins
  for (const char* text : {"", "Keys", "  up, down, j, k   choose a row: its limits, and what it waits for, are below",
                           "  s                sort by GPU, memory, swapped, time waiting, share, tenant",
                           "  /  (escape)      only rows that contain a text (all rows)",
                           "  m, c, r, p       set its memory limit, ceiling, reservation of time, priority",
                           "  z                pause its tenant, or let it go on", "  ?, h             this page",
                           "  q                leave", "", "Marks", "  a b c ...        a tenant's letter, as in the table's first column",
                           "  on GPU:  + contexts of programs   # programs that are no clients   . free",
                           "  turns:   abab: both ran at once   . nobody ran   ~ memory moved"}) {
    if (*text == '\0') screen.emplace_back();
    add_wrapped(screen, text, width, kMeaning);
  }
}

// Of what there is no room for, how long the scheduler is up goes first.
Line head_line(const Model& model, size_t width) {
  size_t waiting = 0;
  for (const GpuPanel& gpu : model.gpus) waiting += gpu.waiting;
  const std::string up = fmt::format("  up {}", format_duration(model.uptime_ns));
  const std::string clients = fmt::format("  {} client{}, {} waiting", model.rows.size(), model.rows.size() == 1 ? "" : "s", waiting);
  const std::string host =
      model.own ? "  yours alone" : fmt::format("  host {} of {}", bytes_of(model.host_used), bytes_of(model.host_budget));
  Line line(fmt::format("nvshare {}", model.version), Style::kTitle);
  const size_t needed = line.columns() + clients.size();
  if (needed + host.size() + up.size() <= width) line.add(up);
  line.add(clients);
  if (needed + host.size() <= width) line.add(host);
  return line;
}

// Its end: what is being typed is there.
std::string end_of(std::string text, size_t columns) {
  if (width_of(text) <= columns) return text;
  while (width_of(text) + 2 > columns) text.erase(0, std::max<size_t>(first_columns(text, 2).size(), 1));
  return ".." + text;
}

Line foot_line(const Ui& ui, const Model& model, size_t width) {
  if (ui.prompt != Ui::Prompt::kNone) return Line(end_of(prompt_text(ui, model) + ui.typed + "_", width), Style::kTitle);
  if (!ui.message.empty()) return Line(ui.message, ui.bad_message ? Style::kBad : Style::kGood);
  const std::string keys =
      fmt::format("q leave  ? keys  s sort: {}  / filter{}", name_of(ui.sort), ui.filter.empty() ? "" : ": " + ui.filter);
  const std::string more = "  m c r p: limits, priority  z pause";
  return Line(width_of(keys) + more.size() <= width ? keys + more : keys, Style::kDim);
}

}  // namespace

const Line& RowLines::line(const Row& row, bool selected, size_t width) {
  if (by_client_.size() > kLinesKeptMax) by_client_.clear();
  const auto [at, is_new] = by_client_.try_emplace(row.client.id);
  Drawn& drawn = at->second;
  std::string since = format_duration(row.client.since_ns);
  if (!is_new && drawn.made == row.made && drawn.selected == selected && drawn.width == width && drawn.since == since) return drawn.line;
  drawn = {row.made, std::move(since), selected, width, line_of(&row, selected, width)};
  return drawn.line;
}

Screen draw(const Model& model, const Ui& ui, size_t width, size_t height) {
  RowLines none;
  return draw(model, ui, width, height, none);
}

Screen draw(const Model& model, const Ui& ui, size_t width, size_t height, RowLines& lines) {
  const bool live = height > 0;
  Screen screen;
  if (live && width < kNarrowest) {
    add_wrapped(screen, fmt::format("top needs {} columns, here are {}; q leaves", kNarrowest, width), width, 0);
    screen.resize(height);
    return screen;
  }
  width = std::max(width, kNarrowest);
  Screen below;
  if (!model.problem.empty()) screen.push_back(Line((model.known ? "seen last; " : "") + model.problem, Style::kBad));
  if (model.known) screen.push_back(head_line(model, width));
  if (live && ui.help) {
    draw_help(screen, width);
  } else if (model.known) {
    if (model.gpus.empty()) screen.push_back(Line("No GPU is known yet: none was reported by NVML or a client."));
    const bool in_full = !live || model.gpus.size() * kLinesOfGpu + 8 <= height;
    for (const GpuPanel& gpu : model.gpus) in_full ? draw_gpu(screen, model, gpu, width) : draw_gpu_short(screen, gpu, width);
    screen.emplace_back();
    screen.push_back(line_of(nullptr, false, width));
    const std::vector<const Row*> rows = rows_shown(model, ui);
    const auto chosen = std::find_if(rows.begin(), rows.end(), [&](const Row* row) { return row->client.id == ui.selected; });
    if (live && chosen != rows.end()) draw_details(below, **chosen, width);
    const size_t used = screen.size() + below.size() + 1;
    const size_t room = !live ? rows.size() : height > used ? height - used : 1;
    const auto at = static_cast<size_t>(chosen - rows.begin());
    const size_t first = chosen != rows.end() && at >= room ? at - room + 1 : 0;
    for (size_t i = first; i < rows.size() && i - first < room; ++i)
      screen.push_back(lines.line(*rows[i], live && rows[i]->client.id == ui.selected, width));
    for (const Row* row : live || width >= kWide ? std::vector<const Row*>() : rows) {
      if (!row->client.waiting_for.empty())
        add_wrapped(screen, fmt::format("{} {} waits for {}", row->letter, row->client.pid, row->client.waiting_for), width, 2);
    }
    if (rows.empty()) screen.push_back(Line(model.rows.empty() ? "No clients." : "No client matches the filter '" + ui.filter + "'."));
  }
  if (live) {
    if (screen.size() + below.size() + 1 > height) screen.resize(height > below.size() + 1 ? height - below.size() - 1 : 1);
    while (screen.size() + below.size() + 1 < height) screen.emplace_back();
    screen.insert(screen.end(), below.begin(), below.end());
    screen.push_back(foot_line(ui, model, width));
    if (screen.size() > height) screen.resize(height);
  }
  for (Line& line : screen) line.cut(width);
  return screen;
}

}  // namespace nvshare::cli::top
