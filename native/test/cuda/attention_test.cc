// Attention over KV blocks on a GPU, and the kernel that writes them, against naive loops in
// float64.
#include "cuda/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

namespace {

struct Shape {
  int heads, kv_heads, head_dim;
  std::vector<int> lengths;  // tokens that each text's query sees
};

// Sequences with unordered blocks, interleaved with another layer's; queries are rows of a wider
// tensor.
struct Texts {
  Shape shape;
  int64_t width = 1, blocks = 0, stride, part, q_stride;
  std::vector<int32_t> tables, rows;
  std::vector<float> store, q;

  explicit Texts(const Shape& given) : shape(given) {
    const auto texts = static_cast<int64_t>(shape.lengths.size());
    for (const int length : shape.lengths) {
      const int64_t own = (length + cuda::kBlockTokens - 1) / cuda::kBlockTokens;
      width = std::max(width, own);
      blocks += own;
    }
    part = shape.kv_heads * cuda::kBlockTokens * shape.head_dim;
    stride = 4 * part;  // two layers' keys and values
    store = numbers(blocks * stride, 1);
    tables.assign(static_cast<size_t>(texts * width), -1);
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[philox(3, 0, i)[0] % i]);
    size_t next = 0;
    for (int64_t t = 0; t < texts; ++t) {
      const int64_t own = (shape.lengths[t] + cuda::kBlockTokens - 1) / cuda::kBlockTokens;
      for (int64_t b = 0; b < own; ++b) tables[t * width + b] = order[next++];
      rows.push_back(static_cast<int32_t>(texts - 1 - t));
    }
    // Values beyond a sequence's tokens must not be read.
    for (int64_t t = 0; t < texts; ++t) {
      for (int64_t token = shape.lengths[t]; token % cuda::kBlockTokens != 0; ++token) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          for (int i = 0; i < shape.head_dim; ++i) {
            for (const int64_t of : {keys_at, values_at})
              store[number(t, token, head, of) + i] = std::numeric_limits<float>::quiet_NaN();
          }
        }
      }
    }
    q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    q = numbers(texts * q_stride, 2, 2);
  }

  static constexpr int64_t keys_at = 2, values_at = 3;
  int64_t number(int64_t text, int64_t token, int head, int64_t of) const {
    return tables[text * width + token / cuda::kBlockTokens] * stride + of * part +
           (head * cuda::kBlockTokens + token % cuda::kBlockTokens) * shape.head_dim;
  }

  std::vector<double> expected(int64_t text, int head) const {
    const int64_t length = shape.lengths[text];
    const int kv_head = head / (shape.heads / shape.kv_heads), d = shape.head_dim;
    const float* query = q.data() + rows[text] * q_stride + head * d;
    std::vector<double> scores, result(static_cast<size_t>(d));
    for (int64_t token = 0; token < length; ++token) {
      double score = 0;
      for (int i = 0; i < d; ++i)
        score += double{query[i]} * store[number(text, token, kv_head, keys_at) + i];
      scores.push_back(score / std::sqrt(static_cast<double>(d)));
    }
    if (length == 0) return result;
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (int64_t token = 0; token < length; ++token)
      for (int i = 0; i < d; ++i)
        result[i] += scores[token] / sum * store[number(text, token, kv_head, values_at) + i];
    return result;
  }

  // All outputs, with `splits` splits each.
  std::vector<float> attended(bool is_bf16, int splits) const {
    const OnDevice on_store(store, is_bf16), on_q(q, is_bf16), on_rows(rows), on_lengths(shape.lengths),
        on_tables(tables);
    const auto texts = static_cast<int>(shape.lengths.size());
    const OnDevice output(std::vector<float>(static_cast<size_t>(texts * shape.heads * shape.head_dim), 99),
                          is_bf16);
    const int64_t bytes = is_bf16 ? 2 : 4;
    const cuda::KvBlocks kv{on_store.as<char>() + keys_at * part * bytes,
                            on_store.as<char>() + values_at * part * bytes,
                            stride,
                            shape.kv_heads,
                            shape.head_dim,
                            is_bf16};
    const cuda::Queries queries{on_q.data(),
                                q_stride,
                                output.data(),
                                texts,
                                shape.heads,
                                on_rows.as<int32_t>(),
                                on_lengths.as<int32_t>(),
                                on_tables.as<int32_t>(),
                                width};
    const OnDevice workspace(
        std::vector<float>(static_cast<size_t>(cuda::attention_workspace(queries, kv, splits))));
    REQUIRE(cuda::attend(queries, kv, splits, workspace.as<float>(), nullptr) == cudaSuccess);
    return output.floats();
  }

  double worst(bool is_bf16, int splits) const {
    const std::vector<float> got = attended(is_bf16, splits);
    double worst = 0;
    for (size_t t = 0; t < shape.lengths.size(); ++t) {
      for (int head = 0; head < shape.heads; ++head) {
        const std::vector<double> wanted = expected(static_cast<int64_t>(t), head);
        const float* of_head = got.data() + (rows[t] * shape.heads + head) * shape.head_dim;
        for (int i = 0; i < shape.head_dim; ++i) {
          worst = std::max(worst, excess(of_head[i], wanted[i], is_bf16));
        }
      }
    }
    return worst;
  }
};

}  // namespace

TEST_CASE("cuda: a query attends to its own sequence, for any heads, lengths and splits") {
  if (!has_device()) return;
  const Shape shapes[] = {
      {1, 1, 8, {1}},           {3, 3, 64, {1, 15, 16, 17}},
      {9, 3, 64, {33, 0, 200}}, {7, 1, 128, {65, 1, 130}},
      {8, 2, 128, {300}},       {28, 4, 128, {95, 31}},
      {11, 1, 40, {70, 16}},    {4, 2, 72, {48, 5}},
      {16, 1, 256, {19, 64}},   {2, 2, 136, {81}},
  };
  for (const Shape& shape : shapes) {
    const Texts texts(shape);
    for (const bool is_bf16 : {false, true}) {
      for (const int splits : {1, 2, 5}) {
        CAPTURE(shape.heads);
        CAPTURE(shape.kv_heads);
        CAPTURE(shape.head_dim);
        CAPTURE(is_bf16);
        CAPTURE(splits);
        CHECK(texts.worst(is_bf16, splits) == 0);
      }
    }
  }
}

TEST_CASE("cuda: large scores neither overflow nor lose precision") {
  if (!has_device()) return;
  Texts texts({4, 2, 64, {100, 37}});
  for (float& value : texts.q) value *= 512;
  for (const int splits : {1, 3}) CHECK(texts.worst(false, splits) == 0);
}

TEST_CASE("cuda: non-finite values propagate") {
  if (!has_device()) return;
  Texts texts({2, 1, 64, {40, 40}});
  texts.store[texts.number(1, 25, 0, Texts::keys_at) + 3] = std::numeric_limits<float>::quiet_NaN();
  for (const int splits : {1, 2}) {
    const std::vector<float> got = texts.attended(true, splits);
    for (const int64_t text : {0, 1}) {
      const float* of_text = got.data() + texts.rows[text] * 2 * 64;
      for (int i = 0; i < 2 * 64; ++i) CHECK(std::isnan(of_text[i]) == (text == 1));
    }
  }
}

TEST_CASE("cuda: few sequences are split until the device is busy, but not below the smallest useful split") {
  cuda::KvBlocks blocks{};
  blocks.kv_heads = 4, blocks.head_dim = 128;
  cuda::Queries queries{};
  queries.heads = 28;
  const auto splits = [&](int texts, int64_t longest) {
    queries.texts = texts;
    return cuda::attention_splits(queries, blocks, longest, 132);
  };
  CHECK(splits(1, 100'000) == 132);
  CHECK(splits(1, 1024) == 16);
  CHECK(splits(1, 1) == 1);
  CHECK(splits(33, 100'000) == 4);
  CHECK(splits(256, 100'000) == 1);
  queries.texts = 3;
  CHECK(cuda::attention_workspace(queries, blocks, 1) == 0);
  CHECK(cuda::attention_workspace(queries, blocks, 2) == 3 * 28 * 2 * 130);
}

TEST_CASE("cuda: queries are rotated, and keys and values are stored in their blocks") {
  if (!has_device()) return;
  struct Rotated {
    int heads, kv_heads, head_dim;
    bool normed;
  };
  constexpr float eps = 1e-6f;
  for (const Rotated& shape :
       {Rotated{4, 2, 64, false}, {3, 1, 128, true}, {2, 2, 8, true}, {1, 1, 72, false}, {2, 1, 256, true}}) {
    for (const bool is_bf16 : {false, true}) {
      CAPTURE(shape.head_dim);
      CAPTURE(is_bf16);
      const int d = shape.head_dim, half = d / 2, all_heads = shape.heads + 2 * shape.kv_heads;
      const std::vector<int32_t> positions{3, 0, 77, 5}, places{2 * 16 + 15, 0, -1, 16 + 3};
      const auto rows = static_cast<int>(positions.size());
      const std::vector<float> qkv = numbers(rows * all_heads * d, 4, 3), q_norm = numbers(d, 5),
                               k_norm = numbers(d, 6), angles = numbers(80 * half, 7, 3);
      std::vector<float> cos, sin;
      for (const float angle : angles) cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      const int64_t part = shape.kv_heads * cuda::kBlockTokens * d, stride = 2 * part;
      const std::vector<float> before(static_cast<size_t>(3 * stride), 99);

      const OnDevice on_qkv(qkv, is_bf16), on_q_norm(q_norm, is_bf16), on_k_norm(k_norm, is_bf16),
          on_cos(cos), on_sin(sin), on_positions(positions), on_places(places), store(before, is_bf16);
      const cuda::KvBlocks blocks{
          store.data(), store.as<char>() + part * (is_bf16 ? 2 : 4), stride, shape.kv_heads, d, is_bf16};
      const cuda::ProjectedRows given{on_qkv.data(),
                                      rows,
                                      shape.heads,
                                      shape.normed ? on_q_norm.data() : nullptr,
                                      shape.normed ? on_k_norm.data() : nullptr,
                                      eps,
                                      on_cos.as<float>(),
                                      on_sin.as<float>(),
                                      on_positions.as<int32_t>(),
                                      on_places.as<int32_t>()};
      REQUIRE(cuda::rotate_and_store(given, blocks, nullptr) == cudaSuccess);

      const auto turned = [&](const float* x, const std::vector<float>& norm, int32_t position) {
        std::vector<double> values(x, x + d), result(values);
        if (shape.normed) {
          double squares = 0;
          for (const double value : values) squares += value * value;
          for (int i = 0; i < d; ++i) values[i] = values[i] / std::sqrt(squares / d + double{eps}) * norm[i];
        }
        for (int i = 0; i < half; ++i) {
          const double c = cos[position * half + i], s = sin[position * half + i];
          result[i] = values[i] * c - values[i + half] * s;
          result[i + half] = values[i + half] * c + values[i] * s;
        }
        return result;
      };
      std::vector<float> expected_store = before;
      const std::vector<float> got = on_qkv.floats(), stored = store.floats();
      double worst = 0;
      const auto compare = [&](const float* values, const std::vector<double>& wanted) {
        for (int i = 0; i < d; ++i) {
          worst = std::max(worst, excess(values[i], wanted[i], is_bf16, shape.normed ? 6 : 1));
        }
      };
      for (int row = 0; row < rows; ++row) {
        const float* of_row = qkv.data() + row * all_heads * d;
        for (int head = 0; head < shape.heads; ++head)
          compare(got.data() + (row * all_heads + head) * d,
                  turned(of_row + head * d, q_norm, positions[row]));
        if (places[row] < 0) continue;
        for (int head = 0; head < shape.kv_heads; ++head) {
          const int64_t at = places[row] / 16 * stride + (head * 16 + places[row] % 16) * d;
          compare(stored.data() + at, turned(of_row + (shape.heads + head) * d, k_norm, positions[row]));
          const float* value = of_row + (shape.heads + shape.kv_heads + head) * d;
          CHECK(std::equal(value, value + d, stored.data() + at + part));
          std::copy_n(stored.data() + at, d, expected_store.data() + at);
          std::copy_n(value, d, expected_store.data() + at + part);
        }
      }
      CHECK(worst == 0);
      CHECK(stored == expected_store);  // and nothing else was written
    }
  }
}

TEST_CASE("cuda: attention without a kernel is rejected") {
  cuda::KvBlocks blocks{nullptr, nullptr, 1024, 1, 64, true};
  cuda::Queries queries{nullptr, 64, nullptr, 1, 1, nullptr, nullptr, nullptr, 1};
  const auto attend = [&](int splits = 1) { return cuda::attend(queries, blocks, splits, nullptr, nullptr); };
  CHECK(attend(0) == cudaErrorInvalidValue);
  for (const int head_dim : {0, 12, 264}) {
    blocks.head_dim = head_dim;
    CHECK(attend() == cudaErrorInvalidValue);
    CHECK(cuda::rotate_and_store({}, blocks, nullptr) == cudaErrorInvalidValue);
  }
  blocks.head_dim = 64;
  queries.q_stride = 68;
  CHECK(attend() == cudaErrorInvalidValue);
  queries.q_stride = 64;
  blocks.kv_heads = 2;
  CHECK(attend() == cudaErrorInvalidValue);
  blocks.kv_heads = 1;
  queries.texts = 0;
  CHECK(attend() == cudaSuccess);
}
