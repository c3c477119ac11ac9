// Packs texts into micro-batches, runs the decoder forward, the loss, and the decoder backward.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "core/learner/internal.h"
#include "core/learner/sharding.h"

namespace nlac {

using namespace learner;

namespace {

// Contexts and responses in one stream. A response's last token predicts nothing and is omitted.
struct Packed {
  Ids ids, lengths;
  Ids rows;  // rows that predict a response token of nonzero weight, in order
  void add(const Ids& context, const Ids& response, const std::vector<float>& weights) {
    const int64_t begin = static_cast<int64_t>(ids.size()), tokens = read_tokens(context, response);
    ids.insert(ids.end(), context.begin(), context.end());
    ids.insert(ids.end(), response.begin(), response.end() - 1);
    lengths.push_back(tokens);
    for (size_t token = 0; token < weights.size(); ++token) {
      if (weights[token] != 0) rows.push_back(begin + static_cast<int64_t>(context.size() + token) - 1);
    }
  }
  static int64_t read_tokens(const Ids& context, const Ids& response) {
    return static_cast<int64_t>(context.size() + response.size()) - 1;
  }
};

}  // namespace

void Learner::score(const std::vector<Text>& texts, const Scoring& scoring, const Loss& loss) {
  const bool with_gradient = scoring.with_gradient;
  const Weights& weights = this->weights(scoring.weights);
  const Weights* teacher = scoring.teacher ? &this->weights(*scoring.teacher) : nullptr;
  // Consecutive texts, as many as fit on the student's and on the teacher's side. Texts that must
  // stay together may exceed the limit.
  struct MicroBatch {
    std::vector<size_t> texts;
    int64_t student = 0, teacher = 0;  // tokens
  };
  std::vector<MicroBatch> batches;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    if (!text.used()) continue;
    if (!text.with_previous) {
      int64_t student = 0, teacher_tokens = 0;  // of the text, and of those that stay with it
      for (size_t j = i; j == i || (j < texts.size() && texts[j].with_previous); ++j) {
        const Text& part = texts[j];
        student += Packed::read_tokens(*part.student, *part.response);
        if (part.teacher && !part.teacher_hidden.defined())
          teacher_tokens += Packed::read_tokens(*part.teacher, *part.response);
      }
      if (batches.empty() || batches.back().student + student > options_.micro_batch_tokens ||
          batches.back().teacher + teacher_tokens > options_.micro_batch_tokens)
        batches.emplace_back();
      batches.back().student += student;
      batches.back().teacher += teacher_tokens;
    }
    batches.back().texts.push_back(i);
  }

  const bool exchanged = exchanges(scoring);
  const auto before = [&](LayerPass pass) {
    return exchanged ? before_layers(pass) : Decoder::BeforeLayer{};
  };

  // The sum of a micro-batch's absolute weights.
  const auto total_weight = [&](const MicroBatch& batch, const Rows& rows) {
    if (!texts[batch.texts.front()].loss_weight) return rows.row_weights.abs().sum().item<double>();
    double sum = 0;
    for (size_t i : batch.texts) sum += *texts[i].loss_weight;
    return sum;
  };

  const at::Device device = options_.device;
  const auto run = [&](const MicroBatch& batch) {
    Packed packed, teacher_packed;
    Rows rows;
    Ids targets;
    for (size_t i : batch.texts) {
      const Text& text = texts[i];
      packed.add(*text.student, *text.response, text.weights);
      if (teacher && !text.teacher_hidden.defined())
        teacher_packed.add(*text.teacher, *text.response, text.weights);
      for (size_t token = 0; token < text.weights.size(); ++token) {
        if (text.weights[token] == 0) continue;
        rows.places.push_back({i, token});
        targets.push_back((*text.response)[token]);
      }
    }

    // The teacher first, so that its activations are freed before the student's tape is allocated.
    if (teacher) {
      at::Tensor read;  // the rows of texts without kept states
      if (!teacher_packed.ids.empty())
        read = decoder_
                   .forward(*teacher, on_device(teacher_packed.ids, device), teacher_packed.lengths,
                            before(LayerPass::teacher))
                   .index_select(0, on_device(teacher_packed.rows, device));
      std::vector<at::Tensor> parts;
      int64_t from = 0;
      for (size_t i : batch.texts) {
        const Text& text = texts[i];
        if (text.teacher_hidden.defined()) {
          parts.push_back(text.teacher_hidden.to(device));
          continue;
        }
        const int64_t own =
            std::count_if(text.weights.begin(), text.weights.end(), [](float w) { return w != 0; });
        parts.push_back(read.narrow(0, from, own));
        from += own;
      }
      rows.teacher_hidden = parts.size() == 1 ? parts[0] : at::cat(parts);
    }
    std::shared_ptr<Decoder::Tape> tape;
    const at::Tensor ids = on_device(packed.ids, device);
    const at::Tensor hidden =
        with_gradient ? decoder_.forward(weights, ids, packed.lengths, options_.gradient_checkpointing, tape,
                                         before(LayerPass::forward))
                      : decoder_.forward(weights, ids, packed.lengths, before(LayerPass::forward));
    const at::Tensor places = on_device(packed.rows, device);
    rows.hidden = hidden.index_select(0, places);
    rows.targets = on_device(targets, device);
    rows.row_weights = rows.gather([&](size_t text) { return texts[text].weights.data(); });
    rows.with_gradient = with_gradient;
    if (with_gradient) rows.head_gradient = make_gradients().head;

    const LossResult result = loss(rows);
    if (!with_gradient) return;
    if (!at::isfinite(result.losses).all().item<bool>()) {
      // One NaN suffices for step() to skip. The products might not propagate an infinity.
      gradients_->list().front().flatten()[0].fill_(std::numeric_limits<float>::quiet_NaN());
      return;
    }
    at::Tensor grad_hidden = at::zeros_like(hidden);
    grad_hidden.index_copy_(0, places, result.grad_hidden.to(hidden.scalar_type()));
    double balance = options_.balance.value_or(config_.experts.balance);
    if (config_.experts.count == 0) balance = 0;
    if (balance != 0) balance *= total_weight(batch, rows);
    decoder_.backward(weights, std::move(tape), grad_hidden, *gradients_, before(LayerPass::backward),
                      balance);
  };

  if (exchanged) {
    const bool reads_teacher = std::any_of(batches.begin(), batches.end(),
                                           [](const MicroBatch& batch) { return batch.teacher > 0; });
    begin_rounds(scoring, static_cast<int64_t>(batches.size()), reads_teacher);
  }
  try {
    for (const MicroBatch& batch : batches) {
      run(batch);
      if (exchanged) finish_round();
    }
    if (exchanged) finish_rounds();
  } catch (...) {
    if (exchanged) abandon_rounds();
    if (with_gradient) discard_gradients();
    throw;
  }
}

}  // namespace nlac
