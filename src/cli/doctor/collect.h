// Looks at this machine for `nvsharectl doctor`. Reads files, asks a scheduler that is there and nvidia-smi (at most 10 s); changes
// nothing. `root` is before every path of /proc, /sys, /dev and /etc, for tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/facts.h"

namespace nvshare::cli::doctor {

// `program`: a name or a path, or empty.
Facts collect(const std::string& root, const std::string& program);

// What nvidia-smi prints for kGpuQuery and kUserQuery with --format=csv,noheader,nounits.
inline constexpr char kGpuQuery[] =
    "--query-gpu=index,name,uuid,persistence_mode,mig.mode.current,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,memory.total";
inline constexpr char kUserQuery[] = "--query-compute-apps=pid,process_name,used_memory";
std::vector<GpuFacts> parse_gpus(const std::string& csv);
std::vector<GpuUser> parse_users(const std::string& csv);

// What a command of the shell prints within five seconds; nothing when it fails. It is not shared, whatever our own environment says.
std::optional<std::string> output_of(const std::string& command);

// NVIDIA's GPUs below /sys, by address.
std::vector<PciGpu> look_at_pci(const std::string& root);

// What kind of program a file is, by its mode and ELF headers.
ProgramFacts look_at_program(const std::string& path);

}  // namespace nvshare::cli::doctor
