#include "e2e/worker/block.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "e2e/worker/model.h"
#include "simgpu/bulk.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kRowBytes = 1000;  // of a pitched allocation: not a multiple of anything

uint64_t number(const unsigned char* at) { return reinterpret_cast<uint64_t>(at); }

}  // namespace

Block::Block(const Workplace& place, size_t bytes, Allocation how)
    : place_(&place), bytes_(allocate(place, bytes, how)), how_(how), expected_(bytes_) {
  set_bytes(0xa5);  // memory that is not new may have anything in it
}

size_t Block::allocate(const Workplace& place, size_t bytes, Allocation how) {
  switch (how) {
    case Allocation::kPlain:
      check(cuda().cuMemAlloc_v2(&address_, bytes), "cuMemAlloc");
      return bytes;
    case Allocation::kPitch: {
      size_t pitch = 0;
      size_t rows = bytes / kRowBytes + 1;
      check(cuda().cuMemAllocPitch_v2(&address_, &pitch, kRowBytes, rows, 4), "cuMemAllocPitch");
      if (pitch < kRowBytes) fail(kExitUnexpected, "a pitch of %zu for rows of %zu", pitch, kRowBytes);
      return pitch * rows;
    }
    case Allocation::kAsync:
      check(cuda().cuMemAllocAsync(&address_, bytes, place.stream), "cuMemAllocAsync");
      return bytes;
  }
  return 0;
}

Block::Block(Block&& other) noexcept
    : place_(other.place_), address_(other.address_), bytes_(other.bytes_), how_(other.how_), expected_(std::move(other.expected_)) {
  other.address_ = 0;
}

Block::~Block() = default;

void Block::wait() const { check(cuda().cuStreamSynchronize(place_->stream), "cuStreamSynchronize"); }

// The bytes past the last whole word, which no kernel writes.
void Block::upload_tail() {
  size_t tail = bytes_ % 8;
  if (tail == 0) return;
  size_t at = bytes_ - tail;
  check(cuda().cuMemcpyHtoDAsync_v2(address_ + at, expected_.data() + at, tail, place_->stream), "cuMemcpyHtoDAsync");
  wait();  // the source may change next
}

void Block::fill(uint64_t seed) {
  if (words() > 0) check(launch(place_->kernels.fill, place_->stream, address_, uint64_t{words()}, seed), "sim_fill");
  e2e::model_fill(word(), words(), seed);
  for (size_t i = words() * 8; i < bytes_; ++i) expected_[i] = static_cast<unsigned char>(seed >> (i % 8 * 8));
  upload_tail();
}

void Block::model_mix(uint64_t round) { e2e::model_mix(word(), words(), round); }

void Block::mix(uint64_t round) {
  if (words() == 0) return;
  check(launch(place_->kernels.mix, place_->stream, address_, uint64_t{words()}, round), "sim_mix");
  model_mix(round);
}

void Block::mix_slowly(uint64_t round, uint64_t duration_ns) {
  if (words() == 0) return;
  check(launch(place_->kernels.mix_slow, place_->stream, address_, uint64_t{words()}, round, duration_ns), "sim_mix_slow");
  model_mix(round);
}

void Block::model_add(const Block& other) { e2e::model_add(word(), other.word(), std::min(words(), other.words())); }

void Block::add(const Block& other) {
  uint64_t count = std::min(words(), other.words());
  if (count == 0) return;
  check(launch(place_->kernels.add, place_->stream, address_, other.address_, count), "sim_add");
  model_add(other);
}

void Block::copy_from(const Block& other) {
  size_t count = std::min(bytes_, other.bytes_);
  check(cuda().cuMemcpyDtoDAsync_v2(address_, other.address_, count, place_->stream), "cuMemcpyDtoDAsync");
  simgpu::move_bytes(number(expected_.data()), number(other.expected_.data()), count);
}

void Block::write_from_host(std::mt19937_64& random) {
  size_t first = random() % bytes_;
  size_t count = 1 + random() % (bytes_ - first);
  count = std::min<size_t>(count, 1 << 20);
  for (size_t i = first; i < first + count; ++i) expected_[i] = static_cast<unsigned char>(random());
  check(cuda().cuMemcpyHtoDAsync_v2(address_ + first, expected_.data() + first, count, place_->stream), "cuMemcpyHtoDAsync");
  wait();
}

void Block::set_bytes(unsigned char value) {
  check(cuda().cuMemsetD8Async(address_, value, bytes_, place_->stream), "cuMemsetD8Async");
  simgpu::fill_bytes(number(expected_.data()), value, bytes_);
}

uint64_t Block::checksum() const { return model_checksum(word(), words()); }

void Block::verify_checksum(CUdeviceptr scratch) const {
  size_t tail = bytes_ % 8;
  if (words() > 0) {
    check(launch(place_->kernels.checksum, place_->stream, address_, uint64_t{words()}, scratch), "sim_checksum");
    uint64_t sum = 0;
    check(cuda().cuMemcpyDtoHAsync_v2(&sum, scratch, sizeof sum, place_->stream), "cuMemcpyDtoHAsync");
    wait();
    if (sum != checksum()) {
      std::printf("checksum %016" PRIx64 " of %zu bytes at %llx, expected %016" PRIx64 "\n", sum, bytes_, address_, checksum());
      verify_bytes();  // says which
      fail(kExitWrongBytes, "a wrong checksum over right bytes");
    }
  }
  if (tail != 0) {
    unsigned char got[8] = {};
    check(cuda().cuMemcpyDtoHAsync_v2(got, address_ + bytes_ - tail, tail, place_->stream), "cuMemcpyDtoHAsync");
    wait();
    if (std::memcmp(got, expected_.data() + bytes_ - tail, tail) != 0) {
      fail(kExitWrongBytes, "wrong bytes at the end of %zu bytes at %llx", bytes_, address_);
    }
  }
}

void Block::verify_bytes() const {
  constexpr size_t kPiece = 8u << 20;  // or this would need as much memory again
  HostBuffer got(std::min(bytes_, kPiece));
  for (size_t at = 0; at < bytes_; at += kPiece) {
    const size_t bytes = std::min(kPiece, bytes_ - at);
    check(cuda().cuMemcpyDtoHAsync_v2(got.data(), address_ + at, bytes, place_->stream), "cuMemcpyDtoHAsync");
    wait();
    const Difference wrong = difference_between(got.data(), expected_.data() + at, bytes);
    if (wrong.count == 0) continue;
    fail(kExitWrongBytes, "%zu of %zu bytes at %llx are wrong, the first at offset %zu: %02x instead of %02x", wrong.count, bytes,
         address_ + at, at + wrong.first, got[wrong.first], expected_[at + wrong.first]);
  }
}

void Block::free() {
  if (how_ == Allocation::kAsync) {
    check(cuda().cuMemFreeAsync(address_, place_->stream), "cuMemFreeAsync");
  } else {
    check(cuda().cuMemFree_v2(address_), "cuMemFree");
  }
  address_ = 0;
}

}  // namespace nvshare::e2e
