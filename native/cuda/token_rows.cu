#include "cuda/token_rows.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <cfloat>
#include <cstring>

namespace nlac::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int threads = 512;
constexpr int warps = threads / 32;
constexpr int width = 8;  // elements a thread takes at a time: 16 bytes of bf16
constexpr int64_t pace = threads * width;
constexpr int max_team = 8;  // blocks of a cluster; every chip with clusters allows this many

// Bounds x below, so that probability 0 times it is 0 even for a logit of -inf.
__device__ float bounded(float x) { return x < -1e30f ? -1e30f : x; }

// --- the blocks that share a row -----------------------------------------------------------------

struct Team {
  int64_t row;
  unsigned rank, size;
};

__device__ Team team() {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cg::this_cluster();
  const unsigned size = cluster.num_blocks();
  return {static_cast<int64_t>(blockIdx.x / size), cluster.block_rank(), size};
#else
  return {static_cast<int64_t>(blockIdx.x), 0, 1};
#endif
}

// Synchronizes all threads of a row, and makes their writes visible to each other.
__device__ void sync_row() {
#if __CUDA_ARCH__ >= 900
  cg::this_cluster().sync();
#else
  __syncthreads();
#endif
}

template <typename T>
__device__ T shuffle_xor(const T& value, int mask) {
  static_assert(sizeof(T) % 4 == 0);
  unsigned words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
  for (unsigned& word : words) word = __shfl_xor_sync(0xFFFFFFFFu, word, mask);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

// Reduces the values of a block's threads in a fixed order. Every thread gets the result.
template <typename T, typename Join>
__device__ T block_reduce(T value, const Join& join) {
  __shared__ T parts[warps];
  for (int mask = 16; mask > 0; mask /= 2) value = join(value, shuffle_xor(value, mask));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < warps; ++i) value = join(value, parts[i]);
  __syncthreads();
  return value;
}

// Reduces over all blocks of a row.
template <typename T, typename Join>
__device__ T row_reduce(T value, const Join& join) {
  value = block_reduce(value, join);
#if __CUDA_ARCH__ >= 900
  __shared__ T own;
  if (threadIdx.x == 0) own = value;
  const auto cluster = cg::this_cluster();
  cluster.sync();
  value = *cluster.map_shared_rank(&own, 0);
  for (unsigned i = 1; i < cluster.num_blocks(); ++i) value = join(value, *cluster.map_shared_rank(&own, i));
  cluster.sync();  // before any block exits or writes `own` again
#endif
  return value;
}

// --- elements ------------------------------------------------------------------------------------

// Loads elements i … i + 7 of a row. Those past its end are -inf, logits of probability 0.
__device__ void load(const float* row, int64_t i, int64_t vocab, bool wide, float (&values)[width]) {
  if (wide && i + width <= vocab) {
    const float4 low = *reinterpret_cast<const float4*>(row + i),
                 high = *reinterpret_cast<const float4*>(row + i + 4);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  } else {
    for (int j = 0; j < width; ++j) values[j] = i + j < vocab ? row[i + j] : -INFINITY;
  }
}

struct GradientRow {
  void* at;
  bool is_bf16, wide;

  __device__ void store(int64_t i, int64_t vocab, const float (&values)[width]) const {
    if (!(wide && i + width <= vocab)) {
      for (int j = 0; j < width && i + j < vocab; ++j) store_one(i + j, values[j]);
    } else if (is_bf16) {
      const __nv_bfloat162 halves[4] = {
          __floats2bfloat162_rn(values[0], values[1]), __floats2bfloat162_rn(values[2], values[3]),
          __floats2bfloat162_rn(values[4], values[5]), __floats2bfloat162_rn(values[6], values[7])};
      uint4 words;
      memcpy(&words, halves, sizeof(words));
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(at) + i) = words;
    } else {
      float* to = static_cast<float*>(at) + i;
      *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
      *reinterpret_cast<float4*>(to + 4) = {values[4], values[5], values[6], values[7]};
    }
  }

  __device__ void store_one(int64_t i, float value) const {
    if (is_bf16) {
      static_cast<__nv_bfloat16*>(at)[i] = __float2bfloat16_rn(value);
    } else {
      static_cast<float*>(at)[i] = value;
    }
  }
};

__device__ GradientRow gradient_row(const TokenRows& rows, int64_t row, bool wide) {
  const int64_t at = row * rows.gradient_stride;
  void* const to = rows.gradient_is_bf16 ? static_cast<void*>(static_cast<__nv_bfloat16*>(rows.gradient) + at)
                                         : static_cast<void*>(static_cast<float*>(rows.gradient) + at);
  return {to, rows.gradient_is_bf16, wide};
}

// --- softmax -------------------------------------------------------------------------------------

// A largest logit, Σ e^x and Σ x·e^x with x = (logit - largest) / temperature.
struct Softmax {
  float largest, sum, moment;
};

__device__ Softmax nothing() { return {-FLT_MAX, 0, 0}; }

struct JoinSoftmax {
  float inverse;

  __device__ Softmax operator()(const Softmax& a, const Softmax& b) const {
    Softmax all{fmaxf(a.largest, b.largest), 0, 0};
    for (const Softmax& part : {a, b}) {
      const float x = bounded((part.largest - all.largest) * inverse), factor = expf(x);
      all.sum += part.sum * factor;
      all.moment += (part.moment + x * part.sum) * factor;
    }
    return all;
  }
};

// Adds logits to a thread's partial softmax.
__device__ void add(Softmax& seen, const float (&logits)[width], float inverse) {
  float largest = seen.largest;
  for (const float logit : logits) largest = fmaxf(largest, logit);
  if (largest > seen.largest) {
    const float x = bounded((seen.largest - largest) * inverse), factor = expf(x);
    seen.moment = (seen.moment + x * seen.sum) * factor;
    seen.sum *= factor;
    seen.largest = largest;
  }
  for (const float logit : logits) {
    const float x = bounded((logit - largest) * inverse), e = expf(x);
    seen.sum += e;
    seen.moment += x * e;
  }
}

struct TwoSoftmaxes {
  Softmax student, teacher;
};

struct JoinTwo {
  JoinSoftmax one;
  __device__ TwoSoftmaxes operator()(const TwoSoftmaxes& a, const TwoSoftmaxes& b) const {
    return {one(a.student, b.student), one(a.teacher, b.teacher)};
  }
};

// Converts a logit to a log probability.
struct LogProb {
  float largest, inverse, log_sum;
  __device__ LogProb(const Softmax& softmax, float inverse_temperature)
      : largest(softmax.largest), inverse(inverse_temperature), log_sum(logf(softmax.sum)) {}
  __device__ float operator()(float logit) const { return bounded((logit - largest) * inverse) - log_sum; }
};

struct Sums {
  double loss, score, mass;
};

struct JoinSums {
  __device__ Sums operator()(const Sums& a, const Sums& b) const {
    return {a.loss + b.loss, a.score + b.score, a.mass + b.mass};
  }
};

// --- a loss against a teacher --------------------------------------------------------------------

struct Category {
  double p, q, loss, score;
};

// In double, because a row has few of them. A mass of 0 has the logarithm -inf, which the bound
// replaces.
__device__ Category category(DivergenceKind kind, double beta, double log_p, double log_q) {
  log_p = log_p < -1e30 ? -1e30 : log_p;
  log_q = log_q < -1e30 ? -1e30 : log_q;
  Category c{exp(log_p), exp(log_q), 0, 0};
  const auto part = category_part(kind, Mixture<double>(beta), log_p, log_q, c.p, c.q);
  c.loss = part.loss;
  c.score = part.score;
  return c;
}

__device__ double log_mass(const Softmax& softmax, float inverse) {
  return static_cast<double>(softmax.largest) * inverse + log(static_cast<double>(softmax.sum));
}

// The top k are removed from both rows, so `tail` is the bucket's mass. Every block processes all
// of the top k.
template <DivergenceKind kind>
__device__ void bucket_row(const TokenRows& rows, double beta, const Team& team, const TwoSoftmaxes& tail,
                           const float* student, const GradientRow& gradient, float scale) {
  const float inverse = rows.inverse_temperature;
  const float *top_student = rows.top_student + team.row * rows.top_k,
              *top_teacher = rows.top_teacher + team.row * rows.top_k;
  TwoSoftmaxes all = threadIdx.x == 0 ? tail : TwoSoftmaxes{nothing(), nothing()};
  const JoinTwo join{{inverse}};
  for (int64_t i = threadIdx.x; i < rows.top_k; i += threads) {
    all = join(all, {{top_student[i], 1, 0}, {top_teacher[i], 1, 0}});
  }
  all = block_reduce(all, join);
  const double all_s = log_mass(all.student, inverse), all_t = log_mass(all.teacher, inverse);
  const auto at = [&](int64_t i) {
    return category(kind, beta, static_cast<double>(top_teacher[i]) * inverse - all_t,
                    static_cast<double>(top_student[i]) * inverse - all_s);
  };
  const Category bucket =
      category(kind, beta, log_mass(tail.teacher, inverse) - all_t, log_mass(tail.student, inverse) - all_s);
  Sums sums = threadIdx.x == 0 ? Sums{bucket.loss, bucket.q * bucket.score, bucket.q} : Sums{0, 0, 0};
  for (int64_t i = threadIdx.x; i < rows.top_k; i += threads) {
    const Category c = at(i);
    sums.loss += c.loss;
    sums.score += c.q * c.score;
    sums.mass += c.q;
  }
  sums = block_reduce(sums, JoinSums{});
  if (team.rank == 0 && threadIdx.x == 0) rows.losses[team.row] = static_cast<float>(sums.loss);
  if (rows.gradient == nullptr) return;

  const double mean = sums.score / sums.mass;
  const auto slope = [&](const Category& c) {
    return static_cast<float>((gradient_by_score(kind) ? c.q * (c.score - mean) : c.q - c.p) * scale);
  };
  // A token's share of the bucket's gradient is its conditional probability, 0 if the bucket has no
  // mass.
  const LogProb log_share({tail.student.largest, tail.student.sum == 0 ? 1 : tail.student.sum, 0}, inverse);
  const float of_bucket = slope(bucket);
  for (int64_t i = team.rank * pace + threadIdx.x * width; i < rows.vocab; i += team.size * pace) {
    float values[width];
    load(student, i, rows.vocab, gradient.wide, values);
    for (float& value : values) value = expf(log_share(value)) * of_bucket;
    gradient.store(i, rows.vocab, values);
  }
  sync_row();  // the zeros just written where the k best are come first
  if (team.rank != 0) return;
  const int64_t* top = rows.top + team.row * rows.top_k;
  for (int64_t i = threadIdx.x; i < rows.top_k; i += threads) gradient.store_one(top[i], slope(at(i)));
}

template <DivergenceKind kind>
__global__ void __launch_bounds__(threads) teacher_kernel(const TokenRows rows, double beta, bool wide) {
  const Team team = cuda::team();
  const float inverse = rows.inverse_temperature;
  float *student = rows.student + team.row * rows.student_stride,
        *teacher = rows.teacher + team.row * rows.teacher_stride;
  const GradientRow gradient = gradient_row(rows, team.row, wide);
  const float scale = rows.row_weights[team.row] * inverse;
  const int64_t begin = team.rank * pace + threadIdx.x * width, step = team.size * pace;

  if (rows.top_k > 0) {
    const int64_t* top = rows.top + team.row * rows.top_k;
    for (int64_t i = team.rank * threads + threadIdx.x; i < rows.top_k; i += team.size * threads) {
      student[top[i]] = teacher[top[i]] = -INFINITY;
    }
    sync_row();
  }
  TwoSoftmaxes softmaxes{nothing(), nothing()};
  for (int64_t i = begin; i < rows.vocab; i += step) {
    float s[width], t[width];
    load(student, i, rows.vocab, wide, s);
    load(teacher, i, rows.vocab, wide, t);
    add(softmaxes.student, s, inverse);
    add(softmaxes.teacher, t, inverse);
  }
  softmaxes = row_reduce(softmaxes, JoinTwo{{inverse}});
  if (rows.top_k > 0) {
    bucket_row<kind>(rows, beta, team, softmaxes, student, gradient, scale);
    return;
  }

  const LogProb of_student(softmaxes.student, inverse), of_teacher(softmaxes.teacher, inverse);
  const Mixture<float> mix(beta);
  Sums sums{0, 0, 0};
  for (int64_t i = begin; i < rows.vocab; i += step) {
    float s[width], t[width], loss = 0, score = 0, mass = 0;
    load(student, i, rows.vocab, wide, s);
    load(teacher, i, rows.vocab, wide, t);
    for (int j = 0; j < width; ++j) {
      const float log_q = of_student(s[j]), log_p = of_teacher(t[j]), q = expf(log_q), p = expf(log_p);
      const auto part = category_part(kind, mix, log_p, log_q, p, q);
      if (i + j < rows.vocab) loss += part.loss, score += q * part.score, mass += q;
      s[j] = (q - p) * scale;
    }
    sums.loss += loss;
    sums.score += score;
    sums.mass += mass;
    if (!gradient_by_score(kind) && rows.gradient != nullptr) gradient.store(i, rows.vocab, s);
  }
  sums = row_reduce(sums, JoinSums{});
  if (team.rank == 0 && threadIdx.x == 0) rows.losses[team.row] = static_cast<float>(sums.loss);
  if (!gradient_by_score(kind) || rows.gradient == nullptr) return;

  // Divided by the mass, which rounding leaves slightly off 1: this matters if the mean is far from
  // 0.
  const auto mean = static_cast<float>(sums.score / sums.mass);
  for (int64_t i = begin; i < rows.vocab; i += step) {
    float s[width], t[width];
    load(student, i, rows.vocab, wide, s);
    load(teacher, i, rows.vocab, wide, t);
    for (int j = 0; j < width; ++j) {
      const float log_q = of_student(s[j]), log_p = of_teacher(t[j]), q = expf(log_q);
      s[j] = q * (category_part(kind, mix, log_p, log_q, expf(log_p), q).score - mean) * scale;
    }
    gradient.store(i, rows.vocab, s);
  }
}

// --- a loss on targets ---------------------------------------------------------------------------

__global__ void __launch_bounds__(threads)
    target_kernel(const TokenRows rows, const RowLoss loss, bool wide) {
  const Team team = cuda::team();
  const float inverse = rows.inverse_temperature;
  const float* logits = rows.student + team.row * rows.student_stride;
  const int64_t target = rows.targets[team.row];
  const float target_logit = logits[target];  // before the gradient may take its place
  const int64_t begin = team.rank * pace + threadIdx.x * width, step = team.size * pace;

  Softmax softmax = nothing();
  for (int64_t i = begin; i < rows.vocab; i += step) {
    float values[width];
    load(logits, i, rows.vocab, wide, values);
    add(softmax, values, inverse);
  }
  softmax = row_reduce(softmax, JoinSoftmax{inverse});

  __shared__ TokenRow shared_row;
  if (threadIdx.x == 0) {
    const int64_t r = team.row;
    const auto given = [r](const float* values) {
      return values == nullptr ? 0.0 : static_cast<double>(values[r]);
    };
    const double log_sum = log(static_cast<double>(softmax.sum));
    const double log_prob = (static_cast<double>(target_logit) - softmax.largest) * inverse - log_sum;
    const double entropy = log_sum - static_cast<double>(softmax.moment) / softmax.sum;
    const TokenOutcome token = token_outcome(loss, log_prob,
                                             {given(rows.old_log_probs), given(rows.advantages),
                                              given(rows.reference_log_probs), given(rows.grad_log_probs)});
    shared_row = token_row(loss, token, log_prob, static_cast<double>(softmax.largest) * inverse + log_sum,
                           entropy, static_cast<double>(rows.row_weights[r]) * inverse);
    if (team.rank == 0) {
      rows.losses[r] = static_cast<float>(shared_row.loss);
      if (rows.log_probs != nullptr) rows.log_probs[r] = static_cast<float>(log_prob);
      if (rows.entropies != nullptr) rows.entropies[r] = static_cast<float>(entropy);
      if (rows.ratios != nullptr) rows.ratios[r] = static_cast<float>(token.ratio);
      if (rows.clipped != nullptr) rows.clipped[r] = token.clipped;
    }
  }
  __syncthreads();
  if (rows.gradient == nullptr) return;

  const LogProb of_student(softmax, inverse);
  const GradientRow gradient = gradient_row(rows, team.row, wide);
  const auto a = static_cast<float>(shared_row.a), b = static_cast<float>(shared_row.b),
             at_target = static_cast<float>(shared_row.at_target);
  for (int64_t i = begin; i < rows.vocab; i += step) {
    float values[width];
    load(logits, i, rows.vocab, wide, values);
    for (int j = 0; j < width; ++j) {
      const float log_q = of_student(values[j]);
      values[j] = i + j == target ? at_target : expf(log_q) * (a + b * log_q);
    }
    gradient.store(i, rows.vocab, values);
  }
}

// --- launching -----------------------------------------------------------------------------------

bool in_sixteens(const void* at, int64_t stride, int64_t size) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride * size % 16 == 0;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const TokenRows& rows, cudaStream_t stream,
                   const Arguments&... arguments) {
  // The next launch would report the error again.
  const auto taken = [](cudaError_t status) {
    if (status != cudaSuccess) cudaGetLastError();
    return status;
  };
  // Code compiled for older chips has no clusters, also on a newer chip.
  cudaFuncAttributes compiled{};
  const cudaError_t status = taken(cudaFuncGetAttributes(&compiled, kernel));
  if (status != cudaSuccess) return status;
  int team = 1;
  while (compiled.ptxVersion >= 90 && team < max_team && rows.vocab >= 2 * team * pace) team *= 2;

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(team);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows.count * team));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = team > 1 ? 1 : 0;
  return taken(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace

cudaError_t token_rows(const RowLoss& loss, const TokenRows& rows, cudaStream_t stream) {
  if (rows.count < 0 || rows.count >= (int64_t{1} << 28) || rows.vocab < 1) return cudaErrorInvalidValue;
  if (rows.count == 0) return cudaSuccess;
  const bool wide =
      in_sixteens(rows.student, rows.student_stride, sizeof(float)) &&
      in_sixteens(rows.teacher, rows.teacher_stride, sizeof(float)) &&
      in_sixteens(rows.gradient, rows.gradient_stride, rows.gradient_is_bf16 ? 2 : sizeof(float));
  if (rows.teacher == nullptr) return launch(target_kernel, rows, stream, rows, loss, wide);
  const double beta = loss.divergence.beta;
  switch (loss.divergence.kind) {
    case DivergenceKind::cross_entropy:
      return launch(teacher_kernel<DivergenceKind::cross_entropy>, rows, stream, rows, beta, wide);
    case DivergenceKind::reverse_kl:
      return launch(teacher_kernel<DivergenceKind::reverse_kl>, rows, stream, rows, beta, wide);
    case DivergenceKind::jensen_shannon:
      return launch(teacher_kernel<DivergenceKind::jensen_shannon>, rows, stream, rows, beta, wide);
    default: return launch(teacher_kernel<DivergenceKind::forward_kl>, rows, stream, rows, beta, wide);
  }
}

}  // namespace nlac::cuda
