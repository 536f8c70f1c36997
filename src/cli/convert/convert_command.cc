#include "cli/convert/convert_command.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/parse.h"
#include "cli/convert/convert.h"
#include "cli/output_file.h"
#include "cli/run_command.h"

namespace nvshare::cli::convert {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;

int fail_convert(const std::string& text, int code = 1) {
  fmt::print(stderr, "nvsharectl convert: {}\n", text);
  return code;
}

Result<uint64_t> bytes_of(const char* option, const std::string& text) {
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes >= kMiB && *bytes <= (1ULL << 50)) return *bytes;
  return error_format("%s: '%.60s'; accepted: 1Mi to 1024Ti, such as 4Gi", option, text.c_str());
}

Result<std::string> contents(const std::string& file) {
  FILE* stream = file == "-" ? stdin : std::fopen(file.c_str(), "rbe");
  if (stream == nullptr) return error_format("cannot read %s: %s", file.c_str(), strerror(errno));
  std::string text;
  std::array<char, 16384> part{};
  for (size_t n = 0; (n = std::fread(part.data(), 1, part.size(), stream)) > 0;) text.append(part.data(), n);
  const int problem = std::ferror(stream) != 0 ? errno : 0;
  if (stream != stdin) std::fclose(stream);
  if (problem != 0) return error_format("cannot read %s: %s", file.c_str(), strerror(problem));
  return text;
}

Result<Options> checked(const ConvertOptions& given) {
  Options options;
  options.device_class = given.device_class;
  if (!is_object_name(given.device_class))
    return error_format("--device-class: '%.60s'; accepted: a name of a-z, 0-9, - and .", given.device_class.c_str());
  if (given.cores > 0) options.cores = given.cores;
  auto unit = bytes_of("--memory-unit", given.memory_unit);
  if (!unit) return unit.error();
  options.memory_unit = *unit;
  if (given.memory.empty()) return options;
  auto memory = bytes_of("--memory", given.memory);
  if (!memory) return memory.error();
  options.memory = *memory;
  return options;
}

}  // namespace

int convert_command(const ConvertOptions& given) {
  auto options = checked(given);
  if (!options) return fail_convert(options.error().text, kExitUsage);
  std::string all;
  bool failed = false;
  for (const std::string& file : given.files) {
    const std::string name = file == "-" ? "standard input" : file;
    auto text = contents(file);
    if (!text) return fail_convert(text.error().text);
    auto made = convert(*text, *options);
    if (!made) return fail_convert(fmt::format("{} {}; accepted: manifests in YAML or JSON", name, made.error().text));
    for (const Remark& one : made->remarks)
      fmt::print(stderr, "{}:{}: {}{}\n", name, one.line, one.failed ? "left as it was: " : "", one.text);
    failed = failed || made->failed;
    if (!all.empty()) {
      if (all.back() != '\n') all += '\n';
      if (made->text.rfind("---", 0) != 0) all += "---\n";
    }
    all += made->text;
  }
  if (given.output == "-") {
    fmt::print("{}", all);
    if (std::fflush(stdout) != 0) return fail_convert(fmt::format("cannot write to standard output: {}", strerror(errno)));
  } else {
    if (auto written = write_output(given.output, all); !written) return fail_convert(written.error().text);
  }
  return failed ? 1 : 0;
}

}  // namespace nvshare::cli::convert
