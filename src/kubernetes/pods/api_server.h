// HTTP to the cluster's API server, with the service account's token and CA. Blocking calls on one thread; another may interrupt them.
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

class ApiServer {
 public:
  explicit ApiServer(ApiServerAddress address);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  struct Reply {
    int status = 0;    // of HTTP
    std::string body;  // of a refusal (300 and more) its first part
  };
  struct Patience {
    long whole_ms = 60'000;  // the whole request
    long quiet_ms = 20'000;  // without a byte
  };
  // An error: no complete answer came. `take` gets what a 200 brings as it comes, and ends the request by returning false (an error);
  // without it the body is in the reply.
  using Take = std::function<bool(std::string_view)>;
  Result<Reply> get(const std::string& path_and_query, const std::string& accept, Patience patience, const Take& take = nullptr);
  Result<Reply> post(const std::string& path, const std::string& body, Patience patience);
  Result<Reply> put(const std::string& path, const std::string& body, Patience patience);
  Result<Reply> remove(const std::string& path, const std::string& body, Patience patience);  // DELETE
  // Server-side apply: `body` is what the caller, named in the query, wants to own of the object.
  Result<Reply> apply(const std::string& path_and_query, const std::string& body, Patience patience);

  // Any thread: a request that is under way, and every later one, fails at once.
  void interrupt();

 private:
  struct Request {
    const char* method;
    const std::string& path;
    std::string accept = "application/json";
    const char* content_type = nullptr;  // with a body only
    const std::string* body = nullptr;
  };
  Result<Reply> send(const Request& request, Patience patience, const Take& take);

  const ApiServerAddress address_;
  void* const multi_;  // curl's; keeps connections
  std::atomic<bool> interrupted_{false};
};

}  // namespace nvshare::kubernetes
