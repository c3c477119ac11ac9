// All implementations of attention.h against the formula.
#include "test/core/model/kernels_reference.h"

using namespace kernels_test;
using namespace nlac;

namespace {

// A sink for each head, below, among and far above the scores.
at::Tensor sinks_for(int64_t heads) { return at::linspace(-3, 12, heads); }

}  // namespace

TEST_CASE("attention over packed sequences, forward and backward, with and without a window and sinks") {
  at::manual_seed(4);
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{3, 1, 64}, {4, 2, 128}, {2, 2, 64}, {6, 2, 32}, {4, 1, 20}}) {
    for (const Sight& sight : {Sight{}, Sight{1, 0}, Sight{17, 0.2}, Sight{64, 0}, Sight{300, 0.05},
                               Sight{0, 0, sinks_for(heads)}, Sight{17, 0.2, sinks_for(heads)}}) {
      CAPTURE(heads);
      CAPTURE(head_dim);
      CAPTURE(sight.window);
      // With a window, more than one stretch of 256 queries.
      const std::vector<int64_t> lengths{1, 2, 47, 48, 49, 64, 65, sight.window > 0 ? 700 : 200};
      int64_t tokens = 0;
      for (const int64_t length : lengths) tokens += length;
      // Views of one matrix, as the decoder has them; large scores make the softmax sharp.
      const at::Tensor qkv = random({tokens, heads + 2 * kv_heads, head_dim}, 1.5);
      const at::Tensor grad = random({tokens, heads, head_dim});
      const auto parts = [&](const at::Tensor& all) {
        return std::tuple{all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
                          all.narrow(1, heads + kv_heads, kv_heads)};
      };
      at::Tensor at_sinks;
      const auto run = [&](const at::Tensor& all, const at::Tensor& upstream) {
        const auto [q, k, v] = parts(all);
        Sight own = sight;
        if (all.scalar_type() == at::kDouble && own.sinks.defined()) own.sinks = own.sinks.to(at::kDouble);
        const Attended attended = packed_attention(q, k, v, {lengths}, own);
        at::Tensor at_all = at::full_like(all, NAN);
        const auto [grad_q, grad_k, grad_v] = parts(at_all);
        packed_attention_backward(upstream, q, k, v, attended, {lengths}, grad_q, grad_k, grad_v, own);
        if (own.sinks.defined()) at_sinks = sinks_backward(upstream, attended, {lengths}, own.sinks);
        return std::pair{attended.output, at_all};
      };
      const auto [output, gradients] = run(qkv, grad);
      const auto [all_q, all_k, all_v] = parts(qkv);
      at::Tensor exact = at::empty_like(output, at::kDouble),
                 exact_gradients = at::empty_like(qkv, at::kDouble);
      at::Tensor exact_sinks = at::zeros({heads}, at::kDouble);
      const at::Tensor near_sinks = at_sinks;
      int64_t start = 0;
      for (const int64_t length : lengths) {
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, length); };
        const Formula one = formula(part(all_q), part(all_k), part(all_v), part(grad), sight);
        if (one.sinks.defined()) exact_sinks.add_(one.sinks);
        part(exact).copy_(one.output);
        part(exact_gradients).copy_(at::cat({one.q, one.k, one.v}, 1));
        start += length;
      }
      const auto [double_output, double_gradients] = run(qkv.to(at::kDouble), grad.to(at::kDouble));
      CHECK(relative(double_output, exact) < 1e-13);
      CHECK(relative(double_gradients, exact_gradients) < 1e-13);
      if (sight.sinks.defined()) {
        CHECK(relative(at_sinks, exact_sinks) < 1e-13);
        CHECK(relative(near_sinks, exact_sinks) < 6e-3);
      }
      CHECK(relative(output, exact) < 4e-3);
      CHECK(largest(output - exact) < 0.02 * largest(exact));
      const auto [q, k, v] = parts(gradients);
      const auto [exact_q, exact_k, exact_v] = parts(exact_gradients);
      // With a window of one token the gradients of q and k are 0.
      const double floor = exact_v.norm().item<double>() * (sight.window == 1 ? 1 : 0);
      CHECK(relative(q, exact_q, floor) < 6e-3);
      CHECK(relative(k, exact_k, floor) < 6e-3);
      CHECK(relative(v, exact_v) < 6e-3);

      Threads two(2);
      const auto [again, gradients_again] = run(qkv, grad);
      CHECK(at::equal(again, output));
      CHECK(at::equal(gradients_again, gradients));
    }
  }
}

TEST_CASE("the blockwise attention of other devices equals the formula, with its gradients") {
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
        const at::Tensor sinks = sinks_for(heads).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
        for (const Sight& sight : {Sight{}, Sight{9, 0.3}, Sight{9, 0.3, sinks}}) {
          const Formula exact = formula(q, k, v, at_output, sight);
          for (const int64_t block : {1, 7, 32, 64, 1000}) {
            CAPTURE(length);
            CAPTURE(block);
            CAPTURE(sight.window);
            const at::Tensor keys = k.transpose(0, 1), values = v.transpose(0, 1);
            const AttendedBlocks attended = blockwise_attention(q, keys, values, block, sight);
            CHECK((attended.output.scalar_type() == dtype));
            CHECK(relative(attended.output, exact.output) < allowed);
            const AttentionGradients gradients =
                blockwise_attention_backward(at_output, q, keys, values, attended, block, sight);
            CHECK((gradients.q.scalar_type() == dtype));
            // The gradients of q and k are differences of terms of v's; with few keys they nearly
            // cancel.
            const double floor = exact.v.norm().item<double>(),
                         of_scores = (sight.sinks.defined() ? 2 : 1) * allowed;  // a sink leaves smaller ones
            CHECK(relative(gradients.q, exact.q, floor) < of_scores);
            CHECK(relative(gradients.keys.transpose(0, 1), exact.k, floor) < of_scores);
            CHECK(relative(gradients.values.transpose(0, 1), exact.v) < allowed);
            // Only the last queries, as with a cache.
            const int64_t fresh = (length + 2) / 3;
            const at::Tensor last =
                blockwise_attention(q.narrow(0, length - fresh, fresh), keys, values, block, sight).output;
            CHECK(relative(last, exact.output.narrow(0, length - fresh, fresh)) < allowed);
          }
        }
        start += length;
      }
    }
  }
}

TEST_CASE("blockwise attention is finite for extreme scores") {
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

TEST_CASE("attention allocates nothing quadratic in the length") {
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
    const Sequences one{{q.size(0)}};
    const Attended attended = packed_attention(q, k, v, one);
    packed_attention_backward(q, q, k, v, attended, one, at::empty_like(q), at::empty_like(k),
                              at::empty_like(v));
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    CHECK(bytes(blockwise, dtype, 2048) <= 2 * bytes(blockwise, dtype, 1024));
    CHECK(bytes(packed, dtype, 2048) <= 2 * bytes(packed, dtype, 1024));
  }
}

TEST_CASE(
    "attention over blocks: one token, several, and both in one step, bitwise the same alone and batched") {
  at::manual_seed(5);
  for (const auto& [type, heads, kv_heads, head_dim] : {std::tuple{at::kBFloat16, 9, 3, 64},
                                                        {at::kBFloat16, 5, 1, 128},
                                                        {at::kBFloat16, 4, 2, 32},
                                                        {at::kBFloat16, 5, 1, 34},
                                                        {at::kFloat, 9, 3, 64},
                                                        {at::kFloat, 5, 1, 34},
                                                        {at::kFloat, 4, 4, 32},
                                                        {at::kFloat, 14, 2, 6}}) {
    for (const Sight& sight : {Sight{}, Sight{1, 0}, Sight{21, 0.2}, Sight{100, 0},
                               Sight{0, 0, sinks_for(heads)}, Sight{21, 0.2, sinks_for(heads)}}) {
      CAPTURE(sight.window);
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
      // Contiguous in q, k and v; unordered block tables.
      std::vector<BlockTable> tables;
      std::vector<int64_t> starts{0};
      int32_t next = 200;
      for (const auto& [past, fresh] : shares) {
        tables.emplace_back();
        for (int64_t token = 0; token < past + fresh; token += kBlockTokens)
          tables.back().push_back(next -= 3);
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
            .run(1, own, k.index_select(0, chosen), v.index_select(0, chosen), output, sight);
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
        CHECK(relative(mine, formula(queries, of(k), of(v), queries, sight).output) <
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
}
