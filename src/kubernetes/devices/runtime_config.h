// Whether the container runtime takes CDI devices, as far as its configuration says: containerd's config.toml with what it imports, or
// CRI-O's crio.conf and crio.conf.d. A runtime whose CDI is off drops the devices without a word. Reads files; no state.
//
// The file may not be the one that the runtime was started with, and a changed one counts from the runtime's next start: so the answer is
// for people, and nothing is refused for it.
#pragma once

#include <string>

namespace nvshare::kubernetes {

struct RuntimeCdi {
  enum class State {
    kOn,
    kOff,
    kNotSaid,     // by what is there: `text` says what that means
    kUnreadable,  // a file that is damaged or cannot be read
  };
  State state = State::kNotSaid;
  std::string text;  // for the log: what the file says, and what the runtime needs
};

// folder: the runtime's, such as /etc/containerd or /etc/crio. cdi_dir: where our specifications lie.
RuntimeCdi cdi_of_runtime(const std::string& folder, const std::string& cdi_dir);

// Says it in the log; nothing where `folder` is empty.
void log_cdi_of_runtime(const std::string& folder, const std::string& cdi_dir);

}  // namespace nvshare::kubernetes
