// The learner: one model's parameters θ, their moving average θ̄, gradients, optimizer and caches. This is
// all that the binding talks to. Thread rule: every method runs on one thread (the binding's job thread).
//
// Types: `dtype` float32 keeps one copy of θ; bfloat16 computes with a bf16 copy of float32 masters. θ̄ is
// always held in float32, with a bf16 copy for inference when dtype is bfloat16. Gradients and moments are
// float32 and made on first use.
//
// θ̄ is made, equal to θ, by its first use; a learner that never uses it does not pay for it. It begins at θ as
// it was before the first step: once a step has moved θ without a θ̄ there, nobody knows what it should have
// been, and every use is refused with ERR_VALUE but update_target(1), which lets it begin at θ as it now is.
//
// The reference is θ as it was when keep_reference() was last called: a frozen copy in `dtype`.
//
// Heads (LearnerOptions::heads) are part of θ and of θ̄. A value head is computed in float32 from the masters.
//
// With an adapter the model that was loaded is the base: frozen, kept once and in `dtype` alone, shared by θ,
// θ̄ and the reference, each of which is then the adapter's matrices, and heads, and nothing else. So are
// gradients and moments.
//
// Errors: ERR_VALUE for arguments (before anything is computed), ERR_CONFIG for what needs a head that the
// learner does not have, ERR_OUT_OF_MEMORY when the device or the host has no more. A loss call that throws
// once it has begun drops the gradients added up so far: nobody could tell which texts they hold.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/generate/engine.h"
#include "core/loss/linear_loss.h"
#include "core/loss/soft_q.h"
#include "core/model/adapter.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "core/optim/optim.h"

namespace nlac {

enum class Which { online, target, reference };

struct LearnerOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;  // or kFloat
  // Generation multiplies by matrices rounded to int8; nothing else does. Needs bfloat16 on a CPU that has the kernels.
  bool int8_generation = false;
  bool gradient_checkpointing = false;
  int64_t micro_batch_tokens = 2048;     // packed tokens of one forward and backward
  size_t cache_bytes = size_t{2} << 30;  // of keys and values in generation, per θ and θ̄
  Heads heads = Heads::none;             // of load() and create(); resume() has those that were saved
  // None: every parameter is trained.
  std::optional<AdapterOptions> adapter;
};

// A response scored after a prompt. Row j of the losses belongs to response[j]. A token of weight 0 takes part
// in nothing: whatever is computed, it reads 0, and a text of such tokens alone is not read at all.
struct ScoredText {
  std::vector<int64_t> prompt, response;  // both at least one id
  std::vector<float> weights = {1.0f};    // of each token of the response, or one for all
};
struct DistilledText {
  std::vector<int64_t> student, teacher, response;  // contexts of θ and of θ̄, the text both score
  double weight = 1.0;
  // [response tokens, hidden] in the learner's dtype: θ̄'s hidden states that the response was drawn from after
  // `teacher`, as GenerateResult keeps them. Undefined: they are computed.
  at::Tensor teacher_hidden = {};
};

struct LossOutput {
  std::vector<std::vector<float>> losses;  // per sequence, one per response token, unweighted, nats
};

// Lists are [response tokens]; what stands at a token of weight 0 is not looked at.
struct SurrogateText : ScoredText {
  std::vector<float> old_log_probs, advantages;
  std::vector<float> reference_log_probs;  // needed where kl_coefficient is not 0
  std::vector<float> returns, old_values;  // needed where the value head is trained
};

// coefficient · ½ max((v - R)², (v' - R)²), v' being v held within `clip` of the old value (Schulman et al.,
// "Proximal policy optimization algorithms", 2017, trains v by the square alone; the clip is its authors'
// code's).
struct ValueOptions {
  double coefficient = 0;  // ≥ 0
  double clip = 0;         // ≥ 0; 0 is none
};

struct SurrogateSettings {
  double temperature = 1;
  SurrogateOptions surrogate;
  double entropy_coefficient = 0;     // of the entropy that is subtracted
  std::optional<ValueOptions> value;  // trains the value head too
  bool with_gradient = true;
};

// Of one text, [response tokens] each; as LossResult has it. Values and value losses are unweighted and without
// their coefficient, and empty where the value head is not trained.
struct SurrogateOutput {
  std::vector<float> losses, log_probs, entropies, ratios;
  std::vector<int32_t> clipped;
  std::vector<float> values, value_losses;
};

// An episode as one text. Tokens of the response whose weight is not 0 are its actions, in order; the last is
// terminal. The state before an action is all that stands before it.
struct SoftQText : ScoredText {
  std::vector<float> rewards;  // [response tokens], received after each; read at actions only
};

// Of one text, [response tokens] each; as SoftQResult has it.
struct SoftQOutput {
  std::vector<float> q_losses, policy_losses, q, targets, entropies;
};

class Learner {
 public:
  static std::unique_ptr<Learner> load(const std::string& path, const LearnerOptions& options);
  // A randomly initialised model (normal, std 0.02), for tests and for training from scratch.
  static std::unique_ptr<Learner> create(const ModelConfig& config, uint64_t seed,
                                         const LearnerOptions& options);

  const ModelConfig& config() const { return config_; }
  const LearnerOptions& options() const { return options_; }
  int64_t parameters() const;            // count, the base's and heads too
  int64_t trainable_parameters() const;  // count

  std::vector<GenerateResult> generate(const std::vector<GenerateRequest>& requests, Which which,
                                       const GenerateHooks& hooks);
  // The same in pieces, so that calls run side by side (core/generate/engine.h): begin_generation puts one in line,
  // advance_generation does a step of all, true while any is left, and results are had of a call that is done. Until
  // none is left only these may be called.
  std::shared_ptr<GenerateCall> begin_generation(std::vector<GenerateRequest> requests, Which which,
                                                 GenerateHooks hooks);
  bool advance_generation();
  static std::vector<GenerateResult> results(GenerateCall& call);
  std::vector<std::vector<float>> log_probs(const std::vector<ScoredText>& texts, Which which,
                                            double temperature = 1);
  // Of the state before each token of the response, by the value head of θ.
  std::vector<std::vector<float>> values(const std::vector<ScoredText>& texts);
  at::Tensor logits(const std::vector<int64_t>& ids, Which which);  // [time, vocab] f32 on the CPU

  // Forward and backward; gradients of Σ_ij weight_ij loss_ij add up until step(). With `with_gradient` false
  // only the losses are computed. A loss that is not finite leaves the gradient non-finite, so that step()
  // skips.
  LossOutput token_nll(const std::vector<ScoredText>& texts, bool with_gradient);
  // KL(p_θ̄(·|teacher, y<t) ‖ p_θ(·|student, y<t)), or another divergence of the two; the gradient reaches θ
  // only. SupportKind::sampled is the cross entropy of θ on the response: the teacher's context is then not
  // read.
  LossOutput token_kl(const std::vector<DistilledText>& texts, double temperature, const Support& support,
                      bool with_gradient, const Divergence& divergence = {});
  // The clipped surrogate (linear_loss.h) and, with `value`, the value head's loss, in one pass.
  std::vector<SurrogateOutput> token_surrogate(const std::vector<SurrogateText>& texts,
                                               const SurrogateSettings& settings);
  // Soft actor-critic on tokens (core/loss/soft_q.h), θ̄ giving the targets; needs Heads::q. A micro batch is of
  // whole texts. Gradients add up, and show what is not finite, as above.
  std::vector<SoftQOutput> soft_q(const std::vector<SoftQText>& texts, const SoftQOptions& options);
  // The Q heads hold θ's policy again, as new ones do, and θ̄'s are the same: other losses may have moved it. Their
  // gradients and moments are forgotten.
  void reset_q_heads();

  // `state` names the moments to use ("" is the default set); each name has its own, made on first use. With
  // `target_rate` what update_target(target_rate) would then do is done in the same pass, and by a pass of its own
  // where the step is skipped; a θ̄ that is not there yet begins at θ as it was before the step.
  StepResult step(const AdamWOptions& options, const std::string& state,
                  std::optional<double> target_rate = {});
  // Frees a set of moments not needed any more; forgets the gradients added up since the last step.
  void discard_moments(const std::string& state) { moments_.erase(state); }
  void discard_gradients() { gradients_.reset(); }
  // Forgets the keys and values of finished texts. What is generated next then depends on nothing before it:
  // in bfloat16, how much of a prompt comes from a cache can show in the last bits.
  void drop_caches() {
    online_engine_->drop_caches();
    target_engine_->drop_caches();
  }

  void update_target(double tau);  // counts its calls; drops θ̄'s caches
  // Relative distance of θ̄ from θ, of what is trained; makes no θ̄ to find that it is 0.
  double target_distance();
  // Keeps θ as it now is as the reference, in place of an earlier one.
  void keep_reference();

  // Everything above as safetensors files in `directory` (which exists), float32, bit-exact: config.json and
  // model.safetensors (θ with its heads, a directory that load() takes too, with heads or without),
  // target.safetensors (θ̄, once made), reference.safetensors (once kept; in the learner's dtype, as it is
  // held), gradients.safetensors (if any are pending), optimizer-N.safetensors, and last learner.json, which says
  // what else belongs to it. resume() throws ERR_CHECKPOINT for anything missing, heads too, torn or of another
  // shape.
  //
  // With an adapter, adapter_model.safetensors stands in model.safetensors' place, and the base is not written:
  // resume() wants its path and refuses another model than the one that was loaded. A base that lies
  // nowhere else, create()'s or one loaded from a checkpoint, is in the checkpoint. ERR_VALUE for a directory that
  // holds a whole model. resume() may leave `options.adapter` out, and throws
  // ERR_CONFIG where it is not the saved one.
  void save(const std::string& directory);
  static std::unique_ptr<Learner> resume(const std::string& directory, const LearnerOptions& options,
                                         const std::string& base = "");
  // In the learner's dtype, without heads, an adapter merged.
  void export_huggingface(const std::string& directory);
  // The adapter alone, as peft loads it; `base` names the model that it belongs to. ERR_VALUE without one.
  void export_adapter(const std::string& directory, const std::string& base);

  // For tests and diagnosis. Null: not made yet.
  const Weights& masters() const { return master_; }
  // The model without its adapter. Null: there is none.
  const Weights* base() const { return base_ ? &*base_ : nullptr; }
  const Weights* target_masters() const { return target_master_ ? &*target_master_ : nullptr; }
  const Weights* gradients() const { return gradients_ ? &*gradients_ : nullptr; }

 private:
  struct Text;  // one sequence of a loss call, whichever the loss
  struct Rows;  // what a loss is computed on
  // Computes a loss, keeps what the caller wants of it, and returns losses and the gradient at the hidden
  // states (neither where it has none).
  using Loss = std::function<LossResult(const Rows&)>;

  Learner(LoadedModel model, const LearnerOptions& options);

  const Weights& weights(Which which);             // those that compute; makes θ̄
  Weights on_base(Weights own) const;              // on the base, if there is one; all tensors are shared
  Weights computing(const Weights& master) const;  // with these parameters, in the learner's type
  void changed(Which which);                       // its parameters: nothing kept of them holds any more
  void require_origin() const;                     // that θ̄ is there, or θ is what it would begin at
  void require_q_heads() const;
  void require_value_head() const;
  void make_target();
  TargetUpdate target_update(double tau);  // what moves when θ̄ does; makes θ̄
  void target_moved();
  Weights& make_gradients();
  // The texts of a call once they are known to be sound, and lists of 0 as long as their responses.
  std::vector<Text> checked(const std::vector<ScoredText>& texts) const;
  Text checked(size_t index, const ScoredText& text) const;
  static std::vector<std::vector<float>> zeros_for(const std::vector<Text>& texts);
  // Packs texts into micro batches; for each: forward (`teacher` too, where there is one), `loss`, backward.
  void score(const std::vector<Text>& texts, const Weights& weights, const Weights* teacher,
             bool with_gradient, const Loss& loss);
  at::Tensor predicted_values(const Rows& rows) const;  // [rows] f32
  // The value part of token_surrogate, all [rows] f32; adds the head's gradient to the others.
  LossResult value_loss(const Rows& rows, const at::Tensor& values, const at::Tensor& returns,
                        const at::Tensor& old_values, const ValueOptions& options);

  LearnerOptions options_;
  ModelConfig config_;
  Decoder decoder_;
  std::optional<Weights> base_;  // dtype; with an adapter
  std::string base_checksum_;    // of the files that the base was loaded from; "" when it was made here
  Weights master_;               // f32, what is trained
  Weights online_;               // dtype; the masters themselves when dtype is f32
  std::optional<Weights> target_master_, target_;
  std::optional<Weights> reference_;  // dtype
  std::optional<Weights> gradients_;  // f32
  std::map<std::string, AdamWState> moments_;
  int64_t target_updates_ = 0;
  bool moved_ = false;  // whether a step has changed θ
  std::unique_ptr<Engine> online_engine_, target_engine_;
};

}  // namespace nlac
