// Our declarations against the real cuda.h: every signature, every constant, every struct that we look into. CMake lists the names from our
// own headers (NVSHARE_API_NAMES, NVSHARE_CONSTANTS); built only where a cuda.h of the same major version is installed.
#include "cuda/driver_api.h"

#include "cuda_api_names.inc"

// Taken before cuda.h defines some of the same names as macros.
namespace ours {
#define REMEMBER(name) constexpr long long value_of_##name = static_cast<long long>(nvshare::cuda::name);
NVSHARE_CONSTANTS(REMEMBER)
#undef REMEMBER
}  // namespace ours

// The old versions of functions, too, and none of the macros that rename them.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace nvshare::cuda {
namespace {

template <typename T>
inline constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

template <typename T, typename = void>
inline constexpr size_t size_if_known = 0;
template <typename T>
inline constexpr size_t size_if_known<T, std::void_t<decltype(sizeof(T))>> = sizeof(T);

// Same in the ABI and in meaning as far as types show it.
template <typename Ours, typename Real>
struct Same {
  static constexpr bool value() {
    if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Real>) {
      if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Real>) {
        using OurTarget = std::remove_pointer_t<Ours>;
        using RealTarget = std::remove_pointer_t<Real>;
        return std::is_const_v<OurTarget> == std::is_const_v<RealTarget> &&
               Same<std::remove_const_t<OurTarget>, std::remove_const_t<RealTarget>>::value();
      } else {
        return false;
      }
    } else if constexpr (std::is_function_v<Ours>) {
      return Same::signatures(static_cast<Ours*>(nullptr), static_cast<Real*>(nullptr));
    } else if constexpr (std::is_class_v<Ours> || std::is_union_v<Ours>) {
      if constexpr (std::is_class_v<Real> || std::is_union_v<Real>) {
        return size_if_known<Ours> == 0 || size_if_known<Ours> == size_if_known<Real>;
      } else {
        return false;
      }
    } else if constexpr (is_number<Ours> && is_number<Real>) {
      // Signedness of enumerations is the compiler's choice in the real header.
      return sizeof(Ours) == sizeof(Real) && std::is_enum_v<Ours> == std::is_enum_v<Real> &&
             (std::is_enum_v<Ours> || std::is_signed_v<Ours> == std::is_signed_v<Real>);
    } else {
      return std::is_same_v<Ours, Real>;
    }
  }

  template <typename OurResult, typename... OurParameters, typename RealResult, typename... RealParameters>
  static constexpr bool signatures(OurResult (*)(OurParameters...), RealResult (*)(RealParameters...)) {
    if constexpr (sizeof...(OurParameters) == sizeof...(RealParameters)) {
      return Same<OurResult, RealResult>::value() && (Same<OurParameters, RealParameters>::value() && ...);
    } else {
      return false;
    }
  }
};

template <typename T>
inline constexpr size_t size_of = sizeof(T);

#define SAME_SIZE(type) EXPECT_EQ(sizeof(type), sizeof(::type)) << #type
#define SAME_FIELD(type, field)                                                  \
  EXPECT_EQ(offsetof(type, field), offsetof(::type, field)) << #type "." #field; \
  EXPECT_EQ(size_of<decltype(type::field)>, size_of<decltype(::type::field)>) << #type "." #field
TEST(DriverTypes, HaveTheLayoutOfTheInstalledHeader) {
  SAME_SIZE(CUuuid);
  SAME_SIZE(CUipcMemHandle);
  SAME_SIZE(CUmemPoolPtrExportData);
  SAME_SIZE(CUmemLocation);
  SAME_FIELD(CUmemLocation, type);
  SAME_FIELD(CUmemLocation, id);
  SAME_SIZE(CUmemAllocationProp);
  SAME_FIELD(CUmemAllocationProp, type);
  SAME_FIELD(CUmemAllocationProp, requestedHandleTypes);
  SAME_FIELD(CUmemAllocationProp, location);
  SAME_FIELD(CUmemAllocationProp, win32HandleMetaData);
  SAME_FIELD(CUmemAllocationProp, allocFlags);
  SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType);
  SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
  SAME_FIELD(CUmemAllocationProp, allocFlags.usage);
  SAME_SIZE(CUarrayMapInfo);
  SAME_FIELD(CUarrayMapInfo, resource);
  SAME_FIELD(CUarrayMapInfo, subresource);
  SAME_FIELD(CUarrayMapInfo, memOperationType);
  SAME_FIELD(CUarrayMapInfo, memHandle);
  SAME_FIELD(CUarrayMapInfo, deviceBitMask);
  SAME_SIZE(CUmemAccessDesc);
  SAME_FIELD(CUmemAccessDesc, location);
  SAME_FIELD(CUmemAccessDesc, flags);
  SAME_SIZE(CUmemPoolProps);
  SAME_FIELD(CUmemPoolProps, allocType);
  SAME_FIELD(CUmemPoolProps, handleTypes);
  SAME_FIELD(CUmemPoolProps, location);
  SAME_FIELD(CUmemPoolProps, win32SecurityAttributes);
  SAME_FIELD(CUmemPoolProps, maxSize);
  SAME_FIELD(CUmemPoolProps, usage);
  SAME_SIZE(CUlaunchAttribute);
  SAME_FIELD(CUlaunchAttribute, id);
  SAME_FIELD(CUlaunchAttribute, value);
  SAME_SIZE(CUlaunchConfig);
  SAME_FIELD(CUlaunchConfig, gridDimX);
  SAME_FIELD(CUlaunchConfig, blockDimZ);
  SAME_FIELD(CUlaunchConfig, sharedMemBytes);
  SAME_FIELD(CUlaunchConfig, hStream);
  SAME_FIELD(CUlaunchConfig, attrs);
  SAME_FIELD(CUlaunchConfig, numAttrs);
  SAME_SIZE(CUDA_LAUNCH_PARAMS);
  SAME_FIELD(CUDA_LAUNCH_PARAMS, function);
  SAME_FIELD(CUDA_LAUNCH_PARAMS, hStream);
  SAME_FIELD(CUDA_LAUNCH_PARAMS, kernelParams);
}
#undef SAME_FIELD
#undef SAME_SIZE

TEST(DriverApi, HasTheSignaturesOfTheInstalledHeader) {
  int compared = 0;
#define COMPARE(name)                                                                          \
  EXPECT_TRUE((Same<decltype(nvshare::cuda::api::name), decltype(::name)>::value())) << #name; \
  ++compared;
  NVSHARE_API_NAMES(COMPARE)
#undef COMPARE
  EXPECT_GT(compared, 200);
}

// A comparison that accepts anything would prove nothing.
TEST(DriverApi, ComparisonSeesDifferences) {
  EXPECT_FALSE((Same<decltype(api::cuMemAlloc_v2), decltype(::cuMemAlloc)>::value())) << "32-bit pointer and size";
  EXPECT_FALSE((Same<decltype(api::cuMemFree_v2), decltype(::cuMemAlloc_v2)>::value())) << "number of parameters";
  EXPECT_FALSE((Same<decltype(api::cuMemAdvise), decltype(::cuMemAdvise_v2)>::value())) << "int and struct";
  EXPECT_FALSE((Same<decltype(api::cuMemcpyHtoD_v2), decltype(::cuMemcpyDtoH_v2)>::value())) << "address and pointer";
  EXPECT_FALSE((Same<void(const CUmemAccessDesc*), void(::CUmemAccessDesc*)>::value())) << "const";
}

}  // namespace
}  // namespace nvshare::cuda

namespace {

// Outside of nvshare::cuda, where a name is the real header's.
TEST(DriverTypes, HaveTheValuesOfTheInstalledHeader) {
  int compared = 0;
#define COMPARE(name)                                                      \
  EXPECT_EQ(ours::value_of_##name, static_cast<long long>(name)) << #name; \
  ++compared;
  NVSHARE_CONSTANTS(COMPARE)
#undef COMPARE
  EXPECT_GT(compared, 100);
}

}  // namespace
