// The CPU's matrix products against float64, for every supported instruction set.
#include "core/cpu/gemm.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/cpu/tensors.h"
#include "core/instruction_set.h"

using namespace nlac;

namespace {

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble, false, true); }

double largest(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("the instruction sets that run here are those of the processor, up to the limit") {
  size_t count = 1;
  for (const auto set : {InstructionSet::avx2, InstructionSet::avx512}) count += runs(set);
  CHECK(cpu::gemm_kernels().size() == count);
  CHECK(cpu::all_kernels().size() == count);
  CHECK((runs(best_instruction_set()) && best_instruction_set() <= instruction_set_limit()));
  MESSAGE("instruction set: ", std::string(name_of(best_instruction_set())));
}

TEST_CASE("products of any shape, type and order agree with float64, in every instruction set") {
  at::manual_seed(1);
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                {7, 64, 33},
                                {6, 65, 16},
                                {100, 63, 1},
                                {13, 200, 800},
                                {800, 10, 70},
                                {3, 5, 1600},
                                {5, 3, 0}}) {
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    for (const auto& [a_type, b_type, type] : {std::tuple{at::kFloat, at::kFloat, at::kFloat},
                                               {at::kBFloat16, at::kBFloat16, at::kFloat},
                                               {at::kFloat, at::kBFloat16, at::kFloat},
                                               {at::kBFloat16, at::kBFloat16, at::kBFloat16}}) {
      for (const bool turned_a : {false, true}) {
        for (const bool turned_b : {false, true}) {
          CAPTURE(turned_a);
          CAPTURE(turned_b);
          // Views of wider matrices: neighbouring elements must not change.
          const auto make = [](int64_t rows, int64_t columns, bool turned, at::ScalarType of) {
            const at::Tensor all =
                (turned ? at::randn({columns, rows + 3}) : at::randn({rows, columns + 3})).to(of);
            return turned ? all.narrow(1, 1, rows).t() : all.narrow(1, 1, columns);
          };
          const at::Tensor a = make(m, k, turned_a, a_type), b = make(k, n, turned_b, b_type),
                           bias = at::randn({n}).to(b_type);
          const at::Tensor exact = wide(a).mm(wide(b));
          const at::Tensor room = at::full({m, n + 5}, 7.0f).to(type), result = room.narrow(1, 2, n);
          cpu::multiply(a, b, result);
          const double allowed = type == at::kFloat ? 1e-6 * (1 + k) : 0.005 * (1 + largest(exact));
          CHECK(largest(wide(result) - exact) < allowed);
          cpu::multiply(a, b, result, false, bias);
          CHECK(largest(wide(result) - exact - wide(bias)) < allowed + 1e-6);
          if (type == at::kFloat) {
            cpu::multiply(a, b, result, true, bias);
            CHECK(largest(wide(result) - 2 * (exact + wide(bias))) < 2 * allowed + 1e-6);
          }
          CHECK((room.narrow(1, 0, 2) == 7).all().item<bool>());
          CHECK((room.narrow(1, n + 2, 3) == 7).all().item<bool>());
        }
      }
    }
  }
}

TEST_CASE(
    "an element depends on its row and column alone: not on the others, where they begin, nor on threads") {
  at::manual_seed(2);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({1000, 900}).to(type), b = at::randn({900, 300}).to(type);
    const auto product = [](const at::Tensor& left, const at::Tensor& right) {
      const at::Tensor result = at::empty({left.size(0), right.size(1)});
      cpu::multiply(left, right, result);
      return result;
    };
    const at::Tensor whole = product(a, b);
    for (const auto& [first, count] : {std::pair{0, 1}, {5, 7}, {95, 2}, {767, 2}, {100, 900}})
      CHECK(at::equal(product(a.narrow(0, first, count), b), whole.narrow(0, first, count)));
    for (const auto& [first, count] : {std::pair{0, 1}, {63, 2}, {17, 100}})
      CHECK(at::equal(product(a, b.narrow(1, first, count)), whole.narrow(1, first, count)));
    CHECK(at::equal(product(a.t().contiguous().t(), b.t().contiguous().t()), whole));
    for (const int threads : {1, 2, 5}) {
      const Threads restore(threads);
      CHECK(at::equal(product(a, b), whole));
    }
  }
}

TEST_CASE("NaN stays NaN, and infinities and zeros equal float64's") {
  at::Tensor a = at::randn({9, 40}), b = at::randn({40, 70});
  a[3][7] = std::numeric_limits<float>::quiet_NaN();
  b[5][69] = std::numeric_limits<float>::infinity();
  const at::Tensor result = at::empty({9, 70}), rounded = at::empty({9, 70}, at::kBFloat16);
  cpu::multiply(a, b, result);
  cpu::multiply(a, b, rounded);
  const at::Tensor exact = wide(a).mm(wide(b));
  CHECK(at::equal(result.isnan(), exact.isnan()));
  CHECK(at::equal(rounded.isnan(), exact.isnan()));
  CHECK(at::equal(result.isfinite(), exact.isfinite()));
}
