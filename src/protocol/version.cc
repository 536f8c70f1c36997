// In a file of its own, and nothing beside it, so that previous_version.cc can be linked in its place.
#include "protocol/codec.h"

namespace nvshare::protocol {

uint16_t version_spoken() { return kVersionMax; }

}  // namespace nvshare::protocol
