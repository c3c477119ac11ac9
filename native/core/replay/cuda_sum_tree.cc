#include "core/replay/cuda_sum_tree.h"

#ifdef NLAC_CUDA

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/cuda_error.h"

namespace nlac {
namespace {

// Entries of a loaded file that are set at once.
constexpr size_t load_batch = size_t{1} << 20;

void check(cudaError_t error) { check_cuda(error, "the sampler's GPU"); }

// Sets the thread's current device, and restores the former one in the destructor.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&former_));
    check(cudaSetDevice(device));
  }
  ~DeviceScope() { cudaSetDevice(former_); }
  DeviceScope(const DeviceScope&) = delete;

 private:
  int former_ = 0;
};

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct PinnedFree {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
struct StreamDestroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventDestroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], DeviceFree>;

template <typename T>
DeviceArray<T> device_array(int64_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)));
  return DeviceArray<T>(static_cast<T*>(memory));
}

template <typename T>
DeviceArray<T> zeroed_device_array(int64_t count, cudaStream_t stream) {
  DeviceArray<T> array = device_array<T>(count);
  check(cudaMemsetAsync(array.get(), 0, static_cast<size_t>(count) * sizeof(T), stream));
  return array;
}

}  // namespace

// Its methods require that the tree's device is current.
class CudaSumTree::Memory {
 public:
  Memory(const TreeOptions& options, int device_number)
      : device(device_number), shape(make_tree_shape(options.capacity)) {
    cudaStream_t new_stream = nullptr;
    check(cudaStreamCreateWithFlags(&new_stream, cudaStreamNonBlocking));
    stream_.reset(new_stream);
    cudaEvent_t new_event = nullptr;
    check(cudaEventCreateWithFlags(&new_event, cudaEventDisableTiming));
    uploaded_.reset(new_event);
    tree_ = zeroed<double>(shape.total);
    starts_ = zeroed<double>(shape.inner());
    raw_ = zeroed<float>(shape.size[0]);
    min_ = zeroed<float>(shape.inner());
    max_ = zeroed<float>(shape.inner());
    claims_ = zeroed<uint32_t>(options.capacity);
    pending_ = zeroed<uint32_t>(shape.inner());
    view = {options.capacity,
            options.alpha,
            options.beta,
            {tree_.get(), starts_.get(), raw_.get(), min_.get(), max_.get(), claims_.get(), pending_.get()}};
  }
  ~Memory() { cudaStreamSynchronize(stream_.get()); }
  Memory(const Memory&) = delete;

  cudaStream_t stream() const { return stream_.get(); }

  // Allocates room for `count` entries or draws, three words each, on host and device. Contents are
  // lost.
  void reserve(int64_t count) {
    check(cudaEventSynchronize(uploaded_.get()));
    if (count <= reserved_) return;
    const int64_t wanted = std::max(count, 2 * reserved_);
    reserved_ = 0;
    host_.reset();
    void* pinned = nullptr;
    check(cudaMallocHost(&pinned, static_cast<size_t>(3 * wanted) * sizeof(uint32_t)));
    host_.reset(static_cast<uint32_t*>(pinned));
    words_.reset();
    words_ = device_array<uint32_t>(3 * wanted);
    reserved_ = wanted;
  }

  // Array `n` of `count` words, on the device.
  template <typename T>
  T* words(int64_t n, int64_t count) {
    return reinterpret_cast<T*>(words_.get() + n * count);
  }
  template <typename T>
  void put(int64_t n, const T* values, int64_t count) {
    std::memcpy(host_.get() + n * count, values, static_cast<size_t>(count) * sizeof(T));
  }
  template <typename T>
  void take(int64_t n, T* values, int64_t count) const {
    std::memcpy(values, host_.get() + n * count, static_cast<size_t>(count) * sizeof(T));
  }
  // The first `count` words, to the device. Does not wait for it.
  void upload(int64_t count) {
    check(cudaMemcpyAsync(words_.get(), host_.get(), static_cast<size_t>(count) * sizeof(uint32_t),
                          cudaMemcpyHostToDevice, stream()));
    check(cudaEventRecord(uploaded_.get(), stream()));
  }
  // The last of an array of `count` on the device: the root's.
  template <typename T>
  T root(const T* array, int64_t count) {
    T value{};
    copy_out(&value, array + count - 1, 1);
    return value;
  }
  // From word `first` on, `count` words to the host.
  void download(int64_t first, int64_t count) { copy_out(host_.get() + first, words_.get() + first, count); }
  // Waits for all pending work of the device.
  template <typename T>
  void copy_out(T* to, const T* from, int64_t count) {
    check(
        cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T), cudaMemcpyDeviceToHost, stream()));
    check(cudaStreamSynchronize(stream()));
  }

  const int device;
  const TreeShape shape;
  cuda::SumTreeView view;

 private:
  template <typename T>
  DeviceArray<T> zeroed(int64_t count) {
    DeviceArray<T> array = device_array<T>(count);
    check(cudaMemsetAsync(array.get(), 0, static_cast<size_t>(count) * sizeof(T), stream()));
    return array;
  }

  std::unique_ptr<CUstream_st, StreamDestroy> stream_;
  std::unique_ptr<CUevent_st, EventDestroy> uploaded_;  // the last upload has left the host's words
  DeviceArray<double> tree_, starts_;
  DeviceArray<float> raw_, min_, max_;
  DeviceArray<uint32_t> claims_, pending_;
  int64_t reserved_ = 0;
  std::unique_ptr<uint32_t[], PinnedFree> host_;
  DeviceArray<uint32_t> words_;
};

CudaSumTree::CudaSumTree(const TreeOptions& options, int device) : PriorityTree(options, 0) {
  const DeviceScope scope(device);
  memory_ = std::make_unique<Memory>(options, device);
}

CudaSumTree::CudaSumTree(TreeState state, int device) : CudaSumTree(state.options, device) {
  draws_ = state.draws;
  std::vector<int32_t> indices;
  std::vector<float> priorities;
  for (int64_t leaf = 0; leaf < options_.capacity; ++leaf) {
    if (state.priorities[leaf] != 0) {
      indices.push_back(static_cast<int32_t>(leaf));
      priorities.push_back(state.priorities[leaf]);
    }
    if (indices.size() < load_batch && leaf + 1 < options_.capacity) continue;
    set(indices.data(), priorities.data(), static_cast<int64_t>(indices.size()));
    indices.clear();
    priorities.clear();
  }
}

CudaSumTree::~CudaSumTree() = default;

void CudaSumTree::set(const int32_t* indices, const float* priorities, int64_t count) {
  require_entries(indices, priorities, count);
  if (count == 0) return;
  const DeviceScope scope(memory_->device);
  memory_->reserve(count);
  memory_->put(0, indices, count);
  memory_->put(1, priorities, count);
  memory_->upload(2 * count);
  check(cuda::sum_tree_set(memory_->view, memory_->words<int32_t>(0, count), memory_->words<float>(1, count),
                           count, memory_->stream()));
}

void CudaSumTree::get(const int32_t* indices, float* priorities, int64_t count) {
  require_indices(indices, count);
  if (count == 0) return;
  const DeviceScope scope(memory_->device);
  memory_->reserve(count);
  memory_->put(0, indices, count);
  memory_->upload(count);
  check(cuda::sum_tree_get(memory_->view, memory_->words<int32_t>(0, count), memory_->words<float>(1, count),
                           count, memory_->stream()));
  memory_->download(count, count);
  memory_->take(1, priorities, count);
}

double CudaSumTree::total() {
  const DeviceScope scope(memory_->device);
  return memory_->root(memory_->view.memory.tree, memory_->shape.total);
}

float CudaSumTree::min() {
  const DeviceScope scope(memory_->device);
  return memory_->root(memory_->view.memory.min, memory_->shape.inner());
}

float CudaSumTree::max() {
  const DeviceScope scope(memory_->device);
  return memory_->root(memory_->view.memory.max, memory_->shape.inner());
}

void CudaSumTree::sample(int64_t count, bool stratified, int32_t* indices, float* probabilities,
                         float* weights) {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  // Without draws, an empty tree must be detected here.
  if (count == 0) NLAC_REQUIRE(total() > 0, "ERR_EMPTY", "no leaf has a positive priority");
  if (count == 0) return;
  const DeviceScope scope(memory_->device);
  memory_->reserve(count);
  check(cuda::sum_tree_sample(memory_->view, options_.seed, draws_, count, stratified,
                              memory_->words<int32_t>(0, count), memory_->words<float>(1, count),
                              memory_->words<float>(2, count), memory_->stream()));
  memory_->download(0, 3 * count);
  int32_t first = 0;
  memory_->take(0, &first, 1);
  NLAC_REQUIRE(first >= 0, "ERR_EMPTY", "no leaf has a positive priority");
  memory_->take(0, indices, count);
  memory_->take(1, probabilities, count);
  memory_->take(2, weights, count);
  draws_ += static_cast<uint64_t>(count);
}

void CudaSumTree::save(const std::string& path) {
  ZeroedMemory<float> priorities(memory_->shape.size[0]);
  {
    const DeviceScope scope(memory_->device);
    memory_->copy_out(priorities.data(), memory_->view.memory.raw, options_.capacity);
  }
  save_tree(path, options_, draws_, priorities.data());
}

int64_t CudaSumTree::host_bytes() const { return 0; }

}  // namespace nlac

#endif
