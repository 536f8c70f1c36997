#include "kubernetes/pods/pod_limit_controller.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {

using protocol::admin::PodRequest;

PodLimitController::PodLimitController(const Options& options)
    : resources_(options.resources),
      watches_(!options.api_server.url.empty()),
      maxima_(options.namespace_maxima),
      not_shared_hint_(options.not_shared_hint),
      limits_(options.priority_max, options.namespace_maxima, options.annotations_reserve),
      allocations_(options.resources.division),
      heard_(!watches_),
      allocations_known_(options.kubelet_dir.empty()),
      publisher_(loop_, options.runtime_dir) {
  if (watches_) recorder_.emplace(loop_, options.api_server, options.node, options.event_pace);
  {
    Lock lock(mutex_);
    if (!options.record_dir.empty()) restore(options.record_dir);
    publish();
  }
  if (!options.kubelet_dir.empty()) {
    checkpoint_.emplace(loop_, options.kubelet_dir, resources_, [this](const Checkpoint& checkpoint) { granted(checkpoint); });
  }
  if (!watches_) return;
  watch_.emplace(
      loop_, options.api_server, ObjectWatch::pods_of(options.node),
      ObjectWatch::Listener{[this](const std::vector<std::string>& pods) { listed(pods); },
                            {[this](const std::string& pod) { changed(pod); }, [this](const std::string& pod) { deleted(pod); }}},
      options.pace);
}

// ---- what is sent ----

std::vector<PodRequest> PodLimitController::all() const {
  std::vector<PodRequest> requests;
  std::set<std::string> named;
  for (PodRequest pod : limits_.all()) {
    const PodAllocations::Pod* allocated = allocations_.find(pod.uid);
    // The kubelet alone says which pod a static pod's UID is.
    const std::string& static_pod = limits_.mirror_of(pod.uid);
    if (const PodAllocations::Pod* mirrored = allocations_.find(static_pod); mirrored != nullptr && mirrored->name == pod.name) {
      allocated = mirrored;
      pod.uid = static_pod;
      pod.ends = false;  // a mirror that is deleted is made anew
    }
    requests.push_back(limits_with(&pod, allocated == nullptr ? nullptr : &allocated->allocation, pod.uid, ""));
    requests.back().only_lowers = !heard_;
    named.insert(pod.uid);
  }
  for (const auto& [uid, allocated] : allocations_.pods()) {
    if (named.contains(uid)) continue;
    PodRequest pod = limits_with(nullptr, &allocated.allocation, uid, allocated.name);
    lower_to(maximum_of(maxima_, allocated.name_space()), &pod);
    // A pod that the API server does not name, or names no more while the kubelet goes on listing its devices, may have had annotations;
    // without a name neither its namespace nor its mirror is known.
    pod.only_lowers = watches_ || !allocated.sure || allocated.name.empty();
    requests.push_back(std::move(pod));
  }
  return requests;
}

std::vector<PodRequest> PodLimitController::limits() const {
  Lock lock(mutex_);
  return all();
}

void PodLimitController::publish() { publisher_.set_wanted(all(), heard_ && allocations_known_); }

// ---- from the kubelet ----

void PodLimitController::granted(const Checkpoint& checkpoint) {
  {
    Lock lock(mutex_);
    allocations_.read(checkpoint);
    allocations_known_ = allocations_.known();
    publish();
  }
  store_.changed();
}

void PodLimitController::held(const std::vector<HeldDevices>& listed) {
  {
    Lock lock(mutex_);
    allocations_.named(listed);
    publish();
  }
  store_.changed();
}

bool PodLimitController::all_named() const {
  Lock lock(mutex_);
  return allocations_.all_named();
}

// ---- from the scheduler ----

void PodLimitController::noticed(const std::vector<protocol::admin::PodNotice>& notices) {
  for (const protocol::admin::PodNotice& notice : notices) {
    PodLimits::Notice event{notice.uid, "", "", true, notice.reason, notice.text};
    if (notice.reason == "NotShared") event.text += not_shared_hint_;
    std::string name;
    {
      Lock lock(mutex_);
      for (const PodRequest& pod : all()) {
        if (pod.uid == notice.uid) name = pod.name;
      }
      // Of a static pod the API server knows its mirror, by that one's UID.
      for (const PodRequest& pod : limits_.all()) {
        if (limits_.mirror_of(pod.uid) == notice.uid && pod.name == name) event.uid = pod.uid;
      }
    }
    const size_t slash = name.find('/');
    event.name_space = name.substr(0, slash);
    event.name = slash == std::string::npos ? "" : name.substr(slash + 1);
    if (recorder_ && !event.name.empty()) {
      recorder_->record(std::move(event));
    } else {
      spdlog::warn("pod {}: {}: {}", name.empty() ? notice.uid : name, event.reason, event.text);
    }
  }
}

// ---- from the API server; on the loop's thread ----

std::optional<WatchedPod> PodLimitController::read(const std::string& pod) const {
  Result<WatchedPod> read = read_pod(pod, resources_);
  if (read) {
    Lock lock(mutex_);
    const PodAllocations::Pod* granted = allocations_.find(read->uid);
    if (const PodAllocations::Pod* mirrored = allocations_.find(read->mirror_of);
        mirrored != nullptr && mirrored->name == read->name_space + "/" + read->name) {
      granted = mirrored;
    }
    if (granted == nullptr || granted->memory_unit == resources_.division.memory_unit) return *read;
    ResourceNames then = resources_;
    then.division = with_unit(resources_.division, granted->memory_unit);
    lock.unlock();
    Result<WatchedPod> as_granted = read_pod(pod, then);
    return as_granted ? *as_granted : *read;
  }
  spdlog::warn("{}", read.error().text);
  return std::nullopt;
}

void PodLimitController::report(PodLimits::Changes changes) {
  for (const std::string& line : changes.audit) spdlog::info("{}", line);
  for (PodLimits::Notice& notice : changes.notices) recorder_->record(std::move(notice));
  store_.changed();
}

void PodLimitController::listed(const std::vector<std::string>& texts) {
  std::vector<WatchedPod> pods;
  for (const std::string& text : texts) {
    if (auto pod = read(text)) pods.push_back(std::move(*pod));
  }
  Lock lock(mutex_);
  PodLimits::Changes changes = limits_.replace(pods);
  heard_ = true;
  publish();
  lock.unlock();
  report(std::move(changes));
}

void PodLimitController::changed(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  Lock lock(mutex_);
  PodLimits::Changes changes = limits_.update(*pod);
  if (!changes.limits.empty()) publish();
  lock.unlock();
  report(std::move(changes));
}

void PodLimitController::deleted(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  Lock lock(mutex_);
  PodLimits::Changes changes = limits_.remove(pod->uid);
  if (!changes.limits.empty()) publish();
  lock.unlock();
  report(std::move(changes));
}

// ---- over a restart of this program ----

// What was in force goes on, and is corrected by the kubelet's checkpoint and the API server's list.
void PodLimitController::restore(const std::string& folder) {
  const auto read = [](const std::string& file, const char* without, auto& from) -> std::string {
    if (access(file.c_str(), F_OK) != 0) return "";
    auto text = read_file(file);
    Result<std::vector<std::string>> left_out = text ? from.restore(*text) : Result<std::vector<std::string>>(text.error());
    if (!left_out) {
      spdlog::warn("{}: {}; {}", file, left_out.error().text, without);
      return "";
    }
    for (const std::string& why : *left_out) spdlog::warn("{}: {}", file, why);
    return *text;
  };
  const auto keep = [this](const std::string& file, const auto& of, const std::string& there) {
    store_.add(file, there, [this, &of] {
      Lock lock(mutex_);
      return of.record();
    });
  };
  const std::string limits = folder + "/limits.json";
  const std::string grants = folder + "/pod-grants.json";
  if (watches_) keep(limits, limits_, read(limits, "bad annotations have no last good value", limits_));
  keep(grants, allocations_, read(grants, "what pods were granted is known once the kubelet's checkpoint is read", allocations_));
}

}  // namespace nvshare::kubernetes
