// The modes of programs that manage GPU memory themselves (cuMemCreate, cuMemMap and their kin) as allocators do: growing, churning, up to
// a limit.
#include <algorithm>
#include <random>
#include <thread>

#include "e2e/worker/vmm_space.h"

namespace nvshare::e2e {

// ---- What PyTorch's allocator does with expandable segments ----

namespace {

// One large range; memory is mapped in at any free place and taken out again, one handle a slot.
class Segment {
 public:
  Segment(size_t slots, size_t slot_bytes) : slot_bytes_(slot_bytes), handles_(slots, 0), space_(slots * slot_bytes) {}

  size_t held() const {
    return static_cast<size_t>(std::count_if(handles_.begin(), handles_.end(), [](Handle h) { return h != 0; }));
  }
  size_t slots() const { return handles_.size(); }

  // Creates handles for free slots of [first, first+count) and makes all of that usable.
  void grow(size_t first, size_t count, uint64_t seed) {
    std::vector<size_t> fresh;
    for (size_t i = first; i < first + count; ++i) {
      if (handles_[i] != 0) continue;
      handles_[i] = create(slot_bytes_);
      fresh.push_back(i);
    }
    for (size_t i : fresh) map(space_.at(i * slot_bytes_), slot_bytes_, handles_[i]);
    allow(space_.at(first * slot_bytes_), count * slot_bytes_);
    for (size_t i : fresh) space_.fill(i * slot_bytes_, slot_bytes_, seed + i);
  }

  void shrink(size_t first, size_t count, bool at_once) {
    space_.wait();
    if (at_once) {
      unmap(space_.at(first * slot_bytes_), count * slot_bytes_);
    }
    for (size_t i = first; i < first + count; ++i) {
      if (!at_once) unmap(space_.at(i * slot_bytes_), slot_bytes_);
      release(handles_[i]);
      handles_[i] = 0;
    }
  }

  // The longest mapped run that begins at `first`: one tensor may lie over all of it.
  size_t run_at(size_t first) const {
    size_t count = 0;
    while (first + count < handles_.size() && handles_[first + count] != 0) ++count;
    return count;
  }

  void mix(size_t first, size_t count, uint64_t round) { space_.mix(first * slot_bytes_, count * slot_bytes_, round); }
  void verify() {
    for (size_t first = 0; first < handles_.size();) {
      size_t count = run_at(first);
      if (count > 0) space_.verify(first * slot_bytes_, count * slot_bytes_);
      first += count + 1;
    }
  }
  void end() {
    for (size_t first = 0; first < handles_.size(); ++first) {
      if (handles_[first] != 0) shrink(first, 1, false);
    }
    space_.end();
  }

 private:
  const size_t slot_bytes_;
  std::vector<Handle> handles_;
  Space space_;
};

}  // namespace

void run_expandable(const Options& options) {
  retain_primary();
  std::mt19937_64 random(options.number("seed", 1));
  const size_t hold = options.number("hold", 64u << 20);
  const size_t large = 20 * kMiB;
  // As on a real GPU: more addresses than there is memory.
  Segment segments[2] = {{hold / large * 9 / 8 + 1, large}, {24, kPage}};
  const size_t most[2] = {hold / large, 8};
  say("expanding");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    Segment& segment = segments[round % 4 == 3 ? 1 : 0];
    const size_t limit = most[round % 4 == 3 ? 1 : 0];
    size_t first = random() % segment.slots();
    size_t mapped = segment.run_at(first);
    if (mapped == 0 && segment.held() < limit) {
      size_t count = 1 + random() % (limit - segment.held());
      segment.grow(first, std::min(count, segment.slots() - first), round * 1000);
    } else if (mapped > 0) {
      segment.mix(first, mapped, round);
      if (random() % 3 == 0 || segment.held() > limit) segment.shrink(first, 1 + random() % mapped, random() % 2 == 0);
    } else {
      for (size_t i = 0; i < segment.slots(); ++i) {
        if (size_t count = segment.run_at(i)) {
          segment.mix(i, count, round);
          break;
        }
      }
    }
    if (round % 8 == 0) segment.verify();
  }
  for (Segment& segment : segments) {
    segment.verify();
    segment.end();
  }
  release_primary();
}

// Threads that make, map, use and give back handles, so that each of these calls meets every moment of a turn's beginning and end.
void run_vmm_churn(const Options& options) {
  CUcontext context = retain_primary();
  const size_t hold = options.number("hold", 64u << 20) / kPage * kPage;
  Space ballast(hold);
  Handle held = create(hold);
  map(ballast.at(0), hold, held);
  allow(ballast.at(0), hold);
  ballast.fill(0, hold, 1);
  say("churning");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < options.number("threads", 3); ++t) {
    threads.emplace_back([&, t] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      std::mt19937_64 random(t);
      Space own(4 * kPage);
      for (uint64_t round = 0; !options.told_to_stop(); ++round) {
        // Most come and go unused, and need no turn.
        for (int i = 0; i < 6; ++i) {
          Handle unused = create(kPage);
          map(own.at(0), kPage, unused);
          if (i % 2 == 0) allow(own.at(0), kPage);
          if (i % 3 == 0) release(unused);
          unmap(own.at(0), kPage);
          if (i % 3 != 0) release(unused);
        }
        const size_t bytes = kPage * (1 + random() % 3);
        Handle used = create(bytes, round % 2 == 0);
        map(own.at(kPage), bytes, used);
        allow(own.at(kPage), bytes);
        own.fill(kPage, bytes, round);
        if (round % 2 == 0) {
          own.verify(kPage, bytes);
          unmap(own.at(kPage), bytes);  // and somewhere else, with the bytes in it
          map(own.at(0), bytes, used);
          allow(own.at(0), bytes);
          own.moved(kPage, 0, bytes);
          own.verify(0, bytes);
          unmap(own.at(0), bytes);
        } else {
          own.wait();
          unmap(own.at(kPage), bytes);
        }
        release(used);
      }
      own.end();
    });
  }
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    ballast.mix(0, hold, round);
    ballast.verify(0, hold);
  }
  for (std::thread& thread : threads) thread.join();
  ballast.verify(0, hold);
  unmap(ballast.at(0), hold);
  release(held);
  ballast.end();
  release_primary();
}

// ---- Limits ----

// May hold --limit bytes and not more, mapped or not, and sees what is left.
void run_vmm_limit(const Options& options) {
  retain_primary();
  const size_t limit = options.number("limit", 0);
  const size_t piece = options.number("piece", 4u << 20);
  size_t free_bytes = 0;
  size_t total = 0;
  std::vector<Handle> held;
  CUmemAllocationProp properties = on_gpu(true);
  Handle handle = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuda().cuMemCreate(&handle, piece, &properties, 0)) == CUDA_SUCCESS && held.size() * piece <= 2 * limit) {
    held.push_back(handle);
  }
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "past the limit: CUDA error %d", static_cast<int>(result));
  if (held.size() != limit / piece) fail(kExitUnexpected, "%zu pieces of %zu within %zu", held.size(), piece, limit);
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  if (total != limit || free_bytes != 0) fail(kExitUnexpected, "cuMemGetInfo says %zu free of %zu", free_bytes, total);
  // A mapping keeps the memory, so it counts until that has gone, too.
  CUdeviceptr address = reserve(piece);
  map(address, piece, held.back());
  release(held.back());
  held.pop_back();
  if (cuda().cuMemCreate(&handle, piece, &properties, 0) != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "mapped memory does not count");
  unmap(address, piece);
  check(cuda().cuMemCreate(&handle, piece, &properties, 0), "cuMemCreate after a release");
  release(handle);
  for (Handle each : held) release(each);
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  if (free_bytes > limit || free_bytes + piece < limit) fail(kExitUnexpected, "in the end %zu are free of %zu", free_bytes, total);
  release_primary();
}

}  // namespace nvshare::e2e
