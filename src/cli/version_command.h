// nvsharectl version: releases of all parts, and whether they go together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nvshare::cli {

struct PartRelease {
  std::string name;     // "device plugin"
  std::string release;  // empty: it does not say
  std::string path;
};

struct Releases {
  std::string own;  // of nvsharectl
  std::string library;
  std::vector<PartRelease> installed;  // other programs of ours that are here
  std::string runtime_dir;             // of the scheduler that runs; empty: none_why
  std::string none_why;
  std::string running;  // its release; empty: unknown_why
  std::string unknown_why;
  std::map<std::pair<std::string, uint32_t>, int> clients;  // how many by library ("": too old to say) and protocol
};

Releases look_for_releases();

// A line for each part, then one for each pair that does not belong together, with what to do. Pure.
std::string text_of(const Releases& releases);

int version_command();

}  // namespace nvshare::cli
