// Sampling of the next tokens, on the CPU and on a GPU.
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"
#include "core/generate/cuda_draw.h"
#include "core/generate/logit_kernels.h"
#include "core/generate/sequence.h"

namespace nlac {
namespace {

// Bytes of float32 logits at a time. On a GPU 256 texts are one product, which reads the head once.
constexpr int64_t kLogitBytes = int64_t{64} << 20, kLogitBytesOnGpu = int64_t{256} << 20;

// Calls work(sequence, index) in parallel. An exception becomes the sequence's failure.
template <typename Sequences, typename Work>
void for_each(const Sequences& sequences, const Work& work) {
  at::parallel_for(0, static_cast<int64_t>(sequences.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      auto& sequence = *sequences[static_cast<size_t>(i)];
      try {
        work(sequence, static_cast<size_t>(i));
      } catch (...) {
        sequence.failure = std::current_exception();
      }
    }
  });
}

}  // namespace

// Samples a sequence's next token from its logits [vocab].
void Engine::choose(Sequence& sequence, const float* logits, int64_t vocab) {
  const GenerateRequest& request = sequence.request();
  const auto step = static_cast<int64_t>(sequence.step());
  sequence.token = sequence.forced();
  if (sequence.token != Sequence::kNoToken) {
    sequence.log_prob = log_probability(logits, vocab, sequence.token);
  } else if (!constrained(request)) {
    sequence.token = sample_token(logits, vocab, request, step, &sequence.log_prob);
  } else {
    thread_local std::vector<float> changed;
    changed.assign(logits, logits + vocab);
    constrain(request, sequence.tokens, changed.data());
    if (sequence.matcher) {
      const auto allowed = sequence.allowed(vocab);
      if (allowed.empty()) return;
      kernels::keep_allowed(changed.data(), vocab, allowed.data());
    }
    sequence.token = sample_token(changed.data(), vocab, request, step, nullptr);
    sequence.log_prob = log_probability(logits, vocab, sequence.token);
  }
  sequence.follow();
}

// The same for several, from logits [rows, vocab] on a GPU. Their first row is the step's row
// `begin`.
void Engine::choose_on_gpu(const std::vector<Sequence*>& sequences, const at::Tensor& logits, int64_t begin) {
  const int64_t vocab = logits.size(1);
  std::vector<CudaDraw> asked(sequences.size());
  for_each(sequences, [&](Sequence& sequence, size_t i) {
    sequence.token = Sequence::kNoToken;
    CudaDraw& draw = asked[i];
    draw.step = static_cast<int64_t>(sequence.step());
    draw.row = sequence.row - begin;
    draw.forced = sequence.forced();
    if (draw.forced != Sequence::kNoToken || sequence.constrain_on_gpu(vocab, draw))
      draw.request = &sequence.request();
  });
  std::vector<CudaDraw> draws;
  std::vector<Sequence*> drawing;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].request == nullptr) continue;
    draws.push_back(asked[i]);
    drawing.push_back(sequences[i]);
  }
  draw_on_gpu(logits, draws);
  for_each(drawing, [&](Sequence& sequence, size_t i) {
    NLAC_REQUIRE(draws[i].token >= 0, "ERR_NOT_FINITE", "the model's logits are not finite");
    sequence.token = draws[i].token;
    sequence.log_prob = draws[i].log_prob;
    sequence.follow();
  });
}

// Samples the next token of each from `hidden` [rows, hidden].
void Engine::draw(const Weights& weights, const at::Tensor& hidden, const std::vector<Sequence*>& complete) {
  const int64_t vocab = weights.head.size(0);
  const int64_t bytes = hidden.is_cuda() ? kLogitBytesOnGpu : kLogitBytes;
  const int64_t chunk = std::max<int64_t>(1, bytes / (4 * vocab));
  auto next = complete.begin();
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t end = std::min(hidden.size(0), begin + chunk);
    const at::Tensor logits = decoder_.infer_logits(weights, hidden.slice(0, begin, end));
    std::vector<Sequence*> on_gpu, on_host;
    for (; next != complete.end() && (*next)->row < end; ++next)
      ((*next)->draws_on_gpu(logits) ? on_gpu : on_host).push_back(*next);
    choose_on_gpu(on_gpu, logits, begin);
    std::vector<at::Tensor> rows;  // copied one by one; other rows stay on the GPU
    for (const Sequence* sequence : on_host)
      rows.push_back(logits[sequence->row - begin].to(at::kCPU, at::kFloat).contiguous());
    for_each(on_host, [&](Sequence& sequence, size_t i) {
      const float* const row = rows[i].const_data_ptr<float>();
      choose(sequence, row, vocab);
      const int64_t count = sequence.request().top_log_probs;
      if (count > 0 && sequence.token != Sequence::kNoToken)
        append_top(row, vocab, count, &sequence.result());
    });
  }
}

}  // namespace nlac
