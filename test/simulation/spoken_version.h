// Which protocol version the code that runs now speaks. In the simulation the scheduler and the clients are one program, and each of them
// may be of the previous release: spoken_version.cc takes the place of protocol/version.cc. Not thread-safe.
#pragma once

#include <cstdint>

namespace nvshare::simulation {

// Until its end protocol::version_spoken() is this version; else the newest.
class SpokenVersion {
 public:
  explicit SpokenVersion(uint16_t version);
  ~SpokenVersion();
  SpokenVersion(const SpokenVersion&) = delete;
  SpokenVersion& operator=(const SpokenVersion&) = delete;

 private:
  uint16_t before_;
};

}  // namespace nvshare::simulation
