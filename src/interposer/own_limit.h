// The memory limit that this program's environment names: what it was given by name, else the default that a container may come with.
#pragma once

#include <stdlib.h>

namespace nvshare::interposer {

struct OwnLimit {
  const char* variable;
  const char* text;  // null: none
};

inline OwnLimit own_limit_given() {
  OwnLimit given{nullptr, nullptr};
  for (const char* variable : {"NVSHARE_GPU_MEMORY_LIMIT", "NVSHARE_GPU_MEMORY_LIMIT_DEFAULT"}) {
    const char* text = getenv(variable);
    if (given.text == nullptr && text != nullptr && *text != '\0') given = {variable, text};
  }
  return given;
}

}  // namespace nvshare::interposer
