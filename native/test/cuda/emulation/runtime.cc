// Launches, and the runtime of cuda_runtime_api.h.
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "device.h"
#include "scheduler.h"

namespace emulated {

namespace {

constexpr size_t plain_shared_bytes = 48u << 10;  // what a kernel may ask for without an attribute
constexpr unsigned threads_of_block = 1024, blocks_of_cluster = 8;

cudaError_t last_error = cudaSuccess;
std::map<const void*, size_t> allowed_shared_bytes;  // by kernel

// As CUDA does: the next cudaGetLastError reports a failed call too, not only a failed launch.
cudaError_t failed(cudaError_t error) { return last_error = error; }

bool launchable(const Configuration& c, const void* kernel) {
  const auto allowed = allowed_shared_bytes.find(kernel);
  const size_t shared = allowed == allowed_shared_bytes.end() ? plain_shared_bytes : allowed->second;
  const uint64_t threads = uint64_t{c.block.x} * c.block.y * c.block.z;
  return threads > 0 && threads <= threads_of_block && c.grid.x > 0 && c.grid.x <= INT32_MAX &&
         c.grid.y > 0 && c.grid.y <= 65535 && c.grid.z > 0 && c.grid.z <= 65535 && c.shared_bytes <= shared &&
         c.cluster > 0 && c.cluster <= (NLAC_EMULATED_ARCH >= 900 ? blocks_of_cluster : 1) &&
         c.grid.x % c.cluster == 0;
}

}  // namespace

cudaError_t run(const Configuration& configuration, const void* kernel, const std::function<void()>& body) {
  if (!launchable(configuration, kernel)) return failed(cudaErrorInvalidConfiguration);
  if (capture_broken) return failed(cudaErrorStreamCaptureInvalidated);
  run_threads(configuration, body);
  return cudaSuccess;
}

}  // namespace emulated

// --- the runtime ---------------------------------------------------------------------------------

using namespace emulated;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "invalid device ordinal";
  }
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  constexpr int most = 227 << 10;
  if (value < 0 || value > most) return failed(cudaErrorInvalidValue);
  allowed_shared_bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 2; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
  }
  return failed(cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t alignment = 256;
  *memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (*memory == nullptr) return failed(cudaErrorMemoryAllocation);
  memset(*memory, poison, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  if (bytes > 0) memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  return std::exchange(capture_broken, false) ? failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
