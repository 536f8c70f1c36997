#include "scheduler/http_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>

#include <cstdint>

#include "base/parse.h"

namespace nvshare::scheduler {

std::optional<HttpAddress> parse_http_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Result<int64_t> port = parse_integer(text.substr(colon + 1), 0, 65535);
  if (!port) return std::nullopt;
  HttpAddress address;
  address.host = text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(*port));
    if (inet_pton(AF_INET6, address.host.substr(1, address.host.size() - 2).c_str(), &v6->sin6_addr) != 1) return std::nullopt;
    address.length = sizeof *v6;
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(*port));
    if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) != 1) return std::nullopt;
    address.length = sizeof *v4;
  }
  return address;
}

bool is_loopback(const std::string& text) {
  const std::optional<HttpAddress> address = parse_http_address(text);
  if (!address) return false;
  if (address->storage.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address->storage)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address->storage)->sin6_addr);
}

bool is_named_by_nobody(const std::string& host) {
  in6_addr ignored{};
  if (!host.empty() && host.front() == '[') {
    const size_t end = host.find(']');
    return end != std::string::npos && inet_pton(AF_INET6, host.substr(1, end - 1).c_str(), &ignored) == 1;
  }
  const std::string name = host.substr(0, host.find(':'));
  return inet_pton(AF_INET, name.c_str(), &ignored) == 1 || strcasecmp(name.c_str(), "localhost") == 0;
}

}  // namespace nvshare::scheduler
