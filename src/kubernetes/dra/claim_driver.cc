#include "kubernetes/dra/claim_driver.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kubernetes/dra/claim_cdi.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr char kPodsRecordName[] = "/dra-pods.json";
// The other driver holds the record while the scheduler answers it; a call of the kubelet has 45 s.
constexpr std::chrono::milliseconds kRecordPatience{20'000};

}  // namespace

Result<std::unique_ptr<ClaimDriver>> ClaimDriver::open(LoopThread& loop, DriverOptions options, Fetch fetch) {
  Result<ClaimRecordFile> record = ClaimRecordFile::open(options.state_dir);
  if (!record) return record.error();
  std::unique_ptr<ClaimDriver> driver(new ClaimDriver(loop, std::move(options), std::move(fetch), std::move(*record)));
  if (auto ok = driver->take_over(); !ok) return ok.error();
  return driver;
}

Result<void> ClaimDriver::take_over() {
  Lock lock(mutex_);
  if (auto ok = look_at_record(); !ok) return ok;
  remove_leftovers();
  if (options_.watches_pods) take_over_pods();
  publisher_ = std::make_unique<LimitPublisher>(loop_, options_.runtime_dir);
  want_limits();
  return {};
}

void ClaimDriver::take_over_pods() {
  const std::string path = pods_record_path();
  if (access(path.c_str(), F_OK) != 0) return;
  Result<std::string> text = read_file(path);
  Result<std::vector<std::string>> left_out = text ? pods_.restore(*text) : Result<std::vector<std::string>>(text.error());
  if (!left_out) {
    spdlog::warn("{}: {}; bad annotations have no last good value", path, left_out.error().text);
    return;
  }
  for (const std::string& why : *left_out) spdlog::warn("{}: {}", path, why);
}

// What the other driver of this node did meanwhile.
Result<void> ClaimDriver::look_at_record() {
  Result<std::optional<ClaimRecord>> record = record_.read_if_changed();
  if (!record) return record.error();
  if (!*record) return {};
  ClaimAllocations now;
  for (const Claim& claim : (*record)->claims) now.restore(claim);
  allocations_ = std::move(now);
  left_in_record_.clear();
  compare_pods();
  return {};
}

Result<void> ClaimDriver::write_record() {
  auto written = record_.write(allocations_.claims());
  if (written) left_in_record_.clear();
  return written;
}

Result<ClaimRecordFile::Held> ClaimDriver::hold_record() {
  Result<ClaimRecordFile::Held> held = record_.hold(kRecordPatience);
  if (!held) return held;
  if (auto ok = look_at_record(); !ok) return ok.error();
  return held;
}

// Specifications of claims that are not prepared. The other driver's claims are in the record before their specifications are made.
void ClaimDriver::remove_leftovers() {
  Result<ClaimRecordFile::Held> held = record_.hold(std::chrono::milliseconds(0));
  if (!held) return;  // the other one is at work: the next start removes them
  if (auto ok = look_at_record(); !ok) return;
  if (auto ok = remove_other_claims(options_.cdi_dir, allocations_.claims()); !ok) spdlog::warn("{}", ok.error().text);
}

Result<Claim> ClaimDriver::find_or_fetch(const ClaimName& name) {
  if (auto ok = check_name(name); !ok) return ok.error();
  {
    Lock lock(mutex_);
    if (auto ok = look_at_record(); !ok) return ok.error();
    if (const Claim* known = allocations_.find(name.uid)) return *known;
  }
  Result<std::string> object = fetch_(name);
  if (!object) return object.error();
  return read_claim(*object, name, {options_.pool, options_.devices, options_.priority_max});
}

// Other drivers and plugins may publish limits of pods of this node.
Result<void> ClaimDriver::publish_limits() {
  want_limits();
  return publisher_->publish();
}

// The specification stays as it is where it is there: containers that run were made with it.
Result<void> ClaimDriver::put_in_force(const Claim& claim) {
  const std::string spec = cdi_file_of(options_.cdi_dir, claim.uid);
  if (has_cdi_spec(claim) && access(spec.c_str(), F_OK) != 0) {
    if (auto ok = write_file_atomically(spec, cdi_spec_of(claim, options_.mounts)); !ok) return ok;
  }
  if (auto ok = publish_limits(); !ok) {
    return error_format("the scheduler did not take the limits: %.200s", ok.error().text);
  }
  return {};
}

void ClaimDriver::undo(const Claim& claim, bool is_recorded) {
  allocations_.remove(claim.uid);
  compare_pods();
  if (auto ok = write_record(); !ok) {
    spdlog::error("{}", ok.error().text);
    if (is_recorded) left_in_record_.insert(claim.uid);
  }
  unlink(cdi_file_of(options_.cdi_dir, claim.uid).c_str());
  (void)publish_limits();  // else it is published when a scheduler answers
}

std::vector<PreparedDevice> ClaimDriver::answer_of(const Claim& claim) const {
  std::vector<PreparedDevice> devices;
  for (const Share& share : claim.shares) {
    devices.push_back({share.base_request(), options_.pool, share.device, share.id, cdi_ids_of(claim, share)});
  }
  return devices;
}

Result<void> ClaimDriver::prepare_claim(const Claim& claim, const GivenUp& given_up) {
  Lock lock(mutex_);
  const auto held = hold_record();
  if (!held) return held.error();
  const bool was_known = allocations_.find(claim.uid) != nullptr;
  if (!was_known && given_up && given_up()) return error_format("the kubelet has given the call up");
  if (auto ok = allocations_.admit(claim, options_.devices); !ok) return ok;
  if (!was_known) compare_pods();
  Result<void> done = was_known ? Result<void>() : write_record();
  const bool is_recorded = static_cast<bool>(done);
  if (done) done = put_in_force(claim);
  if (!done && !was_known) undo(claim, is_recorded);
  if (done && !was_known)
    spdlog::info("claim {}/{} is prepared: {} shares for pod {}", claim.name_space, claim.name, claim.shares.size(), claim.pod);
  return done;
}

Result<std::vector<PreparedDevice>> ClaimDriver::prepare(const ClaimName& name, const GivenUp& given_up) {
  Result<Claim> claim = find_or_fetch(name);
  const Result<void> done = claim ? prepare_claim(*claim, given_up) : Result<void>(claim.error());
  report_compared();
  if (!done) {
    spdlog::error("claim {}/{} is not prepared: {}", name.name_space, name.name, done.error().text);
    return error_format("claim %.60s/%.60s: %.125s", name.name_space.c_str(), name.name.c_str(), done.error().text);
  }
  if (options_.prepared) options_.prepared(*claim);
  return answer_of(*claim);
}

Result<void> ClaimDriver::unprepare(const std::string& claim_uid) {
  const Result<void> done = unprepare_claim(claim_uid);
  report_compared();
  return done;
}

Result<void> ClaimDriver::unprepare_claim(const std::string& claim_uid) {
  Lock lock(mutex_);
  const auto held = hold_record();
  if (!held) return held.error();
  const Claim* known = allocations_.find(claim_uid);
  if (known == nullptr) return left_in_record_.contains(claim_uid) ? write_record() : Result<void>();
  const Claim claim = *known;
  allocations_.remove(claim_uid);
  if (auto ok = write_record(); !ok) {
    allocations_.restore(claim);
    spdlog::error("claim {}/{} is not unprepared: {}", claim.name_space, claim.name, ok.error().text);
    return ok;
  }
  compare_pods();
  if (unlink(cdi_file_of(options_.cdi_dir, claim_uid).c_str()) != 0 && errno != ENOENT) {
    spdlog::warn("cannot remove the specification of claim {}/{}: {}", claim.name_space, claim.name, strerror(errno));
  }
  if (auto ok = publish_limits(); !ok) {
    spdlog::warn("the scheduler does not know yet that claim {}/{} is over: {}", claim.name_space, claim.name, ok.error().text);
  }
  spdlog::info("claim {}/{} is unprepared", claim.name_space, claim.name);
  return {};
}

// ---- pods ----

void ClaimDriver::compare_pods() {
  if (options_.watches_pods) unreported_.add(pods_.compare(allocations_));
}

void ClaimDriver::report_compared() {
  PodLimits::Changes changes;
  {
    Lock lock(mutex_);
    std::swap(changes, unreported_);
  }
  report(std::move(changes));
}

void ClaimDriver::report(PodLimits::Changes changes) const {
  for (const std::string& line : changes.audit) spdlog::info("{}", line);
  if (options_.changed) options_.changed(std::move(changes));
}

// A record that cannot be read is the next call's to refuse.
void ClaimDriver::note_other_driver() {
  if (auto ok = look_at_record(); !ok) spdlog::warn("{}", ok.error().text);
}

void ClaimDriver::pods_listed(const std::vector<WatchedPod>& pods) {
  Lock lock(mutex_);
  note_other_driver();
  PodLimits::Changes changes = pods_.replace(pods, allocations_);
  want_limits();
  lock.unlock();
  report(std::move(changes));
}

void ClaimDriver::pod_changed(const WatchedPod& pod) {
  Lock lock(mutex_);
  note_other_driver();
  PodLimits::Changes changes = pods_.update(pod, allocations_);
  want_limits();
  lock.unlock();
  report(std::move(changes));
}

void ClaimDriver::pod_deleted(const std::string& uid) {
  Lock lock(mutex_);
  note_other_driver();
  PodLimits::Changes changes = pods_.remove(uid);
  want_limits();
  lock.unlock();
  report(std::move(changes));
}

std::string ClaimDriver::pods_record() const {
  Lock lock(mutex_);
  return pods_.record();
}

std::string ClaimDriver::pods_record_path() const { return options_.state_dir + kPodsRecordName; }

std::string ClaimDriver::name_of_pod(const std::string& uid) const {
  Lock lock(mutex_);
  for (const auto& pod : pods_.limits(allocations_)) {
    if (pod.uid == uid) return pod.name;
  }
  return {};
}

size_t ClaimDriver::prepared() const {
  Lock lock(mutex_);
  return allocations_.claims().size();
}

}  // namespace nvshare::kubernetes::dra
