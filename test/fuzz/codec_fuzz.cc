// Any bytes are refused with a reason, or decode to a message that keeps the codec's promises and encodes to the same bytes.
#include <cstdlib>
#include <cstring>
#include <span>

#include "protocol/directions.h"

namespace {

using namespace nvshare::protocol;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const MemoryReport& memory) {
  require(memory.allocated <= kMemoryBytesMax && memory.resident <= memory.allocated && memory.unswappable <= memory.allocated);
}

template <typename Payload>
void check(const Payload& payload) {
  if constexpr (requires { payload.memory; }) check(payload.memory);
}

template <typename Payload>
void try_decode(std::span<const std::byte> packet) {
  auto payload = decode<Payload>(packet);
  if (!payload) {
    require(payload.error().text[0] != 0);
    return;
  }
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.version < kVersionMin || header.version > kVersionMax) return;  // only in part, and only Register and Refused
  check(*payload);
  Packet again = encode(*payload, header.version);
  require(again.length == packet.size() && std::memcmp(again.bytes, packet.data(), packet.size()) == 0);
}

template <typename... Payloads>
void try_decode_as(Messages<Payloads...>, MessageType type, std::span<const std::byte> packet) {
  ((type == TypeOf<Payloads>::value ? try_decode<Payloads>(packet) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> packet = std::as_bytes(std::span(data, size));
  auto type = decode_type(packet);
  if (!type) {
    require(type.error().text[0] != 0);
    return 0;
  }
  try_decode_as(AllMessages{}, *type, packet);
  return 0;
}
