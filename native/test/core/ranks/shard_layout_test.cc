#include "core/ranks/shard_layout.h"

#include <doctest/doctest.h>

#include "test/core/learner/examples.h"

using namespace nlac;
using namespace learner_test;

TEST_CASE("the parts of all ranks hold every parameter exactly once") {
  const auto plain = tiny_learner();
  const auto critic = tiny_critic();
  const auto adapted = adapted_learner();
  const auto soft = q_learner();
  for (const Learner* learner : {plain.get(), critic.get(), adapted.get(), soft.get()}) {
    const std::vector<at::Tensor> list = learner->masters().list();
    for (int ranks : {1, 2, 3, 5}) {
      CAPTURE(ranks);
      std::vector<at::Tensor> rebuilt;
      for (const at::Tensor& tensor : list) rebuilt.push_back(at::zeros_like(tensor));
      std::vector<int64_t> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardLayout layout(learner->masters(), rank, ranks);
        const Units own = layout.all_own(list.front().options());
        const auto pieces = layout.pieces(own), from = layout.cut(list), to = layout.cut(rebuilt);
        REQUIRE(pieces.size() == from.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
          REQUIRE(pieces[i].sizes() == from[i].sizes());
          CHECK((pieces[i].dim() >= 2) == (list[layout.tensor_of(i)].dim() >= 2));
          if (i > 0) CHECK(layout.tensor_of(i - 1) <= layout.tensor_of(i));
          pieces[i].copy_(from[i]);
          to[i].add_(pieces[i]);
        }
        for (size_t u = 0; u < own.size(); ++u) {
          if (rank == 0) parts.push_back(own[u].numel());
          CHECK(own[u].numel() == parts[u]);
          CHECK(layout.whole(u, list.front().options()).numel() == parts[u] * ranks);
        }
      }
      CHECK(equal(rebuilt, list));
    }
  }
}

TEST_CASE("parameters become views of their unit; ties and shapes are preserved") {
  const auto learner = tiny_learner();
  const ShardLayout layout(learner->masters(), 1, 3);
  const Weights views = learner->masters().like(at::kFloat, at::kCPU);
  const std::vector<at::Tensor> list = views.list();
  Units units = layout.all_whole(list.front().options());
  for (size_t u = 0; u < units.size(); ++u) layout.point(list, u, units[u]);
  for (size_t i = 0; i < list.size(); ++i) {
    CHECK(list[i].sizes() == learner->masters().list()[i].sizes());
    CHECK(list[i].is_contiguous());
    list[i].fill_(static_cast<double>(i + 1));
    CHECK(units[layout.unit_of(i)].eq(static_cast<double>(i + 1)).sum().item<int64_t>() >= list[i].numel());
  }
  CHECK(views.head.data_ptr() == views.embedding.data_ptr());
  Units own;
  for (size_t u = 0; u < units.size(); ++u) own.push_back(layout.own_of(u, units[u]));
  const auto pieces = layout.pieces(own), cut = layout.cut(list);
  for (size_t i = 0; i < pieces.size(); ++i) CHECK(pieces[i].data_ptr() == cut[i].data_ptr());
}
