#include "kubernetes/annotations.h"

#include <spdlog/spdlog.h>

namespace nvshare::kubernetes {

Annotations::Annotations(const Options& options)
    : resources_(options.resources),
      limits_(options.priority_max),
      teller_(options.api_server, options.node),
      link_(options.runtime_dir,
            [this](const std::map<std::string, std::string>& refused) {
              for (const auto& [uid, why] : refused) {
                std::unique_lock lock(mutex_);
                auto notice = limits_.refused(uid, why);
                lock.unlock();
                if (notice) teller_.tell(std::move(*notice));
              }
            }),
      watch_(options.api_server, options.node,
             {[this](const std::vector<std::string>& pods) { listed(pods); }, [this](const std::string& pod) { changed(pod); },
              [this](const std::string& pod) { deleted(pod); }},
             options.pace) {}

std::vector<protocol::admin::PodRequest> Annotations::limits() const {
  std::lock_guard lock(mutex_);
  return limits_.all();
}

std::optional<WatchedPod> Annotations::read(const std::string& pod) const {
  Result<WatchedPod> read = read_pod(pod, resources_);
  if (read) return *read;
  spdlog::warn("{}", read.error().text);
  return std::nullopt;
}

void Annotations::tell(PodLimits::Changes changes) {
  for (const std::string& line : changes.audit) spdlog::info("{}", line);
  for (PodLimits::Notice& notice : changes.notices) teller_.tell(std::move(notice));
}

void Annotations::listed(const std::vector<std::string>& texts) {
  std::vector<WatchedPod> pods;
  for (const std::string& text : texts) {
    if (auto pod = read(text)) pods.push_back(std::move(*pod));
  }
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.replace(pods);
  const auto all = limits_.all();
  lock.unlock();
  link_.replace(all);
  tell(std::move(changes));
}

void Annotations::changed(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.update(*pod);
  lock.unlock();
  if (!changes.limits.empty()) link_.change(changes.limits);
  tell(std::move(changes));
}

void Annotations::deleted(const std::string& text) {
  auto pod = read(text);
  if (!pod) return;
  std::unique_lock lock(mutex_);
  PodLimits::Changes changes = limits_.remove(pod->uid);
  lock.unlock();
  if (!changes.limits.empty()) link_.change(changes.limits);
}

}  // namespace nvshare::kubernetes
