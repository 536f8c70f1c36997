// What a cluster's GPUs offer and what is taken of it, by the rules of ResourceSlices: the request policies are read from the very device
// that the DRA driver publishes, and a claim is given as Kubernetes' allocator gives it, the first node and devices that fit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fleet/jobs.h"

namespace nvshare::fleet {

// A capacity with its request policy.
struct Capacity {
  int64_t value = 0;  // the sum of claims on the device is at most this
  int64_t whole = 0;  // of a claim that asks for nothing
  int64_t least = 0, most = 0, step = 1;

  // What a request takes; nothing: it fits on no such device.
  std::optional<int64_t> taken_by(std::optional<int64_t> asked) const;
};

struct Rules {
  bool shared = true;  // else a device has one claim
  Capacity memory, cores;
};

// Of a GPU with that memory as `nvshare-dra-driver` publishes it; `oversubscription` as its setting. One claim a device: exclusive.
Rules rules_of(int64_t gpu_memory, double oversubscription, bool exclusive);

struct Taken {
  int64_t memory = 0, cores = 0;
  int claims = 0;
};

class Offers {
 public:
  Offers(const Rules& rules, int nodes, int gpus_per_node);

  // Nodes in their order, devices of a node in theirs. Empty: nowhere.
  std::vector<int> place(const Job& job);
  // On that node alone.
  std::vector<int> place_on(int node, const Job& job);
  void give_back(const Job& job, const std::vector<int>& gpus);

  // Whether anything may fit there: no job asks for less than 10 % and 1 GiB.
  bool has_room(int node) const;

  int node_of(int gpu) const { return gpu / gpus_per_node_; }
  const std::vector<Taken>& taken() const { return taken_; }
  // No sum passes its value.
  bool holds() const;

 private:
  struct Ask {
    int64_t memory = 0, cores = 0;
  };
  std::optional<Ask> ask_of(const Job& job) const;
  bool fits(const Taken& taken, const Ask& ask) const;

  Rules rules_;
  int gpus_per_node_;
  std::vector<Taken> taken_;
};

}  // namespace nvshare::fleet
