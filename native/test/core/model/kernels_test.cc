// The bfloat16 CPU kernels behind linear.h, elementwise.h and attention.h against float64 runs of the same
// functions, which take libtorch's operators. On a processor without the kernels both sides are libtorch's.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

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

double relative(const at::Tensor& result, const at::Tensor& exact) {
  return ((result.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
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
      CHECK(at::equal(in_float.narrow(0, rows - 1, 1), linear_in_float(all.narrow(0, rows - 1, 1), weight)));
    }
  }
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
       {std::tuple{3, 1, 64}, {4, 2, 128}, {2, 2, 64}, {6, 2, 32} /* no kernel */}) {
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
    const auto [exact, exact_gradients] = run(qkv.to(at::kDouble), grad.to(at::kDouble));
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

TEST_CASE("the plain attention that other devices run, forward and backward") {
  at::manual_seed(6);
  const int64_t n = 37;
  const at::Tensor q = at::randn({n, 6, 32}, at::kDouble), k = at::randn({n, 2, 32}, at::kDouble),
                   v = at::randn({n, 2, 32}, at::kDouble), grad = at::randn({n, 6, 32}, at::kDouble);
  const Attended attended = packed_attention(q, k, v, {n});
  at::Tensor grad_q = at::empty_like(q), grad_k = at::empty_like(k), grad_v = at::empty_like(v);
  packed_attention_backward(grad, q, k, v, attended, {n}, grad_q, grad_k, grad_v);
  const at::Tensor keys = k.transpose(0, 1), values = v.transpose(0, 1);
  const at::Tensor output = reference_attention(q, keys, values);
  CHECK(largest(output - attended.output) < 1e-12);
  const AttentionGradients gradients = reference_attention_backward(grad, q, keys, values, output);
  CHECK(largest(gradients.q - grad_q) < 1e-12);
  CHECK(largest(gradients.keys.transpose(0, 1) - grad_k) < 1e-12);
  CHECK(largest(gradients.values.transpose(0, 1) - grad_v) < 1e-12);
}

TEST_CASE("attention over caches: one token, several, and both in one step") {
  at::manual_seed(5);
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{9, 3, 64}, {5, 1, 128}, {4, 2, 32} /* no kernel */}) {
    CAPTURE(heads);
    CAPTURE(head_dim);
    struct Share {
      int64_t past, fresh;
    };
    const std::vector<Share> shares{{0, 1}, {15, 1}, {16, 1}, {200, 1}, {0, 70}, {100, 7}, {63, 2}, {31, 1}};
    int64_t tokens = 0;
    for (const Share& share : shares) tokens += share.fresh;
    const at::Tensor q = random({tokens, heads, head_dim}, 1.5), k = random({tokens, kv_heads, head_dim}),
                     v = random({tokens, kv_heads, head_dim});
    std::vector<CachedSequence> sequences;
    for (const Share& share : shares)
      sequences.push_back({random({kv_heads, share.past + share.fresh + 3, head_dim}),
                           random({kv_heads, share.past + share.fresh + 3, head_dim}), share.past,
                           share.fresh});
    std::vector<at::Tensor> slack;
    for (const CachedSequence& s : sequences) slack.push_back(s.keys.narrow(1, s.past + s.fresh, 3).clone());
    at::Tensor output = at::full_like(q, NAN);
    cached_attention(q, k, v, sequences, output);
    int64_t start = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const CachedSequence& s = sequences[i];
      CAPTURE(s.past);
      CAPTURE(s.fresh);
      CHECK(at::equal(s.keys.narrow(1, s.past, s.fresh), k.narrow(0, start, s.fresh).transpose(0, 1)));
      CHECK(at::equal(s.values.narrow(1, s.past, s.fresh), v.narrow(0, start, s.fresh).transpose(0, 1)));
      CHECK(at::equal(s.keys.narrow(1, s.past + s.fresh, 3), slack[i]));
      const int64_t length = s.past + s.fresh;
      const at::Tensor exact = reference_attention(q.narrow(0, start, s.fresh).to(at::kDouble),
                                                   s.keys.narrow(1, 0, length).to(at::kDouble),
                                                   s.values.narrow(1, 0, length).to(at::kDouble));
      CHECK(relative(output.narrow(0, start, s.fresh), exact) < 4e-3);
      start += s.fresh;
    }
  }
}
