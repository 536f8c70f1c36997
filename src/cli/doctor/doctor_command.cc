#include "cli/doctor/doctor_command.h"

#include <fmt/format.h>

#include "cli/doctor/checks.h"
#include "cli/doctor/collect.h"

namespace nvshare::cli::doctor {

int doctor_command(const DoctorOptions& options) {
  const auto findings = examine(collect("", options.program));
  fmt::print("{}", options.json ? json_of(findings) + "\n" : draw(findings));
  return exit_code(findings);
}

}  // namespace nvshare::cli::doctor
