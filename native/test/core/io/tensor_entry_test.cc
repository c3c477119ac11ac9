#include "core/io/tensor_entry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/io/gguf.h"
#include "core/io/safetensors.h"
#include "core/io/stored_types.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

// The bits that the gguf package's dequantize gives for the tensors of blocks.gguf
// (scripts/fixtures/io.py).
TEST_CASE("every stored type dequantizes to the gguf package's bits") {
  const GgufFile stored = open_gguf(fixture("io/blocks.gguf"));
  const SafetensorsFile expected = open_safetensors(fixture("io/blocks.expected.safetensors"));
  REQUIRE(stored.tensors.size() == 11);
  REQUIRE(expected.tensors.size() == 11);
  for (const TensorEntry& tensor : stored.tensors) {
    CAPTURE(tensor.name);
    const TensorEntry* want = nullptr;
    for (const TensorEntry& candidate : expected.tensors) {
      if (candidate.name == tensor.name) want = &candidate;
    }
    REQUIRE(want != nullptr);
    REQUIRE(want->shape == tensor.shape);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize(tensor, 0, tensor.elements(), values.data());
    const bool block = tensor.name.starts_with('q');
    int64_t wrong = 0, nans = 0, denormals = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, want->data + 4 * i, 4);
      const float wanted = std::bit_cast<float>(bits);
      nans += std::isnan(wanted);
      denormals += std::fpclassify(wanted) == FP_SUBNORMAL || (wanted != 0 && std::abs(wanted) < 0x1p-14f);
      // Arithmetic on blocks makes a NaN of the processor's choice; a mere conversion keeps its
      // bits.
      const bool any_nan = block && std::isnan(wanted);
      wrong += any_nan ? !std::isnan(values[i]) : bits != std::bit_cast<uint32_t>(values[i]);
    }
    CHECK(wrong == 0);
    CHECK(nans > 0);
    CHECK(denormals > 0);
  }
}

TEST_CASE("a part of a tensor dequantizes as it does in the whole") {
  const GgufFile stored = open_gguf(fixture("io/blocks.gguf"));
  for (const TensorEntry& tensor : stored.tensors) {
    CAPTURE(tensor.name);
    std::vector<float> whole(static_cast<size_t>(tensor.elements()));
    dequantize(tensor, 0, tensor.elements(), whole.data());
    const int64_t first = std::max<int64_t>(32, block_size(tensor.type).values);
    for (const int64_t length : {1, 31, 32, 33, 64, 255, 256, 257}) {
      if (first + length > tensor.elements()) continue;
      std::vector<float> part(static_cast<size_t>(length) + 1, -77.0f);
      dequantize(tensor, first, length, part.data());
      CHECK(std::memcmp(part.data(), whole.data() + first, static_cast<size_t>(length) * 4) == 0);
      CHECK(part.back() == -77.0f);  // nothing is written past the end
    }
  }
}

TEST_CASE("float64 rounds, and integers are no values") {
  const double numbers[] = {0.1, -1e300, 1e-300};
  TensorEntry entry{"x", StoredType::f64, {3}, reinterpret_cast<const uint8_t*>(numbers), sizeof numbers};
  float out[3];
  dequantize(entry, 0, 3, out);
  CHECK(out[0] == 0.1f);
  CHECK(out[1] == -INFINITY);
  CHECK(out[2] == 0.0f);

  entry.type = StoredType::i64;
  CHECK_REFUSED(dequantize(entry, 0, 3, out), "ERR_MODEL_FORMAT", "I64");
}

TEST_CASE("a range outside of the tensor, or inside of a block, is refused") {
  const GgufFile stored = open_gguf(fixture("io/blocks.gguf"));
  float out[64];
  for (const TensorEntry& tensor : stored.tensors) {
    CAPTURE(tensor.name);
    const int64_t n = tensor.elements();
    CHECK_REFUSED(dequantize(tensor, -32, 32, out), "ERR_INDEX", tensor.name);
    CHECK_REFUSED(dequantize(tensor, 0, -1, out), "ERR_INDEX", tensor.name);
    CHECK_REFUSED(dequantize(tensor, n, 1, out), "ERR_INDEX", tensor.name);
    CHECK_REFUSED(dequantize(tensor, 256, INT64_MAX, out), "ERR_INDEX", tensor.name);
    dequantize(tensor, 0, 0, out);
    if (block_size(tensor.type).values > 1)
      CHECK_REFUSED(dequantize(tensor, 16, 16, out), "ERR_INDEX", "block");
  }
}
