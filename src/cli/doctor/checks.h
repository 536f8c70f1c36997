// The judgement of `nvsharectl doctor`: facts in, findings out. Pure, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/facts.h"

namespace nvshare::cli::doctor {

enum class Level { kOk, kNote, kWarning, kProblem };

struct Finding {
  Level level = Level::kOk;
  std::string check;  // a word, the same in every release: "driver", "socket", ...
  std::string found;
  std::string means;  // empty when all is well
  std::string to_do;
};

// One or more for each check, in a fixed order.
std::vector<Finding> examine(const Facts& facts);

// `columns`: of the terminal; 0: it is none.
std::string draw(const std::vector<Finding>& findings, size_t columns = 0);
// {"problems":0,"warnings":1,"findings":[{"level":"ok","check":"driver",...},...]}, one line.
std::string json_of(const std::vector<Finding>& findings);
// 0: programs can run under nvshare as things stand (there may be warnings); 1: there is a problem.
int exit_code(const std::vector<Finding>& findings);

}  // namespace nvshare::cli::doctor
