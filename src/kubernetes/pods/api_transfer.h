// One request to the API server as curl has it, for both ways to wait for it: blocking (api_server.h) and on a loop (api_client.h). With
// them the only files that know curl.
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <memory>
#include <string>

#include "kubernetes/pods/api_server.h"

namespace nvshare::kubernetes {

// curl, set up once, before other threads use it; nothing where it cannot be used.
CURLM* make_multi();

class ApiTransfer {
 public:
  // With the token and the CA as their files have them now. An error: the token cannot be read.
  static Result<std::unique_ptr<ApiTransfer>> make(const ApiServerAddress& address, ApiRequest request, ApiPatience patience, ApiTake take);
  ~ApiTransfer();
  ApiTransfer(const ApiTransfer&) = delete;
  ApiTransfer& operator=(const ApiTransfer&) = delete;

  CURL* handle() { return easy_; }
  // Until it fails because nothing came; not positive: it has.
  std::chrono::milliseconds until_quiet() const;
  Error quiet_error() const;
  // What became of it, once it has ended with `result`.
  Result<ApiReply> outcome(CURLcode result);

 private:
  ApiTransfer(const ApiServerAddress& address, ApiRequest request, ApiPatience patience, ApiTake take);
  Result<void> set_up(const std::string& token, const std::string& program);
  static size_t receive(char* bytes, size_t one, size_t count, void* transfer);
  size_t take(std::string_view bytes);

  CURL* const easy_;
  curl_slist* headers_ = nullptr;
  const std::string server_, url_;
  const std::string authority_;  // the file of the cluster's CA
  const ApiRequest request_;
  const ApiPatience patience_;
  const ApiTake take_;
  std::string body_;
  std::chrono::steady_clock::time_point heard_;
  bool refused_ = false;  // by `take`, or too much
  char why_[CURL_ERROR_SIZE] = {};
};

}  // namespace nvshare::kubernetes
