// HTTP to the cluster's API server from a loop: one request at a time, whose answer is a call on the loop's thread. Else as api_server.h.
#pragma once

#include <functional>
#include <memory>

#include "kubernetes/pods/api_server.h"
#include "loop/event_loop.h"

namespace nvshare::kubernetes {

// All of it on the loop's thread.
class ApiClient {
 public:
  using Done = std::function<void(Result<ApiReply>)>;

  ApiClient(EventLoop& loop, ApiServerAddress address);
  ~ApiClient();  // a request that is under way ends without an answer
  ApiClient(const ApiClient&) = delete;
  ApiClient& operator=(const ApiClient&) = delete;

  // Once the one before has been answered. `done` is called once, later; an error: no complete answer came.
  void send(ApiRequest request, ApiPatience patience, Done done, ApiTake take = nullptr);

 private:
  struct Core;
  const std::unique_ptr<Core> core_;
};

}  // namespace nvshare::kubernetes
