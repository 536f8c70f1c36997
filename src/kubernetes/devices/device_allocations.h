// Which container has how much of which GPU. Pure bookkeeping: no clock, no I/O; not thread-safe.
//
// The kubelet says in its pod resources API which devices each container holds, and in its checkpoint those of init containers; units of
// memory carry no GPU, so the container's virtual GPUs decide which GPU they count for. A container with several GPUs has its units in
// equal parts on each. One without units has the default, if there is one, which counts the same; the cluster's scheduler knows nothing of
// it. What units are worth may be set anew while containers run: a container that was granted before has what they were worth then. The
// kubelet admits containers without asking whether they fit on *that* GPU: this is asked here, before each start of a container, and only
// what was granted counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/device_ids.h"

namespace nvshare::kubernetes {

// One container as the kubelet lists it.
struct HeldDevices {
  std::string name_space, pod, container;
  std::set<std::string> gpus, memory, cores;  // device IDs
  // An init container: the kubelet gives its devices to the containers after it as well, and does not list it. Known by its checkpoint.
  bool init = false;
  bool operator==(const HeldDevices&) const = default;
  const std::set<std::string>& of(Resource resource) const;
};

struct GpuLoad {
  std::string uuid;
  bool healthy = true;
  int64_t bytes = 0;          // all its units of memory
  int64_t bytes_granted = 0;  // of containers that were granted
  int64_t bytes_listed = 0;   // of all containers that the kubelet has admitted
  int64_t core_granted = 0;   // percent
  int64_t core_listed = 0;
  int64_t devices_listed = 0;  // virtual GPUs
  int64_t bytes_free() const { return bytes > bytes_listed ? bytes - bytes_listed : 0; }
};

// What admit() says.
struct Admission {
  enum class Kind { kGranted, kRefused, kNotListed };
  Kind kind = Kind::kGranted;
  std::string reason;    // of a refusal, for the container's events
  bool changed = false;  // the record is another one now
};

class DeviceAllocations {
 public:
  DeviceAllocations(Division division, std::vector<Gpu> gpus);

  // After a change of health.
  void set_gpus(std::vector<Gpu> gpus);

  // What was granted before a restart, as `record()` gave it. Without a record, the containers that the first update() lists may all be
  // running: they count, and are looked at again at their own next start.
  Result<void> restore(const std::string& record);
  std::string record() const;

  // The kubelet's whole list. A container that is gone from it counts no more; if it comes back with the same devices (the kubelet
  // restarted and had not read its pods yet) it counts again.
  // True: the record is another one now.
  bool update(std::vector<HeldDevices> listed);

  // An init container that is about to start: not in the kubelet's list, but to be in that of each update() from now on.
  void add_init(HeldDevices held);
  std::vector<HeldDevices> init_containers() const;  // that were granted
  // Whether a listed container holds these devices of that resource and no others.
  bool lists_exactly(Resource resource, const std::vector<std::string>& ids) const;

  // May the container start that holds these devices of that resource? kNotListed: no container in the list holds them.
  Admission admit(Resource resource, const std::vector<std::string>& ids);

  std::vector<GpuLoad> loads() const;
  std::set<std::string> in_use(Resource resource) const;
  const std::vector<HeldDevices>& listed() const { return listed_; }
  int64_t memory_unit_of(const HeldDevices& held) const { return division_of(held).memory_unit; }  // bytes
  const std::vector<Gpu>& gpus() const { return gpus_; }
  const Division& division() const { return division_; }

 private:
  // kAssumed counts like kGranted, but does not yet have the right to start without a look.
  enum class Grant { kAssumed, kGranted };
  using Key = std::string;
  struct Entry {
    HeldDevices held;
    Grant grant = Grant::kGranted;
    int64_t memory_unit = 0;  // bytes, as when it was granted
  };

  static Key key_of(const HeldDevices& held);
  Division division_of(const HeldDevices& held) const;
  std::vector<std::string> gpus_of(const HeldDevices& held) const;
  // An init container's units are also those of later containers of its pod, and count once.
  using Counted = std::set<std::string>;
  struct Loads {
    std::vector<GpuLoad> gpus;
    Counted granted;  // device IDs; empty where there are no init containers
  };
  HeldDevices beyond(const HeldDevices& held, const Counted& counted) const;
  void charge(const HeldDevices& whole, bool granted, std::vector<GpuLoad>* loads, Counted* counted) const;
  Loads loads_without(const Key* left_out) const;
  const HeldDevices* find(Resource resource, const std::vector<std::string>& ids) const;
  std::optional<std::string> unfit(const HeldDevices& held, const Loads& loads) const;

  Division division_;
  std::vector<Gpu> gpus_;
  std::vector<HeldDevices> listed_;
  std::map<Key, Entry> granted_;   // listed, and counts
  std::map<Key, Entry> departed_;  // counted once; not listed now
  bool has_init_ = false;          // an init container was ever listed
  bool knows_past_ = false;        // whether a container in no record was granted nothing
};

}  // namespace nvshare::kubernetes
