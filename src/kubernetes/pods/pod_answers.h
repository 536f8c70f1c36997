// What the API server answers to a list of pods and to a watch of them, taken apart. Nothing of it is trusted to be well-formed. No I/O;
// not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::kubernetes {

struct PodList {
  std::string version;            // from which a watch goes on
  std::vector<std::string> pods;  // as JSON texts
};

Result<PodList> read_pod_list(std::string_view body);

// One watch: lines of JSON, as bytes come.
class PodEvents {
 public:
  struct Listener {
    std::function<void(const std::string& pod)> changed;  // new, or different; as JSON text
    std::function<void(const std::string& pod)> deleted;
  };
  explicit PodEvents(const Listener& listener) : listener_(listener) {}

  // False: this watch is of no more use.
  bool take(std::string_view bytes);
  bool heard() const { return heard_; }                                 // an event came
  const std::string& version() const { return version_; }               // of the last event; empty: none said
  const std::optional<std::string>& failed() const { return failed_; }  // why it is of no more use; a list mends it

 private:
  bool take_line();

  const Listener& listener_;
  std::string line_;
  std::string version_;
  std::optional<std::string> failed_;
  bool heard_ = false;
};

}  // namespace nvshare::kubernetes
