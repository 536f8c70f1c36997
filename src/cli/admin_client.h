// The way to a scheduler's admin socket, under the name that this layer knows it by.
#pragma once

#include "protocol/admin_client.h"

namespace nvshare::cli {

using AdminClient = protocol::admin::Client;

}  // namespace nvshare::cli
