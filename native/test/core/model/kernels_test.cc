// linear.h, elementwise.h and attention.h by the CPU's kernels against float64 runs of the same functions, which take
// libtorch's operators; attention, however it is computed, against its formula.
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/cpu/kernels.h"
#include "core/model/attention.h"
#include "core/model/elementwise.h"
#include "core/model/linear.h"

using namespace nlac;

namespace {

at::Tensor random(at::IntArrayRef shape, double scale = 1.0) {
  return (at::randn(shape) * scale).to(at::kBFloat16);
}

double largest(const at::Tensor& x) { return x.to(at::kDouble).abs().max().item<double>(); }

// The largest difference from the exact result, in units of half a bfloat16 step at that result's size.
double half_steps(const at::Tensor& result, const at::Tensor& exact, double floor) {
  const at::Tensor step = exact.abs().clamp_min(floor) * std::ldexp(1.0, -8);
  return largest((result.to(at::kDouble) - exact) / step);
}

double relative(const at::Tensor& result, const at::Tensor& exact, double floor = 0) {
  return (result.to(at::kDouble) - exact).norm().item<double>() /
         std::max(exact.norm().item<double>(), floor);
}

// Causal attention as the formula says it, in float64, with autograd's gradients. q [fresh, heads, head_dim],
// k and v [length, kv_heads, head_dim], the queries being the last.
struct Formula {
  at::Tensor output, q, k, v;
};
Formula formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& grad) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble, false, true).requires_grad_(); };
  const std::vector<at::Tensor> inputs{leaf(q), leaf(k), leaf(v)};
  const int64_t group = q.size(1) / k.size(1), fresh = q.size(0), length = k.size(0);
  const auto of_heads = [&](const at::Tensor& x) { return x.repeat_interleave(group, 1); };
  const at::Tensor scores =
      at::einsum("qhd,khd->hqk", {inputs[0], of_heads(inputs[1])}) / std::sqrt(q.size(2));
  const at::Tensor ahead = at::ones({fresh, length}, at::kBool).triu(length - fresh + 1);
  const at::Tensor output = at::einsum(
      "hqk,khd->qhd", {at::softmax(scores.masked_fill(ahead, -INFINITY), -1), of_heads(inputs[2])});
  const auto gradients = torch::autograd::grad({output}, inputs, {grad.to(at::kDouble)});
  return {output.detach(), gradients[0], gradients[1], gradients[2]};
}

// Stands in for libtorch's allocator on the CPU and remembers the largest request.
class Watch final : public c10::Allocator {
 public:
  explicit Watch(c10::Allocator* real) : real_(real) {}
  c10::DataPtr allocate(size_t bytes) override {
    size_t before = largest.load();
    while (before < bytes && !largest.compare_exchange_weak(before, bytes)) {
    }
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    real_->copy_data(to, from, bytes);
  }
  std::atomic<size_t> largest = 0;

 private:
  c10::Allocator* real_;
};

// Bytes of the largest tensor that `body` makes.
template <typename Body>
size_t largest_allocation(const Body& body) {
  c10::Allocator* const real = c10::GetCPUAllocator();
  Watch watch(real);
  c10::SetCPUAllocator(&watch);
  body();
  c10::SetCPUAllocator(real);
  return watch.largest;
}

struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("products of few rows: any shape, one rounding, rows independent of their neighbours") {
  at::manual_seed(1);
  for (const auto& [out, in] : {std::pair{1, 1}, {7, 33}, {16, 32}, {33, 40}, {97, 576}, {130, 1000}}) {
    const at::Tensor weight = random({out, in}), bias = random({out}), all = random({70, in});
    const at::Tensor exact = at::linear(all.to(at::kDouble), weight.to(at::kDouble));
    const double size = std::sqrt(static_cast<double>(in));
    for (const int64_t rows : {1, 2, 3, 8, 13, 32, 64, 65, 70}) {
      CAPTURE(out);
      CAPTURE(in);
      CAPTURE(rows);
      const at::Tensor x = all.narrow(0, 0, rows), expected = exact.narrow(0, 0, rows);
      const at::Tensor in_float = linear_in_float(x, weight);
      CHECK((in_float.scalar_type() == at::kFloat));
      CHECK(largest(in_float - expected) < 1e-5 * size);
      CHECK(half_steps(linear_forward(x, weight, {}), expected, 0.01 * size) < 1.1);
      CHECK(half_steps(linear_forward(x, weight, bias), expected + bias.to(at::kDouble), 0.01 * size) < 2.1);
      at::Tensor sum = at::full({rows, out}, 1e-3);
      add_linear(x, weight, bias, sum);
      CHECK(half_steps(sum, expected + bias.to(at::kDouble) + 1e-3, 0.01 * size) < 2.1);
      CHECK(at::equal(in_float.narrow(0, rows - 1, 1), linear_in_float(all.narrow(0, rows - 1, 1), weight)));
    }
  }
}

TEST_CASE("logits in float32 need no wider copy of the vocabulary matrix") {
  at::manual_seed(8);
  // Not bfloat16, so that the path without a kernel is taken on every processor.
  const at::Tensor x = at::randn({3, 40}, at::kDouble), weight = at::randn({20011, 40}, at::kDouble);
  at::Tensor result;
  const size_t bytes = largest_allocation([&] { result = linear_in_float(x, weight); });
  CHECK((result.scalar_type() == at::kFloat));
  CHECK(largest(result - at::linear(x, weight)) < 5e-5);
  CHECK(bytes < weight.numel() * sizeof(float) / 2);
}

TEST_CASE("weight gradients add to what is there, in float32") {
  at::manual_seed(2);
  for (const auto& [rows, out, in] :
       {std::tuple{1, 1, 1}, {2, 6, 64}, {5, 7, 65}, {33, 50, 130}, {513, 13, 70}, {1100, 96, 100}}) {
    CAPTURE(rows);
    const at::Tensor grad = random({rows, out}), x = random({rows, in}), weight = random({out, in});
    const at::Tensor before = at::randn({out, in}), bias_before = at::randn({out});
    at::Tensor sum = before.clone(), bias_sum = bias_before.clone();
    const at::Tensor at_x = linear_backward(grad, x, weight, sum, bias_sum);
    const at::Tensor g = grad.to(at::kDouble);
    const double size = std::sqrt(static_cast<double>(rows));
    CHECK(largest(sum - (before.to(at::kDouble) + at::mm(g.t(), x.to(at::kDouble)))) < 2e-5 * size);
    CHECK(largest(bias_sum - (bias_before.to(at::kDouble) + g.sum(0))) < 2e-5 * size);
    CHECK(relative(at_x, at::mm(g, weight.to(at::kDouble))) < 0.01);
    const at::Tensor untouched;
    CHECK(at::equal(linear_backward(grad, x, weight, untouched, untouched), at_x));
  }
}

TEST_CASE("norms, gates and rotations, forward and backward") {
  at::manual_seed(3);
  for (const auto& [rows, n] : {std::pair{1, 16}, {3, 40}, {70, 576}, {200, 33}}) {
    CAPTURE(rows);
    CAPTURE(n);
    const at::Tensor x = random({rows, n}, 3), weight = random({n}), grad = random({rows, n}),
                     more = random({rows, n});
    const auto d = [](const at::Tensor& t) { return t.to(at::kDouble); };
    CHECK(half_steps(rms_norm(x, weight, 1e-5), rms_norm(d(x), d(weight), 1e-5), 1e-3) < 2.2);
    const at::Tensor stream = at::randn({rows, n}) * 3, normed = rms_norm(stream, weight, 1e-5);
    CHECK((normed.scalar_type() == at::kBFloat16));
    CHECK(half_steps(normed, rms_norm(d(stream), d(weight), 1e-5), 1e-3) < 2.2);
    at::Tensor sum = at::ones({n}), exact_sum = at::ones({n}, at::kDouble);
    const at::Tensor back = rms_norm_backward(grad, x, weight, 1e-5, sum, more);
    const at::Tensor exact = rms_norm_backward(d(grad), d(x), d(weight), 1e-5, exact_sum, d(more));
    CHECK(half_steps(back, exact, 1e-2) < 1.1);
    CHECK(relative(sum, exact_sum) < 1e-6);

    const at::Tensor gate_up = random({rows, 2 * n}, 4);
    CHECK(half_steps(gated_silu(gate_up), gated_silu(d(gate_up)), 1e-3) < 1.1);
    CHECK(half_steps(gated_silu_backward(grad, gate_up), gated_silu_backward(d(grad), d(gate_up)), 1e-3) <
          1.1);
  }
  ModelConfig config;
  for (const int64_t head_dim : {12, 32, 64, 128}) {
    CAPTURE(head_dim);
    config.head_dim = head_dim;
    const Rope rope = Rope::make(config, 50, at::kCPU);
    const at::Tensor wide = random({20, 5 * head_dim}), positions = at::randint(50, {20}, at::kLong);
    const auto heads = [&](const at::Tensor& t) {
      return t.narrow(1, head_dim, 3 * head_dim).unflatten(1, {3, -1});
    };
    at::Tensor result = wide.clone(), exact = wide.to(at::kDouble, false, true);
    rotate(heads(result), rope, positions, false);
    rotate(heads(exact), rope, positions, false);
    CHECK(half_steps(heads(result), heads(exact), 1e-2) < 1.1);
    CHECK(at::equal(result.narrow(1, 0, head_dim), wide.narrow(1, 0, head_dim)));  // neighbours stay
    CHECK(at::equal(result.narrow(1, 4 * head_dim, head_dim), wide.narrow(1, 4 * head_dim, head_dim)));
    rotate(heads(exact), rope, positions, true);
    CHECK(largest(exact - wide.to(at::kDouble)) < 1e-6);
  }
}

TEST_CASE("extreme gates are finite, what is not a number stays so") {
  const double values[] = {0, 1e-30, -1e-30, 20, -20, 88, -88, 89, -89, 1e4, -1e4, 1e30, -1e30};
  const at::Tensor gate = at::tensor(at::ArrayRef<double>(values)).to(at::kBFloat16);
  const at::Tensor gate_up = at::cat({gate, at::full_like(gate, 0.5)}).unsqueeze(0);
  const at::Tensor result = gated_silu(gate_up), exact = gated_silu(gate_up.to(at::kDouble));
  CHECK(result.isfinite().all().item<bool>());
  CHECK(half_steps(result, exact, 1e-30) < 1.1);
  const at::Tensor back = gated_silu_backward(at::ones_like(gate).unsqueeze(0), gate_up);
  CHECK(back.isfinite().all().item<bool>());

  at::Tensor broken = random({2, 64});
  broken[0][3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(gated_silu(broken)[0][3].isnan().item<bool>());
  const at::Tensor normed = rms_norm(broken, at::ones({64}, at::kBFloat16), 1e-6);
  CHECK(normed[0].isnan().all().item<bool>());
  CHECK(normed[1].isfinite().all().item<bool>());
}

TEST_CASE("attention over packed sequences, forward and backward") {
  at::manual_seed(4);
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{3, 1, 64}, {4, 2, 128}, {2, 2, 64}, {6, 2, 32}, {4, 1, 20}}) {
    CAPTURE(heads);
    CAPTURE(head_dim);
    const std::vector<int64_t> lengths{1, 2, 47, 48, 49, 64, 65, 200};
    int64_t tokens = 0;
    for (const int64_t length : lengths) tokens += length;
    // Views of one matrix, as the decoder has them; large scores make the softmax sharp.
    const at::Tensor qkv = random({tokens, heads + 2 * kv_heads, head_dim}, 1.5);
    const at::Tensor grad = random({tokens, heads, head_dim});
    const auto parts = [&](const at::Tensor& all) {
      return std::tuple{all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
                        all.narrow(1, heads + kv_heads, kv_heads)};
    };
    const auto run = [&](const at::Tensor& all, const at::Tensor& upstream) {
      const auto [q, k, v] = parts(all);
      const Attended attended = packed_attention(q, k, v, lengths);
      at::Tensor at_all = at::full_like(all, NAN);
      const auto [grad_q, grad_k, grad_v] = parts(at_all);
      packed_attention_backward(upstream, q, k, v, attended, lengths, grad_q, grad_k, grad_v);
      return std::pair{attended.output, at_all};
    };
    const auto [output, gradients] = run(qkv, grad);
    const auto [all_q, all_k, all_v] = parts(qkv);
    at::Tensor exact = at::empty_like(output, at::kDouble),
               exact_gradients = at::empty_like(qkv, at::kDouble);
    int64_t start = 0;
    for (const int64_t length : lengths) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, length); };
      const Formula one = formula(part(all_q), part(all_k), part(all_v), part(grad));
      part(exact).copy_(one.output);
      part(exact_gradients).copy_(at::cat({one.q, one.k, one.v}, 1));
      start += length;
    }
    const auto [double_output, double_gradients] = run(qkv.to(at::kDouble), grad.to(at::kDouble));
    CHECK(relative(double_output, exact) < 1e-13);
    CHECK(relative(double_gradients, exact_gradients) < 1e-13);
    CHECK(relative(output, exact) < 4e-3);
    CHECK(largest(output - exact) < 0.02 * largest(exact));
    const auto [q, k, v] = parts(gradients);
    const auto [exact_q, exact_k, exact_v] = parts(exact_gradients);
    CHECK(relative(q, exact_q) < 6e-3);
    CHECK(relative(k, exact_k) < 6e-3);
    CHECK(relative(v, exact_v) < 6e-3);

    Threads two(2);
    const auto [again, gradients_again] = run(qkv, grad);
    CHECK(at::equal(again, output));
    CHECK(at::equal(gradients_again, gradients));
  }
}

TEST_CASE("the blockwise attention that other devices run is the formula, with its gradients") {
  at::manual_seed(6);
  for (const auto& [heads, kv_heads, head_dim] : {std::tuple{4, 4, 8}, {6, 2, 32}, {5, 1, 64}}) {
    CAPTURE(heads);
    const std::vector<int64_t> lengths{1, 2, 31, 64, 101};
    const at::Tensor qkv = at::randn({199, heads + 2 * kv_heads, head_dim}, at::kDouble) * 1.5;
    const at::Tensor grad = at::randn({199, heads, head_dim}, at::kDouble);
    for (const auto& [dtype, allowed] :
         {std::pair{at::kDouble, 1e-13}, {at::kFloat, 3e-6}, {at::kBFloat16, 1e-2}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      // Views of one matrix, as the decoder has them.
      const at::Tensor all = qkv.to(dtype), upstream = grad.to(dtype);
      int64_t start = 0;
      for (const int64_t length : lengths) {
        const auto part = [&](int64_t first, int64_t count) {
          return all.narrow(0, start, length).narrow(1, first, count);
        };
        const at::Tensor q = part(0, heads), k = part(heads, kv_heads), v = part(heads + kv_heads, kv_heads),
                         at_output = upstream.narrow(0, start, length);
        const Formula exact = formula(q, k, v, at_output);
        for (const int64_t block : {1, 7, 32, 64, 1000}) {
          CAPTURE(length);
          CAPTURE(block);
          const at::Tensor keys = k.transpose(0, 1), values = v.transpose(0, 1);
          const AttendedBlocks attended = blockwise_attention(q, keys, values, block);
          CHECK((attended.output.scalar_type() == dtype));
          CHECK(relative(attended.output, exact.output) < allowed);
          const AttentionGradients gradients =
              blockwise_attention_backward(at_output, q, keys, values, attended, block);
          CHECK((gradients.q.scalar_type() == dtype));
          // Those of q and k are differences of what v's is made of; among few keys little of it is left.
          const double floor = exact.v.norm().item<double>();
          CHECK(relative(gradients.q, exact.q, floor) < allowed);
          CHECK(relative(gradients.keys.transpose(0, 1), exact.k, floor) < allowed);
          CHECK(relative(gradients.values.transpose(0, 1), exact.v) < allowed);
          // The last queries alone, as after a cache.
          const int64_t fresh = (length + 2) / 3;
          const at::Tensor last =
              blockwise_attention(q.narrow(0, length - fresh, fresh), keys, values, block).output;
          CHECK(relative(last, exact.output.narrow(0, length - fresh, fresh)) < allowed);
        }
        start += length;
      }
    }
  }
}

TEST_CASE("extreme scores leave blockwise attention finite") {
  at::manual_seed(7);
  const at::Tensor q = at::randn({20, 2, 16}) * 1e4, k = at::randn({20, 2, 16}) * 1e4,
                   v = at::randn({20, 2, 16}), grad = at::randn({20, 2, 16});
  const at::Tensor keys = k.transpose(0, 1), values = v.transpose(0, 1);
  const AttendedBlocks attended = blockwise_attention(q, keys, values, 8);
  CHECK(relative(attended.output, formula(q, k, v, grad).output) < 1e-5);
  const AttentionGradients gradients = blockwise_attention_backward(grad, q, keys, values, attended, 8);
  for (const at::Tensor& gradient : {gradients.q, gradients.keys, gradients.values})
    CHECK(gradient.isfinite().all().item<bool>());
}

TEST_CASE("attention makes nothing that grows with the square of the length") {
  const auto bytes = [](const auto& attend, at::ScalarType dtype, int64_t length) {
    const auto make = [&](int64_t heads) { return at::ones({length, heads, 32}, dtype); };
    const at::Tensor q = make(4), k = make(2), v = make(2);
    return largest_allocation([&] { attend(q, k, v); });
  };
  const auto blockwise = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor keys = k.transpose(0, 1), values = v.transpose(0, 1);
    const AttendedBlocks attended = blockwise_attention(q, keys, values, 16);
    blockwise_attention_backward(q, q, keys, values, attended, 16);
  };
  const auto packed = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const std::vector<int64_t> lengths{q.size(0)};
    const Attended attended = packed_attention(q, k, v, lengths);
    packed_attention_backward(q, q, k, v, attended, lengths, at::empty_like(q), at::empty_like(k),
                              at::empty_like(v));
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    CHECK(bytes(blockwise, dtype, 2048) <= 2 * bytes(blockwise, dtype, 1024));
    CHECK(bytes(packed, dtype, 2048) <= 2 * bytes(packed, dtype, 1024));
  }
}

TEST_CASE("attention over blocks: one token, several, and both in one step, alone as in company") {
  at::manual_seed(5);
  for (const auto& [type, heads, kv_heads, head_dim] : {std::tuple{at::kBFloat16, 9, 3, 64},
                                                        {at::kBFloat16, 5, 1, 128},
                                                        {at::kBFloat16, 4, 2, 32},
                                                        {at::kBFloat16, 5, 1, 34},
                                                        {at::kFloat, 9, 3, 64},
                                                        {at::kFloat, 5, 1, 34},
                                                        {at::kFloat, 4, 4, 32},
                                                        {at::kFloat, 14, 2, 6}}) {
    CAPTURE(std::string(c10::toString(type)));
    CAPTURE(heads);
    CAPTURE(head_dim);
    ModelConfig config;
    config.layers = 2;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.head_dim = head_dim;
    KvStore store(config, type);
    CHECK(store.packed());
    struct Share {
      int64_t past, fresh;
    };
    const std::vector<Share> shares{{0, 1},   {15, 1}, {16, 1}, {200, 1}, {0, 70},
                                    {100, 7}, {63, 2}, {31, 1}, {16, 48}};
    // One after another in q, k and v; tables of blocks in no order.
    std::vector<BlockTable> tables;
    std::vector<int64_t> starts{0};
    int32_t next = 200;
    for (const auto& [past, fresh] : shares) {
      tables.emplace_back();
      for (int64_t token = 0; token < past + fresh; token += kBlockTokens) tables.back().push_back(next -= 3);
      starts.push_back(starts.back() + past + fresh);
    }
    store.reserve(200, 200);
    const int64_t tokens = starts.back();
    const at::Tensor q = random({tokens, heads, head_dim}, 1.5).to(type),
                     k = random({tokens, kv_heads, head_dim}).to(type),
                     v = random({tokens, kv_heads, head_dim}).to(type);
    // The rows of a step are the tokens [from, to) of each share.
    const auto run = [&](const std::vector<std::tuple<size_t, int64_t, int64_t>>& parts) {
      std::vector<KvSlice> slices;
      std::vector<at::Tensor> rows;
      for (const auto& [share, from, to] : parts) {
        slices.push_back({&tables[share], from, to - from});
        rows.push_back(at::arange(starts[share] + from, starts[share] + to));
      }
      const at::Tensor chosen = at::cat(rows), own = q.index_select(0, chosen);
      at::Tensor output = at::full_like(own, NAN);
      CachedAttention(store, slices, at::kCPU)
          .run(1, own, k.index_select(0, chosen), v.index_select(0, chosen), output);
      return output;
    };
    std::vector<std::tuple<size_t, int64_t, int64_t>> pasts, all;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i].past > 0) pasts.push_back({i, 0, shares[i].past});
      all.push_back({i, shares[i].past, shares[i].past + shares[i].fresh});
    }
    run(pasts);
    const at::Tensor together = run(all);
    int64_t row = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      const auto [past, fresh] = shares[i];
      CAPTURE(past);
      CAPTURE(fresh);
      const auto of = [&](const at::Tensor& x) { return x.narrow(0, starts[i], past + fresh); };
      const at::Tensor queries = of(q).narrow(0, past, fresh), mine = together.narrow(0, row, fresh);
      CHECK(relative(mine, formula(queries, of(k), of(v), queries).output) <
            (type == at::kFloat ? 1e-6 : 4e-3));
      if (store.packed()) {
        CHECK(at::equal(run({all[i]}), mine));  // alone
        if (past > 0) run({{i, 0, past / 2}, {i, past / 2, past}});
        for (int64_t token = 0; token < fresh; ++token)  // one by one
          CHECK(at::equal(run({{i, past + token, past + token + 1}}), mine.narrow(0, token, 1)));
      }
      row += fresh;
    }
  }
}

TEST_CASE("a packed matrix: its rows are right, and the same however many there are") {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    for (const auto& [out, in] : {std::pair{64, 64}, {90, 70}, {1, 2}, {130, 33}, {576, 1536}}) {
      CAPTURE(std::string(c10::toString(type)));
      CAPTURE(out);
      CAPTURE(in);
      const at::Tensor weight = random({out, in}, 0.1).to(type), bias = random({out}).to(type),
                       x = random({200, in}).to(type);
      const PackedMatrix packed(weight);
      const at::Tensor exact = at::addmm(bias.to(at::kDouble), x.to(at::kDouble), weight.to(at::kDouble).t());
      const at::Tensor many = packed.forward(x, bias), in_float = packed.in_float(x);
      CHECK((many.scalar_type() == type));
      if (type == at::kFloat)
        CHECK(largest(many - exact) < 1e-4);
      else
        CHECK(half_steps(many, exact, 0.25) < 1.5);
      CHECK(largest(in_float + bias - exact) < 1e-4);
      // A sum's rows may lie further apart than they are long.
      at::Tensor wider = at::ones({200, out + 3}), sum = wider.narrow(1, 1, out);
      packed.add(x, bias, sum);
      CHECK(largest(sum - 1 - exact) < 1e-4);
      CHECK(at::equal(wider.narrow(1, out + 1, 2), at::ones({200, 2})));
      for (const int64_t rows : {1, 2, 5, 6, 7, 63, 97}) {
        CAPTURE(rows);
        CHECK(at::equal(packed.forward(x.narrow(0, 100, rows), bias), many.narrow(0, 100, rows)));
        CHECK(at::equal(packed.in_float(x.narrow(0, 3, rows)), in_float.narrow(0, 3, rows)));
      }
    }
}

// A matrix as it is rounded to int8: each group's largest becomes 127. [out, in] f32
at::Tensor in_int8(const at::Tensor& weight) {
  std::vector<at::Tensor> groups;
  for (const at::Tensor& group : weight.to(at::kFloat).split(cpu::int8_group, 1)) {
    const at::Tensor scale = group.abs().amax(1, true) / 127;
    groups.push_back(at::where(scale > 0, (group / scale).round() * scale, at::zeros({})));
  }
  return at::cat(groups, 1);
}

TEST_CASE("a matrix in int8: no weight is half a step off, and a row's result is its own") {
  at::manual_seed(10);
  for (const auto& [out, in] : {std::pair{64, 64}, {90, 70}, {1, 2}, {131, 34}, {576, 1536}}) {
    CAPTURE(out);
    CAPTURE(in);
    const at::Tensor x = random({100, in}), bias = random({out});
    const auto product = [&](const at::Tensor& weight) {
      return at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
    };
    const at::Tensor sizes = at::pow(10.0, at::randint(-3, 4, {out, 1}));
    at::Tensor weight = (random({out, in}, 0.1) * sizes).to(at::kBFloat16);
    weight[out - 1].zero_();
    const at::Tensor nearest = in_int8(weight), exact = product(nearest);
    const at::Tensor half_step = weight.to(at::kFloat).abs().amax(1, true) / 254;
    CHECK(((nearest - weight).abs() <= half_step * 1.0001).all().item<bool>());

    const PackedMatrix packed(weight, true);
    const at::Tensor in_float = packed.in_float(x);
    CHECK(relative(in_float, exact, 1e-30) < 1e-6);
    CHECK(in_float.select(1, out - 1).eq(0).all().item<bool>());
    const at::Tensor many = packed.forward(x, bias);
    CHECK((many.scalar_type() == at::kBFloat16));
    CHECK(half_steps(many, exact + bias.to(at::kDouble), 0.01) < 1.1);
    at::Tensor sum = at::ones({100, out});
    packed.add(x, bias, sum);
    CHECK(relative(sum - 1, exact + bias.to(at::kDouble)) < 1e-5);
    for (const int64_t rows : {1, 2, 5, 6, 7, 63, 97}) {
      CAPTURE(rows);
      CHECK(at::equal(packed.in_float(x.narrow(0, 3, rows)), in_float.narrow(0, 3, rows)));
      CHECK(at::equal(packed.forward(x.narrow(0, 3, rows), bias), many.narrow(0, 3, rows)));
    }

    // Of weights that are steps nothing is rounded; a power of two is an exact scale, each group's its own.
    at::Tensor steps = at::randint(-127, 128, {out, in}, at::kDouble);
    for (const at::Tensor& group : steps.split(cpu::int8_group, 1)) {
      group.select(1, 0).fill_(127);
      group.mul_(at::pow(2.0, at::randint(-12, 3, {out, 1}, at::kDouble)));
    }
    const at::Tensor stepped = steps.to(at::kBFloat16);
    CHECK(at::equal(stepped.to(at::kDouble), steps));
    CHECK(relative(PackedMatrix(stepped, true).in_float(x), product(steps)) < 1e-6);

    for (const float broken : {INFINITY, -INFINITY, NAN}) {
      weight[0][in - 1] = broken;
      const at::Tensor result = PackedMatrix(weight, true).in_float(x);
      CHECK_FALSE(result.select(1, 0).isfinite().any().item<bool>());
      CHECK(at::equal(result.narrow(1, 1, out - 1), in_float.narrow(1, 1, out - 1)));
    }
  }
}
