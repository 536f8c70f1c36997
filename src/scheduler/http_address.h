// Where something is served, as people write it: "127.0.0.1:9402", "[::]:9402".
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

namespace nvshare::scheduler {

struct HttpAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string host;  // as it was given
};

std::optional<HttpAddress> parse_http_address(const std::string& text);

// Whether only programs of this machine reach such an address: 127.0.0.0/8 and ::1. An address that is none is not.
bool is_loopback(const std::string& address);

// Of a request's Host header: "127.0.0.1:9402", "[::1]", "localhost:80", in which no name server has a say.
bool is_named_by_nobody(const std::string& host);

}  // namespace nvshare::scheduler
