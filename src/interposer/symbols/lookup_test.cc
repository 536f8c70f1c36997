// What a program under libnvshare.so sees when it looks functions up. CMake preloads the library and puts the fake driver on the search
// path. Each test runs in a process of its own, so that each finds the driver not loaded yet.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "interposer/symbols/testing/entry_point_list.h"

extern "C" {
int next_of_library_1();
int next_of_library_2();
int default_of_library_1();
int default_of_library_2();
void* early_lookup_of_library_1();
void* early_lookup_of_library_2();
}

namespace nvshare::testing {
namespace {

constexpr unsigned long long kDefault = 0, kLegacy = 1, kPerThread = 2;
constexpr int kNewest = 13000;

using GetProcAddress = int (*)(const char*, void**, int, unsigned long long);
using GetProcAddressV2 = int (*)(const char*, void**, int, unsigned long long, int*);

// "libnvshare.so:cuInit"; "" for null.
std::string whose(void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0) return "";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return std::string(slash != nullptr ? slash + 1 : info.dli_fname) + ":" + (info.dli_sname != nullptr ? info.dli_sname : "?");
}

std::string hook_named(const std::string& symbol) { return "libnvshare.so:" + symbol; }
std::string driver_function_named(const std::string& symbol) { return "libcuda.so.1:" + symbol; }

bool driver_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libcuda.so") != std::string::npos) return true;
  }
  return false;
}

const char* chosen_driver() { return std::getenv("NVSHARE_TEST_DRIVER"); }

void* open_driver(int flags = RTLD_LAZY | RTLD_LOCAL) {
  void* handle = dlopen(chosen_driver() != nullptr ? chosen_driver() : NVSHARE_FAKE_DRIVER, flags);
  if (handle == nullptr) ADD_FAILURE() << dlerror();
  return handle;
}

TEST(LookupPreload, IsInPlace) {
  EXPECT_EQ(whose(dlsym(RTLD_DEFAULT, "dlsym")), "libnvshare.so:dlsym") << "run by ctest, which preloads it";
}

TEST(LookupWithoutDriver, NamesOfTheDriverAreUnknown) {
  void* self = dlopen(nullptr, RTLD_LAZY);
  for (void* handle : {RTLD_DEFAULT, RTLD_NEXT, self}) {
    dlerror();
    EXPECT_EQ(dlsym(handle, "cuInit"), nullptr);
    EXPECT_NE(dlerror(), nullptr);
  }
  EXPECT_EQ(dlvsym(RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5"), nullptr);
  EXPECT_FALSE(driver_is_mapped()) << "a lookup loaded the driver";
}

TEST(LookupWithoutNvml, ItsNamesAreUnknown) {
  for (const char* name : {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID", "nvmlInit_v2"}) {
    dlerror();
    EXPECT_EQ(dlsym(RTLD_DEFAULT, name), nullptr) << name;
    EXPECT_NE(dlerror(), nullptr) << name;
    EXPECT_EQ(dlsym(RTLD_NEXT, name), nullptr) << name;
  }
}

TEST(LookupByHandle, GivesTheHookOfEveryHookedSymbolAndTheDriversOwnOfEveryOther) {
  void* driver = open_driver();
  const auto entries = entry_points();
  ASSERT_GT(entries.size(), 600u);
  for (const auto& entry : entries) {
    dlerror();
    void* found = dlsym(driver, entry.symbol.c_str());
    EXPECT_EQ(dlerror(), nullptr) << entry.symbol;
    EXPECT_EQ(whose(found), entry.hooked() ? hook_named(entry.symbol) : driver_function_named(entry.symbol));
  }
}

TEST(LookupByHandle, UnknownNamesStayUnknown) {
  void* driver = open_driver();
  for (const char* name : {"cuNoSuchFunction", "cu", "cuInit_v9", "noSuchFunction"}) {
    dlerror();
    EXPECT_EQ(dlsym(driver, name), nullptr) << name;
    EXPECT_NE(dlerror(), nullptr) << name;
  }
}

TEST(LookupByHandle, OfAnotherLibraryIsAskedAsEver) {
  void* math = dlopen("libm.so.6", RTLD_LAZY);
  ASSERT_NE(math, nullptr);
  EXPECT_EQ(whose(dlsym(math, "cos")).substr(0, 7), "libm.so");
  open_driver();
  EXPECT_EQ(dlsym(math, "cuInit"), nullptr) << "the driver is none of its dependencies";
}

TEST(LookupByHandle, VersionedLookup) {
  void* c = dlopen("libc.so.6", RTLD_LAZY);
  EXPECT_NE(dlvsym(c, "malloc", GLIBC_BASE_VERSION), nullptr);
  EXPECT_EQ(dlvsym(c, "malloc", "GLIBC_9.9"), nullptr);
  // The driver's symbols have no versions, and neither have the hooks.
  EXPECT_EQ(dlvsym(open_driver(), "cuMemAlloc_v2", "anything"), nullptr);
}

TEST(LookupInScopes, GiveHooksOnceTheDriverIsThere) {
  void* self = dlopen(nullptr, RTLD_LAZY);
  open_driver(RTLD_LAZY | RTLD_GLOBAL);
  for (void* handle : {RTLD_DEFAULT, RTLD_NEXT, self}) {
    EXPECT_EQ(whose(dlsym(handle, "cuMemAlloc_v2")), hook_named("cuMemAlloc_v2"));
    EXPECT_EQ(whose(dlsym(handle, "cuLaunchKernel_ptsz")), hook_named("cuLaunchKernel_ptsz"));
    EXPECT_EQ(whose(dlsym(handle, "cuDeviceGetCount")), driver_function_named("cuDeviceGetCount"));
  }
}

TEST(LookupInScopes, NextKeepsItsMeaningForTheProgramAndForLibraries) {
  // Order of search: the program, [preloaded libraries], library 1, library 2.
  const auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "number_of_library"));
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(next_of_library_1(), 2);
  EXPECT_EQ(next_of_library_2(), 0);
  EXPECT_EQ(default_of_library_1(), 1);
  EXPECT_EQ(default_of_library_2(), 1);
  const auto versioned = reinterpret_cast<int (*)()>(dlvsym(RTLD_NEXT, "getpid", GLIBC_BASE_VERSION));
  ASSERT_NE(versioned, nullptr);
  EXPECT_EQ(versioned(), getpid());
}

TEST(LookupInScopes, WorkInConstructorsOfOtherLibraries) {
  EXPECT_NE(early_lookup_of_library_1(), nullptr);
  EXPECT_NE(early_lookup_of_library_2(), nullptr);
}

// Every version of every hooked function, asked for as a program built against that CUDA version asks.
void expect_hooks_from_get_proc_address() {
  void* driver = open_driver();
  const auto v1 = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  const auto v2 = reinterpret_cast<GetProcAddressV2>(dlsym(driver, "cuGetProcAddress_v2"));
  ASSERT_EQ(whose(reinterpret_cast<void*>(v1)), hook_named("cuGetProcAddress"));
  ASSERT_EQ(whose(reinterpret_cast<void*>(v2)), hook_named("cuGetProcAddress_v2"));
  size_t checked = 0;
  for (const auto& entry : entry_points()) {
    if (!entry.hooked()) continue;
    const int version = entry.since;
    const auto flags_to_try = entry.per_thread() ? std::vector{kPerThread} : std::vector{kDefault, kLegacy};
    for (const unsigned long long flags : flags_to_try) {
      void* found = nullptr;
      EXPECT_EQ(v1(entry.request_name().c_str(), &found, version, flags), 0) << entry.symbol;
      EXPECT_EQ(whose(found), hook_named(entry.symbol)) << "cuGetProcAddress, version " << version;
      found = nullptr;
      int status = -1;
      EXPECT_EQ(v2(entry.request_name().c_str(), &found, version, flags, &status), 0) << entry.symbol;
      EXPECT_EQ(whose(found), hook_named(entry.symbol)) << "cuGetProcAddress_v2, version " << version;
      ++checked;
    }
  }
  EXPECT_GT(checked, 300u);
}

TEST(GetProcAddress, GivesTheHookOfEveryVersion) {
  expect_hooks_from_get_proc_address();
  void* driver = open_driver();
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  void* found = nullptr;
  EXPECT_EQ(get("cuDeviceGetCount", &found, kNewest, 0), 0);
  EXPECT_EQ(whose(found), driver_function_named("cuDeviceGetCount"));
  void* const before = found;
  EXPECT_EQ(get("cuNoSuchFunction", &found, kNewest, 0), 500);
  EXPECT_EQ(found, before) << "the driver leaves it alone";
}

TEST(GetProcAddress, ChoosesByVersionWhenTheAddressIsUnknown) {
  if (chosen_driver() != nullptr) GTEST_SKIP() << "only the fake driver does that";
  setenv("FAKE_DRIVER_UNEXPORTED_ADDRESSES", "1", 1);
  expect_hooks_from_get_proc_address();
  void* driver = open_driver();
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  void* found = nullptr;
  EXPECT_EQ(get("cuDeviceGetCount", &found, kNewest, 0), 0);
  EXPECT_NE(whose(found).substr(0, 13), "libnvshare.so") << "not a hooked function";
}

// ---- drivers newer than the list ----

constexpr int kFuture = 99000;

int result_of(void* function) { return reinterpret_cast<int (*)()>(function)(); }

bool is_stub(void* address) { return whose(address).substr(0, 14) == "libnvshare.so:"; }

TEST(LookupOfTheUnknown, WhatMayTouchMemoryIsAStubThatGoesOnToTheDriver) {
  if (chosen_driver() != nullptr) GTEST_SKIP() << "only the fake driver has such functions";
  void* driver = open_driver(RTLD_LAZY | RTLD_GLOBAL);
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  void* by_address = nullptr;
  ASSERT_EQ(get("cuMemNobodyKnows", &by_address, kFuture, 0), 0);
  for (void* found :
       {dlsym(driver, "cuMemNobodyKnows"), dlsym(RTLD_DEFAULT, "cuMemNobodyKnows"), dlsym(RTLD_NEXT, "cuMemNobodyKnows"), by_address}) {
    ASSERT_NE(found, nullptr);
    EXPECT_TRUE(is_stub(found)) << whose(found);
    EXPECT_EQ(found, by_address) << "each function has one stub";
    EXPECT_EQ(result_of(found), 1001);
    EXPECT_EQ(result_of(found), 1001);
  }
}

TEST(LookupOfTheUnknown, AQuestionIsTheDriversOwn) {
  if (chosen_driver() != nullptr) GTEST_SKIP() << "only the fake driver has such functions";
  void* driver = open_driver();
  EXPECT_EQ(whose(dlsym(driver, "cuDeviceGetNobodyKnows")), driver_function_named("cuDeviceGetNobodyKnows"));
}

TEST(LookupOfTheUnknown, ANewVersionIsNeverTheHookOfAnOldOne) {
  if (chosen_driver() != nullptr) GTEST_SKIP() << "only the fake driver has such functions";
  void* driver = open_driver();
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  void* found = nullptr;
  ASSERT_EQ(get("cuMemcpyAsync", &found, kFuture, 0), 0);
  EXPECT_TRUE(is_stub(found)) << whose(found);
  EXPECT_EQ(result_of(found), 1002);
  ASSERT_EQ(get("cuMemcpyAsync", &found, kNewest, 0), 0);
  EXPECT_EQ(whose(found), hook_named("cuMemcpyAsync"));
}

TEST(LookupOfTheUnknown, AnAddressThatIsNoExportIsNoOldVersionEither) {
  if (chosen_driver() != nullptr) GTEST_SKIP() << "only the fake driver does that";
  setenv("FAKE_DRIVER_UNEXPORTED_ADDRESSES", "1", 1);
  void* driver = open_driver();
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  void* found = nullptr;
  ASSERT_EQ(get("cuMemcpyAsync", &found, kFuture, 0), 0);
  EXPECT_TRUE(is_stub(found)) << whose(found);
  EXPECT_EQ(result_of(found), 0);
}

// What opens a session of another of the driver's libraries: a stub that goes on to it.
TEST(LookupOfSessions, IsAStubThatGoesOnToTheLibrary) {
  void* library = dlopen(NVSHARE_DEEP_LIBRARY, RTLD_LAZY);
  ASSERT_NE(library, nullptr) << dlerror();
  void* found = dlsym(library, "cuvidCreateDecoder");
  EXPECT_TRUE(is_stub(found)) << whose(found);
  void* decoder = nullptr;
  int parameters = 0;
  EXPECT_EQ(reinterpret_cast<int (*)(void**, void*)>(found)(&decoder, &parameters), 1234);
  EXPECT_EQ(decoder, &parameters);
  dlerror();
  EXPECT_EQ(dlsym(library, "NvEncodeAPICreateInstance"), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

// ---- ways around the hooks ----

TEST(LookupOfLookups, GivesOurs) {
  void* c = dlopen("libc.so.6", RTLD_LAZY);
  ASSERT_NE(c, nullptr);
  for (const char* name : {"dlsym", "dlvsym", "dlopen", "dlmopen"}) {
    const std::string ours = std::string("libnvshare.so:") + name;
    EXPECT_EQ(whose(dlsym(RTLD_DEFAULT, name)), ours);
    EXPECT_EQ(whose(dlsym(RTLD_NEXT, name)), ours) << "ours is the next for the program";
    EXPECT_EQ(whose(dlsym(c, name)), ours);
  }
  for (const char* name : {"dlsym", "dlvsym", "dlopen"}) {
    const std::string ours = std::string("libnvshare.so:") + name;
    EXPECT_EQ(whose(dlvsym(RTLD_DEFAULT, name, GLIBC_BASE_VERSION)), ours);
    EXPECT_EQ(whose(dlvsym(RTLD_NEXT, name, GLIBC_BASE_VERSION)), ours);
    EXPECT_EQ(whose(dlvsym(c, name, GLIBC_BASE_VERSION)), ours);
  }
  EXPECT_EQ(dlvsym(c, "dlsym", "GLIBC_9.9"), nullptr);
  EXPECT_EQ(dlsym(open_driver(), "dlsymNot"), nullptr);
}

// What libnvshare.so cannot come before: its own libraries come first in its search, or it has a libc of its own.
void expect_hooks_inside(void* handle) {
  ASSERT_NE(handle, nullptr) << dlerror();
  const auto lookup = reinterpret_cast<void* (*)(void*, const char*)>(dlsym(handle, "deep_lookup"));
  const auto lookup_from = reinterpret_cast<void* (*)(const char*, const char*)>(dlsym(handle, "deep_lookup_from"));
  const auto reference = reinterpret_cast<void* (*)()>(dlsym(handle, "deep_reference"));
  ASSERT_NE(lookup, nullptr);
  EXPECT_EQ(whose(reference()), hook_named("cuMemAlloc_v2"));
  EXPECT_EQ(whose(lookup_from("libcuda.so.1", "cuMemAlloc_v2")), hook_named("cuMemAlloc_v2"));
  EXPECT_EQ(whose(lookup(open_driver(), "cuLaunchKernel")), hook_named("cuLaunchKernel"));
  EXPECT_EQ(whose(dlsym(handle, "cuMemAlloc_v2")), hook_named("cuMemAlloc_v2")) << "its copy of the driver stands for the driver";
}

#ifdef NVSHARE_SANITIZED
constexpr bool kSanitized = true;  // a sanitizer's runtime ends a program that opens a library like this
#else
constexpr bool kSanitized = false;
#endif

TEST(LookupFromWithin, ALibraryThatIsBoundDeeplyReachesTheHooks) {
  if (kSanitized) GTEST_SKIP();
  void* handle = dlopen(NVSHARE_DEEP_LIBRARY, RTLD_LAZY | RTLD_DEEPBIND);
  expect_hooks_inside(handle);
  const auto number = reinterpret_cast<int (*)()>(dlsym(handle, "deep_number"));
  EXPECT_EQ(number(), 77) << "its own functions still come first";
}

TEST(LookupFromWithin, SoDoesOneThatIsBoundDeeplyAtOnce) {
  if (kSanitized) GTEST_SKIP();
  expect_hooks_inside(dlopen(NVSHARE_DEEP_LIBRARY, RTLD_NOW | RTLD_DEEPBIND));
}

TEST(LookupFromWithin, ALibraryInANamespaceOfItsOwnReachesTheHooks) {
  if (kSanitized) GTEST_SKIP();
  expect_hooks_inside(dlmopen(LM_ID_NEWLM, NVSHARE_DEEP_LIBRARY, RTLD_NOW));
}

TEST(LookupFromWithin, TheDriverItselfInANamespaceOfItsOwnIsTheOneDriver) {
  if (kSanitized) GTEST_SKIP();
  void* apart = dlmopen(LM_ID_NEWLM, NVSHARE_FAKE_DRIVER, RTLD_NOW);
  ASSERT_NE(apart, nullptr) << dlerror();
  EXPECT_EQ(whose(dlsym(apart, "cuMemAlloc_v2")), hook_named("cuMemAlloc_v2"));
  EXPECT_EQ(dlsym(apart, "cuDeviceGetCount"), dlsym(open_driver(), "cuDeviceGetCount"));
}

TEST(LookupFromWithin, OpeningWhatIsNotThereFailsAsEver) {
  if (kSanitized) GTEST_SKIP();
  EXPECT_EQ(dlopen("libnotthere.so.9", RTLD_LAZY | RTLD_DEEPBIND), nullptr);
  EXPECT_NE(dlerror(), nullptr);
  EXPECT_EQ(dlmopen(LM_ID_NEWLM, "libnotthere.so.9", RTLD_LAZY), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

TEST(LookupByThreads, MayAllLookUpFirst) {
  constexpr int kThreads = 8;
  void* driver = open_driver();
  std::barrier start(kThreads);
  std::vector<std::string> answers(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      void* found = dlsym(driver, "cuMemAlloc_v2");
      answers[static_cast<size_t>(i)] = whose(found);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, hook_named("cuMemAlloc_v2"));
}

}  // namespace
}  // namespace nvshare::testing
