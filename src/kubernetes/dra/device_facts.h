// What NVML and the kernel say of GPUs, for their attributes. What they do not say is left empty.
#pragma once

#include <string>
#include <vector>

#include "kubernetes/dra/device_model.h"

namespace nvshare::kubernetes::dra {

// One for each GPU, in this order. Without NVML only what `gpus` says.
std::vector<DeviceFacts> facts_of(const std::vector<Gpu>& gpus);

// "pci0000:00": the root that the GPU at this PCI address (NVML's way of writing it) hangs on; empty if the kernel does not say.
std::string pcie_root_of(const std::string& sysfs, const std::string& pci_address);

// 12040 as "12.4".
std::string cuda_version_text(int version);

// As they are published, in the order of `facts`. A GPU that cannot be is left out, with a line in the log.
DeviceModels models_of(const std::vector<DeviceFacts>& facts, const Division& division);

}  // namespace nvshare::kubernetes::dra
