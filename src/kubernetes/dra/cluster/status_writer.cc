#include "kubernetes/dra/cluster/status_writer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/nanoseconds.h"
#include "kubernetes/dra/cluster/claim_reader.h"
#include "kubernetes/dra/quantity.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr ApiPatience kStatusPatience{10'000, 10'000};

// Rights may be given, a busy server calms down; another claim of this name, or one that is gone, stays so.
bool may_pass(int status) { return status == 401 || status == 403 || status == 429 || status >= 500; }

}  // namespace

Json status_of(const Claim& claim, const std::string& pool, const std::string& now) {
  Json devices = Json::array();
  for (const Share& share : claim.shares) {
    const std::string amounts = bytes_quantity(share.memory) + " of memory and " + std::to_string(share.cores) + " % of the time of " +
                                share.gpu + ", kept by nvshare-scheduler";
    const std::string message = share.admin ? "admin access to " + share.gpu + ": to look at it" : amounts;
    Json device = {{"driver", kDriverName},
                   {"pool", pool},
                   {"device", share.device},
                   {"conditions",
                    {{{"type", "Ready"}, {"status", "True"}, {"reason", "Prepared"}, {"message", message}, {"lastTransitionTime", now}}}}};
    if (!share.id.empty()) device["shareID"] = share.id;
    devices.push_back(std::move(device));
  }
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceClaim"},
          {"metadata", {{"namespace", claim.name_space}, {"name", claim.name}, {"uid", claim.uid}}},
          {"status", {{"devices", std::move(devices)}}}};
}

StatusWriter::StatusWriter(LoopThread& loop, ApiServerAddress address, std::string pool, Pace pace)
    : loop_(loop), pool_(std::move(pool)), pace_(pace) {
  loop_.call([&] {
    server_.emplace(loop_.loop(), std::move(address));
    next_due_.emplace(loop_.loop(), [this] { send_next(); });
  });
}

StatusWriter::~StatusWriter() {
  loop_.call([this] {
    server_.reset();
    next_due_.reset();
  });
}

void StatusWriter::prepared(const Claim& claim) {
  loop_.post([this, one = Waiting{claim, Clock::now(), pace_.first_pause, 0}] { add(one); });
}

void StatusWriter::add(Waiting one) {
  std::erase_if(waiting_, [&](const Waiting& other) { return other.claim.uid == one.claim.uid; });
  if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
  waiting_.push_back(std::move(one));
  send_next();
}

// The one that is due, or when one is.
void StatusWriter::send_next() {
  const auto next = std::min_element(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) { return a.due < b.due; });
  if (sent_ || next == waiting_.end()) return;
  if (next->due > Clock::now()) return next_due_->arm(nanoseconds_of(next->due));
  sent_ = std::move(*next);
  waiting_.erase(next);
  const Claim& claim = sent_->claim;
  const std::string path = claim_path({claim.name_space, claim.name, claim.uid}) + "/status?fieldManager=" + kDriverName + "&force=true";
  server_->send(ApiRequest::apply(path, status_of(claim, pool_, api_time_now()).dump()), kStatusPatience,
                [this](const Result<ApiReply>& reply) {
                  Waiting one = std::move(*sent_);
                  sent_.reset();
                  const Result<void> done = outcome_of(one.claim, reply);
                  after(std::move(one), done);
                  send_next();
                });
}

// An error: it may be taken later.
Result<void> StatusWriter::outcome_of(const Claim& claim, const Result<ApiReply>& reply) {
  if (!reply) return reply.error();
  if (reply->status < 300) return {};
  Error error = error_format("the API server answers %d: %.150s", reply->status, reply->body.c_str());
  if (may_pass(reply->status)) return error;
  spdlog::warn("the status of claim {}/{} is not written: {}", claim.name_space, claim.name, error.text);
  return {};
}

void StatusWriter::after(Waiting one, const Result<void>& done) {
  if (done) return;
  if (++one.tries >= pace_.tries) {
    spdlog::warn("the status of claim {}/{} is not written, after {} tries: {}", one.claim.name_space, one.claim.name, one.tries,
                 done.error().text);
    return;
  }
  const bool is_newer =
      std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& other) { return other.claim.uid == one.claim.uid; });
  if (is_newer || waiting_.size() >= kWaitingMax) return;
  one.due = Clock::now() + one.pause;
  one.pause = std::min(one.pause * 2, pace_.longest_pause);
  waiting_.push_front(std::move(one));
}

}  // namespace nvshare::kubernetes::dra
