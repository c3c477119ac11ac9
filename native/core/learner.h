// The learner: one model's parameters θ, the target network θ̄ (their EMA), gradients, optimizer
// state and caches. It is the binding's only interface to training and generation. Thread rule:
// every method runs on one thread (the binding's job thread). Only what begin_save() returns may run
// on another one.
//
// Types: with `dtype` float32 there is one copy of θ. With bfloat16 the learner computes with a
// bf16 copy of float32 masters. θ̄ is always held in float32, with a bf16 copy for inference if
// `dtype` is bfloat16. Gradients and moments are float32 and allocated on first use.
//
// θ̄ is allocated on first use and starts equal to θ before the first step. If a step has changed θ
// while θ̄ did not exist, every use of θ̄ throws ERR_VALUE, except update_target(1), which copies
// the current θ.
//
// The reference is a frozen copy of θ in `dtype`, taken by keep_reference().
//
// Heads (LearnerOptions::heads) are part of θ and of θ̄. The value head is computed in float32 from
// the masters.
//
// With an adapter, the loaded model is the base: frozen, held once in `dtype`, and shared by θ, θ̄
// and the reference. Each of these then holds only the adapter's matrices and the heads. The same
// is true of gradients and moments.
//
// With ranks (LearnerOptions::ranks) each rank has a learner of the same model and computes losses
// of its own texts. All ranks take part in step(), and in every other call whose comment says so.
// Gradients are summed over the ranks. With `sharding` each rank holds a part of the masters, the
// moments and θ̄'s masters (1), of the layers' summed gradients (2), and of the layers of the copies
// used in computation (3), the reference's too. With 3, each layer is collected from all ranks
// before it is used: all ranks then make every loss and scoring call, also ranks without texts, and
// gather() before generation. With `layerwise_generation`, they make every call of generate() instead,
// also ranks without requests.
//
// Errors: ERR_VALUE for bad arguments, before anything is computed; ERR_CONFIG if a head is
// missing; ERR_OUT_OF_MEMORY if the device or the host runs out. A loss call that throws after it
// has begun drops the accumulated gradients, because it is unknown which texts they contain.
//
// learner_types.h has the options, and the inputs and results of the loss calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/generate/engine.h"
#include "core/learner_types.h"
#include "core/loss/linear_loss.h"
#include "core/loss/preference.h"
#include "core/loss/soft_q.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "core/optim/optim.h"
#include "core/ranks/rank_group.h"
#include "core/ranks/shard_layout.h"

namespace nlac {

enum class LayerPass;
struct LayerStep;

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
  // Tensors of other parts of the model, like a vision tower, that load() or resume() left out.
  int64_t skipped_tensors() const { return skipped_; }

  std::vector<GenerateResult> generate(const std::vector<GenerateRequest>& requests, WeightSet which,
                                       const GenerateHooks& hooks);
  // The same in steps, so that calls run concurrently (core/generate/engine.h). begin_generation
  // enqueues a call. advance_generation does one step of all calls and returns whether any call is
  // unfinished. results() returns the results of a finished call. No other method may be called
  // until all calls are finished. Not if generates_together().
  std::shared_ptr<GenerateCall> begin_generation(std::vector<GenerateRequest> requests, WeightSet which,
                                                 GenerateHooks hooks);
  bool advance_generation();
  static std::vector<GenerateResult> results(GenerateCall& call);
  // With sharding 3: completes the weights that generate next, and releases other gathered ones.
  // All ranks call it. They stay complete until they change or the next loss or scoring call, and
  // only they may generate; otherwise ERR_VALUE. Without sharding 3 it does nothing.
  void gather(WeightSet which);
  // Whether the ranks generate together, layer by layer: all of them then call generate() for the
  // same weights.
  bool generates_together() const;
  std::vector<std::vector<float>> log_probs(const std::vector<ScoredText>& texts, WeightSet which,
                                            double temperature = 1);
  // Returns the value of the state before each response token, by the value head of θ.
  std::vector<std::vector<float>> values(const std::vector<ScoredText>& texts);
  // [time, vocab] f32 on the CPU. With sharding 3 of gathered weights only.
  at::Tensor logits(const std::vector<int64_t>& ids, WeightSet which);

  // Forward and backward. From sharding 2 on, all ranks make the calls with gradient, also ranks
  // without texts. Gradients of Σ_ij weight_ij loss_ij accumulate until step(). With
  // `with_gradient` false only the losses are computed. A non-finite loss makes the gradient
  // non-finite, so that step() skips.
  LossOutput token_nll(const std::vector<ScoredText>& texts, bool with_gradient);
  // KL(p_θ̄(·|teacher, y<t) ‖ p_θ(·|student, y<t)), or another divergence of the two. Gradients are
  // of θ only. SupportKind::sampled is the cross entropy of θ on the response, which does not use
  // the teacher. `detail` ≥ 0 also returns LossOutput::details with k = `detail`, for which the
  // teacher is always used.
  LossOutput token_kl(const std::vector<DistilledText>& texts, double temperature, const Support& support,
                      bool with_gradient, const Divergence& divergence = {}, int64_t detail = -1);
  // The clipped surrogate (linear_loss.h) and, with `value`, the loss of the value head, in one
  // pass.
  std::vector<SurrogateOutput> token_surrogate(const std::vector<SurrogateText>& texts,
                                               const SurrogateSettings& settings);
  // Soft actor-critic on tokens (core/loss/soft_q.h) with targets from θ̄. Requires Heads::q. A
  // micro-batch holds whole texts. Gradients accumulate as above.
  std::vector<SoftQOutput> soft_q(const std::vector<SoftQText>& texts, const SoftQOptions& options);
  // The loss of preference pairs (core/loss/preference_math.h). A micro-batch holds whole pairs.
  // Gradients accumulate as above. An error names the text 2i for pair i's chosen one, 2i + 1 for
  // the rejected one.
  std::vector<PreferenceOutput> token_preference(const std::vector<PreferencePair>& pairs,
                                                 const PreferenceLoss& loss, bool with_gradient);
  // A reward model is σ(v · h), v the weight of θ's value head and h the hidden state at a
  // response's last token. The head's bias is not used, because transformers' classifiers have
  // none. Both require Heads::value.
  //   rewards      the probabilities, one per text; labels and weights are not read
  //   reward_loss  the binary cross entropy of each text, nats, unweighted. Gradients of
  //                Σ weight·loss accumulate as above
  std::vector<float> rewards(const std::vector<JudgedText>& texts);
  std::vector<float> reward_loss(const std::vector<JudgedText>& texts, bool with_gradient);
  // Resets the Q heads of θ and θ̄ to θ's current policy, and clears their gradients and moments.
  // All ranks call it.
  void reset_q_heads();

  // `moments` names the moments to use ("" is the default set); each name has its own, allocated on
  // first use. `target_rate` applies update_target(target_rate) in the same pass (in a separate
  // pass if the step is skipped). If θ̄ does not exist yet, it is θ before the step. All ranks call
  // it.
  StepResult step(const AdamWOptions& options, const std::string& moments,
                  std::optional<double> target_rate = {});
  // Frees a set of moments. discard_gradients() drops the gradients accumulated since the last
  // step.
  void discard_moments(const std::string& moments) { moments_.erase(moments); }
  void discard_gradients();
  // Drops the keys and values of finished texts, so that later generation does not depend on
  // earlier calls: in bfloat16, cache hits can change the last bits.
  void drop_caches() {
    online_engine_->drop_caches();
    target_engine_->drop_caches();
  }

  void update_target(double target_rate);  // counts its calls; drops θ̄'s caches; all ranks call it
  // Returns the relative distance of θ̄ from θ over the trained parameters; 0 if θ̄ does not exist.
  // All ranks call it.
  double target_distance();
  // Copies the current θ to the reference, and replaces an earlier reference. All ranks call it,
  // and restore_reference().
  void keep_reference();
  // Copies the reference to θ, which then has its precision, and drops pending gradients. Moments
  // stay. Throws ERR_VALUE if there is no reference.
  void restore_reference();

  // Writes all state to `directory`, which must exist, as bit-exact safetensors files:
  //   config.json, model.safetensors   θ with its heads; load() reads these too
  //   target.safetensors               θ̄, if it exists
  //   reference.safetensors            the reference, if it exists, in the learner's dtype
  //   gradients.safetensors            pending gradients, if any
  //   optimizer-N.safetensors          the moments
  //   learner.json                     written last; lists the other files
  // resume() throws ERR_CHECKPOINT for anything missing (heads too), damaged or of another shape.
  //
  // With an adapter, adapter_model.safetensors replaces model.safetensors and the base is not
  // written. resume() then needs the base's path and checks that it is the same model. A base that
  // exists nowhere else (from create() or from a checkpoint) is written to the checkpoint. save()
  // throws ERR_VALUE if the directory holds a whole model. resume() may omit `options.adapter`, and
  // throws ERR_CONFIG if it differs from the saved one.
  //
  // All ranks call save() and the exports; rank 0 writes. A checkpoint does not depend on the
  // number of ranks or on sharding. Pending gradients are summed. If a rank fails, save() throws its
  // error there, ERR_PEER on rank 0, and nothing on the others.
  void save(const std::string& directory);
  // The same in two steps, so that texts can be generated while the files are written. The returned
  // function writes them; it may run on any thread, once, and throws as save() does. It writes the
  // learner's own tensors, without copies (from a GPU, copies of one file at a time): until it has
  // returned, call no method but generate(), begin_generation(), advance_generation(), results() and
  // gather(). All ranks call both; the returned function collects one file at a time on the CPU of
  // rank 0, through RankGroup::host().
  std::function<void()> begin_save(const std::string& directory);
  static std::unique_ptr<Learner> resume(const std::string& directory, const LearnerOptions& options,
                                         const std::string& base = "");
  // Writes the model in the learner's dtype, without heads, with an adapter merged.
  void export_huggingface(const std::string& directory);
  // Writes the reward model as a sequence classifier of transformers. The classifier reads the last
  // token that is not `pad_token_id`, so no response may end with that token; -1 is none.
  void export_reward_model(const std::string& directory, int64_t pad_token_id);
  // Writes the adapter in peft's format; `base` names its model. Throws ERR_VALUE without an
  // adapter.
  void export_adapter(const std::string& directory, const std::string& base);

  // The float32 masters of all ranks, on rank 0; nullopt on the others. All ranks call them.
  std::optional<Weights> whole_masters() const;
  std::optional<Weights> whole_target_masters() const;

  // For tests and diagnosis. Null: not allocated yet. With sharding, masters() has shapes only.
  const Weights& masters() const { return master_; }
  // The model without its adapter. Null: there is none.
  const Weights* base() const { return base_ ? &*base_ : nullptr; }
  const Weights* target_masters() const { return target_master_ ? &*target_master_ : nullptr; }
  const Weights* gradients() const { return gradients_ ? &*gradients_ : nullptr; }

 private:
  struct Text;  // one sequence of a loss call
  struct Rows;  // inputs of a loss
  // Computes a loss, stores the caller's results, and returns the losses and the gradient at
  // the hidden states (undefined if it has none).
  using Loss = std::function<LossResult(const Rows&)>;
  // What a scoring call computes with. It is the same on all ranks.
  struct Scoring {
    WeightSet weights = WeightSet::online;
    std::optional<WeightSet> teacher = {};
    bool with_gradient = false;
  };

  Learner(LoadedModel model, const LearnerOptions& options);

  const Weights& weights(WeightSet which);         // to compute with; allocates θ̄
  Weights on_base(Weights own) const;              // joined with the base, if any; shares all tensors
  Weights computing(const Weights& master) const;  // these parameters in the learner's type
  void changed(WeightSet which);                   // drops caches of the changed parameters
  void require_origin() const;                     // throws unless θ̄ exists or may start at θ
  void require_q_heads() const;
  void require_value_head() const;
  void make_target();
  // If θ̄ exists on one rank, it exists on all of them afterwards. A rank without texts of θ̄ lacks it until
  // then, and cannot make it once θ has changed. All ranks call it before a call that depends on it.
  void agree_on_target();
  TargetUpdate target_update(double target_rate);  // tensors of an update of θ̄; allocates θ̄
  void target_moved();
  Weights& make_gradients();

  // learner/sharding.cc
  struct Shards;
  // A weight set's trained parameters, cut as this rank holds them.
  struct Held {
    std::vector<at::Tensor> masters, compute;
  };
  void shard();                            // called by the constructor
  Weights on_units(Units& units) const;    // new trained parameters in the learner's type, as views
  void set_masters(const Weights& whole);  // with sharding
  void make_sharded_target();
  void set_target_masters(const Weights& whole);  // with sharding
  Held held(WeightSet which) const;
  void collect(WeightSet which);  // after an update: completes what computes, from all ranks
  SumOverRanks sum_over_ranks() const;
  bool writes() const;  // whether this rank writes files
  // A weight set for a file: complete, or with sharding this rank's part of it, which `own` moves to
  // the CPU in float32.
  struct Saved {
    std::optional<Weights> whole = {};
    std::function<Units()> own = {};
  };
  struct File;
  static Saved saved_parts(Units own);
  Saved saved_masters() const;
  Saved saved_target_masters() const;
  Saved saved_reference() const;
  Saved saved_pieces(const std::vector<at::Tensor>& pieces) const;  // with sharding
  // The complete set on rank 0, nothing on the others. With sharding all ranks call it, in the same
  // order, one thread at a time.
  std::optional<Weights> whole(const Saved& saved) const;
  void write_files(const std::vector<File>& files) const;
  void set_moments(AdamWMoments& moments, const AdamWMoments& whole) const;
  void make_sharded_gradients();
  // The reference with sharding 3: a copy of θ, or a loaded one.
  void make_sharded_reference();
  void restore_sharded_reference();
  void set_sharded_reference(const Weights& whole);
  void set_computing(const Units& units, const std::vector<at::Tensor>& to, const Weights& whole) const;

  // learner/exchanges.cc. In a scoring call the ranks exchange the gradients of each layer after
  // its backward pass (from sharding 2 on), and collect each layer before it is used (3). They do
  // so in rounds, as many as the rank with the most micro-batches has. A rank that has fewer, or
  // fails, takes part with zeros.
  bool exchanges(const Scoring& scoring) const;  // whether there are rounds
  void begin_rounds(const Scoring& scoring, int64_t batches, bool reads_teacher);
  Decoder::BeforeLayer before_layers(LayerPass pass);
  void finish_round();
  void finish_rounds();
  void abandon_rounds() noexcept;
  void take_part(const Scoring& scoring) noexcept;  // of a rank that failed before its rounds began
  void perform(const LayerStep& step);
  void release_gathered();
  void require_gathered(WeightSet which) const;
  std::vector<GenerateResult> generate_together(const std::vector<GenerateRequest>& requests, WeightSet which,
                                                const GenerateHooks& hooks);
  // Runs a scoring call. If it fails on this rank before score(), the other ranks do not wait.
  template <typename Body>
  auto scored(const Scoring& scoring, Body body);

  std::vector<at::Tensor> summed_gradients();  // this rank's pieces of the sum over all ranks
  void clear_gradients();                      // after a step
  // Sums pending gradients over the ranks and moves the sum to rank 0. Nothing if there are none.
  std::optional<Saved> pending_gradients();
  void set_pending_gradients(const Weights& whole);
  void reset_sharded_q_heads();

  // Checks a call's texts. zeros_for() returns lists of 0 as long as their responses.
  std::vector<Text> checked(const std::vector<ScoredText>& texts) const;
  Text checked(size_t index, const ScoredText& text) const;
  static std::vector<std::vector<float>> zeros_for(const std::vector<Text>& texts);
  // Packs texts into micro-batches. For each: forward (also of the teacher, if any), `loss`,
  // backward.
  void score(const std::vector<Text>& texts, const Scoring& scoring, const Loss& loss);
  at::Tensor predicted_values(const Rows& rows) const;  // [rows] f32
  // The texts whose only row is the state after the response. `extended` owns what they point to.
  std::vector<Text> last_states(const std::vector<JudgedText>& texts,
                                std::vector<std::vector<int64_t>>& extended) const;
  at::Tensor reward_logits(const Rows& rows) const;  // [rows] f32
  Weights merged(const Weights& masters) const;      // or the base with the adapter merged
  // The value part of token_surrogate, all [rows] f32. Adds the value head's gradient.
  LossOptions loss_options(double temperature, bool with_gradient) const {
    return {temperature, with_gradient, 0, false, -1, config_.logit_cap};
  }
  LossResult value_loss(const Rows& rows, const at::Tensor& values, const at::Tensor& returns,
                        const at::Tensor& old_values, const ValueOptions& options);

  LearnerOptions options_;
  ModelConfig config_;
  Decoder decoder_;
  std::optional<Weights> base_;  // dtype; with an adapter
  std::string base_checksum_;    // of the files that the base was loaded from; "" after create()
  Weights master_;               // f32, what is trained; with sharding meta tensors
  Weights online_;               // dtype; the masters themselves when dtype is f32
  std::optional<Weights> target_master_, target_;
  std::optional<Weights> reference_;  // dtype
  std::optional<Weights> gradients_;  // f32
  std::map<std::string, AdamWMoments> moments_;
  int64_t skipped_ = 0;
  int64_t target_updates_ = 0;
  bool moved_ = false;  // whether a step has changed θ
  std::unique_ptr<Engine> online_engine_, target_engine_;
  std::shared_ptr<Shards> shards_;  // with sharding
  bool entered_ = false;            // whether the rounds of this scoring call have begun
};

}  // namespace nlac
