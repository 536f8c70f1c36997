// HTTP to the cluster's API server, with the service account's token and CA. Blocking calls on one thread; another may interrupt them. On a
// loop: api_client.h.
// The program must ignore SIGPIPE: TLS writes to sockets that the other end has closed. The token is read anew for each request, because
// the kubelet replaces it about once an hour; so is the CA.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare::kubernetes {

struct ApiServerAddress {
  std::string url;                                // "https://10.0.0.1:443"
  std::string service_account;                    // folder with token and ca.crt
  std::string program = "nvshare-device-plugin";  // as the API server's audit log shows it
};

// The one of the cluster that this process runs in (KUBERNETES_SERVICE_HOST and _PORT); empty outside of one.
std::string url_of_own_cluster();

// Now, as the API server writes times: "2026-01-31T12:00:00Z".
std::string api_time_now();

struct ApiRequest {
  static ApiRequest get(std::string path_and_query);
  static ApiRequest post(std::string path, std::string body);
  static ApiRequest put(std::string path, std::string body);
  static ApiRequest remove(std::string path, std::string body);  // DELETE
  // Server-side apply: `body` is what the caller, named in the query, wants to own of the object.
  static ApiRequest apply(std::string path_and_query, std::string body);

  const char* method;
  std::string path;
  std::string body;
  std::string content_type;  // empty: without a body
  std::string accept = "application/json";
};

struct ApiReply {
  int status = 0;    // of HTTP
  std::string body;  // of a refusal (300 and more) its first part
};

struct ApiPatience {
  long whole_ms = 60'000;  // the whole request
  long quiet_ms = 20'000;  // without a byte
};

// Gets what a 200 brings as it comes, in place of the reply's body, and ends the request by returning false (an error).
using ApiTake = std::function<bool(std::string_view)>;

class ApiServer {
 public:
  explicit ApiServer(ApiServerAddress address);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // An error: no complete answer came.
  Result<ApiReply> send(ApiRequest request, ApiPatience patience);

  // Any thread: a request that is under way, and every later one, fails at once.
  void interrupt();

 private:
  const ApiServerAddress address_;
  void* const multi_;  // curl's; keeps connections
  std::atomic<bool> interrupted_{false};
};

}  // namespace nvshare::kubernetes
