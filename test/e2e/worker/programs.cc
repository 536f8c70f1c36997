// The modes that do one particular thing. Each checks itself.
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {

// ---- Many threads that submit as fast as they can ----

void run_race(const Options& options) {
  CUcontext context = retain_primary();
  Desk desk;
  auto ballast = filled(desk.place, options.number("hold", 64u << 20), 1);
  say("racing");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < options.number("threads", 4); ++t) {
    threads.emplace_back([&, t] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      Desk own;
      constexpr size_t kBytes[] = {256, 4096, 65536};
      std::vector<std::unique_ptr<Block>> blocks;
      for (size_t bytes : kBytes) blocks.push_back(filled(own.place, bytes, t));
      for (uint64_t round = 0; !options.told_to_stop(); ++round) {
        for (int i = 0; i < 50; ++i) blocks[static_cast<size_t>(i) % 3]->mix(round * 50 + static_cast<uint64_t>(i));
        blocks[round % 3]->verify_checksum(own.scratch);
      }
      for (auto& block : blocks) block->verify_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ballast->verify_checksum(desk.scratch);
  release_primary();
}

// ---- Graphs ----

void run_graph(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  size_t bytes = options.number("hold", 64u << 20) / 3;
  auto a = filled(desk.place, bytes, 1);
  auto b = filled(desk.place, bytes, 2);
  auto c = filled(desk.place, bytes, 3);
  check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  check(launch(desk.place.kernels.mix, stream, a->address(), uint64_t{bytes / 8}, uint64_t{7}), "sim_mix");
  check(launch(desk.place.kernels.add, stream, b->address(), a->address(), uint64_t{bytes / 8}), "sim_add");
  check(cuda().cuMemcpyDtoDAsync_v2(c->address(), b->address(), bytes / 8 * 8, stream), "cuMemcpyDtoDAsync");
  CUgraph graph = nullptr;
  check(cuda().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec executable = nullptr;
  check(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
  say("replaying");
  uint64_t replays = 0;
  while (!options.told_to_stop()) {
    check(cuda().cuGraphLaunch(executable, stream), "cuGraphLaunch");
    a->model_mix(7);
    b->model_add(*a);
    if (++replays % 16 != 0) continue;
    a->verify_checksum(desk.scratch);
    b->verify_checksum(desk.scratch);
    c->copy_from(*b);
    c->verify_checksum(desk.scratch);
  }
  a->verify_bytes();
  b->verify_bytes();
  std::printf("%" PRIu64 " replays\n", replays);
  check(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  release_primary();
}

// Captures again and again, in the strictest mode, while another thread submits.
void run_recapture(const Options& options) {
  CUcontext context = retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  auto captured = filled(desk.place, options.number("hold", 64u << 20), 1);
  std::atomic<bool> begun{false}, ended{false};
  std::atomic<uint64_t> captures{0};
  Workplace other{};
  std::thread submitter([&] {
    check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    other.kernels = load_kernels();
    check(cuda().cuStreamCreate(&other.stream, kNonBlocking), "cuStreamCreate");
    auto block = filled(other, 65536, 2);
    begun = true;
    for (uint64_t round = 0; !ended; ++round) {
      block->mix_slowly(round, 200'000);
      usleep(100);
    }
    block->verify_bytes();
  });
  while (!begun) usleep(1000);  // in that mode no thread may allocate while another captures
  say("capturing");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (uint64_t i = 0; i < 20; ++i) {
      check(launch(desk.place.kernels.mix, stream, captured->address(), uint64_t{1024}, i), "sim_mix");
      usleep(50);
    }
    check(cuda().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    check(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
    check(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
    captured->mix_slowly(round, 1'000'000);
    ++captures;
  }
  ended = true;
  submitter.join();
  captured->verify_bytes();
  std::printf("%" PRIu64 " captures\n", captures.load());
  release_primary();
}

// Allocates in the middle of a capture, as frameworks' allocators do: in relaxed mode, plain.
void run_capture_allocation(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  size_t bytes = options.number("hold", 64u << 20) / 2;
  auto first = filled(desk.place, bytes, 1);
  say("capturing");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
    check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    check(cuda().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    CUdeviceptr large = 0;
    CUdeviceptr small = 0;
    check(cuda().cuMemAlloc_v2(&large, bytes), "cuMemAlloc in a capture");
    check(cuda().cuMemAlloc_v2(&small, 100), "cuMemAlloc in a capture");
    check(cuda().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    check(launch(desk.place.kernels.fill, stream, large, uint64_t{bytes / 8}, round), "sim_fill");
    check(launch(desk.place.kernels.add, stream, first->address(), large, uint64_t{bytes / 8}), "sim_add");
    check(launch(desk.place.kernels.checksum, stream, first->address(), uint64_t{bytes / 8}, small), "sim_checksum");
    usleep(2000);  // drops are asked for meanwhile
    CUgraph graph = nullptr;
    check(cuda().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    CUgraphExec executable = nullptr;
    check(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
    Block model(desk.place, bytes, Allocation::kAsync);
    model.fill(round);
    for (int i = 0; i < 3; ++i) {
      check(cuda().cuGraphLaunch(executable, stream), "cuGraphLaunch");
      first->model_add(model);
    }
    first->verify_checksum(desk.scratch);
    uint64_t sum = 0;
    check(cuda().cuMemcpyDtoH_v2(&sum, small, sizeof sum), "cuMemcpyDtoH");
    if (sum != first->checksum()) fail(kExitWrongBytes, "a captured checksum is wrong");
    model.free();
    check(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
    check(cuda().cuMemFree_v2(large), "cuMemFree");
    check(cuda().cuMemFree_v2(small), "cuMemFree");
  }
  release_primary();
}

// ---- Contexts ----

// Three contexts; one is destroyed while everything is swapped out.
void run_contexts(const Options& options) {
  CUcontext contexts[3] = {retain_primary(), nullptr, nullptr};
  for (int i = 1; i < 3; ++i) {
    check(cuda().cuCtxCreate_v2(&contexts[i], 0, 0), "cuCtxCreate");
    check(cuda().cuCtxPopCurrent_v2(&contexts[i]), "cuCtxPopCurrent");
  }
  std::unique_ptr<Desk> desks[3];
  std::unique_ptr<Block> blocks[3];
  for (size_t i = 0; i < 3; ++i) {
    check(cuda().cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
    desks[i] = std::make_unique<Desk>();
    blocks[i] = filled(desks[i]->place, options.number("hold", 60u << 20) / 3, i);
  }
  auto work = [&](std::initializer_list<size_t> which) {
    for (uint64_t round = 0; round < options.number("steps", 20); ++round) {
      for (size_t i : which) {
        check(cuda().cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
        blocks[i]->mix_slowly(round, 2'000'000);
        blocks[i]->verify_checksum(desks[i]->scratch);
      }
    }
  };
  work({0, 1, 2});
  stand_still(options);
  check(cuda().cuCtxDestroy_v2(contexts[1]), "cuCtxDestroy");
  say("destroyed");
  work({2, 0});
  check(cuda().cuCtxDestroy_v2(contexts[2]), "cuCtxDestroy");
  work({0});
  release_primary();
}

// The primary context is reset while its memory is swapped out, and used again.
void run_reset(const Options& options) {
  size_t bytes = options.number("hold", 60u << 20);
  for (int life = 0; life < 3; ++life) {
    retain_primary();
    Desk desk;
    auto block = filled(desk.place, bytes, 1);
    for (uint64_t round = 0; round < 10; ++round) block->mix(round);
    block->verify_checksum(desk.scratch);
    if (life == 0) stand_still(options);
    check(cuda().cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
    say("reset");
  }
}

// ---- Memory ----

// Grows piece by piece, running and waiting, checks all of it and starts anew.
void run_grow(const Options& options) {
  retain_primary();
  Desk desk;
  size_t hold = options.number("hold", 64u << 20);
  size_t piece = options.number("piece", 4u << 20);
  say("growing");
  for (uint64_t cycle = 0; !options.told_to_stop(); ++cycle) {
    std::vector<std::unique_ptr<Block>> blocks;
    for (size_t held = 0; held + piece <= hold; held += piece) {
      blocks.push_back(filled(desk.place, piece, cycle * 1000 + held));
      blocks[held / piece / 2]->mix_slowly(cycle, 1'000'000);
    }
    for (auto& block : blocks) block->verify_checksum(desk.scratch);
    for (auto& block : blocks) block->free();
  }
  release_primary();
}

// Threads that allocate, use at once and free, so that allocations meet every moment of a turn's beginning and end.
void run_churn(const Options& options) {
  CUcontext context = retain_primary();
  Desk desk;
  std::unique_ptr<Block> ballast;  // with --hold 0 none: then nothing is submitted before the threads are there
  if (size_t hold = options.number("hold", 64u << 20)) ballast = filled(desk.place, hold, 1);
  const uint64_t rounds = options.number("rounds", UINT64_MAX);
  say("churning");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < options.number("threads", 4); ++t) {
    threads.emplace_back([&, t] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      Desk own;
      std::mt19937_64 random(t);
      for (uint64_t round = 0; round < rounds && !options.told_to_stop(); ++round) {
        // Most come and go unused: those need no turn, so that there are allocations at any moment of one.
        CUdeviceptr unused[8];
        for (CUdeviceptr& address : unused) check(cuda().cuMemAlloc_v2(&address, (1u << 20) + 1), "cuMemAlloc");
        Block block(own.place, 1 + random() % (4u << 20), round % 3 == 0 ? Allocation::kAsync : Allocation::kPlain);
        block.fill(round);
        if (round % 4 == 0) block.verify_checksum(own.scratch);
        for (CUdeviceptr address : unused) {
          check(cuda().cuMemsetD8Async(address, 1, 1u << 20, own.place.stream), "cuMemsetD8Async");
          check(cuda().cuMemFree_v2(address), "cuMemFree");
        }
        block.free();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (ballast) ballast->verify_checksum(desk.scratch);
  release_primary();
}

// One allocation at a time, freed and replaced by one of another size: more than half of what there is, so that old and new never fit
// together.
void run_replace(const Options& options) {
  retain_primary();
  Desk desk;
  std::mt19937_64 random(options.number("seed", 1));
  const size_t hold = options.number("hold", 110u << 20);
  say("replacing");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    auto block = filled(desk.place, hold + random() % 8 * (2u << 20), round);
    block->mix_slowly(round, 5'000'000);
    block->verify_checksum(desk.scratch);
    block->free();
  }
  release_primary();
}

// Three blocks. Told to go on, a thread uses two of them, while this one, once --free is there, frees the other: the first, or the one of
// that number (--which).
void run_free_while_loading(const Options& options) {
  CUcontext context = retain_primary();
  Desk desk;
  std::vector<std::unique_ptr<Block>> blocks;
  for (uint64_t i = 0; i < 3; ++i) blocks.push_back(filled(desk.place, options.number("hold", 144u << 20) / 3, i));
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a->address() < b->address(); });
  for (const auto& block : blocks) block->verify_checksum(desk.scratch);
  const size_t which = options.number("which", 0);
  stand_still(options);
  std::thread uses([&] {
    check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i != which) blocks[i]->verify_checksum(desk.scratch);
    }
  });
  while (access(options.text("free", "").c_str(), F_OK) != 0) usleep(1000);
  blocks[which]->free();
  say("freed");
  uses.join();
  release_primary();
}

// Frees --hold bytes and goes on living, without another CUDA call.
// What --ordered says is allocated and freed in stream order, and what --keep says stays.
void run_free_and_stay(const Options& options) {
  retain_primary();
  Desk desk;
  const size_t ordered_bytes = options.number("ordered", 0);
  const size_t kept_bytes = options.number("keep", 0);
  auto kept = kept_bytes != 0 ? filled(desk.place, kept_bytes, 2) : nullptr;
  auto block = filled(desk.place, options.number("hold", 30u << 20), 1);
  block->verify_checksum(desk.scratch);
  block->free();
  if (ordered_bytes != 0) {
    Block ordered(desk.place, ordered_bytes, Allocation::kAsync);
    ordered.fill(3);
    ordered.free();
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  }
  say("freed");
  while (!options.told_to_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (kept) kept->verify_checksum(desk.scratch);
  release_primary();
}

// May hold --limit bytes and not more, and sees no more.
void run_limit(const Options& options) {
  size_t limit = options.number("limit", 0);
  size_t before = 0;
  check(cuda().cuInit(0), "cuInit");
  check(cuda().cuDeviceTotalMem_v2(&before, 0), "cuDeviceTotalMem");
  if (before != limit) fail(kExitUnexpected, "before there is a context, cuDeviceTotalMem says %zu", before);
  retain_primary();
  Desk desk;
  size_t piece = options.number("piece", 1u << 20);
  size_t free_bytes = 0;
  size_t total = 0;
  check(cuda().cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
  if (total != limit || free_bytes > limit) fail(kExitUnexpected, "cuMemGetInfo says %zu free of %zu", free_bytes, total);
  check(cuda().cuDeviceTotalMem_v2(&total, 0), "cuDeviceTotalMem");
  if (total != limit) fail(kExitUnexpected, "cuDeviceTotalMem says %zu", total);
  std::vector<CUdeviceptr> held;
  CUdeviceptr address = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuda().cuMemAlloc_v2(&address, piece)) == CUDA_SUCCESS && held.size() * piece <= 2 * limit) held.push_back(address);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "past the limit: CUDA error %d", static_cast<int>(result));
  size_t most = (limit - 8) / piece;
  if (held.size() > most || held.size() + 1 < most) fail(kExitUnexpected, "%zu pieces of %zu within %zu", held.size(), piece, limit);
  check(cuda().cuMemFree_v2(held.back()), "cuMemFree");
  check(cuda().cuMemAlloc_v2(&address, piece), "cuMemAlloc after a free");
  CUdeviceptr pitched = 0;
  size_t pitch = 0;
  if (cuda().cuMemAllocPitch_v2(&pitched, &pitch, 1024, piece / 512, 4) != CUDA_ERROR_OUT_OF_MEMORY) {
    fail(kExitUnexpected, "a pitched allocation passes the limit");
  }
  if (cuda().cuMemAllocAsync(&address, 2 * piece, desk.place.stream) != CUDA_ERROR_OUT_OF_MEMORY) {
    fail(kExitUnexpected, "a stream-ordered allocation passes the limit");
  }
  release_primary();
}

void run_hold(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  block->mix(1);
  block->verify_checksum(desk.scratch);
  stand_still(options);
  std::unique_ptr<Block> later;
  if (const size_t more = options.number("more", 0); more != 0) later = filled(desk.place, more, 2);
  for (uint64_t round = 0; round < options.number("steps", 1); ++round) block->mix_slowly(round, 2'000'000);
  block->verify_bytes();
  if (later) later->verify_bytes();
  release_primary();
}

// Reads its weights and never changes them, beside memory that it changes all the time, until it is told to stop.
void run_serve(const Options& options) {
  retain_primary();
  Desk desk;
  std::vector<std::unique_ptr<Block>> weights;
  for (uint64_t left = options.number("weights", 0), number = 1; left > 0; ++number) {
    const uint64_t bytes = std::min<uint64_t>(left, 26u << 20);
    weights.push_back(filled(desk.place, bytes, number));
    left -= bytes;
  }
  auto changing = filled(desk.place, options.number("changes", 2u << 20), 1000);
  say("serving");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    for (const auto& block : weights) block->verify_checksum(desk.scratch);
    changing->mix(round);
    changing->verify_checksum(desk.scratch);
  }
  for (const auto& block : weights) block->verify_bytes();
  changing->verify_bytes();
  release_primary();
}

// ---- Processes ----

namespace {

void run_and_wait(pid_t child, const char* what) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(kExitUnexpected, "%s ended with status %x", what, static_cast<unsigned>(status));
  }
}

}  // namespace

// Forks children that never touch CUDA, and children that become CUDA programs; what the parent holds stays right.
void run_fork(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  say("forking");
  for (uint64_t round = 0; round < options.number("steps", 5) && !options.told_to_stop(); ++round) {
    block->mix_slowly(round, 2'000'000);
    pid_t idle = fork();
    if (idle == 0) {
      usleep(20'000);
      _exit(0);
    }
    pid_t other = fork();
    if (other == 0) {
      execl("/proc/self/exe", "e2e_worker", "mix", "--steps", "30", "--hold", "8M", "--largest", "4M", "--stop", "/none",
            static_cast<char*>(nullptr));
      _exit(126);
    }
    for (uint64_t i = 0; i < 10; ++i) block->mix_slowly(round * 10 + i, 2'000'000);
    block->verify_checksum(desk.scratch);
    run_and_wait(idle, "a child without CUDA");
    run_and_wait(other, "a child that became a CUDA program");
  }
  block->verify_bytes();
  release_primary();
}

// Makes another context while the driver refuses it, and says how long that took.
void run_another_context(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 16u << 20), 1);
  stand_still(options);
  const auto began = std::chrono::steady_clock::now();
  CUcontext other = nullptr;
  const CUresult result = cuda().cuCtxCreate_v2(&other, 0, 0);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began).count();
  say(("another context: " + std::to_string(static_cast<int>(result)) + ", attempts lasted " + (ms < 3000 ? "a moment" : "long")).c_str());
  if (result == CUDA_SUCCESS) fail(kExitUnexpected, "the driver was to refuse it");
  block->verify_checksum(desk.scratch);
  block->free();
  release_primary();
}

// Ends without giving anything back, in the way that --how names, while swapped out.
void run_leave(const Options& options) {
  CUcontext context = nullptr;
  std::string how = options.text("how", "return");
  if (how == "destroy") {
    check(cuda().cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
  } else {
    retain_primary();
  }
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  block->verify_checksum(desk.scratch);
  stand_still(options);
  if (how == "free") {
    block->free();
    release_primary();
  } else if (how == "destroy") {
    check(cuda().cuCtxDestroy_v2(context), "cuCtxDestroy");
  } else if (how == "release") {
    release_primary();
  } else if (how == "exit") {
    say("all right");
    std::exit(0);
  } else if (how == "_exit") {
    say("all right");
    _exit(0);
  } else if (how == "thread-exit") {
    std::thread([] {
      say("all right");
      std::exit(0);
    }).detach();
    // Meanwhile this one asks for a turn, and may or may not get it.
    static_cast<void>(launch(desk.place.kernels.noop, desk.place.stream));
    pause();
  } else if (how == "abort") {
    say("all right");
    std::abort();
  } else if (how == "exec") {
    execl("/proc/self/exe", "e2e_worker", "mix", "--steps", "30", "--hold", "100M", "--largest", "60M", "--stop", "/none",
          static_cast<char*>(nullptr));
    fail(kExitUnexpected, "execl failed");
  } else if (how != "return") {
    fail(kExitUsage, "--how is '%s'; it may be return, exit, thread-exit, _exit, abort, exec, free, destroy or release", how.c_str());
  }
}

// Small allocations of all sizes, freed again; then as much as the GPU has; then small ones where nothing but parts of pages is free.
void run_sizes(const Options& options) {
  constexpr size_t kMiB = 1 << 20;
  retain_primary();
  Workplace place{};
  place.kernels = load_kernels();
  check(cuda().cuStreamCreate(&place.stream, 1), "cuStreamCreate");
  CUdeviceptr scratch = 0;
  check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
  auto use = [&](std::vector<Block>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].fill(i);
    for (Block& block : blocks) block.verify_checksum(scratch);
  };
  auto end = [&](std::vector<Block>& blocks) {
    for (Block& block : blocks) block.free();
    blocks.clear();
  };
  std::vector<Block> blocks;
  for (size_t bytes = 256; bytes <= kMiB; bytes *= 2) {
    blocks.emplace_back(place, bytes, Allocation::kPlain);
    blocks.emplace_back(place, bytes / 4 * 3, Allocation::kPlain);
  }
  use(blocks);
  end(blocks);
  blocks.emplace_back(place, options.number("hold", 0), Allocation::kPlain);
  use(blocks);
  end(blocks);

  blocks.emplace_back(place, kMiB, Allocation::kPlain);
  blocks.emplace_back(place, kMiB / 2, Allocation::kPlain);
  std::vector<CUdeviceptr> rest;
  CUdeviceptr piece = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuda().cuMemAlloc_v2(&piece, 2 * kMiB)) == CUDA_SUCCESS) rest.push_back(piece);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(kExitUnexpected, "past the GPU's memory: CUDA error %d", static_cast<int>(result));
  for (size_t bytes : {300, 5'000, 70'000, 400'000}) blocks.emplace_back(place, bytes, Allocation::kPlain);
  use(blocks);
  end(blocks);
  for (CUdeviceptr address : rest) check(cuda().cuMemFree_v2(address), "cuMemFree");
  check(cuda().cuMemFree_v2(scratch), "cuMemFree");
  check(cuda().cuStreamDestroy_v2(place.stream), "cuStreamDestroy");
  check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
}

}  // namespace nvshare::e2e
