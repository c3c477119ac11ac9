#include "core/model/experts_products.h"

#include <ATen/ops/_grouped_mm.h>

#include <cstdint>

#include "core/environment.h"
#include "core/loss/products.h"
#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "core/model/linear.h"

#ifdef NLAC_CUDA
#include "core/cuda_error.h"
#endif

namespace nlac {
namespace {

// --- the grouped kernels -------------------------------------------------------------------------

constexpr int64_t most_experts = 1023;  // of a grouped product

bool is_aligned(const at::Tensor& x) {
  return x.stride(-1) == 1 && x.stride(-2) % 8 == 0 && x.size(-1) % 8 == 0 && x.size(-2) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// Whether libtorch has a kernel for the chip. On others its operator multiplies expert by expert too, and
// waits for the GPU in each product.
bool has_grouped_kernel([[maybe_unused]] at::Device device) {
#ifdef NLAC_CUDA
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                    device.has_index() ? device.index() : 0),
             "a device's attributes");
  return major == 9 || major == 10;
#else
  return false;
#endif
}

// x [rows, in] · (matrix of its expert)ᵀ, and x [rows, out] · (matrix of its expert).
at::Tensor by_matrix(const at::Tensor& x, const at::Tensor& stack, const GroupedRows& groups) {
  return at::_grouped_mm(x, stack.transpose(1, 2), groups.ends);
}
at::Tensor by_transposed(const at::Tensor& x, const at::Tensor& stack, const GroupedRows& groups) {
  return at::_grouped_mm(x, stack, groups.ends);
}

// into [experts, out, in] += of each expert's rows, gradᵀ · x.
void add_matrix_gradient(const at::Tensor& grad, const at::Tensor& x, const GroupedRows& groups,
                         at::Tensor into) {
  const at::Tensor product = at::_grouped_mm(grad.t(), x, groups.ends);
  // For an expert without rows the kernels have left other numbers than zeros on some chips.
  const at::Tensor first = at::constant_pad_nd(groups.ends.narrow(0, 0, groups.ends.size(0) - 1), {1, 0});
  into.add_(product.masked_fill_((groups.ends == first).view({-1, 1, 1}), 0));
}

// h of all parts side by side, [rows, parts * rank], as in linear.cc.
at::Tensor adapter_down(const at::Tensor& x, const Adapter& adapter, const GroupedRows& groups) {
  return by_matrix(x, adapter.a, groups).mul_(adapter.scale);
}

at::Tensor forward_at_once(const at::Tensor& x, const at::Tensor& stack, const at::Tensor& biases,
                           const Adapter& adapter, const GroupedRows& groups) {
  const at::Tensor y = by_matrix(x, stack, groups);
  if (biases.defined()) y.add_(biases.index_select(0, groups.experts));
  if (!adapter.a.defined()) return y;
  const at::Tensor down = adapter_down(x, adapter, groups);
  for (size_t i = 0; i < adapter.parts.size(); ++i)
    adapter.part_of_output(y, i).add_(by_matrix(adapter.part_of_down(down, i), adapter.part_b(i), groups));
  return y;
}

at::Tensor backward_at_once(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& stack,
                            const Adapter& adapter, const GroupedRows& groups, const at::Tensor& into,
                            const at::Tensor& into_biases, const Adapter& into_adapter) {
  const at::Tensor at_x = by_transposed(grad, stack, groups);
  if (into.defined()) add_matrix_gradient(grad, x, groups, into);
  if (into_biases.defined()) add_grouped_sums(grad, groups, into_biases);
  if (!adapter.a.defined()) return at_x;
  const at::Tensor down = adapter_down(x, adapter, groups), at_down = at::empty_like(down);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const at::Tensor part = adapter.part_of_output(grad, i);
    if (into_adapter.b.defined())
      add_matrix_gradient(part, adapter.part_of_down(down, i), groups, into_adapter.part_b(i));
    adapter.part_of_down(at_down, i).copy_(by_transposed(part, adapter.part_b(i), groups));
  }
  at_down.mul_(adapter.scale);
  if (into_adapter.a.defined()) add_matrix_gradient(at_down, x, groups, into_adapter.a);
  return at_x.add_(by_transposed(at_down, adapter.a, groups));
}

}  // namespace

bool takes_grouped(const at::Tensor& x, const at::Tensor& stack, const Adapter& adapter) {
  static const bool allowed = !is_set_to("NLAC_GROUPED_PRODUCTS", "0");
  if (!allowed || x.device().type() != NLAC_KERNEL_DEVICE || x.scalar_type() != at::kBFloat16) return false;
  if (stack.scalar_type() != at::kBFloat16 || stack.size(0) > most_experts || !is_aligned(stack))
    return false;
  if (!has_grouped_kernel(x.device())) return false;
  if (!adapter.a.defined()) return true;
  if (adapter.a.scalar_type() != at::kBFloat16 || adapter.rank() % 8 != 0 || !is_aligned(adapter.a))
    return false;
  for (size_t i = 0; i < adapter.parts.size(); ++i)
    if (adapter.parts[i].row % 8 != 0 || !is_aligned(adapter.part_b(i))) return false;
  return true;
}

at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& stack, const at::Tensor& biases,
                           const Adapter& adapter, const GroupedRows& groups) {
  if (takes_grouped(x, stack, adapter)) return forward_at_once(x, stack, biases, adapter, groups);
  const at::Tensor y = at::empty({x.size(0), stack.size(1)}, x.options());
  groups.for_each([&](int64_t e, int64_t first, int64_t rows) {
    y.narrow(0, first, rows)
        .copy_(linear_forward(x.narrow(0, first, rows), stack[e], of_expert(biases, e), adapter.of(e)));
  });
  return y;
}

at::Tensor grouped_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& stack,
                            const Adapter& adapter, const GroupedRows& groups, const at::Tensor& into,
                            const at::Tensor& into_biases, const Adapter& into_adapter) {
  if (takes_grouped(x, stack, adapter))
    return backward_at_once(grad, x, stack, adapter, groups, into, into_biases, into_adapter);
  const at::Tensor at_x = at::empty_like(x);
  groups.for_each([&](int64_t e, int64_t first, int64_t rows) {
    at_x.narrow(0, first, rows)
        .copy_(linear_backward(grad.narrow(0, first, rows), x.narrow(0, first, rows), stack[e],
                               of_expert(into, e), of_expert(into_biases, e), adapter.of(e),
                               into_adapter.of(e)));
  });
  return at_x;
}

at::Tensor grouped_dot(const at::Tensor& rows, const at::Tensor& vectors, const GroupedRows& groups) {
  return (rows * vectors.to(rows.scalar_type()).index_select(0, groups.experts)).sum(1);
}

void add_grouped_sums(const at::Tensor& rows, const GroupedRows& groups, at::Tensor into) {
  if (rows.device().type() != NLAC_KERNEL_DEVICE) {
    groups.for_each([&](int64_t e, int64_t first, int64_t count) {
      into[e].add_(rows.narrow(0, first, count).sum(0, false, into.scalar_type()));
    });
    return;
  }
  // As a product with ones at each row's expert: atomic additions would have no fixed order.
  const at::Tensor ones =
      at::zeros({rows.size(0), into.size(0)}, rows.options()).scatter_(1, groups.experts.unsqueeze(1), 1);
  product_weight(ones, rows, into);
}

}  // namespace nlac
