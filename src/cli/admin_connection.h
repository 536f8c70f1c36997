// The way to a scheduler's admin socket, under the name that this layer knows it by.
#pragma once

#include "protocol/admin_connection.h"

namespace nvshare::cli {

using protocol::admin::AdminConnection;

}  // namespace nvshare::cli
