// nvsharectl doctor: what keeps programs from sharing GPUs here.
#pragma once

#include <string>

namespace nvshare::cli::doctor {

struct DoctorOptions {
  std::string program;  // name or path; empty: none
  bool json = false;
  std::string bundle;  // a file to write for a bug report; empty: none
};

// 0, or 1 when there is a problem.
int doctor_command(const DoctorOptions& options);

}  // namespace nvshare::cli::doctor
