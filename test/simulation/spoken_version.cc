#include "spoken_version.h"

#include <utility>

#include "protocol/codec.h"

namespace nvshare {
namespace {
uint16_t spoken = protocol::kVersionMax;
}

uint16_t protocol::version_spoken() { return spoken; }

simulation::SpokenVersion::SpokenVersion(uint16_t version) : before_(std::exchange(spoken, version)) {}
simulation::SpokenVersion::~SpokenVersion() { spoken = before_; }

}  // namespace nvshare
