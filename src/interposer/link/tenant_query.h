// One question to the scheduler, on a connection of its own that ends with the answer: what this process's tenant has of a GPU. Whoever
// asks becomes no client by it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "protocol/codec.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

struct TenantUse {
  uint64_t limit = 0;  // bytes; 0 = none
  uint64_t total = 0;  // the GPU's size as programs are to see it
  uint64_t used = 0;   // by all the tenant's processes
  std::vector<protocol::TenantProcess> processes;
};

class TenantQuery {
 public:
  // `patience_ms`: how long each part of the answer is waited for.
  TenantQuery(FileDescriptor connection, int patience_ms) : connection_(std::move(connection)), patience_ms_(patience_ms) {}

  // Once. `total`: the GPU's, as the driver says; `own_limit`: this program's, bytes, 0 = none. False: the scheduler refuses, says nothing,
  // or something else; then `use` says nothing.
  bool ask(const uint8_t (&uuid)[16], uint64_t total, uint64_t own_limit, TenantUse* use);

 private:
  bool say_hello(const uint8_t (&uuid)[16], uint64_t total, uint64_t own_limit);
  bool receive(protocol::Packet* packet);

  FileDescriptor connection_;
  const int patience_ms_;
};

}  // namespace nvshare::interposer
