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
constexpr char kJson[] = "application/json";
constexpr ApiServer::Patience kSlicePatience{15'000, 10'000};

Error refusal(const char* what, const ApiServer::Reply& reply) {
  return error_format("%s: the API server answers %d: %.150s", what, reply.status, reply.body.c_str());
}

ObjectWatch::Watched watched(const std::string& node) {
  return {std::string(kSlices) + "?fieldSelector=spec.driver%3D" + kDriverName + "%2Cspec.nodeName%3D" + escaped_for_query(node),
          "ResourceSlices", "they may differ from what this node has"};
}

}  // namespace

SliceController::SliceController(Options options, DeviceModels devices)
    : options_(std::move(options)),
      slices_path_(watched(options_.node).path),
      server_(options_.api_server),
      node_{options_.node, ""},
      devices_(std::move(devices)),
      thread_([this] { run(); }),
      watch_(options_.api_server, watched(options_.node),
             {[this](const std::vector<std::string>&) { look_again(); },
              {[this](const std::string&) { look_again(); }, [this](const std::string&) { look_again(); }}},
             options_.pace) {}

SliceController::~SliceController() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  server_.interrupt();
  thread_.join();
}

void SliceController::look_again() {
  {
    Lock lock(mutex_);
    dirty_ = true;
  }
  changed_.notify_all();
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

// Through the pause whatever happens, then until there is something to do.
bool SliceController::wait_for_work(milliseconds pause) {
  Lock lock(mutex_);
  if (pause.count() > 0) changed_.wait_for(mutex_, nanoseconds_of(pause), [this]() REQUIRES(mutex_) { return stop_; });
  if (pause.count() == 0) changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return stop_ || dirty_; });
  dirty_ = false;
  return !stop_;
}

// After a write it is looked whether all is well now. A pause follows writes and failures, longer each time, so that a controller which
// undoes each write costs the API server little.
void SliceController::run() {
  milliseconds pause{0};
  while (wait_for_work(pause)) {
    const Result<bool> wrote = step();
    {
      Lock lock(mutex_);
      if (stop_) return;
    }
    note(wrote);
    const bool settled = wrote && !*wrote;
    pause = settled ? milliseconds(0) : std::min(std::max(pause * 2, options_.pace.first_pause), options_.pace.longest_pause);
  }
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

Result<bool> SliceController::step() {
  DeviceModels devices;
  {
    Lock lock(mutex_);
    devices = devices_;
  }
  Result<std::vector<Json>> seen = list();
  if (!seen) return seen.error();
  SlicePlan plan = plan_slices(node_, devices, *seen);
  if (plan.empty()) return false;
  if (!plan.creations.empty()) {
    // The owner of new ones; a node that was deleted and came back has another UID.
    if (auto ok = read_node(); !ok) return ok.error();
    plan = plan_slices(node_, devices, *seen);
  }
  if (auto ok = write(plan); !ok) return ok.error();
  return true;
}

Result<std::vector<Json>> SliceController::list() {
  Result<ApiServer::Reply> reply = server_.get(slices_path_, kJson, kSlicePatience);
  if (!reply) return reply.error();
  if (reply->status == 404) {
    return error_format("the API server has no resource.k8s.io/v1: Kubernetes 1.34 or newer is needed, with DynamicResourceAllocation");
  }
  if (reply->status != 200) return refusal("listing", *reply);
  const Json json = parse_json(reply->body);
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

Result<void> SliceController::read_node() {
  Result<ApiServer::Reply> reply = server_.get("/api/v1/nodes/" + escaped_for_query(options_.node), kJson, kSlicePatience);
  if (!reply) return reply.error();
  if (reply->status != 200) return refusal(("reading node " + options_.node).c_str(), *reply);
  const Json json = parse_json(reply->body);
  const Json* metadata = field_of(json, "metadata");
  const std::string uid = metadata == nullptr ? "" : text_of(*metadata, "uid");
  if (uid.empty()) return error_format("the API server says no UID of node %.150s", options_.node.c_str());
  node_.uid = uid;
  return {};
}

Result<void> SliceController::write(const SlicePlan& plan) {
  for (const SlicePlan::Removal& removal : plan.removals) {
    const Json options = {{"apiVersion", "v1"},
                          {"kind", "DeleteOptions"},
                          {"preconditions", {{"uid", removal.uid}, {"resourceVersion", removal.resource_version}}}};
    Result<ApiServer::Reply> reply =
        server_.remove(std::string(kSlices) + "/" + escaped_for_query(removal.name), options.dump(), kSlicePatience);
    if (!reply) return reply.error();
    if (reply->status >= 300 && reply->status != 404) return refusal("removing", *reply);
  }
  for (const Json& slice : plan.updates) {
    if (auto ok = write_one(slice, false); !ok) return ok;
  }
  for (const Json& slice : plan.creations) {
    if (auto ok = write_one(slice, true); !ok) return ok;
  }
  return {};
}

Result<void> SliceController::write_one(const Json& slice, bool is_new) {
  const std::string name = is_new ? "" : text_of(slice.at("metadata"), "name");
  Result<ApiServer::Reply> reply = is_new ? server_.post(kSlices, slice.dump(), kSlicePatience)
                                          : server_.put(std::string(kSlices) + "/" + escaped_for_query(name), slice.dump(), kSlicePatience);
  if (!reply) return reply.error();
  if (reply->status >= 300) return refusal(is_new ? "creating" : "updating", *reply);
  return check_stored(slice, parse_json(reply->body));
}

}  // namespace nvshare::kubernetes::dra
