#include "cli/doctor/doctor_command.h"

#include <fmt/format.h>

#include "cli/columns.h"
#include "cli/doctor/bundle.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/collect.h"

namespace nvshare::cli::doctor {

int doctor_command(const DoctorOptions& options) {
  const auto findings = examine(collect("", options.program));
  if (!options.bundle.empty()) {
    if (auto written = write_bundle(options.bundle, bundle_of(collect_bundle(findings))); !written) {
      fmt::print(stderr, "nvsharectl doctor: {}\n", written.error().text);
      return 1;
    }
    fmt::print(
        "wrote {}: findings, status, the last minute's trace and the scheduler's log.\n"
        "Names are numbers in it, keys and addresses are taken out; please read it before you send it.\n",
        options.bundle);
    return 0;
  }
  fmt::print("{}", options.json ? json_of(findings) + "\n" : draw(findings, columns_of_output()));
  return exit_code(findings);
}

}  // namespace nvshare::cli::doctor
