#include "kubernetes/annotations.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "kubernetes/install.h"

namespace nvshare::kubernetes {

using protocol::admin::PodRequest;

Annotations::Annotations(const Options& options)
    : resources_(options.resources),
      record_(options.record),
      watches_(!options.api_server.url.empty()),
      maxima_(options.namespace_maxima),
      limits_(options.priority_max, options.namespace_maxima),
      link_(options.runtime_dir, [this](const std::map<std::string, std::string>& refused) {
        for (const auto& [uid, why] : refused) {
          std::unique_lock lock(mutex_);
          auto notice = limits_.refused(uid, why);
          lock.unlock();
          if (notice) {
            teller_->tell(std::move(*notice));
          } else {
            spdlog::warn("the memory limit of pod {} is not in force: {}", uid, why);
          }
        }
      }) {
  if (watches_) {
    teller_.emplace(options.api_server, options.node);
    restore();
    link_.expect(options.list_patience);
  } else {
    whole_ = true;
  }
  if (!options.kubelet_dir.empty()) {
    checkpoint_.emplace(options.kubelet_dir, resources_, [this](const std::map<std::string, PodGrant>& pods) { granted(pods); });
  }
  if (options.kubelet_dir.empty()) granted({});
  if (!watches_) return;
  watch_.emplace(options.api_server, options.node,
                 PodWatch::Listener{[this](const std::vector<std::string>& pods) { listed(pods); },
                                    [this](const std::string& pod) { changed(pod); }, [this](const std::string& pod) { deleted(pod); }},
                 options.pace);
}

// ---- what is sent ----

std::string Annotations::holder_of(const PodGrant& grant) const {
  for (const std::string& gpu : grant.gpus) {
    if (auto holder = holders_.find(gpu); holder != holders_.end()) return holder->second;
  }
  return "";
}

std::vector<PodRequest> Annotations::all() const {
  std::vector<PodRequest> requests;
  std::set<std::string> told;
  for (const PodRequest& pod : limits_.all()) {
    auto grant = grants_.find(pod.uid);
    requests.push_back(limits_with(&pod, grant == grants_.end() ? nullptr : &grant->second, pod.uid, ""));
    told.insert(pod.uid);
  }
  for (const auto& [uid, grant] : grants_) {
    if (told.contains(uid)) continue;
    const std::string holder = holder_of(grant);  // "namespace/name", as soon as the kubelet says who has these GPUs
    PodRequest pod = limits_with(nullptr, &grant, uid, holder);
    lower_to(maximum_of(maxima_, holder.substr(0, holder.find('/'))), &pod);
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
}

// ---- from the kubelet ----

void Annotations::granted(const std::map<std::string, PodGrant>& pods) {
  std::lock_guard lock(mutex_);
  grants_ = pods;
  send_changes();
  if (std::exchange(whole_, false)) link_.replace(all());
}

void Annotations::held(const std::vector<HeldDevices>& listed) {
  std::map<std::string, std::string> holders;
  for (const HeldDevices& held : listed) {
    for (const std::string& gpu : held.gpus) holders[gpu] = held.name_space + "/" + held.pod;
  }
  std::lock_guard lock(mutex_);
  if (holders == holders_) return;
  holders_ = std::move(holders);
  send_changes();
}

// ---- from the API server; on the watch's thread ----

std::optional<WatchedPod> Annotations::read(const std::string& pod) const {
  Result<WatchedPod> read = read_pod(pod, resources_);
  if (read) return *read;
  spdlog::warn("{}", read.error().text);
  return std::nullopt;
}

void Annotations::tell(PodLimits::Changes changes) {
  for (const std::string& line : changes.audit) spdlog::info("{}", line);
  for (PodLimits::Notice& notice : changes.notices) teller_->tell(std::move(notice));
  save();
}

void Annotations::listed(const std::vector<std::string>& texts) {
  std::vector<WatchedPod> pods;
  for (const std::string& text : texts) {
    if (auto pod = read(text)) pods.push_back(std::move(*pod));
  }
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.replace(pods);
  send_changes();
  link_.replace(all());
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

// What was in force goes on: it is sent with the first grants, and the API server's list corrects it.
void Annotations::restore() {
  if (record_.empty() || access(record_.c_str(), F_OK) != 0) return;
  auto text = read_file(record_);
  Result<void> ok = text ? limits_.restore(*text) : Result<void>(text.error());
  if (!ok) return spdlog::warn("{}: {}; bad annotations have no last good value", record_, ok.error().text);
  recorded_ = *text;
  whole_ = true;
}

void Annotations::save() {
  if (record_.empty()) return;
  std::unique_lock lock(mutex_);
  std::string text = limits_.record();
  lock.unlock();
  if (text == recorded_) return;
  if (auto ok = write_file_atomically(record_, text); !ok) return spdlog::warn("{}", ok.error().text);
  recorded_ = std::move(text);
}

}  // namespace nvshare::kubernetes
