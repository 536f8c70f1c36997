// A pool whose memory goes from process to process.
#include <fcntl.h>
#include <sys/wait.h>

#include <cstring>

#include "e2e/worker/block.h"
#include "e2e/worker/desk.h"
#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kRounds = 5;
constexpr uint64_t kSeed = 7;

std::string to_hex(const CUmemPoolPtrExportData& data) {
  std::string text;
  for (unsigned char c : data.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", c);
    text += digits;
  }
  return text;
}

CUmemPoolPtrExportData from_hex(const std::string& text) {
  CUmemPoolPtrExportData data{};
  for (size_t i = 0; i < sizeof data.reserved && 2 * i + 1 < text.size(); ++i) {
    data.reserved[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return data;
}

}  // namespace

// Hands an allocation of a pool to a child process, which works on it, stands still (--go) and ends; memory of its own comes and goes.
void run_pool_export(const Options& options) {
  retain_primary();
  Desk desk;
  const size_t bytes = options.number("hand", 12u << 20);
  CUmemoryPool pool = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUdeviceptr handed = 0;
  check(cuda().cuMemAllocFromPoolAsync(&handed, bytes, pool, desk.place.stream), "cuMemAllocFromPoolAsync");
  check(launch(desk.place.kernels.fill, desk.place.stream, handed, uint64_t{bytes / 8}, kSeed), "sim_fill");
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  auto ballast = filled(desk.place, options.number("hold", 60u << 20), 1);
  int fd = -1;
  CUmemPoolPtrExportData data{};
  check(cuda().cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemPoolExportToShareableHandle");
  check(cuda().cuMemPoolExportPointer(&data, handed), "cuMemPoolExportPointer");
  const pid_t child = fork();
  if (child == 0) {
    fcntl(fd, F_SETFD, 0);
    const std::string texts[] = {std::to_string(fd), to_hex(data), std::to_string(bytes), options.text("go", "")};
    execl("/proc/self/exe", "e2e_worker", "pool-import", "--fd", texts[0].c_str(), "--data", texts[1].c_str(), "--bytes", texts[2].c_str(),
          "--go", texts[3].c_str(), static_cast<char*>(nullptr));
    _exit(126);
  }
  int status = 0;
  for (uint64_t round = 0; waitpid(child, &status, WNOHANG) == 0; ++round) {
    ballast->mix(round);
    ballast->verify_checksum(desk.scratch);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail(kExitUnexpected, "the importer ended with status %x", static_cast<unsigned>(status));
  std::vector<uint64_t> expected(bytes / 8);
  model_fill(expected.data(), expected.size(), kSeed);
  for (uint64_t round = 0; round < kRounds; ++round) model_mix(expected.data(), expected.size(), round);
  std::vector<uint64_t> got(expected.size());
  check(cuda().cuMemcpyDtoH_v2(got.data(), handed, bytes), "cuMemcpyDtoH");
  if (got != expected) fail(kExitWrongBytes, "the importer's work is not in the memory of the pool");
  check(cuda().cuMemFreeAsync(handed, desk.place.stream), "cuMemFreeAsync");
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  check(cuda().cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  ballast->verify_bytes();
  close(fd);
}

void run_pool_import(const Options& options) {
  retain_primary();
  Desk desk;
  const uint64_t words = options.number("bytes", 0) / 8;
  const auto fd = static_cast<intptr_t>(options.number("fd", 0));
  CUmemoryPool pool = nullptr;
  check(cuda().cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemPoolImportFromShareableHandle");
  CUmemPoolPtrExportData data = from_hex(options.text("data", ""));
  CUdeviceptr address = 0;
  check(cuda().cuMemPoolImportPointer(&address, pool, &data), "cuMemPoolImportPointer");
  CUdeviceptr none = 0;
  if (cuda().cuMemAllocFromPoolAsync(&none, 4096, pool, desk.place.stream) == CUDA_SUCCESS)
    fail(kExitUnexpected, "another process's pool gave memory");
  for (uint64_t round = 0; round < kRounds; ++round) {
    check(launch(desk.place.kernels.mix, desk.place.stream, address, words, round), "sim_mix");
  }
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  say("imported");
  stand_still(options);
  check(cuda().cuMemFreeAsync(address, desk.place.stream), "cuMemFreeAsync of imported memory");
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  check(cuda().cuMemPoolDestroy(pool), "cuMemPoolDestroy of an imported pool");
}

}  // namespace nvshare::e2e
