// nvsharectl replay: what is said of it. Pure, thread-safe.
#pragma once

#include <string>

#include "replay/answers.h"

namespace nvshare::cli {

// Exit codes; as cmp has them.
constexpr int kExitAnswerDiffers = 1;
constexpr int kExitNotReplayed = 2;
constexpr int kExitNoAnswers = 3;
int exit_code_of(const replay::Replayed& replayed);

std::string replay_text(const replay::Replayed& replayed, const std::string& file, const std::string& this_release);
std::string replay_json(const replay::Replayed& replayed, const std::string& file, const std::string& this_release);  // one line

}  // namespace nvshare::cli
