#include "core/model/fill_parameter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace nlac {

void fill(const TensorEntry& entry, const std::vector<int64_t>& order, at::Tensor out) {
  // A permuted vector is a column: its rows have one value. Block types cannot be read value by
  // value.
  const bool column = entry.shape.size() == 1 && !order.empty();
  const int64_t elements = entry.elements();
  std::vector<float> unpacked;
  if (column) {
    unpacked.resize(static_cast<size_t>(elements));
    dequantize(entry, 0, elements, unpacked.data());
  }
  const int64_t width = column ? 1 : entry.shape.back();
  const int64_t rows = elements / width;
  NLAC_REQUIRE(order.empty() || static_cast<int64_t>(order.size()) == rows, "ERR_INTERNAL", entry.name,
               ": an order of ", order.size(), " rows for ", rows);
  const auto source_of = [&](int64_t row) { return order.empty() ? row : order[static_cast<size_t>(row)]; };
  const bool same = (entry.type == StoredType::bf16 && out.scalar_type() == at::kBFloat16) ||
                    (entry.type == StoredType::f32 && out.scalar_type() == at::kFloat);
  const int64_t grain = std::max<int64_t>(1, 65536 / width);

  if (same && !column) {
    const size_t row_bytes = static_cast<size_t>(width) * out.element_size();
    auto* bytes = static_cast<uint8_t*>(out.data_ptr());
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(bytes + row * row_bytes, entry.data + source_of(row) * row_bytes, row_bytes);
      }
    });
    return;
  }
  const auto read = [&](int64_t row, float* to) {
    const int64_t source = source_of(row);
    if (column) {
      *to = unpacked[static_cast<size_t>(source)];
    } else {
      dequantize(entry, source * width, width, to);
    }
  };
  if (out.scalar_type() == at::kFloat) {
    auto* values = out.data_ptr<float>();
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) read(row, values + row * width);
    });
  } else {
    auto* values = out.data_ptr<at::BFloat16>();
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(static_cast<size_t>(width));
      for (int64_t row = begin; row < end; ++row) {
        read(row, buffer.data());
        std::copy(buffer.begin(), buffer.end(), values + row * width);  // rounds to nearest even
      }
    });
  }
}

void fill_mxfp4(const TensorEntry& blocks, const TensorEntry& scales, at::Tensor out) {
  static constexpr float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto run = [&](auto* numbers) {
    at::parallel_for(0, scales.elements(), 2048, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float factor = std::ldexp(1.0f, static_cast<int>(scales.data[b]) - 127);
        for (int64_t i = 0; i < mx_bytes; ++i) {
          const uint8_t pair = blocks.data[b * mx_bytes + i];
          numbers[b * mx_values + 2 * i] = values[pair & 15] * factor;  // exact in bfloat16 too
          numbers[b * mx_values + 2 * i + 1] = values[pair >> 4] * factor;
        }
      }
    });
  };
  if (out.scalar_type() == at::kFloat)
    run(out.data_ptr<float>());
  else
    run(out.data_ptr<at::BFloat16>());
}

void fill_stack(const StoredPlace& place, const at::Tensor& view) {
  const at::Tensor stack = view.dim() == 3 ? view.transpose(1, 2) : view;  // [experts, rows, …]
  const auto fill_part = [](const TensorEntry& entry, at::Tensor part) {
    const at::Tensor staged = at::empty(part.sizes(), part.options().device(at::kCPU));
    fill(entry, {}, staged);
    part.copy_(staged);
  };
  if (place.up == nullptr) return fill_part(*place.entry, stack);
  const at::Tensor pairs = stack.unflatten(1, {-1, 2});
  fill_part(*place.entry, pairs.select(2, 0));
  fill_part(*place.up, pairs.select(2, 1));
}

}  // namespace nlac
