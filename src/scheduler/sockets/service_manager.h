// systemd's notification protocol (sd_notify(3)), without its library.
#pragma once

namespace nvshare::scheduler {

// Sends "READY=1" and the like to NOTIFY_SOCKET, if there is one.
void notify_service_manager(const char* state);

}  // namespace nvshare::scheduler
