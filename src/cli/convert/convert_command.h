// nvsharectl convert: reads manifests, writes them as claims.
#pragma once

#include <string>
#include <vector>

namespace nvshare::cli::convert {

struct ConvertOptions {
  std::vector<std::string> files;  // "-": standard input
  std::string output = "-";
  std::string memory;  // for each GPU that no memory is asked of; empty: none
  int cores = 0;       // likewise; 0: none
  std::string memory_unit = "1Gi";
  std::string device_class = "gpu.nvshare.com";
};

// Returns the program's exit code: 0, or 1 where a file cannot be read or written or something that asks for a GPU was left as it was.
int convert_command(const ConvertOptions& options);

}  // namespace nvshare::cli::convert
