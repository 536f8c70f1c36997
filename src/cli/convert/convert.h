// nvsharectl convert: manifests that ask for GPUs by resources, rewritten to claims of nvshare's DRA driver (docs/kubernetes-dra.md). Pure.
//
// Only the lines that have to change do: comments, order and fields that nobody here knows stay as they are.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/convert/gpu_ask.h"
#include "cli/convert/pod_spec.h"

namespace nvshare::cli::convert {

struct Converted {
  std::string text;
  int templates = 0;            // ResourceClaimTemplates that were added
  std::vector<Remark> remarks;  // in the order of lines
  bool failed = false;          // some of them did
};

// Error: the text is no YAML, or one of its documents no manifest. One without any is left as it is.
Result<Converted> convert(const std::string& text, const Options& options);

}  // namespace nvshare::cli::convert
