// One GPU as this process uses it: its memory and memory limit, its turns, its link to the scheduler, its swap engine. Made when the
// process first has a context there; never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/gpu_name.h"
#include "interposer/link/link.h"
#include "interposer/link/turns.h"
#include "interposer/memory/limits/memory_limit.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/engine.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Process;

class Device {
 public:
  Device(Process& process, int ordinal, uint32_t gate_bit, protocol::Backend backend)
      : process_(process), ordinal_(ordinal), gate_bit_(gate_bit), backend_(backend) {}

  // Asks the driver who a GPU is. False when it does not answer.
  static bool ask_uuid(int ordinal, cuda::CUuuid* uuid);
  // The same of this one, with what else is to be known of it. False when it does not answer.
  bool identify();

  Process& process() { return process_; }
  int ordinal() const { return ordinal_; }
  const char* gpu() const { return gpu_.text(); }  // for the log, behind "GPU"
  uint32_t gate_bit() const { return gate_bit_; }
  protocol::Backend backend() const { return backend_; }
  void use_backend(protocol::Backend backend) { backend_ = backend; }  // before anything is allocated
  // Whether its memory can be handed to other processes as descriptors.
  bool exportable() const { return exportable_; }
  const cuda::CUuuid& uuid() const { return uuid_; }
  size_t total() const { return total_; }
  const char* name() const { return name_; }

  // The program may not use this GPU: no scheduler, and one is required.
  void refuse() { refused_ = true; }
  bool refused() const { return refused_; }

  DeviceMemory& memory() { return memory_; }
  MemoryLimit& limit() { return limit_; }
  Link& link() { return link_; }
  Turns& turns() { return turns_; }
  SwapEngine& swap_engine() { return swap_engine_; }

 private:
  Process& process_;
  const int ordinal_;
  GpuName gpu_{ordinal_};
  const uint32_t gate_bit_;
  protocol::Backend backend_;
  bool exportable_ = false;
  cuda::CUuuid uuid_{};
  size_t total_ = 0;
  char name_[64] = {};
  bool refused_ = false;
  MemoryLimit limit_{gpu_};
  DeviceMemory memory_{*this};
  Turns turns_{*this};
  Link link_{*this};
  SwapEngine swap_engine_{*this};
};

}  // namespace nvshare::interposer
