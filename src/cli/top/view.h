// `nvsharectl top` on a screen: what keys do to it, and how it is drawn. Pure, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cli/top/model.h"
#include "cli/top/screen.h"

namespace nvshare::cli::top {

enum class Sort { kGpu, kMemory, kSwapped, kWaiting, kShare, kTenant };
inline constexpr size_t kSorts = 6;

struct Key {
  enum class Kind { kText, kUp, kDown, kPageUp, kPageDown, kEnter, kEscape, kBackspace } kind = Kind::kText;
  char text = 0;  // of kText
};

// The keys in what a terminal sent. `rest` takes the beginning of a sequence that is not whole yet, and has it for the next call;
// `all` says that nothing more will come, so that a lone escape is the key.
std::vector<Key> keys_of(std::string_view bytes, std::string& rest, bool all);

// What the user has chosen so far.
struct Ui {
  enum class Prompt { kNone, kFilter, kMemory, kCeiling, kReservation, kPriority };
  Sort sort = Sort::kGpu;
  std::string filter;     // rows that contain it, in any column of words
  uint64_t selected = 0;  // ClientReport::id
  Prompt prompt = Prompt::kNone;
  std::string typed;           // at the prompt
  uint64_t prompt_tenant = 0;  // whom it is about
  std::string message;         // of the last change
  bool bad_message = false;
  bool help = false;
  size_t page_rows = 10;
};

struct Wish {
  bool quit = false;
  std::vector<std::string> change;  // as the words of `nvsharectl set`; empty: none
};
Wish press(Ui& ui, const Model& model, Key key);

// The rows that are shown, in their order.
std::vector<const Row*> rows_shown(const Model& model, const Ui& ui);

// Lines of rows as they were drawn last, so that those that look the same are not made anew. For the rows of one History.
class RowLines {
 public:
  const Line& line(const Row& row, bool selected, size_t width);

 private:
  struct Drawn {
    uint64_t made = 0;
    std::string since;
    bool selected = false;
    size_t width = 0;
    Line line;
  };
  std::unordered_map<uint64_t, Drawn> by_client_;
};

// At most `height` lines of at most `width` columns; a height of 0: as many as there are, without what is for keys. From 40
// columns on; with fewer it says so.
Screen draw(const Model& model, const Ui& ui, size_t width, size_t height, RowLines& lines);
Screen draw(const Model& model, const Ui& ui, size_t width, size_t height);

}  // namespace nvshare::cli::top
