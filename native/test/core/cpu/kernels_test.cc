// The kernels of every supported instruction set, in float32 and bfloat16, against float64.
#include "core/cpu/kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/cpu/tensors.h"
#include "core/model/elementwise.h"

using namespace nlac;
using cpu::Bits;

namespace {

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble, false, true); }

template <typename Number>
constexpr at::ScalarType type_of = std::is_same_v<Number, float> ? at::kFloat : at::kBFloat16;
// Relative errors that one rounding of every result leaves.
template <typename Number>
constexpr double precision = std::is_same_v<Number, float> ? 1e-6 : 4e-3;

double relative(const at::Tensor& result, const at::Tensor& exact) {
  return (wide(result) - exact).norm().item<double>() / std::max(1e-30, exact.norm().item<double>());
}

template <typename Number>
Number* data(const at::Tensor& x) {
  return cpu::mutable_numbers<Number>(x);
}

// Calls check(kernels, those of the number, number) for every set and both numbers.
template <typename Check>
void of_every_set(const Check& check) {
  at::manual_seed(9);
  for (size_t set = 0; set < cpu::all_kernels().size(); ++set) {
    CAPTURE(set);
    const cpu::Kernels& kernels = *cpu::all_kernels()[set];
    check(kernels, kernels.f32, float{});
    check(kernels, kernels.bf16, Bits{});
  }
}

constexpr std::pair<int64_t, int64_t> sizes[] = {{1, 1},   {3, 7},  {2, 16},  {7, 31},
                                                 {13, 64}, {5, 97}, {70, 130}};

}  // namespace

TEST_CASE("norms, gates and rotations of every set, forward and backward, for any size") {
  of_every_set([]<typename Number>(const cpu::Kernels&, const cpu::NumberKernels<Number>& kernels, Number) {
    constexpr auto type = type_of<Number>;
    constexpr double allowed = precision<Number>;
    for (const auto& [rows, n] : sizes) {
      CAPTURE(rows);
      CAPTURE(n);
      const auto make = [&](double scale) { return (at::randn({rows, n}) * scale).to(type); };
      const at::Tensor x = make(3), weight = at::randn({n}).to(type), grad = make(1), residual = make(1);
      const at::Tensor normed = at::empty_like(x), back = at::empty_like(x), sum = at::ones({n});
      const at::Tensor stream = at::randn({rows, n}) * 3;
      for (const bool plus_one : {false, true}) {
        CAPTURE(plus_one);
        Norm norm(1e-5);
        norm.plus_one = plus_one;
        kernels.rms_norm(data<Number>(x), rows, n, data<Number>(weight), plus_one, 1e-5f,
                         data<Number>(normed));
        CHECK(relative(normed, rms_norm(wide(x), wide(weight), norm)) < 2 * allowed);
        kernels.rms_norm_of_f32(data<float>(stream), rows, n, data<Number>(weight), plus_one, 1e-5f,
                                data<Number>(normed));
        CHECK(relative(normed, rms_norm(wide(stream), wide(weight), norm)) < 2 * allowed);
        sum.fill_(1);
        at::Tensor exact_sum = at::ones({n}, at::kDouble);
        const at::Tensor exact =
            rms_norm_backward(wide(grad), wide(x), wide(weight), norm, exact_sum, wide(residual));
        kernels.rms_norm_backward(data<Number>(grad), data<Number>(x), data<Number>(residual), rows, n,
                                  data<Number>(weight), plus_one, 1e-5f, data<Number>(back),
                                  data<float>(sum));
        CHECK(relative(back, exact) <
              2 * allowed);  // of one number, a difference of two that are nearly equal
        CHECK(relative(sum, exact_sum) < 1e-6);
      }

      const at::Tensor gate_up = (at::randn({rows, 2 * n}) * 8).to(type), gated = at::empty_like(x),
                       at_gates = at::empty_like(gate_up);
      kernels.gated_silu(data<Number>(gate_up), rows, n, data<Number>(gated));
      CHECK(relative(gated, gated_silu(wide(gate_up))) < allowed);
      kernels.gated_silu_backward(data<Number>(grad), data<Number>(gate_up), rows, n, data<Number>(at_gates));
      CHECK(relative(at_gates, gated_silu_backward(wide(grad), wide(gate_up))) < allowed);
      // Near 0 the results are differences of larger numbers: errors are measured against the
      // inputs too.
      const auto close = [&](const at::Tensor& result, const at::Tensor& exact) {
        return (wide(result) - exact).norm().item<double>() <=
               allowed * std::max(exact.norm().item<double>(), wide(gate_up).norm().item<double>());
      };
      kernels.gated_gelu(data<Number>(gate_up), rows, n, data<Number>(gated));
      CHECK(close(gated, nlac::gated(wide(gate_up), Activation::gelu_tanh)));
      kernels.gated_gelu_backward(data<Number>(grad), data<Number>(gate_up), rows, n, data<Number>(at_gates));
      CHECK(close(at_gates, gated_backward(wide(grad), wide(gate_up), Activation::gelu_tanh)));
      // The limit is a number of both types, on which no gate lies.
      kernels.clamped_gate(data<Number>(gate_up), rows * n, 7.03125f, 1.702f, data<Number>(gated));
      CHECK(close(gated, clamped_gate(wide(gate_up), 7.03125, 1.702)));
      kernels.clamped_gate_backward(data<Number>(grad), data<Number>(gate_up), rows * n, 7.03125f, 1.702f,
                                    data<Number>(at_gates));
      CHECK(close(at_gates, clamped_gate_backward(wide(grad), wide(gate_up), 7.03125, 1.702)));
    }
    for (const int64_t half : {1, 3, 16, 37}) {
      CAPTURE(half);
      const at::Tensor x = at::randn({5, 2 * half}).to(type), angle = at::randn({half}), cos = angle.cos(),
                       sin = angle.sin();
      const at::Tensor low = wide(x.narrow(1, 0, half)), high = wide(x.narrow(1, half, half)),
                       turned = x.clone();
      kernels.rotate(data<Number>(turned), 5, half, data<float>(cos), data<float>(sin), 1);
      CHECK(relative(turned, at::cat({low * cos - high * sin, high * cos + low * sin}, 1)) < allowed);
      kernels.rotate(data<Number>(turned), 5, half, data<float>(cos), data<float>(sin), -1);
      CHECK(relative(turned, wide(x)) < 2 * allowed);
    }
  });
}

TEST_CASE("extreme gates are finite in every set, and NaN stays NaN") {
  of_every_set([]<typename Number>(const cpu::Kernels&, const cpu::NumberKernels<Number>& kernels, Number) {
    const double extremes[] = {0, 1e-30, -1e-30, 20, -20, 88, -88, 89, -89, 1e4, -1e4, 1e30, -1e30};
    const at::Tensor gate = at::tensor(at::ArrayRef<double>(extremes)).to(type_of<Number>);
    const at::Tensor gate_up = at::cat({gate, at::full_like(gate, 0.5)}).unsqueeze(0),
                     gated = at::empty_like(gate), slopes = at::empty_like(gate_up);
    kernels.gated_silu(data<Number>(gate_up), 1, gate.size(0), data<Number>(gated));
    CHECK(gated.isfinite().all().item<bool>());
    CHECK(at::allclose(wide(gated), gated_silu(wide(gate_up))[0], precision<Number>, 1e-36));
    kernels.gated_silu_backward(data<Number>(at::ones_like(gate)), data<Number>(gate_up), 1, gate.size(0),
                                data<Number>(slopes));
    CHECK(slopes.isfinite().all().item<bool>());
    at::Tensor broken = at::cat({gate, gate}).unsqueeze(0);
    broken[0][3] = std::numeric_limits<float>::quiet_NaN();
    kernels.gated_silu(data<Number>(broken), 1, gate.size(0), data<Number>(gated));
    CHECK(gated[3].isnan().item<bool>());
    CHECK(gated.isnan().sum().item<int64_t>() == 1);

    at::Tensor pairs = at::stack({gate, at::full_like(gate, 0.5)}, 1).view({1, -1});
    kernels.clamped_gate(data<Number>(pairs), gate.size(0), 7, 1.702f, data<Number>(gated));
    CHECK(at::allclose(wide(gated), clamped_gate(wide(pairs), 7, 1.702)[0], precision<Number>, 1e-36));
    kernels.clamped_gate_backward(data<Number>(at::ones_like(gate)), data<Number>(pairs), gate.size(0), 7,
                                  1.702f, data<Number>(slopes));
    CHECK(slopes.isfinite().all().item<bool>());
    pairs[0][6] = std::numeric_limits<float>::quiet_NaN();
    pairs[0][9] = std::numeric_limits<float>::quiet_NaN();
    kernels.clamped_gate(data<Number>(pairs), gate.size(0), 7, 1.702f, data<Number>(gated));
    CHECK((gated[3].isnan().item<bool>() && gated[4].isnan().item<bool>()));
    CHECK(gated.isnan().sum().item<int64_t>() == 2);
  });
}

TEST_CASE("packed products of every set: any size, few rows and many, into float32 and bfloat16") {
  of_every_set([]<typename Number>(const cpu::Kernels& kernels, const cpu::NumberKernels<Number>&, Number) {
    constexpr bool bf16 = std::is_same_v<Number, Bits>;
    for (const auto& [rows, in] : sizes) {
      CAPTURE(rows);
      CAPTURE(in);
      const int64_t out = rows + 60, panels = (out + cpu::panel_columns - 1) / cpu::panel_columns;
      const at::Tensor weight = at::randn({out, in}).to(type_of<Number>), x = at::randn({rows, in}),
                       bias = at::randn({out});
      // The layout is that of the header; padding beyond the outputs is zero.
      const at::Tensor padded = at::zeros({panels * cpu::panel_columns, in}, weight.options());
      padded.narrow(0, 0, out).copy_(weight);
      const at::Tensor packed =
          padded.view({panels, -1, kernels.tile_columns, in}).transpose(2, 3).contiguous();
      const auto product = [&](const at::Tensor& left, bool narrow) {
        const at::Tensor y = at::ones({left.size(0), out}).to(narrow ? at::kBFloat16 : at::kFloat);
        kernels.linear(
            {data<float>(left), bf16 ? cpu::Weights::bf16 : cpu::Weights::f32, packed.data_ptr(), nullptr,
             data<float>(bias), nullptr, nullptr, left.size(0), out, in, y.data_ptr(), out, narrow, !narrow},
            0, panels);
        return y;
      };
      const at::Tensor exact = at::linear(wide(x), wide(weight), wide(bias)), y = product(x, false);
      CHECK(relative(y, exact + 1) < 1e-6);
      CHECK(relative(product(x, true), exact) < 4e-3);
      for (int64_t row = 0; row < rows; row += 3)
        CHECK(at::equal(product(x.narrow(0, row, 1), false), y.narrow(0, row, 1)));
    }
  });
}

TEST_CASE("int8 products of every set: rows in 16 bits, any size, the same alone and in company") {
  at::manual_seed(12);
  for (const cpu::Kernels* kernels : cpu::all_kernels())
    for (const auto& [rows, in] : sizes) {
      CAPTURE(rows);
      CAPTURE(in);
      const int64_t out = rows + 60, panels = (out + cpu::panel_columns - 1) / cpu::panel_columns,
                    groups = (in + cpu::int8_group - 1) / cpu::int8_group;
      const bool rounds = kernels->round_rows != nullptr && in % 2 == 0;
      // Weights in eighths, of which each group has one of 127 / 8: int8 has them exactly.
      at::Tensor padded = at::zeros({panels * cpu::panel_columns, in});
      padded.narrow(0, 0, out).copy_(at::randint(-127, 128, {out, in}));
      for (int64_t k = 0; k < in; k += cpu::int8_group) padded.select(1, k).narrow(0, 0, out).fill_(127);
      padded.div_(8);
      const at::Tensor panel =
          padded.view({panels, -1, kernels->tile_columns, in}).transpose(2, 3).contiguous();
      const at::Tensor packed = at::empty({panels * cpu::panel_columns * in}, at::kChar),
                       scales = at::empty({panels, groups, cpu::panel_columns});
      for (int64_t p = 0; p < panels; ++p)
        kernels->round_int8(panel[p].const_data_ptr<float>(), in,
                            packed.mutable_data_ptr<int8_t>() + p * cpu::panel_columns * in,
                            scales[p].mutable_data_ptr<float>());
      const auto product = [&](const at::Tensor& x) {
        const int64_t count = x.size(0);
        const at::Tensor numbers = at::zeros({count, in}, at::kShort), steps = at::zeros({count, groups}),
                         y = at::empty({count, out});
        if (rounds)
          kernels->round_rows(x.const_data_ptr<float>(), count, in, numbers.mutable_data_ptr<int16_t>(),
                              steps.mutable_data_ptr<float>());
        kernels->linear(
            {x.const_data_ptr<float>(), cpu::Weights::int8, packed.const_data_ptr(),
             scales.const_data_ptr<float>(), nullptr, rounds ? numbers.const_data_ptr<int16_t>() : nullptr,
             rounds ? steps.const_data_ptr<float>() : nullptr, count, out, in, y.mutable_data_ptr(), out,
             false, false},
            0, panels);
        return y;
      };
      const at::Tensor weight = wide(padded.narrow(0, 0, out));
      const at::Tensor x = at::randn({rows, in}) * at::pow(10.0, at::randint(-6, 6, {rows, 1})),
                       y = product(x), bound = at::mm(wide(x).abs(), weight.abs().t());
      CHECK((wide(y) - at::mm(wide(x), weight.t()))
                .abs()
                .le(bound * (rounds ? 1e-4 : 1e-6))
                .all()
                .item<bool>());
      for (int64_t row = 0; row < rows; row += 3)
        CHECK(at::equal(product(x.narrow(0, row, 1)), y.narrow(0, row, 1)));

      // Rows that 16 bits hold exactly, with the largest sums in both directions.
      at::Tensor whole = at::randint(-32767, 32768, {rows, in}, at::kFloat);
      for (int64_t k = 0; k < in; k += cpu::int8_group) whole.select(1, k).fill_(32767);
      whole[0] = wide(padded[0]).sign().to(at::kFloat) * 32767;
      CHECK(relative(product(whole), at::mm(wide(whole), weight.t())) < 1e-6);
      CHECK(product(at::zeros({rows, in})).eq(0).all().item<bool>());
      whole[rows - 1][in - 1] = std::numeric_limits<float>::quiet_NaN();
      CHECK(product(whole)[rows - 1].isnan().all().item<bool>());
    }
}

TEST_CASE("attention over blocks of every set, at any head size") {
  of_every_set([]<typename Number>(const cpu::Kernels&, const cpu::NumberKernels<Number>& kernels, Number) {
    constexpr auto type = type_of<Number>;
    const int64_t heads = 3, tokens = 70;
    for (const int64_t d : {1, 22, 64, 100}) {
      CAPTURE(d);
      const at::Tensor q = at::randn({tokens, heads, d}), k = at::randn({tokens, d}).to(type),
                       v = at::randn({tokens, d}).to(type);
      const int64_t block = cpu::kBlockTokens * d,
                    count = (tokens + cpu::kBlockTokens - 1) / cpu::kBlockTokens;
      const at::Tensor store = at::full({count, 2, block}, NAN, type);
      std::vector<const void*> blocks;
      for (int64_t b = 0; b < count; ++b) blocks.push_back(data<Number>(store) + b * 2 * block);
      for (int64_t t = 0; t < tokens; ++t) {
        const at::Tensor of_block = store[t / cpu::kBlockTokens];
        of_block[0].view({d, cpu::kBlockTokens}).select(1, t % cpu::kBlockTokens).copy_(k[t]);
        of_block[1].view({cpu::kBlockTokens, d})[t % cpu::kBlockTokens].copy_(v[t]);
      }
      const at::Tensor scores =
          at::einsum("qhd,kd->hqk", {wide(q), wide(k)}) / std::sqrt(static_cast<double>(d));
      for (const int64_t window : {0, 1, 20}) {
        CAPTURE(window);
        at::Tensor ahead = at::ones({tokens, tokens}, at::kBool).triu(1);
        if (window > 0) ahead = ahead.logical_or(at::ones({tokens, tokens}, at::kBool).tril(-window));
        const at::Tensor exact =
            at::einsum("hqk,kd->qhd", {at::softmax(scores.masked_fill(ahead, -INFINITY), -1), wide(v)});
        for (const auto& [past, fresh] : {std::pair{0, 1}, {0, 70}, {15, 1}, {16, 3}, {33, 37}}) {
          CAPTURE(past);
          CAPTURE(fresh);
          const at::Tensor queries = q.narrow(0, past, fresh).contiguous(),
                           output = at::full({fresh, heads, d}, NAN, type),
                           room = at::empty({fresh * heads, 128});
          kernels.attend_blocks({{past, heads, d, heads * d, heads * d, window},
                                 0,
                                 fresh,
                                 data<float>(queries),
                                 blocks.data(),
                                 0,
                                 block,
                                 data<Number>(output),
                                 data<float>(room),
                                 128});
          CHECK(relative(output, exact.narrow(0, past, fresh)) < precision<Number>);
        }
      }
    }
  });
}
