#include "kubernetes/pods/api_server.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBodyMax = 256u << 20;  // a list of a node's pods is a few MB
constexpr size_t kRefusalMax = 1000;     // of a body that explains a refusal
constexpr long kConnectPatienceMs = 5000;
constexpr long kWakeMs = 10'000;

struct Receiver {
  CURL* handle = nullptr;
  const ApiServer::Take* take = nullptr;
  std::string body;
  Clock::time_point heard;
  bool refused = false;  // by `take`, or too much
};

size_t receive(char* bytes, size_t, size_t count, void* receiver_of) {
  auto& receiver = *static_cast<Receiver*>(receiver_of);
  receiver.heard = Clock::now();
  long status = 0;
  curl_easy_getinfo(receiver.handle, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200 && *receiver.take) {
    receiver.refused = !(*receiver.take)({bytes, count});
    return receiver.refused ? 0 : count;
  }
  if (status >= 300 && receiver.body.size() >= kRefusalMax) return count;
  receiver.refused = receiver.body.size() + count > kBodyMax;
  if (receiver.refused) return 0;
  receiver.body.append(bytes, count);
  return count;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Headers = std::unique_ptr<curl_slist, FreeList>;

void add(Headers* headers, const std::string& line) { headers->reset(curl_slist_append(headers->release(), line.c_str())); }

// curl wants to be set up once, before other threads use it.
CURLM* make_multi() {
  static const bool ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return ready ? curl_multi_init() : nullptr;
}

// What the handle points to outlives the transfer.
struct Transfer {
  std::string url;
  std::string authority;  // the file of the cluster's CA
  Receiver receiver;
  char why[CURL_ERROR_SIZE] = {};
};

void set_up(CURL* easy, Transfer& transfer, long whole_ms) {
  curl_easy_setopt(easy, CURLOPT_URL, transfer.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(easy, CURLOPT_CAINFO, transfer.authority.c_str());
  curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);
  curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);  // a new CA is seen at the next connection
  curl_easy_setopt(easy, CURLOPT_PROXY, "");  // the API server is inside the cluster, whatever the environment says of the outside
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectPatienceMs);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, whole_ms);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.why);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer.receiver);
}

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

ApiServer::ApiServer(ApiServerAddress address) : address_(std::move(address)), multi_(make_multi()) {}

ApiServer::~ApiServer() { curl_multi_cleanup(multi_); }

void ApiServer::interrupt() {
  interrupted_ = true;
  curl_multi_wakeup(multi_);
}

Result<ApiServer::Reply> ApiServer::get(const std::string& path_and_query, const std::string& accept, Patience patience, const Take& take) {
  return send({"GET", path_and_query, accept}, patience, take);
}

Result<ApiServer::Reply> ApiServer::post(const std::string& path, const std::string& body, Patience patience) {
  return send({"POST", path, "application/json", "application/json", &body}, patience, nullptr);
}

Result<ApiServer::Reply> ApiServer::put(const std::string& path, const std::string& body, Patience patience) {
  return send({"PUT", path, "application/json", "application/json", &body}, patience, nullptr);
}

Result<ApiServer::Reply> ApiServer::remove(const std::string& path, const std::string& body, Patience patience) {
  return send({"DELETE", path, "application/json", "application/json", &body}, patience, nullptr);
}

Result<ApiServer::Reply> ApiServer::apply(const std::string& path_and_query, const std::string& body, Patience patience) {
  return send({"PATCH", path_and_query, "application/json", "application/apply-patch+yaml", &body}, patience, nullptr);
}

Result<ApiServer::Reply> ApiServer::send(const Request& request, Patience patience, const Take& take) {
  Result<std::string> token = read_file(address_.service_account + "/token");
  if (!token) return token.error();
  while (!token->empty() && (token->back() == '\n' || token->back() == ' ')) token->pop_back();
  std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), [](CURL* handle) { curl_easy_cleanup(handle); });
  if (multi_ == nullptr || !easy) return error_format("libcurl cannot be used");
  Headers headers;
  add(&headers, "Authorization: Bearer " + *token);
  add(&headers, "Accept: " + request.accept);
  if (request.body != nullptr) add(&headers, std::string("Content-Type: ") + request.content_type);
  add(&headers, "User-Agent: " + address_.program);

  Transfer transfer{address_.url + request.path, address_.service_account + "/ca.crt", {}, {}};
  Receiver& receiver = transfer.receiver;
  receiver.handle = easy.get();
  receiver.take = &take;
  receiver.heard = Clock::now();
  set_up(easy.get(), transfer, patience.whole_ms);
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers.get());
  if (request.body != nullptr) {
    curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, request.body->c_str());
    curl_easy_setopt(easy.get(), CURLOPT_CUSTOMREQUEST, request.method);
  }

  curl_multi_add_handle(multi_, easy.get());
  int running = 1;
  bool quiet = false;
  while (!interrupted_) {
    curl_multi_perform(multi_, &running);
    const auto quiet_for = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - receiver.heard).count();
    quiet = quiet_for > patience.quiet_ms;
    if (running == 0 || quiet) break;
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(std::min<long>(kWakeMs, patience.quiet_ms - quiet_for + 1)), nullptr);
  }
  CURLcode result = CURLE_ABORTED_BY_CALLBACK;
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg == CURLMSG_DONE) result = message->data.result;
  }
  Reply reply;
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  curl_multi_remove_handle(multi_, easy.get());
  if (interrupted_) return error_format("interrupted");
  if (quiet) return error_format("%.100s: nothing came for %ld ms", address_.url.c_str(), patience.quiet_ms);
  if (receiver.refused) return error_format("%.100s: what came could not be taken", address_.url.c_str());
  if (result != CURLE_OK)
    return error_format("%.100s: %.120s", address_.url.c_str(), *transfer.why != 0 ? transfer.why : curl_easy_strerror(result));
  reply.status = static_cast<int>(status);
  reply.body = std::move(receiver.body);
  return reply;
}

}  // namespace nvshare::kubernetes
