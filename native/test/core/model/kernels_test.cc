// linear.h and elementwise.h by the CPU's kernels against float64 runs of the same functions, which
// take libtorch's operators.
#include "test/core/model/kernels_reference.h"

using namespace kernels_test;
using namespace nlac;

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
  // Not bfloat16, so that every processor takes the path without a kernel.
  const at::Tensor x = at::randn({3, 40}, at::kDouble), weight = at::randn({20011, 40}, at::kDouble);
  at::Tensor result;
  const size_t bytes = largest_allocation([&] { result = linear_in_float(x, weight); });
  CHECK((result.scalar_type() == at::kFloat));
  CHECK(largest(result - at::linear(x, weight)) < 5e-5);
  CHECK(bytes < weight.numel() * sizeof(float) / 2);
}

TEST_CASE("weight gradients accumulate in float32") {
  at::manual_seed(2);
  for (const auto& [rows, out, in] : {std::tuple{1, 1, 1},
                                      {2, 6, 64},
                                      {5, 7, 65},
                                      {33, 50, 130},
                                      {513, 13, 70},
                                      {600, 40, 120},
                                      {1100, 96, 100}}) {
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
    const at::Tensor stream = at::randn({rows, n}) * 3;
    for (const bool plus_one : {false, true}) {
      CAPTURE(plus_one);
      Norm norm(1e-5);
      norm.plus_one = plus_one;
      // With plus_one the product is rounded once.
      const double allowed = plus_one ? 1.1 : 2.2;
      CHECK(half_steps(rms_norm(x, weight, norm), rms_norm(d(x), d(weight), norm), 1e-3) < allowed);
      const at::Tensor normed = rms_norm(stream, weight, norm);
      CHECK((normed.scalar_type() == at::kBFloat16));
      CHECK(half_steps(normed, rms_norm(d(stream), d(weight), norm), 1e-3) < allowed);
      at::Tensor sum = at::ones({n}), exact_sum = at::ones({n}, at::kDouble);
      const at::Tensor back = rms_norm_backward(grad, x, weight, norm, sum, more);
      const at::Tensor exact = rms_norm_backward(d(grad), d(x), d(weight), norm, exact_sum, d(more));
      CHECK(half_steps(back, exact, 1e-2) < 1.1);
      CHECK(relative(sum, exact_sum) < 1e-6);
      // Heads that lie apart, written to others that lie apart: the same bits.
      const at::Tensor product = random({rows, 2, 2, n}), apart = at::empty({rows, 3, n}, at::kBFloat16);
      const at::Tensor heads = product.select(2, 1), to = apart.narrow(1, 0, 2);
      rms_norm_heads(heads, weight, norm, to);
      CHECK(at::equal(to, rms_norm(heads, weight, norm)));
    }

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

TEST_CASE("extreme gates are finite, and NaN stays NaN") {
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

TEST_CASE("a packed matrix gives correct rows, independent of their number") {
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
      // The rows of a sum may have a larger stride than their length.
      at::Tensor wider = at::ones({200, out + 3}), sum = wider.narrow(1, 1, out);
      packed.add(x, bias, sum);
      CHECK(largest(sum - 1 - exact) < 1e-4);
      CHECK(at::equal(wider.narrow(1, out + 1, 2), at::ones({200, 2})));
      for (const int64_t rows : {1, 2, 5, 6, 7, 16, 17, 63, 97}) {
        CAPTURE(rows);
        CHECK(at::equal(packed.forward(x.narrow(0, 100, rows), bias), many.narrow(0, 100, rows)));
        CHECK(at::equal(packed.in_float(x.narrow(0, 3, rows)), in_float.narrow(0, 3, rows)));
      }
    }
}

// A matrix rounded to int8: each group's largest weight becomes 127. [out, in] f32
at::Tensor in_int8(const at::Tensor& weight) {
  std::vector<at::Tensor> groups;
  for (const at::Tensor& group : weight.to(at::kFloat).split(cpu::int8_group, 1)) {
    const at::Tensor scale = group.abs().amax(1, true) / 127;
    groups.push_back(at::where(scale > 0, (group / scale).round() * scale, at::zeros({})));
  }
  return at::cat(groups, 1);
}

TEST_CASE("a matrix in int8: weights are within half a step, and rows are independent") {
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
    // Without products of bfloat16 pairs, rows are rounded to 16 bits.
    const bool rounds = !bf16::available() && cpu::all_kernels().front()->round_rows != nullptr;
    const double allowed = rounds && in % 2 == 0 ? 5e-5 : 1e-6;
    const at::Tensor nearest = in_int8(weight), exact = product(nearest);
    const at::Tensor half_step = weight.to(at::kFloat).abs().amax(1, true) / 254;
    CHECK(((nearest - weight).abs() <= half_step * 1.0001).all().item<bool>());

    const PackedMatrix packed(weight, true);
    const at::Tensor in_float = packed.in_float(x);
    CHECK(relative(in_float, exact, 1e-30) < allowed);
    CHECK(in_float.select(1, out - 1).eq(0).all().item<bool>());
    const at::Tensor many = packed.forward(x, bias);
    CHECK((many.scalar_type() == at::kBFloat16));
    const at::Tensor with_bias = exact + bias.to(at::kDouble);
    if (allowed > 1e-6)
      CHECK(relative(many, with_bias) < 4e-3);  // small sums have the error of their large terms
    else
      CHECK(half_steps(many, with_bias, 0.01) < 1.1);
    at::Tensor sum = at::ones({100, out});
    packed.add(x, bias, sum);
    CHECK(relative(sum - 1, with_bias) < 10 * allowed);
    for (const int64_t rows : {1, 2, 5, 6, 7, 16, 17, 63, 97}) {
      CAPTURE(rows);
      CHECK(at::equal(packed.in_float(x.narrow(0, 3, rows)), in_float.narrow(0, 3, rows)));
      CHECK(at::equal(packed.forward(x.narrow(0, 3, rows), bias), many.narrow(0, 3, rows)));
    }

    // Weights that are multiples of the step are exact; each group's scale is a power of two.
    at::Tensor steps = at::randint(-127, 128, {out, in}, at::kDouble);
    for (const at::Tensor& group : steps.split(cpu::int8_group, 1)) {
      group.select(1, 0).fill_(127);
      group.mul_(at::pow(2.0, at::randint(-12, 3, {out, 1}, at::kDouble)));
    }
    const at::Tensor stepped = steps.to(at::kBFloat16);
    CHECK(at::equal(stepped.to(at::kDouble), steps));
    CHECK(relative(PackedMatrix(stepped, true).in_float(x), product(steps)) < allowed);

    for (const float broken : {INFINITY, -INFINITY, NAN}) {
      weight[0][in - 1] = broken;
      const at::Tensor result = PackedMatrix(weight, true).in_float(x);
      CHECK_FALSE(result.select(1, 0).isfinite().any().item<bool>());
      CHECK(at::equal(result.narrow(1, 1, out - 1), in_float.narrow(1, 1, out - 1)));
    }
  }
}
