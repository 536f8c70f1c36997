// A program that is linked with libcuda.so.1: each reference to a hooked function reaches the hook. CMake preloads the library.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

extern "C" {
struct LinkedFunction {
  const char* name;
  int (*function)();
};
extern const LinkedFunction linked_functions[];  // made by CMake from entry_points.txt; ends with a null name
}

namespace {

TEST(PlainLink, ReachesEveryHook) {
  size_t count = 0;
  for (const LinkedFunction* linked = linked_functions; linked->name != nullptr; ++linked, ++count) {
    Dl_info info;
    ASSERT_NE(dladdr(reinterpret_cast<void*>(linked->function), &info), 0) << linked->name;
    EXPECT_NE(std::strstr(info.dli_fname, "libnvshare.so"), nullptr) << linked->name << " is in " << info.dli_fname;
    EXPECT_STREQ(info.dli_sname, linked->name);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, linked->name), reinterpret_cast<void*>(linked->function)) << linked->name;
  }
  EXPECT_GT(count, 200u);
}

}  // namespace
