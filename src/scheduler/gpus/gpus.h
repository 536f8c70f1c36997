// The GPUs: those that NVML found at start, MIG devices, and those that clients name. A client may name any; where NVML runs only those
// that it lists are believed, elsewhere each user may name a few. A GPU that a client named stays known, with its counts and accounts,
// until its place is needed for another and nothing of it counts any more. Pure bookkeeping; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "scheduler/gpus/gpu_lock.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/gpus/utilization_monitor.h"

namespace nvshare::scheduler {

// By NVML, at start.
struct FoundGpu {
  GpuUuid uuid{};
  std::string name;
  int64_t total = 0;  // bytes that programs can use
};

struct KnownGpu {
  // After a client has left: what its process leaves to a child is others' memory from then on. A look may have been under way, and what
  // grows counts when it is seen twice.
  static constexpr int kLooksAfterLeaving = 3;

  GpuUuid uuid{};
  std::string uuid_text;
  std::string name;
  int64_t nvml_total = 0;  // 0: not known
  int64_t real_total = 0;
  int64_t total = 0;  // as the policy knows it; 0 until the first client
  bool nvml = false;
  std::string named_by;          // the account of the client that named it first
  policy::Instant named_at = 0;  // when a client named it last
  std::optional<GpuLock> lock;
  ForeignMemoryWatch foreign;
  UtilizationMonitor use;
  std::optional<GpuSample> sample;                        // the last
  int looks_due = 0;                                      // at others' memory, though it may have no client any more
  bool prepares = false;                                  // some client was told to have host memory ready
  bool configured() const { return total < real_total; }  // smaller than it is
  bool is_there() const { return !uuid_text.empty(); }    // else its place is free for another
};

class Gpus {
 public:
  Gpus(const std::vector<FoundGpu>& found, int64_t most);

  // By GpuId; places of those that were forgotten are used again.
  KnownGpu& operator[](policy::GpuId id) { return all_[id]; }
  const KnownGpu& operator[](policy::GpuId id) const { return all_[id]; }
  policy::GpuId size() const { return static_cast<policy::GpuId>(all_.size()); }
  // For people, in logs and answers: "GPU 0 (GPU-...)", with the number that `status` shows.
  std::string name_of(policy::GpuId id) const;
  std::optional<policy::GpuId> find(const GpuUuid& uuid) const;
  std::optional<policy::GpuId> find(const std::string& uuid_text) const;

  // The MIG devices that NVML lists now, besides the GPUs that were found at start. Clients that named others are refused.
  void list_mig_devices(const std::vector<GpuUuid>& devices) { mig_devices_ = {devices.begin(), devices.end()}; }
  bool has_mig_devices() const { return !mig_devices_.empty(); }
  bool lists(const GpuUuid& uuid) const { return mig_devices_.contains(uuid) || find(uuid).has_value(); }
  bool uses_nvml() const { return uses_nvml_; }
  // NVML has listed a client's process, so its numbers of processes are ours.
  bool nvml_sees_pids() const { return nvml_sees_pids_; }
  void note_nvml_sees_pids() { nvml_sees_pids_ = true; }

  // Whether a client of that account may name one that is not known; up to `per_user` where NVML does not run. `make_room` forgets one that
  // the account named, or, without one, any; false: there is none that may go.
  using MakeRoom = std::function<bool(const std::string* account)>;
  Result<void> admit(const KnownGpu& gpu, const std::string& account, int64_t per_user, const MakeRoom& make_room) const;
  policy::GpuId add(KnownGpu gpu);
  // Which may be forgotten first, for none of these counts: of those that this account named, or, without one, of whoever named most.
  std::optional<policy::GpuId> to_forget(const std::string* account, const std::set<policy::GpuId>& that_count) const;
  void forget(policy::GpuId id) { all_[id] = KnownGpu(); }

 private:
  Result<void> admit_one_more(const std::string& uuid_text, const MakeRoom& make_room) const;

  std::vector<KnownGpu> all_;
  std::set<GpuUuid> mig_devices_;
  bool uses_nvml_ = false;
  bool nvml_sees_pids_ = false;
  const int64_t most_;
};

}  // namespace nvshare::scheduler
