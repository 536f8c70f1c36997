// Copies and fills.
#include "simgpu/copy.h"

#include <algorithm>
#include <cstring>

#include "simgpu/bulk.h"
#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/context.h"
#include "simgpu/memory.h"

namespace simgpu {
namespace {

// A copy takes its engine, and holds off unmapping, for that much at a time.
constexpr uint64_t kPieceBytes = 2u << 20;
// From this size on a copy between a mapping and the host goes through the mapping's file, where that is wanted.
constexpr uint64_t kThroughFile = 64u << 10;
// Pageable memory up to this size is staged, so that the copy is asynchronous all the same.
constexpr uint64_t kStagedMax = 64u << 10;

bool any_absent(const Work& work) {
  std::vector<Span> needed;
  work.spans(needed);
  AddressSpace::Reading reading(here().memory);
  for (const Span& span : needed) {
    if (reading.find(span.address) == nullptr) return true;
  }
  return false;
}

class CopyWork : public Work {
 public:
  CopyWork(const Transfer& transfer, const Route& route) : transfer_(transfer), route_(route) {
    if (!route.stage) return;
    const auto* from = reinterpret_cast<const unsigned char*>(transfer.source);
    staged_.assign(from, from + transfer.width);
  }

  void run(Execution& execution) const override {
    std::vector<Span> needed;
    spans(needed);
    if (!execution.prepare(needed, CUDA_ERROR_LAUNCH_FAILED, name())) return;
    const uint64_t rows_at_once = std::max<uint64_t>(1, kPieceBytes / std::max<uint64_t>(1, transfer_.width));
    for (uint64_t row = 0; row < transfer_.rows * transfer_.slices; row += rows_at_once) {
      const uint64_t rows = std::min(rows_at_once, transfer_.rows * transfer_.slices - row);
      for (uint64_t at = 0; at < transfer_.width; at += kPieceBytes) {
        const uint64_t width = std::min(kPieceBytes, transfer_.width - at);
        if (!move(execution, row, rows, at, width)) return;
        take_time(execution, static_cast<double>(width * rows));
      }
    }
  }

  void spans(std::vector<Span>& out) const override {
    if (route_.source_checked) out.push_back({transfer_.source, transfer_.extent(transfer_.source_pitch, transfer_.source_slice), false});
    if (route_.target_checked) out.push_back({transfer_.target, transfer_.extent(transfer_.target_pitch, transfer_.target_slice), true});
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
  bool lacks_memory() const override { return any_absent(*this); }
  const char* name() const override { return "a copy"; }

 private:
  bool move(Execution& execution, uint64_t row, uint64_t rows, uint64_t at, uint64_t width) const {
    AddressSpace::Reading reading(here().memory);
    for (uint64_t i = row; i < row + rows; ++i) {
      const uint64_t slice = i / transfer_.rows;
      const uint64_t line = i % transfer_.rows;
      uint64_t source = transfer_.source + slice * transfer_.source_slice + line * transfer_.source_pitch + at;
      const uint64_t target = transfer_.target + slice * transfer_.target_slice + line * transfer_.target_pitch + at;
      if (!staged_.empty()) source = reinterpret_cast<uint64_t>(staged_.data()) + at;
      if (route_.source_checked && !usable(reading, execution, source, width, false)) return false;
      if (route_.target_checked && !usable(reading, execution, target, width, true)) return false;
      move_line(reading, target, source, width);
    }
    return true;
  }

  void move_line(AddressSpace::Reading& reading, uint64_t target, uint64_t source, uint64_t width) const {
    const bool into = route_.direction == Direction::kToDevice;
    if (config().copies_through_files && width >= kThroughFile && (into || route_.direction == Direction::kToHost)) {
      const uint64_t address = into ? target : source;
      const Range* range = reading.find(address);
      if (range != nullptr && range->physical && address + width <= range->end()) {
        const uint64_t offset = range->physical_offset + (address - range->base);
        if (move_through_file(range->physical->fd, offset, into, target, source, width)) return;
      }
    }
    move_bytes(target, source, width);
  }

  static bool usable(AddressSpace::Reading& reading, Execution& execution, uint64_t address, uint64_t bytes, bool write) {
    const uint64_t bad = reading.first_bad(address, bytes, write);
    if (bad == 0) return true;
    execution.fault(CUDA_ERROR_LAUNCH_FAILED, "a copy %s %llx, which is not mapped", write ? "to" : "from",
                    static_cast<unsigned long long>(bad));
    return false;
  }

  void take_time(Execution& execution, double bytes) const {
    const double link = config().link_bytes_per_s / 1e9;  // bytes a ns
    switch (route_.direction) {
      case Direction::kToDevice:
        return execution.occupy(Engine::kToDevice, bytes / (link * (route_.pageable ? ratio::kPageableToDevice : 1)));
      case Direction::kToHost:
        return execution.occupy(Engine::kToHost, bytes / (link * (route_.pageable ? ratio::kPageableToHost : 1)));
      case Direction::kOnDevice:
        return execution.occupy(Engine::kCompute, 2 * bytes / (link * ratio::kDeviceMemory));
      case Direction::kOnHost:
        return;
    }
  }

  const Transfer transfer_;
  const Route route_;
  std::vector<unsigned char> staged_;
};

class FillWork : public Work {
 public:
  explicit FillWork(const Fill& fill) : fill_(fill) {}
  void run(Execution& execution) const override {
    std::vector<Span> needed;
    spans(needed);
    if (!execution.prepare(needed, CUDA_ERROR_LAUNCH_FAILED, name())) return;
    for (uint64_t row = 0; row < fill_.height; ++row) {
      for (uint64_t at = 0; at < fill_.width * fill_.element; at += kPieceBytes) {
        const uint64_t bytes = std::min(kPieceBytes, fill_.width * fill_.element - at);
        const uint64_t address = fill_.address + row * fill_.pitch + at;
        AddressSpace::Reading reading(here().memory);
        if (reading.first_bad(address, bytes, true) != 0) {
          execution.fault(CUDA_ERROR_LAUNCH_FAILED, "a memset of %llx, which is not mapped", static_cast<unsigned long long>(address));
          return;
        }
        write(address, bytes);
      }
    }
    const double bytes = static_cast<double>(fill_.height * fill_.width * fill_.element);
    execution.occupy(Engine::kCompute, bytes / (config().link_bytes_per_s / 1e9 * ratio::kDeviceMemory));
  }
  void spans(std::vector<Span>& out) const override {
    out.push_back({fill_.address, (fill_.height - 1) * fill_.pitch + fill_.width * fill_.element, true});
  }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_MEMSET; }
  bool lacks_memory() const override { return any_absent(*this); }
  const char* name() const override { return "a memset"; }

 private:
  void write(uint64_t address, uint64_t bytes) const {
    if (fill_.element == 1) return fill_bytes(address, static_cast<unsigned char>(fill_.value & 0xff), bytes);
    auto* to = reinterpret_cast<unsigned char*>(address);
    const uint64_t first = std::min(bytes, kBulkBytes);
    for (uint64_t i = 0; i < first; i += fill_.element) std::memcpy(to + i, &fill_.value, fill_.element);  // little-endian
    for (uint64_t i = first; i < bytes; i += first) move_bytes(address + i, address, std::min(first, bytes - i));
  }
  const Fill fill_;
};

struct Place {
  bool known;   // to the driver
  bool device;  // memory of a device; else of the host, pageable when it is not known
  bool pageable() const { return !known; }
};

Place place_of(AddressSpace::Reading& reading, uint64_t address) {
  if (const Range* range = reading.find(address)) return {true, !range->on_host()};
  const bool reserved = reading.reserved(address);  // a copy to an address without memory faults when it runs
  return {reserved, reserved};
}

// No address is this low, and no memory this long: refused before anything runs.
constexpr uint64_t kLowestAddress = 4096;
constexpr uint64_t kLongestBytes = uint64_t{1} << 42;

// Plain memory may be copied by every context; virtual memory and pools' only by those of devices that have access (measured, also with
// peer access enabled).
bool reachable(AddressSpace::Reading& reading, uint64_t address, int device) {
  const Range* range = reading.find(address);
  if (range == nullptr) return true;
  if (range->kind == RangeKind::kMapping) return (range->accessors >> device & 1) != 0;
  return range->kind != RangeKind::kPool || range->device == device || pool_is_open_to(range->pool, device);
}

CUresult plan(const Transfer& transfer, Expect source_is, Expect target_is, bool capturing, Sides sides, Route* route) {
  if (transfer.source < kLowestAddress || transfer.target < kLowestAddress) return CUDA_ERROR_INVALID_VALUE;
  if (transfer.width >= kLongestBytes) return CUDA_ERROR_INVALID_VALUE;
  AddressSpace::Reading reading(here().memory);
  if (!reachable(reading, transfer.source, sides.source) || !reachable(reading, transfer.target, sides.target)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Place source = place_of(reading, transfer.source);
  const Place target = place_of(reading, transfer.target);
  if (source_is == Expect::kDevice && !source.known) return CUDA_ERROR_INVALID_VALUE;
  if (target_is == Expect::kDevice && !target.known) return CUDA_ERROR_INVALID_VALUE;
  // Also a host pointer may point to device memory: the address space is one.
  route->source_checked = source.known;
  route->target_checked = target.known;
  route->pageable = source.pageable() || target.pageable();
  route->direction = source.device ? (target.device ? Direction::kOnDevice : Direction::kToHost)
                                   : (target.device ? Direction::kToDevice : Direction::kOnHost);
  route->stage = false;
  route->wait = false;
  if (route->pageable && !capturing) {
    const bool small = transfer.rows * transfer.slices == 1 && transfer.width <= kStagedMax;
    route->stage = source.pageable() && !target.pageable() && small;
    route->wait = !route->stage;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult make_copy(const Transfer& transfer, Expect source_is, Expect target_is, int device, WorkPtr* work) {
  Route route;
  if (const CUresult result = plan(transfer, source_is, target_is, true, {device, device}, &route)) return result;
  {
    AddressSpace::Reading reading(here().memory);
    const auto is_absent = [&](uint64_t address, Expect is) {
      return reading.find(address) == nullptr && (is == Expect::kDevice || reading.reserved(address));
    };
    if (is_absent(transfer.source, source_is) || is_absent(transfer.target, target_is)) return CUDA_ERROR_INVALID_VALUE;
  }
  *work = std::make_shared<CopyWork>(transfer, route);
  return CUDA_SUCCESS;
}

WorkPtr make_fill(const Fill& fill) { return std::make_shared<FillWork>(fill); }

CUresult copy(const Transfer& transfer, Expect source_is, Expect target_is, CUstream handle, Default null_means, Timing timing,
              Sides sides) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (timing == Timing::kBlocking) {
    if (const CUresult result = check_blocking_copy(*stream)) return result;
  }
  if (transfer.width == 0 || transfer.rows == 0 || transfer.slices == 0) return CUDA_SUCCESS;
  Route route;
  const bool capturing = stream->capture.load(std::memory_order_acquire) != nullptr;
  // What may be reached is the current context's matter, also in a stream of another GPU (measured).
  const Context* current = t_thread.current();
  const int device = current != nullptr ? current->device : stream->context->device;
  if (sides.source < 0) sides.source = device;
  if (sides.target < 0) sides.target = device;
  if (const CUresult result = plan(transfer, source_is, target_is, capturing, sides, &route)) return result;
  if (fault_strikes(Machine::get().faults().copy_fail)) return CUDA_ERROR_UNKNOWN;
  auto work = std::make_shared<CopyWork>(transfer, route);
  // As documented: a blocking copy within the device does not wait, one that touches pageable memory waits also when asynchronous.
  constexpr size_t kBreaksFrom = size_t{1} << 20;
  const bool may_break = timing != Timing::kBlocking && route.direction == Direction::kToDevice && transfer.width >= kBreaksFrom;
  if (may_break && Machine::get().faults().copy_breaks.exchange(0) != 0) {
    report_fault(*stream->context, CUDA_ERROR_ILLEGAL_ADDRESS, "a copy that was to break its context");
    return CUDA_SUCCESS;
  }
  const bool wait = route.wait || (timing == Timing::kBlocking && route.direction != Direction::kOnDevice);
  return wait ? submit_and_wait(*stream, Submission::kCopy, std::move(work)) : submit(*stream, Submission::kCopy, std::move(work));
}

CUresult fill(const Fill& request, CUstream handle, Default null_means, Timing timing) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (timing == Timing::kBlocking) {
    if (const CUresult result = check_blocking_copy(*stream)) return result;
  }
  if (request.width == 0 || request.height == 0) return CUDA_SUCCESS;
  if (request.address % request.element != 0 || request.width >= kLongestBytes) return CUDA_ERROR_INVALID_VALUE;
  // Rows must not overlap; one that is smaller than the element is refused, too (measured).
  if (request.height > 1 && request.pitch < request.width * request.element) return CUDA_ERROR_INVALID_VALUE;
  if (timing != Timing::kBlocking) {  // a capture that has failed is told before addresses are looked at (measured)
    std::lock_guard lock(stream->context->mutex);
    if (const Capture* capture = stream->capture.load(); capture != nullptr && capture->invalid.load())
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  {
    AddressSpace::Reading reading(here().memory);
    // Unlike copies, fills want peer access to another device's plain memory (measured).
    const Range* range = reading.find(request.address);
    if (!place_of(reading, request.address).known || (range != nullptr && !may_use(*stream->context, *range))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Of memory that was opened by IPC they are the context's that opened it (measured).
    const Context* own = stream->context->parent != nullptr ? stream->context->parent : stream->context;
    if (range != nullptr && range->kind == RangeKind::kImported && range->context != own) return CUDA_ERROR_INVALID_VALUE;
  }
  return submit(*stream, Submission::kOther, make_fill(request));
}

}  // namespace simgpu
