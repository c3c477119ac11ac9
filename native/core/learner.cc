#include "core/learner.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/cpu/bf16_kernels.h"
#include "core/model/linear.h"
#include "core/random.h"

namespace nlac {

// `teacher` is null where θ̄ plays no part.
struct Learner::Text {
  const std::vector<int64_t>* student;
  const std::vector<int64_t>* teacher;
  const std::vector<int64_t>* response;
  std::vector<float> weights;  // [response tokens]
  at::Tensor teacher_hidden =
      {};  // [response tokens, hidden]; undefined: to be computed. Only where weights are equal

  bool used() const {
    return std::any_of(weights.begin(), weights.end(), [](float weight) { return weight != 0; });
  }
};

// The rows of a micro batch that predict a token whose weight is not 0.
struct Learner::Rows {
  struct Place {
    size_t text, token;
  };
  std::vector<Place> places;          // [rows], whose they are
  at::Tensor hidden, teacher_hidden;  // [rows, hidden]; the second is undefined without a teacher
  at::Tensor targets;                 // [rows] i64, the tokens
  at::Tensor weights;                 // [rows] f32
  bool with_gradient = false;
  at::Tensor head_gradient;  // [vocab, hidden] f32, to add into; undefined without gradient

  // [rows] f32: of(text)[token] of each.
  template <typename Of>
  at::Tensor gather(Of of) const {
    std::vector<float> values;
    for (const auto& [text, token] : places) values.push_back(of(text)[token]);
    return at::tensor(values, at::kFloat).to(hidden.device());
  }
  // of(text)[token] ← values, [rows].
  template <typename Of>
  void scatter(const at::Tensor& values, Of of) const {
    using Value = std::decay_t<decltype(of(0)[0])>;
    const at::Tensor host = values.to(at::kCPU, c10::CppTypeToScalarType<Value>::value).contiguous();
    const Value* value = host.const_data_ptr<Value>();
    for (const auto& [text, token] : places) of(text)[token] = *value++;
  }
};

namespace {

using Ids = std::vector<int64_t>;
namespace fs = std::filesystem;

constexpr double kInitialStd = 0.02;

// Runs `body` without autograd and turns what torch throws for lack of memory into our own error.
template <typename Body>
auto guarded(Body body) {
  at::NoGradGuard no_grad;
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    fail("ERR_OUT_OF_MEMORY", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    // The CPU's allocator throws the general class.
    const std::string what = error.what_without_backtrace();
    if (what.find("can't allocate memory") == std::string::npos &&
        what.find("not enough memory") == std::string::npos)
      throw;
    fail("ERR_OUT_OF_MEMORY", what);
  } catch (const std::bad_alloc&) {
    fail("ERR_OUT_OF_MEMORY", "the host has no more memory");
  }
}

template <typename... Where>
void check_ids(const ModelConfig& config, const Ids& ids, const Where&... where) {
  for (int64_t id : ids) {
    NLAC_REQUIRE(id >= 0 && id < config.vocab_size, "ERR_VALUE", where..., "token id ", id,
                 " is outside the vocabulary of ", config.vocab_size);
  }
}

void check_text(const ModelConfig& config, size_t index, const char* name, const Ids& context,
                const Ids& response) {
  const auto require = [&](bool condition, const auto&... what) {
    NLAC_REQUIRE(condition, "ERR_VALUE", "text ", index, ": ", what...);
  };
  require(!context.empty(), "the ", name, " is empty");
  require(!response.empty(), "the response is empty");
  check_ids(config, context, "text ", index, ": ");
  check_ids(config, response, "text ", index, ": ");
  require(static_cast<int64_t>(context.size() + response.size()) <= config.max_positions, "the ", name,
          " of ", context.size(), " tokens and the response of ", response.size(), " exceed the context of ",
          config.max_positions);
}

// One weight for each of `tokens`, of one for all or one each.
std::vector<float> spread_weights(size_t index, const std::vector<float>& weights, size_t tokens) {
  NLAC_REQUIRE(weights.size() == 1 || weights.size() == tokens, "ERR_VALUE", "text ", index,
               ": a weight for all or for each of ", tokens, " response tokens is needed, got ",
               weights.size());
  for (const float weight : weights) {
    NLAC_REQUIRE(std::isfinite(weight), "ERR_VALUE", "text ", index,
                 ": a weight must be a finite float, got ", weight);
  }
  return weights.size() == tokens ? weights : std::vector<float>(tokens, weights[0]);
}

// What a loss needs of each token whose weight is not 0.
void check_list(size_t index, const char* name, const std::vector<float>& list,
                const std::vector<float>& weights) {
  NLAC_REQUIRE(list.size() == weights.size(), "ERR_VALUE", "text ", index, ": ", name, ": one for each of ",
               weights.size(), " response tokens is needed, got ", list.size());
  for (size_t token = 0; token < list.size(); ++token) {
    NLAC_REQUIRE(weights[token] == 0 || std::isfinite(list[token]), "ERR_VALUE", "text ", index, ": ", name,
                 " must be finite, got ", list[token], " for token ", token);
  }
}

void check_temperature(double temperature) {
  NLAC_REQUIRE(std::isfinite(temperature) && temperature > 0, "ERR_VALUE",
               "temperature must be finite and positive, got ", temperature);
}

void check_at_least_0(const char* what, double value) {
  NLAC_REQUIRE(std::isfinite(value) && value >= 0, "ERR_VALUE", what, " must be finite and at least 0, got ",
               value);
}

at::Tensor on_device(const Ids& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

// Contexts and responses in one stream. A response's last token predicts nothing and is left out.
struct Packed {
  Ids ids, lengths;
  Ids rows;  // those that predict a token of the response whose weight is not 0, in order
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

void fill_normal(const at::Tensor& tensor, uint64_t seed, uint64_t stream) {
  float* data = tensor.mutable_data_ptr<float>();
  const int64_t n = tensor.numel();
  // One counter gives four words, two Box-Muller pairs.
  at::parallel_for(0, (n + 3) / 4, 4096, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const auto words = philox(seed, stream, static_cast<uint64_t>(block));
      for (int64_t i = 0; i < 4 && 4 * block + i < n; ++i) {
        const size_t pair = static_cast<size_t>(i & ~int64_t{1});
        const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
        data[4 * block + i] =
            static_cast<float>(kInitialStd * radius * (i % 2 ? std::sin(angle) : std::cos(angle)));
      }
    }
  });
}

// --- checkpoints ----------------------------------------------------------------------------------------

constexpr int kCheckpointFormat = 1;
constexpr const char* kBaseDirectory = "base";  // of a checkpoint whose base lies nowhere else

// The file's tensors by name: exactly these, float32 or, with `half`, bfloat16, and of their shapes.
std::map<std::string, const TensorEntry*> entries_of(const SafetensorsFile& file, const fs::path& path,
                                                     const NamedTensors& tensors, bool half) {
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.tensors) entries[entry.name] = &entry;
  for (const auto& [name, tensor] : tensors) {
    const auto found = entries.find(name);
    NLAC_REQUIRE(found != entries.end(), "ERR_CHECKPOINT", path.string(), ": tensor ", name, " is missing");
    const TensorEntry& entry = *found->second;
    NLAC_REQUIRE((entry.type == StoredType::f32 || (half && entry.type == StoredType::bf16)) &&
                     at::IntArrayRef(entry.shape) == tensor.sizes(),
                 "ERR_CHECKPOINT", path.string(), ": ", name, " is ", stored_type_name(entry.type), ' ',
                 at::IntArrayRef(entry.shape), ", expected f32 ", tensor.sizes());
  }
  NLAC_REQUIRE(entries.size() == tensors.size(), "ERR_CHECKPOINT", path.string(), ": expected ",
               tensors.size(), " tensors, found ", entries.size());
  return entries;
}

// Fills the tensors from the file, which must hold exactly these.
void read_tensors(const fs::path& path, const NamedTensors& tensors, bool half = false) {
  const SafetensorsFile file = open_safetensors(path.string());
  const auto entries = entries_of(file, path, tensors, half);
  for (const auto& [name, tensor] : tensors) {
    const TensorEntry& entry = *entries.at(name);
    at::Tensor host =
        at::empty(tensor.sizes(), entry.type == StoredType::f32 ? at::kFloat : at::kBFloat16);
    std::memcpy(host.mutable_data_ptr(), entry.data, entry.bytes);  // the file's bytes may lie unaligned
    tensor.copy_(host);
  }
}

// The moments, named by their place in Weights::list().
NamedTensors named_moments(const AdamWState& state) {
  NamedTensors named;
  for (size_t i = 0; i < state.m.size(); ++i) {
    named.emplace_back("m." + std::to_string(i), state.m[i]);
    named.emplace_back("v." + std::to_string(i), state.v[i]);
  }
  return named;
}

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  NLAC_REQUIRE(stream.good(), "ERR_CHECKPOINT", path.string(), " cannot be read");
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool any_nonzero(const Weights& weights) {
  for (const at::Tensor& tensor : weights.list()) {
    if (tensor.ne(0).any().item<bool>()) return true;
  }
  return false;
}

// What a checkpoint's description says of an adapter.
nlohmann::json adapter_to_json(const AdapterOptions& adapter, const std::string& base_checksum) {
  return {{"rank", adapter.rank},
          {"alpha", adapter.alpha},
          {"targets", adapter.targets},
          {"base", base_checksum}};
}
AdapterOptions adapter_from_json(const nlohmann::json& json) {
  AdapterOptions adapter;
  adapter.rank = json.at("rank").get<int64_t>();
  adapter.alpha = json.at("alpha").get<double>();
  adapter.targets = json.at("targets").get<std::vector<std::string>>();
  return adapter;
}

// `given` at resume() against what the checkpoint says.
void require_adapter(const std::optional<AdapterOptions>& given, const std::optional<AdapterOptions>& saved) {
  if (!given) return;
  NLAC_REQUIRE(saved, "ERR_CONFIG", "the checkpoint has no adapter: load it to train one on it");
  NLAC_REQUIRE(given->rank == saved->rank && given->alpha == saved->alpha && given->targets == saved->targets,
               "ERR_CONFIG", "the checkpoint's adapter has rank ", saved->rank, ", alpha ", saved->alpha,
               " and ", saved->targets.size(),
               " targets, and is not the one asked for: leave the option out to go on with it");
}

std::string checksum_of(const std::string& model) {
  std::ostringstream text;
  text << std::hex << model_checksum(model);
  return text.str();
}

// A model's parameters are loaded as float32 masters, a base in the type it computes in.
at::ScalarType loaded_type(const LearnerOptions& options) {
  return options.adapter ? options.dtype : at::kFloat;
}

}  // namespace

// --- making one -----------------------------------------------------------------------------------------

Learner::Learner(LoadedModel model, const LearnerOptions& options)
    : options_(options), config_(std::move(model.config)), decoder_(config_, options.int8_generation) {
  if (options.adapter) {
    base_ = model.weights.without_heads();
    master_ = make_adapters(config_, *options.adapter, options.device);
    master_.take_heads(model.weights);
    master_ = master_.copy_as(at::kFloat, options.device);
  } else {
    master_ = std::move(model.weights);
  }
  online_ = computing(master_);
  for (auto* engine : {&online_engine_, &target_engine_})
    *engine = std::make_unique<Engine>(decoder_, options.cache_bytes, options.dtype, options.device);
}

static void check_options(const LearnerOptions& options) {
  NLAC_REQUIRE(options.dtype == at::kFloat || options.dtype == at::kBFloat16, "ERR_VALUE",
               "dtype must be float32 or bfloat16, got ", c10::toString(options.dtype));
  NLAC_REQUIRE(!options.int8_generation || options.device.is_cpu(), "ERR_CONFIG",
               "generation in int8 runs on the CPU alone: leave int8Generation out");
  NLAC_REQUIRE(options.micro_batch_tokens > 0, "ERR_VALUE", "micro_batch_tokens must be positive, got ",
               options.micro_batch_tokens);
  if (options.adapter) check_adapter(*options.adapter);
}

std::unique_ptr<Learner> Learner::load(const std::string& path, const LearnerOptions& options) {
  check_options(options);
  return guarded([&] {
    std::unique_ptr<Learner> learner(
        new Learner(load_model(path, loaded_type(options), options.device, options.heads), options));
    // A checkpoint gives way to later ones: such a base goes into this learner's own.
    if (options.adapter && !fs::exists(fs::path(path) / "learner.json"))
      learner->base_checksum_ = checksum_of(path);
    return learner;
  });
}

std::unique_ptr<Learner> Learner::create(const ModelConfig& config, uint64_t seed,
                                         const LearnerOptions& options) {
  check_options(options);
  return guarded([&] {
    Weights weights = allocate_weights(config, at::kFloat, at::kCPU);
    uint64_t stream = 0;
    for (const auto& [name, tensor] : weights.named_views(config)) {
      if (name.ends_with("norm.weight")) {
        tensor.fill_(1);
      } else if (name.ends_with(".bias")) {
        tensor.zero_();
      } else {
        fill_normal(tensor, seed, stream);
      }
      ++stream;
    }
    const at::ScalarType type = loaded_type(options);
    if (!options.device.is_cpu() || type != at::kFloat) weights = weights.copy_as(type, options.device);
    weights.add_heads(options.heads);
    return std::unique_ptr<Learner>(new Learner({config, std::move(weights)}, options));
  });
}

static int64_t count_of(const Weights& weights) {
  int64_t count = 0;
  for (const at::Tensor& tensor : weights.list()) count += tensor.numel();
  return count;
}

int64_t Learner::trainable_parameters() const { return count_of(master_); }

int64_t Learner::parameters() const { return trainable_parameters() + (base_ ? count_of(*base_) : 0); }

Weights Learner::on_base(Weights own) const { return base_ ? with_adapters(*base_, own) : own; }

Weights Learner::computing(const Weights& master) const {
  return on_base(options_.dtype == at::kFloat ? master : master.copy_as(options_.dtype, options_.device));
}

void Learner::make_target() {
  if (target_) return;
  Weights master = master_.copy_as(at::kFloat, options_.device);
  target_ = computing(master);
  target_master_ = std::move(master);
}

void Learner::require_origin() const {
  NLAC_REQUIRE(
      target_ || !moved_, "ERR_VALUE",
      "steps have moved θ and there is no θ̄ from before them: update the target with τ = 1, before the "
      "first step or now, to let it begin at θ");
}

void Learner::require_q_heads() const {
  NLAC_REQUIRE(master_.heads() == Heads::q, "ERR_CONFIG",
               "the learner has no Q heads: make it with heads \"q\"");
}

const Weights& Learner::weights(Which which) {
  if (which == Which::online) return online_;
  if (which == Which::reference) {
    NLAC_REQUIRE(reference_, "ERR_VALUE", "there is no reference: keep one before θ moves away from it");
    return *reference_;
  }
  require_origin();
  make_target();
  return *target_;
}

void Learner::require_value_head() const {
  NLAC_REQUIRE(master_.value.defined(), "ERR_CONFIG",
               "the learner has no value head: make it with heads \"value\"");
}

Weights& Learner::make_gradients() {
  if (!gradients_) gradients_ = master_.zeros_like(at::kFloat);
  return *gradients_;
}

// --- inference ------------------------------------------------------------------------------------------

std::vector<GenerateResult> Learner::generate(const std::vector<GenerateRequest>& requests, Which which,
                                              const GenerateHooks& hooks) {
  const auto call = begin_generation(requests, which, hooks);
  while (!call->done()) advance_generation();
  return results(*call);
}

std::shared_ptr<GenerateCall> Learner::begin_generation(std::vector<GenerateRequest> requests, Which which,
                                                        GenerateHooks hooks) {
  return guarded([&] {
    NLAC_REQUIRE(which != Which::reference, "ERR_VALUE", "the reference scores texts, it does not write them");
    weights(which);  // made, or refused
    Engine& engine = which == Which::online ? *online_engine_ : *target_engine_;
    return engine.submit(std::move(requests), std::move(hooks));
  });
}

bool Learner::advance_generation() {
  return guarded([&] {
    bool left = false;
    if (online_engine_->busy()) left |= online_engine_->step(online_);
    if (target_engine_->busy()) left |= target_engine_->step(*target_);
    return left;
  });
}

std::vector<GenerateResult> Learner::results(GenerateCall& call) {
  return guarded([&] {
    if (call.failure) std::rethrow_exception(call.failure);
    return std::move(call.results);
  });
}

void Learner::changed(Which which) {
  (which == Which::online ? online_engine_ : target_engine_)->drop_caches();
  decoder_.forget_packed(which == Which::online ? online_ : *target_);
}

std::vector<std::vector<float>> Learner::log_probs(const std::vector<ScoredText>& texts, Which which,
                                                   double temperature) {
  return guarded([&] {
    check_temperature(temperature);
    const std::vector<Text> items = checked(texts);
    auto output = zeros_for(items);
    const Weights& used = weights(which);
    score(items, used, nullptr, false, [&](const Rows& rows) {
      const LossResult result = linear_token_log_probs(rows.hidden, used.head, rows.targets, rows.weights, {},
                                                       false, {temperature, false, 0}, {});
      rows.scatter(result.log_probs, [&](size_t text) { return output[text].data(); });
      return result;
    });
    return output;
  });
}

std::vector<std::vector<float>> Learner::values(const std::vector<ScoredText>& texts) {
  return guarded([&] {
    require_value_head();
    const std::vector<Text> items = checked(texts);
    auto output = zeros_for(items);
    score(items, online_, nullptr, false, [&](const Rows& rows) {
      rows.scatter(predicted_values(rows), [&](size_t text) { return output[text].data(); });
      return LossResult{};
    });
    return output;
  });
}

at::Tensor Learner::logits(const std::vector<int64_t>& ids, Which which) {
  return guarded([&] {
    NLAC_REQUIRE(!ids.empty(), "ERR_VALUE", "the text is empty");
    NLAC_REQUIRE(static_cast<int64_t>(ids.size()) <= config_.max_positions, "ERR_VALUE", "the text has ",
                 ids.size(), " tokens, more than the context of ", config_.max_positions);
    check_ids(config_, ids);
    const Weights& used = weights(which);
    const at::Tensor hidden =
        decoder_.forward(used, on_device(ids, options_.device), {static_cast<int64_t>(ids.size())});
    return nlac::logits(hidden, used.head).to(at::kCPU, at::kFloat).contiguous();
  });
}

// --- losses ---------------------------------------------------------------------------------------------

std::vector<Learner::Text> Learner::checked(const std::vector<ScoredText>& texts) const {
  std::vector<Text> items;
  for (size_t i = 0; i < texts.size(); ++i) items.push_back(checked(i, texts[i]));
  return items;
}

Learner::Text Learner::checked(size_t index, const ScoredText& text) const {
  check_text(config_, index, "prompt", text.prompt, text.response);
  return {&text.prompt, nullptr, &text.response, spread_weights(index, text.weights, text.response.size())};
}

std::vector<std::vector<float>> Learner::zeros_for(const std::vector<Text>& texts) {
  std::vector<std::vector<float>> lists;
  for (const Text& text : texts) lists.emplace_back(text.response->size());
  return lists;
}

LossOutput Learner::token_nll(const std::vector<ScoredText>& texts, bool with_gradient) {
  return guarded([&] {
    const std::vector<Text> items = checked(texts);
    LossOutput output{zeros_for(items)};
    score(items, online_, nullptr, with_gradient, [&](const Rows& rows) {
      LossResult result = linear_token_nll(rows.hidden, online_.head, rows.targets, rows.weights, {},
                                           {1.0, rows.with_gradient, 0}, rows.head_gradient);
      rows.scatter(result.losses, [&](size_t text) { return output.losses[text].data(); });
      return result;
    });
    return output;
  });
}

LossOutput Learner::token_kl(const std::vector<DistilledText>& texts, double temperature,
                             const Support& support, bool with_gradient, const Divergence& divergence) {
  return guarded([&] {
    const bool sampled = support.kind == SupportKind::sampled;
    check_temperature(temperature);
    check_divergence(divergence, support);
    std::vector<Text> items;
    for (size_t i = 0; i < texts.size(); ++i) {
      const DistilledText& text = texts[i];
      check_text(config_, i, "student's context", text.student, text.response);
      if (!sampled) check_text(config_, i, "teacher's context", text.teacher, text.response);
      items.push_back({&text.student, sampled ? nullptr : &text.teacher, &text.response,
                       spread_weights(i, {static_cast<float>(text.weight)}, text.response.size()),
                       sampled ? at::Tensor() : text.teacher_hidden});
      if (!items[i].teacher_hidden.defined()) continue;
      const at::Tensor& kept = items[i].teacher_hidden;
      const int64_t tokens = static_cast<int64_t>(text.response.size());
      NLAC_REQUIRE(kept.sizes() == at::IntArrayRef({tokens, config_.hidden_size}) &&
                       kept.scalar_type() == options_.dtype,
                   "ERR_VALUE", "text ", i, ": the teacher's hidden states must be [", tokens, ", ",
                   config_.hidden_size, "] ", c10::toString(options_.dtype), ", got ", kept.sizes(), ' ',
                   c10::toString(kept.scalar_type()));
    }
    LossOutput output{zeros_for(items)};
    const Weights* teacher = sampled ? nullptr : &weights(Which::target);
    score(items, online_, teacher, with_gradient, [&](const Rows& rows) {
      const LossOptions options{temperature, rows.with_gradient, 0};
      LossResult result =
          teacher ? linear_token_kl(rows.hidden, online_.head, rows.teacher_hidden, teacher->head,
                                    rows.weights, rows.targets, divergence, support, options,
                                    rows.head_gradient)
                  : linear_token_nll(rows.hidden, online_.head, rows.targets, rows.weights, {}, options,
                                     rows.head_gradient);
      rows.scatter(result.losses, [&](size_t text) { return output.losses[text].data(); });
      return result;
    });
    return output;
  });
}

std::vector<SurrogateOutput> Learner::token_surrogate(const std::vector<SurrogateText>& texts,
                                                      const SurrogateSettings& settings) {
  return guarded([&] {
    const std::optional<ValueOptions>& value = settings.value;
    const bool with_reference = settings.surrogate.kl_coefficient != 0;
    check_temperature(settings.temperature);
    check_surrogate(settings.surrogate);
    NLAC_REQUIRE(std::isfinite(settings.entropy_coefficient), "ERR_VALUE",
                 "the entropy's coefficient must be finite, got ", settings.entropy_coefficient);
    if (value) {
      require_value_head();
      check_at_least_0("the value loss's coefficient", value->coefficient);
      check_at_least_0("the value's clip", value->clip);
    }
    std::vector<Text> items;
    std::vector<SurrogateOutput> outputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      const SurrogateText& text = texts[i];
      items.push_back(checked(i, text));
      const auto check = [&](const char* name, const std::vector<float>& list) {
        check_list(i, name, list, items[i].weights);
      };
      check("old log probabilities", text.old_log_probs);
      check("advantages", text.advantages);
      if (with_reference) check("reference log probabilities", text.reference_log_probs);
      if (value) {
        check("returns", text.returns);
        check("old values", text.old_values);
      }
      const std::vector<float> zeros(text.response.size());
      outputs.push_back({zeros, zeros, zeros, zeros, std::vector<int32_t>(zeros.size()),
                         value ? zeros : std::vector<float>{}, value ? zeros : std::vector<float>{}});
    }

    score(items, online_, nullptr, settings.with_gradient, [&](const Rows& rows) {
      const auto input = [&](std::vector<float> SurrogateText::* list) {
        return rows.gather([&](size_t text) { return (texts[text].*list).data(); });
      };
      const auto give = [&](auto SurrogateOutput::* list, const at::Tensor& values) {
        rows.scatter(values, [&](size_t text) { return (outputs[text].*list).data(); });
      };
      const SurrogateInputs inputs{
          rows.targets, input(&SurrogateText::old_log_probs), input(&SurrogateText::advantages),
          with_reference ? input(&SurrogateText::reference_log_probs) : at::Tensor()};
      LossResult result = linear_token_surrogate(
          rows.hidden, online_.head, inputs, rows.weights, settings.surrogate,
          {0, settings.entropy_coefficient, true},
          {settings.temperature, rows.with_gradient, 0, value.has_value()}, rows.head_gradient);
      give(&SurrogateOutput::losses, result.losses);
      give(&SurrogateOutput::log_probs, result.log_probs);
      give(&SurrogateOutput::entropies, result.entropies);
      give(&SurrogateOutput::ratios, result.ratios);
      give(&SurrogateOutput::clipped, result.clipped);
      if (!value) return result;

      const at::Tensor values = predicted_values(rows);
      const LossResult of_values = value_loss(rows, values, input(&SurrogateText::returns),
                                              input(&SurrogateText::old_values), *value);
      give(&SurrogateOutput::values, values);
      give(&SurrogateOutput::value_losses, of_values.losses);
      result.losses += of_values.losses;
      if (rows.with_gradient) result.grad_hidden += of_values.grad_hidden;
      return result;
    });
    return outputs;
  });
}

at::Tensor Learner::predicted_values(const Rows& rows) const {
  return linear_forward(rows.hidden.to(at::kFloat), master_.value, master_.value_bias).squeeze(1);
}

LossResult Learner::value_loss(const Rows& rows, const at::Tensor& values, const at::Tensor& returns,
                               const at::Tensor& old_values, const ValueOptions& options) {
  at::Tensor slopes = values - returns;
  at::Tensor squares = slopes.square();
  if (options.clip > 0) {
    const at::Tensor held = values.clamp(old_values - options.clip, old_values + options.clip);
    const at::Tensor held_squares = (held - returns).square();
    // Where the held value's square is the larger, v itself has no part in the loss.
    slopes = slopes.masked_fill(held_squares > squares, 0);
    squares = at::maximum(squares, held_squares);
  }
  LossResult result;
  result.losses = squares / 2;
  if (rows.with_gradient) {
    const at::Tensor gradients = (rows.weights * slopes * options.coefficient).unsqueeze(1);
    result.grad_hidden = linear_backward(gradients, rows.hidden.to(at::kFloat), master_.value,
                                         gradients_->value, gradients_->value_bias);
  }
  return result;
}

void Learner::score(const std::vector<Text>& texts, const Weights& weights, const Weights* teacher,
                    bool with_gradient, const Loss& loss) {
  // Micro batches of neighbours, each as many texts as fit on the student's and on the teacher's side.
  struct MicroBatch {
    std::vector<size_t> texts;
    int64_t student = 0, teacher = 0;  // tokens
  };
  std::vector<MicroBatch> batches;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    if (!text.used()) continue;
    const int64_t student = Packed::read_tokens(*text.student, *text.response);
    const bool read_by_teacher = text.teacher && !text.teacher_hidden.defined();
    const int64_t teacher_tokens = read_by_teacher ? Packed::read_tokens(*text.teacher, *text.response) : 0;
    if (batches.empty() || batches.back().student + student > options_.micro_batch_tokens ||
        batches.back().teacher + teacher_tokens > options_.micro_batch_tokens)
      batches.emplace_back();
    MicroBatch& batch = batches.back();
    batch.texts.push_back(i);
    batch.student += student;
    batch.teacher += teacher_tokens;
  }

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

    // The teacher first: then its activations are gone when the student's tape is made.
    if (teacher) {
      at::Tensor read;  // the rows of those whose states were not kept
      if (!teacher_packed.ids.empty())
        read = decoder_.forward(*teacher, on_device(teacher_packed.ids, device), teacher_packed.lengths)
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
        with_gradient ? decoder_.forward(weights, ids, packed.lengths, options_.gradient_checkpointing, tape)
                      : decoder_.forward(weights, ids, packed.lengths);
    const at::Tensor places = on_device(packed.rows, device);
    rows.hidden = hidden.index_select(0, places);
    rows.targets = on_device(targets, device);
    rows.weights = rows.gather([&](size_t text) { return texts[text].weights.data(); });
    rows.with_gradient = with_gradient;
    if (with_gradient) rows.head_gradient = make_gradients().head;

    const LossResult result = loss(rows);
    if (!with_gradient) return;
    if (!at::isfinite(result.losses).all().item<bool>()) {
      // One value is enough for step() to see; whether the products would have carried it there is not
      // left to their handling of infinities.
      gradients_->list().front().flatten()[0].fill_(std::numeric_limits<float>::quiet_NaN());
      return;
    }
    at::Tensor grad_hidden = at::zeros_like(hidden);
    grad_hidden.index_copy_(0, places, result.grad_hidden.to(hidden.scalar_type()));
    decoder_.backward(weights, std::move(tape), grad_hidden, *gradients_);
  };

  try {
    for (const MicroBatch& batch : batches) run(batch);
  } catch (...) {
    if (with_gradient) gradients_.reset();
    throw;
  }
}

void Learner::reset_q_heads() {
  guarded([&] {
    require_q_heads();
    std::vector<const Weights*> holders = {&master_, &online_};
    if (target_) holders.insert(holders.end(), {&*target_master_, &*target_});
    master_.reset_q_heads(base_ ? *base_ : master_);
    for (const Weights* weights : holders) {
      for (size_t i = 0; i < master_.q.size(); ++i) {
        weights->q[i].advantage.copy_(master_.q[i].advantage);
        weights->q[i].value.copy_(master_.q[i].value);
      }
    }
    // What was learned of the old ones moves the new ones no more. Heads end every list.
    const auto forget = [&](const std::vector<at::Tensor>& list) {
      for (size_t i = list.size() - 2 * master_.q.size(); i < list.size(); ++i) list[i].zero_();
    };
    if (gradients_) forget(gradients_->list());
    for (auto& [name, state] : moments_) {
      if (state.m.empty()) continue;
      forget(state.m);
      forget(state.v);
    }
  });
}

std::vector<SoftQOutput> Learner::soft_q(const std::vector<SoftQText>& texts, const SoftQOptions& options) {
  return guarded([&] {
    require_q_heads();
    check_soft_q(options);
    std::vector<Text> items;
    std::vector<SoftQOutput> outputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      items.push_back(checked(i, texts[i]));
      items[i].teacher = &texts[i].prompt;
      check_list(i, "rewards", texts[i].rewards, items[i].weights);
      const std::vector<float> zeros(texts[i].response.size());
      outputs.push_back({zeros, zeros, zeros, zeros, zeros});
    }
    const Weights& target = weights(Which::target);

    score(items, online_, &target, options.with_gradient, [&](const Rows& rows) {
      const auto give = [&](std::vector<float> SoftQOutput::* list, const at::Tensor& values) {
        rows.scatter(values, [&](size_t text) { return (outputs[text].*list).data(); });
      };
      // A text's actions end where the next row is another text's.
      std::vector<uint8_t> terminal(rows.places.size(), 1);
      for (size_t row = 0; row + 1 < terminal.size(); ++row)
        terminal[row] = rows.places[row].text != rows.places[row + 1].text;
      const SoftQRows inputs{rows.targets,
                             rows.gather([&](size_t text) { return texts[text].rewards.data(); }),
                             at::tensor(terminal, at::kByte).to(options_.device, at::kBool), rows.weights};
      SoftQGradients gradients;
      if (rows.with_gradient) gradients = {rows.head_gradient, gradients_->q};
      const SoftQResult result =
          linear_soft_q({rows.hidden, online_.head, online_.q},
                        {rows.teacher_hidden, target.head, target.q}, inputs, options, gradients);
      give(&SoftQOutput::q_losses, result.q_losses);
      give(&SoftQOutput::policy_losses, result.policy_losses);
      give(&SoftQOutput::q, result.q);
      give(&SoftQOutput::targets, result.targets);
      give(&SoftQOutput::entropies, result.entropies);
      LossResult loss;
      loss.losses = result.q_losses + result.policy_losses;
      loss.grad_hidden = result.grad_hidden;
      return loss;
    });
    return outputs;
  });
}

// --- optimization ---------------------------------------------------------------------------------------

StepResult Learner::step(const AdamWOptions& options, const std::string& state,
                         std::optional<double> target_rate) {
  return guarded([&] {
    const std::vector<at::Tensor> gradients = make_gradients().list();
    AdamWState& moments = moments_[state];
    const int64_t before = moments.steps;
    std::optional<TargetUpdate> update;
    if (target_rate) update = target_update(*target_rate);
    try {
      const StepResult result = adamw_step(master_.list(), online_.list(), gradients, moments, options,
                                           update ? &*update : nullptr);
      if (!result.skipped) {
        changed(Which::online);
        moved_ = true;
      }
      if (update && result.skipped) update_target(*target_rate);
      if (update && !result.skipped) target_moved();
      return result;
    } catch (...) {
      if (moments.steps == before) throw;  // nothing has moved
      // Some parameters may have: no cache and no gradient of theirs holds any more.
      moved_ = true;
      changed(Which::online);
      if (update) changed(Which::target);
      gradients_.reset();
      throw;
    }
  });
}

TargetUpdate Learner::target_update(double tau) {
  if (tau != 1) require_origin();
  make_target();
  const bool shadowed = options_.dtype != at::kFloat;
  return {target_master_->list(), shadowed ? target_->list() : std::vector<at::Tensor>{}, tau};
}

void Learner::target_moved() {
  ++target_updates_;
  changed(Which::target);
}

void Learner::update_target(double tau) {
  guarded([&] {
    const TargetUpdate update = target_update(tau);
    try {
      ema_update(update.target, master_.list(), update.shadow, tau, 0, static_cast<uint64_t>(target_updates_));
    } catch (...) {
      changed(Which::target);  // some of it may have moved
      throw;
    }
    target_moved();
  });
}

double Learner::target_distance() {
  require_origin();
  if (!target_master_) return 0;
  return guarded([&] { return relative_distance(target_master_->list(), master_.list()); });
}

void Learner::keep_reference() {
  guarded([&] {
    // With an adapter its masters, not the whole of θ: the base is not copied.
    const Weights& kept = base_ ? master_ : online_;
    reference_ = on_base(kept.copy_as(options_.dtype, options_.device));
  });
}

// --- keeping it -----------------------------------------------------------------------------------------

void Learner::save(const std::string& directory) {
  guarded([&] {
    const fs::path root(directory);
    const std::string config = config_.to_json("float32");
    // The adapter would not be found beside it.
    NLAC_REQUIRE(!base_ || !(fs::exists(root / "model.safetensors") ||
                             fs::exists(root / "model.safetensors.index.json")),
                 "ERR_VALUE", directory, " holds a whole model: save the adapter elsewhere");
    // Gone first and written last: a save over an older one that is cut short is no checkpoint.
    fs::remove(root / "learner.json");
    write_file_atomically((root / "config.json").string(), config.data(), config.size());
    if (base_ && base_checksum_.empty())
      nlac::export_huggingface(root / kBaseDirectory, config_, *base_, options_.dtype);
    write_tensors(root / (base_ ? adapter_file : "model.safetensors"), master_.named_views(config_));

    nlohmann::json manifest = {{"format", kCheckpointFormat},
                               {"heads", heads_name(master_.heads())},
                               {"target", target_master_.has_value()},
                               {"reference", reference_.has_value()},
                               {"targetUpdates", target_updates_},
                               {"moved", moved_},
                               {"gradients", gradients_ && any_nonzero(*gradients_)},
                               {"optimizers", nlohmann::json::array()}};
    if (base_) manifest["adapter"] = adapter_to_json(*options_.adapter, base_checksum_);
    if (target_master_) write_tensors(root / "target.safetensors", target_master_->named_views(config_));
    if (reference_)
      write_tensors(root / "reference.safetensors", reference_->named_views(config_), options_.dtype);
    if (manifest["gradients"])
      write_tensors(root / "gradients.safetensors", gradients_->named_views(config_));
    for (const auto& [name, state] : moments_) {
      if (state.m.empty()) continue;
      auto& optimizers = manifest["optimizers"];
      const std::string file = "optimizer-" + std::to_string(optimizers.size()) + ".safetensors";
      write_tensors(root / file, named_moments(state));
      optimizers.push_back({{"name", name}, {"file", file}, {"steps", state.steps}});
    }
    const std::string text = manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    write_file_atomically((root / "learner.json").string(), text.data(), text.size());
  });
}

std::unique_ptr<Learner> Learner::resume(const std::string& directory, const LearnerOptions& given,
                                         const std::string& base) {
  check_options(given);
  const fs::path root(directory);
  const fs::path manifest_path = root / "learner.json";
  return guarded([&]() -> std::unique_ptr<Learner> {
    try {
      const nlohmann::json manifest = parse_json(read_text(manifest_path), manifest_path.string());
      const int format = manifest.at("format").get<int>();
      NLAC_REQUIRE(format == kCheckpointFormat, "ERR_CHECKPOINT", manifest_path.string(), ": format ", format,
                   " is not known to this version");
      const std::string saved_heads = manifest.value("heads", "none");
      const std::optional<Heads> heads = heads_named(saved_heads);
      NLAC_REQUIRE(heads, "ERR_CHECKPOINT", manifest_path.string(), ": heads ", printable(saved_heads),
                   " are not known to this version");
      LearnerOptions options = given;
      options.heads = *heads;
      options.adapter.reset();
      std::string model = directory, checksum;
      if (manifest.contains("adapter")) {
        options.adapter = adapter_from_json(manifest["adapter"]);
        checksum = manifest["adapter"].at("base").get<std::string>();
        model = checksum.empty() ? (root / kBaseDirectory).string() : base;
      }
      require_adapter(given.adapter, options.adapter);
      NLAC_REQUIRE(!model.empty(), "ERR_CHECKPOINT", directory,
                   " holds an adapter without its model, whose path was not given");
      NLAC_REQUIRE(checksum.empty() || checksum == checksum_of(model), "ERR_CHECKPOINT", model,
                   " is not the model that the adapter in ", directory, " belongs to");
      std::unique_ptr<Learner> learner(
          new Learner(load_model(model, loaded_type(options), options.device, options.heads), options));
      if (options.adapter) {
        const std::string config = ModelConfig::from_json(read_text(root / "config.json")).to_json("float32");
        NLAC_REQUIRE(config == learner->config_.to_json("float32"), "ERR_CHECKPOINT", model,
                     " has another configuration than the model that the adapter in ", directory,
                     " belongs to");
        learner->base_checksum_ = checksum;
        read_tensors(root / adapter_file, learner->master_.named_views(learner->config_));
        learner->online_ = learner->computing(learner->master_);
      } else {
        // Heads that the file lacks were made: good for a training's start, but not for its resumption.
        const fs::path path = root / "model.safetensors";
        entries_of(open_safetensors(path.string()), path, learner->master_.named_views(learner->config_),
                   /*half=*/false);
      }
      learner->target_updates_ = manifest.at("targetUpdates").get<int64_t>();
      learner->moved_ = manifest.value("moved", false);
      if (manifest.at("target").get<bool>()) {
        Weights target = learner->master_.like(at::kFloat, options.device);
        read_tensors(root / "target.safetensors", target.named_views(learner->config_));
        learner->target_ = learner->computing(target);
        learner->target_master_ = std::move(target);
      }
      if (manifest.value("reference", false)) {
        Weights reference = learner->master_.like(options.dtype, options.device);
        read_tensors(root / "reference.safetensors", reference.named_views(learner->config_),
                     /*half=*/true);
        learner->reference_ = learner->on_base(std::move(reference));
      }
      if (manifest.at("gradients").get<bool>()) {
        read_tensors(root / "gradients.safetensors", learner->make_gradients().named_views(learner->config_));
      }
      for (const nlohmann::json& saved : manifest.at("optimizers")) {
        const fs::path file = saved.at("file").get<std::string>();
        NLAC_REQUIRE(file == file.filename() && file.has_stem(), "ERR_CHECKPOINT", manifest_path.string(),
                     ": the file name ", printable(file.string()), " leads elsewhere");
        AdamWState& state = learner->moments_[saved.at("name").get<std::string>()];
        state.steps = saved.at("steps").get<int64_t>();
        state.m = learner->master_.like(at::kFloat, options.device).list();
        state.v = learner->master_.like(at::kFloat, options.device).list();
        read_tensors(root / file, named_moments(state));
      }
      return learner;
    } catch (const nlohmann::json::exception& error) {
      fail("ERR_CHECKPOINT", manifest_path.string(), " is not a checkpoint's description: ", error.what());
    } catch (const Error& error) {
      const std::string code = error.code();
      if (code != "ERR_MODEL_FORMAT" && code != "ERR_MODEL_NOT_FOUND" && code != "ERR_IO" &&
          code != "ERR_VALUE")
        throw;
      fail("ERR_CHECKPOINT", "the checkpoint ", directory, " cannot be used: ", error.what());
    }
  });
}

void Learner::export_huggingface(const std::string& directory) {
  guarded([&] {
    const Weights model = base_ ? merge_adapters(with_adapters(*base_, master_)) : master_;
    nlac::export_huggingface(directory, config_, model, options_.dtype);
  });
}

void Learner::export_adapter(const std::string& directory, const std::string& base) {
  guarded([&] {
    NLAC_REQUIRE(base_, "ERR_VALUE", "the learner has no adapter: it trains every parameter");
    nlac::export_adapter(directory, config_, *options_.adapter, master_, base);
  });
}

}  // namespace nlac
