// src/interposer/entry_points.txt, read at run time by tests and by the fake driver.
#pragma once

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace nvshare::testing {

struct EntryPoint {
  std::string symbol;
  std::string kind;
  int since = 0;  // 0: not hooked

  bool hooked() const { return kind == "grows" || kind == "looks" || kind == "submit" || kind == "custom"; }
  bool per_thread() const { return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds"); }
  // What a program passes to cuGetProcAddress: no version, no per-thread suffix.
  std::string request_name() const {
    std::string name = per_thread() ? symbol.substr(0, symbol.size() - 5) : symbol;
    const size_t length = name.size();
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v') name.resize(length - 3);
    return name;
  }
};

inline std::vector<EntryPoint> entry_points() {
  std::vector<EntryPoint> entries;
  std::ifstream file(NVSHARE_ENTRY_POINTS);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    EntryPoint entry;
    fields >> entry.symbol >> entry.kind >> entry.since;
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace nvshare::testing
