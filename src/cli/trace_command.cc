#include "cli/trace_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "cli/output_file.h"
#include "cli/scheduler_link.h"
#include "cli/units.h"
#include "protocol/admin.h"
#include "replay/recording.h"

namespace nvshare::cli {
namespace {

namespace admin = protocol::admin;

constexpr char kMakesOne[] = "nvshare-scheduler --trace FILE makes a recording";

int fail(const std::string& text) {
  fmt::print(stderr, "nvsharectl trace: {}\n", text);
  return 1;
}

std::string counted(size_t number, const char* thing) { return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s"); }

int finish(replay::ChromeTrace& picture, const TraceOptions& options, const std::string& source) {
  if (picture.summary().gpus == 0)
    return fail(fmt::format("{} has no GPU in it: no program has used one{}", source,
                            options.recording.empty() ? " under this scheduler" : " since it was begun"));
  if (picture.is_replayed() && picture.release() != NVSHARE_VERSION)
    fmt::print(stderr, "nvsharectl trace: {} was made by a scheduler of release {}, and its turns are computed anew by release {}: {}\n",
               source, picture.release().empty() ? "0.1.0" : picture.release(), NVSHARE_VERSION,
               "they may not be what they were; the nvsharectl of that release shows them as they were");
  auto written = write_picture(picture, options.output);
  if (!written) return fail(written.error().text);
  if (options.output != "-") fmt::print("{}\n", *written);
  return 0;
}

int trace_recording(const TraceOptions& options) {
  std::ifstream recording(options.recording);
  if (!recording) {
    const std::string writes = errno == ENOENT ? fmt::format("; --output {} writes the last minute there", options.recording) : "";
    return fail(fmt::format("cannot read {}: {}; {}{}", options.recording, strerror(errno), kMakesOne, writes));
  }
  replay::ChromeTrace picture;
  replay::Recording lines(recording);
  while (true) {
    const auto line = lines.next();
    if (!line) return fail(fmt::format("{} {}", options.recording, line.error().text));
    if (!*line && recording.bad()) return fail(fmt::format("{}: it cannot be read: {}; {}", options.recording, strerror(errno), kMakesOne));
    if (!*line) break;
    if (const auto added = picture.add((**line).is); !added)
      return fail(fmt::format("{} line {}: {}; accepted is what nvshare-scheduler --trace wrote", options.recording, (**line).number,
                              added.error().text));
  }
  return finish(picture, options, options.recording);
}

}  // namespace

Result<std::string> write_picture(replay::ChromeTrace& picture, const std::string& output) {
  const auto summary = picture.summary();
  const std::string text = picture.finish();
  if (output == "-") {
    fmt::print("{}", text);
    if (std::fflush(stdout) != 0) return error_format("cannot write to standard output: %s", strerror(errno));
  } else {
    if (auto written = write_output(output, text); !written) return written.error();
  }
  return fmt::format("wrote {}: {}, {}, {}, {}; open it at https://ui.perfetto.dev", output, counted(summary.gpus, "GPU"),
                     counted(summary.clients, "client"), counted(summary.turns, "turn"), format_duration(summary.length));
}

Result<void> LiveTrace::fetch() {
  while (true) {
    auto line = admin_.ask(admin::TraceRequest{next_, last_ns_});
    auto part = line ? admin::decode_trace_part(*line) : Result<admin::TracePart>(line.error());
    if (!part) return part.error();
    for (const std::string& one : part->lines) {
      if (auto added = picture_.add(one); !added) return error_format("the scheduler's recording: %.200s", added.error().text);
    }
    next_ = part->next;
    if (!part->more) return {};
  }
}

int trace_command(const TraceOptions& options) {
  if (!options.recording.empty()) return trace_recording(options);
  auto link = find_scheduler();
  if (!link) return fail(link.error().text);
  if (!link->admin) return fail(link->admin_error);
  LiveTrace live(std::move(*link->admin), static_cast<int64_t>(options.last_s * 1e9));
  if (auto fetched = live.fetch(); !fetched) return fail(fetched.error().text);
  return finish(live.picture(), options, "what the scheduler remembers");
}

}  // namespace nvshare::cli
