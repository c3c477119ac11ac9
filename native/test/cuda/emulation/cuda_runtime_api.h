// The part of CUDA's runtime that the wrappers of kernels call, with one device that is the host
// itself: its memory is the host's, and work on a stream is done before the call returns.
// It has compute capability 9.0, whatever the kernels are compiled for. Names and values are
// CUDA's. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorStreamCaptureInvalidated = 901,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
  int ptxVersion;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;

// --- vectors -------------------------------------------------------------------------------------

template <typename T, size_t alignment>
struct alignas(alignment) VectorOf2 {
  T x, y;
};
template <typename T>
struct VectorOf3 {
  T x, y, z;
};
template <typename T, size_t alignment>
struct alignas(alignment) VectorOf4 {
  T x, y, z, w;
};

using int2 = VectorOf2<int, 8>;
using uint2 = VectorOf2<unsigned, 8>;
using float2 = VectorOf2<float, 8>;
using double2 = VectorOf2<double, 16>;
using uint3 = VectorOf3<unsigned>;
using float3 = VectorOf3<float>;
using int4 = VectorOf4<int, 16>;
using uint4 = VectorOf4<unsigned, 16>;
using float4 = VectorOf4<float, 16>;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// --- launches ------------------------------------------------------------------------------------

union cudaLaunchAttributeValue {
  VectorOf3<unsigned> clusterDim;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

// --- the device and its memory -------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

// Every byte of new memory is 0xFF: a NaN in every floating-point type.
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
// A test breaks a capture by `capture_broken`: no launch succeeds until its end, which fails too.
namespace emulated {
inline bool capture_broken = false;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
