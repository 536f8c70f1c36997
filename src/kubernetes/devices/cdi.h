// CDI specifications (Container Device Interface) of what containers are given, as JSON files in a folder that container runtimes watch.
//
// One file for the GPUs, one for amounts of memory. A name once given stays described: the kubelet gives it to later starts of the
// container too. Written by rename, so that a runtime never reads half a file. Not thread-safe.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/container_edits.h"

namespace nvshare::kubernetes {

inline constexpr char kCdiGpuKind[] = "nvshare.com/gpu";
inline constexpr char kCdiMemoryKind[] = "nvshare.com/gpu-memory";

class CdiSpecs {
 public:
  // `settings` outlives it.
  CdiSpecs(const Settings& settings, const InstalledFiles& files);

  // Makes sure that devices with these names are described on disk; takes over names that a file of an earlier run has.
  Result<void> describe_gpus(const std::vector<std::vector<std::string>>& uuid_sets);
  Result<void> describe_memory(const std::vector<std::string>& limits);

  // Short names for sets of GPUs, for people: a file of their own, made anew each time.
  Result<void> describe_names(const std::map<std::string, std::vector<std::string>>& uuids_by_name);

  // The files' contents, for tests.
  std::string gpu_spec() const;
  std::string memory_spec() const;

 private:
  std::string gpu_spec_of(const std::map<std::string, std::vector<std::string>>& uuids_by_name) const;
  void read_names(const std::string& path, std::set<std::string>* names) const;

  const Settings& settings_;
  std::string gpu_file_, names_file_, memory_file_;
  std::vector<Mount> mounts_;
  std::set<std::string> gpu_names_, memory_names_;
  bool gpus_written_ = false;
  bool memory_written_ = false;
};

// For `docker run --device nvshare.com/gpu=0` and its kin without Kubernetes: `gpus` by UUID, by their number among `all` (NVML's) and
// together as "all"; memory in whole units up to the largest GPU's. Returns a sentence that says what there is.
Result<std::string> write_cdi_for_people(const Settings& settings, const InstalledFiles& files, const std::vector<Gpu>& gpus,
                                         const std::vector<Gpu>& all);

}  // namespace nvshare::kubernetes
