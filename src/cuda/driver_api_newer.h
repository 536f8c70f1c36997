// What CUDA 13.1 to 13.4 adds to the driver's interface, by the same rules as driver_api.h, which includes this. Signatures are those of
// NVIDIA's documentation and bindings; driver_api_test.cc compares them with a cuda.h of 13.4 or newer where one is installed.
#pragma once

#include "cuda/driver_types.h"

namespace nvshare::cuda {

struct CUstreamCigCaptureParams;              // only passed through
using CUgraphRecaptureCallback = void (*)();  // only passed through
using CUlogicalEndpointId = cuuint32_t;

namespace api {

// ---- 13.1 ----
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags);
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, CUmemGenericAllocationHandle memHandle,
                               size_t memOffset, size_t size, unsigned long long flags);

// ---- 13.2 ----
CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void* userData, unsigned syncMode);
CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags, CUstream hStream);
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes* attr, CUstream hStream);
CUresult cuStreamBeginCaptureToCig(CUstream hStream, CUstreamCigCaptureParams* streamCigCaptureParams);
CUresult cuStreamEndCaptureToCig(CUstream hStream);

// ---- 13.3 ----
CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset, void* ptr, cuuint64_t size,
                                   unsigned long long flags);
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset, CUmemGenericAllocationHandle memHandle,
                                  cuuint64_t memOffset, cuuint64_t size, unsigned long long flags);
CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph, CUgraphRecaptureCallback callbackFunc,
                                       void* userData);

// ---- 13.4 ----
CUresult cuGraphAddNode_v3(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams);
CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams* nodeParams);

}  // namespace api
}  // namespace nvshare::cuda
