#include "kubernetes/annotations.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "kubernetes/install.h"

namespace nvshare::kubernetes {

using protocol::admin::PodRequest;

Annotations::Annotations(const Options& options)
    : resources_(options.resources),
      watches_(!options.api_server.url.empty()),
      maxima_(options.namespace_maxima),
      not_shared_hint_(options.not_shared_hint),
      limits_(options.priority_max, options.namespace_maxima, options.annotations_reserve),
      grants_(options.resources.division),
      heard_(!watches_),
      grants_known_(options.kubelet_dir.empty()),
      link_(options.runtime_dir) {
  if (watches_) teller_.emplace(options.api_server, options.node, options.event_pace);
  if (!options.record_dir.empty()) restore(options.record_dir);
  {
    std::lock_guard lock(mutex_);
    send_changes();
  }
  link_.begin();
  if (!options.kubelet_dir.empty()) {
    checkpoint_.emplace(options.kubelet_dir, resources_, [this](const Checkpoint& checkpoint) { granted(checkpoint); });
  }
  if (!watches_) return;
  watch_.emplace(
      options.api_server, ObjectWatch::pods_of(options.node),
      ObjectWatch::Listener{[this](const std::vector<std::string>& pods) { listed(pods); },
                            {[this](const std::string& pod) { changed(pod); }, [this](const std::string& pod) { deleted(pod); }}},
      options.pace);
}

// ---- what is sent ----

std::vector<PodRequest> Annotations::all() const {
  std::vector<PodRequest> requests;
  std::set<std::string> told;
  for (PodRequest pod : limits_.all()) {
    const PodGrants::Pod* grant = grants_.find(pod.uid);
    // The kubelet alone says which pod a static pod's UID is.
    const std::string& static_pod = limits_.mirror_of(pod.uid);
    if (const PodGrants::Pod* mirrored = grants_.find(static_pod); mirrored != nullptr && mirrored->name == pod.name) {
      grant = mirrored;
      pod.uid = static_pod;
      pod.ends = false;  // a mirror that is deleted is made anew
    }
    requests.push_back(limits_with(&pod, grant == nullptr ? nullptr : &grant->grant, pod.uid, ""));
    requests.back().only_lowers = !heard_;
    told.insert(pod.uid);
  }
  for (const auto& [uid, grant] : grants_.pods()) {
    if (told.contains(uid)) continue;
    PodRequest pod = limits_with(nullptr, &grant.grant, uid, grant.name);
    lower_to(maximum_of(maxima_, grant.name_space()), &pod);
    // Whom the API server does not name, or names no more while the kubelet goes on listing its devices, may have had annotations; without
    // a name neither its namespace nor its mirror is known.
    pod.only_lowers = watches_ || !grant.sure || grant.name.empty();
    requests.push_back(std::move(pod));
  }
  return requests;
}

std::vector<PodRequest> Annotations::limits() const {
  std::lock_guard lock(mutex_);
  return all();
}

void Annotations::send_changes() {
  std::map<std::string, PodRequest> now;
  LimitsLink::Pods changes;
  for (PodRequest& pod : all()) {
    auto before = sent_.find(pod.uid);
    if (before == sent_.end() || before->second != pod) changes.push_back(pod);
    now.emplace(pod.uid, std::move(pod));
  }
  for (const auto& [uid, pod] : sent_) {
    if (now.contains(uid)) continue;
    PodRequest gone;
    gone.uid = uid;
    gone.gone = true;
    changes.push_back(std::move(gone));
  }
  sent_ = std::move(now);
  if (!changes.empty()) link_.change(changes);
  if (heard_ && grants_known_ && !std::exchange(whole_, true)) link_.replace(all());
}

// ---- from the kubelet ----

void Annotations::granted(const Checkpoint& checkpoint) {
  {
    std::lock_guard lock(mutex_);
    grants_.read(checkpoint);
    grants_known_ = grants_.known();
    send_changes();
  }
  keeper_.changed();
}

void Annotations::held(const std::vector<HeldDevices>& listed) {
  {
    std::lock_guard lock(mutex_);
    grants_.named(listed);
    send_changes();
  }
  keeper_.changed();
}

bool Annotations::all_named() const {
  std::lock_guard lock(mutex_);
  return grants_.all_named();
}

// ---- from the scheduler ----

void Annotations::noticed(const std::vector<protocol::admin::PodNotice>& notices) {
  for (const protocol::admin::PodNotice& notice : notices) {
    PodLimits::Notice event{notice.uid, "", "", true, notice.reason, notice.text};
    if (notice.reason == "NotShared") event.text += not_shared_hint_;
    std::string name;
    {
      std::lock_guard lock(mutex_);
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
    if (teller_ && !event.name.empty()) {
      teller_->tell(std::move(event));
    } else {
      spdlog::warn("pod {}: {}: {}", name.empty() ? notice.uid : name, event.reason, event.text);
    }
  }
}

// ---- from the API server; on the watch's thread ----

std::optional<WatchedPod> Annotations::read(const std::string& pod) const {
  Result<WatchedPod> read = read_pod(pod, resources_);
  if (read) {
    std::unique_lock lock(mutex_);
    const PodGrants::Pod* granted = grants_.find(read->uid);
    if (const PodGrants::Pod* mirrored = grants_.find(read->mirror_of);
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

void Annotations::tell(PodLimits::Changes changes) {
  for (const std::string& line : changes.audit) spdlog::info("{}", line);
  for (PodLimits::Notice& notice : changes.notices) teller_->tell(std::move(notice));
  keeper_.changed();
}

void Annotations::listed(const std::vector<std::string>& texts) {
  std::vector<WatchedPod> pods;
  for (const std::string& text : texts) {
    if (auto pod = read(text)) pods.push_back(std::move(*pod));
  }
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.replace(pods);
  heard_ = true;
  send_changes();
  if (whole_) link_.replace(all());
  lock.unlock();
  tell(std::move(changes));
}

void Annotations::changed(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.update(*pod);
  if (!changes.limits.empty()) send_changes();
  lock.unlock();
  tell(std::move(changes));
}

void Annotations::deleted(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.remove(pod->uid);
  if (!changes.limits.empty()) send_changes();
  lock.unlock();
  tell(std::move(changes));
}

// ---- over a restart of this program ----

// What was in force goes on, and is corrected by the kubelet's checkpoint and the API server's list.
void Annotations::restore(const std::string& folder) {
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
    keeper_.keep(file, there, [this, &of] {
      std::lock_guard lock(mutex_);
      return of.record();
    });
  };
  const std::string limits = folder + "/limits.json";
  const std::string grants = folder + "/pod-grants.json";
  if (watches_) keep(limits, limits_, read(limits, "bad annotations have no last good value", limits_));
  keep(grants, grants_, read(grants, "what pods were granted is known once the kubelet's checkpoint is read", grants_));
}

}  // namespace nvshare::kubernetes
