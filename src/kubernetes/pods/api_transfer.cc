#include "kubernetes/pods/api_transfer.h"

#include <spdlog/spdlog.h>

#include <exception>
#include <utility>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBodyMax = 256u << 20;  // a list of a node's pods is a few MB
constexpr size_t kRefusalMax = 1000;     // of a body that explains a refusal
constexpr long kConnectPatienceMs = 5000;

}  // namespace

CURLM* make_multi() {
  static const bool ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return ready ? curl_multi_init() : nullptr;
}

ApiTransfer::ApiTransfer(const ApiServerAddress& address, ApiRequest request, ApiPatience patience, ApiTake take)
    : easy_(curl_easy_init()),
      server_(address.url),
      url_(address.url + request.path),
      authority_(address.service_account + "/ca.crt"),
      request_(std::move(request)),
      patience_(patience),
      take_(std::move(take)),
      heard_(Clock::now()) {}

ApiTransfer::~ApiTransfer() {
  curl_easy_cleanup(easy_);
  curl_slist_free_all(headers_);
}

Result<std::unique_ptr<ApiTransfer>> ApiTransfer::make(const ApiServerAddress& address, ApiRequest request, ApiPatience patience,
                                                       ApiTake take) {
  Result<std::string> token = read_file(address.service_account + "/token");
  if (!token) return token.error();
  while (!token->empty() && (token->back() == '\n' || token->back() == ' ')) token->pop_back();
  std::unique_ptr<ApiTransfer> transfer(new ApiTransfer(address, std::move(request), patience, std::move(take)));
  if (auto ok = transfer->set_up(*token, address.program); !ok) return ok.error();
  return transfer;
}

Result<void> ApiTransfer::set_up(const std::string& token, const std::string& program) {
  if (easy_ == nullptr) return error_format("libcurl cannot be used");
  const auto add = [this](const std::string& line) { headers_ = curl_slist_append(headers_, line.c_str()); };
  add("Authorization: Bearer " + token);
  add("Accept: " + request_.accept);
  if (!request_.content_type.empty()) add("Content-Type: " + request_.content_type);
  add("User-Agent: " + program);
  curl_easy_setopt(easy_, CURLOPT_URL, url_.c_str());
  curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(easy_, CURLOPT_CAINFO, authority_.c_str());
  curl_easy_setopt(easy_, CURLOPT_CAPATH, nullptr);
  curl_easy_setopt(easy_, CURLOPT_CA_CACHE_TIMEOUT, 0L);  // a new CA is seen at the next connection
  curl_easy_setopt(easy_, CURLOPT_PROXY, "");  // the API server is inside the cluster, whatever the environment says of the outside
  curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(easy_, CURLOPT_QUICK_EXIT, 1L);  // the end of a request does not wait for a resolver that hangs
#endif
  curl_easy_setopt(easy_, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT_MS, kConnectPatienceMs);
  curl_easy_setopt(easy_, CURLOPT_TIMEOUT_MS, patience_.whole_ms);
  curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, why_);
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers_);
  if (!request_.content_type.empty()) {
    curl_easy_setopt(easy_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
    curl_easy_setopt(easy_, CURLOPT_POSTFIELDS, request_.body.c_str());
    curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, request_.method);
  }
  return {};
}

size_t ApiTransfer::receive(char* bytes, size_t, size_t count, void* transfer) {
  try {
    return static_cast<ApiTransfer*>(transfer)->take({bytes, count});
  } catch (const std::exception& problem) {  // none passes through curl
    spdlog::error("an error of this program's own: {}; a request to the API server fails with it", problem.what());
    static_cast<ApiTransfer*>(transfer)->refused_ = true;
    return 0;
  }
}

size_t ApiTransfer::take(std::string_view bytes) {
  heard_ = Clock::now();
  long status = 0;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200 && take_) {
    refused_ = !take_(bytes);
    return refused_ ? 0 : bytes.size();
  }
  if (status >= 300 && body_.size() >= kRefusalMax) return bytes.size();
  refused_ = body_.size() + bytes.size() > kBodyMax;
  if (refused_) return 0;
  body_.append(bytes);
  return bytes.size();
}

std::chrono::milliseconds ApiTransfer::until_quiet() const {
  return std::chrono::milliseconds(patience_.quiet_ms + 1) - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - heard_);
}

Error ApiTransfer::quiet_error() const { return error_format("%.100s: nothing came for %ld ms", server_.c_str(), patience_.quiet_ms); }

Result<ApiReply> ApiTransfer::outcome(CURLcode result) {
  if (refused_) return error_format("%.100s: what came could not be taken", server_.c_str());
  if (result != CURLE_OK) return error_format("%.100s: %.120s", server_.c_str(), *why_ != 0 ? why_ : curl_easy_strerror(result));
  long status = 0;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  return ApiReply{static_cast<int>(status), std::move(body_)};
}

}  // namespace nvshare::kubernetes
