// Every way to have memory on the GPU at once: plain, pitched, 3D, arrays and mipmaps behind textures and surfaces, the stream-ordered
// default pool and one of its own, managed, mapped host memory, and the program's own virtual memory management. Each takes part in the
// checksum.
#include <cuda.h>

#include "work.cuh"

__global__ void mix_rows(uint64_t* data, size_t pitch, uint64_t width, uint64_t rows, uint64_t round) {
  for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    uint64_t* line = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(data) + row * pitch);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) line[i] = work::scramble(line[i] + round * 31 + row);
  }
}

// Reads a texture (and a level of a mipmap), writes the surface of another array.
__global__ void through_texture(cudaTextureObject_t in, cudaTextureObject_t mipmap, cudaSurfaceObject_t out, int side, unsigned round) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) % side;
  const int y = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / side;
  if (y < side) {
    const unsigned a = tex2D<unsigned>(in, static_cast<float>(x), static_cast<float>(y));
    const unsigned b = tex2DLod<unsigned>(mipmap, (x + 0.5f) / side, (y + 0.5f) / side, 1.0f);
    surf2Dwrite((a + b) * 2654435761u + round + static_cast<unsigned>(x), out, x * 4, y);
  }
}

// The driver's functions come through the runtime, so the program links no libcuda.
template <class Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 13000
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status));
#else
  REQUIRE(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status));
#endif
  if (found == nullptr) {
    std::fprintf(stderr, "the driver has no %s\n", name);
    std::_Exit(3);
  }
  return reinterpret_cast<Function>(found);
}

void require_driver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s returned %d\n", what, static_cast<int>(result));
    std::_Exit(3);
  }
}

constexpr int kSide = 1024;
constexpr uint64_t kRows = 4096, kWidth = 1000;  // words: no multiple of what pitches are rounded to
constexpr uint64_t kManaged = 64u << 20, kPool = 96u << 20, kMapped = 1u << 20;

struct Allocators : work::Work {
  uint64_t* pitched = nullptr;
  size_t pitch = 0;
  cudaPitchedPtr volume{};
  cudaArray_t arrays[2] = {};
  cudaMipmappedArray_t mipmapped = nullptr;
  cudaTextureObject_t textures[2] = {}, mip_texture = 0;
  cudaSurfaceObject_t surfaces[2] = {};
  cudaMemPool_t pool = nullptr;
  uint64_t* pooled = nullptr;
  uint64_t* managed = nullptr;
  uint64_t* mapped = nullptr;
  cudaStream_t stream = nullptr;
  uint64_t sum = 0;

  void start() override {
    Work::start();
    REQUIRE(cudaStreamCreate(&stream));
    REQUIRE(cudaMallocPitch(&pitched, &pitch, kWidth * 8, kRows));
    REQUIRE(cudaMemset2D(pitched, pitch, 3, kWidth * 8, kRows));
    REQUIRE(cudaMalloc3D(&volume, make_cudaExtent(kWidth * 8, 64, 16)));
    REQUIRE(cudaMemset3D(volume, 5, make_cudaExtent(kWidth * 8, 64, 16)));
    start_arrays();
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    REQUIRE(cudaGetDevice(&properties.location.id));
    REQUIRE(cudaMemPoolCreate(&pool, &properties));
    REQUIRE(cudaMallocFromPoolAsync(&pooled, kPool, pool, stream));
    work::fill<<<1024, 256, 0, stream>>>(pooled, kPool / 8, seed);
    REQUIRE(cudaMallocManaged(&managed, kManaged));
    for (uint64_t i = 0; i < kManaged / 8; ++i) managed[i] = work::scramble(i + seed);
    REQUIRE(cudaHostAlloc(&mapped, kMapped, cudaHostAllocMapped));
    for (uint64_t i = 0; i < kMapped / 8; ++i) mapped[i] = i;
    start_virtual();
    REQUIRE(cudaDeviceSynchronize());
  }

  void start_arrays() {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
    std::vector<unsigned> texels(kSide * kSide);
    for (size_t i = 0; i < texels.size(); ++i) texels[i] = static_cast<unsigned>(work::scramble(i + seed));
    cudaTextureDesc how{};
    how.readMode = cudaReadModeElementType;
    how.filterMode = cudaFilterModePoint;
    for (cudaTextureAddressMode& mode : how.addressMode) mode = cudaAddressModeClamp;
    for (int k = 0; k < 2; ++k) {
      REQUIRE(cudaMallocArray(&arrays[k], &format, kSide, kSide, cudaArraySurfaceLoadStore));
      REQUIRE(cudaMemcpy2DToArray(arrays[k], 0, 0, texels.data(), kSide * 4, kSide * 4, kSide, cudaMemcpyHostToDevice));
      cudaResourceDesc what{};
      what.resType = cudaResourceTypeArray;
      what.res.array.array = arrays[k];
      REQUIRE(cudaCreateTextureObject(&textures[k], &what, &how, nullptr));
      REQUIRE(cudaCreateSurfaceObject(&surfaces[k], &what));
    }
    REQUIRE(cudaMallocMipmappedArray(&mipmapped, &format, make_cudaExtent(kSide, kSide, 0), 3));
    for (unsigned level = 0; level < 3; ++level) {
      cudaArray_t of_level = nullptr;
      const size_t side = kSide >> level;
      REQUIRE(cudaGetMipmappedArrayLevel(&of_level, mipmapped, level));
      REQUIRE(cudaMemcpy2DToArray(of_level, 0, 0, texels.data() + level, side * 4, side * 4, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc what{};
    what.resType = cudaResourceTypeMipmappedArray;
    what.res.mipmap.mipmap = mipmapped;
    how.maxMipmapLevelClamp = 2;
    how.normalizedCoords = 1;  // mipmaps know no other
    REQUIRE(cudaCreateTextureObject(&mip_texture, &what, &how, nullptr));
  }

  // Two handles side by side in one range, as expandable allocators do it; the range becomes one more block.
  void start_virtual() {
    const auto reserve = driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
    const auto create = driver_function<decltype(&cuMemCreate)>("cuMemCreate");
    const auto map = driver_function<decltype(&cuMemMap)>("cuMemMap");
    const auto access = driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess");
    const size_t each = 32u << 20;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc allowed{};
    allowed.location = properties.location;
    allowed.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUdeviceptr range = 0;
    require_driver(reserve(&range, 2 * each, 0, 0, 0), "cuMemAddressReserve");
    for (int k = 0; k < 2; ++k) {
      CUmemGenericAllocationHandle handle = 0;
      require_driver(create(&handle, each, &properties, 0), "cuMemCreate");
      require_driver(map(range + k * each, each, 0, handle, 0), "cuMemMap");
    }
    require_driver(access(range, 2 * each, &allowed, 1), "cuMemSetAccess");
    blocks.push_back({reinterpret_cast<uint64_t*>(range), 2 * each / 8});
    work::fill<<<1024, 256>>>(blocks.back().data, blocks.back().words, seed + 99);
  }

  void unit(uint64_t i) override {
    mix_all(i, stream);
    mix_rows<<<512, 256, 0, stream>>>(pitched, pitch, kWidth, kRows, i);
    mix_rows<<<512, 256, 0, stream>>>(static_cast<uint64_t*>(volume.ptr), volume.pitch, kWidth, 64 * 16, i);
    through_texture<<<kSide * kSide / 256, 256, 0, stream>>>(textures[i % 2], mip_texture, surfaces[(i + 1) % 2], kSide,
                                                             static_cast<unsigned>(i));
    uint64_t* scratch = nullptr;
    REQUIRE(cudaMallocAsync(&scratch, 16u << 20, stream));
    work::fill<<<512, 256, 0, stream>>>(scratch, 2u << 20, i);
    REQUIRE(cudaMemcpyAsync(pooled, scratch, 1u << 20, cudaMemcpyDeviceToDevice, stream));
    REQUIRE(cudaFreeAsync(scratch, stream));
    work::mix<<<1024, 256, 0, stream>>>(pooled, kPool / 8, i);
    work::mix<<<512, 256, 0, stream>>>(managed, kManaged / 8, i);
    uint64_t* seen = nullptr;
    REQUIRE(cudaHostGetDevicePointer(&seen, mapped, 0));
    work::mix<<<64, 256, 0, stream>>>(seen, kMapped / 8, i);
    if (i % 16 == 15) {  // the host takes part too
      REQUIRE(cudaStreamSynchronize(stream));
      managed[i % (kManaged / 8)] += mapped[i % (kMapped / 8)];
    }
  }

  uint64_t checksum() override {
    REQUIRE(cudaDeviceSynchronize());
    sum = sum_of_blocks() * 31 + sum_of(pooled, kPool / 8);
    sum = sum * 31 + sum_of(managed, kManaged / 8);
    for (uint64_t i = 0; i < kMapped / 8; ++i) sum = sum * 31 + mapped[i];
    std::vector<uint64_t> rows(kWidth * kRows);
    REQUIRE(cudaMemcpy2D(rows.data(), kWidth * 8, pitched, pitch, kWidth * 8, kRows, cudaMemcpyDeviceToHost));
    for (const uint64_t word : rows) sum = sum * 31 + word;
    for (uint64_t row = 0; row < 64 * 16; ++row) {
      REQUIRE(cudaMemcpy(rows.data(), static_cast<char*>(volume.ptr) + row * volume.pitch, kWidth * 8, cudaMemcpyDeviceToHost));
      for (uint64_t i = 0; i < kWidth; ++i) sum = sum * 31 + rows[i];
    }
    std::vector<unsigned> texels(kSide * kSide);
    for (const cudaArray_t array : arrays) {
      REQUIRE(cudaMemcpy2DFromArray(texels.data(), kSide * 4, array, 0, 0, kSide * 4, kSide, cudaMemcpyDeviceToHost));
      for (const unsigned texel : texels) sum = sum * 31 + texel;
    }
    return sum;
  }
};

int main(int argc, char** argv) {
  Allocators program;
  return work::run(program, argc, argv);
}
