// Prepares and unprepares claims: the record, the specification and the scheduler's limits, each step such that a driver that ends in
// between is put right by the next call or the next start. During an update there are two, which the kubelet may call in turn: they share
// the record. Thread-safe; knows no gRPC.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "kubernetes/devices/container_edits.h"
#include "kubernetes/dra/claim_allocations.h"
#include "kubernetes/dra/claim_pods.h"
#include "kubernetes/dra/claim_record_file.h"
#include "kubernetes/pods/limit_publisher.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes::dra {

struct DriverOptions {
  std::string pool;  // the node's name
  DeviceModels devices;
  int priority_max = 0;
  std::string state_dir;  // of the record
  std::string cdi_dir;
  std::string runtime_dir;  // the scheduler's
  std::vector<Mount> mounts;
  // Called for each claim that was prepared, again when it is prepared again; on the caller's thread, without a lock. Optional.
  std::function<void(const Claim&)> prepared;
  bool watches_pods = false;  // pods_listed() and the next two are going to be called
  // What changed by pods' annotations: for events and the log. As `prepared`.
  std::function<void(PodLimits::Changes)> changed;
};

struct PreparedDevice {
  std::string request;  // the base name
  std::string pool, device;
  std::string share_id;  // empty: none
  std::vector<std::string> cdi_ids;
  bool operator==(const PreparedDevice&) const = default;
};

class ClaimDriver {
 public:
  // The ResourceClaim as the API server has it. Called without a lock, from several threads at a time.
  using Fetch = std::function<Result<std::string>(const ClaimName&)>;
  // Whether nobody waits for the call's answer any more. From any thread, with the mutex held; must not wait.
  using GivenUp = std::function<bool()>;

  // Takes over what an earlier driver prepared. The loop publishes limits; nothing else on it may call this: claims wait for the loop
  // with the mutex held. An error: the record cannot be read, or is a later version's.
  static Result<std::unique_ptr<ClaimDriver>> open(LoopThread& loop, DriverOptions options, Fetch fetch);

  // The same answer as often as it is asked; of a claim that is prepared already without the API server. An error leaves nothing behind
  // of a claim that was not prepared before. Nor does a call that the kubelet has given up: it may have unprepared the claim since then,
  // and would never do so again.
  Result<std::vector<PreparedDevice>> prepare(const ClaimName& name, const GivenUp& given_up = {});
  // A claim that is not known is unprepared. Needs neither the API server nor the scheduler. An error: the next driver would take it over.
  Result<void> unprepare(const std::string& claim_uid);

  // What the API server has of this node's pods. Pods that share a claim become one tenant, annotations lower what claims give. Any thread;
  // none waits for the scheduler.
  void pods_listed(const std::vector<WatchedPod>& pods);
  void pod_changed(const WatchedPod& pod);
  void pod_deleted(const std::string& uid);
  // Of annotations, for the next driver: what the file pods_record_path() is to say. What it says now is read when this opens.
  std::string pods_record() const;
  std::string pods_record_path() const;
  // The pod of that UID, "namespace/name"; empty: it has no claim here.
  std::string name_of_pod(const std::string& uid) const;

  size_t prepared() const;

 private:
  ClaimDriver(LoopThread& loop, DriverOptions options, Fetch fetch, ClaimRecordFile record)
      : loop_(loop),
        options_(std::move(options)),
        fetch_(std::move(fetch)),
        record_(std::move(record)),
        pods_(options_.priority_max, options_.watches_pods) {}
  Result<void> take_over();
  void take_over_pods() REQUIRES(mutex_);
  Result<Claim> find_or_fetch(const ClaimName& name);
  Result<void> prepare_claim(const Claim& claim, const GivenUp& given_up);
  Result<void> unprepare_claim(const std::string& claim_uid);
  Result<void> look_at_record() REQUIRES(mutex_);
  Result<ClaimRecordFile::Held> hold_record() REQUIRES(mutex_);
  Result<void> write_record() REQUIRES(mutex_);
  Result<void> put_in_force(const Claim& claim) REQUIRES(mutex_);
  Result<void> publish_limits() REQUIRES(mutex_);
  void want_limits() REQUIRES(mutex_) { publisher_->set_wanted(pods_.limits(allocations_), false); }
  void compare_pods() REQUIRES(mutex_);
  void note_other_driver() REQUIRES(mutex_);
  void remove_leftovers() REQUIRES(mutex_);
  void report_compared() EXCLUDES(mutex_);
  void report(PodLimits::Changes changes) const EXCLUDES(mutex_);
  void undo(const Claim& claim, bool is_recorded) REQUIRES(mutex_);
  std::vector<PreparedDevice> answer_of(const Claim& claim) const;

  LoopThread& loop_;
  const DriverOptions options_;
  const Fetch fetch_;
  mutable Mutex mutex_;
  ClaimRecordFile record_ GUARDED_BY(mutex_);
  ClaimAllocations allocations_ GUARDED_BY(mutex_);          // as the record had it when it was last looked at
  std::set<std::string> left_in_record_ GUARDED_BY(mutex_);  // claims that it still has, as it could not be written when they were undone
  ClaimPods pods_ GUARDED_BY(mutex_);
  PodLimits::Changes unreported_ GUARDED_BY(mutex_);
  std::unique_ptr<LimitPublisher> publisher_;  // set before others see this
};

}  // namespace nvshare::kubernetes::dra
