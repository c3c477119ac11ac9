// NativeLearner of lib/native/addon.ts. Arguments are copied from JavaScript on the main thread,
// only the worker's thread uses the core's Learner, and results are copied to JavaScript on the
// main thread.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "binding/functions.h"
#include "binding/learner_arguments.h"
#include "binding/learner_results.h"
#include "core/error.h"
#include "core/generate/grammar.h"
#include "core/learner.h"

namespace nlac::binding {
namespace {

struct Nothing {};

Napi::Value to_undefined(Napi::Env env, const Nothing&) { return env.Undefined(); }

// A running generate call, and the data that its hooks point to.
struct Generation {
  std::shared_ptr<GenerateCall> call;
  std::shared_ptr<Worker::Promised<std::vector<GenerateResult>>> promised;
  Worker::Flag cancelled;
  std::shared_ptr<const std::vector<std::string>> token_bytes;
  std::shared_ptr<GrammarCompiler> grammars;
};

// A running save call.
struct Saving {
  std::function<void()> write;  // Learner::begin_save
  std::shared_ptr<Worker::Promised<Nothing>> promised;
  std::future<void> written = {};  // by a thread of its own; not valid before that has begun
};

// The core's learner, and its properties for the main thread.
struct Core {
  std::unique_ptr<Learner> learner;     // worker's thread only
  std::vector<Generation> generations;  // worker's thread only
  std::deque<Saving> savings;           // worker's thread only; written one after another
  ModelConfig config;                   // not written after loading
  int64_t parameters = 0, trainable = 0, skipped = 0;
  int64_t bytes = 0;  // of the parameters
  Heads heads = Heads::none;
  bool together = false;  // Learner::generates_together()

  // Finishes all generate calls and continues save calls, before a job that runs beside those. Such
  // jobs may follow each other without a pause, in which the queue would call advance().
  void finish_generations() noexcept {
    do advance();
    while (!generations.empty());
  }

  // Continues generate and save calls, and settles finished ones. Returns whether any is left.
  bool advance() noexcept {
    if (!savings.empty()) advance_saving();
    if (!generations.empty()) advance_generations();
    return !savings.empty() || !generations.empty();
  }

 private:
  void advance_saving() noexcept {
    Saving& saving = savings.front();
    try {
      if (!saving.written.valid()) saving.written = std::async(std::launch::async, saving.write);
      // Without generations there is nothing else to do; one may join within a millisecond.
      const std::chrono::milliseconds wait(generations.empty() ? 1 : 0);
      if (saving.written.wait_for(wait) != std::future_status::ready) return;
      saving.written.get();
      saving.promised->resolve({});
    } catch (...) {
      saving.promised->reject();
    }
    savings.pop_front();
  }

  // By one step.
  void advance_generations() noexcept {
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
  }
};

class LearnerHandle : public Napi::ObjectWrap<LearnerHandle> {
 public:
  static constexpr napi_type_tag tag = {0xe3901b6fd8574ac2, 0x17a6c5029ef4b83d};
  static std::span<const Member<LearnerHandle>> members();

  explicit LearnerHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<LearnerHandle>(info) {
    const auto* made = given_to_handle<Made>(info, "loadLearner, createLearner or resumeLearner");
    tag_handle<LearnerHandle>(info);
    worker_ = made->worker;
    core_ = made->core;
    account(info.Env(), core_->bytes);
  }

  // Garbage collected without dispose(): the worker still ends, asynchronously.
  ~LearnerHandle() override {
    if (worker_) worker_->close_silently(last_job());
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  // The worker, not the event loop, waits for a grammar that is being compiled.
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
          core->together = core->learner->generates_together();
          core->trainable = core->learner->trainable_parameters();
          core->skipped = core->learner->skipped_tensors();
          // In bfloat16, trained parameters also have a float32 master.
          const bool half = core->learner->options().dtype == at::kBFloat16;
          core->bytes = core->parameters * (half ? 2 : 4) + core->trainable * (half ? 4 : 0);
          return Nothing{};
        },
        [worker, core](Napi::Env env, const Nothing&) {
          Made made{worker, core};
          return make_handle(AddonData::of(env).learner, &made);
        },
        [worker](bool succeeded) {
          if (!succeeded) worker->close_silently({});
        });
  }

  Napi::Value call(const Napi::CallbackInfo& info) { return call_member(*this, info); }

 private:
  struct Made {
    std::shared_ptr<Worker> worker;
    std::shared_ptr<Core> core;
  };

  // `work(learner)` on the worker's thread.
  template <typename Work, typename Convert>
  Napi::Promise submit(Work work, Convert convert) {
    return worker_->submit(
        Env(),
        [core = core_, work = std::move(work)]() mutable {
          const at::NoGradGuard no_grad;
          return work(*core->learner);
        },
        std::move(convert));
  }

  template <typename Work>
  Napi::Promise submit(Work work) {
    return submit(
        [work = std::move(work)](Learner& learner) {
          work(learner);
          return Nothing{};
        },
        to_undefined);
  }

  // The same for work that waits for generate calls, but not for save calls.
  template <typename Result, typename Work, typename Convert>
  Napi::Promise submit_beside_saving(Work work, Convert convert, std::function<void(bool)> settled = {}) {
    return worker_->submit_joining<Result>(
        Env(),
        [core = core_, work = std::move(work)](const std::shared_ptr<Worker::Promised<Result>>& promised) {
          const at::NoGradGuard no_grad;
          core->finish_generations();
          promised->resolve(work(*core->learner));
        },
        std::move(convert), std::move(settled));
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  Napi::Value info() const;
  Napi::Value generate(Napi::Value given, Napi::Value set, Napi::Value on_token);
  Napi::Value save(Napi::Value directory);
  void set_token_bytes(Napi::Value given, Napi::Value controls);

  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Core> core_;
  std::shared_ptr<const std::vector<std::string>> token_bytes_;  // replaced, never written in place
  std::shared_ptr<GrammarCompiler> grammars_;  // for those bytes, control tokens without any
  int64_t accounted_ = 0;
};

// A new token for the caller's onToken.
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

Napi::Value LearnerHandle::info() const {
  const Napi::Env env = Env();
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
  set("skippedTensors", core_->skipped);
  object.Set("heads", heads_name(core_->heads));
  object.Set("eosTokenIds", from_vector(env, config.eos_token_ids, [env](int64_t id) {
               return Napi::Number::New(env, static_cast<double>(id));
             }));
  set("bosTokenId", config.bos_token_id);
  set("padTokenId", config.pad_token_id);
  return object;
}

Napi::Value LearnerHandle::generate(Napi::Value given, Napi::Value set, Napi::Value on_token) {
  const Napi::Env env = Env();
  auto requests = to_vector(given, "requests", [this](Napi::Value value, const std::string& where) {
    GenerateRequest request = to_request(value, where);
    const std::string grammar = Fields(value, where).string("grammar");
    NLAC_REQUIRE(grammar.empty() || grammars_, "ERR_VALUE", "grammars need setTokenBytes first");
    if (!grammar.empty()) request.grammar = grammars_->compile(grammar);
    return request;
  });
  const WeightSet which = to_weight_set(set);
  const bool streamed = on_token.IsFunction();
  NLAC_REQUIRE(streamed || on_token.IsUndefined(), "ERR_VALUE", "onToken must be a function");
  for (const auto& request : requests)
    NLAC_REQUIRE(request.stop.empty() || token_bytes_, "ERR_VALUE", "stop strings need setTokenBytes first");

  const Worker::Flag cancelled = worker_->make_flag();
  const uint64_t callback = streamed && !worker_->closed() ? worker_->keep(on_token.As<Napi::Function>()) : 0;
  Worker* const worker = worker_.get();
  GenerateHooks hooks;
  hooks.cancelled = cancelled.get();
  hooks.token_bytes = token_bytes_.get();
  if (streamed)
    hooks.on_token = [worker, callback](int64_t request, int64_t token) {
      worker->post(std::make_unique<TokenDelivery>(worker, callback, request, token));
    };
  const auto settled = [worker, streamed, callback](bool) {
    if (streamed) worker->drop(callback);
  };
  Napi::Object generation = Napi::Object::New(env);
  using Results = std::vector<GenerateResult>;
  // `cancelled`, `token_bytes` and `grammars` are held until the call is done.
  const auto start = [&]() -> Napi::Promise {
    // Calls of ranks that generate together run one after another, because the ranks must agree on
    // which call a step belongs to.
    if (core_->together)
      return submit_beside_saving<Results>(
          [requests = std::move(requests), which, hooks = std::move(hooks), cancelled,
           token_bytes = token_bytes_,
           grammars = grammars_](Learner& learner) { return learner.generate(requests, which, hooks); },
          from_results, settled);
    return worker->submit_joining<Results>(
        env,
        [requests = std::move(requests), which, hooks = std::move(hooks), cancelled, core = core_,
         token_bytes = token_bytes_,
         grammars = grammars_](const std::shared_ptr<Worker::Promised<Results>>& promised) mutable {
          const at::NoGradGuard no_grad;
          // Once the call has begun, nothing may fail: it would run on without what its hooks point to.
          core->generations.reserve(core->generations.size() + 1);
          auto call = core->learner->begin_generation(std::move(requests), which, std::move(hooks));
          core->generations.push_back({std::move(call), promised, cancelled, token_bytes, grammars});
        },
        from_results, settled);
  };
  generation.Set("done", start());
  generation.Set(
      "cancel",
      Napi::Function::New(env, [cancelled](const Napi::CallbackInfo&) { cancelled->store(true); }, "cancel"));
  return generation;
}

Napi::Value LearnerHandle::save(Napi::Value given) {
  return worker_->submit_joining<Nothing>(
      Env(),
      [directory = to_path(given, "directory"),
       core = core_](const std::shared_ptr<Worker::Promised<Nothing>>& promised) {
        core->savings.push_back({core->learner->begin_save(directory), promised});
      },
      to_undefined);
}

void LearnerHandle::set_token_bytes(Napi::Value given, Napi::Value controls) {
  auto bytes = to_vector(given, "bytes", [](Napi::Value value, const std::string& where) {
    NLAC_REQUIRE(value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_uint8_array,
                 "ERR_VALUE", where, " must be a Uint8Array");
    const auto array = value.As<Napi::Uint8Array>();
    return std::string(reinterpret_cast<const char*>(array.Data()), array.ElementLength());
  });
  auto token_bytes = std::make_shared<const std::vector<std::string>>(bytes);
  for (const int64_t id : to_ids(controls, "controls")) {
    NLAC_REQUIRE(id >= 0 && id < static_cast<int64_t>(bytes.size()), "ERR_VALUE", "control id ", id,
                 " has no bytes");
    bytes[static_cast<size_t>(id)].clear();
  }
  auto grammars = std::make_shared<GrammarCompiler>(std::move(bytes));
  token_bytes_ = std::move(token_bytes);
  grammars_ = std::move(grammars);
}

Napi::Value one_list(Napi::Env env, const std::vector<float>& values) { return from_floats(env, values); }

// --- the table -----------------------------------------------------------------------------------

std::span<const Member<LearnerHandle>> LearnerHandle::members() {
  using Self = LearnerHandle;
  using Value = Napi::Value;
  static constexpr Member<Self> rows[] = {
      method("info", [](Self& self) { return self.info(); }),
      method("generate", [](Self& self, Value requests, Value which,
                            Value on_token) { return self.generate(requests, which, on_token); }),
      method("setTokenBytes",
             [](Self& self, Value bytes, Value controls) { self.set_token_bytes(bytes, controls); }),
      method("logProbs",
             [](Self& self, Value texts, Value which, Value temperature) {
               return self.submit(
                   [texts = to_vector(texts, "texts", to_scored_text), which = to_weight_set(which),
                    temperature = to_number(temperature, "temperature")](Learner& learner) {
                     return learner.log_probs(texts, which, temperature);
                   },
                   from_rows);
             }),
      method("gather",
             [](Self& self, Value which) {
               return self.submit_beside_saving<Nothing>(
                   [which = to_weight_set(which)](Learner& learner) {
                     learner.gather(which);
                     return Nothing{};
                   },
                   to_undefined);
             }),
      method("values",
             [](Self& self, Value texts) {
               return self.submit([texts = to_vector(texts, "texts", to_scored_text)](
                                      Learner& learner) { return learner.values(texts); },
                                  from_rows);
             }),
      method("logits",
             [](Self& self, Value sequences, Value which) {
               return self.submit(
                   [sequences = to_vector(sequences, "sequences", to_ids),
                    which = to_weight_set(which)](Learner& learner) {
                     std::vector<at::Tensor> all;
                     all.reserve(sequences.size());
                     for (const auto& ids : sequences) all.push_back(learner.logits(ids, which).contiguous());
                     return all;
                   },
                   from_logits);
             }),
      method("tokenNll",
             [](Self& self, Value texts, Value with_gradient) {
               return self.submit(
                   [texts = to_vector(texts, "texts", to_scored_text),
                    with_gradient = to_boolean(with_gradient, "withGradient")](Learner& learner) {
                     return learner.token_nll(texts, with_gradient).losses;
                   },
                   from_rows);
             }),
      method("tokenKl",
             [](Self& self, Value texts, Value temperature, Value support, Value with_gradient,
                Value divergence, Value detail) {
               return self.submit(
                   [texts = to_vector(texts, "texts", to_distilled_text),
                    temperature = to_number(temperature, "temperature"), support = to_support(support),
                    with_gradient = to_boolean(with_gradient, "withGradient"),
                    divergence = to_divergence(divergence),
                    detail = to_integer(detail, "detail")](Learner& learner) {
                     return learner.token_kl(texts, temperature, support, with_gradient, divergence, detail);
                   },
                   from_kl);
             }),
      method("tokenSurrogate",
             [](Self& self, Value texts, Value options) {
               return self.submit([texts = to_vector(texts, "texts", to_surrogate_text),
                                   settings = to_surrogate_settings(options)](
                                      Learner& learner) { return learner.token_surrogate(texts, settings); },
                                  from_surrogates);
             }),
      method("tokenPreference",
             [](Self& self, Value pairs, Value options) {
               const Fields fields(options, "options");
               return self.submit(
                   [pairs = to_vector(pairs, "pairs", to_preference_pair), loss = to_preference_loss(fields),
                    with_gradient = fields.boolean("withGradient")](Learner& learner) {
                     return learner.token_preference(pairs, loss, with_gradient);
                   },
                   from_preferences);
             }),
      method("rewards",
             [](Self& self, Value texts) {
               return self.submit([texts = to_vector(texts, "texts", to_judged_text)](
                                      Learner& learner) { return learner.rewards(texts); },
                                  one_list);
             }),
      method("rewardLoss",
             [](Self& self, Value texts, Value with_gradient) {
               return self.submit([texts = to_vector(texts, "texts", to_judged_text),
                                   with_gradient = to_boolean(with_gradient, "withGradient")](
                                      Learner& learner) { return learner.reward_loss(texts, with_gradient); },
                                  one_list);
             }),
      method("softQ",
             [](Self& self, Value texts, Value options) {
               return self.submit(
                   [texts = to_vector(texts, "texts", to_soft_q_text), options = to_soft_q_options(options)](
                       Learner& learner) { return learner.soft_q(texts, options); },
                   from_soft_q);
             }),
      method("resetQHeads",
             [](Self& self) { return self.submit([](Learner& learner) { learner.reset_q_heads(); }); }),
      method("step",
             [](Self& self, Value options, Value target_rate) {
               const Fields fields(options, "options");
               std::optional<double> rate;
               if (!target_rate.IsUndefined()) rate = to_number(target_rate, "targetRate");
               return self.submit([options = to_adamw_options(fields), moments = fields.string("moments"),
                                   rate](Learner& learner) { return learner.step(options, moments, rate); },
                                  from_step);
             }),
      method("discardGradients",
             [](Self& self) { return self.submit([](Learner& learner) { learner.discard_gradients(); }); }),
      method("discardMoments",
             [](Self& self, Value moments) {
               return self.submit([moments = to_string(moments, "moments")](Learner& learner) {
                 learner.discard_moments(moments);
               });
             }),
      method("dropCaches",
             [](Self& self) { return self.submit([](Learner& learner) { learner.drop_caches(); }); }),
      method("updateTarget",
             [](Self& self, Value target_rate) {
               return self.submit([target_rate = to_number(target_rate, "targetRate")](Learner& learner) {
                 learner.update_target(target_rate);
               });
             }),
      method("targetDistance",
             [](Self& self) {
               return self.submit(
                   [](Learner& learner) { return learner.target_distance(); },
                   [](Napi::Env env, double distance) { return Napi::Number::New(env, distance); });
             }),
      method("keepReference",
             [](Self& self) { return self.submit([](Learner& learner) { learner.keep_reference(); }); }),
      method("restoreReference",
             [](Self& self) { return self.submit([](Learner& learner) { learner.restore_reference(); }); }),
      method("save", [](Self& self, Value directory) { return self.save(directory); }),
      method("exportHuggingFace",
             [](Self& self, Value directory) {
               return self.submit([directory = to_path(directory, "directory")](Learner& learner) {
                 learner.export_huggingface(directory);
               });
             }),
      method("exportRewardModel",
             [](Self& self, Value directory, Value pad_token_id) {
               return self.submit([directory = to_path(directory, "directory"),
                                   pad = to_integer(pad_token_id, "padTokenId")](Learner& learner) {
                 learner.export_reward_model(directory, pad);
               });
             }),
      method("exportAdapter",
             [](Self& self, Value directory, Value base) {
               return self.submit([directory = to_path(directory, "directory"),
                                   base = to_string(base, "base")](Learner& learner) {
                 learner.export_adapter(directory, base);
               });
             }),
      method("dispose",
             [](Self& self) {
               self.account(self.Env(), -self.accounted_);
               return self.worker_->close(self.Env(), self.last_job());
             }),
  };
  return rows;
}

constexpr Function functions[] = {
    function("loadLearner",
             [](Napi::Env env, Napi::Value path, Napi::Value options) {
               return LearnerHandle::start(env,
                                           [path = to_path(path, "path"), options = to_options(options)] {
                                             return Learner::load(path, options);
                                           });
             }),
    function("createLearner",
             [](Napi::Env env, Napi::Value config, Napi::Value seed, Napi::Value options) {
               return LearnerHandle::start(
                   env, [json = to_string(config, "config"), seed = to_seed(seed, "seed"),
                         options = to_options(options)] {
                     return Learner::create(ModelConfig::from_json(json), seed, options);
                   });
             }),
    function("resumeLearner",
             [](Napi::Env env, Napi::Value directory, Napi::Value options, Napi::Value base) {
               return LearnerHandle::start(
                   env, [directory = to_path(directory, "directory"), options = to_options(options),
                         base = to_path(base, "base")] { return Learner::resume(directory, options, base); });
             }),
};

}  // namespace

void define_learner(Napi::Env env) {
  AddonData& data = AddonData::of(env);
  data.learner = Napi::Persistent(define_class(env, "NativeLearner", LearnerHandle::members()));
  data.signatures["NativeGeneration"] = {{"done", kProperty}, {"cancel", 0}};  // generate() makes them
}

void export_learner(Napi::Env env, Napi::Object exports) { export_functions(env, exports, functions); }

}  // namespace nlac::binding
