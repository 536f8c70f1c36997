// What keys do (view.h).
#include <algorithm>

#include "cli/top/view.h"

namespace nvshare::cli::top {
namespace {

constexpr size_t kTypedMax = 60;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool matches(const Row& row, const std::string& filter) {
  return filter.empty() || contains(row.tenant, filter) || contains(row.client.program, filter) || contains(row.client.state, filter) ||
         contains(std::to_string(row.client.pid), filter);
}

int64_t waited_ns(const Row& row) { return row.client.state == "waiting" ? row.client.since_ns : -1; }

bool goes_before(const Row& a, const Row& b, Sort sort) {
  switch (sort) {
    case Sort::kGpu:
      return a.gpu < b.gpu;
    case Sort::kMemory:
      return a.client.resident > b.client.resident;
    case Sort::kSwapped:
      return a.client.swapped > b.client.swapped;
    case Sort::kWaiting:
      return waited_ns(a) > waited_ns(b);
    case Sort::kShare:
      return a.share.value_or(-1) > b.share.value_or(-1);
    case Sort::kTenant:
      return a.tenant < b.tenant;
  }
  return false;
}

void move_selection(Ui& ui, const Model& model, int64_t by) {
  const std::vector<const Row*> rows = rows_shown(model, ui);
  if (rows.empty()) return;
  const auto chosen = std::find_if(rows.begin(), rows.end(), [&](const Row* row) { return row->client.id == ui.selected; });
  const auto last = static_cast<int64_t>(rows.size()) - 1;
  // Nothing is chosen yet: the first move takes the first row.
  const int64_t at = chosen == rows.end() ? (by > 0 ? 0 : last) : std::clamp<int64_t>(chosen - rows.begin() + by, 0, last);
  ui.selected = rows[static_cast<size_t>(at)]->client.id;
}

void ask(Ui& ui, const Model& model, Ui::Prompt prompt) {
  ui.message.clear();
  const std::vector<const Row*> rows = rows_shown(model, ui);
  if (rows.size() == 1) ui.selected = rows.front()->client.id;
  for (const Row* row : rows) {
    if (row->client.id != ui.selected) continue;
    ui.prompt = prompt;
    ui.prompt_tenant = row->client.tenant;
    ui.typed.clear();
    return;
  }
  ui.message = "choose a row first: up, down";
  ui.bad_message = true;
}

Wish answered(Ui& ui) {
  const Ui::Prompt prompt = ui.prompt;
  ui.prompt = Ui::Prompt::kNone;
  if (ui.typed.empty()) return {};
  const std::string tenant = std::to_string(ui.prompt_tenant);
  switch (prompt) {
    case Ui::Prompt::kNone:
    case Ui::Prompt::kFilter:
      return {};
    case Ui::Prompt::kMemory:
      return {false, {tenant, "memory=" + ui.typed}};
    case Ui::Prompt::kCeiling:
      return {false, {tenant, "ceiling=" + ui.typed}};
    case Ui::Prompt::kReservation:
      return {false, {tenant, "core=" + ui.typed}};
    case Ui::Prompt::kPriority:
      return {false, {tenant, "priority=" + ui.typed}};
  }
  return {};
}

Wish press_at_prompt(Ui& ui, Key key) {
  const bool filters = ui.prompt == Ui::Prompt::kFilter;
  switch (key.kind) {
    case Key::Kind::kText:
      if (ui.typed.size() < kTypedMax) ui.typed += key.text;
      break;
    case Key::Kind::kBackspace:
      if (!ui.typed.empty()) ui.typed.pop_back();
      break;
    case Key::Kind::kEscape:
      ui.prompt = Ui::Prompt::kNone;
      if (filters) ui.filter.clear();
      return {};
    case Key::Kind::kEnter:
      return answered(ui);
    case Key::Kind::kUp:
    case Key::Kind::kDown:
    case Key::Kind::kPageUp:
    case Key::Kind::kPageDown:
      return {};
  }
  if (filters) ui.filter = ui.typed;  // as it is typed
  return {};
}

Wish pause_or_resume(Ui& ui, const Model& model) {
  for (const Row& row : model.rows) {
    if (row.client.id == ui.selected) return {false, {std::to_string(row.client.tenant), row.suspended ? "paused=no" : "paused=yes"}};
  }
  ui.message = "choose a row first: up, down";
  ui.bad_message = true;
  return {};
}

Wish press_letter(Ui& ui, const Model& model, char letter) {
  switch (letter) {
    case 'q':
    case '\x03':  // Ctrl-C
      return {true, {}};
    case 'j':
      move_selection(ui, model, 1);
      break;
    case 'k':
      move_selection(ui, model, -1);
      break;
    case 's':
      ui.sort = static_cast<Sort>((static_cast<size_t>(ui.sort) + 1) % kSorts);
      break;
    case '/':
      ui.prompt = Ui::Prompt::kFilter;
      ui.typed = ui.filter;
      break;
    case 'm':
      ask(ui, model, Ui::Prompt::kMemory);
      break;
    case 'c':
      ask(ui, model, Ui::Prompt::kCeiling);
      break;
    case 'r':
      ask(ui, model, Ui::Prompt::kReservation);
      break;
    case 'p':
      ask(ui, model, Ui::Prompt::kPriority);
      break;
    case 'z':
      return pause_or_resume(ui, model);
    case '?':
    case 'h':
      ui.help = true;
      break;
    default:
      break;
  }
  return {};
}

constexpr struct {
  std::string_view bytes;
  Key::Kind kind;
} kSequences[] = {{"\033[A", Key::Kind::kUp},   {"\033OA", Key::Kind::kUp},      {"\033[B", Key::Kind::kDown},
                  {"\033OB", Key::Kind::kDown}, {"\033[5~", Key::Kind::kPageUp}, {"\033[6~", Key::Kind::kPageDown}};

bool ends_sequence(char c) { return c >= 0x40 && c <= 0x7e; }

}  // namespace

std::vector<Key> keys_of(std::string_view bytes, std::string& rest, bool all) {
  std::string text = rest;
  text += bytes;
  rest.clear();
  std::vector<Key> keys;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c != '\033') {
      if (c == '\r' || c == '\n') {
        keys.push_back({Key::Kind::kEnter, 0});
      } else if (c == 0x7f || c == '\b') {
        keys.push_back({Key::Kind::kBackspace, 0});
      } else if ((c >= ' ' && c < 0x7f) || c == '\x03') {
        keys.push_back({Key::Kind::kText, c});
      }
      ++i;
      continue;
    }
    // An escape, alone or with what a function key sends: ESC [ parameters letter, or ESC O letter.
    const bool more = i + 1 < text.size();
    if (more && text[i + 1] != '[' && text[i + 1] != 'O') {
      keys.push_back({Key::Kind::kEscape, 0});
      ++i;
      continue;
    }
    size_t end = i + 2;
    while (end < text.size() && !ends_sequence(text[end])) ++end;
    if (!more || end >= text.size()) {
      if (!all) {
        rest = text.substr(i);
        return keys;
      }
      keys.push_back({Key::Kind::kEscape, 0});
      return keys;
    }
    const std::string_view sequence = std::string_view(text).substr(i, end + 1 - i);
    for (const auto& known : kSequences) {
      if (known.bytes == sequence) keys.push_back({known.kind, 0});
    }
    i = end + 1;
  }
  return keys;
}

Wish press(Ui& ui, const Model& model, Key key) {
  if (ui.prompt != Ui::Prompt::kNone && !(key.kind == Key::Kind::kText && key.text == '\x03')) return press_at_prompt(ui, key);
  ui.message.clear();
  if (ui.help) {
    ui.help = false;
    return {key.kind == Key::Kind::kText && key.text == '\x03', {}};
  }
  const auto page = static_cast<int64_t>(std::max<size_t>(ui.page_rows, 1));
  switch (key.kind) {
    case Key::Kind::kText:
      return press_letter(ui, model, key.text);
    case Key::Kind::kUp:
      move_selection(ui, model, -1);
      break;
    case Key::Kind::kDown:
      move_selection(ui, model, 1);
      break;
    case Key::Kind::kPageUp:
      move_selection(ui, model, -page);
      break;
    case Key::Kind::kPageDown:
      move_selection(ui, model, page);
      break;
    case Key::Kind::kEscape:
      ui.filter.clear();
      ui.selected = 0;
      break;
    case Key::Kind::kEnter:
    case Key::Kind::kBackspace:
      break;
  }
  return {};
}

std::vector<const Row*> rows_shown(const Model& model, const Ui& ui) {
  std::vector<const Row*> rows;
  for (const Row& row : model.rows) {
    if (matches(row, ui.filter)) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row* a, const Row* b) { return goes_before(*a, *b, ui.sort); });
  return rows;
}

}  // namespace nvshare::cli::top
