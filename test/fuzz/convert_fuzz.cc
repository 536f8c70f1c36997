// Manifests that `nvsharectl convert` reads: any text is refused with a reason, or converted to one that is read again and stays as it is.
#include "cli/convert/convert.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nvshare;
  using fuzz::require;
  const std::string text(fuzz::text_of(data, size));
  const auto made = cli::convert::convert(text, {});
  if (!fuzz::good(made)) return 0;
  for (const auto& remark : made->remarks) require(!remark.text.empty(), "a remark says something");
  if (made->failed) return 0;
  const auto again = cli::convert::convert(made->text, {});
  require(fuzz::good(again), "what was converted is YAML");
  require(again->text == made->text && again->templates == 0, "what was converted stays as it is");
  return 0;
}
