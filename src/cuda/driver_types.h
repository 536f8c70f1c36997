// The types of the CUDA driver's interface, as far as nvshare looks at them: our own declarations, so that building needs no CUDA
// toolkit. Names are the driver's, in namespace nvshare::cuda. What is only passed through stays incomplete.
//
// Source: the CUDA Driver API documentation, CUDA 13.0. driver_api_test.cc checks sizes, offsets and values against the real cuda.h where
// that is installed. All structs are the driver's ABI: never add to them.
//
// Never include this after cuda.h: that header renames functions by macros.
#pragma once

#ifdef __cuda_cuda_h__
#error "include cuda/driver_types.h or cuda.h, not both"
#endif

#include <cstddef>
#include <cstdint>

namespace nvshare::cuda {

// Any int is valid: a newer driver may return codes that are not listed.
enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_UNMAP_FAILED = 206,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_NOT_MAPPED = 211,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_FILE_NOT_FOUND = 301,
  CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
  CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_TIMEOUT = 909,
  CUDA_ERROR_UNKNOWN = 999,
};

// "CUDA_ERROR_OUT_OF_MEMORY"; "CUDA error" for a code that is not listed above. Static storage. Thread-safe, needs no driver.
const char* name_of(CUresult result);

using CUdevice = int;                                     // ordinal among the devices that the process sees
using CUdeviceptr = unsigned long long;                   // address in the unified address space
using CUdeviceptr_v1 = unsigned int;                      // of the 32-bit interface (unversioned old entry points)
using CUmemGenericAllocationHandle = unsigned long long;  // physical memory (cuMemCreate)
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

using CUcontext = struct CUctx_st*;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUarray = struct CUarray_st*;
using CUmipmappedArray = struct CUmipmappedArray_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUevent = struct CUevent_st*;
using CUstream = struct CUstream_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUexternalSemaphore = struct CUextSemaphore_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;

using CUhostFn = void (*)(void* data);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* data);

// The two special stream handles besides null (null: legacy, or per-thread for the _ptsz and _ptds entry points).
inline const CUstream CU_STREAM_LEGACY = reinterpret_cast<CUstream>(uintptr_t{1});
inline const CUstream CU_STREAM_PER_THREAD = reinterpret_cast<CUstream>(uintptr_t{2});

// ---- enumerations passed by value; those without values are passed through ----
enum CUdevice_attribute : unsigned {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
};
enum CUarray_format : unsigned {
  CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
  CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
  CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
  CU_AD_FORMAT_SIGNED_INT8 = 0x08,
  CU_AD_FORMAT_SIGNED_INT16 = 0x09,
  CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
  CU_AD_FORMAT_HALF = 0x10,
  CU_AD_FORMAT_FLOAT = 0x20,
};
enum CUfunction_attribute : unsigned {};
enum CUgraphMem_attribute : unsigned {  // all of type cuuint64_t
  CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
  CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
};
enum CUgraphNodeType : unsigned {
  CU_GRAPH_NODE_TYPE_KERNEL = 0,
  CU_GRAPH_NODE_TYPE_MEMCPY = 1,
  CU_GRAPH_NODE_TYPE_MEMSET = 2,
  CU_GRAPH_NODE_TYPE_HOST = 3,
  CU_GRAPH_NODE_TYPE_GRAPH = 4,
  CU_GRAPH_NODE_TYPE_EMPTY = 5,
  CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
  CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
  CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
};
enum CUjit_option : unsigned {};
enum CUlibraryOption : unsigned {};
enum CUlimit : unsigned {};
enum CUmem_advise : unsigned {
  CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};
enum CUmem_range_attribute : unsigned {};
enum CUmemAllocationType : unsigned {
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
  CU_MEM_ALLOCATION_TYPE_MANAGED = 2
};
enum CUmemAllocationHandleType : unsigned {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemLocationType : unsigned {
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
};
enum CUmemAccess_flags : unsigned {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
enum CUmemRangeHandleType : unsigned { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum CUmemHandleType : unsigned { CU_MEM_HANDLE_TYPE_GENERIC = 0 };
enum CUmemAllocationGranularity_flags : unsigned { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum CUmemPool_attribute : unsigned {
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,    // int
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,          // int
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,  // int
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,                  // cuuint64_t, as all below
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};
enum CUpointer_attribute : unsigned {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,                      // CUcontext
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,                  // CUmemorytype
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,               // CUdeviceptr
  CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,                 // void*
  CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,                   // struct of two
  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,                  // bool
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,                    // unsigned long long, unique in the process
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,                   // bool
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,               // int
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,  // bool
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,            // CUdeviceptr
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,                  // size_t
  CU_POINTER_ATTRIBUTE_MAPPED = 13,                      // bool
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,        // bitmask, unsigned long long
  CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,  // bool
  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,                // CUmemAccess_flags
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,              // CUmemoryPool, null if not from a pool
  CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,                // size_t
  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,           // CUdeviceptr
  CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,             // unsigned long long
  CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21,    // bool
};
enum CUmemorytype : unsigned { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };
enum CUstreamCaptureMode : unsigned {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};
enum CUstreamCaptureStatus : unsigned {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};
enum CUgraphExecUpdateResult : unsigned {};
enum CUlaunchAttributeID : unsigned { CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12 };
enum CUdriverProcAddressQueryResult : unsigned {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

// ---- flags, passed as unsigned or 64-bit integers ----
inline constexpr cuuint64_t CU_GET_PROC_ADDRESS_DEFAULT = 0;
inline constexpr cuuint64_t CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
inline constexpr cuuint64_t CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;
inline constexpr unsigned CU_STREAM_DEFAULT = 0;
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned CU_EVENT_DEFAULT = 0;
inline constexpr unsigned CU_EVENT_BLOCKING_SYNC = 1;
inline constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_EVENT_INTERPROCESS = 4;
inline constexpr unsigned CU_CTX_SCHED_AUTO = 0;
inline constexpr unsigned CU_CTX_SCHED_BLOCKING_SYNC = 4;
inline constexpr unsigned CU_MEM_ATTACH_GLOBAL = 1;
inline constexpr unsigned CU_MEM_ATTACH_HOST = 2;
inline constexpr unsigned CU_MEM_ATTACH_SINGLE = 4;
inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CUDA_ARRAY3D_LAYERED = 0x01;
inline constexpr unsigned CUDA_ARRAY3D_CUBEMAP = 0x04;
inline constexpr unsigned CUDA_ARRAY3D_SPARSE = 0x40;
inline constexpr unsigned CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80;
inline constexpr CUdevice CU_DEVICE_CPU = -1;

// ---- structs that nvshare looks into ----
struct CUuuid {
  char bytes[16];
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;  // device ordinal for CU_MEM_LOCATION_TYPE_DEVICE
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

// One step of cuMemMapArrayAsync: maps a handle's memory to a part of a sparse array, or takes it away.
struct CUarrayMapInfo {
  unsigned resourceType;
  void* resource;  // CUarray or CUmipmappedArray
  unsigned subresourceType;
  union {
    struct {
      unsigned level, layer, offsetX, offsetY, offsetZ, extentWidth, extentHeight, extentDepth;
    } sparseLevel;
    struct {
      unsigned layer;
      unsigned long long offset, size;
    } miptail;
  } subresource;
  unsigned memOperationType;
  CUmemHandleType memHandleType;
  CUmemGenericAllocationHandle memHandle;
  unsigned long long offset;
  unsigned deviceBitMask;
  unsigned flags;
  unsigned reserved[2];
};

struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

struct CUDA_ARRAY_DESCRIPTOR {
  size_t Width, Height;
  CUarray_format Format;
  unsigned NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR {
  size_t Width, Height, Depth;
  CUarray_format Format;
  unsigned NumChannels, Flags;
};

struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
  size_t size, alignment;
  unsigned reserved[4];
};

// Only its beginning: what follows depends on the type.
struct CUgraphNodeParams {
  CUgraphNodeType type;
  int reserved0[3];
  long long rest[29];
  long long reserved2;
};

struct CUDA_MEM_ALLOC_NODE_PARAMS {
  CUmemPoolProps poolProps;
  const CUmemAccessDesc* accessDescs;
  size_t accessDescCount, bytesize;
  CUdeviceptr dptr;  // out
};

// What names an allocation of a shared pool to the processes that import the pool.
struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};

inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
struct CUipcMemHandle {
  char reserved[64];
};
struct CUipcEventHandle {
  char reserved[64];
};

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[4];
  union {
    char pad[64];
    int cooperative;
    unsigned long long align;
  } value;
};

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

// One launch of cuLaunchCooperativeKernelMultiDevice.
struct CUDA_LAUNCH_PARAMS {
  CUfunction function;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  void** kernelParams;
};

struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
};

struct CUDA_MEMCPY3D {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
};

// As CUDA_MEMCPY3D, with the contexts in which both sides lie.
struct CUDA_MEMCPY3D_PEER {
  size_t srcXInBytes, srcY, srcZ, srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  CUcontext srcContext;
  size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  CUcontext dstContext;
  size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
};

struct CUDA_MEMSET_NODE_PARAMS {
  CUdeviceptr dst;
  size_t pitch;
  unsigned value, elementSize;
  size_t width, height;
};

// One side of a copy of a batch.
struct CUmemcpy3DOperand {
  unsigned type;  // CU_MEMCPY_OPERAND_TYPE_POINTER
  union {
    struct {
      CUdeviceptr ptr;
      size_t rowLength, layerHeight;
      CUmemLocation locHint;
    } ptr;
    struct {
      CUarray array;
      size_t offset[3];
    } array;
  } op;
};
inline constexpr unsigned CU_MEMCPY_OPERAND_TYPE_POINTER = 1;

// When a copy of a batch reads its source.
inline constexpr unsigned CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;
inline constexpr unsigned CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2;
inline constexpr unsigned CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3;
inline constexpr unsigned CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1;

struct CUmemcpyAttributes {
  unsigned srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned flags;
};

struct CUDA_MEMCPY3D_BATCH_OP {
  CUmemcpy3DOperand src, dst;
  size_t extent[3];
  unsigned srcAccessOrder;
  unsigned flags;
};

// A node's copy, behind the head of CUgraphNodeParams.
struct CUDA_MEMCPY_NODE_PARAMS {
  int flags, reserved;
  CUcontext copyCtx;
  CUDA_MEMCPY3D copyParams;
};

// One operation of cuStreamBatchMemOp; those that wait and those that write a value begin alike.
enum CUstreamBatchMemOpType : int {
  CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
  CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
  CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
  CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
};
union CUstreamBatchMemOpParams {
  CUstreamBatchMemOpType operation;
  struct {
    CUstreamBatchMemOpType operation;
    CUdeviceptr address;
    unsigned long long value64;  // the lower half of it for 32 bits
    unsigned flags;
    CUdeviceptr alias;
  } writeValue;
  unsigned long long pad[6];
};

// A node of memory operations; in CUgraphNodeParams at `rest`.
struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
  CUcontext ctx;
  unsigned count;
  CUstreamBatchMemOpParams* paramArray;
  unsigned flags;
};

// ---- passed through, never looked into ----
struct CUDA_KERNEL_NODE_PARAMS;
struct CUDA_KERNEL_NODE_PARAMS_v1;
struct CUgraphExecUpdateResultInfo;
struct CUDA_GRAPH_INSTANTIATE_PARAMS;
struct CUctxCreateParams;
struct CUexecAffinityParam;
struct CUgraphEdgeData;
struct CUmemDecompressParams;
struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;
struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;
struct CUDA_MEMCPY2D_v1;
struct CUDA_MEMCPY3D_v1;

}  // namespace nvshare::cuda
