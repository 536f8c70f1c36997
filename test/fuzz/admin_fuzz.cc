// Any line is refused with a reason, or is a request that survives being sent again; no reply crashes a reader.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "protocol/admin.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace admin = nvshare::protocol::admin;
  std::string_view line(reinterpret_cast<const char*>(data), size);
  auto request = admin::decode_request(line);
  if (!request && request.error().text[0] == 0) std::abort();
  if (request && !admin::decode_request(admin::encode(*request))) std::abort();
  if (auto report = admin::decode_status(line); report && !admin::decode_status(admin::encode(*report))) std::abort();
  if (auto turn = admin::decode_turn(line); turn && !admin::decode_turn(admin::encode_turn(*turn))) std::abort();
  static_cast<void>(static_cast<bool>(admin::decode_tenant(line)));
  return 0;
}
