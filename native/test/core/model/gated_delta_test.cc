// The gated delta net against transformers' module (test/fixtures/gated-delta, written by
// scripts/fixtures/gated_delta.py), chunks against steps, and the promise of steps about bits.
#include "core/model/gated_delta.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/cpu/delta_kernels.h"
#include "core/model/delta_rule.h"
#include "core/model/short_convolution.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

constexpr const char* names[] = {"grouped", "alike"};

// A recorded net. Its projections are multiplied by libtorch.
struct Recorded {
  std::map<std::string, at::Tensor> tensors;
  at::ScalarType dtype;
  GatedDeltaShape shape;
  GatedDeltaWeights weights;
  std::vector<int64_t> lengths;
  at::Tensor projection;  // [projected, hidden]

  Recorded(const std::string& name, at::ScalarType type)
      : tensors(read_tensors(fixture("gated-delta/" + name + ".safetensors"))), dtype(type) {
    const int64_t* sizes = tensors.at("shape").const_data_ptr<int64_t>();
    shape = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    weights = {at("weight.conv1d.weight").squeeze(1), at("weight.A_log"), at("weight.dt_bias"),
               at("weight.norm.weight")};
    const at::Tensor& held = tensors.at("lengths");
    lengths.assign(held.const_data_ptr<int64_t>(), held.const_data_ptr<int64_t>() + held.numel());
    projection = at::cat({at("weight.in_proj_qkv.weight"), at("weight.in_proj_z.weight"),
                          at("weight.in_proj_b.weight"), at("weight.in_proj_a.weight")});
  }
  at::Tensor at(const std::string& name) const { return tensors.at(name).to(dtype); }
  at::Tensor projected() const { return at::mm(at("input"), projection.t()); }
  at::Tensor finish(const at::Tensor& output) const {
    return at::mm(output, at("weight.out_proj.weight").t());
  }
};

// Random inputs of a net of realistic sizes, and its state.
struct Random {
  GatedDeltaShape shape{2, 4, 32, 40, 4};
  GatedDeltaWeights weights;
  at::Tensor projected;

  Random(int64_t tokens, at::ScalarType dtype) {
    at::manual_seed(5);
    weights = {at::randn({shape.channels(), shape.kernel}).mul_(0.5), at::randn({shape.heads}),
               at::randn({shape.heads}), at::randn({shape.value_dim}).mul_(0.2).add_(1)};
    for (at::Tensor* weight : {&weights.convolution, &weights.decay_log, &weights.decay_bias, &weights.norm})
      *weight = weight->to(dtype);
    projected = at::randn({tokens, shape.projected()}).to(dtype);
  }
  DeltaState state() const { return DeltaState::zeros(shape, projected.scalar_type(), at::kCPU); }
  // The rows of one text, in chunks; advances `state`.
  at::Tensor steps(const std::vector<int64_t>& chunks, const DeltaState& state) const {
    std::vector<at::Tensor> rows;
    int64_t start = 0;
    for (const int64_t chunk : chunks) {
      rows.push_back(gated_delta_steps(shape, weights, projected.narrow(0, start, chunk), {{chunk, state}}));
      start += chunk;
    }
    return at::cat(rows);
  }
};

}  // namespace

TEST_CASE("a gated delta net equals transformers', forward and backward") {
  for (const std::string name : names)
    for (const auto& [dtype, allowed] : {std::pair{at::kDouble, 1e-7}, std::pair{at::kFloat, 2e-5}}) {
      CAPTURE(name);
      CAPTURE(std::string(c10::toString(dtype)));
      const Recorded net(name, dtype);
      const at::Tensor projected = net.projected();
      const GatedDelta forward = gated_delta(net.shape, net.weights, projected, net.lengths);
      CHECK(relative_difference(net.finish(forward.output), net.at("output")) < allowed);

      GatedDeltaWeights into;
      into.convolution = at::zeros_like(net.weights.convolution);
      into.decay_log = at::zeros_like(net.weights.decay_log);
      into.decay_bias = at::zeros_like(net.weights.decay_bias);
      into.norm = at::zeros_like(net.weights.norm);
      const at::Tensor at_output = at::mm(net.at("probe"), net.at("weight.out_proj.weight"));
      const at::Tensor at_projected =
          gated_delta_backward(at_output, net.shape, net.weights, projected, net.lengths, forward.rule, into);
      const at::Tensor at_projection = at::mm(at_projected.t(), net.at("input"));
      const at::Tensor expected =
          at::cat({net.at("gradient.in_proj_qkv.weight"), net.at("gradient.in_proj_z.weight"),
                   net.at("gradient.in_proj_b.weight"), net.at("gradient.in_proj_a.weight")});
      CHECK(relative_difference(at_projection, expected) < allowed);
      CHECK(relative_difference(at::mm(at_projected, net.projection), net.at("gradient.input")) < allowed);
      CHECK(relative_difference(into.convolution, net.at("gradient.conv1d.weight").squeeze(1)) < allowed);
      CHECK(relative_difference(into.decay_log, net.at("gradient.A_log")) < allowed);
      CHECK(relative_difference(into.decay_bias, net.at("gradient.dt_bias")) < allowed);
      CHECK(relative_difference(into.norm, net.at("gradient.norm.weight")) < allowed);
    }
}

TEST_CASE("steps end in transformers' state") {
  for (const std::string name : names)
    for (const auto& [dtype, allowed] : {std::pair{at::kDouble, 1e-7}, std::pair{at::kFloat, 2e-6}}) {
      CAPTURE(name);
      CAPTURE(std::string(c10::toString(dtype)));
      const Recorded net(name, dtype);
      const int64_t length = net.lengths[0];
      const DeltaState state = DeltaState::zeros(net.shape, dtype, at::kCPU);
      const at::Tensor output =
          gated_delta_steps(net.shape, net.weights, net.projected().narrow(0, 0, length), {{length, state}});
      CHECK(relative_difference(net.finish(output), net.at("output").narrow(0, 0, length)) < allowed);
      CHECK(relative_difference(state.recurrent, net.at("state")) < allowed);
      CHECK(relative_difference(state.inputs, net.at("inputs")) < allowed);
    }
}

TEST_CASE("chunks equal steps to rounding") {
  for (const auto& [dtype, allowed] :
       {std::pair{at::kFloat, 2e-6}, std::pair{at::kDouble, 1e-13}, std::pair{at::kBFloat16, 4e-3}}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const Random net(200, dtype);
    const GatedDelta chunks = gated_delta(net.shape, net.weights, net.projected, {200});
    for (const std::vector<int64_t>& parts : {std::vector<int64_t>{200}, {1, 2, 3, 64, 130}}) {
      const DeltaState state = net.state();
      CHECK(relative_difference(net.steps(parts, state), chunks.output) < allowed);
      CHECK(relative_difference(state.recurrent, chunks.rule.last[0]) < std::min(allowed, 2e-6));
    }
  }
}

TEST_CASE("a net's kernels equal float64, forward and backward") {
  const std::vector<int64_t> lengths{130, 1, 2, 64, 3};
  for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 4e-3}}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const Random net(200, dtype);
    const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
    const GatedDeltaWeights &weights = net.weights,
                            exact_weights{wide(weights.convolution), wide(weights.decay_log),
                                          wide(weights.decay_bias), wide(weights.norm)};
    const auto zeros = [&](at::ScalarType type) {
      const auto of = [&](const at::Tensor& x) { return at::zeros(x.sizes(), type); };
      return GatedDeltaWeights{of(weights.convolution), of(weights.decay_log), of(weights.decay_bias),
                               of(weights.norm)};
    };
    const GatedDelta forward = gated_delta(net.shape, weights, net.projected, lengths);
    const GatedDelta exact = gated_delta(net.shape, exact_weights, wide(net.projected), lengths);
    CHECK(relative_difference(forward.output, exact.output) < allowed);

    const at::Tensor grad = at::randn(forward.output.sizes()).to(dtype);
    const GatedDeltaWeights into = zeros(at::kFloat), exact_into = zeros(at::kDouble);
    const at::Tensor back =
        gated_delta_backward(grad, net.shape, weights, net.projected, lengths, forward.rule, into);
    const at::Tensor exact_back = gated_delta_backward(wide(grad), net.shape, exact_weights,
                                                       wide(net.projected), lengths, exact.rule, exact_into);
    // The parts of a token's row by themselves, because their gradients differ in size.
    const int64_t channels = net.shape.channels(), values = net.shape.values(), heads = net.shape.heads;
    int64_t start = 0;
    for (const int64_t width : {channels, values, heads, heads}) {
      CAPTURE(start);
      CHECK(relative_difference(back.narrow(1, start, width), exact_back.narrow(1, start, width)) < allowed);
      start += width;
    }
    CHECK(relative_difference(into.convolution, exact_into.convolution) < allowed);
    CHECK(relative_difference(into.decay_log, exact_into.decay_log) < allowed);
    CHECK(relative_difference(into.decay_bias, exact_into.decay_bias) < allowed);
    CHECK(relative_difference(into.norm, exact_into.norm) < allowed);
  }
}

TEST_CASE("a net's results do not depend on the number of threads, to the last bit") {
  const std::vector<int64_t> lengths{700, 1, 250};
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const Random net(951, dtype);
    const at::Tensor grad = at::randn({951, net.shape.values()}).to(dtype);
    const auto results = [&](int count) {
      at::set_num_threads(count);
      const auto zeros = [](const at::Tensor& x) { return at::zeros(x.sizes(), at::kFloat); };
      const GatedDeltaWeights& weights = net.weights;
      const GatedDeltaWeights into{zeros(weights.convolution), zeros(weights.decay_log),
                                   zeros(weights.decay_bias), zeros(weights.norm)};
      const GatedDelta forward = gated_delta(net.shape, weights, net.projected, lengths);
      const at::Tensor back =
          gated_delta_backward(grad, net.shape, weights, net.projected, lengths, forward.rule, into);
      return std::vector{forward.output, back, into.convolution, into.decay_log, into.decay_bias, into.norm};
    };
    const std::vector<at::Tensor> one = results(1), three = results(3);
    for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], three[i]));
  }
  at::set_num_threads(threads);
}

TEST_CASE("a large decay within a chunk costs no precision") {
  at::manual_seed(3);
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, -1, true); };
  DeltaInputs inputs{unit(at::randn({128, 2, 16})), unit(at::randn({128, 2, 16})), at::randn({128, 2, 8}),
                     at::rand({128, 2}).mul_(-0.01), at::rand({128, 2})};
  inputs.decay.narrow(0, 0, 30).fill_(-40);
  inputs.decay[100].fill_(-1000);
  DeltaInputs exact = inputs;
  for (at::Tensor* x : {&exact.q, &exact.k, &exact.v, &exact.decay, &exact.beta}) *x = x->to(at::kDouble);
  const at::Tensor grad = at::randn({128, 2, 8});
  const DeltaResult result = delta_rule(inputs, {128}), expected = delta_rule(exact, {128});
  CHECK(relative_difference(result.output, expected.output) < 1e-6);
  const DeltaInputs gradients = delta_rule_backward(grad, inputs, {128}, result.states);
  const DeltaInputs close = delta_rule_backward(grad.to(at::kDouble), exact, {128}, expected.states);
  CHECK(relative_difference(gradients.q, close.q) < 1e-6);
  CHECK(relative_difference(gradients.k, close.k) < 1e-6);
  CHECK(relative_difference(gradients.v, close.v) < 1e-6);
  CHECK(relative_difference(gradients.decay, close.decay) < 1e-5);
  CHECK(relative_difference(gradients.beta, close.beta) < 1e-6);
}

TEST_CASE("packed sequences of the delta rule are independent") {
  const Random net(150, at::kDouble);
  const std::vector<int64_t> lengths{70, 1, 2, 64, 13};
  const at::Tensor packed = gated_delta(net.shape, net.weights, net.projected, lengths).output;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    const at::Tensor alone =
        gated_delta(net.shape, net.weights, net.projected.narrow(0, start, length), {length}).output;
    CHECK(largest_difference(packed.narrow(0, start, length), alone) < 1e-12);
    start += length;
  }
  // Not even NaN passes from a text to the next.
  const at::Tensor broken = net.projected.clone();
  broken.narrow(0, 71, 2).fill_(NAN);
  const at::Tensor beside = gated_delta(net.shape, net.weights, broken, lengths).output;
  CHECK(at::equal(beside.narrow(0, 0, 71), packed.narrow(0, 0, 71)));
  CHECK(largest_difference(beside.narrow(0, 73, 77), packed.narrow(0, 73, 77)) < 1e-12);
  // The same in inference: each text's first half by itself, then all second halves in one step.
  std::vector<DeltaSlice> slices;
  std::vector<at::Tensor> rest, expected;
  start = 0;
  for (const int64_t length : lengths) {
    const DeltaState state = net.state();
    const at::Tensor rows = net.projected.narrow(0, start, length);
    if (length > 1)
      gated_delta_steps(net.shape, net.weights, rows.narrow(0, 0, length / 2), {{length / 2, state}});
    const int64_t fresh = length - length / 2;
    slices.push_back({fresh, state});
    rest.push_back(rows.narrow(0, length / 2, fresh));
    expected.push_back(packed.narrow(0, start + length / 2, fresh));
    start += length;
  }
  const at::Tensor steps = gated_delta_steps(net.shape, net.weights, at::cat(rest), slices);
  CHECK(largest_difference(steps, at::cat(expected)) < 1e-12);
}

TEST_CASE("steps have the same bits for every chunking and in every batch") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const Random net(100, dtype);
    const DeltaState state = net.state();
    const at::Tensor whole = net.steps({100}, state);
    for (const std::vector<int64_t>& parts :
         {std::vector<int64_t>(100, 1), {1, 2, 3, 94}, {64, 36}, {99, 1}}) {
      const DeltaState again = net.state();
      CHECK(at::equal(net.steps(parts, again), whole));
      CHECK(at::equal(again.recurrent, state.recurrent));
      CHECK(at::equal(again.inputs, state.inputs));
    }
    // Three texts in one step: the first 10 tokens, all of them, and the rest of the first text.
    const DeltaState first = net.state(), second = net.state();
    const at::Tensor head = net.projected.narrow(0, 0, 10), rest = net.projected.narrow(0, 10, 90);
    net.steps({10}, first);
    const at::Tensor beside = gated_delta_steps(net.shape, net.weights, at::cat({rest, net.projected, head}),
                                                {{90, first}, {100, second}, {10, net.state()}});
    CHECK(at::equal(beside, at::cat({whole.narrow(0, 10, 90), whole, whole.narrow(0, 0, 10)})));
    CHECK(at::equal(first.recurrent, state.recurrent));
    CHECK(at::equal(second.recurrent, state.recurrent));
  }
}

TEST_CASE("the recurrence of every instruction set equals float64, for any width") {
  for (const delta_kernels::Kernels* kernels : delta_kernels::all_kernels())
    for (const auto& [key_dim, value_dim] : {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {16, 64}, {33, 97}}) {
      CAPTURE(key_dim);
      CAPTURE(value_dim);
      at::manual_seed(7);
      constexpr int64_t tokens = 9;
      const at::Tensor q = at::randn({tokens, key_dim}), v = at::randn({tokens, value_dim}),
                       decay = at::rand({tokens}), beta = at::rand({tokens}),
                       state = at::randn({key_dim, value_dim}), y = at::empty({tokens, value_dim});
      at::Tensor k = at::randn({tokens, key_dim}).mul_(3);
      at::Tensor s = state.to(at::kDouble), expected = at::empty({tokens, value_dim}, at::kDouble);
      kernels->unit(k.data_ptr<float>(), tokens, key_dim, key_dim, 1e-6f, 1.0f);
      CHECK(largest_difference(k.norm(2, 1), at::ones({tokens})) < 1e-5);
      for (int64_t t = 0; t < tokens; ++t) {
        const at::Tensor key = k[t].to(at::kDouble);
        s = s * decay[t].to(at::kDouble);
        s = s + beta[t].to(at::kDouble) * at::outer(key, v[t].to(at::kDouble) - at::mv(s.t(), key));
        expected[t].copy_(at::mv(s.t(), q[t].to(at::kDouble)));
      }
      kernels->recur({tokens, key_dim, value_dim, q.const_data_ptr<float>(), k.const_data_ptr<float>(),
                      v.const_data_ptr<float>(), key_dim, value_dim, decay.const_data_ptr<float>(),
                      beta.const_data_ptr<float>(), 1, state.data_ptr<float>(), y.data_ptr<float>(),
                      value_dim});
      CHECK(relative_difference(y, expected) < 2e-6);
      CHECK(relative_difference(state, s) < 2e-6);
    }
}
