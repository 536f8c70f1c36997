#include "kubernetes/dra/cluster/claim_reader.h"

#include <algorithm>

namespace nvshare::kubernetes::dra {
namespace {

// A call of the kubelet has 45 s, for all claims of a pod.
constexpr ApiPatience kReadPatience{8'000, 8'000};
constexpr size_t kFreeMax = 4;

}  // namespace

std::string claim_path(const ClaimName& name) {
  return "/apis/resource.k8s.io/v1/namespaces/" + name.name_space + "/resourceclaims/" + name.name;
}

std::unique_ptr<ApiServer> ClaimReader::take() {
  Lock lock(mutex_);
  if (interrupted_) return nullptr;
  std::unique_ptr<ApiServer> server;
  if (free_.empty()) {
    server = std::make_unique<ApiServer>(address_);
  } else {
    server = std::move(free_.back());
    free_.pop_back();
  }
  busy_.push_back(server.get());
  return server;
}

void ClaimReader::put_back(std::unique_ptr<ApiServer> server) {
  Lock lock(mutex_);
  std::erase(busy_, server.get());
  if (!interrupted_ && free_.size() < kFreeMax) free_.push_back(std::move(server));
}

void ClaimReader::interrupt() {
  Lock lock(mutex_);
  interrupted_ = true;
  for (ApiServer* server : busy_) server->interrupt();
}

Result<std::string> ClaimReader::read(const ClaimName& name) {
  std::unique_ptr<ApiServer> server = take();
  if (server == nullptr) return error_format("this driver ends");
  Result<ApiReply> reply = server->send(ApiRequest::get(claim_path(name)), kReadPatience);
  put_back(std::move(server));
  if (!reply) return reply.error();
  if (reply->status == 404) return error_format("the API server has no such claim");
  if (reply->status != 200) return error_format("the API server answers %d: %.150s", reply->status, reply->body.c_str());
  return std::move(reply->body);
}

}  // namespace nvshare::kubernetes::dra
