// NativeLearner of lib/native/addon.ts: arguments are copied out of JavaScript on the main thread, the core's
// Learner is touched on its worker's thread alone, results are copied into JavaScript on the main thread.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/generate/grammar.h"
#include "core/learner.h"

namespace nlac::binding {
namespace {

// A generate call under way, and all that its hooks point to.
struct Generation {
  std::shared_ptr<GenerateCall> call;
  std::shared_ptr<Worker::Promised<std::vector<GenerateResult>>> promised;
  Worker::Flag cancelled;
  std::shared_ptr<const std::vector<std::string>> token_bytes;
  std::shared_ptr<GrammarCompiler> grammars;
};

// The core's learner and what the main thread may know of it.
struct Core {
  std::unique_ptr<Learner> learner;     // worker's thread only
  std::vector<Generation> generations;  // worker's thread only
  ModelConfig config;                   // not written after loading
  int64_t parameters = 0, trainable = 0;
  int64_t bytes = 0;  // of the parameters
  Heads heads = Heads::none;

  // One step of all generations; settles those that are done. True while any is left.
  bool advance() noexcept {
    const at::NoGradGuard no_grad;
    const auto settle = [](Generation& generation) {
      try {
        generation.promised->resolve(Learner::results(*generation.call));
      } catch (...) {
        generation.promised->reject();
      }
    };
    try {
      learner->advance_generation();
    } catch (...) {
      for (Generation& generation : generations) generation.promised->reject();
      generations.clear();
    }
    for (Generation& generation : generations)
      if (generation.call->done()) settle(generation);
    std::erase_if(generations, [](const Generation& generation) { return generation.call->done(); });
    return !generations.empty();
  }
};

struct Nothing {};

class LearnerHandle : public Napi::ObjectWrap<LearnerHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "NativeLearner",
                       {InstanceMethod<&LearnerHandle::info>("info"),
                        InstanceMethod<&LearnerHandle::generate>("generate"),
                        InstanceMethod<&LearnerHandle::set_token_bytes>("setTokenBytes"),
                        InstanceMethod<&LearnerHandle::log_probs>("logProbs"),
                        InstanceMethod<&LearnerHandle::values>("values"),
                        InstanceMethod<&LearnerHandle::logits>("logits"),
                        InstanceMethod<&LearnerHandle::token_nll>("tokenNll"),
                        InstanceMethod<&LearnerHandle::token_kl>("tokenKl"),
                        InstanceMethod<&LearnerHandle::token_surrogate>("tokenSurrogate"),
                        InstanceMethod<&LearnerHandle::soft_q>("softQ"),
                        InstanceMethod<&LearnerHandle::reset_q_heads>("resetQHeads"),
                        InstanceMethod<&LearnerHandle::step>("step"),
                        InstanceMethod<&LearnerHandle::discard_gradients>("discardGradients"),
                        InstanceMethod<&LearnerHandle::discard_moments>("discardMoments"),
                        InstanceMethod<&LearnerHandle::drop_caches>("dropCaches"),
                        InstanceMethod<&LearnerHandle::update_target>("updateTarget"),
                        InstanceMethod<&LearnerHandle::target_distance>("targetDistance"),
                        InstanceMethod<&LearnerHandle::keep_reference>("keepReference"),
                        InstanceMethod<&LearnerHandle::save>("save"),
                        InstanceMethod<&LearnerHandle::export_huggingface>("exportHuggingFace"),
                        InstanceMethod<&LearnerHandle::export_adapter>("exportAdapter"),
                        InstanceMethod<&LearnerHandle::dispose>("dispose")});
  }

  explicit LearnerHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<LearnerHandle>(info) {
    if (info.Length() != 1 || !info[0].IsExternal())
      throw Napi::TypeError::New(info.Env(),
                                 "A NativeLearner is made by loadLearner, createLearner or resumeLearner.");
    const auto* made = info[0].As<Napi::External<Made>>().Data();
    worker_ = made->worker;
    core_ = made->core;
    account(info.Env(), core_->bytes);
  }

  // Collected without dispose(): the worker still ends, in its own time.
  ~LearnerHandle() override {
    if (worker_) worker_->close_silently(last_job());
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  // The worker waits for a grammar that is being compiled, so that the event loop does not.
  std::function<void()> last_job() {
    return [core = core_, grammars = std::move(grammars_)]() mutable {
      core->learner.reset();
      grammars.reset();
    };
  }

  // Runs `make` on a new worker and resolves with a handle.
  template <typename Make>
  static Napi::Promise start(Napi::Env env, Make make) {
    const auto core = std::make_shared<Core>();
    const std::shared_ptr<Worker> worker = Worker::start(env, [core] { return core->advance(); });
    return worker->submit(
        env,
        [core, make = std::move(make)] {
          const at::NoGradGuard no_grad;
          core->learner = make();
          core->config = core->learner->config();
          core->parameters = core->learner->parameters();
          core->heads = core->learner->options().heads;
          core->trainable = core->learner->trainable_parameters();
          // In bfloat16 what is trained has a float32 master besides.
          const bool half = core->learner->options().dtype == at::kBFloat16;
          core->bytes = core->parameters * (half ? 2 : 4) + core->trainable * (half ? 4 : 0);
          return Nothing{};
        },
        [worker, core](Napi::Env env, const Nothing&) {
          Made made{worker, core};
          return AddonData::of(env).learner.New({Napi::External<Made>::New(env, &made)});
        },
        [worker](bool succeeded) {
          if (!succeeded) worker->close_silently({});
        });
  }

 private:
  struct Made {
    std::shared_ptr<Worker> worker;
    std::shared_ptr<Core> core;
  };

  // `work(learner)` on the worker's thread.
  template <typename Work, typename Convert>
  Napi::Promise submit(Napi::Env env, Work work, Convert convert, std::function<void(bool)> settled = {}) {
    return worker_->submit(
        env,
        [core = core_, work = std::move(work)]() mutable {
          const at::NoGradGuard no_grad;
          return work(*core->learner);
        },
        std::move(convert), std::move(settled));
  }

  template <typename Work>
  Napi::Promise submit(Napi::Env env, Work work) {
    return submit(
        env,
        [work = std::move(work)](Learner& learner) {
          work(learner);
          return Nothing{};
        },
        [](Napi::Env env, const Nothing&) { return env.Undefined(); });
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  Napi::Value info(const Napi::CallbackInfo& info);
  Napi::Value generate(const Napi::CallbackInfo& info);
  void set_token_bytes(const Napi::CallbackInfo& info);
  Napi::Value log_probs(const Napi::CallbackInfo& info);
  Napi::Value values(const Napi::CallbackInfo& info);
  Napi::Value logits(const Napi::CallbackInfo& info);
  Napi::Value token_nll(const Napi::CallbackInfo& info);
  Napi::Value token_kl(const Napi::CallbackInfo& info);
  Napi::Value token_surrogate(const Napi::CallbackInfo& info);
  Napi::Value soft_q(const Napi::CallbackInfo& info);
  Napi::Value reset_q_heads(const Napi::CallbackInfo& info);
  Napi::Value step(const Napi::CallbackInfo& info);
  Napi::Value discard_gradients(const Napi::CallbackInfo& info);
  Napi::Value discard_moments(const Napi::CallbackInfo& info);
  Napi::Value drop_caches(const Napi::CallbackInfo& info);
  Napi::Value update_target(const Napi::CallbackInfo& info);
  Napi::Value target_distance(const Napi::CallbackInfo& info);
  Napi::Value keep_reference(const Napi::CallbackInfo& info);
  Napi::Value save(const Napi::CallbackInfo& info);
  Napi::Value export_huggingface(const Napi::CallbackInfo& info);
  Napi::Value export_adapter(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);

  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Core> core_;
  std::shared_ptr<const std::vector<std::string>> token_bytes_;  // replaced, never written in place
  std::shared_ptr<GrammarCompiler> grammars_;  // for those bytes, control tokens without any
  int64_t accounted_ = 0;
};

// --- arguments ---------------------------------------------------------------------------------------------

LearnerOptions to_options(Napi::Value value) {
  const Fields fields(value, "options");
  LearnerOptions options;
  options.device = to_device(value.As<Napi::Object>().Get("device"), "options.device");
  options.dtype = to_dtype(value.As<Napi::Object>().Get("dtype"), "options.dtype");
  NLAC_REQUIRE(options.dtype == at::kFloat || options.dtype == at::kBFloat16, "ERR_VALUE",
               "options.dtype must be float32 or bfloat16");
  options.int8_generation = fields.boolean("int8Generation");
  options.gradient_checkpointing = fields.boolean("gradientCheckpointing");
  options.micro_batch_tokens = fields.integer("microBatchTokens");
  NLAC_REQUIRE(options.micro_batch_tokens > 0, "ERR_VALUE", "options.microBatchTokens must be positive");
  const int64_t cache_bytes = fields.integer("cacheBytes");
  NLAC_REQUIRE(cache_bytes >= 0, "ERR_VALUE", "options.cacheBytes must not be negative");
  options.cache_bytes = static_cast<size_t>(cache_bytes);
  const std::optional<Heads> heads = heads_named(fields.string("heads"));
  NLAC_REQUIRE(heads, "ERR_VALUE", "options.heads must be none, value or q");
  options.heads = *heads;
  const Napi::Value adapter = value.As<Napi::Object>().Get("adapter");
  if (!adapter.IsUndefined()) {
    const Fields given(adapter, "options.adapter");
    options.adapter = {given.integer("rank"), given.number("alpha"), given.strings("targets"),
                       given.seed("seed")};
  }
  return options;
}

GenerateRequest to_request(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  GenerateRequest request;
  request.tokens = fields.ids("tokens");
  request.max_new_tokens = fields.integer("maxNewTokens");
  request.temperature = fields.number("temperature");
  request.top_p = fields.number("topP");
  request.top_k = fields.integer("topK");
  request.min_p = fields.number("minP");
  request.repetition_penalty = fields.number("repetitionPenalty");
  request.forbidden = fields.ids("forbidden");
  request.forced = fields.ids("forced");
  request.seed = fields.seed("seed");
  request.stop_token_ids = fields.ids("stopTokenIds");
  request.stop = fields.strings("stop");
  request.keep_hidden = fields.boolean("keepHidden");
  request.top_log_probs = fields.integer("topLogProbs");
  return request;
}

ScoredText to_scored_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  return {fields.ids("prompt"), fields.ids("response"), fields.floats("weights")};
}

SurrogateText to_surrogate_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  return {to_scored_text(value, where),       fields.floats("oldLogProbs"), fields.floats("advantages"),
          fields.floats("referenceLogProbs"), fields.floats("returns"),     fields.floats("oldValues")};
}

SurrogateSettings to_surrogate_settings(Napi::Value value) {
  const Fields fields(value, "options");
  SurrogateSettings settings;
  settings.temperature = fields.number("temperature");
  settings.surrogate = {fields.number("clipLow"), fields.number("clipHigh"), fields.number("klCoefficient")};
  settings.entropy_coefficient = fields.number("entropyCoefficient");
  const Napi::Value of_value = value.As<Napi::Object>().Get("value");
  if (!of_value.IsUndefined()) {
    const Fields parts(of_value, "options.value");
    settings.value = {parts.number("coefficient"), parts.number("clip")};
  }
  settings.with_gradient = fields.boolean("withGradient");
  return settings;
}

DistilledText to_distilled_text(Napi::Value value, const std::string& where) {
  const Fields fields(value, where);
  const Napi::Value kept = value.As<Napi::Object>().Get("teacherHidden");
  return {fields.ids("student"), fields.ids("teacher"), fields.ids("response"), fields.number("weight"),
          kept.IsUndefined() ? at::Tensor() : unwrap_tensor(kept, where + ".teacherHidden")};
}

SoftQText to_soft_q_text(Napi::Value value, const std::string& where) {
  return {to_scored_text(value, where), Fields(value, where).floats("rewards")};
}

SoftQOptions to_soft_q_options(Napi::Value value) {
  const Fields fields(value, "options");
  return {fields.number("temperature"), fields.number("discount"), fields.number("qCoefficient"),
          fields.number("policyCoefficient"), fields.boolean("withGradient")};
}

// --- results -----------------------------------------------------------------------------------------------

Napi::Value from_rows(Napi::Env env, const std::vector<std::vector<float>>& rows) {
  return from_vector(env, rows, [env](const std::vector<float>& row) { return from_floats(env, row); });
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::stuck: return "stuck";
    case FinishReason::cancelled: return "cancelled";
  }
  fail("ERR_INTERNAL", "an unnamed reason to finish");
}

Napi::Value from_results(Napi::Env env, const std::vector<GenerateResult>& results) {
  return from_vector(env, results, [env](const GenerateResult& result) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("tokens", from_ids(env, result.tokens));
    object.Set("logProbs", from_floats(env, result.log_probs));
    object.Set("finishReason", finish_name(result.finish_reason));
    object.Set("cachedTokens", Napi::Number::New(env, static_cast<double>(result.cached_tokens)));
    if (result.hidden.defined()) object.Set("hidden", make_tensor(env, result.hidden));
    object.Set("topTokens", from_ints(env, result.top_tokens));
    object.Set("topLogProbs", from_floats(env, result.top_log_probs));
    return object;
  });
}

Napi::Value from_surrogates(Napi::Env env, const std::vector<SurrogateOutput>& outputs) {
  return from_vector(env, outputs, [env](const SurrogateOutput& output) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("losses", from_floats(env, output.losses));
    object.Set("logProbs", from_floats(env, output.log_probs));
    object.Set("entropies", from_floats(env, output.entropies));
    object.Set("ratios", from_floats(env, output.ratios));
    object.Set("clipped", from_ints(env, output.clipped));
    if (!output.values.empty()) {
      object.Set("values", from_floats(env, output.values));
      object.Set("valueLosses", from_floats(env, output.value_losses));
    }
    return object;
  });
}

Napi::Value from_soft_q(Napi::Env env, const std::vector<SoftQOutput>& outputs) {
  return from_vector(env, outputs, [env](const SoftQOutput& output) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("qLosses", from_floats(env, output.q_losses));
    object.Set("policyLosses", from_floats(env, output.policy_losses));
    object.Set("q", from_floats(env, output.q));
    object.Set("targets", from_floats(env, output.targets));
    object.Set("entropies", from_floats(env, output.entropies));
    return object;
  });
}

const char* family_name(Family family) {
  switch (family) {
    case Family::llama: return "llama";
    case Family::qwen2: return "qwen2";
    case Family::qwen3: return "qwen3";
  }
  fail("ERR_INTERNAL", "an unnamed model family");
}

// One new token on its way to the caller's onToken.
class TokenDelivery final : public Delivery {
 public:
  TokenDelivery(Worker* worker, uint64_t callback, int64_t request, int64_t token)
      : worker_(worker), callback_(callback), request_(request), token_(token) {}
  void deliver(Napi::Env env) override {
    if (auto* callback = worker_->callback(callback_))
      callback->Call({Napi::Number::New(env, static_cast<double>(request_)),
                      Napi::Number::New(env, static_cast<double>(token_))});
  }

 private:
  Worker* worker_;
  uint64_t callback_;
  int64_t request_, token_;
};

// --- methods -----------------------------------------------------------------------------------------------

Napi::Value LearnerHandle::info(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const ModelConfig& config = core_->config;
    Napi::Object object = Napi::Object::New(env);
    const auto set = [&](const char* key, int64_t value) {
      object.Set(key, Napi::Number::New(env, static_cast<double>(value)));
    };
    object.Set("family", family_name(config.family));
    set("vocabSize", config.vocab_size);
    set("hiddenSize", config.hidden_size);
    set("layers", config.layers);
    set("maxPositions", config.max_positions);
    set("parameters", core_->parameters);
    set("trainableParameters", core_->trainable);
    object.Set("heads", heads_name(core_->heads));
    object.Set("eosTokenIds", from_vector(env, config.eos_token_ids, [env](int64_t id) {
                 return Napi::Number::New(env, static_cast<double>(id));
               }));
    set("bosTokenId", config.bos_token_id);
    set("padTokenId", config.pad_token_id);
    return object;
  });
}

Napi::Value LearnerHandle::generate(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    auto requests = to_vector(info[0], "requests", [this](Napi::Value value, const std::string& where) {
      GenerateRequest request = to_request(value, where);
      const std::string grammar = Fields(value, where).string("grammar");
      NLAC_REQUIRE(grammar.empty() || grammars_, "ERR_VALUE", "grammars need setTokenBytes first");
      if (!grammar.empty()) request.grammar = grammars_->compile(grammar);
      return request;
    });
    const WeightSet which = to_which(info[1]);
    const bool streamed = info[2].IsFunction();
    NLAC_REQUIRE(streamed || info[2].IsUndefined(), "ERR_VALUE", "onToken must be a function");
    for (const auto& request : requests)
      NLAC_REQUIRE(request.stop.empty() || token_bytes_, "ERR_VALUE",
                   "stop strings need setTokenBytes first");

    const Worker::Flag cancelled = worker_->make_flag();
    const uint64_t callback =
        streamed && !worker_->closed() ? worker_->keep(info[2].As<Napi::Function>()) : 0;
    Worker* const worker = worker_.get();
    Napi::Object generation = Napi::Object::New(env);
    using Results = std::vector<GenerateResult>;
    generation.Set(
        "done",
        worker->submit_joining<Results>(
            env,
            [requests = std::move(requests), which, cancelled, streamed, callback, worker, core = core_,
             token_bytes = token_bytes_,
             grammars = grammars_](const std::shared_ptr<Worker::Promised<Results>>& promised) mutable {
              const at::NoGradGuard no_grad;
              GenerateHooks hooks;
              hooks.cancelled = cancelled.get();
              hooks.token_bytes = token_bytes.get();
              if (streamed)
                hooks.on_token = [worker, callback](int64_t request, int64_t token) {
                  worker->post(std::make_unique<TokenDelivery>(worker, callback, request, token));
                };
              auto call = core->learner->begin_generation(std::move(requests), which, std::move(hooks));
              core->generations.push_back({std::move(call), promised, cancelled, token_bytes, grammars});
            },
            from_results,
            [worker, streamed, callback](bool) {
              if (streamed) worker->drop(callback);
            }));
    generation.Set("cancel",
                   Napi::Function::New(
                       env, [cancelled](const Napi::CallbackInfo&) { cancelled->store(true); }, "cancel"));
    return generation;
  });
}

void LearnerHandle::set_token_bytes(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] {
    auto bytes = to_vector(info[0], "bytes", [](Napi::Value value, const std::string& where) {
      NLAC_REQUIRE(value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_uint8_array,
                   "ERR_VALUE", where, " must be a Uint8Array");
      const auto array = value.As<Napi::Uint8Array>();
      return std::string(reinterpret_cast<const char*>(array.Data()), array.ElementLength());
    });
    token_bytes_ = std::make_shared<const std::vector<std::string>>(bytes);
    for (const int64_t id : to_ids(info[1], "controls")) {
      NLAC_REQUIRE(id >= 0 && id < static_cast<int64_t>(bytes.size()), "ERR_VALUE", "control id ", id,
                   " has no bytes");
      bytes[static_cast<size_t>(id)].clear();
    }
    grammars_ = std::make_shared<GrammarCompiler>(std::move(bytes));
  });
}

Napi::Value LearnerHandle::log_probs(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_scored_text), which = to_which(info[1]),
         temperature = to_number(info[2], "temperature")](Learner& learner) {
          return learner.log_probs(texts, which, temperature);
        },
        from_rows);
  });
}

Napi::Value LearnerHandle::values(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_scored_text)](Learner& learner) {
          return learner.values(texts);
        },
        from_rows);
  });
}

Napi::Value LearnerHandle::logits(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [sequences = to_vector(info[0], "sequences", to_ids), which = to_which(info[1])](Learner& learner) {
          std::vector<at::Tensor> all;
          all.reserve(sequences.size());
          for (const auto& ids : sequences) all.push_back(learner.logits(ids, which).contiguous());
          return all;
        },
        [](Napi::Env env, const std::vector<at::Tensor>& all) {
          return from_vector(env, all, [env](const at::Tensor& logits) {
            return from_floats(env, logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
          });
        });
  });
}

Napi::Value LearnerHandle::token_nll(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_scored_text),
         with_gradient = to_boolean(info[1], "withGradient")](Learner& learner) {
          return learner.token_nll(texts, with_gradient).losses;
        },
        from_rows);
  });
}

Napi::Value LearnerHandle::token_kl(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_distilled_text),
         temperature = to_number(info[1], "temperature"), support = to_support(info[2]),
         with_gradient = to_boolean(info[3], "withGradient"),
         divergence = to_divergence(info[4])](Learner& learner) {
          return learner.token_kl(texts, temperature, support, with_gradient, divergence).losses;
        },
        from_rows);
  });
}

Napi::Value LearnerHandle::token_surrogate(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_surrogate_text), settings = to_surrogate_settings(info[1])](
            Learner& learner) { return learner.token_surrogate(texts, settings); },
        from_surrogates);
  });
}

Napi::Value LearnerHandle::soft_q(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(),
        [texts = to_vector(info[0], "texts", to_soft_q_text),
         options = to_soft_q_options(info[1])](Learner& learner) { return learner.soft_q(texts, options); },
        from_soft_q);
  });
}

Napi::Value LearnerHandle::reset_q_heads(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [](Learner& learner) { learner.reset_q_heads(); });
  });
}

Napi::Value LearnerHandle::step(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Fields fields(info[0], "options");
    const AdamWOptions options = to_adamw_options(fields);
    std::optional<double> target_rate;
    if (!info[1].IsUndefined()) target_rate = to_number(info[1], "targetRate");
    return submit(
        info.Env(),
        [options, moments = fields.string("moments"), target_rate](Learner& learner) {
          return learner.step(options, moments, target_rate);
        },
        from_step);
  });
}

Napi::Value LearnerHandle::discard_gradients(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [](Learner& learner) { learner.discard_gradients(); });
  });
}

Napi::Value LearnerHandle::discard_moments(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [moments = to_string(info[0], "moments")](Learner& learner) {
      learner.discard_moments(moments);
    });
  });
}

Napi::Value LearnerHandle::drop_caches(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [](Learner& learner) { learner.drop_caches(); });
  });
}

Napi::Value LearnerHandle::update_target(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(),
                  [tau = to_number(info[0], "tau")](Learner& learner) { learner.update_target(tau); });
  });
}

Napi::Value LearnerHandle::target_distance(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(
        info.Env(), [](Learner& learner) { return learner.target_distance(); },
        [](Napi::Env env, double distance) { return Napi::Number::New(env, distance); });
  });
}

Napi::Value LearnerHandle::keep_reference(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [](Learner& learner) { learner.keep_reference(); });
  });
}

Napi::Value LearnerHandle::save(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [directory = to_string(info[0], "directory")](Learner& learner) {
      learner.save(directory);
    });
  });
}

Napi::Value LearnerHandle::export_huggingface(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(), [directory = to_string(info[0], "directory")](Learner& learner) {
      learner.export_huggingface(directory);
    });
  });
}

Napi::Value LearnerHandle::export_adapter(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return submit(info.Env(),
                  [directory = to_string(info[0], "directory"), base = to_string(info[1], "base")](
                      Learner& learner) { learner.export_adapter(directory, base); });
  });
}

Napi::Value LearnerHandle::dispose(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    account(info.Env(), -accounted_);
    return worker_->close(info.Env(), last_job());
  });
}

// --- makers ------------------------------------------------------------------------------------------------

Napi::Value load_learner(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return LearnerHandle::start(info.Env(),
                                [path = to_string(info[0], "path"), options = to_options(info[1])] {
                                  return Learner::load(path, options);
                                });
  });
}

Napi::Value create_learner(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return LearnerHandle::start(info.Env(), [json = to_string(info[0], "config"),
                                             seed = to_seed(info[1], "seed"), options = to_options(info[2])] {
      return Learner::create(ModelConfig::from_json(json), seed, options);
    });
  });
}

Napi::Value resume_learner(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return LearnerHandle::start(
        info.Env(),
        [directory = to_string(info[0], "directory"), options = to_options(info[1]),
         base = to_string(info[2], "base")] { return Learner::resume(directory, options, base); });
  });
}

}  // namespace

void define_learner(Napi::Env env) {
  AddonData::of(env).learner = Napi::Persistent(LearnerHandle::define(env));
}

void export_learner(Napi::Env env, Napi::Object exports) {
  exports.Set("loadLearner", Napi::Function::New<load_learner>(env, "loadLearner"));
  exports.Set("createLearner", Napi::Function::New<create_learner>(env, "createLearner"));
  exports.Set("resumeLearner", Napi::Function::New<resume_learner>(env, "resumeLearner"));
}

}  // namespace nlac::binding
