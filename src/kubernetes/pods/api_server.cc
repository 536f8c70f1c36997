#include "kubernetes/pods/api_server.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "kubernetes/pods/api_transfer.h"

namespace nvshare::kubernetes {
namespace {

constexpr long kWakeMs = 10'000;
constexpr char kJson[] = "application/json";

}  // namespace

std::string api_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string url_of_own_cluster() {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || *host == 0) return {};
  const std::string name = std::string(host).find(':') == std::string::npos ? host : "[" + std::string(host) + "]";
  return "https://" + name + ":" + (port != nullptr && *port != 0 ? port : "443");
}

ApiRequest ApiRequest::get(std::string path) { return {"GET", std::move(path), "", ""}; }
ApiRequest ApiRequest::post(std::string path, std::string body) { return {"POST", std::move(path), std::move(body), kJson}; }
ApiRequest ApiRequest::put(std::string path, std::string body) { return {"PUT", std::move(path), std::move(body), kJson}; }
ApiRequest ApiRequest::remove(std::string path, std::string body) { return {"DELETE", std::move(path), std::move(body), kJson}; }
ApiRequest ApiRequest::apply(std::string path, std::string body) {
  return {"PATCH", std::move(path), std::move(body), "application/apply-patch+yaml"};
}

ApiServer::ApiServer(ApiServerAddress address) : address_(std::move(address)), multi_(make_multi()) {}

ApiServer::~ApiServer() { curl_multi_cleanup(multi_); }

void ApiServer::interrupt() {
  interrupted_ = true;
  curl_multi_wakeup(multi_);
}

Result<ApiReply> ApiServer::send(ApiRequest request, ApiPatience patience) {
  if (multi_ == nullptr) return error_format("libcurl cannot be used");
  Result<std::unique_ptr<ApiTransfer>> made = ApiTransfer::make(address_, std::move(request), patience, nullptr);
  if (!made) return made.error();
  ApiTransfer& transfer = **made;
  curl_multi_add_handle(multi_, transfer.handle());
  int running = 1;
  bool quiet = false;
  while (!interrupted_) {
    curl_multi_perform(multi_, &running);
    const long left_ms = static_cast<long>(transfer.until_quiet().count());
    quiet = left_ms <= 0;
    if (running == 0 || quiet) break;
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(std::min(kWakeMs, left_ms)), nullptr);
  }
  CURLcode result = CURLE_ABORTED_BY_CALLBACK;
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg == CURLMSG_DONE) result = message->data.result;
  }
  curl_multi_remove_handle(multi_, transfer.handle());
  if (interrupted_) return error_format("interrupted");
  if (quiet) return transfer.quiet_error();
  return transfer.outcome(result);
}

}  // namespace nvshare::kubernetes
