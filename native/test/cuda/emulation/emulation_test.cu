// Faults that the emulation must find, and features of a device that kernels need.
#include <cooperative_groups.h>
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace {

// The fault that a launch reports.
std::string fault_of(const auto& launch) {
  try {
    launch();
  } catch (const emulated::Fault& fault) {
    return fault.what();
  }
  return "none";
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// --- blocks --------------------------------------------------------------------------------------

__global__ void reverse(const float* from, float* to, bool waiting) {
  __shared__ float values[100];
  values[threadIdx.x] = from[threadIdx.x];
  if (waiting) __syncthreads();
  to[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

__global__ void leave_early(unsigned who) {
  if (threadIdx.x == who) return;
  __syncthreads();
}

__global__ void wait_apart() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void read_what_nobody_wrote(float* to) {
  __shared__ float value;
  if (threadIdx.x > 0) to[threadIdx.x] = value;
}

__global__ void count_threads(int* seen) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomicAdd(seen + block * blockDim.x * blockDim.y * blockDim.z + thread, 1);
}

__global__ void take_turns(unsigned* next, unsigned* turn) {
  turn[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}

__global__ void add_without_atomics(int* sum) {
  const int before = __ldcg(sum);
  __threadfence();
  *sum = before + 1;
}

__global__ void use_dynamic(float* to) {
  extern __shared__ float4 room[];
  room[threadIdx.x].x = static_cast<float>(threadIdx.x);
  __syncthreads();
  to[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x].x;
}

// --- warps ---------------------------------------------------------------------------------------

struct Exchanged {
  int from, up, down, across, of_eight;
  unsigned ballot;
  int sum, most, least;
  bool any, all;
};

__global__ void exchange(Exchanged* to) {
  const int lane = static_cast<int>(threadIdx.x);
  Exchanged& out = to[lane];
  out.from = __shfl_sync(~0u, lane, 5);
  out.up = __shfl_up_sync(~0u, lane, 3);
  out.down = __shfl_down_sync(~0u, lane, 3);
  out.across = __shfl_xor_sync(~0u, lane, 16);
  out.of_eight = __shfl_down_sync(~0u, lane, 1, 8);
  out.ballot = __ballot_sync(~0u, lane % 3 == 0);
  out.any = __any_sync(~0u, lane == 7);
  out.all = __all_sync(~0u, lane != 7);
  // Halves on their own.
  const unsigned half = lane < 16 ? 0xFFFFu : 0xFFFF0000u;
  out.sum = __reduce_add_sync(half, lane);
  out.most = __reduce_max_sync(half, lane);
  out.least = __reduce_min_sync(half, lane);
}

__global__ void shuffle_with(unsigned mask, int lanes) {
  if (threadIdx.x < 16) __shfl_xor_sync(mask, 1, lanes);
}

}  // namespace

TEST_CASE("a missing barrier is detected, and a barrier fixes it") {
  constexpr int count = 100;
  std::vector<float> from(count), to(count), expected(count);
  for (int i = 0; i < count; ++i) from[i] = expected[count - 1 - i] = static_cast<float>(i);
  reverse<<<1, count>>>(from.data(), to.data(), true);
  CHECK(to == expected);
  reverse<<<1, count>>>(from.data(), to.data(), false);
  CHECK(to != expected);
}

TEST_CASE("threads that wait for each other forever are detected") {
  const std::string left = fault_of([] { leave_early<<<2, 64>>>(5); });
  CHECK(says(left, "1 have left; 63 wait for their block at"));
  CHECK(says(left, "emulation_test.cu:"));
  CHECK(says(fault_of([] { wait_apart<<<1, 64>>>(); }), "threads wait for each other at different places"));
  CHECK(fault_of([] { leave_early<<<2, 64>>>(64); }) == "none");  // a fault leaves nothing behind
}

TEST_CASE("uninitialized shared memory is NaN") {
  std::vector<float> to(32);
  read_what_nobody_wrote<<<1, 32>>>(to.data());
  CHECK(std::isnan(to[31]));
}

TEST_CASE("every thread of every block runs once") {
  std::vector<int> seen(3 * 2 * 2 * 40 * 2 * 2);
  count_threads<<<dim3(3, 2, 2), dim3(40, 2, 2)>>>(seen.data());
  CHECK(seen == std::vector<int>(seen.size(), 1));
}

TEST_CASE("threads of several blocks run interleaved, in another order per launch") {
  std::set<std::vector<unsigned>> orders;
  for (int launch = 0; launch < 4; ++launch) {
    unsigned next = 0;
    std::vector<unsigned> turn(3 * 64);
    take_turns<<<3, 64>>>(&next, turn.data());
    orders.insert(turn);
    CHECK(std::set<unsigned>(turn.begin(), turn.end()).size() == turn.size());
    // No block has its turns all in a row.
    for (int block = 0; block < 3; ++block) {
      const auto first = turn.begin() + 64 * block;
      const auto [least, most] = std::minmax_element(first, first + 64);
      CHECK(*most - *least > 64);
    }
  }
  CHECK(orders.size() == 4);
  int sum = 0;
  add_without_atomics<<<1, 64>>>(&sum);
  CHECK(sum < 64);
}

TEST_CASE("dynamic shared memory has the requested size, up to the kernel's limit") {
  std::vector<float> to(64);
  use_dynamic<<<1, 64, 64 * sizeof(float4)>>>(to.data());
  CHECK(to[0] == 63);
  constexpr size_t much = 100 << 10;
  use_dynamic<<<1, 64, much>>>(to.data());
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFuncSetAttribute(use_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, much) == cudaSuccess);
  use_dynamic<<<1, 64, much>>>(to.data());
  CHECK(cudaGetLastError() == cudaSuccess);
  for (const auto& [grid, block] : {std::pair(0, 32), std::pair(1, 0), std::pair(1, 1025)}) {
    leave_early<<<grid, block>>>(0);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  }
}

TEST_CASE("lane exchanges follow CUDA's definition") {
  std::vector<Exchanged> lanes(32);
  exchange<<<1, 32>>>(lanes.data());
  for (int lane = 0; lane < 32; ++lane) {
    CAPTURE(lane);
    const Exchanged& out = lanes[lane];
    CHECK(out.from == 5);
    CHECK(out.up == (lane < 3 ? lane : lane - 3));
    CHECK(out.down == (lane > 28 ? lane : lane + 3));
    CHECK(out.across == (lane + 16) % 32);
    CHECK(out.of_eight == (lane % 8 == 7 ? lane : lane + 1));
    CHECK(out.ballot == 0x49249249u);
    CHECK(out.any);
    CHECK_FALSE(out.all);
    CHECK(out.sum == (lane < 16 ? 120 : 376));
    CHECK(out.most == (lane < 16 ? 15 : 31));
    CHECK(out.least == (lane < 16 ? 0 : 16));
  }
}

TEST_CASE("a shuffle's mask must include the calling and the source lanes") {
  CHECK(fault_of([] { shuffle_with<<<1, 32>>>(0xFFFF, 8); }) == "none");
  CHECK(says(fault_of([] { shuffle_with<<<1, 32>>>(0xFF, 4); }), "a mask without the lane that calls"));
  CHECK(says(fault_of([] { shuffle_with<<<1, 32>>>(0xFFFF, 16); }), "reads a lane that takes no part"));
}

#if NLAC_EMULATED_ARCH >= 900

namespace {

__global__ void sum_of_cluster(int* to, bool stays) {
  namespace cg = cooperative_groups;
  __shared__ int own;
  const auto cluster = cg::this_cluster();
  if (threadIdx.x == 0) own = static_cast<int>(blockIdx.x) + 1;
  cluster.sync();
  int sum = 0;
  for (unsigned i = 0; i < cluster.num_blocks(); ++i) sum += *cluster.map_shared_rank(&own, i);
  to[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (stays) cluster.sync();
}

}  // namespace

TEST_CASE("a cluster's blocks read each other's memory until they exit") {
  const auto sums = [](bool stays) {
    std::vector<int> to(8 * 64);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {4, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(8);
    config.blockDim = dim3(64);
    config.attrs = &cluster;
    config.numAttrs = 1;
    const cudaError_t launched = cudaLaunchKernelEx(&config, sum_of_cluster, to.data(), stays);
    CHECK(launched == cudaSuccess);
    return to;
  };
  std::vector<int> expected(8 * 64, 1 + 2 + 3 + 4);
  std::fill(expected.begin() + 4 * 64, expected.end(), 5 + 6 + 7 + 8);
  CHECK(sums(true) == expected);
  CHECK(says(fault_of([&] { sums(false); }), "reaches into a block that has left"));
}

#endif
