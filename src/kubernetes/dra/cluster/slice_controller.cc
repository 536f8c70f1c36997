#include "kubernetes/dra/cluster/slice_controller.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/nanoseconds.h"
#include "kubernetes/dra/share_config.h"

namespace nvshare::kubernetes::dra {
namespace {

using std::chrono::milliseconds;

constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";
constexpr ApiPatience kSlicePatience{15'000, 10'000};

Error refusal(const char* what, const ApiReply& reply) {
  return error_format("%s: the API server answers %d: %.150s", what, reply.status, reply.body.c_str());
}

ObjectWatch::Watched watched(const std::string& node) {
  return {std::string(kSlices) + "?fieldSelector=spec.driver%3D" + kDriverName + "%2Cspec.nodeName%3D" + escaped_for_query(node),
          "ResourceSlices", "they may differ from what this node has"};
}

Result<std::vector<Json>> read_slices(const ApiReply& reply) {
  if (reply.status == 404) {
    return error_format("the API server has no resource.k8s.io/v1: Kubernetes 1.34 or newer is needed, with DynamicResourceAllocation");
  }
  if (reply.status != 200) return refusal("listing", reply);
  const Json json = parse_json(reply.body);
  if (field_of(json, "items") == nullptr) return error_format("what came is no list of ResourceSlices");
  std::vector<Json> slices;
  for (const Json& item : list_of(json, "items")) {
    slices.push_back(item);
    // Items of a list say neither.
    slices.back()["apiVersion"] = "resource.k8s.io/v1";
    slices.back()["kind"] = "ResourceSlice";
  }
  return slices;
}

ApiRequest removal_request(const SlicePlan::Removal& removal) {
  const Json options = {{"apiVersion", "v1"},
                        {"kind", "DeleteOptions"},
                        {"preconditions", {{"uid", removal.uid}, {"resourceVersion", removal.resource_version}}}};
  return ApiRequest::remove(std::string(kSlices) + "/" + escaped_for_query(removal.name), options.dump());
}

}  // namespace

SliceController::SliceController(LoopThread& loop, Options options, DeviceModels devices)
    : loop_(loop),
      options_(std::move(options)),
      slices_path_(watched(options_.node).path),
      devices_(std::move(devices)),
      node_{options_.node, ""} {
  loop_.call([this] {
    server_.emplace(loop_.loop(), options_.api_server);
    next_look_.emplace(loop_.loop(), [this] { begin_look(); });
    begin_look_if_due();
  });
  watch_.emplace(loop_, options_.api_server, watched(options_.node),
                 ObjectWatch::Listener{[this](const std::vector<std::string>&) { look_again(); },
                                       {[this](const std::string&) { look_again(); }, [this](const std::string&) { look_again(); }}},
                 options_.pace);
}

SliceController::~SliceController() {
  watch_.reset();
  loop_.call([this] {
    server_.reset();
    next_look_.reset();
  });
}

void SliceController::look_again() {
  {
    Lock lock(mutex_);
    dirty_ = true;
  }
  loop_.post([this] { begin_look_if_due(); });
}

void SliceController::set_devices(DeviceModels devices) {
  {
    Lock lock(mutex_);
    devices_ = std::move(devices);
  }
  look_again();
}

std::optional<std::string> SliceController::trouble() const {
  Lock lock(mutex_);
  return trouble_;
}

// ---- a look ----

void SliceController::begin_look_if_due() {
  if (is_busy_) return;
  {
    Lock lock(mutex_);
    if (!dirty_) return;
  }
  begin_look();
}

void SliceController::begin_look() {
  is_busy_ = true;
  {
    Lock lock(mutex_);
    dirty_ = false;
    wanted_ = devices_;
  }
  send(ApiRequest::get(slices_path_), [this](const ApiReply& reply) { take_list(reply); });
}

void SliceController::send(ApiRequest request, Then then) {
  server_->send(std::move(request), kSlicePatience, [this, then = std::move(then)](const Result<ApiReply>& reply) {
    if (!reply) return end_look(reply.error());
    then(*reply);
  });
}

void SliceController::take_list(const ApiReply& reply) {
  Result<std::vector<Json>> seen = read_slices(reply);
  if (!seen) return end_look(seen.error());
  seen_ = std::move(*seen);
  const SlicePlan plan = plan_slices(node_, wanted_, seen_);
  if (plan.empty()) return end_look(false);
  if (plan.creations.empty()) return begin_writes(plan);
  // The owner of new ones; a node that was deleted and came back has another UID.
  send(ApiRequest::get("/api/v1/nodes/" + escaped_for_query(options_.node)), [this](const ApiReply& node) { take_node(node); });
}

void SliceController::take_node(const ApiReply& reply) {
  if (reply.status != 200) return end_look(refusal(("reading node " + options_.node).c_str(), reply));
  const Json json = parse_json(reply.body);
  const Json* metadata = field_of(json, "metadata");
  const std::string uid = metadata == nullptr ? "" : text_of(*metadata, "uid");
  if (uid.empty()) return end_look(error_format("the API server says no UID of node %.150s", options_.node.c_str()));
  node_.uid = uid;
  begin_writes(plan_slices(node_, wanted_, seen_));
}

void SliceController::begin_writes(const SlicePlan& plan) {
  writes_.clear();
  for (const SlicePlan::Removal& removal : plan.removals) writes_.push_back({removal_request(removal), "removing", nullptr});
  for (const Json& slice : plan.updates) {
    const std::string path = std::string(kSlices) + "/" + escaped_for_query(text_of(slice.at("metadata"), "name"));
    writes_.push_back({ApiRequest::put(path, slice.dump()), "updating", slice});
  }
  for (const Json& slice : plan.creations) writes_.push_back({ApiRequest::post(kSlices, slice.dump()), "creating", slice});
  write_next();
}

void SliceController::write_next() {
  if (writes_.empty()) return end_look(true);
  const Write write = std::move(writes_.front());
  writes_.pop_front();
  send(write.request, [this, write](const ApiReply& reply) {
    if (auto ok = check_written(write, reply); !ok) return end_look(ok.error());
    write_next();
  });
}

Result<void> SliceController::check_written(const Write& write, const ApiReply& reply) {
  const bool is_gone = write.slice.is_null() && reply.status == 404;
  if (reply.status >= 300 && !is_gone) return refusal(write.what, reply);
  return write.slice.is_null() ? Result<void>() : check_stored(write.slice, parse_json(reply.body));
}

// After a write it is looked whether all is well now. A pause follows writes and failures, longer each time, so that a controller which
// undoes each write costs the API server little.
void SliceController::end_look(const Result<bool>& done) {
  note(done);
  const bool settled = done && !*done;
  pause_ = settled ? milliseconds(0) : std::min(std::max(pause_ * 2, options_.pace.first_pause), options_.pace.longest_pause);
  if (!settled) return next_look_->arm(monotonic_ns() + nanoseconds_of(pause_));
  is_busy_ = false;
  begin_look_if_due();
}

void SliceController::note(const Result<bool>& done) {
  std::optional<std::string> trouble;
  if (!done) trouble = done.error().text;
  if (done && *done) trouble = "just written";
  std::optional<std::string> before;
  {
    Lock lock(mutex_);
    before = std::exchange(trouble_, trouble);
  }
  if (!done && before != trouble) spdlog::warn("ResourceSlices of {}: {}; it is tried again", options_.node, *trouble);
  if (done && !*done && before) spdlog::info("ResourceSlices of {} are as they should be", options_.node);
}

}  // namespace nvshare::kubernetes::dra
