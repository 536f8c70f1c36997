#include "interposer/memory/driver_memory/arrays.h"

#include <gtest/gtest.h>

namespace nvshare::interposer {
namespace {

using cuda::CUDA_ARRAY3D_DESCRIPTOR;

constexpr size_t kKiB = 1024;

TEST(ArrayBytes, CountsElementsChannelsAndSlices) {
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, cuda::CU_AD_FORMAT_FLOAT, 4, 0}, 0), 16 * 1024 * kKiB);
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, cuda::CU_AD_FORMAT_HALF, 2, 0}, 0), 4 * 1024 * kKiB);
  EXPECT_EQ(array_bytes_computed({256, 256, 256, cuda::CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 0), 16 * 1024 * kKiB);
  EXPECT_EQ(array_bytes_computed({64 * 1024, 0, 0, cuda::CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 0), 64 * kKiB);
}

TEST(ArrayBytes, RoundsUpToTilesAndPages) {
  EXPECT_EQ(array_bytes_computed({1, 1, 0, cuda::CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 0), 64 * kKiB);
  EXPECT_EQ(array_bytes_computed({65, 4097, 0, cuda::CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 0), 576 * kKiB);  // 128 by 4104
}

TEST(ArrayBytes, LevelsShrinkAndLayersDoNot) {
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, cuda::CU_AD_FORMAT_FLOAT, 4, 0}, 2), 20 * 1024 * kKiB);
  EXPECT_EQ(array_bytes_computed({1024, 1024, 4, cuda::CU_AD_FORMAT_FLOAT, 1, cuda::CUDA_ARRAY3D_LAYERED}, 2), 20 * 1024 * kKiB);
  EXPECT_EQ(array_bytes_computed({1024, 1024, 4, cuda::CU_AD_FORMAT_FLOAT, 1, 0}, 2), 18 * 1024 * kKiB);
}

TEST(ArrayBytes, MemoryThatComesLaterIsNotCounted) {
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, cuda::CU_AD_FORMAT_FLOAT, 4, cuda::CUDA_ARRAY3D_SPARSE}, 0), 0u);
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, cuda::CU_AD_FORMAT_FLOAT, 4, cuda::CUDA_ARRAY3D_DEFERRED_MAPPING}, 3), 0u);
}

TEST(ArrayBytes, NonsenseComesOutHugeNotSmall) {
  EXPECT_GT(array_bytes_computed({SIZE_MAX / 2, SIZE_MAX / 2, 7, cuda::CU_AD_FORMAT_FLOAT, 4, 0}, 0), SIZE_MAX / 8);
}

TEST(ArrayBytes, UnknownFormatsCountAsTheLargest) {
  EXPECT_EQ(array_bytes_computed({1024, 1024, 0, static_cast<cuda::CUarray_format>(0xb0), 1, 0}, 0), 16 * 1024 * kKiB);
}

}  // namespace
}  // namespace nvshare::interposer
